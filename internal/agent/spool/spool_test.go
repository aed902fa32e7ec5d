package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var begin = time.UnixMilli(1763683200000)

// chunk returns the chunk of stream s that ends at 10 × n, of one sample.
func chunk(n int) Chunk {
	return Chunk{Stream: "s", Point: at(n), Samples: 1, Data: fmt.Appendf(nil, "chunk %04d", n)}
}

// at is the point at which chunk n ends.
func at(n int) Point {
	return Point{Generation: 1, Seq: uint64(10 * n), State: fmt.Sprintf("state %04d", n)}
}

// options are those of a spool with segments of about four chunks.
func options(files vfs.FS) Options {
	return Options{FS: files, Clock: clock.NewSimulated(begin), Logger: slog.New(slog.DiscardHandler), MaxBytes: 1400}
}

func open(t *testing.T, o Options) *Spool {
	t.Helper()
	s, err := Open("/a/b", o)
	require.NoError(t, err)
	return s
}

func put(t *testing.T, s *Spool, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		require.NoError(t, s.Put(chunk(n)))
	}
}

// rest returns the numbers of the chunks that are left, and the position behind them.
func rest(t *testing.T, s *Spool) (numbers []int, at Position) {
	t.Helper()
	ended, stop := context.WithCancel(t.Context())
	stop()
	for {
		chunks, behind, err := s.Next(ended, at, 25)
		if errors.Is(err, context.Canceled) {
			return numbers, at
		}
		require.NoError(t, err)
		for _, c := range chunks {
			n := int(c.Seq / 10)
			require.Equal(t, chunk(n), c)
			numbers = append(numbers, n)
		}
		at = behind
	}
}

// ack acknowledges the oldest n chunks, one after another.
func ack(t *testing.T, s *Spool, n int) {
	t.Helper()
	var at Position
	for range n {
		chunks, behind, err := s.Next(t.Context(), at, 1)
		require.NoError(t, err)
		require.NoError(t, s.Ack(chunks, behind))
		at = behind
	}
}

func run(from, to int) (numbers []int) {
	for n := from; n <= to; n++ {
		numbers = append(numbers, n)
	}
	return numbers
}

// TestLife: what is put comes once and in order, over restarts, until it is acknowledged.
func TestLife(t *testing.T) {
	files := vfs.NewMem()
	o := options(files)
	s := open(t, o)
	put(t, s, 1, 9)
	numbers, _ := rest(t, s)
	require.Equal(t, run(1, 9), numbers)
	ack(t, s, 3)
	numbers, _ = rest(t, s)
	require.Equal(t, run(4, 9), numbers)
	waiting, dropped := s.Stats()
	require.Equal(t, [2]int{6, 0}, [2]int{waiting, dropped})
	require.NoError(t, s.Close())

	s = open(t, o)
	require.Equal(t, at(9), s.Stream("s"))
	require.Equal(t, at(3), s.acked["s"])
	waiting, _ = s.Stats()
	require.Equal(t, 6, waiting)
	put(t, s, 10, 11)
	numbers, _ = rest(t, s)
	require.Equal(t, run(4, 11), numbers)
	ack(t, s, 8)
	require.NoError(t, s.Close())
	require.Empty(t, segmentsIn(t, files), "what was acknowledged is removed")

	s = open(t, o)
	require.Equal(t, [2]Point{at(11), at(11)}, [2]Point{s.Stream("s"), s.acked["s"]})
	put(t, s, 12, 12)
	numbers, _ = rest(t, s)
	require.Equal(t, run(12, 12), numbers)
	require.NoError(t, s.Close())
}

// TestNextWaits: a reader that has read everything gets the next chunk.
func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, options(vfs.NewMem()))
		put(t, s, 1, 1)
		_, at := rest(t, s)
		got := make(chan []Chunk, 1)
		go func() {
			chunks, _, err := s.Next(t.Context(), at, 1000)
			if err != nil {
				chunks = nil
			}
			got <- chunks
		}()
		synctest.Wait() // it has found nothing
		put(t, s, 2, 2)
		require.Equal(t, []Chunk{chunk(2)}, <-got)
		require.NoError(t, s.Close())
	})
}

// TestReadFails: what can be read before a place that cannot comes all the same.
func TestReadFails(t *testing.T) {
	broken := false
	o := options(vfs.NewMem())
	o.MaxBytes = 1 << 30
	o.FS = errorfs.Wrap(o.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken && op.Kind == errorfs.OpFileReadAt && op.Offset > 0 {
			return syscall.EIO
		}
		return nil
	}))
	s := open(t, o)
	put(t, s, 1, 1)
	require.NoError(t, s.Put(Chunk{Stream: "s", Point: at(2), Data: make([]byte, 1<<20)}))
	broken = true
	chunks, at, err := s.Next(t.Context(), Position{}, 1<<30)
	require.NoError(t, err)
	require.Equal(t, []Chunk{chunk(1)}, chunks)
	_, _, err = s.Next(t.Context(), at, 1<<30)
	require.ErrorIs(t, err, syscall.EIO)
	require.NoError(t, s.Close())
}

// TestFull: a full spool drops the oldest, counts them, and says so.
func TestFull(t *testing.T) {
	var log bytes.Buffer
	o := options(vfs.NewMem())
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := open(t, o)
	put(t, s, 1, 3)
	ack(t, s, 2)
	put(t, s, 4, 200)
	numbers, at := rest(t, s)
	require.Equal(t, run(numbers[0], 200), numbers)
	require.Greater(t, len(numbers), 20)
	waiting, dropped := s.Stats()
	require.Equal(t, [2]int{len(numbers), 200 - 2 - len(numbers)}, [2]int{waiting, dropped})
	require.Contains(t, log.String(), "the spool is full; dropped the oldest samples")
	require.NoError(t, s.Ack([]Chunk{chunk(200)}, at))
	require.Error(t, s.Put(Chunk{Stream: "s", Data: make([]byte, 1400)}))
	require.NoError(t, s.Close())
}

// TestOld: what is too old is dropped by the time that agents have run, whatever the wall clock says.
func TestOld(t *testing.T) {
	files := vfs.NewMem()
	o := options(files)
	o.MaxAge = 24 * time.Hour
	clk := o.Clock.(*clock.Simulated)
	s := open(t, o)
	put(t, s, 1, 2)
	clk.Set(clk.Now().Add(2 * time.Hour))
	put(t, s, 3, 3) // in a segment of its own
	clk.Jump(1000 * time.Hour)
	numbers, _ := rest(t, s)
	require.Equal(t, run(1, 3), numbers, "a step of the clock")
	require.NoError(t, s.Close())

	o.Clock = clock.NewSimulated(begin.AddDate(1, 0, 0)) // the machine was off for a year
	clk = o.Clock.(*clock.Simulated)
	s = open(t, o)
	clk.Set(clk.Now().Add(21*time.Hour + 59*time.Minute))
	numbers, _ = rest(t, s)
	require.Equal(t, run(1, 3), numbers)
	clk.Set(clk.Now().Add(2 * time.Minute))
	numbers, _ = rest(t, s)
	require.Equal(t, run(3, 3), numbers)
	_, dropped := s.Stats()
	require.Equal(t, 2, dropped)
	require.NoError(t, s.Close())
}

// TestGenerations: a late acknowledgement of an earlier stream of a name does not raise that of a later one.
func TestGenerations(t *testing.T) {
	s := open(t, options(vfs.NewMem()))
	c := Chunk{Stream: "log", Point: Point{Generation: 1, Seq: 5000}, Samples: 1}
	require.NoError(t, s.Put(c))
	next := Chunk{Stream: "log", Point: Point{Generation: 2, Seq: 10}, Samples: 1}
	require.NoError(t, s.Put(next))
	require.Equal(t, next.Point, s.Stream("log"))
	_, at := s.Stream("log"), Position{}
	chunks, at, err := s.Next(t.Context(), at, 1<<20)
	require.NoError(t, err)
	require.NoError(t, s.Ack([]Chunk{chunks[1]}, at))
	require.NoError(t, s.Ack([]Chunk{chunks[0]}, at))
	require.Equal(t, next.Point, s.acked["log"])
	require.NoError(t, s.Close())
}

// TestForgotten: a stream that is forgotten stays so, whatever becomes of its chunks, and a generation is never used again.
func TestForgotten(t *testing.T) {
	o := options(vfs.NewMem())
	s := open(t, o)
	put(t, s, 1, 2)
	other := Chunk{Stream: "t", Point: Point{Generation: 7, Seq: 5}, Samples: 1}
	require.NoError(t, s.Put(other))
	require.NoError(t, s.Close())
	s = open(t, o)
	require.Equal(t, map[string]Point{"s": at(2)}, s.Streams("s"))
	require.EqualValues(t, 8, s.NewGeneration())
	ack(t, s, 1)
	s.Forget("s")
	require.Equal(t, map[string]Point{"t": other.Point}, s.Streams(""))
	waiting, _ := s.Stats()
	require.Equal(t, 2, waiting)
	ack(t, s, 2)
	require.Equal(t, map[string]Point{"t": other.Point}, s.acked)
	require.EqualValues(t, 9, s.NewGeneration())
	require.NoError(t, s.Close())

	s = open(t, o)
	require.Equal(t, map[string]Point{"t": other.Point}, s.Streams(""))
	require.EqualValues(t, 10, s.NewGeneration())
	require.NoError(t, s.Close())
}

// TestWaits: who can wait for room in a full spool gets it when something was acknowledged, and nothing is dropped.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, options(vfs.NewMem()))
		n, done := 0, make(chan error, 1)
		go func() {
			for n < 60 {
				if err := s.PutOrWait(t.Context(), chunk(n+1)); err != nil {
					done <- err
					return
				}
				n++
			}
			done <- nil
		}()
		synctest.Wait()
		require.Less(t, n, 60)
		require.NoError(t, s.Put(Chunk{Stream: "t", Point: at(1)}), "what cannot wait has room")
		_, dropped := s.Stats()
		require.Zero(t, dropped)
		ended, stop := context.WithCancel(t.Context())
		stop()
		require.ErrorIs(t, s.PutOrWait(ended, chunk(0)), context.Canceled)
		for acked := 0; acked < 61; acked++ {
			ack(t, s, 1)
			synctest.Wait()
		}
		require.NoError(t, <-done)
		waiting, dropped := s.Stats()
		require.Equal(t, [2]int{0, 0}, [2]int{waiting, dropped})
		require.NoError(t, s.Close())
	})
}

// TestFullDiskLeavesNothing: what cannot be written leaves no file behind.
func TestFullDiskLeavesNothing(t *testing.T) {
	full, disk := false, vfs.NewMem()
	o := options(disk)
	o.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full && op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	s := open(t, o)
	put(t, s, 1, 1)
	full = true
	for range 10 {
		require.ErrorIs(t, s.Put(chunk(2)), syscall.ENOSPC)
	}
	require.Len(t, segmentsIn(t, disk), 1)
	full = false
	put(t, s, 2, 2)
	numbers, _ := rest(t, s)
	require.Equal(t, run(1, 2), numbers)
	require.NoError(t, s.Close())
}

// TestDamage: a byte that has changed costs one chunk, or those behind it in the segment, and the log names the file.
func TestDamage(t *testing.T) {
	files := vfs.NewMem()
	s := open(t, options(files))
	const all = 9
	put(t, s, 1, all)
	require.NoError(t, s.Close())
	segments := segmentsIn(t, files)
	require.Greater(t, len(segments), 1)
	whole := readFile(t, files, segments[0])
	in := 0 // chunks of the first segment
	for range bytes.Split(whole, []byte("chunk"))[1:] {
		in++
	}
	alone := 0
	for at := range whole {
		spoilt := slices.Clone(whole)
		spoilt[at] ^= 0x41
		writeFile(t, files, segments[0], spoilt)
		var log bytes.Buffer
		o := options(files)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s := open(t, o)
		numbers, _ := rest(t, s)
		lost := at / (len(whole) / in) // chunks before it
		require.Equal(t, run(1, lost), append([]int(nil), numbers[:lost]...))
		require.Equal(t, run(in+1, all), numbers[len(numbers)-(all-in):])
		require.Less(t, len(numbers), all)
		if len(numbers) == all-1 {
			alone++
		}
		require.Contains(t, log.String(), segments[0])
		require.Contains(t, log.String(), "offset="+fmt.Sprint(lost*(len(whole)/in)))
		require.NoError(t, s.Close())
	}
	require.Greater(t, alone, len(whole)*2/3)
}

// segmentsIn returns the sorted names of the segments.
func segmentsIn(t *testing.T, files vfs.FS) []string {
	t.Helper()
	names, err := files.List("/a/b")
	require.NoError(t, err)
	slices.Sort(names)
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, segmentSuffix) })
}

func readFile(t *testing.T, files vfs.FS, name string) []byte {
	t.Helper()
	path := files.PathJoin("/a/b", name)
	info, err := files.Stat(path)
	require.NoError(t, err)
	content := make([]byte, info.Size())
	f, err := files.Open(path)
	require.NoError(t, err)
	_, err = f.ReadAt(content, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return content
}

func writeFile(t *testing.T, files vfs.FS, name string, content []byte) {
	t.Helper()
	f, err := files.Create(files.PathJoin("/a/b", name), vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(content)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// TestRefused: what cannot be used is refused, with what to do.
func TestRefused(t *testing.T) {
	files := vfs.NewMem()
	s := open(t, options(files))
	_, err := Open("/a/b", options(files))
	require.ErrorContains(t, err, "/a/b is in use by another process")
	require.ErrorContains(t, s.Put(Chunk{Stream: "a\xff"}), `"a\xff": its name is not UTF-8`)
	require.ErrorContains(t, s.Put(Chunk{Stream: strings.Repeat("a", maxName+1)}), "more than 4096 bytes")
	put(t, s, 1, 5)
	ack(t, s, 3)
	require.NoError(t, s.Close())

	whole := readFile(t, files, checkpointName)
	for at := range whole {
		spoilt := slices.Clone(whole)
		spoilt[at] ^= 1
		writeFile(t, files, checkpointName, spoilt)
		_, err := Open("/a/b", options(files))
		require.ErrorContains(t, err, "/a/b/checkpoint is damaged")
		require.ErrorContains(t, err, "remove it")
	}
	require.NoError(t, (&checkpoint{Format: 1}).save(files, "/a/b"))
	_, err = Open("/a/b", options(files))
	require.ErrorContains(t, err, "/a/b/checkpoint has format 1, and this version has format 2")
	require.NoError(t, files.Remove("/a/b/checkpoint"))
	s = open(t, options(files))
	numbers, _ := rest(t, s)
	require.Equal(t, 5, numbers[len(numbers)-1])
	require.NoError(t, s.Close())

	require.NoError(t, files.MkdirAll("/store", 0o700))
	writeFile(t, files, "../../store/000004.sst", nil)
	_, err = Open("/store", options(files))
	require.ErrorContains(t, err, "000004.sst is not a spool's: choose a directory for the spool alone")

	c := checkpoint{Streams: map[string]Point{}}
	for n := range 3000 {
		c.Streams[fmt.Sprint(strings.Repeat("a", maxName-8), n)] = Point{}
	}
	require.ErrorContains(t, c.save(files, "/a/b"), "too many streams")
}

// journal is what a spool has promised.
type journal struct {
	started, returned int // the last Put that was begun, and that returned
	acked             int
}

// requirePromise asserts that the spool on a disk as it is after a crash has what was promised.
func requirePromise(t *testing.T, crashed vfs.FS, j journal) {
	t.Helper()
	s := open(t, options(crashed))
	numbers, at := rest(t, s)
	last := int(s.Stream("s").Seq / 10)
	require.GreaterOrEqual(t, last, j.returned)
	require.LessOrEqual(t, last, j.started)
	if j.acked < j.returned {
		require.NotEmpty(t, numbers)
	}
	if len(numbers) > 0 {
		require.Equal(t, run(numbers[0], last), numbers)
		require.LessOrEqual(t, numbers[0], j.acked+1)
	}
	require.LessOrEqual(t, int(s.acked["s"].Seq/10), j.acked)
	// It goes on.
	require.NoError(t, s.Put(chunk(last+1)))
	chunks, _, err := s.Next(t.Context(), at, 1)
	require.NoError(t, err)
	require.Equal(t, []Chunk{chunk(last + 1)}, chunks)
	require.NoError(t, s.Close())
}

// live puts and acknowledges chunks, with restarts.
func live(t *testing.T, o Options, j *journal, rng *rand.Rand) {
	t.Helper()
	clk := o.Clock.(*clock.Simulated)
	for life := range 4 {
		s := open(t, o)
		for step := 0; step < 12 || life%2 == 0 && j.acked < j.returned; step++ {
			clk.Set(clk.Now().Add(400 * time.Millisecond))
			if j.acked < j.returned && (rng.IntN(2) == 0 || step >= 12) {
				chunks, behind, err := s.Next(t.Context(), Position{}, 1+rng.IntN(40))
				require.NoError(t, err)
				j.acked = max(j.acked, int(chunks[len(chunks)-1].Seq/10)) // the server has it
				require.NoError(t, s.Ack(chunks, behind))
				continue
			}
			j.started++
			require.NoError(t, s.Put(chunk(j.started)))
			j.returned = j.started
		}
		require.NoError(t, s.Close())
	}
}

// TestCrashes: a crash before any step on the disk, with none, some or all of what was not synced, keeps what was promised.
func TestCrashes(t *testing.T) {
	for seed := range uint64(12) {
		disk := vfs.NewCrashableMem()
		o, j, crashes := options(disk), journal{}, 0
		o.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				crashes++
				crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: crashes % 3 * 50, RNG: rand.New(rand.NewPCG(seed, uint64(crashes)))})
				requirePromise(t, crashed, j)
			}
			return nil
		}))
		live(t, o, &j, rand.New(rand.NewPCG(seed, 7)))
		require.Greater(t, crashes, 100)
		requirePromise(t, disk.CrashClone(vfs.CrashCloneCfg{}), j)
	}
}

// TestFailures: whatever step on the disk fails, what Put has returned for comes, and the spool goes on.
func TestFailures(t *testing.T) {
	for at, failed := 0, true; failed; at++ {
		disk, step := vfs.NewMem(), 0
		o := options(disk)
		failed = false
		o.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			if step++; step == at+1 {
				failed = true
				return syscall.ENOSPC
			}
			return nil
		}))
		s, err := Open("/a/b", o)
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorContains(t, err, "/a/b")
			s = open(t, o)
		}
		var want []int
		unknown := 0
		for n := 1; n <= 12; n++ {
			if err := s.Put(chunk(n)); err != nil {
				require.ErrorIs(t, err, syscall.ENOSPC)
				unknown = n
				continue
			}
			want = append(want, n)
			if n%4 == 0 {
				chunks, behind, err := s.Next(t.Context(), Position{}, 1)
				require.NoError(t, err)
				if err := s.Ack(chunks, behind); err != nil {
					require.ErrorIs(t, err, syscall.ENOSPC)
				}
				want = want[1:]
			}
		}
		numbers, _ := rest(t, s)
		require.Equal(t, want, numbers)
		_ = s.Close() // it may fail
		s = open(t, options(disk))
		numbers, _ = rest(t, s)
		numbers = slices.DeleteFunc(numbers, func(n int) bool { return n == unknown })
		if len(numbers) > len(want) {
			numbers = numbers[len(numbers)-len(want):] // an acknowledgement was not written
		}
		require.Equal(t, want, numbers)
		waiting, _ := s.Stats()
		ack(t, s, waiting)
		require.NoError(t, s.Close())
		require.Empty(t, segmentsIn(t, disk), "nothing is left behind")
	}
}
