package promquery

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var seed = flag.Uint64("seed", 0, "seed of the random series; 0 takes another each time")

var (
	midnight = time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	// now is a little into the third hour of a six-hour slice.
	now = midnight + 14*hour + 20*minute
)

// old keeps raw samples for a day and a half.
var old = storage.Retention{36 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

// pair holds the same samples twice: rolled has raw samples of the last day and a half, and
// roll-ups of all hours that have been ground; raw has all raw samples.
type pair struct {
	rolled, raw *world
	samples     map[metric.ScheduleID][]metric.Sample
	engine      *Engine
}

// newPair makes a pair. Hours from openMs on, and rows that contain them, have not been ground.
func newPair(t *testing.T, kind string, openMs int64, series map[metric.ScheduleID]metric.Labels, samples map[metric.ScheduleID][]metric.Sample) *pair {
	return newPairKept(t, kind, old, openMs, series, samples)
}

// newPairKept is newPair with another retention of rolled.
func newPairKept(
	t *testing.T, kind string, keep storage.Retention, openMs int64,
	series map[metric.ScheduleID]metric.Labels, samples map[metric.ScheduleID][]metric.Sample,
) *pair {
	p := &pair{
		rolled: newWorld(t, kind, keep, now), raw: newWorld(t, kind, storage.Retention{}, now), samples: samples,
	}
	p.engine, _ = New(p.rolled.Querier, Options{})
	for _, w := range []*world{p.rolled, p.raw} {
		first := int64(math.MaxInt64)
		for id := range metric.ScheduleID(len(series)) {
			require.Equal(t, id, w.ID(series[id]))
			w.Put(samples[id]...)
			first = min(first, samples[id][0].TimeMs)
		}
		if w == p.rolled {
			for _, level := range w.Querier.Ladder().Levels() {
				width := w.Querier.Ladder().WidthMs(level)
				w.Grind(level, metric.AlignDown(first, day), metric.AlignDown(openMs, width), samples)
			}
		}
	}
	return p
}

func (p *pair) query(t *testing.T, w *world, expr string, startMs, endMs, stepMs int64) *promql.Result {
	t.Helper()
	q, err := p.engine.NewRangeQuery(t.Context(), w.queryable, nil, expr,
		time.UnixMilli(startMs), time.UnixMilli(endMs), time.Duration(stepMs)*time.Millisecond)
	require.NoError(t, err, expr)
	defer q.Close()
	r := q.Exec(t.Context())
	if m, ok := r.Value.(promql.Matrix); ok {
		// Close reclaims the points.
		points := make(promql.Matrix, len(m))
		for i, s := range m {
			points[i] = promql.Series{Metric: s.Metric, Floats: slices.Clone(s.Floats)}
		}
		r.Value = points
	}
	return r
}

// walks returns random series without gaps of an hour and without samples at a full minute. Some
// are counters that are reset now and then, some are gauges with both signs.
func walks(rng *rand.Rand, fromMs int64) (series map[metric.ScheduleID]metric.Labels, samples map[metric.ScheduleID][]metric.Sample) {
	series = make(map[metric.ScheduleID]metric.Labels)
	samples = make(map[metric.ScheduleID][]metric.Sample)
	for id := range metric.ScheduleID(20) {
		name := []string{"up_total", "level"}[id%2]
		series[id] = querytest.Named(name, metric.Label{Name: "i", Value: fmt.Sprint(id)})
		v := rng.NormFloat64() * 100
		for t := fromMs + rng.Int64N(hour)/second*second + 1; t < now; t += (1 + rng.Int64N(40)) * minute / 2 {
			switch {
			case id%2 == 1:
				v += rng.NormFloat64() * 20
			case rng.IntN(40) == 0:
				v = rng.Float64() * 5
			default:
				v = math.Abs(v) + rng.Float64()*10
			}
			samples[id] = append(samples[id], metric.Sample{Schedule: id, TimeMs: t, Value: v})
		}
	}
	return series, samples
}

// TestRollupsAreAsRaw compares values computed from rows of all levels, and from the samples after
// them, with values computed from raw samples, for windows that align with rows.
func TestRollupsAreAsRaw(t *testing.T) {
	for kind := range querytest.Stores {
		t.Run(kind, func(t *testing.T) {
			rng := seeded(t)
			series, samples := walks(rng, midnight-9*day)
			open := metric.AlignDown(now, hour) - rng.Int64N(9)*hour
			p := newPair(t, kind, open, series, samples)
			for _, stepMs := range []int64{hour, 6 * hour, day} {
				for _, rangeMs := range []int64{stepMs, 2 * stepMs, 7 * stepMs} {
					start := midnight - 8*day
					for _, f := range []string{
						"min_over_time", "max_over_time", "sum_over_time", "count_over_time", "avg_over_time",
						"last_over_time", "first_over_time", "present_over_time", "absent_over_time",
					} {
						expr := fmt.Sprintf(`%s({__name__=~"up_total|level"}[%ds])`, f, rangeMs/second)
						got, want := p.query(t, p.rolled, expr, start, now, stepMs), p.query(t, p.raw, expr, start, now, stepMs)
						require.NoError(t, want.Err)
						requireSame(t, expr, want, got, 1e-9)
						requireInfo(t, got, "roll-ups are read")
						require.Empty(t, want.Warnings)
					}
					for _, rank := range []float64{0, 0.3, 0.5, 0.99, 1, -1, 2, math.NaN()} {
						p.checkQuantile(t, rank, start, stepMs, rangeMs)
					}
				}
			}
			require.NotZero(t, p.rolled.Store.RollupReads.Load())
		})
	}
}

// TestRowsEnds has samples exactly where rows begin. It checks windows of rows, of samples between
// and after rows, and of both.
func TestRowsEnds(t *testing.T) {
	series := map[metric.ScheduleID]metric.Labels{0: querytest.Named("x")}
	all := []metric.Sample{}
	for at := midnight - 9*day; at < now; at += hour {
		all = append(all, metric.Sample{TimeMs: at, Value: float64(len(all)*len(all)%1009) + 1})
	}
	samples := map[metric.ScheduleID][]metric.Sample{0: all}
	open := midnight + 9*hour
	p := newPair(t, "model", open, series, samples)
	start := midnight - 8*day
	checkWindows := func() {
		for _, stepMs := range []int64{hour, 6 * hour, day} {
			for _, rangeMs := range []int64{stepMs, 2 * stepMs, 7 * stepMs} {
				for f, compute := range map[string]func(in []metric.Sample, before metric.Sample) float64{
					"count_over_time": func(in []metric.Sample, _ metric.Sample) float64 { return float64(len(in)) },
					"first_over_time": func(in []metric.Sample, _ metric.Sample) float64 { return in[0].Value },
					"last_over_time":  func(in []metric.Sample, _ metric.Sample) float64 { return in[len(in)-1].Value },
					"increase": func(in []metric.Sample, before metric.Sample) (sum float64) {
						for _, s := range in {
							sum += querytest.StepTo(before.Value, s.Value)
							before = s
						}
						return sum
					},
				} {
					expr := fmt.Sprintf(`%s(x[%ds])`, f, rangeMs/second)
					r := p.query(t, p.rolled, expr, start, now, stepMs)
					require.NoError(t, r.Err)
					points := r.Value.(promql.Matrix)[0].Floats
					require.Len(t, points, int((now-start)/stepMs)+1)
					for _, point := range points {
						at := func(tMs int64) int64 { return (tMs - all[0].TimeMs) / hour } // the sample at tMs
						from := at(point.T - rangeMs)
						want := compute(all[max(from, 0):at(point.T)], all[max(from-1, 0)])
						require.InEpsilon(t, want, point.F, 1e-9, "%s at %s", expr, time.UnixMilli(point.T).UTC())
					}
				}
			}
		}
	}
	checkWindows()

	// Without a function, a row counts at its last millisecond, and a sample at its time.
	for expr, want := range map[string]func(tMs int64) float64{
		`timestamp(x)`: func(tMs int64) float64 {
			if tMs < open {
				tMs--
			}
			return float64(tMs) / 1000
		},
		`x`: func(tMs int64) float64 {
			i := (tMs - all[0].TimeMs) / hour
			if tMs < open {
				i--
			}
			return all[i].Value
		},
	} {
		r := p.query(t, p.rolled, expr, start, now, hour)
		require.NoError(t, r.Err)
		points := r.Value.(promql.Matrix)[0].Floats
		require.Len(t, points, int((now-start)/hour)+1)
		for _, point := range points {
			require.Equal(t, want(point.T), point.F, "%s at %s", expr, time.UnixMilli(point.T).UTC())
		}
	}
	// A range of samples includes the sample at its end.
	for _, atMs := range []int64{open - hour, open, open + hour} {
		q, err := p.engine.NewInstantQuery(t.Context(), p.rolled.queryable, nil, `x[2d]`, time.UnixMilli(atMs))
		require.NoError(t, err)
		points := q.Exec(t.Context()).Value.(promql.Matrix)[0].Floats
		require.Equal(t, atMs, points[len(points)-1].T)
		q.Close()
	}

	// An hour that must be ground again is read from samples, as are the rows that contain it.
	p.rolled.Put(all[len(all)-20])
	checkWindows()
}

// samplesOf returns the samples of a series in a result.
func (p *pair) samplesOf(t *testing.T, ls labels.Labels) []metric.Sample {
	t.Helper()
	var id metric.ScheduleID
	_, err := fmt.Sscan(ls.Get("i"), &id)
	require.NoError(t, err)
	return p.samples[id]
}

func (p *pair) checkQuantile(t *testing.T, rank float64, start, stepMs, rangeMs int64) {
	t.Helper()
	expr := fmt.Sprintf(`quantile_over_time(%v, level[%ds])`, rank, rangeMs/second)
	got, want := p.query(t, p.rolled, expr, start, now, stepMs), p.query(t, p.raw, expr, start, now, stepMs)
	require.NoError(t, want.Err)
	require.NoError(t, got.Err)
	for name, w := range want.Warnings {
		require.Contains(t, got.Warnings, name, w)
	}
	require.Len(t, got.Value, 10)
	for i, s := range want.Value.(promql.Matrix) {
		have := got.Value.(promql.Matrix)[i]
		require.Equal(t, s.Metric, have.Metric)
		require.Len(t, have.Floats, len(s.Floats))
		for j, point := range s.Floats {
			require.Equal(t, point.T, have.Floats[j].T)
			if math.IsNaN(point.F) || math.IsInf(point.F, 0) {
				require.Equal(t, math.Float64bits(point.F), math.Float64bits(have.Floats[j].F))
				continue
			}
			// Either neighbour of the rank may deviate by the sketch's accuracy.
			var in []float64
			for _, x := range p.samplesOf(t, s.Metric) {
				if point.T-rangeMs < x.TimeMs && x.TimeMs <= point.T {
					in = append(in, x.Value)
				}
			}
			slices.Sort(in)
			at := rank * float64(len(in)-1)
			off := 0.0101 * max(math.Abs(in[int(math.Floor(at))]), math.Abs(in[int(math.Ceil(at))]))
			require.InDelta(t, point.F, have.Floats[j].F, off, "%s of %s at %d", expr, s.Metric, point.T)
		}
	}
}

func requireSame(t *testing.T, expr string, want, got *promql.Result, epsilon float64) {
	t.Helper()
	require.Equal(t, want.Err, got.Err, expr)
	if want.Err != nil {
		return
	}
	require.Len(t, got.Value, len(want.Value.(promql.Matrix)), expr)
	for i, s := range want.Value.(promql.Matrix) {
		have := got.Value.(promql.Matrix)[i]
		require.Equal(t, s.Metric.String(), have.Metric.String(), expr)
		require.Len(t, have.Floats, len(s.Floats), "%s of %s", expr, s.Metric)
		for j, point := range s.Floats {
			require.Equal(t, point.T, have.Floats[j].T, "%s of %s", expr, s.Metric)
			require.InDelta(t, point.F, have.Floats[j].F, epsilon*max(1, math.Abs(point.F)), "%s of %s at %d", expr, s.Metric, point.T)
		}
	}
}

func requireInfo(t *testing.T, r *promql.Result, text string) {
	t.Helper()
	for name, err := range r.Warnings {
		if errors.Is(err, annotations.PromQLInfo) {
			require.Contains(t, name, text)
			return
		}
	}
	require.Fail(t, "no info", "%v", r.Warnings)
}

// steady returns series that do not change. Every evaluation time gives the same values, so only
// labels and the set of series can differ.
func steady(fromMs int64) (series map[metric.ScheduleID]metric.Labels, samples map[metric.ScheduleID][]metric.Sample) {
	series = make(map[metric.ScheduleID]metric.Labels)
	samples = make(map[metric.ScheduleID][]metric.Sample)
	for id := range metric.ScheduleID(6) {
		series[id] = querytest.Named([]string{"x", "y"}[id%2], metric.Label{Name: "job", Value: fmt.Sprint(id / 2)})
		for t := fromMs + 1; t < now; t += 4 * minute {
			samples[id] = append(samples[id], metric.Sample{Schedule: id, TimeMs: t, Value: float64(id) + 1})
		}
	}
	return series, samples
}

// TestExpressions compares all kinds of expressions over roll-ups with the same expressions over
// raw samples.
func TestExpressions(t *testing.T) {
	series, samples := steady(midnight - 20*day)
	p := newPair(t, "model", metric.AlignDown(now, hour), series, samples)
	for _, expr := range []string{
		`x`, `x{job="1"}`, `{__name__=~"x|y"}`, `-x`, `x offset 3d`, `x offset -1h`, `x @ start()`, `x @ end() offset 4d`,
		`sum by (job) (x)`, `topk(1, x)`, `count_values("v", x)`, `quantile(0.5, {__name__=~"x|y"})`,
		`x + on (job) group_left y`, `x > bool 2`, `x > 2`, `x and y`, `x or y`, `x unless on (job) y{job="1"}`,
		`absent(x)`, `absent(x{job="7"})`, `absent(z{a="b",c=~"d"})`,
		`absent_over_time(x{job="1"}[1h])`, `absent_over_time(z{a="b"}[1h])`,
		`label_replace(x, "to", "$1", "job", "(.*)")`, `abs(x)`, `clamp_max(x, 2)`, `scalar(x{job="1"})`, `vector(3) + x`,
		`rate(x[1h])`, `rate({__name__=~"x|y"}[1h])`, `increase(x[2h] offset 1d)`, `irate(x[1h])`, `delta(x[1h])`, `idelta(x[2h])`,
		`deriv(x[1h])`, `predict_linear(x[3h], 3600)`, `changes(x[6h])`, `resets(x[6h])`, `stddev_over_time(x[6h])`, `stdvar_over_time(x[1h])`,
		`min_over_time(x[1h])`, `avg_over_time(x[1h] @ start())`, `last_over_time(x[1h])`, `present_over_time(x[5m])`,
		`quantile_over_time(1 - 0.5, x[1h])`, `max_over_time((5 * x)[1h:10m])`,
		`max_over_time(avg_over_time(x[1h])[6h:1h])`, `sum_over_time(x[1d:1h] offset 1h)`, `avg_over_time((x @ start())[6h:2h])`,
		`max_over_time(x[30m * 2])`, `x offset (1d * 3)`, `rate(x[step()])`, `sum_over_time(x[1d:30m + 30m])`,
		`max_over_time(max_over_time(rate(x[1h])[6h:1h])[1d:6h] @ start())`, `min_over_time(sum(x)[6h:])`,
		`histogram_quantile(0.5, x)`, `sort_desc(x)`, `time() > bool x`, `day_of_month(x)`,
	} {
		t.Run(expr, func(t *testing.T) {
			for _, stepMs := range []int64{hour, 12 * hour} {
				before := p.rolled.Store.RollupReads.Load()
				start, end := midnight-5*day, now
				if strings.Contains(expr, "offset -1h") {
					end -= 2 * hour // an instant selector looks back by a row's width, past the last sample
				}
				want, got := p.query(t, p.raw, expr, start, end, stepMs), p.query(t, p.rolled, expr, start, end, stepMs)
				// For a constant series, deriv yields only rounding errors.
				requireSame(t, expr, want, got, 2e-2)
				if want.Err == nil && got.Value.(promql.Matrix).TotalSamples() > 0 && !strings.HasPrefix(expr, "absent") {
					require.Greater(t, p.rolled.Store.RollupReads.Load(), before, "no roll-ups were read")
				}
			}
		})
	}
}

// bursts returns random series that have samples now and then, and no rows in between.
func bursts(rng *rand.Rand, fromMs, toMs int64, firstID metric.ScheduleID, series map[metric.ScheduleID]metric.Labels, samples map[metric.ScheduleID][]metric.Sample) {
	for id := firstID; id < firstID+10; id++ {
		series[id] = querytest.Named("burst", metric.Label{Name: "i", Value: fmt.Sprint(id)})
		for t := fromMs + 1; t < toMs; t += rng.Int64N(10*hour) / second * second {
			for end := min(t+rng.Int64N(2*hour), toMs); t < end; t += (1 + rng.Int64N(300)) * second {
				samples[id] = append(samples[id], metric.Sample{Schedule: id, TimeMs: t, Value: rng.NormFloat64() * 100})
			}
		}
		// The newest ones are of the open hour.
		if last := toMs/second*second + 1; samples[id][len(samples[id])-1].TimeMs < last {
			samples[id] = append(samples[id], metric.Sample{Schedule: id, TimeMs: last, Value: 1})
		}
	}
}

// seeded returns random numbers, and logs how to get them again.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("repeat with -seed %d", from)
	return rand.New(rand.NewPCG(from, 0))
}

// TestWindowsAnywhere compares windows that begin within rows, end in the future, or lie among samples with the samples
// themselves, whatever has been ground and expired: a sample counts once, a row that the range begins in counts in
// proportion, and a window without such a row is exact.
func TestWindowsAnywhere(t *testing.T) {
	rng := seeded(t)
	const future = 10 * minute
	for _, raw := range []int64{0, 1, 3, 36} { // hours before the open one
		for range 2 {
			series, samples := walks(rng, midnight-9*day)
			for _, id := range slices.Sorted(maps.Keys(samples)) { // up to the limit
				samples[id] = append(samples[id], metric.Sample{Schedule: id, TimeMs: now + rng.Int64N(future)/second*second + 1, Value: 1e6})
			}
			bursts(rng, midnight-9*day, now+rng.Int64N(future), metric.ScheduleID(len(series)), series, samples)
			open := metric.AlignDown(now, hour) - rng.Int64N(raw+1)*hour
			keep := slices.Clone(old)
			keep[0] = time.Duration(now-metric.AlignDown(now, hour)+raw*hour) * time.Millisecond
			p := newPairKept(t, "model", keep, open, series, samples)
			exact, inPart := 0, 0
			for range 25 {
				w := windows{ladder: p.rolled.Querier.Ladder(), open: open, raw: metric.AlignDown(now, hour) - raw*hour, rangeMs: raw*hour + (1+rng.Int64N(10*60*60))*second}
				end := now - rng.Int64N(2*hour)/second*second
				switch rng.IntN(3) {
				case 0:
					end = now + rng.Int64N(2*future)/second*second
				case 1:
					w.rangeMs += rng.Int64N(5*day/second) * second
				}
				start, step := end, second
				if rng.IntN(2) == 0 {
					step = (1 + rng.Int64N(3*60*60)) * second
					start = end - rng.Int64N(30)*step
				}
				w.last = start + (end-start)/step*step
				for _, f := range []string{"count_over_time", "sum_over_time", "avg_over_time", "increase", "rate"} {
					name := `{__name__=~"burst|level"}`
					if f == "increase" || f == "rate" {
						name = "up_total"
					}
					expr := fmt.Sprintf(`%s(%s[%ds])`, f, name, w.rangeMs/second)
					r := p.query(t, p.rolled, expr, start, end, step)
					require.NoError(t, r.Err)
					level := levelRead(t, p.rolled, r)
					if level == metric.Raw && (f == "increase" || f == "rate") {
						continue // the engine extrapolates
					}
					points := map[string]float64{}
					for _, s := range r.Value.(promql.Matrix) {
						for _, x := range s.Floats {
							points[fmt.Sprint(s.Metric.Get("i"), " ", x.T)] = x.F
						}
					}
					for id, ls := range series {
						if strings.Contains(name, ls.Get(metric.NameLabel)) {
							for at := start; at <= end; at += step {
								key := fmt.Sprint(id, " ", at)
								want, share, ok := w.want(f, level, samples[id], at)
								got, found := points[key]
								require.Equal(t, ok, found, "%s of %d at %s", expr, id, time.UnixMilli(at).UTC())
								if ok {
									require.InDelta(t, want, got, 1e-9*max(1, math.Abs(want)), "%s of %d at %s, open from %s, raw for %d hours, %v of the first row",
										expr, id, time.UnixMilli(at).UTC(), time.UnixMilli(open).UTC(), raw, share)
								}
								if ok && share < 1 {
									inPart++
								} else if ok {
									exact++
								}
							}
						}
					}
				}
			}
			require.Greater(t, exact, 100)
			require.Greater(t, inPart, 100)
		}
	}
}

// levelRead returns the level whose rows a result says that it was read from, raw if it says nothing.
func levelRead(t *testing.T, w *world, r *promql.Result) metric.Bucket {
	t.Helper()
	for text := range r.Warnings {
		if _, what, ok := strings.Cut(text, annotations.PromQLInfo.Error()+": "); ok && strings.Contains(text, "roll-ups are read") {
			level, err := w.Querier.Ladder().Bucket(strings.Fields(what)[0])
			require.NoError(t, err)
			return level
		}
	}
	return metric.Raw
}

// windows says what windows come to, by the samples alone. Rows are there for what lies before open, and samples from raw
// on. What is read ends at last.
type windows struct {
	ladder          metric.Ladder
	open, raw, last int64
	rangeMs         int64
}

// row returns the row of a level, or of the next finer one that has been ground, that contains a time, and the time itself
// if only samples do.
func (w *windows) row(level metric.Bucket, tMs int64) (fromMs, toMs int64) {
	for ; level > metric.Raw; level-- {
		width := w.ladder.WidthMs(level)
		if tMs < metric.AlignDown(min(w.open, w.last), width) || level == 1 && tMs < w.raw {
			return metric.AlignDown(tMs, width), metric.AlignDown(tMs, width) + width
		}
	}
	return tMs, tMs
}

// want returns the value at a time, and how much of the first row counts.
func (w *windows) want(f string, level metric.Bucket, all []metric.Sample, atMs int64) (v, share float64, ok bool) {
	end, _ := w.row(level, atMs)
	begin := end - w.rangeMs
	from, to := w.row(level, begin)
	share = 1
	if from < begin {
		share = float64(to-begin) / float64(to-from)
	}
	count, sum, steps := 0.0, 0.0, 0.0
	first := true
	for i, s := range all {
		if s.TimeMs < from || s.TimeMs >= end {
			continue
		}
		part := 1.0
		if s.TimeMs < to {
			part = share
		} else if first && share < 1 {
			share = 1 // the row is empty
		}
		first = false
		count, sum = count+part, sum+s.Value*part
		if i > 0 {
			steps += querytest.StepTo(all[i-1].Value, s.Value) * part
		}
	}
	switch f {
	case "count_over_time":
		v = count
	case "sum_over_time":
		v = sum
	case "avg_over_time":
		v = sum / count
	case "increase":
		v = steps
	case "rate":
		v = steps / (float64(w.rangeMs) / 1000)
	}
	return v, share, !first
}

// TestExtendedSelectors: anchored and smoothed selectors come to the same from rows as from raw
// samples, as far as rows know the samples at the ends of windows.
func TestExtendedSelectors(t *testing.T) {
	rng := seeded(t)
	series, samples := walks(rng, midnight-9*day)
	// This one has the same value for whole hours, as rows do.
	const hourly = 20
	series[hourly] = querytest.Named("hourly_total")
	for at, v := midnight-9*day+1, 0.0; at < now; at += hour / 4 {
		if (at-midnight)%hour == 1 {
			v = float64(rng.IntN(3))
		}
		samples[hourly] = append(samples[hourly], metric.Sample{Schedule: hourly, TimeMs: at, Value: v})
	}
	p := newPair(t, "model", metric.AlignDown(now, hour), series, samples)
	// Rows find the sample before a window however old it is; let the engine find it, too.
	p.engine, _ = New(p.rolled.Querier, Options{Lookback: time.Hour})
	start, old := midnight-8*day, midnight-3*day

	for _, stepMs := range []int64{hour, 6 * hour} {
		for _, rangeMs := range []int64{stepMs, 7 * stepMs} {
			for _, format := range []string{
				`increase(up_total[%ds] anchored)`, `rate(up_total[%ds] anchored)`, `delta(level[%ds] anchored)`,
				`changes(hourly_total[%ds] anchored)`, `resets(hourly_total[%ds] anchored)`,
				`sum(increase(up_total[%ds] anchored offset 1h))`, `max_over_time(delta(level[%ds] anchored)[12h:6h])`,
			} {
				expr, end := fmt.Sprintf(format, rangeMs/second), now
				if strings.Contains(expr, "hourly") {
					if rangeMs >= 12*hour {
						continue // rows of six hours are read, whose averages are others
					}
					end = old // only rows of an hour are read
				}
				want, got := p.query(t, p.raw, expr, start, end, stepMs), p.query(t, p.rolled, expr, start, end, stepMs)
				require.NoError(t, want.Err)
				require.NotEmpty(t, want.Value, expr)
				requireSame(t, expr, want, got, 1e-9)
				require.NotEmpty(t, got.Warnings)
				require.Empty(t, want.Warnings)
			}

			// What the ends of a window share with the samples around it is at most a step at each end.
			expr := fmt.Sprintf(`increase(up_total[%ds] smoothed)`, rangeMs/second)
			want, got := p.query(t, p.raw, expr, start, old, stepMs), p.query(t, p.rolled, expr, start, old, stepMs)
			require.NoError(t, got.Err)
			require.Contains(t, fmt.Sprint(got.Warnings), "smoothed does not interpolate")
			require.Len(t, got.Value, len(want.Value.(promql.Matrix)))
			for i, s := range want.Value.(promql.Matrix) {
				have := got.Value.(promql.Matrix)[i]
				require.Equal(t, s.Metric, have.Metric)
				require.Len(t, have.Floats, len(s.Floats))
				all := p.samplesOf(t, s.Metric)
				stepAt := func(tMs int64) float64 { // from the sample before tMs to the one after
					i, _ := slices.BinarySearchFunc(all, tMs, func(s metric.Sample, t int64) int { return cmp.Compare(s.TimeMs, t) })
					if i == 0 {
						return 0
					}
					return querytest.StepTo(all[i-1].Value, all[i].Value)
				}
				for j, point := range s.Floats {
					off := stepAt(point.T-rangeMs) + stepAt(point.T)
					require.InDelta(t, point.F, have.Floats[j].F, off+1e-9, "%s of %s at %d", expr, s.Metric, point.T)
				}
			}
		}
	}

	// Where nothing is interpolated, a smoothed selector is as another.
	for _, expr := range []string{`level%s`, `timestamp(level%s)`, `sum(level%s offset 1d)`, `level%s @ start()`} {
		want := p.query(t, p.rolled, fmt.Sprintf(expr, ""), start, old, hour)
		require.NotEmpty(t, want.Value)
		requireSame(t, expr, want, p.query(t, p.rolled, fmt.Sprintf(expr, " smoothed"), start, old, hour), 0)
	}
	// What the engine refuses of raw samples, it refuses of rows.
	for _, expr := range []string{
		`max_over_time(level[1h] anchored)`, `deriv(level[1h] anchored)`, `changes(level[1h] smoothed)`, `quantile_over_time(0.5, level[1h] smoothed)`,
	} {
		want, got := p.query(t, p.raw, expr, start, old, hour), p.query(t, p.rolled, expr, start, old, hour)
		require.ErrorContains(t, want.Err, "can only be used with")
		require.EqualError(t, got.Err, want.Err.Error())
	}
	// An anchored selector has a delta, of 0, with a sample and none before.
	first := midnight - 9*day
	for _, expr := range []string{`increase(hourly_total[1h] anchored)`, `delta(hourly_total[1h] anchored)`} {
		want, got := p.query(t, p.raw, expr, first, first+hour, hour), p.query(t, p.rolled, expr, first, first+hour, hour)
		require.Len(t, want.Value, 1)
		requireSame(t, expr, want, got, 1e-9)
	}
}

// TestGaps: the step over a gap of more than a row is unknown, and a series that has ended
// disappears.
func TestGaps(t *testing.T) {
	series := map[metric.ScheduleID]metric.Labels{0: querytest.Named("c_total")}
	at := func(d, h int64, v float64) metric.Sample {
		return metric.Sample{TimeMs: midnight - 10*day + d*day + h*hour + 1, Value: v}
	}
	samples := map[metric.ScheduleID][]metric.Sample{0: {
		at(0, 1, 10), at(0, 1, 12), at(0, 2, 20), // 2 within, 8 between
		at(0, 4, 30), // 10 over a gap of a row
		at(0, 7, 40), // nothing over a gap of two
		at(0, 8, 5),  // a reset
	}}
	samples[0][1].TimeMs += minute
	p := newPair(t, "model", metric.AlignDown(now, hour), series, samples)
	values := func(expr string) map[int64]float64 {
		r := p.query(t, p.rolled, expr, midnight-10*day, midnight-9*day, hour)
		require.NoError(t, r.Err)
		out := map[int64]float64{}
		for _, s := range r.Value.(promql.Matrix) {
			for _, x := range s.Floats {
				out[(x.T-midnight+10*day)/hour] = x.F
			}
		}
		return out
	}
	require.Equal(t, map[int64]float64{2: 2, 3: 8, 5: 10, 9: 5}, values(`increase(c_total[1h])`))
	require.Equal(t, map[int64]float64{2: 11, 3: 20, 5: 30, 8: 40, 9: 5}, values(`c_total`))
	require.Equal(t, map[int64]float64{2: 2, 3: 1, 5: 1, 8: 1, 9: 1}, values(`count_over_time(c_total[1h])`))
	require.Equal(t, map[int64]float64{1: 1, 4: 1, 6: 1, 7: 1}, func() map[int64]float64 {
		out := values(`absent(c_total)`)
		for h := range out {
			if h == 0 || h > 9 {
				delete(out, h)
			}
		}
		return out
	}())
}

func TestRankMustBeKnown(t *testing.T) {
	series, samples := steady(midnight - 3*day)
	p := newPair(t, "model", metric.AlignDown(now, hour), series, samples)
	for at, fails := range map[int64]bool{midnight - 3*day: true, now: false} {
		q, err := p.engine.NewInstantQuery(t.Context(), p.rolled.queryable, nil, `quantile_over_time(scalar(y{job="0"}), x[1h])`, time.UnixMilli(at))
		if fails {
			require.ErrorContains(t, err, "the quantile must be a constant number")
			continue
		}
		require.NoError(t, err)
		q.Close()
	}
}

// TestBitForBit: values come out bit for bit as they were put in.
func TestBitForBit(t *testing.T) {
	for kind := range querytest.Stores {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, kind, retention, now)
			id := w.ID(querytest.Named("x"))
			bits := []uint64{
				0x7ff0000000000002, 0x7ff8000000000001, 0x7ff8000000000000, 0xfff8000000000000,
				math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), 1 << 63, 1,
			}
			for i, b := range bits {
				w.Put(metric.Sample{Schedule: id, TimeMs: now - int64(len(bits)-i)*second, Value: math.Float64frombits(b)})
			}
			q, err := w.queryable.Querier(now-minute, now)
			require.NoError(t, err)
			set := q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "x"))
			require.True(t, set.Next())
			it := set.At().Iterator(nil)
			var got []uint64
			for it.Next() != 0 {
				_, v := it.At()
				got = append(got, math.Float64bits(v))
			}
			require.NoError(t, it.Err())
			require.Equal(t, bits, got)
			require.NoError(t, q.Close())

			// A stale series disappears at once, not after the lookback.
			engine, _ := New(w.Querier, Options{})
			stale := w.ID(querytest.Named("stale"))
			w.Put(metric.Sample{Schedule: stale, TimeMs: now - minute, Value: 1})
			w.Put(metric.Sample{Schedule: stale, TimeMs: now - 30*second, Value: math.Float64frombits(bits[0])})
			for at, n := range map[int64]int{now - 31*second: 1, now - 30*second: 0} {
				q, err := engine.NewInstantQuery(t.Context(), w.queryable, nil, "stale", time.UnixMilli(at))
				require.NoError(t, err)
				require.Len(t, q.Exec(t.Context()).Value, n)
				q.Close()
			}
		})
	}
}

// TestCancelledWithin: cancelling a query also ends the computation over rows that have been read.
func TestCancelledWithin(t *testing.T) {
	series, samples := steady(midnight - 5*day)
	p := newPair(t, "model", midnight, series, samples)
	x := labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "x")
	prep := newPreparation(t.Context())
	prep.add([]*labels.Matcher{x}).rows = &reading{function: "max_over_time", level: 1, rangeMs: hour, grid: grid{startMs: midnight - 2*day}}
	q, err := p.rolled.queryable.during(prep).Querier(0, now)
	require.NoError(t, err)
	defer q.Close()
	ctx, cancel := context.WithCancel(t.Context())
	set := q.Select(ctx, false, nil, x)
	require.True(t, set.Next())
	it := set.At().Iterator(nil)
	require.Equal(t, chunkenc.ValFloat, it.Next())
	require.True(t, set.Next())
	cancel()
	it = set.At().Iterator(nil) // of the same group
	require.Equal(t, chunkenc.ValNone, it.Next())
	require.ErrorIs(t, it.Err(), context.Canceled)
}

// TestStoreFails: the error says that the store failed, and how.
func TestStoreFails(t *testing.T) {
	clk := clock.NewSimulated(time.UnixMilli(now))
	store := storagetest.NewFaulty(storagetest.NewModel(querytest.Settings(), retention, clk))
	w := newWorldOn(t, store, clk)
	w.Put(metric.Sample{Schedule: w.ID(querytest.Named("x")), TimeMs: now - minute, Value: 1})
	engine, queryable := New(w.Querier, Options{})
	for _, fault := range []error{storage.ErrUnavailable, storage.ErrTimeout, storage.ErrCorrupt} {
		for _, expr := range []string{`x`, `rate(x[5m])`, `max_over_time(x[5m:1m])`, `sum(timestamp(x))`} {
			store.Fail("RawChunks", blocks.Range{}, 1, fault)
			q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
			require.NoError(t, err)
			var stored promql.ErrStorage
			require.ErrorAs(t, q.Exec(t.Context()).Err, &stored, expr)
			require.ErrorIs(t, stored.Err, fault)
			q.Close()
		}
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	for i := range 50 {
		id := w.ID(querytest.Named("x", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
		for at := now - hour; at < now; at += minute {
			w.Put(metric.Sample{Schedule: id, TimeMs: at, Value: 1})
		}
	}
	exec := func(q *query.Querier, opts Options, expr string) error {
		engine, queryable := New(q, opts)
		r, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		require.NoError(t, err)
		defer r.Close()
		return r.Exec(t.Context()).Err
	}
	require.NoError(t, exec(w.Querier, Options{MaxSamples: 3000}, `sum(avg_over_time(x[1h]))`))
	var most promql.ErrTooManySamples
	require.ErrorAs(t, exec(w.Querier, Options{MaxSamples: 1000}, `sum(avg_over_time(x[1h]))`), &most)

	// For timestamp(), the engine holds the iterators of all series at once, and these hold their
	// samples.
	for expr, held := range map[string]bool{`sum(x)`: false, `sum(timestamp(x))`: true} {
		require.NoError(t, exec(w.Querier, Options{MaxSamples: 4000, Lookback: time.Hour}, expr))
		err := exec(w.Querier, Options{MaxSamples: 2800, Lookback: time.Hour}, expr)
		if held {
			require.ErrorAs(t, err, &most)
		} else {
			require.NoError(t, err)
		}
	}

	few := query.New(query.Parts{
		Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
	}, query.Options{MaxSeries: 49})
	var bad *query.RequestError
	require.ErrorAs(t, exec(few, Options{}, `x`), &bad)
}

// TestQuantileOfAWideSpan: where a rank falls among values that a row stores as one, a warning says so.
func TestQuantileOfAWideSpan(t *testing.T) {
	series := map[metric.ScheduleID]metric.Labels{0: querytest.Named("wide")}
	samples := make(map[metric.ScheduleID][]metric.Sample)
	from := midnight - 4*day
	for i := range 2 * day / minute { // a factor of 10^36 in two days
		samples[0] = append(samples[0], metric.Sample{TimeMs: from + i*minute + 1, Value: 1e-18 * math.Pow(1.03, float64(i))})
	}
	p := newPair(t, "model", midnight, series, samples)
	quantile := func(rank string) (v float64, warned bool) {
		r := p.query(t, p.rolled, `quantile_over_time(`+rank+`, wide[2d])`, from+2*day, from+2*day, minute)
		require.NoError(t, r.Err)
		require.Len(t, r.Value, 1)
		for text := range r.Warnings {
			warned = warned || strings.Contains(text, "more than a factor of 10^8")
		}
		return r.Value.(promql.Matrix)[0].Floats[0].F, warned
	}
	at := func(rank float64) float64 { return samples[0][int(rank*float64(len(samples[0])-1))].Value }
	v, warned := quantile("0.9")
	require.False(t, warned)
	require.InEpsilon(t, at(0.9), v, 0.05)
	v, warned = quantile("0.4")
	require.True(t, warned)
	require.Greater(t, v, 100*at(0.4))
	_, warned = quantile("0")
	require.False(t, warned, "the least value is known")
}

// TestPercentilesOfFewSamples: rows, summaries and windows of rows have the percentiles of raw, also where few samples lie far
// apart.
func TestPercentilesOfFewSamples(t *testing.T) {
	series := map[metric.ScheduleID]metric.Labels{0: querytest.Named("outlier"), 1: querytest.Named("two")}
	samples := make(map[metric.ScheduleID][]metric.Sample)
	from, until := midnight-4*day, midnight-3*day
	for at := from; at < until; at += hour {
		for i := range int64(40) {
			samples[0] = append(samples[0], metric.Sample{Schedule: 0, TimeMs: at + i*minute + 1, Value: float64(i)})
		}
		samples[0][len(samples[0])-1].Value = 1000
		for i := range int64(2) {
			samples[1] = append(samples[1], metric.Sample{Schedule: 1, TimeMs: at + i*minute + 1, Value: 95 + 5*float64(i)})
		}
	}
	p := newPair(t, "model", midnight, series, samples)
	for i, widthMs := range []int64{hour, 6 * hour, day} {
		for name, hourly := range map[string]float64{"outlier": 624.8, "two": 99.95} {
			points := func(w *world, rank float64) []promql.FPoint {
				r := p.query(t, w, fmt.Sprintf(`quantile_over_time(%v, %s[%ds])`, rank, name, widthMs/second), from+widthMs, until, widthMs)
				require.NoError(t, r.Err)
				return r.Value.(promql.Matrix)[0].Floats
			}
			sel := query.Selector{labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, name)}
			rows, err := p.rolled.Querier.Rollups(t.Context(), []query.Selector{sel}, metric.Bucket(i+1), from, until)
			require.NoError(t, err)
			got := make(map[float64][]float64)
			for row, err := range rows.All() {
				require.NoError(t, err)
				sums, err := p.rolled.Querier.Summary(t.Context(), []query.Selector{sel}, row.TimeMs, row.TimeMs+widthMs)
				require.NoError(t, err)
				for sum, err := range sums.All() {
					require.NoError(t, err)
					require.Equal(t, []float64{row.P50, row.P90, row.P99}, []float64{sum.P50, sum.P90, sum.P99})
				}
				got[0.5], got[0.9], got[0.99] = append(got[0.5], row.P50), append(got[0.9], row.P90), append(got[0.99], row.P99)
			}
			for rank, values := range got {
				want, windows := points(p.raw, rank), points(p.rolled, rank)
				require.Len(t, values, int(day/widthMs))
				require.Len(t, windows, len(values))
				for j, v := range values {
					require.InEpsilon(t, want[j].F, v, 0.0101, "%s, quantile %v of %d ms", name, rank, widthMs)
					require.Equal(t, v, windows[j].F)
				}
				if rank == 0.99 && widthMs == hour {
					require.InEpsilon(t, hourly, values[0], 0.001)
				}
			}
		}
	}
	require.NotZero(t, p.rolled.Store.RollupReads.Load())
}

// TestQuantileOfRowsWithoutValues: a row copied from another store has extremes, and no samples in its sketch.
func TestQuantileOfRowsWithoutValues(t *testing.T) {
	row := query.Span{Rollup: metric.Rollup{Count: 1, Min: 2, Max: 9, Sketch: new(sketch.Sketch).AppendEncoded(nil)}}
	for _, rank := range []float64{0, 0.5, 1} {
		w := window{reading: &reading{rank: rank}, all: []query.Span{row, row}, hi: 2}
		require.True(t, math.IsNaN(w.quantile()))
	}
}
