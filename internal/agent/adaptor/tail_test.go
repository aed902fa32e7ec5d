package adaptor

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/format"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/treecheck/linear"
)

// tailRig is a directory of logs with a Tail.
type tailRig struct {
	*rig
	*Tail
	dir string
}

// newTail returns a tail of a pattern in a directory of its own.
func newTail(t *testing.T, pattern string) *tailRig {
	r := &tailRig{rig: newRig(t), dir: t.TempDir()}
	r.start(t, pattern)
	t.Cleanup(func() { r.Tail.end() })
	return r
}

func (r *tailRig) start(t *testing.T, pattern string) {
	t.Helper()
	r.Tail = &Tail{Path: filepath.Join(r.dir, pattern), Lines: Lines{Options: format.Options{Format: "graphite"}}}
	require.NoError(t, r.check())
	r.begin(r.Output)
}

// restart is a stop of the agent, and its next start.
func (r *tailRig) restartAgent(t *testing.T, pattern string) {
	t.Helper()
	r.Tail.end()
	r.reopen(t)
	r.start(t, pattern)
}

// looks looks until there is nothing more.
func (r *tailRig) looks(t *testing.T) {
	t.Helper()
	for r.look(t.Context(), r.Output) {
	}
}

func (r *tailRig) path(name string) string { return filepath.Join(r.dir, name) }

// write appends text to a file.
func (r *tailRig) write(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(r.path(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func (r *tailRig) rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(r.path(from), r.path(to)))
}

// copy copies the first bytes of a file, or all.
func (r *tailRig) copy(t *testing.T, from, to string, bytes int) {
	t.Helper()
	text, err := os.ReadFile(r.path(from))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.path(to), text[:min(bytes, len(text))], 0o600))
}

// zip compresses a file as gzip does.
func (r *tailRig) zip(t *testing.T, name string) {
	t.Helper()
	in, err := os.Open(r.path(name))
	require.NoError(t, err)
	out, err := os.Create(r.path(name + ".gz"))
	require.NoError(t, err)
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, out.Close())
	require.NoError(t, in.Close())
	require.NoError(t, os.Remove(r.path(name)))
}

// lines returns lines with the values from one number to another.
func lines(from, to int) string {
	var sb strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintf(&sb, "m %d %d\n", n, n)
	}
	return sb.String()
}

// requireOnce asserts that the values 1 to last are in the spool, each once.
func (r *tailRig) requireOnce(t *testing.T, last int) {
	t.Helper()
	samples, _ := spooled(t, r.Spool)
	times := map[int]int{}
	for _, s := range samples {
		times[int(s.Value)]++
		require.Equal(t, int64(s.Value)*1000, s.Time)
	}
	for n := 1; n <= last; n++ {
		require.Equal(t, 1, times[n], "line %d of %d\n%s", n, last, r.log)
	}
	require.Len(t, samples, last)
}

// TestTailRotates: whatever becomes of a file, each of its lines is read once.
func TestTailRotates(t *testing.T) {
	const all = "app.log*"
	for name, c := range map[string]struct {
		pattern string
		run     func(t *testing.T, r *tailRig, look func())
		last    int
		alive   bool // another process could not know
	}{
		"it grows": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 2))
			look()
			r.write(t, "app.log", lines(3, 5)+"m 6")
			look()
			r.write(t, "app.log", " 6\n"+lines(7, 8))
		}, 8, false},
		"renamed, and written to for a while": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.write(t, "app.log", lines(21, 22))
			r.rename(t, "app.log", "app.log.1")
			r.write(t, "app.log", lines(23, 24))
			look()
			r.write(t, "app.log.1", "m 2")
			look()
			r.write(t, "app.log.1", "5 25\nm 26 26\n")
			look()
			r.rename(t, "app.log.1", "app.log.2")
			r.rename(t, "app.log", "app.log.1")
		}, 26, false},
		"renamed to what does not match": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.write(t, "app.log", lines(21, 22))
			r.rename(t, "app.log", "app.log.1")
			r.write(t, "app.log", lines(23, 24))
			look()
			r.write(t, "app.log.1", lines(25, 26))
		}, 26, false},
		"copied and truncated": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 200))
			look()
			r.write(t, "app.log", lines(201, 210))
			r.copy(t, "app.log", "app.log.1", 100) // it is being copied
			look()
			r.copy(t, "app.log", "app.log.1", 1<<20)
			look()
			r.write(t, "app.log", lines(211, 212)) // these are not in the copy
			look()
			require.NoError(t, os.Truncate(r.path("app.log"), 0))
			look()
			r.write(t, "app.log", lines(213, 214))
			look()
		}, 214, true},
		"copied and truncated unseen": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 200))
			look()
			r.write(t, "app.log", lines(201, 210))
			r.copy(t, "app.log", "app.log.1", 1<<20)
			require.NoError(t, os.Truncate(r.path("app.log"), 0))
			r.write(t, "app.log", lines(211, 700)) // it is longer than it was
			look()
			look()
		}, 700, false},
		"compressed": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 200))
			look()
			r.write(t, "app.log", lines(201, 210))
			r.rename(t, "app.log", "app.log.1")
			r.write(t, "app.log", lines(211, 220))
			r.zip(t, "app.log.1")
			look()
			r.pass(settled)
			look()
			r.rename(t, "app.log.1.gz", "app.log.2.gz")
			look()
			r.pass(settled)
		}, 220, false},
		"compressed before it was seen": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log.1", lines(1, 200)+"m 201 201")
			r.zip(t, "app.log.1")
			r.write(t, "app.log", lines(202, 220))
		}, 220, false},
		"an end without a line feed": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", "m 1 1\nm 2 2")
			look()
			r.pass(2 * settled)
			look()
			r.rename(t, "app.log", "app.log.1")
			r.write(t, "app.log", "m 3 3\n")
			look()
			r.pass(settled)
		}, 3, false},
		"removed, and its end": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", "m 1 1\nm 2 2")
			look()
			r.pass(2 * settled)
			require.NoError(t, os.Remove(r.path("app.log")))
			r.write(t, "app.log", "m 3 3\n")
			look()
			r.pass(settled)
		}, 3, true},
		"replaced by another that is longer": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.write(t, "new", lines(21, 200))
			r.rename(t, "new", "app.log")
		}, 200, false},
		"it comes back": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.rename(t, "app.log", "away")
			look()
			r.pass(settled)
			look()
			r.write(t, "away", lines(21, 22))
			r.rename(t, "away", "app.log")
		}, 22, false},
		"renamed, and back": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20)+"m 2")
			look()
			r.rename(t, "app.log", "app.log.1")
			look()
			r.rename(t, "app.log.1", "app.log")
			look()
			r.pass(2 * settled)
			look()
			r.write(t, "app.log", "1 21\n")
		}, 21, false},
		"idle, and grows": {all, func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.pass(idle)
			look()
			for _, f := range r.files {
				require.Nil(t, f.in)
			}
			r.write(t, "app.log", lines(21, 22))
		}, 22, false},
		"idle, and renamed to what does not match": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.pass(idle)
			look()
			r.write(t, "app.log", lines(21, 22))
			r.rename(t, "app.log", "app.log.1")
			look()
			r.write(t, "app.log.1", lines(23, 24))
		}, 24, false},
		"a copy with another name": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 200))
			look()
			r.copy(t, "app.log", "a.1.log", 100) // it is being copied
			look()
			r.copy(t, "app.log", "a.1.log", 1<<20)
			look()
			require.NoError(t, os.Truncate(r.path("app.log"), 0))
			look()
			r.write(t, "app.log", lines(201, 202))
		}, 202, false},
		"another with lines of the same length, and the same end": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", strings.ReplaceAll(lines(10, 19), "\n", strings.Repeat(" ", 300)+"\n"))
			look()
			r.write(t, "b.log", strings.ReplaceAll(lines(20, 39), "\n", strings.Repeat(" ", 300)+"\n")+lines(1, 9))
			look()
		}, 39, false},
		"a copy becomes another file": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			look()
			r.copy(t, "app.log", "b.log", 1<<20)
			r.copy(t, "app.log", "c.log", 1<<20)
			look()
			require.NoError(t, os.Truncate(r.path("b.log"), 0))
			r.rename(t, "c.log", "away")
			require.NoError(t, os.Remove(r.path("app.log")))
			look()
			r.pass(settled)
			look()
			require.Empty(t, r.files)
			r.write(t, "b.log", lines(21, 22))
			require.NoError(t, os.Truncate(r.path("away"), 0))
			r.write(t, "away", lines(23, 24))
			r.rename(t, "away", "c.log")
		}, 24, true},
		"another with the same first line": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			const first = "# the name, the value and the time\n"
			r.write(t, "app.log", first+lines(1, 100))
			look()
			r.write(t, "b.log", first)
			look()
			r.write(t, "b.log", lines(101, 103))
			require.NoError(t, os.Truncate(r.path("app.log"), 0))
			look()
		}, 103, false},
		"rewritten in place": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 3))
			look()
			require.NoError(t, os.WriteFile(r.path("app.log"), []byte(lines(4, 6)), 0o600))
			at := time.Now().Add(time.Minute) // a step of the times of files may be long
			require.NoError(t, os.Chtimes(r.path("app.log"), at, at))
			look()
		}, 6, false},
		"two names of one file": {"*.log", func(t *testing.T, r *tailRig, look func()) {
			r.write(t, "app.log", lines(1, 20))
			require.NoError(t, os.Symlink("app.log", r.path("current.log")))
			look()
			r.write(t, "app.log", lines(21, 22))
		}, 22, false},
	} {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarts %v", name, restarts), func(t *testing.T) {
				r := newTail(t, c.pattern)
				look := func() {
					r.looks(t)
					if restarts && !c.alive {
						r.restartAgent(t, c.pattern)
					}
				}
				c.run(t, r, look)
				for range 3 {
					r.looks(t)
					r.pass(settled)
				}
				r.requireOnce(t, c.last)
			})
		}
	}
}

// TestTailOracle: after any sequence of writes, rotations, restarts and crashes each line is in the spool once.
func TestTailOracle(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 35))
			r := newTail(t, "app.log*")
			disk := vfs.NewCrashableMem()
			require.NoError(t, r.Spool.Close())
			r.disk.FS = disk
			r.open(t)
			r.start(t, "app.log*")
			last, rotated := 0, 0
			write := func() {
				n := 1 + rng.IntN(60)
				r.write(t, "app.log", lines(last+1, last+n))
				t.Logf("lines %d to %d", last+1, last+n)
				last += n
			}
			rotate := func() string {
				rotated++
				return fmt.Sprintf("app.log.%d", rotated)
			}
			steps := map[string]func(){
				"write": write,
				"write and look": func() {
					write()
					r.look(t.Context(), r.Output)
				},
				"look":    func() { r.look(t.Context(), r.Output) },
				"time":    func() { r.pass(time.Duration(rng.IntN(90)) * time.Second) },
				"restart": func() { r.restartAgent(t, "app.log*") },
				"crash": func() { // what was not synced is lost
					r.Tail.end()
					disk = disk.CrashClone(vfs.CrashCloneCfg{})
					require.NoError(t, r.Spool.Close())
					r.disk.FS = disk
					r.open(t)
					r.start(t, "app.log*")
				},
				"rename": func() {
					r.rename(t, "app.log", rotate())
					write()
				},
				"copy and truncate": func() {
					r.copy(t, "app.log", rotate(), 1<<20)
					if rng.IntN(2) == 0 {
						t.Log("look")
						r.look(t.Context(), r.Output)
					}
					require.NoError(t, os.Truncate(r.path("app.log"), 0))
				},
				"rename and compress": func() {
					to := rotate()
					r.rename(t, "app.log", to)
					r.zip(t, to)
					write()
				},
			}
			names := slices.Sorted(maps.Keys(steps))
			write()
			for range 40 {
				step := names[rng.IntN(len(names))]
				t.Log(step)
				steps[step]()
			}
			for range 4 {
				r.looks(t)
				r.pass(settled)
			}
			r.requireOnce(t, last)
		})
	}
}

// TestTailBadFiles: what cannot be read is named, and the others are read.
func TestTailBadFiles(t *testing.T) {
	r := newTail(t, "*.log")
	require.NoError(t, syscall.Mkfifo(r.path("fifo.log"), 0o600))
	require.NoError(t, os.Mkdir(r.path("dir.log"), 0o700))
	require.NoError(t, os.Symlink("loop.log", r.path("loop.log")))
	require.NoError(t, os.Symlink("nowhere", r.path("dangling.log")))
	r.write(t, "\xff.log", lines(7000, 7001))
	r.write(t, "a.log", lines(1, 1)+"bad\n"+strings.Repeat("x", 3*blockBytes)+"m 6000 1\n"+"worse\r\n\r\n"+lines(2, 3))
	cut := "app.log.gz"
	r.write(t, "z", lines(4, 5000))
	r.zip(t, "z")
	r.rename(t, "z.gz", cut)
	info, err := os.Stat(r.path(cut))
	require.NoError(t, err)
	require.NoError(t, os.Truncate(r.path(cut), info.Size()-20))
	r.rename(t, cut, "z.gz")
	r.Tail.end()
	r.start(t, "*[gz]")
	r.looks(t)
	log := r.log.String()
	require.Contains(t, log, `msg="a file cannot be read" stream="tail `+r.path("*[gz]")+` `+r.path("fifo.log")+`" err="it is not a regular file"`)
	require.Contains(t, log, "loop.log: too many levels of symbolic links")
	require.Contains(t, log, `.log" err="its name is not UTF-8"`)
	require.NotContains(t, log, "dir.log")
	require.NotContains(t, log, "dangling.log")
	require.Contains(t, log, "lines=1 offset=6 err=")
	require.Contains(t, log, `msg="skipped a line that is too long"`)
	require.Contains(t, log, "offset=10 limit=524288")
	require.Contains(t, log, "unexpected EOF")
	samples, chunks := spooled(t, r.Spool)
	require.Greater(t, len(samples), 4000, "the part of the damaged file that can be read")
	values := map[float64]int{}
	for _, s := range samples {
		values[s.Value]++
	}
	require.Equal(t, [5]int{1, 1, 1, 1, 0}, [5]int{values[1], values[2], values[3], values[4], values[6000]})
	for _, f := range r.files {
		require.True(t, f.done, "%s is not read again and again", f.path)
	}

	size, err := os.Stat(r.path("a.log"))
	require.NoError(t, err)
	for _, c := range chunks {
		if c.Point == r.sorted()[0].at {
			require.EqualValues(t, size.Size(), c.Seq)
		}
	}
	// The file is replaced by a directory.
	r.Tail.end()
	r.start(t, "a.log")
	require.NoError(t, os.Remove(r.path("a.log")))
	require.NoError(t, os.Mkdir(r.path("a.log"), 0o700))
	r.looks(t)
	require.Contains(t, r.log.String(), `a.log" err="it is not a regular file"`)
}

// TestTailWaits: while the spool is full, files wait, and nothing is lost.
func TestTailWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTail(t, "*.log")
		require.NoError(t, r.Spool.Close())
		r.disk.MaxBytes = 40 << 10
		r.open(t)
		r.start(t, "*.log")
		const last = 20_000
		for n := range 100 {
			r.write(t, fmt.Sprintf("%d.log", n), lines(200*n+1, 200*n+200))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.looks(t)
		}()
		synctest.Wait()
		got, at := 0, spool.Position{}
		for got < last {
			waiting, _ := r.Spool.Stats()
			require.Positive(t, waiting)
			chunks, behind, err := r.Spool.Next(t.Context(), at, 1)
			require.NoError(t, err)
			got += chunks[0].Samples
			require.NoError(t, r.Spool.Ack(chunks, behind))
			at = behind
			synctest.Wait()
		}
		<-done
		require.Equal(t, last, got)
		_, dropped := r.Spool.Stats()
		require.Zero(t, dropped)
	})
}

// TestTailCounts: the times of counters rise over restarts, also where the lines have one time, and each process begins at zero.
func TestTailCounts(t *testing.T) {
	r := newTail(t, "*.log")
	r.Tail.Options = format.Options{Format: "json", Count: "lines"}
	require.NoError(t, r.check())
	line := fmt.Sprintf(`{"time":%d}`+"\n", begin.Unix())
	r.write(t, "a.log", line+line)
	r.looks(t)
	options := r.Tail.Options
	r.Tail.end()
	r.reopen(t)
	r.Tail = &Tail{Path: r.Tail.Path, Lines: Lines{Options: options}}
	require.NoError(t, r.check())
	r.begin(r.Output)
	r.write(t, "a.log", line)
	r.looks(t)
	samples, _ := spooled(t, r.Spool)
	require.Len(t, samples, 4)
	for i, want := range []float64{0, 2, 0, 1} {
		require.Equal(t, want, samples[i].Value)
		if i > 0 {
			require.Greater(t, samples[i].Time, samples[i-1].Time)
		}
	}
}

// TestTailCountsInOrder: files are read in the order in which they were written, whatever they are called, so that counters have
// the times of their lines.
func TestTailCountsInOrder(t *testing.T) {
	r := newTail(t, "*.log")
	r.Tail.Options = format.Options{Format: "json", Count: "lines"}
	require.NoError(t, r.check())
	at := begin.Unix()
	for i, name := range []string{"c.log", "a.log", "b.log"} {
		r.write(t, name, fmt.Sprintf(`{"time":%d}`+"\n"+`{"time":%d}`+"\n", at-3000+int64(i)*1000, at-2999+int64(i)*1000))
		written := time.Unix(at-2999+int64(i)*1000, 0)
		require.NoError(t, os.Chtimes(r.path(name), written, written))
	}
	r.looks(t)
	samples, _ := spooled(t, r.Spool)
	require.Len(t, samples, 7)
	for i, want := range []int64{-3000, -2999, -2000, -1999, -1000, -999} {
		require.Equal(t, (at+want)*1000, samples[i+1].Time)
		require.Equal(t, float64(i+1), samples[i+1].Value)
	}
	// Lines that come late count with what comes next, and push no times ahead.
	late := ""
	for n := range 1000 {
		late += fmt.Sprintf(`{"time":%d}`+"\n", at-5000+int64(n))
	}
	r.write(t, "d.log", late)
	r.looks(t)
	samples, _ = spooled(t, r.Spool)
	require.Len(t, samples, 8)
	require.Equal(t, sample{"web-1", "lines", nil, (at-999)*1000 + 1, 1006}, samples[7])
}

// TestTailForgets: what is gone for a day is forgotten.
func TestTailForgets(t *testing.T) {
	r := newTail(t, "*.log")
	r.write(t, "a.log", lines(1, 3))
	r.looks(t)
	require.Len(t, r.Spool.Streams(r.prefix()), 1)
	r.Tail.end()
	r.start(t, "*.log")
	known := len(r.gone)
	require.NoError(t, r.Spool.Put(spool.Chunk{Stream: r.prefix() + "b* 1:2", Point: spool.Point{Seq: 1, State: "{}"}}))
	r.begin(r.Output)
	require.Len(t, r.gone, known, "a stream of the pattern *.log b* is another's")
	r.Spool.Forget(r.prefix() + "b* 1:2")
	r.looks(t)
	require.NoError(t, os.Remove(r.path("a.log")))
	r.looks(t)
	r.pass(settled)
	r.looks(t)
	require.Empty(t, r.files)
	require.Len(t, r.Spool.Streams(r.prefix()), 1)
	r.pass(remembered)
	r.looks(t)
	require.Empty(t, r.Spool.Streams(r.prefix()))

	r.write(t, "b.log", lines(4, 300))
	r.looks(t)
	r.rename(t, "b.log", "c.log")
	r.zip(t, "c.log")
	r.rename(t, "c.log.gz", "b.log.gz") // what beside b.log is its copy is found
	r.restartAgent(t, "*.log")
	r.looks(t)
	require.Len(t, r.Spool.Streams(r.prefix()), 1)
	require.Empty(t, r.gone)
	// It is complete, so it is not read again and again.
	for range 25 {
		r.pass(time.Hour)
		r.looks(t)
	}
	require.Empty(t, r.Spool.Streams(r.prefix()))
}

// TestTailForgetsTheFirst: of too many files that have gone, the first to go is forgotten, however old the others are.
func TestTailForgetsTheFirst(t *testing.T) {
	r := newTail(t, "*.log*")
	for i := range maxGone {
		r.write(t, fmt.Sprintf("%d.log", i), lines(1000+i, 1000+i))
	}
	r.write(t, "quiet.log", lines(1, 3))
	at := time.Now().Add(-72 * time.Hour)
	require.NoError(t, os.Chtimes(r.path("quiet.log"), at, at))
	r.looks(t)
	for i := range maxGone {
		require.NoError(t, os.Remove(r.path(fmt.Sprintf("%d.log", i))))
	}
	for _, d := range []time.Duration{settled, time.Hour} {
		r.looks(t)
		r.pass(d)
	}
	r.looks(t)
	r.zip(t, "quiet.log")
	for range 3 {
		r.looks(t)
		r.pass(settled)
	}
	samples, _ := spooled(t, r.Spool)
	require.Len(t, samples, maxGone+3)
}

// TestTailCompressedIsReadOnce: a compressed log that is renamed is not read again.
func TestTailCompressedIsReadOnce(t *testing.T) {
	r := newTail(t, "app.log*")
	r.write(t, "app.log.1", lines(1, 300))
	r.zip(t, "app.log.1")
	r.looks(t)
	name := "app.log.1.gz"
	info, err := os.Stat(r.path(name))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.path(name), make([]byte, info.Size()), 0o600)) // who reads it, would complain
	require.NoError(t, os.Chtimes(r.path(name), info.ModTime(), info.ModTime()))
	r.rename(t, name, "app.log.2.gz")
	r.looks(t)
	require.Empty(t, r.log.String())
	// Another size is another content.
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	_, err = z.Write([]byte(lines(301, 303)))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(r.path("app.log.2.gz"), text.Bytes(), 0o600))
	require.NoError(t, os.Chtimes(r.path("app.log.2.gz"), info.ModTime(), info.ModTime()))
	for range 3 {
		r.looks(t)
		r.pass(settled)
	}
	r.requireOnce(t, 303)
}

// TestTailManyFiles: files that are new together cost what they are many, also beside as many that are known.
func TestTailManyFiles(t *testing.T) {
	linear.Check(t, 100, func(n int) string {
		dir := t.TempDir()
		for i := range n {
			text := fmt.Sprintf("m %d 1\n", i) + lines(1, 100)
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.log", i)), []byte(text), 0o600))
		}
		return dir
	}, func(dir string) {
		r := &tailRig{rig: newRig(t), dir: dir}
		r.start(t, "*.log")
		r.looks(t)
		r.restartAgent(t, "*.log")
		before, err := filepath.Glob(r.path("*.log"))
		require.NoError(t, err)
		for i := range before {
			r.write(t, fmt.Sprintf("new%d.log", i), fmt.Sprintf("n %d 1\n", i)+lines(1, 100+i%2))
		}
		r.looks(t)
		r.Tail.end()
		for i := range before {
			require.NoError(t, os.Remove(r.path(fmt.Sprintf("new%d.log", i))))
		}
	})
}

// BenchmarkTail reads a file of JSON lines of about 157 bytes into a spool on the disk, each of which becomes two samples.
func BenchmarkTail(b *testing.B) {
	dir := b.TempDir()
	var text strings.Builder
	at := begin.UTC()
	for n := 0; text.Len() < 64<<20; n++ {
		at = at.Add(time.Millisecond)
		fmt.Fprintf(&text, `{"time":%q,"level":"info","host":"web-%d","path":"/api/v1/items","status":200,"duration":0.%04d,"bytes":%d,"msg":"request served"}`+"\n",
			at.Format("2006-01-02T15:04:05.000Z"), n%7, n%9973, n%65_537)
	}
	require.NoError(b, os.WriteFile(filepath.Join(dir, "a.log"), []byte(text.String()), 0o600))
	b.SetBytes(int64(text.Len()))
	for b.Loop() {
		spooled := filepath.Join(b.TempDir(), "spool")
		s, err := spool.Open(spooled, spool.Options{Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(b, err)
		r := &Tail{Path: filepath.Join(dir, "a.log"), Lines: Lines{Options: format.Options{
			Format: "json", LabelFields: []string{"host", "path", "status"}, ValueFields: []string{"duration", "bytes"},
		}}}
		require.NoError(b, r.check())
		out := NewOutput(s, clock.System{}, slog.New(slog.DiscardHandler), "web-1")
		r.begin(out)
		for r.look(b.Context(), out) {
		}
		r.end()
		waiting, _ := s.Stats()
		require.Positive(b, waiting)
		require.NoError(b, s.Close())
	}
}
