package backup

import (
	"context"
	"encoding/binary"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const sliceMs = int64(1763683200000)

// open opens a store. Its logs are used again soon.
func open(t *testing.T, dir string) *pebble.Store {
	t.Helper()
	st, err := pebble.Open(dir, pebble.Options{
		Settings: storagetest.TestSettings(), MemTableBytes: 256 << 10, ReserveBytes: 1, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return st
}

// write writes chunks [from, to), which do not compress, and counts in acked those that are durable.
func write(ctx context.Context, st *pebble.Store, from, to int, acked *atomic.Int64) error {
	for n := from; n < to; n++ {
		rng := rand.New(rand.NewPCG(uint64(n), 0))
		c := storage.Chunk{ID: blocks.KeyID(1, uint64(n))}
		for range 256 {
			c.Data = binary.BigEndian.AppendUint64(c.Data, rng.Uint64())
		}
		key := storage.SliceKey{StartMs: sliceMs}
		if err := st.Write(ctx, &storage.Batch{
			Open: []storage.SliceKey{key},
			Raw:  []storage.RawChunk{{Group: metric.ScheduleID(n * 256), SliceMs: sliceMs, Chunk: c}},
		}); err != nil {
			return err
		}
		acked.Store(int64(n + 1))
	}
	return nil
}

// filled returns a store with so many chunks.
func filled(t *testing.T, chunks int) *pebble.Store {
	t.Helper()
	st := open(t, t.TempDir())
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	require.NoError(t, write(t.Context(), st, 0, chunks, new(atomic.Int64)))
	return st
}

// requireChunks asserts that the store in dir has the first chunks.
func requireChunks(t *testing.T, dir string, chunks int64) {
	t.Helper()
	st := open(t, dir)
	has := map[blocks.ID]bool{}
	for c, err := range st.RawChunks(t.Context(), blocks.Range{End: 1 << 40}, sliceMs, sliceMs+1) {
		require.NoError(t, err)
		has[c.ID] = true
	}
	require.NoError(t, st.Close())
	for n := range chunks {
		require.True(t, has[blocks.KeyID(1, uint64(n))], "chunk %d of %d", n, chunks)
	}
}

func maker(st Store, place string) *Maker {
	return &Maker{Store: st, Place: place, Version: "test", Clock: clock.NewSimulated(time.UnixMilli(sliceMs))}
}

func silent(wire.Backup) error { return nil }

// create makes a backup, a moment after the one before.
func create(t *testing.T, m *Maker) wire.Backup {
	t.Helper()
	clk := m.Clock.(*clock.Simulated)
	clk.Set(clk.Now().Add(time.Millisecond))
	made, err := m.Create(t.Context(), 0, silent)
	require.NoError(t, err)
	return made
}

// restore restores a backup to a new directory.
func restore(t *testing.T, place, name string) (dir string) {
	t.Helper()
	p, err := Open(place)
	require.NoError(t, err)
	dir = filepath.Join(t.TempDir(), "restored")
	require.NoError(t, p.restoreNamed(t, name, dir))
	return dir
}

func (p *Place) restoreNamed(t *testing.T, name, dir string) error {
	t.Helper()
	m, err := p.Read(t.Context(), name)
	if err != nil {
		return err
	}
	return p.Restore(t.Context(), m, dir, func(int, int) {})
}

func (p *Place) verifyNamed(t *testing.T, name string) error {
	t.Helper()
	m, err := p.Read(t.Context(), name)
	if err != nil {
		return err
	}
	return p.Verify(t.Context(), m, func(int, int) {})
}

// TestBesideIngest: each of some backups beside ingest has what was acknowledged before it began.
func TestBesideIngest(t *testing.T) {
	st, place := open(t, t.TempDir()), t.TempDir()
	var acked atomic.Int64
	require.NoError(t, write(t.Context(), st, 0, 200, &acked))
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		err := error(nil)
		for err == nil {
			err = write(ctx, st, int(acked.Load()), int(acked.Load())+100, &acked)
		}
		written <- err
	}()
	m, before := maker(st, place), map[string]int64{}
	for range 3 {
		n := acked.Load()
		before[create(t, m).Name] = n
	}
	stop()
	require.ErrorIs(t, <-written, context.Canceled)
	require.NoError(t, st.Close())
	require.Len(t, before, 3)
	for name, chunks := range before {
		requireChunks(t, restore(t, place, name), chunks)
	}
}

// TestLife: later backups send what is new; old ones are pruned with what only they have.
func TestLife(t *testing.T) {
	st, place := filled(t, 300), t.TempDir()
	testLife(t, st, place)
	entries, err := os.ReadDir(filepath.Join(place, "busy"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func testLife(t *testing.T, st *pebble.Store, place string) {
	t.Helper()
	p, err := Open(place)
	require.NoError(t, err)
	m := maker(st, place)
	first := create(t, m)
	require.Equal(t, first.Bytes, first.Sent)
	require.NoError(t, write(t.Context(), st, 300, 310, new(atomic.Int64)))
	second := create(t, m)
	require.Less(t, second.Sent, first.Bytes/2)
	require.NoError(t, write(t.Context(), st, 310, 320, new(atomic.Int64)))
	third := create(t, m)
	names, err := p.Names(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{first.Name, second.Name, third.Name}, names)
	requireChunks(t, restore(t, place, first.Name), 300)

	before, err := p.list(t.Context(), "objects")
	require.NoError(t, err)
	removed, err := p.Prune(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, []string{first.Name}, removed)
	after, err := p.list(t.Context(), "objects")
	require.NoError(t, err)
	require.Less(t, len(after), len(before))
	requireChunks(t, restore(t, place, second.Name), 310)
	requireChunks(t, restore(t, place, third.Name), 320)
	m3, err := p.Read(t.Context(), third.Name)
	require.NoError(t, err)
	require.Equal(t, third.Bytes, m3.Bytes)
	removed, err = p.Prune(t.Context(), 2)
	require.NoError(t, err)
	require.Empty(t, removed)
}

// sleeper is a clock on which time passes while somebody sleeps.
type sleeper struct{ *clock.Simulated }

func (s sleeper) Sleep(ctx context.Context, d time.Duration) error {
	s.Set(s.Now().Add(d))
	return ctx.Err()
}

// TestRate: a backup reads no faster than it may. A file that the place lacks is read twice.
func TestRate(t *testing.T) {
	clk := sleeper{clock.NewSimulated(time.UnixMilli(sliceMs))}
	m := &Maker{Store: filled(t, 50), Place: t.TempDir(), Clock: clk}
	took := func() (time.Duration, wire.Backup) {
		clk.Set(clk.Now().Add(time.Millisecond))
		before := clk.Elapsed()
		made, err := m.Create(t.Context(), 1000, silent)
		require.NoError(t, err)
		return clk.Elapsed() - before, made
	}
	first, made := took()
	require.InDelta(t, float64(2*made.Bytes)/1000, first.Seconds(), 70, "two reads of 32 KiB are not waited for")
	second, made := took()
	require.InDelta(t, float64(made.Bytes+made.Sent)/1000, second.Seconds(), 70)
}

// TestOneAtATime: a backup, or a prune, while another one is under way is refused.
func TestOneAtATime(t *testing.T) {
	st, place := filled(t, 10), t.TempDir()
	m := maker(st, place)
	p, err := Open(place)
	require.NoError(t, err)
	_, err = m.Create(t.Context(), 0, func(wire.Backup) error {
		_, err := m.Create(t.Context(), 0, silent)
		require.ErrorIs(t, err, ErrRunning)
		_, err = p.Prune(t.Context(), 1)
		require.ErrorContains(t, err, " is under way at "+place)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, p.put(t.Context(), "busy/prune", strings.NewReader(""), 0))
	_, err = m.Create(t.Context(), 0, silent)
	require.ErrorContains(t, err, "prune is under way at "+place)
	_, err = p.Prune(t.Context(), 1)
	require.NoError(t, err, "one that was cut off is made up for")
	create(t, m)
}

// TestRefused: what cannot be used is refused with what to do, and left as it is.
func TestRefused(t *testing.T) {
	st, place := filled(t, 10), t.TempDir()
	m := maker(st, place)
	made := create(t, m)
	p, err := Open(place)
	require.NoError(t, err)
	target := filepath.Join(t.TempDir(), "restored")

	other := maker(filled(t, 1), place)
	_, err = other.Create(t.Context(), 0, silent)
	require.ErrorContains(t, err, place+" has a backup of another store, "+made.Name)
	_, err = maker(st, filepath.Join(place, "absent")).Create(t.Context(), 0, silent)
	require.ErrorContains(t, err, filepath.Join(place, "absent"))

	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))
	require.ErrorContains(t, p.restoreNamed(t, made.Name, full), full+": directory not empty: restore to a directory that does not exist")
	require.ErrorContains(t, p.restoreNamed(t, made.Name, filepath.Join(full, "file")), "not a directory")
	require.FileExists(t, filepath.Join(full, "file"))

	for _, file := range []string{"backups/" + made.Name + ".json", largest(t, p)} {
		path := filepath.Join(place, file)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		spoilt := slices.Clone(whole)
		spoilt[len(spoilt)/2] ^= 1
		require.NoError(t, os.WriteFile(path, spoilt, 0o600))
		for _, err := range []error{p.restoreNamed(t, made.Name, target), p.verifyNamed(t, made.Name)} {
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "another backup")
			require.NotContains(t, err.Error(), "\n")
		}
		entries, err := os.ReadDir(filepath.Dir(target))
		require.NoError(t, err)
		require.Empty(t, entries)
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	require.NoError(t, p.verifyNamed(t, made.Name))
	require.NoError(t, p.restoreNamed(t, made.Name, target))
	requireChunks(t, target, 10)
}

// largest returns the name of the largest object.
func largest(t *testing.T, p *Place) (name string) {
	t.Helper()
	objects, err := p.list(t.Context(), "objects")
	require.NoError(t, err)
	for object, size := range objects {
		if name == "" || size > objects[strings.TrimPrefix(name, "objects/")] {
			name = "objects/" + object
		}
	}
	return name
}

// TestCutOff: a backup that ends early at any file leaves earlier ones whole, and no checkpoint; the next one is whole.
func TestCutOff(t *testing.T) {
	dir, place := t.TempDir(), t.TempDir()
	st := open(t, dir)
	defer func() { require.NoError(t, st.Close()) }()
	var acked atomic.Int64
	require.NoError(t, write(t.Context(), st, 0, 200, &acked))
	m := maker(st, place)
	earlier := create(t, m)
	for at, ended := 0, false; !ended; at++ {
		require.NoError(t, write(t.Context(), st, int(acked.Load()), int(acked.Load())+5, &acked))
		ctx, cancel := context.WithCancel(t.Context())
		m.Clock.(*clock.Simulated).Set(m.Clock.Now().Add(time.Millisecond))
		_, err := m.Create(ctx, 0, func(b wire.Backup) error {
			if b.Done == at && at%2 == 0 {
				cancel()
			}
			if b.Done == at && at%2 == 1 {
				require.NoError(t, os.Rename(place, place+".away")) // the disk is gone
			}
			return nil
		})
		cancel()
		_ = os.Rename(place+".away", place)
		if ended = err == nil; !ended && at%2 == 0 {
			require.ErrorIs(t, err, context.Canceled)
		} else if !ended {
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, place)
		}
		_, err = os.Stat(filepath.Join(dir, "checkpoint.tmp"))
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	requireChunks(t, restore(t, place, earlier.Name), 200)
	p, err := Open(place)
	require.NoError(t, err)
	names, err := p.Names(t.Context())
	require.NoError(t, err)
	require.Len(t, names, 2)
	requireChunks(t, restore(t, place, names[1]), acked.Load())
}
