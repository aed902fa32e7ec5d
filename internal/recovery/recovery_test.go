package recovery_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var (
	friday  = time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	errAway = fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)
)

// world is a Recovery over a store whose days lie in different places. Days further back than 30 are
// found by a list of all days only.
type world struct {
	*testing.T
	*storagetest.Days
	clk *clock.Simulated
	c   *cache.Cache
	r   *recovery.Recovery
}

func newStore(retention storage.Retention, clk clock.Clock) *storagetest.Model {
	return storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, retention, clk)
}

func newWorld(t *testing.T) *world {
	clk := clock.NewSimulated(friday.Add(12*time.Hour + 10*time.Minute))
	store := newStore(nil, clk)
	w := &world{T: t, Days: storagetest.NewDays(store, friday.AddDate(0, 0, -30).UnixMilli()), clk: clk}
	w.restart()
	return w
}

// restart starts another process.
func (w *world) restart() {
	w.c = cache.New(w.Store, w.clk, 1, cache.DefaultTiming())
	w.r = recovery.New(w.Days, w.c, w.clk, recovery.Options{})
}

// slice returns the slice of a bucket that begins hours before midnight.
func slice(b metric.Bucket, hours int) storage.SliceKey {
	return storage.SliceKey{Bucket: b, StartMs: friday.Add(-time.Duration(hours) * time.Hour).UnixMilli()}
}

func (w *world) open(ks ...storage.SliceKey) {
	w.Helper()
	require.NoError(w, w.Store.Write(w.Context(), &storage.Batch{Open: ks}))
}

func (w *world) complete(k storage.SliceKey) {
	w.Helper()
	require.NoError(w, w.Store.CompleteSlice(w.Context(), k))
}

// look looks for what is outstanding, and for the number of gaps.
func (w *world) look(gaps int, want ...storage.SliceKey) {
	w.Helper()
	out, err := w.r.Outstanding(w.Context())
	var some *storage.GapsError
	if gaps == 0 {
		require.NoError(w, err)
	} else {
		require.ErrorAs(w, err, &some)
		require.ErrorIs(w, err, storage.ErrUnavailable)
		require.Len(w, some.Gaps, gaps, "%v", some.Gaps)
	}
	require.Equal(w, want, out)
}

// run completes slices as long as one is due, and returns them in order.
func (w *world) run(gaps bool) (ran []storage.SliceKey) {
	w.Helper()
	for {
		k, ok, err := w.r.NextDue(w.Context(), nil)
		if !ok {
			require.Equal(w, gaps, errors.As(err, new(*storage.GapsError)), "%v", err)
			return ran
		}
		require.NoError(w, err)
		w.complete(k)
		ran = append(ran, k)
	}
}

// asks returns the times from which the next look asks for raw slices.
func (w *world) asks() (fromMs []int64) {
	w.Helper()
	w.Asked()
	_, _ = w.r.Outstanding(w.Context())
	for _, a := range w.Asked() {
		if a.Bucket == metric.Raw {
			fromMs = append(fromMs, a.FromMs)
		}
	}
	return fromMs
}

// A process that starts while some days are out of reach runs what was left open on all others. What
// lies in those days waits, and so do the slices around them, and those whose rows go there.
func TestStartWithDaysAway(t *testing.T) {
	w := newWorld(t)
	for day := 1; day <= 4; day++ {
		w.open(slice(0, 24*day), slice(0, 24*day-7), slice(1, 24*day), slice(2, 24*day))
	}
	today := slice(0, -3)
	w.open(today)
	for b := range metric.Bucket(3) {
		w.Away(storagetest.DayAt(slice(b, 24*(2+int(b)))), errAway)
	}
	require.Equal(t, []storage.SliceKey{
		slice(0, 96), slice(0, 89), // of day 4; the rows of its 6 hours have nowhere to go
		// nothing of day 3: the rows of its hours have nowhere to go, and so its 6 hours are not known
		// nothing of day 2: its hours are not known
		slice(0, 24), slice(1, 24), slice(0, 17), slice(2, 24), today,
	}, w.run(true))
	w.look(3+3, // the three days, and in each bucket what only the list of days tells
		slice(1, 96), slice(0, 72), slice(0, 65), slice(2, 72), slice(1, 48), slice(2, 48))

	for b := range metric.Bucket(3) {
		w.Away(storagetest.DayAt(slice(b, 24*(2+int(b)))), nil)
	}
	w.clk.Set(w.clk.Now().Add(time.Minute))
	require.Equal(t, []storage.SliceKey{
		slice(1, 96), slice(2, 96),
		slice(0, 72), slice(1, 72), slice(0, 65), slice(2, 72),
		slice(0, 48), slice(1, 48), slice(0, 41), slice(2, 48),
	}, w.run(false))
	w.look(0)
}

// What is older than the days that are named is found as soon as the days can be listed, however
// long that takes. Until then looks try it once in a while, and no longer once it is known.
func TestListOfDaysAway(t *testing.T) {
	w := newWorld(t)
	old, young := slice(0, 40*24), slice(0, 2)
	w.open(old, young)
	away := storagetest.DayAt(slice(0, 10*24))
	w.Away(away, errAway)
	require.Equal(t, []int64{math.MinInt64}, w.asks())
	require.NotContains(t, w.asks(), int64(math.MinInt64), "it is tried again at once")
	require.Equal(t, []storage.SliceKey{young}, w.run(true))
	w.clk.Set(w.clk.Now().Add(time.Minute))
	require.Contains(t, w.asks(), int64(math.MinInt64))
	w.clk.Set(w.clk.Now().Add(20 * time.Hour))
	w.look(3 + 1)

	w.Away(away, nil)
	w.clk.Set(w.clk.Now().Add(time.Minute))
	w.look(0, old)
	require.Equal(t, old.StartMs, slices.Min(w.asks()))
	w.Away(away, errAway)
	w.look(0, old) // nothing is left in that day, and it is not read again
	require.Equal(t, []storage.SliceKey{old}, w.run(false))
	require.Equal(t, []int64{w.clk.Now().Truncate(time.Hour).Add(-24 * time.Hour).UnixMilli()}, w.asks())
	w.Away(away, errAway)
	w.look(0)
}

// A clock that goes back has a process look again where slices may have been opened since, and no
// further: what is out of reach elsewhere does not matter.
func TestClockGoesBack(t *testing.T) {
	w := newWorld(t)
	w.look(0)
	w.Away(storagetest.DayAt(slice(0, 5*24)), errAway)
	for _, step := range []time.Duration{time.Millisecond, 3 * time.Hour, 2 * 24 * time.Hour} {
		w.clk.Jump(-step)
		now := w.clk.Now()
		require.Equal(t, []int64{now.Truncate(time.Hour).Add(-24 * time.Hour).UnixMilli()}, w.asks())
		k := storage.SliceKey{StartMs: now.Truncate(time.Hour).UnixMilli()}
		w.open(k)
		w.look(0, k)
		w.clk.Jump(step)
		w.clk.Set(w.clk.Now().Add(2 * time.Hour))
		w.look(0, k)
		w.complete(k)
		w.look(0)
	}
	// A process that starts now does not know the day, whatever its clock does.
	w.restart()
	w.look(3 + 1)
	w.clk.Jump(-time.Hour)
	w.look(3 + 1)
}

// TestFoundDuringALook: a survey finds a slice while another look is under way, which does not read that time. The end of
// the look does not take the slice out of the search.
func TestFoundDuringALook(t *testing.T) {
	w := newWorld(t)
	w.look(0)
	behind := slice(0, 50)
	w.open(behind)
	w.clk.Set(w.clk.Now().Add(24 * time.Hour))
	surveyed := false
	w.During(func() {
		if surveyed {
			return
		}
		surveyed = true
		k, ok, err := w.r.NextDue(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, behind, k)
	})
	_, err := w.r.Outstanding(t.Context())
	w.During(nil)
	require.NoError(t, err)
	require.True(t, surveyed)
	w.look(0, behind)
}

// A slice of a failed write that comes to light behind the looks is found within a day, by a look at all days. What is out
// of reach then is a gap, as at the start.
func TestOpenedBehindTheLooks(t *testing.T) {
	w := newWorld(t)
	w.look(0)
	behind, further := slice(0, 50), slice(0, 40*24)
	w.open(behind, further)
	w.clk.Set(w.clk.Now().Add(24*time.Hour - time.Second))
	require.Empty(t, w.run(false))

	w.Away(storagetest.DayAt(behind), errAway)
	recent := storage.SliceKey{StartMs: w.clk.Now().Add(-2 * time.Hour).Truncate(time.Hour).UnixMilli()}
	w.open(recent)
	w.clk.Set(w.clk.Now().Add(time.Second))
	require.Equal(t, []storage.SliceKey{recent}, w.run(true))
	w.look(3 + 1)
	w.Heal()
	w.clk.Set(w.clk.Now().Add(time.Minute))
	require.Equal(t, []storage.SliceKey{further, behind}, w.run(false))

	w.Asked()
	w.clk.Set(w.clk.Now().Add(23 * time.Hour))
	require.Empty(t, w.run(false))
	for _, a := range w.Asked() {
		require.NotEqual(t, int64(math.MinInt64), a.FromMs, "a look at all days")
	}
	w.look(0)
}

// Late marks go into slices a minute ahead if the clock of another process is ahead, or this one was set back, and queries
// must know them. What an earlier process left further ahead is found by the first look, and known until the clock gets there.
func TestOpenedAhead(t *testing.T) {
	w := newWorld(t)
	w.clk.Set(friday.Add(12*time.Hour + 59*time.Minute))
	soon, later := slice(0, -13), slice(0, -33)
	w.open(later)
	w.look(0, later)
	w.open(soon)
	w.look(0, soon, later)
	require.Empty(t, w.run(false))
	w.clk.Set(friday.Add(14*time.Hour + 2*time.Minute))
	require.Equal(t, []storage.SliceKey{soon}, w.run(false))
	w.look(0, later)
}

// TestNoSliceIsForgotten: whatever is out of reach and when, and however clocks go and looks overlap,
// each open slice is outstanding or lies in a gap. No slice is run before one within it.
func TestNoSliceIsForgotten(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			ladder := metric.DefaultLadder()
			left := map[storage.SliceKey]bool{}
			known := func(out []storage.SliceKey, err error) {
				t.Helper()
				var some storage.GapsError
				if gaps := new(storage.GapsError); errors.As(err, &gaps) {
					some = *gaps
				} else {
					require.NoError(t, err)
				}
				for k := range left {
					if k.StartMs > w.clk.Now().UnixMilli() || slices.Contains(out, k) {
						continue
					}
					require.True(t, slices.ContainsFunc(some.Gaps, func(g storage.Gap) bool {
						return g.Bucket == k.Bucket && g.FromMs <= k.StartMs && k.StartMs < g.ToMs
					}), "%v is forgotten", k)
				}
			}
			for range 60 {
				switch now := w.clk.Now(); rnd.IntN(8) {
				case 0: // ingest opens a slice
					k := storage.SliceKey{StartMs: ladder.SliceAt(metric.Raw, now.Add(time.Duration(rnd.IntN(12)-1)*10*time.Minute).UnixMilli()).StartMs}
					w.open(k)
					if states, _ := w.Store.Slices(t.Context(), k.Bucket, k.StartMs, k.StartMs+1); !states[0].Complete {
						left[k] = true
					}
				case 1:
					w.clk.Set(now.Add(time.Duration(rnd.IntN(40*24*60)) * time.Minute))
				case 2:
					w.clk.Jump(-time.Duration(rnd.IntN(40*24*60)) * time.Minute)
				case 3:
					day := storagetest.Day{Bucket: metric.Bucket(rnd.IntN(3)), StartMs: now.Truncate(24*time.Hour).AddDate(0, 0, -rnd.IntN(40)).UnixMilli()}
					w.Away(day, errAway)
				case 4:
					w.Heal()
				case 5:
					if rnd.IntN(3) == 0 {
						w.restart()
					}
				case 6: // a failed write comes to light, and is found in the end
					w.open(storage.SliceKey{StartMs: ladder.SliceAt(metric.Raw, now.Add(-time.Duration(rnd.IntN(40*24))*time.Hour).UnixMilli()).StartMs})
				default: // a run
					k, ok, err := w.r.NextDue(t.Context(), nil)
					if !ok {
						break
					}
					require.NoError(t, err)
					for o := range left {
						require.False(t, o.Bucket < k.Bucket && ladder.SliceAt(k.Bucket, k.StartMs).Contains(o.StartMs), "%v is run before %v", k, o)
					}
					if next := k.Bucket + 1; next < ladder.Top() {
						n := storage.SliceKey{Bucket: next, StartMs: ladder.SliceAt(next, k.StartMs).StartMs}
						w.open(n)
						if states, _ := w.Store.Slices(t.Context(), n.Bucket, n.StartMs, n.StartMs+1); !states[0].Complete {
							left[n] = true
						}
					}
					w.complete(k)
					delete(left, k)
				}
				during := rnd.IntN(3) // another look begins and ends within this one
				w.During(func() {
					if during--; during == 0 {
						_, _ = w.r.Outstanding(t.Context())
					}
				})
				out, err := w.r.Outstanding(t.Context())
				w.During(nil)
				known(out, err)
			}
			w.Heal()
			w.clk.Set(w.clk.Now().AddDate(1, 0, 0))
			known(w.r.Outstanding(t.Context()))
			w.run(false)
			require.Empty(t, w.leftOpen())
		})
	}
}

// leftOpen returns the slices that are not complete.
func (w *world) leftOpen() (out []storage.SliceKey) {
	w.Helper()
	for b := range metric.Bucket(3) {
		states, err := w.Store.Slices(w.Context(), b, math.MinInt64, math.MaxInt64)
		require.NoError(w, err)
		for _, s := range states {
			if !s.Complete && s.StartMs <= w.clk.Now().UnixMilli() {
				out = append(out, s.SliceKey)
			}
		}
	}
	return out
}
