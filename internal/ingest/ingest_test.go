package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(clk clock.Clock) *storagetest.Faulty {
	return storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 128}},
	}, nil, clk))
}

func storedSamples(t *testing.T, s storage.Store) map[metric.Sample]bool {
	t.Helper()
	out := map[metric.Sample]bool{}
	for c, err := range s.RawChunks(t.Context(), blocks.Range{End: 1 << 20}, 0, math.MaxInt64) {
		require.NoError(t, err)
		samples, err := blocks.DecodeSamples(nil, c.Data)
		require.NoError(t, err)
		for _, s := range samples {
			out[s] = true
		}
	}
	return out
}

func start(t *testing.T, opts ingest.Options, limits registry.Options) (*ingest.Ingest, *storagetest.Faulty) {
	t.Helper()
	clk := clock.System{} // synctest's clock within a bubble
	g := newStore(clk)
	opts.Metrics = prometheus.NewRegistry()
	in := ingest.Start(t.Context(), parts(g, clk, limits), opts)
	return in, g
}

// parts returns what ingest works with over a store.
func parts(store storage.Store, clk clock.Clock, series registry.Options) ingest.Parts {
	return ingest.Parts{Store: store, Registry: registry.New(store, series), Cache: cache.New(store, clk, 1, cache.DefaultTiming()), Clock: clk}
}

func report(values ...float64) []ingest.Report {
	r := ingest.Report{Source: "web-1"}
	for i, v := range values {
		r.Measurements = append(r.Measurements, ingest.Measurement{Metric: fmt.Sprintf("m%d", i), TimeMs: ingest.NoTime, Value: v})
	}
	return []ingest.Report{r}
}

// TestNoWindow: without a window a report does not wait. Reports that arrive during a commit share
// the next one.
func TestNoWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{}, registry.Options{})
		began := time.Now()
		hold := make(chan struct{})
		g.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { <-hold; return nil }})
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if _, err := in.Append(t.Context(), report(0)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(hold)
		wg.Wait()
		require.Equal(t, 2, g.Count("Write"))
		require.Zero(t, time.Since(began))
		require.NoError(t, in.Close())
	})
}

// TestGroupCommit: reports that arrive within the window become durable together, and each is
// answered only then.
func TestGroupCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{Window: 100 * time.Millisecond}, registry.Options{})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				res, err := in.Append(t.Context(), report(1, 2, float64(i)))
				if err != nil || res.Accepted != 3 {
					t.Errorf("%+v, %v", res, err)
				}
				if waited := time.Since(began); waited < 100*time.Millisecond {
					t.Errorf("answered after %s", waited)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 100*time.Millisecond, time.Since(began), "nobody waits for a second window")
		require.Equal(t, 1, g.Count("Write"))
		require.Len(t, storedSamples(t, g), 15)
		require.NoError(t, in.Close())
	})
}

// TestFlushSamplesEndTheWindow: a window ends when enough samples wait.
func TestFlushSamplesEndTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{Window: time.Hour, FlushSamples: 4}, registry.Options{})
		began := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := in.Append(t.Context(), report(1, 2))
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Less(t, time.Since(began), time.Minute)
		require.Len(t, storedSamples(t, g), 2)
		require.NoError(t, in.Close())
	})
}

// TestCloseDrains: Close makes accepted samples durable, and nothing is accepted after it.
func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{Window: time.Hour}, registry.Options{})
		began := time.Now()
		answered := make(chan error, 2)
		for _, v := range []float64{1, 2} {
			go func() {
				_, err := in.Append(t.Context(), report(v))
				answered <- err
			}()
		}
		synctest.Wait()
		require.NoError(t, in.Close())
		require.NoError(t, <-answered)
		require.NoError(t, <-answered)
		require.Equal(t, 1, g.Count("Write"))
		require.Len(t, storedSamples(t, g), 1, "the same series at the same moment")
		require.Zero(t, time.Since(began), "Close does not wait for the window")

		_, err := in.Append(t.Context(), report(1))
		require.ErrorIs(t, err, ingest.ErrClosed)
		require.ErrorIs(t, err, storage.ErrUnavailable)
		require.Error(t, in.Close(), "once")
	})
}

// TestCancelBreaksOff: after a cancel the commit under way fails, and its reports with it.
func TestCancelBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		clk := clock.System{}
		g := newStore(clk)
		g.Add(storagetest.Rule{Op: "Write", Times: -1, Before: func() error {
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		in := ingest.Start(ctx, parts(g, clk, registry.Options{}), ingest.Options{})
		stop := errors.New("stop at once")
		go func() {
			time.Sleep(time.Second)
			cancel(stop)
		}()
		_, err := in.Append(t.Context(), report(1))
		require.ErrorIs(t, err, stop)
		require.Empty(t, storedSamples(t, g))
		require.NoError(t, in.Close())
	})
}

// TestCallerGivesUp: a caller that gives up gets its context's error, and the commit goes on for
// the others.
func TestCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{Window: time.Second}, registry.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := in.Append(ctx, report(1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, in.Close())
		require.Len(t, storedSamples(t, g), 1)
	})
}

// TestFailedCommit: a failed commit fails every report in it, names the kind of failure, and leaves
// ingest usable.
func TestFailedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{}, registry.Options{})
		g.Fail("Write", blocks.Range{}, -1, fmt.Errorf("no quorum: %w", storage.ErrUnavailable))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := in.Append(t.Context(), report(1)); !errors.Is(err, storage.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		g.Heal()
		res, err := in.Append(t.Context(), report(1))
		require.NoError(t, err)
		require.Equal(t, 1, res.Accepted)
		require.Len(t, storedSamples(t, g), 1)
		require.NoError(t, in.Close())
	})
}

// TestPartlyInvalid is behaviour 23: each bad measurement is named by its index over all reports of
// the call, with its reason. The good ones are stored.
func TestPartlyInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{}, registry.Options{})
		long := strings.Repeat("x", 257)
		now := time.Now().UnixMilli()
		label := func(name, value string) []metric.Label { return []metric.Label{{Name: name, Value: value}} }
		m := func(name string, timeMs int64, labels ...metric.Label) ingest.Measurement {
			return ingest.Measurement{Metric: name, TimeMs: timeMs, Value: 1, Labels: labels}
		}
		const day, ahead = 24 * 3600 * 1000, 10 * 60 * 1000
		res, err := in.Append(t.Context(), []ingest.Report{
			{Source: "web-1", Measurements: []ingest.Measurement{
				m("good", now),
				m("", now),                     // 1
				m("a\x00b", now),               // 2
				m("a\xffb", now),               // 3
				m(long, now),                   // 4
				m("m", -1),                     // 5
				m("m", now-day-1),              // 6
				m("old", now-day),              // exactly at the cap
				m("m", now+ahead+1),            // 8
				m("new", now+ahead),            // exactly at the limit
				m("m", math.MaxInt64),          // 10
				m("m", now, label("", "x")...), // 11
				m("m", now, label("a", strings.Repeat("x", 4097))...),                                 // 12
				m("m", now, label("a", "\xff")...),                                                    // 13
				m("m", now, label(metric.NameLabel, "x")...),                                          // 14
				m("m", now, label(metric.SourceLabel, "x")...),                                        // 15
				m("m", now, metric.Label{Name: "a", Value: "1"}, metric.Label{Name: "a", Value: "2"}), // 16
				m("m", now, namedLabels(65, strconv.Itoa)...),                                         // 17
			}},
			{Source: "", Measurements: []ingest.Measurement{m("a", now), m("b", now)}},        // 18, 19
			{Source: long, Measurements: []ingest.Measurement{m("a", now)}},                   // 20
			{Source: "web-2", Measurements: []ingest.Measurement{m("ü⌘", now), m("\n", now)}}, // 22
			{Source: "web-3", Measurements: nil},
		})
		require.NoError(t, err)
		require.Equal(t, 4, res.Accepted)
		got := map[int]ingest.Reason{}
		for i, r := range res.Rejected {
			require.NotEmpty(t, r.Message)
			require.True(t, i == 0 || res.Rejected[i-1].Index < r.Index, "in order")
			got[r.Index] = r.Reason
		}
		require.Equal(t, map[int]ingest.Reason{
			1: ingest.ReasonInvalidMetric, 2: ingest.ReasonInvalidMetric, 3: ingest.ReasonInvalidMetric, 4: ingest.ReasonInvalidMetric,
			5: ingest.ReasonInvalidTime, 6: ingest.ReasonTooOld, 8: ingest.ReasonTooFarAhead, 10: ingest.ReasonTooFarAhead,
			11: ingest.ReasonInvalidLabel, 12: ingest.ReasonLimit, 13: ingest.ReasonInvalidLabel, 14: ingest.ReasonInvalidLabel,
			15: ingest.ReasonInvalidLabel, 16: ingest.ReasonInvalidLabel, 17: ingest.ReasonLimit,
			18: ingest.ReasonInvalidSource, 19: ingest.ReasonInvalidSource, 20: ingest.ReasonInvalidSource, 22: ingest.ReasonInvalidMetric,
		}, got)
		require.Len(t, storedSamples(t, g), 4)

		seconds := []ingest.Measurement{{Metric: "m", TimeMs: 1732161600, Value: 1}}
		res, err = in.Append(t.Context(), []ingest.Report{{Source: "web-1", Measurements: seconds}})
		require.NoError(t, err)
		require.Contains(t, res.Rejected[0].Message, "1970-01-21T01:09:21Z", "it shows that the time is in seconds")
		require.NoError(t, in.Close())
	})
}

// TestNoPauseAtTheEnd: before a slice is sealed and before the process ends, the chunks of a failed
// commit are written again, although the pause after a failed attempt is not over.
func TestNoPauseAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(context.Context, *ingest.Ingest) error{
		"sealed": func(ctx context.Context, in *ingest.Ingest) error { return in.Seal(ctx) },
		"closed": func(_ context.Context, in *ingest.Ingest) error { return in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewSimulated(time.Date(2025, time.November, 21, 10, 59, 0, 0, time.UTC))
			g := newStore(clk)
			in := ingest.Start(t.Context(), parts(g, clk, registry.Options{}), ingest.Options{})
			g.Add(storagetest.Rule{Op: "Write", Times: 2, Before: func() error {
				clk.Set(clk.Now().Add(time.Second))
				return storage.ErrTimeout
			}})
			_, err := in.Append(t.Context(), report(1))
			require.ErrorIs(t, err, storage.ErrTimeout)
			require.ErrorIs(t, in.Settle(t.Context()), storage.ErrTimeout)
			require.NoError(t, in.Settle(t.Context()))
			require.Empty(t, storedSamples(t, g), "there is a pause")
			require.NoError(t, end(t.Context(), in))
			require.Len(t, storedSamples(t, g), 1)
			if name != "closed" {
				require.NoError(t, in.Close())
			}
		})
	}
}

// TestSameSeries: the order of labels, and labels without a value, make no other series.
func TestSameSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{}, registry.Options{})
		l := func(pairs ...string) []metric.Label {
			var out []metric.Label
			for _, p := range pairs {
				name, value, _ := strings.Cut(p, "=")
				out = append(out, metric.Label{Name: name, Value: value})
			}
			return out
		}
		now := time.Now().UnixMilli()
		res, err := in.Append(t.Context(), []ingest.Report{{Source: "web-1", Measurements: []ingest.Measurement{
			{Metric: "m", Labels: l("a=1", "b=2"), TimeMs: now, Value: 1},
			{Metric: "m", Labels: l("b=2", "a=1"), TimeMs: now - 1, Value: 2},
			{Metric: "m", Labels: l("b=2", "A=", "a=1"), TimeMs: now - 2, Value: 3},
			{Metric: "m", Labels: l("A=0", "a=1", "b=2"), TimeMs: now, Value: 4},
		}}})
		require.NoError(t, err)
		require.Equal(t, 4, res.Accepted)
		ids := map[float64]metric.ScheduleID{}
		for s := range storedSamples(t, g) {
			ids[s.Value] = s.Schedule
		}
		require.Equal(t, ids[1], ids[2])
		require.Equal(t, ids[1], ids[3])
		require.NotEqual(t, ids[1], ids[4], "a name before __name__ sorts there")
		require.NoError(t, in.Close())
	})
}

// TestManyCallers: many callers, occasional failing commits, and an end in the middle. Every
// acknowledged sample is stored.
func TestManyCallers(t *testing.T) {
	in, g := start(t, ingest.Options{Window: time.Millisecond, MaxPending: 64}, registry.Options{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[float64]bool{}
	for worker := range 8 {
		wg.Go(func() {
			for i := range 100 {
				v := float64(worker*1000 + i)
				_, err := in.Append(t.Context(), []ingest.Report{{Source: fmt.Sprint(worker % 3), Measurements: []ingest.Measurement{
					{Metric: fmt.Sprint("m", worker), TimeMs: time.Now().UnixMilli() - int64(i)*1000, Value: v},
				}}})
				switch {
				case err == nil:
					mu.Lock()
					acked[v] = true
					mu.Unlock()
				case !errors.Is(err, ingest.ErrBusy) && !errors.Is(err, storage.ErrUnavailable):
					t.Error(err)
				}
				if worker == 0 && i%10 == 0 {
					if g.Heal(); i%20 == 0 && i < 80 {
						g.Fail("Write", blocks.Range{}, -1, storage.ErrUnavailable)
					}
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, in.Close())
	stored := map[float64]bool{}
	for s := range storedSamples(t, g) {
		stored[s.Value] = true
	}
	require.NotEmpty(t, acked)
	for v := range acked {
		require.True(t, stored[v], "%v was acknowledged", v)
	}
}

// TestOverwritten: a store keeps one sample per series and millisecond. The caller learns which of
// its samples another value replaced. The same value sent twice replaces nothing.
func TestOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _ := start(t, ingest.Options{}, registry.Options{})
		at := time.Now().UnixMilli()
		m := func(name string, labels []metric.Label, timeMs int64, v float64) ingest.Measurement {
			return ingest.Measurement{Metric: name, Labels: labels, TimeMs: timeMs, Value: v}
		}
		bus := []metric.Label{{Name: "bus", Value: "0"}}
		res, err := in.Append(t.Context(), []ingest.Report{
			{Source: "a", Measurements: []ingest.Measurement{m("x", nil, at, 1), m("", nil, at, 1), m("x", nil, at, 1)}},
			{Source: "b", Measurements: []ingest.Measurement{
				m("x", bus, at, 1), m("y", bus, at, 7), m("y", bus, at-1, 7), m("y", bus, at, 8), m("y", bus, at, math.NaN()), m("x", bus, at, 1),
			}},
		})
		require.NoError(t, err)
		require.Len(t, res.Rejected, 1)
		require.Equal(t, 8, res.Accepted)
		require.Equal(t, ingest.Overwritten{Samples: 2, Series: `y{bus="0",source="b"}`, TimeMs: at}, res.Overwritten)

		res, err = in.Append(t.Context(), []ingest.Report{{Source: "b", Derived: true, Measurements: []ingest.Measurement{m("z", bus, at, 1), m("z", bus, at, 2)}}})
		require.NoError(t, err)
		require.Equal(t, ingest.Overwritten{Samples: 1, Series: `z{bus="0"}`, TimeMs: at}, res.Overwritten)
		require.NoError(t, in.Close())
	})
}

// TestOverwrittenByAnother: the samples of two callers share a commit. The caller whose sample is
// replaced learns of it.
func TestOverwrittenByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _ := start(t, ingest.Options{Window: time.Second}, registry.Options{})
		first := make(chan ingest.Result, 1)
		go func() {
			res, err := in.Append(t.Context(), report(1))
			if err != nil {
				t.Error(err)
			}
			first <- res
		}()
		synctest.Wait()
		res, err := in.Append(t.Context(), report(2))
		require.NoError(t, err)
		require.Zero(t, res.Overwritten)
		require.Equal(t, 1, (<-first).Overwritten.Samples)
		require.NoError(t, in.Close())
	})
}
