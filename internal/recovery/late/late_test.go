package late

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

const hour = int64(3_600_000)

var noon = time.Date(2025, 11, 21, 12, 20, 0, 0, time.UTC)

// world is a store with marks in it, and a tracker over it.
type world struct {
	t testing.TB
	storage.Store
	clk *clock.Simulated
	*Tracker
	outstanding []storage.SliceKey
	// marks counts the reads of index partitions. before, unless nil, is called before each.
	marks  int
	before func(p storage.IndexPartition) error
}

func newWorld(t testing.TB, shared bool) *world {
	clk := clock.NewSimulated(noon)
	w := &world{t: t, clk: clk, Store: storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 8, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk)}
	w.Tracker = New(w, clk, Options{Shared: shared, Outstanding: func(context.Context) ([]storage.SliceKey, error) {
		return slices.Clone(w.outstanding), nil
	}})
	return w
}

func (w *world) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	w.marks++
	return func(yield func(storage.Mark, error) bool) {
		if w.before != nil {
			if err := w.before(p); err != nil {
				yield(storage.Mark{}, err)
				return
			}
		}
		for m, err := range w.Store.Marks(ctx, p, from, most) {
			if !yield(m, err) {
				return
			}
		}
	}
}

// mark returns a mark in the slice at inMs, for the block that starts at start, of the slice at
// sliceMs.
func (w *world) mark(b metric.Bucket, start metric.ScheduleID, inMs, sliceMs int64) storage.PlacedMark {
	k := storage.SliceKey{Bucket: b, StartMs: inMs}
	return storage.PlacedMark{
		Partition: storage.IndexPartition{SliceKey: k, Shard: blocks.ShardOf(start, 2)},
		Mark:      storage.Mark{Start: start, TimeMs: sliceMs, ID: blocks.KeyID(sliceMs, uint64(start)), Kind: storage.MarkLate},
	}
}

func (w *world) put(marks ...storage.PlacedMark) {
	w.t.Helper()
	for _, m := range marks {
		require.NoError(w.t, w.Write(w.t.Context(), &storage.Batch{Open: []storage.SliceKey{m.Partition.SliceKey}, Marks: []storage.PlacedMark{m}}))
		if !slices.Contains(w.outstanding, m.Partition.SliceKey) {
			w.outstanding = append(w.outstanding, m.Partition.SliceKey)
		}
	}
}

func (w *world) take(m storage.PlacedMark) {
	w.t.Helper()
	require.NoError(w.t, w.DeleteMarks(w.t.Context(), 0, m.Partition, []storage.Mark{m.Mark}))
}

func (w *world) advance(d time.Duration) { w.clk.Set(w.clk.Now().Add(d)) }

func (w *world) view() *View {
	w.t.Helper()
	v, err := w.View(w.t.Context())
	require.NoError(w.t, err)
	return v
}

// at is the start of the raw slice n hours before the current one.
func at(n int64) int64 { return metric.AlignDown(noon.UnixMilli(), hour) - n*hour }

// slicesOf returns the slices that are late for schedules 0 to 3.
func slicesOf(v *View, b metric.Bucket) []int64 {
	return v.Slices(b, blocks.Range{Start: 0, End: 4}, at(1000), at(-1000))
}

func TestViewIsByBlockAndSlice(t *testing.T) {
	w := newWorld(t, false)
	w.put(w.mark(0, 4, at(0), at(3)), w.mark(0, 0, at(0), at(0)))
	w.Note([]storage.PlacedMark{w.mark(0, 4, at(0), at(5))}) // no View was taken yet, so the mark is not kept
	v := w.view()
	require.Empty(t, slicesOf(v, 0), "another block; and the own slice's is no late mark")
	require.Equal(t, []int64{at(3)}, v.Slices(0, blocks.Range{Start: 7, End: 8}, at(1000), at(0)))
	require.Equal(t, []int64{at(3)}, v.Slices(0, blocks.Range{Start: 2, End: 5}, at(3), at(2)))
	require.Empty(t, v.Slices(0, blocks.Range{Start: 8, End: 100}, at(1000), at(0)))
	require.Empty(t, v.Slices(0, blocks.Range{Start: 4, End: 8}, at(2), at(0)))
	require.Empty(t, v.Slices(1, blocks.Range{Start: 4, End: 8}, at(1000), at(0)))

	// What is noted is in the views that were handed out, too.
	w.Note([]storage.PlacedMark{w.mark(0, 0, at(0), at(3)), w.mark(1, 0, at(0), at(12)), w.mark(0, 0, at(0), at(0))})
	require.Equal(t, []int64{at(3)}, slicesOf(v, 0))
	require.Equal(t, []int64{at(12)}, slicesOf(w.view(), 1))
	w.Note([]storage.PlacedMark{w.mark(0, 0, at(0), at(9))})
	require.Equal(t, []int64{at(9), at(3)}, slicesOf(w.view(), 0))
}

// A store of one process is read once, until something is late.
func TestNothingLateCostsNothing(t *testing.T) {
	w := newWorld(t, false)
	w.put(w.mark(0, 0, at(0), at(0)))
	require.True(t, w.view().Empty())
	require.Equal(t, 2, w.marks)
	for range 100 {
		w.advance(time.Hour)
		require.True(t, w.view().Empty())
	}
	require.Equal(t, 2, w.marks)

	m := w.mark(0, 0, at(0), at(3))
	w.put(m)
	w.Note([]storage.PlacedMark{m})
	require.False(t, w.view().Empty())
	require.False(t, w.view().Empty())
	require.Equal(t, 4, w.marks)
	w.take(m)
	w.advance(readEvery)
	require.True(t, w.view().Empty())
	require.Equal(t, 6, w.marks)
	w.advance(readEvery)
	require.True(t, w.view().Empty())
	require.Equal(t, 6, w.marks)
}

// Work that moves while the index is read is found, wherever it goes: its new mark is put first.
func TestMovingWork(t *testing.T) {
	from := func(w *world) storage.PlacedMark { return w.mark(0, 0, at(1), at(3)) }
	for name, move := range map[string]struct {
		to   func(w *world) storage.PlacedMark
		want int64
	}{
		"put off":          {func(w *world) storage.PlacedMark { return w.mark(0, 0, at(0), at(3)) }, at(3)},
		"put off to a new": {func(w *world) storage.PlacedMark { return w.mark(0, 0, at(-1), at(3)) }, at(3)},
		"passed on":        {func(w *world) storage.PlacedMark { return w.mark(1, 0, at(0), at(6)) }, at(6)},
		"passed on twice":  {func(w *world) storage.PlacedMark { return w.mark(2, 0, at(12), at(36)) }, at(36)},
	} {
		t.Run(name, func(t *testing.T) {
			for step := 1; ; step++ {
				w := newWorld(t, true)
				w.put(from(w), w.mark(0, 4, at(0), at(0)), w.mark(1, 4, at(0), at(0)), w.mark(2, 4, at(12), at(12)))
				if name == "put off to a new" {
					w.outstanding = slices.DeleteFunc(w.outstanding, func(k storage.SliceKey) bool { return k.StartMs == at(-1) })
				}
				n := 0
				w.before = func(storage.IndexPartition) error {
					if n++; n == step {
						w.put(move.to(w))
						w.take(from(w))
					}
					return nil
				}
				v := w.view()
				var found []int64
				for b := range metric.Bucket(3) {
					found = append(found, slicesOf(v, b)...)
				}
				require.NotEmpty(t, found, "moved before read %d", step)
				require.Contains(t, []int64{at(3), move.want}, found[0])
				if n < step {
					return
				}
			}
		})
	}
}

// Marks put while the index is read are not lost when the new view replaces the old.
func TestNoteWhileReading(t *testing.T) {
	for step := 1; step <= 2; step++ { // before the mark's shard is read, and after
		w := newWorld(t, true)
		w.put(w.mark(0, 4, at(0), at(0)))
		_ = w.view()
		n := 0
		w.before = func(storage.IndexPartition) error {
			if n++; n == step {
				m := w.mark(0, 0, at(0), at(3))
				w.put(m)
				w.Note([]storage.PlacedMark{m})
			}
			return nil
		}
		w.advance(readEvery)
		require.Equal(t, []int64{at(3)}, slicesOf(w.view(), 0), "step %d", step)
		require.Equal(t, 2, n)
	}
}

// If the index cannot be read, the error comes with what was known before. Not every query tries
// again.
func TestIndexCannotBeRead(t *testing.T) {
	w := newWorld(t, true)
	w.put(w.mark(0, 0, at(0), at(3)))
	_ = w.view()
	w.before = func(storage.IndexPartition) error { return errors.New("broken") }
	w.advance(readEvery)
	before := w.marks
	for range 3 {
		v, err := w.View(t.Context())
		require.ErrorContains(t, err, "broken")
		require.Equal(t, []int64{at(3)}, slicesOf(v, 0))
	}
	require.Equal(t, before+1, w.marks)
	w.before = nil
	w.advance(readEvery)
	_ = w.view()
}

// If parts of the index, or of the slices, are out of reach, the error comes with what the others
// have, and with what was known before of those.
func TestIndexIsReadInPart(t *testing.T) {
	w := newWorld(t, true)
	known, other := w.mark(0, 0, at(0), at(3)), w.mark(0, 0, at(1), at(5))
	require.NotEqual(t, known.Partition, other.Partition)
	w.put(known)
	_ = w.view()
	w.put(other)
	w.before = func(p storage.IndexPartition) error {
		if p == known.Partition {
			return storage.ErrUnavailable
		}
		return nil
	}
	w.advance(readEvery)
	v, err := w.View(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Equal(t, []int64{at(5), at(3)}, slicesOf(v, 0))

	w.before = nil
	all := w.opts.Outstanding
	w.opts.Outstanding = func(ctx context.Context) ([]storage.SliceKey, error) {
		out, _ := all(ctx)
		return slices.DeleteFunc(out, func(k storage.SliceKey) bool { return k == known.Partition.SliceKey }),
			storage.UnreadError{{FromMs: at(0), Err: storage.ErrUnavailable}}
	}
	w.take(other)
	w.advance(readEvery)
	v, err = w.View(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Equal(t, []int64{at(5), at(3)}, slicesOf(v, 0), "too much is right")

	w.opts.Outstanding = all
	w.advance(readEvery)
	require.Equal(t, []int64{at(3)}, slicesOf(w.view(), 0))

	// Where much is away, few partitions are tried.
	for h := range int64(30) {
		w.put(w.mark(0, 0, at(h), at(40)))
	}
	w.before = func(storage.IndexPartition) error { return storage.ErrUnavailable }
	w.advance(readEvery)
	before := w.marks
	_, err = w.View(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Equal(t, before+mostLost, w.marks)
}

// TestReadingOutlastsRequests: reading the index takes longer than any request has. It goes on when
// the one that began it has gone, others wait for the same reading, and it ends with the process,
// which says nothing about the index.
func TestReadingOutlastsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process, stop := context.WithCancelCause(t.Context())
		w := newWorld(t, true)
		w.Tracker = New(w, w.clk, Options{
			Shared: true, Outstanding: func(context.Context) ([]storage.SliceKey, error) { return slices.Clone(w.outstanding), nil },
			Background: func(work func(context.Context)) { go work(process) },
		})
		w.put(w.mark(0, 0, at(0), at(3)))
		w.before = func(storage.IndexPartition) error {
			select {
			case <-time.After(25 * time.Second):
				return nil
			case <-process.Done():
				return context.Cause(process)
			}
		}
		ask := func() (*View, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			return w.View(ctx)
		}
		for range 3 {
			_, err := ask()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		v, err := ask()
		require.NoError(t, err)
		require.Equal(t, []int64{at(3)}, slicesOf(v, 0))
		require.Equal(t, 2, w.marks)

		w.advance(readEvery)
		ended := make(chan error)
		go func() {
			_, err := w.View(t.Context())
			ended <- err
		}()
		synctest.Wait()
		stop(errors.New("the process ends"))
		require.ErrorContains(t, <-ended, "the process ends")
	})
}

// Beyond a bound, whole slices count as late, which is right but slow.
func TestMemoryIsBounded(t *testing.T) {
	v := newView()
	epochs := blocks.Epochs{{BlockSize: 4}}
	for i := range maxBlocks + 10_000 {
		v.add(place{storage.SliceKey{StartMs: at(int64(i % 100))}, metric.ScheduleID(4 * i)}, epochs)
	}
	held := 0
	for _, s := range v.late {
		held += len(s.starts)
	}
	require.LessOrEqual(t, held, maxBlocks)
	require.Equal(t, held, v.n)
	for i := 0; i < maxBlocks+10_000; i += 97 {
		ms := at(int64(i % 100))
		require.NotEmpty(t, v.Slices(0, blocks.BlockAt(metric.ScheduleID(4*i), 4), ms, ms+1))
	}
}

// After the clock was set back, own marks lie in a slice ahead of it, which is not outstanding yet.
// They stay known until a run has dealt with them.
func TestOwnMarksAheadOfTheClock(t *testing.T) {
	for _, first := range []bool{false, true} { // put before the first reading
		for _, shared := range []bool{false, true} {
			w := newWorld(t, shared)
			if !first {
				require.True(t, w.view().Empty())
			}
			m := w.mark(0, 0, at(-2), at(3))
			w.put(m)
			w.outstanding = nil
			w.Note([]storage.PlacedMark{m})
			for range 3 {
				require.Equal(t, []int64{at(3)}, slicesOf(w.view(), 0))
				w.advance(readEvery)
			}
			again := w.mark(0, 4, at(-2), at(5)) // put while the index is read
			n := 0
			w.before = func(p storage.IndexPartition) error {
				if n++; n == 1 {
					w.take(m)
					w.put(again)
					w.outstanding = nil
					w.Note([]storage.PlacedMark{again})
				}
				return nil
			}
			for range 3 {
				require.Equal(t, []int64{at(5)}, w.view().Slices(0, blocks.Range{End: 8}, at(20), at(0)))
				w.advance(readEvery)
			}
			w.take(again)
			require.True(t, w.view().Empty())
			before := w.marks
			w.advance(readEvery)
			_ = w.view()
			require.Equal(t, before, w.marks, "nothing is left to look for")
		}
	}
}
