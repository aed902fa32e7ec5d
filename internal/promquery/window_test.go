package promquery

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
)

// unprepared hides a Queryable from the Engine, which then leaves all to Prometheus' own.
type unprepared struct{ promstorage.Queryable }

// overWindows are functions of a range of m, as Prometheus writes them.
var overWindows = []string{
	"avg_over_time(%s)", "min_over_time(%s)", "max_over_time(%s)", "sum_over_time(%s)", "count_over_time(%s)", "last_over_time(%s)",
	"first_over_time(%s)", "present_over_time(%s)", "absent_over_time(%s)", "stddev_over_time(%s)", "stdvar_over_time(%s)",
	"rate(%s)", "increase(%s)", "delta(%s)", "irate(%s)", "idelta(%s)", "changes(%s)", "resets(%s)", "deriv(%s)",
	"quantile_over_time(0.7, %s)", "quantile_over_time(scalar(n), %s)", "predict_linear(%s, 60)", "quantile_over_time(2, %s)",
	"timestamp(rate(%s))", "sum by (i) (rate(%s))", "max_over_time(rate(%s)[20m:7m] offset 3m)", "-rate(%s)", "rate(%s) + on (i) group_left sum by (i) (m)",
	"min_over_time((-%s)[10m:1m])", "absent(rate(%s))", "label_replace(rate(%s), \"j\", \"$1\", \"i\", \"(.*)\")", "topk(2, increase(%s))",
	"count_values(\"v\", changes(%s))", "%s",
}

// oddSeries returns series of two names with random samples, among them such that end a series, are no numbers or follow a gap.
func oddSeries(rng *rand.Rand, w *world, fromMs, toMs int64) {
	odd := []float64{math.NaN(), math.Float64frombits(value.StaleNaN), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.MaxFloat64, math.SmallestNonzeroFloat64}
	var all []metric.Sample
	for i := range 12 {
		id := w.ID(querytest.Named([]string{"m", "m", "n"}[i%3], metric.Label{Name: "i", Value: fmt.Sprint(i / 3)}, metric.Label{Name: "k", Value: fmt.Sprint(i % 2)}))
		v, often := 0.0, []float64{0, 0.02, 0.3}[rng.IntN(3)]
		for t := fromMs + rng.Int64N(minute); t < toMs; t += 1 + rng.Int64N(30*second) {
			if rng.IntN(40) == 0 {
				t += rng.Int64N(40 * minute)
			}
			v += rng.NormFloat64()
			if rng.IntN(50) == 0 {
				v = 0
			}
			s := metric.Sample{Schedule: id, TimeMs: t, Value: v}
			if i%2 == 0 { // on the ends of windows
				s.TimeMs = metric.AlignDown(t, 15*second)
				t = s.TimeMs + 15*second
			}
			if rng.Float64() < often {
				s.Value = odd[rng.IntN(len(odd))]
			}
			all = append(all, s)
		}
	}
	w.Put(all...)
}

// TestWindowsAreTheEnginesOwn compares queries over windows that are taken from what was read with those for which
// Prometheus' engine iterates over all samples: to the last bit, with their errors and annotations.
func TestWindowsAreTheEnginesOwn(t *testing.T) {
	rng := seeded(t)
	w := newWorld(t, "model", retention, now)
	oddSeries(rng, w, now-5*hour, now)
	engine, queryable := New(w.Querier, Options{})
	values := 0
	for range 20 {
		rangeMs := []int64{1, 2, second, 15 * second, minute, 5 * minute, hour, 1 + rng.Int64N(2*hour)}[rng.IntN(8)]
		stepMs := []int64{1 + rng.Int64N(hour), 15 * second, minute, rangeMs}[rng.IntN(4)]
		endMs := now - 3*hour + rng.Int64N(4*hour)
		if rng.IntN(2) == 0 {
			endMs = metric.AlignDown(endMs, 15*second)
		}
		startMs := endMs - stepMs*rng.Int64N(40)
		selector := fmt.Sprintf([]string{"m[%dms]", "m[%dms] offset 7m", "m[%dms] offset -7m", "m[%dms] @ end()", "m{i=\"1\"}[%dms]", "{__name__=~\"m|n\"}[%dms]", "none[%dms]"}[rng.IntN(7)], rangeMs)
		for _, format := range overWindows {
			expr := fmt.Sprintf(format, selector)
			name := fmt.Sprintf("%s from %d to %d by %d", expr, startMs, endMs, stepMs)
			ask := func(over promstorage.Queryable) *promql.Result {
				var q promql.Query
				var err error
				if startMs == endMs {
					q, err = engine.NewInstantQuery(t.Context(), over, nil, expr, time.UnixMilli(endMs))
				} else {
					q, err = engine.NewRangeQuery(t.Context(), over, nil, expr, time.UnixMilli(startMs), time.UnixMilli(endMs), time.Duration(stepMs)*time.Millisecond)
				}
				if err != nil {
					return &promql.Result{Err: err}
				}
				t.Cleanup(q.Close)
				return q.Exec(t.Context())
			}
			got, want := ask(queryable), ask(unprepared{queryable})
			require.Equal(t, fmt.Sprint(want.Err), fmt.Sprint(got.Err), name)
			require.ElementsMatch(t, slices.Collect(maps.Keys(want.Warnings)), slices.Collect(maps.Keys(got.Warnings)), name)
			require.Equal(t, bitsOf(want), bitsOf(got), name)
			values += len(bitsOf(got))
		}
	}
	require.Greater(t, values, 1000, "hardly any query has a result")
}

// bitsOf returns the points of a result as text, each value by its bits.
func bitsOf(r *promql.Result) (all []string) {
	point := func(metric string, t int64, v float64) {
		all = append(all, fmt.Sprintf("%s %d %x", metric, t, math.Float64bits(v)))
	}
	switch v := r.Value.(type) {
	case promql.Matrix:
		for _, s := range v {
			for _, p := range s.Floats {
				point(s.Metric.String(), p.T, p.F)
			}
		}
	case promql.Vector:
		for _, s := range v {
			point(s.Metric.String(), s.T, s.F)
		}
	}
	slices.Sort(all) // count_values has no order
	return all
}

// TestWindowsAreNotCopied: the engine sees a mark for each window, however many samples it has.
func TestWindowsAreNotCopied(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	id := w.ID(querytest.Named("m"))
	var all []metric.Sample
	for at := now - hour; at < now; at += second {
		all = append(all, metric.Sample{Schedule: id, TimeMs: at, Value: 1})
	}
	w.Put(all...)
	engine, queryable := New(w.Querier, Options{})
	q, err := engine.NewRangeQuery(t.Context(), queryable, nil, "sum_over_time(m[1h])", time.UnixMilli(now-minute), time.UnixMilli(now), time.Minute)
	require.NoError(t, err)
	defer q.Close()
	r := q.Exec(t.Context())
	require.NoError(t, r.Err)
	require.Equal(t, []promql.FPoint{{T: now - minute, F: 3541}, {T: now, F: 3599}}, r.Value.(promql.Matrix)[0].Floats)
	require.EqualValues(t, 2, q.Stats().Samples.TotalSamples)
}
