package promquery

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/storage"
)

// young is a store whose raw samples are all kept, and whose rows are not all to be relied on.
type young struct {
	*world
	engine  *Engine
	raw     *promql.Engine // unmodified: over the same store it reads samples only
	samples map[metric.ScheduleID][]metric.Sample
	fromMs  int64
}

var (
	stale = math.Float64frombits(0x7ff0000000000002)
	// spoiledMs and damagedMs lie in rows that are partial, with wrong values, or damaged.
	spoiledMs, damagedMs = midnight - 20*hour, midnight - 43*hour
	lateMs               = midnight - 30*hour
)

// spoiled is a store whose rows of series 1 to 3 that contain spoiledMs or damagedMs cannot be relied on, and say so. Of series 2
// some rows are like those of RHQ, whose samples nobody has: they seem to begin with one.
type spoiled struct{ storage.Store }

func (s spoiled) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return func(yield func(metric.RollupRow, error) bool) {
		for row, err := range s.Store.Rollups(ctx, level, ids, fromMs, toMs) {
			slice := s.Settings().Ladder.SliceAt(level-1, row.TimeMs)
			if 1 <= row.Schedule && row.Schedule <= 3 {
				if row.Damaged = slice.Contains(damagedMs); row.Damaged {
					row.Rollup = metric.Rollup{}
				}
				if slice.Contains(spoiledMs) {
					row.Rollup = metric.Rollup{Count: 7, Sum: 1, Min: -1e9, Max: 1e9, FirstMs: row.TimeMs, LastMs: row.TimeMs, Partial: true}
				}
			}
			if row.Schedule == 2 && level == 1 && row.Count > 0 && row.TimeMs/hour%7 == 0 {
				row.Rollup = metric.Rollup{Count: 1, Sum: 9, Min: 9, Max: 9, First: 9, Last: 9, FirstMs: row.TimeMs, LastMs: row.TimeMs, NonFinite: true}
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// kinds of series: what the samples of an hour are, by the minute.
var kinds = []func(rng *rand.Rand, at func(ms int64, v float64)){
	func(rng *rand.Rand, at func(int64, float64)) { // on the edges
		for m := range int64(12) {
			at(5*m*minute, rng.NormFloat64()*100)
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // off the edges
		for m := range int64(12) {
			at(5*m*minute+1+rng.Int64N(4*minute), 20+rng.Float64())
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // with gaps, a millisecond around the edges
		if rng.IntN(3) > 0 {
			at(rng.Int64N(2), float64(rng.IntN(5)))
			at(hour-1, float64(rng.IntN(5)))
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // not finite, at times for a whole hour
		often := []int{2, 40, 1}[rng.IntN(3)] // 2 is at most one finite sample, at the edge
		for m := range int64(12) {
			v := rng.Float64()
			if rng.IntN(often) == 0 || often == 2 && m > 0 {
				v = []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[rng.IntN(3)]
			}
			at(5*m*minute, v)
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // stale markers and tombstones
		for m := range int64(6) {
			at(10*m*minute, []float64{1, 2.5, stale, metric.Tombstone()}[rng.IntN(4)])
		}
	},
	func(_ *rand.Rand, at func(int64, float64)) { // constant
		for m := range int64(12) {
			at(5*m*minute, 0.1)
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // small integers
		for m := range int64(12) {
			at(5*m*minute, float64(rng.IntN(3)-1))
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // an outlier at the edge
		for m := range int64(12) {
			outlier := 0.0
			if m == 0 && rng.IntN(2) == 0 {
				outlier = 1e15
			}
			at(5*m*minute, outlier+rng.Float64())
		}
	},
	func(rng *rand.Rand, at func(int64, float64)) { // seldom, on the edge
		if rng.IntN(3) == 0 {
			at(0, rng.Float64())
		}
	},
}

// newYoung makes a store of three days. The last hours have not been ground, and a late sample waits.
func newYoung(t *testing.T, kind string, rng *rand.Rand) *young {
	w := newWorld(t, kind, retention, now)
	y := &young{world: w, samples: make(map[metric.ScheduleID][]metric.Sample), fromMs: midnight - 3*day}
	names := []string{"level", "up_total", "seen_count"}
	for id := range metric.ScheduleID(2*len(kinds) + 2) {
		require.Equal(t, id, w.ID(querytest.Named(names[int(id)%3], metric.Label{Name: "i", Value: fmt.Sprint(id)})))
		grown := rng.Float64() * 100
		for h := y.fromMs; h < now; h += hour {
			at := func(ms int64, v float64) {
				if h+ms < now {
					y.samples[id] = append(y.samples[id], metric.Sample{Schedule: id, TimeMs: h + ms, Value: v})
				}
			}
			switch id {
			case 0, 1: // counters with resets
				for m := range int64(12) {
					grown += rng.Float64() * 10
					if rng.IntN(50) == 0 {
						grown = rng.Float64()
					}
					at(5*m*minute+int64(id)*rng.Int64N(minute), grown)
				}
			case 19: // the sum overflows
				for m := range int64(6) {
					at(10*m*minute+rng.Int64N(2), 0.5e308+0.5e308*float64(rng.IntN(2)))
				}
			default:
				kinds[int(id)%len(kinds)](rng, at)
			}
		}
	}
	openMs := metric.AlignDown(now, hour) - rng.Int64N(9)*hour
	for _, all := range y.samples {
		w.Put(all...)
	}
	for _, level := range w.Querier.Ladder().Levels() {
		w.Grind(level, y.fromMs, metric.AlignDown(openMs, w.Querier.Ladder().WidthMs(level)), y.samples)
	}

	// A late sample, of which the rows do not know.
	more := metric.Sample{Schedule: 1, TimeMs: lateMs + 1, Value: 1e6}
	current := storage.SliceKey{StartMs: metric.AlignDown(now, hour)}
	batch := w.Flush(&storage.Batch{}, []metric.Sample{more})
	batch.Open = []storage.SliceKey{current}
	batch.Marks = []storage.PlacedMark{{
		Partition: storage.IndexPartition{SliceKey: current},
		Mark:      storage.Mark{TimeMs: lateMs, ID: w.Chunks.Next(now), Kind: storage.MarkLate},
	}}
	require.NoError(t, w.Store.Write(t.Context(), batch))
	y.samples[1] = append(y.samples[1], more)
	slices.SortFunc(y.samples[1], metric.CompareSamples)

	clk := clock.NewSimulated(time.UnixMilli(now))
	tracker := late.New(w.Store, clk, late.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
		return []storage.SliceKey{current}, nil
	}})
	reader := query.New(query.Parts{
		Store: spoiled{w.Store}, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clk,
	}, query.Options{Late: tracker})
	y.engine, y.queryable = New(reader, Options{})
	y.raw = promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true,
		NoStepSubqueryIntervalFn: func(int64) int64 { return minute },
	})
	return y
}

func ranged(t *testing.T, e promql.QueryEngine, q *Queryable, expr string, startMs, endMs, stepMs int64) *promql.Result {
	t.Helper()
	asked, err := e.NewRangeQuery(t.Context(), q, nil, expr, time.UnixMilli(startMs), time.UnixMilli(endMs), time.Duration(stepMs)*time.Millisecond)
	require.NoError(t, err, expr)
	t.Cleanup(asked.Close)
	r := asked.Exec(t.Context())
	require.NoError(t, r.Err, expr)
	return r
}

// tolerance returns how far a value of a series may be from the right one, with the samples of its window.
func tolerance(function string, want float64, rangeMs int64, in []metric.Sample) float64 {
	sum := 0.0
	for _, s := range in {
		sum += math.Abs(s.Value)
	}
	switch function {
	case "quantile_over_time":
		return 0.0101 * math.Abs(want)
	case "sum_over_time", "avg_over_time":
		return 1e-12 * math.Abs(want)
	case "increase":
		return 1e-12 * max(math.Abs(want), sum/float64(len(in)))
	case "rate":
		return 1e-12 * max(math.Abs(want), sum/float64(len(in))/float64(rangeMs/second))
	}
	return 0
}

// TestYoungWindows compares windows over young data, which rows may answer, with those of the unmodified engine over raw samples.
func TestYoungWindows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	var y *young
	for n := range 600 {
		if n%200 == 0 {
			y = newYoung(t, []string{"model", "pebble"}[n/200%2], rng)
		}
		function := fromRows[rng.IntN(len(fromRows))]
		pick := func(all ...int64) int64 { return all[rng.IntN(len(all))] }
		rangeMs, stepMs := pick(hour, 2*hour, 6*hour, day, 90*minute), pick(hour, hour, 2*hour, 6*hour, day, 45*minute)
		offsetMs := pick(0, 0, 0, hour, 6*hour, -hour, 7*minute)
		start := y.fromMs + rng.Int64N(2*24)*hour
		if rng.IntN(2) == 0 {
			start = metric.AlignDown(start, day)
		}
		end := min(now, start+rng.Int64N(20)*stepMs)
		rank := float64(rng.IntN(5)) / 4
		args := ""
		if function == "quantile_over_time" {
			args = fmt.Sprintf("%v, ", rank)
		}
		selector := []string{`{i=~".+"}`, `up_total`, `level{i="3"}`, `none`}[rng.IntN(4)]
		if function == "absent_over_time" {
			selector = fmt.Sprintf(`{i="%d"}`, rng.IntN(20))
		}
		expr := fmt.Sprintf("%s(%s%s[%ds] offset %ds)", function, args, selector, rangeMs/second, offsetMs/second)
		want, got := ranged(t, y.raw, y.queryable, expr, start, end, stepMs), ranged(t, y.engine, y.queryable, expr, start, end, stepMs)
		where := fmt.Sprintf("case %d: %s from %d by %d", n, expr, (start-midnight)/hour, stepMs/minute)
		require.Equal(t, want.Warnings, got.Warnings, where)
		wanted, have := want.Value.(promql.Matrix), got.Value.(promql.Matrix)
		require.Len(t, have, len(wanted), where)
		for i, s := range wanted {
			require.Equal(t, s.Metric.String(), have[i].Metric.String(), where)
			require.Len(t, have[i].Floats, len(s.Floats), "%s: %s", where, s.Metric)
			for j, p := range s.Floats {
				at, v := p.T-offsetMs, have[i].Floats[j]
				require.Equal(t, p.T, v.T, where)
				if math.Float64bits(p.F) == math.Float64bits(v.F) || math.IsNaN(p.F) && math.IsNaN(v.F) || p.F == v.F {
					continue
				}
				var in []metric.Sample
				for id, all := range y.samples {
					if s.Metric.Get("i") == fmt.Sprint(id) {
						for _, x := range all {
							if at-rangeMs < x.TimeMs && x.TimeMs <= at && !metric.IsMarker(x.Value) {
								in = append(in, x)
							}
						}
					}
				}
				require.NotEmpty(t, in, where)
				require.InDelta(t, p.F, v.F, tolerance(function, p.F, rangeMs, in), "%s: %s at %dh", where, s.Metric, (at-midnight)/hour)
			}
		}
	}
	require.Greater(t, y.Store.RollupReads.Load(), int64(100))
}

// TestYoungExpressions compares expressions around such windows.
func TestYoungExpressions(t *testing.T) {
	y := newYoung(t, "model", rand.New(rand.NewPCG(3, 4)))
	start, end := midnight-2*day, midnight+12*hour
	for _, expr := range []string{
		`sum by (__name__) (count_over_time({i=~".+"}[1h]))`, `max_over_time(count_over_time(up_total[1h])[6h:1h])`,
		`max_over_time(count_over_time(up_total[1h])[6h:7m])`, `last_over_time(level[1h] @ end())`, `count_over_time(level[6h] @ 1763683200)`,
		`count_over_time(up_total[1h]) + on (i) count_over_time(up_total[2h])`, `absent(max_over_time(level{i="3"}[1h]))`,
		`sum(present_over_time({i=~"1?."}[2h]))`, `topk(2, max_over_time({i=~"5|6"}[6h]))`,
	} {
		t.Run(expr, func(t *testing.T) {
			for _, stepMs := range []int64{hour, 6 * hour} {
				want, got := ranged(t, y.raw, y.queryable, expr, start, end, stepMs), ranged(t, y.engine, y.queryable, expr, start, end, stepMs)
				require.Equal(t, want.String(), got.String())
			}
		})
	}
}

// TestYoungReads: where rows prove all windows, no samples are read; where they prove none of a series, those of others are not.
func TestYoungReads(t *testing.T) {
	y := newYoung(t, "model", rand.New(rand.NewPCG(5, 6)))
	raw := 0
	y.Store.OnRaw = func() { raw++ }
	// Series 10 is off the edges; series 12 has values that are not finite.
	for expr, reads := range map[string]bool{
		`avg_over_time({i="10"}[1h])`: false, `rate({i="10"}[2h])`: false, `min_over_time({i="5"}[6h])`: false,
		`quantile_over_time(0.9, {i="10"}[1h])`: false, `rate({i="5"}[1h])`: true, `avg_over_time({i="12"}[1h])`: true,
		`deriv({i="10"}[1h])`: true, `avg_over_time({i="10"}[50m])`: true,
	} {
		raw = 0
		ranged(t, y.engine, y.queryable, expr, midnight-2*day, midnight, hour)
		require.Equal(t, reads, raw > 0, expr)
	}
	require.Equal(t, []string{`{i="10"}[6h]: 6h [-48h, 0h) 1 1h [0h, 1h) 1`},
		levelsOf(t, y.engine, y.queryable, `max_over_time({i="10"}[6h])`, midnight-42*hour, midnight, 6*hour))

	// Where it is not known what is late, raw samples are as right, and nobody is warned.
	away := late.New(y.Store, clock.NewSimulated(time.UnixMilli(now)), late.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
		return nil, storage.ErrUnavailable
	}})
	engine, queryable := New(query.New(query.Parts{
		Store: y.Store, Index: y.Index, Settings: y.Store.Settings(), WholeFrom: y.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
	}, query.Options{Late: away}), Options{})
	raw = 0
	require.Empty(t, ranged(t, engine, queryable, `avg_over_time({i="10"}[1h])`, midnight-2*day, midnight, hour).Warnings)
	require.Positive(t, raw)

	// The end of a query comes through.
	ctx, cancel := context.WithCancel(t.Context())
	y.Store.OnRollups = cancel
	asked, err := y.engine.NewRangeQuery(ctx, y.queryable, nil, `avg_over_time({i=~".+"}[1h])`, time.UnixMilli(midnight-day), time.UnixMilli(midnight), time.Hour)
	require.NoError(t, err)
	defer asked.Close()
	require.ErrorContains(t, asked.Exec(ctx).Err, "canceled")
}

// lostRows is a store whose rows are out of reach.
type lostRows struct{ storage.Store }

func (lostRows) Rollups(context.Context, metric.Bucket, blocks.Range, int64, int64) iter.Seq2[metric.RollupRow, error] {
	return func(yield func(metric.RollupRow, error) bool) { yield(metric.RollupRow{}, storage.ErrUnavailable) }
}

// TestYoungWithoutRows: rows that are out of reach, or too many for the query, are done without.
func TestYoungWithoutRows(t *testing.T) {
	y := newYoung(t, "model", rand.New(rand.NewPCG(7, 8)))
	on := func(st storage.Store, most int) (promql.QueryEngine, *Queryable) {
		return New(query.New(query.Parts{
			Store: st, Index: y.Index, Settings: y.Store.Settings(), WholeFrom: y.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
		}, query.Options{}), Options{MaxSamples: most})
	}
	const expr = `avg_over_time({i=~".+"}[6h])`
	engine, queryable := on(lostRows{y.Store}, 0)
	got := ranged(t, engine, queryable, expr, midnight-2*day, midnight, 6*hour)
	require.Equal(t, ranged(t, y.raw, y.queryable, expr, midnight-2*day, midnight, 6*hour).String(), got.String())

	// Series 8 has a sample in every third hour. Series 1 has hours that have not been ground.
	fits := func(expr string, most int) bool {
		engine, queryable := on(y.Store, most)
		asked, err := engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(midnight-2*day), time.UnixMilli(midnight), time.Hour)
		require.NoError(t, err)
		defer asked.Close()
		return asked.Exec(t.Context()).Err == nil
	}
	for selector, room := range map[string]int{`{i="8"}`: 1, `{i="1"}`: 1, `{i=~".+"}`: 2} {
		most := 1
		for ; !fits(fmt.Sprintf(`stddev_over_time(%s[1h])`, selector), most); most += 1 + most/20 {
			require.Less(t, most, 100_000)
		}
		require.Greater(t, most, 10)
		require.True(t, fits(fmt.Sprintf(`max_over_time(%s[1h])`, selector), room*most), selector)
	}
}

// TestYoungFailedBlock: a slice that is complete without a block that failed is read from samples, until it is known that the
// block's mark is in another slice.
func TestYoungFailedBlock(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	id := w.ID(querytest.Named("m"))
	w.Put(metric.Sample{Schedule: id, TimeMs: midnight + minute, Value: 1})
	outstanding := []storage.SliceKey{{StartMs: midnight}}
	tracker := late.New(w.Store, clock.NewSimulated(time.UnixMilli(now)), late.Options{
		Shared: true, Outstanding: func(context.Context) (now []storage.SliceKey, _ error) {
			now, outstanding = outstanding, nil // it is completed while the index is read
			return now, nil
		},
	})
	_, err := tracker.View(t.Context())
	require.NoError(t, err)
	w.Grind(1, midnight, midnight+hour, nil)
	engine, queryable := New(query.New(query.Parts{
		Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
	}, query.Options{Late: tracker}), Options{})
	got := ranged(t, engine, queryable, `count_over_time(m[1h])`, midnight, midnight+5*hour, hour)
	require.Equal(t, fmt.Sprintf("{} =>\n1 @[%d]", midnight+hour), got.String())
}

// TestYoungNearZero: what lies between values of both signs is computed from samples.
func TestYoungNearZero(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	all := make(map[metric.ScheduleID][]metric.Sample)
	for name, values := range map[string][]float64{"pairs": {-10.3, -10, 10.1, 10.4}, "cancel": {0.1, 1e15, -1e15}} {
		id := w.ID(querytest.Named(name))
		for i, v := range values {
			all[id] = append(all[id], metric.Sample{Schedule: id, TimeMs: midnight + int64(i+1)*minute, Value: v})
		}
		w.Put(all[id]...)
	}
	w.Grind(1, midnight, midnight+hour, all)
	engine, queryable := New(w.Querier, Options{})
	for expr, want := range map[string]float64{
		`quantile_over_time(0.5, pairs[1h])`: 0.05, `sum_over_time(cancel[1h])`: 0.1, `avg_over_time(cancel[1h])`: 0.1 / 3,
	} {
		got := ranged(t, engine, queryable, expr, midnight+hour, midnight+2*hour, hour).Value.(promql.Matrix)
		require.InEpsilon(t, want, got[0].Floats[0].F, 1e-12, expr)
	}
}
