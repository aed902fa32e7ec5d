package spool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/wholefile"
)

func TestEachConsumerGetsEachRecordInOrder(t *testing.T) {
	h := newHarness(t, vfs.NewCrashableMem())
	s := h.open()
	a, b := consumer(t, s, "a"), consumer(t, s, "b")
	want := append(records("x", 0, 40), records("y", 0, 40)...)
	h.append(s, want...)
	require.Greater(t, s.Stats().Segments, 3)

	require.Equal(t, want, rest(t, a))
	batch, err := b.Next(t.Context(), 300)
	require.NoError(t, err)
	n := len(batch.Records)
	require.Equal(t, want[:n], batch.Records)
	require.Greater(t, n, 1)
	b.Ack(batch.End)
	require.NoError(t, s.Close())

	s = h.open()
	require.Equal(t, want, rest(t, consumer(t, s, "a")), "nothing was acknowledged")
	b = consumer(t, s, "b")
	require.Equal(t, want[n:], rest(t, b))
	require.NoError(t, b.Rewind())
	require.Equal(t, want[n:], rest(t, b), "Rewind begins behind the position")
	late, err := s.Consumer("late", End)
	require.NoError(t, err)
	h.append(s, record("x", 40))
	require.Equal(t, records("x", 40, 41), rest(t, late))
	require.NoError(t, s.Close())
	require.Empty(t, h.lost())
}

// TestSegmentsGoWithTheLastConsumer acknowledges with one consumer, then removes the other one.
func TestSegmentsGoWithTheLastConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, vfs.NewCrashableMem())
		s := h.open()
		a := consumer(t, s, "a")
		gone := consumer(t, s, "b")
		h.append(s, records("x", 0, 80)...)
		before := s.Stats().Segments
		rest(t, a)
		a.Ack(s.Stats().Consumers["a"])
		synctest.Wait()
		require.Equal(t, before, s.Stats().Segments, "b holds them")
		require.NoError(t, s.RemoveConsumer("b"))
		synctest.Wait()
		st := s.Stats()
		require.Equal(t, 1, st.Segments, "the active one stays")
		require.Equal(t, map[string]uint64{"a": 0}, st.Consumers)
		_, err := gone.Next(t.Context(), 1)
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, s.Close())
		require.Empty(t, h.lost())
		s = h.open()
		require.Empty(t, rest(t, consumer(t, s, "a")))
		require.NoError(t, s.Close())
	})
}

// TestBlockWaits fills the spool with a stream that waits.
func TestBlockWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, vfs.NewCrashableMem())
		s := h.open()
		a := consumer(t, s, "a")
		ctx, stop := context.WithCancel(t.Context())
		acked := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			for ; ; acked++ {
				if err := s.Append(ctx, record("x", acked)); err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
			}
		})
		synctest.Wait()
		full := acked
		require.Positive(t, full)
		require.Equal(t, 1, s.Stats().Waiting)

		// Another stream has its share, although the first one waits.
		h.append(s, records("small", 0, 5)...)
		require.Equal(t, full, acked)

		got := rest(t, a)
		require.Len(t, got, full+5)
		a.Ack(s.Stats().Consumers["a"])
		synctest.Wait()
		require.Greater(t, acked, full, "there is room again")
		stop()
		wg.Wait()
		require.Equal(t, records("x", full, acked), rest(t, a))
		require.NoError(t, s.Close())
		require.Empty(t, h.lost())
	})
}

// TestTheLargestDrops has three streams: one that waits, a small and a large one that drop.
func TestTheLargestDrops(t *testing.T) {
	h := newHarness(t, vfs.NewCrashableMem())
	s := h.open()
	s.Register("small", DropOldest)
	s.Register("large", DropOldest)
	a := consumer(t, s, "a")
	h.append(s, records("file", 0, 30)...)
	h.append(s, records("small", 0, 30)...)
	const n = 2000
	for i := range n {
		h.append(s, record("large", i))
		require.LessOrEqual(t, s.Stats().FileBytes, h.max)
	}
	lost := s.Stats().Losses
	require.Len(t, lost, 1, "only the large stream loses")
	dropped := lost[LossKey{"large", Full}].Records
	require.Positive(t, dropped)
	require.Equal(t, map[LossKey]uint64{{"large", Full}: dropped}, h.lost())
	left := records("large", int(dropped), n)
	require.Greater(t, len(left), 60, "it still has the most")

	check := func(c *Consumer) {
		by := map[string][]Record{}
		for _, r := range rest(t, c) {
			by[r.Stream] = append(by[r.Stream], r)
		}
		require.Equal(t, records("file", 0, 30), by["file"])
		require.Equal(t, records("small", 0, 30), by["small"])
		require.Equal(t, left, by["large"], "the oldest were dropped, and as many as were counted")
	}
	check(a)
	require.NoError(t, s.Close())
	s = h.open()
	check(consumer(t, s, "a"))
	require.NoError(t, s.Close())
}

// TestAFullSpoolOfFilesLosesUDP fills the spool with a stream that waits; then one that drops has the reserve.
func TestAFullSpoolOfFilesLosesUDP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, vfs.NewCrashableMem())
		s := h.open()
		s.Register("udp", DropOldest)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; s.Append(ctx, record("file", n)) == nil; n++ {
			}
		})
		synctest.Wait()
		for n := range 300 {
			h.append(s, record("udp", n))
		}
		st := s.Stats()
		require.Positive(t, st.Losses[LossKey{"udp", Full}].Records)
		require.Equal(t, uint64(300), st.Losses[LossKey{"udp", Full}].Records+st.Streams["udp"].Records)
		require.Greater(t, st.Streams["udp"].Bytes, h.max/20)
		require.LessOrEqual(t, st.FileBytes, h.max)
		stop()
		wg.Wait()
		require.NoError(t, s.Close())
	})
}

// TestConsumedRecordsAreNotLost drops a segment of which the consumer has acknowledged a part.
func TestConsumedRecordsAreNotLost(t *testing.T) {
	h := newHarness(t, vfs.NewCrashableMem())
	s := h.open()
	s.Register("x", DropOldest)
	a := consumer(t, s, "a")
	h.append(s, records("x", 0, 20)...)
	b, err := a.Next(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, b.Records, 1)
	a.Ack(b.End)
	h.append(s, records("x", 20, 500)...)
	lost := h.lost()[LossKey{"x", Full}]
	require.Positive(t, lost)
	require.Equal(t, records("x", int(lost)+1, 500), rest(t, a), "one record was read, and the lost ones were not")
	require.NoError(t, s.Close())
}

func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, vfs.NewCrashableMem())
		s := h.open()
		a := consumer(t, s, "a")
		h.append(s, records("x", 0, 30)...)
		b, err := a.Next(t.Context(), 1)
		require.NoError(t, err)
		a.Ack(b.End)
		h.clock.Set(h.clock.Now().Add(23 * time.Hour))
		young := record("x", 30)
		young.TimeMs += (23 * time.Hour).Milliseconds()
		h.append(s, young)
		require.Empty(t, h.lost())
		h.clock.Set(h.clock.Now().Add(2 * time.Hour))
		require.NoError(t, s.Sync())
		synctest.Wait()
		require.Equal(t, map[LossKey]uint64{{"x", Age}: 29}, h.lost())
		require.Equal(t, []Record{young}, rest(t, a))
		require.NoError(t, s.Close())
	})
}

func TestLimitsOfARecord(t *testing.T) {
	h := newHarness(t, vfs.NewCrashableMem())
	s := h.open()
	require.ErrorIs(t, s.Append(t.Context(), Record{Stream: "x", Payload: make([]byte, 300)}), ErrTooLarge)
	require.Error(t, s.Append(t.Context(), Record{}))
	require.Error(t, s.Append(t.Context(), Record{Stream: strings.Repeat("x", 256)}))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Append(t.Context(), record("x", 0)), ErrClosed)
	require.ErrorIs(t, s.Close(), ErrClosed)
	_, err := Open("/spool", Options{FS: h.fs, Clock: h.clock, MaxBytes: 1000})
	require.Error(t, err)
}

func TestOneProcess(t *testing.T) {
	dir := t.TempDir()
	h := newHarness(t, vfs.Default)
	s, err := Open(dir, h.options())
	require.NoError(t, err)
	_, err = Open(dir, h.options())
	require.ErrorContains(t, err, "cannot lock "+dir)
	h.append(s, record("x", 0))
	require.NoError(t, s.Close())
	s, err = Open(dir, h.options())
	require.NoError(t, err)
	require.Equal(t, records("x", 0, 1), rest(t, consumer(t, s, "a")))
	require.NoError(t, s.Close())
}

// filled writes a spool of several sealed segments on the disk, and returns its directory and the paths.
func filled(t *testing.T, h *harness) (dir string, paths []string) {
	t.Helper()
	dir = t.TempDir()
	s, err := Open(dir, h.options())
	require.NoError(t, err)
	consumer(t, s, "a")
	h.append(s, records("x", 0, 60)...)
	require.NoError(t, s.Close())
	paths, err = filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	require.NoError(t, err)
	require.Greater(t, len(paths), 4)
	return dir, paths
}

// TestDamage damages one byte after the other of a spool. All records but those that are reported come, and
// nothing else does.
func TestDamage(t *testing.T) {
	h := newHarness(t, vfs.Default)
	dir, paths := filled(t, h)
	for _, path := range []string{paths[1], paths[len(paths)-1]} {
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		for at := 0; at < len(whole); at += 3 {
			damaged := append([]byte(nil), whole...)
			damaged[at] ^= 0x41
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			h.losses = nil
			s, err := Open(dir, h.options())
			if at >= 8 && at < 12 {
				require.ErrorIs(t, err, ErrVersion)
				require.ErrorContains(t, err, path)
				continue
			}
			require.NoError(t, err)
			got := rest(t, consumer(t, s, "a"))
			require.NoError(t, s.Close())
			var lost uint64
			for _, l := range h.losses {
				lost += l.Records
				require.ErrorContains(t, l.Err, dir)
				if l.Reason == Damaged && l.Records == 1 && l.Bytes > 0 {
					require.ErrorContains(t, l.Err, path)
					require.ErrorContains(t, l.Err, "at offset")
				}
			}
			next := 0
			for _, r := range got {
				n := int(r.SeqID/100) - 1
				require.GreaterOrEqual(t, n, next)
				require.Equal(t, record("x", n), r)
				next = n + 1
			}
			if path == paths[1] || len(h.losses) > 0 && h.losses[0].Bytes > 0 {
				require.Len(t, got, 60-int(lost), "byte %d of %s: %v", at, path, h.losses)
			}
			if lost > 1 {
				require.Less(t, at, headerBytes, "one byte costs one record")
			}
			// The directory is as it was, for the next byte.
			require.NoError(t, os.RemoveAll(path+damagedSuffix))
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		}
	}
}

func TestMissingSegments(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(path string) error
	}{
		{"missing", os.Remove},
		{"empty", func(path string) error { return os.Truncate(path, 0) }},
		{"cut", func(path string) error { return os.Truncate(path, 20) }},
		{"zeros", func(path string) error { return os.WriteFile(path, make([]byte, 800), 0o600) }},
		{"foreign", func(path string) error {
			return os.WriteFile(path, []byte("something that is no segment at all, and longer than a header"), 0o600)
		}},
	} {
		for _, i := range []int{0, 2} {
			t.Run(fmt.Sprint(c.name, i), func(t *testing.T) {
				h := newHarness(t, vfs.Default)
				dir, paths := filled(t, h)
				require.NoError(t, c.spoil(paths[i]))
				s, err := Open(dir, h.options())
				require.NoError(t, err)
				got := rest(t, consumer(t, s, "a"))
				lost := h.lost()[LossKey{"", Damaged}]
				require.Positive(t, lost)
				require.Len(t, got, 60-int(lost))
				require.ErrorContains(t, h.losses[0].Err, dir)
				h.append(s, record("x", 60))
				require.NoError(t, s.Close())
			})
		}
	}
}

// TestSegmentsVanishWhileOpen removes one segment and damages the header of another under an open spool.
func TestSegmentsVanishWhileOpen(t *testing.T) {
	h := newHarness(t, vfs.Default)
	dir, paths := filled(t, h)
	s, err := Open(dir, h.options())
	require.NoError(t, err)
	require.NoError(t, os.Remove(paths[1]))
	require.NoError(t, os.WriteFile(paths[2], make([]byte, 1000), 0o600))
	got := rest(t, consumer(t, s, "a"))
	s.report()
	lost := h.lost()[LossKey{"", Damaged}]
	require.Positive(t, lost)
	require.Len(t, got, 60-int(lost))
	require.Len(t, h.losses, 2)
	require.ErrorContains(t, h.losses[0].Err, paths[1])
	require.ErrorContains(t, h.losses[1].Err, paths[2])
	require.NoError(t, s.Close())
}

// TestNumbersAreNotUsedTwice removes the last segments, whose records a consumer has acknowledged.
func TestNumbersAreNotUsedTwice(t *testing.T) {
	h := newHarness(t, vfs.Default)
	dir, paths := filled(t, h)
	s, err := Open(dir, h.options())
	require.NoError(t, err)
	a := consumer(t, s, "a")
	rest(t, a)
	a.Ack(60)
	require.NoError(t, s.Close())
	for _, path := range paths {
		_ = os.Remove(path)
	}
	s, err = Open(dir, h.options())
	require.NoError(t, err)
	h.append(s, record("x", 60))
	require.Equal(t, records("x", 60, 61), rest(t, consumer(t, s, "a")))
	require.NoError(t, s.Close())
}

func TestPositionsOfAnotherVersion(t *testing.T) {
	h := newHarness(t, vfs.Default)
	dir, _ := filled(t, h)
	path := filepath.Join(dir, positionsName)
	require.NoError(t, os.WriteFile(path, []byte(positionsKind+" 2 whatever\n"), 0o600))
	_, err := Open(dir, h.options())
	require.ErrorIs(t, err, wholefile.ErrVersion)
	require.ErrorContains(t, err, path)
}

func TestDamagedPositionsSendAgain(t *testing.T) {
	h := newHarness(t, vfs.Default)
	dir, _ := filled(t, h)
	for _, name := range []string{positionsName, positionsName + ".old"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("?"), 0o600))
	}
	s, err := Open(dir, h.options())
	require.NoError(t, err)
	require.ErrorContains(t, h.losses[0].Err, positionsName)
	require.Equal(t, records("x", 0, 60), rest(t, consumer(t, s, "a")))
	require.NoError(t, s.Close())
}

// TestFullDiskAndReadOnly fails all writes for a while, with errors of the system.
func TestFullDiskAndReadOnly(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
		t.Run(errno.Error(), func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			var failing atomic.Bool
			h := newHarness(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if failing.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
					return &os.PathError{Op: "write", Path: op.Path, Err: errno}
				}
				return nil
			})))
			s := h.open()
			a := consumer(t, s, "a")
			h.append(s, records("x", 0, 20)...)
			failing.Store(true)
			for range 5 {
				require.ErrorIs(t, s.Append(t.Context(), record("x", 20)), errno)
			}
			require.ErrorIs(t, s.Stats().Err, errno)
			require.Equal(t, records("x", 0, 20), rest(t, a), "what is there can be read")
			failing.Store(false)
			h.append(s, records("x", 20, 40)...)
			require.NoError(t, s.Stats().Err)
			require.Equal(t, records("x", 20, 40), rest(t, a))
			require.NoError(t, s.Close())
			s = h.open()
			require.Equal(t, records("x", 0, 40), rest(t, consumer(t, s, "a")))
			require.NoError(t, s.Close())
			require.Empty(t, h.lost())
		})
	}
}

// TestAFailedSyncEndsTheSegment fails one sync of the active segment. A later sync of that file would
// succeed, and mean nothing.
func TestAFailedSyncEndsTheSegment(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	fail, written := "", map[string]int{}
	h := newHarness(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch op.Kind {
		case errorfs.OpFileSyncData:
			if fail == "next" {
				fail = op.Path
				return errInjected
			}
		case errorfs.OpFileWriteAt, errorfs.OpFileSync:
			if op.Path == fail {
				written[op.Path]++
			}
		}
		return nil
	})))
	s := h.open()
	a := consumer(t, s, "a")
	h.append(s, records("x", 0, 3)...)
	before := s.Stats().Segments
	mu.Lock()
	fail = "next"
	mu.Unlock()
	require.ErrorIs(t, s.Append(t.Context(), record("x", 3)), errInjected)
	require.Equal(t, records("x", 0, 3), rest(t, a), "what is not acknowledged is not seen")
	h.append(s, records("x", 4, 6)...)
	require.Equal(t, records("x", 4, 6), rest(t, a))
	require.Equal(t, before+1, s.Stats().Segments)
	mu.Lock()
	require.Empty(t, written, "the file is not touched again")
	mu.Unlock()
	lossy := mem.CrashClone(vfs.CrashCloneCfg{})
	kept := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	require.NoError(t, s.Close())

	h.fs = lossy
	s = h.open()
	require.Equal(t, append(records("x", 0, 3), records("x", 4, 6)...), rest(t, consumer(t, s, "a")))
	require.NoError(t, s.Close())
	require.Empty(t, h.lost(), "the record was never acknowledged")

	h.fs = kept
	s = h.open()
	require.Equal(t, records("x", 0, 6), rest(t, consumer(t, s, "a")), "it was written, and has a number of its own")
	require.NoError(t, s.Close())
}
