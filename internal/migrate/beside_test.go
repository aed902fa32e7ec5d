package migrate

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// moving is a server that takes reports of a series, and grinds them, while the same series is copied.
type moving struct {
	t      *testing.T
	world  *world
	from   *memory
	engine *engine.Engine
}

// newMoving starts a server at ten, over a store without anything.
func newMoving(t *testing.T) *moving {
	w := newWorld()
	w.store = storagetest.NewLWWModel(storagetest.TestSettings(), nil, w.clk)
	w.clk.Jump(at(10, 0).Sub(w.clk.Now()))
	var err error
	w.opts.Names, _, err = ReadNames(strings.NewReader("7,db1,cpu_load\n"))
	require.NoError(t, err)
	m := &moving{t: t, world: w, from: newMemory()}
	m.engine = engine.New(engine.Options{
		Store: w.store, Clock: w.clk, Worker: storage.Worker{ID: "w", Aggregates: true}, Rollup: &rollup.Options{Parallel: 1},
	})
	m.engine.Start(t.Context(), registry.Options{}, ingest.Options{})
	t.Cleanup(func() { require.NoError(t, m.engine.Drain()) })
	return m
}

// rhq adds two samples for each hour from eight until the given time, and what RHQ makes of them until the hour
// aggregated.
func (m *moving) rhq(until time.Time, aggregated int) {
	var day []row
	for h := 8; h < 14; h++ {
		r := row{min: math.Inf(1), max: math.Inf(-1)}
		n := 0
		for i, s := range []time.Time{at(h, 5), at(h, 20)} {
			if v := float64(h + 7*i); !s.After(until) {
				m.from.sample(7, s, v)
				r.min, r.max, r.avg = min(r.min, v), max(r.max, v), r.avg+v
				n++
			}
		}
		if n > 0 && h < aggregated {
			r.avg /= float64(n)
			m.from.rollup(legacy.OneHour, 7, at(h, 0), r.max, r.min, r.avg)
			day = append(day, r)
		}
	}
	if aggregated >= 12 {
		sum := row{min: math.Inf(1), max: math.Inf(-1)}
		for _, r := range day {
			sum.min, sum.max, sum.avg = min(sum.min, r.min), max(sum.max, r.max), sum.avg+r.avg/float64(len(day))
		}
		m.from.rollup(legacy.SixHours, 7, at(6, 0), sum.max, sum.min, sum.avg)
	}
}

func (m *moving) report(at time.Time) {
	_, err := m.engine.Ingest.Append(m.t.Context(), []ingest.Report{{Source: "db1", Measurements: []ingest.Measurement{
		{Metric: "cpu_load", TimeMs: at.UnixMilli(), Value: 100},
	}}})
	require.NoError(m.t, err)
}

// pass lets time pass in steps, calls each at every one, and grinds what is due, unless the aggregator is away.
func (m *moving) pass(until time.Time, away bool, each func(now time.Time)) {
	clk := m.world.clk
	for next := clk.Now(); next.Before(until); {
		next = next.Truncate(10 * time.Minute).Add(10 * time.Minute)
		if next.Minute() == 0 {
			clk.Set(next.Add(time.Minute))
			require.NoError(m.t, m.engine.Ingest.Seal(m.t.Context()))
			each(clk.Now())
			clk.Set(next.Add(2 * time.Minute))
		} else {
			clk.Set(next)
			each(next)
		}
		if !away {
			_, err := m.engine.Runner.RunDue(m.t.Context())
			require.NoError(m.t, err)
		}
	}
}

func (m *moving) copy() {
	_, err := m.world.migrate(m.t, m.from)
	require.NoError(m.t, err)
}

// check compares each row with the raw samples of its slice, when the day and all that came late are ground.
func (m *moving) check() {
	m.t.Helper()
	m.pass(at(0, 0).Add(72*time.Hour), false, func(time.Time) {})
	store, ctx := m.world.store, m.t.Context()
	ids, err := store.LeasedIDs(ctx)
	require.NoError(m.t, err)
	ladder := store.Settings().Ladder
	type slice struct {
		level string
		start string
	}
	want, got := map[slice]uint64{}, map[slice]uint64{}
	seen := map[int64]bool{}
	for c, err := range store.RawChunks(ctx, ids, 0, math.MaxInt64/4) {
		require.NoError(m.t, err)
		samples, err := blocks.DecodeSamplesIn(nil, c.Data, ids)
		require.NoError(m.t, err)
		for _, s := range samples {
			for _, l := range ladder.Levels() {
				if !seen[s.TimeMs] {
					want[slice{ladder.Name(l), time.UnixMilli(metric.AlignDown(s.TimeMs, ladder.WidthMs(l))).UTC().Format("15:04")}]++
				}
			}
			seen[s.TimeMs] = true
		}
	}
	for _, l := range ladder.Levels() {
		for r, err := range store.Rollups(ctx, l, ids, 0, math.MaxInt64/4) {
			require.NoError(m.t, err)
			require.False(m.t, r.Partial)
			got[slice{ladder.Name(l), time.UnixMilli(r.TimeMs).UTC().Format("15:04")}] = r.Count
		}
	}
	require.Equal(m.t, want, got, "rows and the number of their samples")
}

// TestBesideRuns: agents report a series to Quern before it is copied. The rows of the slices with samples from both
// are ground from all of them, whenever the copy is made.
func TestBesideRuns(t *testing.T) {
	midnight := at(0, 0).Add(24 * time.Hour)
	for _, c := range []struct {
		name string
		// RHQ has samples until then, and rows before the hour aggregated.
		until      time.Time
		aggregated int
		since      time.Time // Quern's first sample
		copied     []time.Time
		// away: nothing is ground before the copy.
		away bool
	}{
		{"RHQ has no row", at(10, 20), 10, at(10, 30), []time.Time{at(10, 40), at(11, 30), at(13, 30), midnight.Add(90 * time.Minute)}, false},
		{"RHQ has the hour", at(10, 20), 11, at(10, 30), []time.Time{at(11, 1), at(11, 30), at(13, 30)}, false},
		{"RHQ has the hour, away", at(10, 20), 11, at(10, 30), []time.Time{at(11, 30), at(13, 30)}, true},
		{"RHQ has six hours", at(11, 20), 12, at(10, 30), []time.Time{at(12, 1), at(12, 30), midnight.Add(90 * time.Minute)}, false},
		{"RHQ has six hours, of others", at(10, 20), 12, at(11, 10), []time.Time{at(12, 1), at(12, 30)}, false},
		{"RHQ has six hours, of others, away", at(10, 20), 12, at(11, 10), []time.Time{at(12, 1), at(13, 30)}, true},
	} {
		for _, copied := range c.copied {
			t.Run(c.name+" "+copied.Format("2 15:04"), func(t *testing.T) {
				m := newMoving(t)
				m.rhq(c.until, c.aggregated)
				done := false
				m.pass(copied, c.away, func(now time.Time) {
					if now.Minute()%10 == 0 && !now.Before(c.since) && now.Before(at(14, 0)) {
						m.report(now)
					}
					if !now.Before(copied) && !done {
						done = true
						m.copy()
					}
				})
				require.True(t, done)
				m.check()
			})
		}
	}
}

// TestMoreOfRHQ: RHQ runs on after a first migration, whose marks are ground. The next one copies the rest of an hour.
func TestMoreOfRHQ(t *testing.T) {
	m := newMoving(t)
	m.rhq(at(10, 5), 10)
	m.pass(at(10, 40), false, func(time.Time) {})
	m.copy()
	m.pass(at(11, 30), false, func(time.Time) {})
	m.from = newMemory()
	m.rhq(at(10, 20), 11)
	m.copy()
	m.check()
}

// TestGroundAlready: a repeated migration does not mark what has been ground from all that it copies.
func TestGroundAlready(t *testing.T) {
	m := newMoving(t)
	m.rhq(at(10, 20), 9)
	m.pass(at(10, 40), false, func(time.Time) {})
	m.copy()
	m.pass(at(11, 30), false, func(time.Time) {})
	report, err := m.world.migrate(t, m.from)
	require.NoError(t, err)
	_, marks := m.world.dump(t)
	require.Empty(t, slices.DeleteFunc(marks, func(s string) bool { return s[:8] != "late raw" }), "%+v", report)
}
