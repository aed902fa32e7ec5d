package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// table keeps the slices of each bucket in a place of its own, as Cassandra does. Some of these are out of reach at times.
type table struct {
	storage.Store
	away map[metric.Bucket]bool
	// asked are the times from which slices of raw were asked for, and during is called after each reading.
	asked  []int64
	during func()
}

func (d *table) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	if b == metric.Raw {
		d.asked = append(d.asked, fromMs)
	}
	states, err := d.Store.Slices(ctx, b, fromMs, toMs)
	if d.during != nil {
		d.during()
	}
	if d.away[b] {
		return nil, errAway
	}
	return states, err
}

// world is a Recovery over a table of slices.
type world struct {
	*testing.T
	*table
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
	w := &world{T: t, table: &table{Store: store, away: map[metric.Bucket]bool{}}, clk: clk}
	w.restart()
	return w
}

// restart starts another process.
func (w *world) restart() {
	w.c = cache.New(w.Store, w.clk, 1, cache.DefaultTiming())
	w.r = recovery.New(w.table, w.c, w.clk, recovery.Options{})
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

// look looks for what is outstanding, and for the buckets that are unread.
func (w *world) look(unread []metric.Bucket, want ...storage.SliceKey) {
	w.Helper()
	out, err := w.r.Outstanding(w.Context())
	var got storage.UnreadError
	if len(unread) == 0 {
		require.NoError(w, err)
	} else {
		require.ErrorAs(w, err, &got)
		require.ErrorIs(w, err, storage.ErrUnavailable)
	}
	for i, u := range got {
		require.Equal(w, unread[i], u.Bucket)
	}
	require.Len(w, got, len(unread))
	require.Equal(w, want, out)
	exported := 0.0
	for _, n := range counted(w.T, w.r.Collector(), "quern_aggregation_slices_unread") {
		exported += n
	}
	require.Len(w, unread, int(exported))
}

// counted returns the values of a metric.
func counted(t *testing.T, c prometheus.Collector, name string) (out []float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				out = append(out, m.GetGauge().GetValue())
			}
		}
	}
	return out
}

// run completes slices as long as one is due, and returns them in order.
func (w *world) run(unread bool) (ran []storage.SliceKey) {
	w.Helper()
	for {
		k, ok, err := w.r.NextDue(w.Context(), nil)
		if !ok {
			require.Equal(w, unread, errors.As(err, new(storage.UnreadError)), "%v", err)
			return ran
		}
		require.NoError(w, err)
		w.complete(k)
		ran = append(ran, k)
	}
}

// asks returns the times from which the next look asks for raw slices.
func (w *world) asks() []int64 {
	w.Helper()
	w.asked = nil
	_, _ = w.r.Outstanding(w.Context())
	return w.asked
}

// tick lets pass what a look waits before it tries what was unread.
func (w *world) tick() { w.clk.Set(w.clk.Now().Add(5 * time.Second)) }

// TestBucketAway: while the slices of a bucket are out of reach, they wait, and those around them, and those whose rows go
// there. The others run, also in a process that starts meanwhile. All is made up for.
func TestBucketAway(t *testing.T) {
	all := []storage.SliceKey{slice(0, 30), slice(1, 30), slice(2, 48), slice(0, 24)}
	for away, runs := range [][]storage.SliceKey{nil, nil, {slice(0, 30), slice(0, 24)}} {
		w := newWorld(t)
		w.open(all...)
		w.away[metric.Bucket(away)] = true
		require.Equal(t, runs, w.run(true))
		left := slices.DeleteFunc(slices.Clone(all), func(k storage.SliceKey) bool { return slices.Contains(runs, k) })
		known := slices.DeleteFunc(slices.Clone(left), func(k storage.SliceKey) bool { return k.Bucket == metric.Bucket(away) })
		w.look([]metric.Bucket{metric.Bucket(away)}, known...)
		w.away = map[metric.Bucket]bool{}
		w.look([]metric.Bucket{metric.Bucket(away)}, known...) // it is not tried again at once
		w.tick()
		require.Equal(t, left, w.run(false))
		w.look(nil)
	}

	// Where a process has seen that nothing is outstanding within a slice, it does not wait.
	w := newWorld(t)
	w.open(all...)
	w.complete(slice(0, 30))
	w.complete(slice(0, 24))
	w.look(nil, slice(1, 30), slice(2, 48))
	w.open(slice(0, 8), slice(1, 12))
	w.away[metric.Raw] = true
	require.Equal(t, []storage.SliceKey{slice(1, 30), slice(2, 48)}, w.run(true))
}

// TestStartWithABucketAway: what is older than all looks of a process that runs is found as soon as the bucket can be read,
// however long that takes. Until then looks try it once in a while, and no longer once it is known.
func TestStartWithABucketAway(t *testing.T) {
	w := newWorld(t)
	old := slice(0, 40*24)
	w.open(old)
	w.away[metric.Raw] = true
	require.Equal(t, []int64{math.MinInt64}, w.asks())
	require.Empty(t, w.asks(), "it is tried again at once")
	w.tick()
	require.Equal(t, []int64{math.MinInt64}, w.asks())
	w.clk.Set(w.clk.Now().Add(20 * time.Hour))
	w.look([]metric.Bucket{0})

	w.away[metric.Raw] = false
	w.tick()
	w.look(nil, old)
	require.Equal(t, []int64{old.StartMs}, w.asks())
	require.Equal(t, []storage.SliceKey{old}, w.run(false))
	require.Equal(t, []int64{w.clk.Now().Truncate(time.Hour).Add(-24 * time.Hour).UnixMilli()}, w.asks())
}

// A clock that goes back has a process look again where slices may have been opened since, and no further.
func TestClockGoesBack(t *testing.T) {
	w := newWorld(t)
	w.look(nil)
	for _, step := range []time.Duration{time.Millisecond, 3 * time.Hour, 2 * 24 * time.Hour} {
		w.clk.Jump(-step)
		now := w.clk.Now()
		require.Equal(t, []int64{now.Truncate(time.Hour).Add(-24 * time.Hour).UnixMilli()}, w.asks())
		k := storage.SliceKey{StartMs: now.Truncate(time.Hour).UnixMilli()}
		w.open(k)
		w.look(nil, k)
		w.clk.Jump(step)
		w.clk.Set(w.clk.Now().Add(2 * time.Hour))
		w.look(nil, k)
		w.complete(k)
		w.look(nil)
	}
}

// TestFoundDuringALook: a survey finds a slice while another look is under way, which does not read that time. The end of
// the look does not take the slice out of the search.
func TestFoundDuringALook(t *testing.T) {
	w := newWorld(t)
	w.look(nil)
	behind := slice(0, 50)
	w.open(behind)
	w.clk.Set(w.clk.Now().Add(24 * time.Hour))
	surveyed := false
	w.during = func() {
		if surveyed {
			return
		}
		surveyed = true
		k, ok, err := w.r.NextDue(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, behind, k)
	}
	_, err := w.r.Outstanding(t.Context())
	w.during = nil
	require.NoError(t, err)
	require.True(t, surveyed)
	w.look(nil, behind)
}

// A slice of a failed write that comes to light behind the looks is found within a day, by a look at all times. What is out
// of reach then waits, as at the start.
func TestOpenedBehindTheLooks(t *testing.T) {
	w := newWorld(t)
	w.look(nil)
	behind, further := slice(0, 50), slice(0, 40*24)
	w.open(behind, further)
	w.clk.Set(w.clk.Now().Add(24*time.Hour - time.Second))
	require.Empty(t, w.run(false))

	w.away[metric.Raw] = true
	w.clk.Set(w.clk.Now().Add(time.Second))
	require.Empty(t, w.run(true))
	w.look([]metric.Bucket{metric.Raw})
	w.away[metric.Raw] = false
	w.tick()
	require.Equal(t, []storage.SliceKey{further, behind}, w.run(false))

	w.asked = nil
	w.clk.Set(w.clk.Now().Add(23 * time.Hour))
	require.Empty(t, w.run(false))
	require.NotContains(t, w.asked, int64(math.MinInt64), "a look at all times")
	w.look(nil)
}

// Late marks go into slices a minute ahead if the clock of another process is ahead, or this one was set back, and queries
// must know them. What an earlier process left further ahead is found by the first look, and known until the clock gets there.
func TestOpenedAhead(t *testing.T) {
	w := newWorld(t)
	w.clk.Set(friday.Add(12*time.Hour + 59*time.Minute))
	soon, later := slice(0, -13), slice(0, -33)
	w.open(later)
	w.look(nil, later)
	w.open(soon)
	w.look(nil, soon, later)
	require.Empty(t, w.run(false))
	w.clk.Set(friday.Add(14*time.Hour + 2*time.Minute))
	require.Equal(t, []storage.SliceKey{soon}, w.run(false))
	w.look(nil, later)
}

// TestNoSliceIsForgotten: whatever is out of reach and when, and however clocks go and looks overlap,
// each open slice is outstanding or unread. No slice is run before one within it.
func TestNoSliceIsForgotten(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t)
			ladder := metric.DefaultLadder()
			left := map[storage.SliceKey]bool{}
			known := func(out []storage.SliceKey, err error) {
				t.Helper()
				var unread storage.UnreadError
				if !errors.As(err, &unread) {
					require.NoError(t, err)
				}
				for k := range left {
					if k.StartMs > w.clk.Now().UnixMilli() || slices.Contains(out, k) {
						continue
					}
					require.True(t, slices.ContainsFunc(unread, func(u storage.UnreadSlices) bool {
						return u.Bucket == k.Bucket && u.FromMs <= k.StartMs
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
					w.away[metric.Bucket(rnd.IntN(3))] = true
				case 4:
					clear(w.away)
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
				w.during = func() {
					if during--; during == 0 {
						_, _ = w.r.Outstanding(t.Context())
					}
				}
				out, err := w.r.Outstanding(t.Context())
				w.during = nil
				known(out, err)
			}
			clear(w.away)
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
