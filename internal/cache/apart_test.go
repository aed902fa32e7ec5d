package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var errGone = fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)

// rawOf returns the number of raw chunks of a block in the hour.
func rawOf(t *testing.T, s storage.Store, block blocks.Range, hour time.Time) (n int) {
	t.Helper()
	for _, err := range s.RawChunks(t.Context(), block, hour.UnixMilli(), hour.UnixMilli()+1) {
		require.NoError(t, err)
		n++
	}
	return n
}

// TestBlocksOutOfReach: unavailable blocks do not hold up others, which are durable and sealed. The
// chunks of the failed flush are written again before anything else goes into their blocks.
func TestBlocksOutOfReach(t *testing.T) {
	w, store, clk := refusing()
	good, bad, other := blocks.BlockAt(0, 4), blocks.BlockAt(4, 4), blocks.BlockAt(8, 4)
	groups := func(bs ...blocks.Range) (out []cache.BlockSamples) {
		for _, b := range bs {
			out = append(out, group(eleven, b, 2))
		}
		return out
	}
	failed := func(err error) []int {
		var some *cache.BlocksError
		require.ErrorAs(t, err, &some)
		require.ErrorIs(t, err, storage.ErrUnavailable)
		return some.Failed
	}
	require.NoError(t, w.Flush(t.Context(), groups(good, bad)))
	store.Away(bad.Contains, errGone)
	require.Equal(t, []int{1}, failed(w.Flush(t.Context(), groups(good, bad, other))))
	require.Equal(t, []int{0}, failed(w.Flush(t.Context(), groups(bad, good))), "it failed before")
	require.ErrorIs(t, w.Flush(t.Context(), groups(bad)), storage.ErrUnavailable)
	require.ErrorIs(t, w.Settle(t.Context()), storage.ErrUnavailable)
	require.Equal(t, []int{3, 1, 1}, []int{rawOf(t, store, good, eleven), rawOf(t, store, bad, eleven), rawOf(t, store, other, eleven)})

	// Available again: the failed chunks come first, and once, however often they were refused.
	store.Away(nil, nil)
	require.NoError(t, w.Flush(t.Context(), groups(bad)))
	require.Equal(t, 3, rawOf(t, store, bad, eleven))
	clk.Set(eleven.Add(time.Hour + time.Minute))
	require.NoError(t, w.Seal(t.Context()))
	for _, m := range marksOf(t, store, eleven) {
		if m.Start == bad.Start {
			require.Equal(t, storage.MarkOpen, m.Kind)
			continue
		}
		require.Equal(t, storage.MarkFresh, m.Kind)
		require.Equal(t, map[metric.ScheduleID]int{0: 3, 8: 1}[m.Start], m.Chunks)
	}
	require.Len(t, marksOf(t, store, eleven), 3)
}

// TestSealOutOfReach: a seal that does not reach a block seals the others.
func TestSealOutOfReach(t *testing.T) {
	w, store, clk := refusing()
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1), group(eleven, blocks.BlockAt(4, 4), 1)}))
	store.Away(blocks.BlockAt(0, 4).Contains, errGone)
	clk.Set(eleven.Add(time.Hour + time.Minute))
	require.ErrorIs(t, w.Seal(t.Context()), storage.ErrUnavailable)
	marks := marksOf(t, store, eleven)
	require.Len(t, marks, 2)
	require.Equal(t, []storage.MarkKind{storage.MarkOpen, storage.MarkFresh}, []storage.MarkKind{marks[0].Kind, marks[1].Kind})
}

// refusing returns a writer over a store that fails blocks one by one.
func refusing() (*cache.Writer, *storagetest.Apart, *clock.Simulated) {
	clk := clock.NewSimulated(eleven.Add(59 * time.Minute))
	store := storagetest.NewApart(storagetest.NewModel(settings(4), nil, clk))
	return cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming())), store, clk
}

var errRefused = fmt.Errorf("%w: too large", storage.ErrRefused)

// TestRefusedForGood: what the store refuses for good is given up, and its sender gets the error.
// It holds up neither other blocks nor later data of its own.
func TestRefusedForGood(t *testing.T) {
	w, store, clk := refusing()
	good, bad, away := blocks.BlockAt(0, 4), blocks.BlockAt(4, 4), blocks.BlockAt(8, 4)
	all := []cache.BlockSamples{group(eleven, good, 1), group(eleven, bad, 1), group(eleven, away, 1)}
	require.NoError(t, w.Flush(t.Context(), all))
	store.Fail(func(id metric.ScheduleID) error {
		switch {
		case bad.Contains(id):
			return errRefused
		case away.Contains(id):
			return errGone
		}
		return nil
	})
	var some *cache.BlocksError
	require.ErrorAs(t, w.Flush(t.Context(), all), &some)
	require.Equal(t, []int{1, 2}, some.Failed)
	require.Equal(t, []error{errRefused, errGone}, some.Errs)

	// Alone, the block is refused again, and none of it waits.
	require.ErrorAs(t, w.Flush(t.Context(), all[1:2]), &some)
	require.ErrorIs(t, some.Errs[0], storage.ErrRefused)
	store.Fail(nil)
	require.NoError(t, w.Settle(t.Context()))
	require.Equal(t, []int{2, 1, 2}, []int{rawOf(t, store, good, eleven), rawOf(t, store, bad, eleven), rawOf(t, store, away, eleven)})
	require.NoError(t, w.Flush(t.Context(), all[1:2]))

	// What the cache of the failed blocks holds is unknown.
	clk.Set(eleven.Add(time.Hour + time.Minute))
	require.NoError(t, w.Seal(t.Context()))
	for _, m := range marksOf(t, store, eleven) {
		require.Equal(t, m.Start == good.Start, m.Kind == storage.MarkFresh, "%d", m.Start)
	}
}

// TestRefusedWhenWrittenAgain: a refusal says nothing of an earlier attempt, which may have landed.
// So the chunks are written again before anything for the same block is acknowledged. Other blocks
// go on, whatever their writes result in.
func TestRefusedWhenWrittenAgain(t *testing.T) {
	for name, err := range map[string]error{"refused": errRefused, "another": errBoom} {
		t.Run(name, func(t *testing.T) {
			w, store, _ := refusing()
			good, bad, away := blocks.BlockAt(0, 4), blocks.BlockAt(4, 4), blocks.BlockAt(8, 4)
			groups := func(b blocks.Range) []cache.BlockSamples { return []cache.BlockSamples{group(eleven, b, 1)} }
			store.Fail(func(metric.ScheduleID) error { return errGone })
			require.ErrorIs(t, w.Flush(t.Context(), append(groups(bad), groups(away)...)), errGone)
			store.Away(bad.Contains, err)
			require.NoError(t, w.Flush(t.Context(), groups(good)))
			require.Equal(t, 1, rawOf(t, store, away, eleven), "written again")
			require.ErrorIs(t, w.Flush(t.Context(), groups(bad)), storage.ErrUnavailable, "not yet")
			serr := w.Settle(t.Context())
			require.Error(t, serr)
			require.NotErrorIs(t, serr, storage.ErrRefused, "it is not given up: with too much of it, all reports get this error")
			require.NoError(t, w.Flush(t.Context(), groups(away)))
			store.Fail(nil)
			require.NoError(t, w.Flush(t.Context(), groups(bad)))
			require.Equal(t, 2, rawOf(t, store, bad, eleven))
		})
	}
}

// However much waits to be written again to blocks that are out of reach, for however many hours, others go on, and
// what waits is bounded.
func TestManyRetriesStopNoOthers(t *testing.T) {
	w, store, clk := refusing()
	const blocksN, hours, bound, samples = 30, 10, 32 << 20, 60_000
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, samples) // that take their full size
	for i := range values {
		values[i] = rng.Float64()
	}
	away := func(id metric.ScheduleID) bool { return id/4%3 == 0 }
	for h := range hours {
		hour := eleven.Add(time.Duration(h) * time.Hour)
		if h == hours-1 { // another is lost when the bound is reached
			away = func(id metric.ScheduleID) bool { return id/4%3 == 0 || id/4 == 1 }
		}
		store.Away(away, errGone)
		clk.Set(hour.Add(30 * time.Minute))
		var gs []cache.BlockSamples
		var lost []int
		for b := range blocksN {
			g := group(hour, blocks.BlockAt(metric.ScheduleID(4*b), 4), 1)
			if away(g.Block.Start) {
				lost = append(lost, b)
				for i, v := range values[1:] {
					g.Samples = append(g.Samples, metric.Sample{Schedule: g.Block.Start, TimeMs: g.Slice.StartMs + int64(i) + 1, Value: v})
				}
			}
			gs = append(gs, g)
		}
		var some *cache.BlocksError
		require.ErrorAs(t, w.Flush(t.Context(), gs), &some, "hour %d", h)
		require.Equal(t, lost, some.Failed, "hour %d", h)
	}
	store.Away(nil, nil)
	require.NoError(t, w.Settle(t.Context()))
	waited := 0
	for h := range hours {
		hour := eleven.Add(time.Duration(h) * time.Hour)
		for b := range blocksN {
			block := blocks.BlockAt(metric.ScheduleID(4*b), 4)
			if b%3 != 0 {
				require.Equal(t, 1, rawOf(t, store, block, hour), "hour %d, block %d", h, b)
				continue
			}
			for c, err := range store.RawChunks(t.Context(), block, hour.UnixMilli(), hour.UnixMilli()+1) {
				require.NoError(t, err)
				waited += len(c.Data)
			}
		}
	}
	require.Greater(t, waited, bound/2)
	require.Less(t, waited, bound+bound/2)
}

// TestLateMarksFailAlone: a flush takes so long that the run of its slice may have begun. A late mark
// that the store does not accept then concerns its own block only.
func TestLateMarksFailAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		// before is the error of the block's writes during the flush, after that of its late mark.
		before, after error
		raw           int
	}{
		{"away", nil, errGone, 1},
		{"mark refused", nil, errRefused, 1},
		{"refused", errRefused, errRefused, 0},
		{"refused, then away", errRefused, errGone, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, apart, clk := refusing()
			store := storagetest.NewFaulty(apart)
			w := cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming()))
			noon := eleven.Add(time.Hour)
			good, bad, next := blocks.BlockAt(0, 4), blocks.BlockAt(4, 4), blocks.BlockAt(8, 4)
			apart.Away(bad.Contains, c.before)
			store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error {
				clk.Set(noon.Add(2 * time.Minute))
				store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error {
					apart.Away(bad.Contains, c.after)
					return nil
				}})
				return nil
			}})
			var some *cache.BlocksError
			require.ErrorAs(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, good, 1), group(eleven, bad, 1), group(noon, next, 1)}), &some)
			require.Equal(t, []int{1}, some.Failed)
			require.Equal(t, c.before != nil, errors.Is(some, storage.ErrRefused), "the samples are refused for good only if they are not there")
			require.Equal(t, c.before == nil, storage.IsAway(some))
			late := func() (starts []metric.ScheduleID) {
				for _, m := range marksOf(t, store, noon) {
					if m.Kind == storage.MarkLate {
						require.Equal(t, eleven.UnixMilli(), m.TimeMs)
						starts = append(starts, m.Start)
					}
				}
				return starts
			}
			require.Equal(t, []metric.ScheduleID{good.Start}, late())
			for _, m := range marksOf(t, store, eleven) {
				require.Equal(t, bad.Start, m.Start, "the other mark is taken back")
			}

			apart.Fail(nil)
			require.NoError(t, w.Settle(t.Context()))
			require.Equal(t, []metric.ScheduleID{good.Start, bad.Start}, late())
			require.Empty(t, marksOf(t, store, eleven))
			require.Equal(t, []int{1, c.raw, 1}, []int{rawOf(t, store, good, eleven), rawOf(t, store, bad, eleven), rawOf(t, store, next, noon)})
		})
	}
}

// slowApart is an Apart whose writes to the blocks that are away take five seconds to fail.
type slowApart struct {
	*storagetest.Apart

	clk  *clock.Simulated
	away func(metric.ScheduleID) bool // nil if all are in reach
	// tried are the times of these writes, by the clock's Elapsed.
	tried []time.Duration
}

func (s *slowApart) Write(ctx context.Context, b *storage.Batch) error {
	s.Away(s.away, errGone)
	if s.away != nil && slices.ContainsFunc(b.Raw, func(c storage.RawChunk) bool { return s.away(c.Group) }) {
		s.tried = append(s.tried, s.clk.Elapsed())
		s.clk.Set(s.clk.Now().Add(5 * time.Second))
	}
	return s.Apart.Write(ctx, b)
}

// TestRetryPauses: after a failed attempt to write failed chunks again, commits of other blocks do not
// wait for the next one before a pause is over. When the block is in reach again, it is written again soon
// after.
func TestRetryPauses(t *testing.T) {
	const pause = 30 * time.Second
	_, apart, clk := refusing()
	clk.Set(eleven)
	store := &slowApart{Apart: apart, clk: clk}
	w := cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming()))
	good, bad := group(eleven, blocks.BlockAt(0, 4), 1), group(eleven, blocks.BlockAt(4, 4), 1)
	second := func() {
		clk.Set(clk.Now().Add(time.Second))
		require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{good}))
		_ = w.Settle(t.Context())
	}
	store.away = bad.Block.Contains
	require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{good, bad}), errGone)
	require.Len(t, store.tried, 1)
	second()
	require.Len(t, store.tried, 2, "the first attempt is made at once")
	for range 300 {
		second()
	}
	require.Greater(t, len(store.tried), 5)
	for i, at := range store.tried[2:] {
		require.GreaterOrEqual(t, at-store.tried[i+1], pause)
	}

	n := len(store.tried)
	for len(store.tried) == n { // until the next pause begins
		second()
	}
	n++
	var some *cache.BlocksError
	require.ErrorAs(t, w.Flush(t.Context(), []cache.BlockSamples{good, bad}), &some)
	require.Equal(t, []int{1}, some.Failed)
	require.ErrorIs(t, some, storage.ErrUnavailable)
	require.Len(t, store.tried, n, "the other block does not wait")
	require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{bad}), storage.ErrUnavailable)
	require.Len(t, store.tried, n+1, "no other block waits")

	store.away = nil
	back := clk.Elapsed()
	for rawOf(t, store, bad.Block, eleven) == 0 {
		second()
	}
	require.LessOrEqual(t, clk.Elapsed()-back, pause+time.Second)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{good, bad}))
	require.Equal(t, 2, rawOf(t, store, bad.Block, eleven))
}

// TestNoPauseForCheapAttempts: the pause is in proportion to what the attempt has cost.
func TestNoPauseForCheapAttempts(t *testing.T) {
	w, store, _ := refusing()
	good, bad := group(eleven, blocks.BlockAt(0, 4), 1), group(eleven, blocks.BlockAt(4, 4), 1)
	store.Away(bad.Block.Contains, errGone)
	for range 3 {
		require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{good, bad}), storage.ErrUnavailable)
	}
	store.Away(nil, nil)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{good, bad}))
	require.Equal(t, 2, rawOf(t, store, bad.Block, eleven))
}

// dayAway is a store that cannot answer for the slices from some time on.
type dayAway struct {
	storage.Store

	fromMs int64
	asked  int
}

func (d *dayAway) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	if fromMs >= d.fromMs {
		d.asked++
		return nil, errGone
	}
	return d.Store.Slices(ctx, b, fromMs, toMs)
}

// TestNextDayOutOfReach: samples after midnight fail alone if the slices of the next day are
// unavailable. Each flush asks only once.
func TestNextDayOutOfReach(t *testing.T) {
	midnight := eleven.Truncate(24 * time.Hour).Add(24 * time.Hour)
	clk := clock.NewSimulated(midnight.Add(-5 * time.Minute))
	store := &dayAway{Store: storagetest.NewModel(settings(4), nil, clk), fromMs: midnight.UnixMilli()}
	w := cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming()))
	last := midnight.Add(-time.Hour)
	today, tomorrow := group(last, blocks.BlockAt(0, 4), 2), group(midnight, blocks.BlockAt(4, 4), 2)
	var some *cache.BlocksError
	require.ErrorAs(t, w.Flush(t.Context(), []cache.BlockSamples{tomorrow, today, group(midnight, blocks.BlockAt(8, 4), 1)}), &some)
	require.Equal(t, []int{0, 2}, some.Failed)
	require.ErrorIs(t, some, storage.ErrUnavailable)
	require.Equal(t, 1, store.asked)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{today}))
	require.Equal(t, 2, rawOf(t, store, blocks.BlockAt(0, 4), last))
	require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{tomorrow}), storage.ErrUnavailable)

	store.fromMs = midnight.AddDate(1, 0, 0).UnixMilli()
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{tomorrow, today}))
	require.Equal(t, 1, rawOf(t, store, blocks.BlockAt(4, 4), midnight), "nothing was written of it before")
}

// TestRetryWhileTheNextDayIsOutOfReach: while the slices of the next day are unavailable, failed
// chunks of a slice of today are written again, and a slice of today is sealed.
func TestRetryWhileTheNextDayIsOutOfReach(t *testing.T) {
	midnight := eleven.Truncate(24 * time.Hour).Add(24 * time.Hour)
	clk := clock.NewSimulated(midnight.Add(-5 * time.Minute))
	store := &dayAway{Store: storagetest.NewFaulty(storagetest.NewModel(settings(4), nil, clk)), fromMs: midnight.AddDate(1, 0, 0).UnixMilli()}
	w := cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming()))
	last := midnight.Add(-time.Hour)
	today := func(start metric.ScheduleID) cache.BlockSamples { return group(last, blocks.BlockAt(start, 4), 1) }
	tomorrow := group(midnight, blocks.BlockAt(8, 4), 1)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{today(0), tomorrow}))
	store.Store.(*storagetest.Faulty).Fail("Write", blocks.Range{}, 1, errGone)
	require.Error(t, w.Flush(t.Context(), []cache.BlockSamples{today(4), group(midnight, blocks.BlockAt(12, 4), 1)}))

	store.fromMs = midnight.UnixMilli()
	require.ErrorIs(t, w.Settle(t.Context()), storage.ErrUnavailable, "one block's slice")
	require.Equal(t, 1, rawOf(t, store, blocks.BlockAt(4, 4), last), "the other block's is known")
	require.Zero(t, rawOf(t, store, blocks.BlockAt(12, 4), midnight))

	clk.Set(midnight.Add(time.Minute))
	require.NoError(t, w.Seal(t.Context()))
	seals := 0
	for m, err := range store.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: last.UnixMilli()}}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		if m.Kind == storage.MarkFresh {
			seals++
		}
	}
	require.Equal(t, 1, seals, "block 0; block 4 is broken")

	store.fromMs = midnight.AddDate(1, 0, 0).UnixMilli()
	require.NoError(t, w.Settle(t.Context()))
	require.Equal(t, 1, rawOf(t, store, blocks.BlockAt(12, 4), midnight))
}

// TestRetryInAnUnknownSlice: of two slices with failed chunks, one has a state that a node fails to tell, by an error that
// does not mean that the store is away. The chunks of the other are written once, and those of the first as soon as its
// state is known.
func TestRetryInAnUnknownSlice(t *testing.T) {
	c, store, _ := setUp(4)
	w := cache.NewWriter(c)
	block, noon := blocks.BlockAt(0, 4), eleven.Add(time.Hour) // within the future limit: it is 11:59
	store.Fail("Write", blocks.Range{}, 1, errBoom)
	require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, block, 1), group(noon, block, 1)}), errBoom)

	store.Add(storagetest.Rule{Op: "Slices", Times: 1}) // the look at 11:00 succeeds, that at noon does not
	store.Fail("Slices", blocks.Range{}, 1, errBoom)
	written := store.Count("Write")
	require.ErrorIs(t, w.Settle(t.Context()), errBoom)
	require.Equal(t, written+1, store.Count("Write"))
	require.Equal(t, []int{1, 0}, []int{rawOf(t, store, block, eleven), rawOf(t, store, block, noon)})

	w.Hurry()
	require.NoError(t, w.Settle(t.Context()))
	require.Equal(t, []int{1, 1}, []int{rawOf(t, store, block, eleven), rawOf(t, store, block, noon)})
	require.False(t, w.Owes())
}
