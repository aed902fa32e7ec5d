package promquery

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
)

// TestSubqueryStepIsAMillisecond: the engine divides by the milliseconds of a subquery's step.
func TestSubqueryStepIsAMillisecond(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.Querier, Options{})
	for expr, ok := range map[string]bool{
		"max_over_time(m[1s:0.0001])":                            false,
		"max_over_time(max_over_time(m[1s:0.0009])[1m:1s])":      false,
		"sum(rate(m[1m])) + max_over_time(vector(1)[1s:0.0001])": false,
		"max_over_time(m[1s:0.001])":                             true,
		"max_over_time(m[1s:])":                                  true,
	} {
		q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		if ok {
			require.NoError(t, err, expr)
			require.NoError(t, q.Exec(t.Context()).Err, expr)
			q.Close()
			continue
		}
		require.ErrorContains(t, err, "the step of a subquery must be at least 1ms", expr)
	}
}

// heavy asks for what takes much, and returns what it allocated.
func (w *world) heavy(opts Options, expr string, start, end time.Time, step time.Duration) (took int64, err error) {
	engine, queryable := New(w.Querier, opts)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	q, err := engine.NewRangeQuery(w.t.Context(), queryable, nil, expr, start, end, step)
	if err == nil {
		err = q.Exec(w.t.Context()).Err
		q.Close()
	}
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

// TestCountedValuesAreBounded: the engine makes room for all steps where it sees a value first, and counts one point.
func TestCountedValuesAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	opts := Options{MaxSamples: 1_000_000}
	end := time.UnixMilli(now)
	counted := `count_values("v", vector(time()))`
	for _, expr := range []string{
		counted,
		"count_over_time(" + counted + "[5500s:1s])",
		"count_over_time(" + counted + "[1500s:1s])",
	} {
		start := end.Add(-11000 * time.Second)
		if strings.Contains(expr, "[") {
			start = end
		}
		took, err := w.heavy(opts, expr, start, end, time.Second)
		require.Error(t, err, expr)
		require.Less(t, took, int64(2*opts.MaxSamples*sampleBytes), expr)
	}
	var arms []string
	for i := range 20 {
		arms = append(arms, fmt.Sprintf(`count_values("v%d", vector(time()))`, i))
	}
	took, err := w.heavy(opts, strings.Join(arms, " or "), end.Add(-300*time.Second), end, time.Second)
	require.ErrorContains(t, err, "larger step")
	require.Less(t, took, int64(2*opts.MaxSamples*sampleBytes))
	// What is asked for usually.
	_, err = w.heavy(opts, counted, end.Add(-300*time.Second), end, time.Second)
	require.NoError(t, err)
}

// TestCountedSeriesAreCounted: count_values may make a series of each point, and the engine makes
// room for all steps of each.
func TestCountedSeriesAreCounted(t *testing.T) {
	const series, steps = 500, 100
	w := newWorld(t, "model", retention, now)
	start := now - day
	var samples []metric.Sample
	for i := range series {
		labels := []metric.Label{{Name: "i", Value: fmt.Sprint(i)}, {Name: "job", Value: fmt.Sprint(i % 3)}}
		random, version := w.ID(querytest.Named("random", labels...)), w.ID(querytest.Named("version", labels...))
		tiny := w.ID(querytest.Named("tiny", labels...))
		for step := range steps {
			at := start + int64(step)*minute
			n := float64(i*steps + step)
			samples = append(samples, metric.Sample{Schedule: random, TimeMs: at, Value: n / 7},
				metric.Sample{Schedule: version, TimeMs: at, Value: float64(i % 7)},
				metric.Sample{Schedule: tiny, TimeMs: at, Value: math.SmallestNonzeroFloat64 * n})
		}
	}
	w.Put(samples...)
	from, to := time.UnixMilli(start), time.UnixMilli(start+(steps-1)*minute)
	opts := Options{MaxSamples: 500_000}
	for _, expr := range []string{
		`count_values("v", random)`,
		`count_values without (job) ("v", random * 2)`,
		`sum(count_values by (job) ("v", random))`,
		`max_over_time(count_values("v", random)[99m:1m])`,
		`count_values("v", random offset 1h) or count_values("w", random)`,
	} {
		start := from
		if strings.Contains(expr, "[") {
			start = to
		}
		took, err := w.heavy(opts, expr, start, to, time.Minute)
		require.ErrorContains(t, err, "--query-max-samples", expr)
		require.Less(t, took, int64(4*opts.MaxSamples*sampleBytes), expr)
	}
	for _, expr := range []string{
		`count_values("v", version)`, `count_values by (job) ("v", version)`, `count_values without (i) ("v", version)`,
		`count_values("v", version) * 2`, `topk(3, count_values("v", version))`, `count_values("v", round(random / 10000))`,
	} {
		_, err := w.heavy(opts, expr, from, to, time.Minute)
		require.NoError(t, err, expr)
	}
	_, err := w.heavy(opts, `count_values("v", random)`, to, to, time.Minute)
	require.NoError(t, err, "a series of each series at one time")
	// More steps than a value has room for.
	_, err = w.heavy(opts, `count_values("v", version{i=~"1.?"})`, from, to, 500*time.Millisecond)
	require.NoError(t, err)
	// The text of a value may have hundreds of bytes.
	_, err = w.heavy(opts, `count_values("v", tiny)`, to, to, time.Minute)
	require.NoError(t, err)
	_, err = w.heavy(opts, `label_join(count_values("v", tiny), "w", ""`+strings.Repeat(`, "v"`, 400)+")", to, to, time.Minute)
	require.ErrorContains(t, err, "made by a function")
}

// TestExperimentalFunctionsAreRefused: info() selects series that are not in the expression, and are not weighed.
func TestExperimentalFunctionsAreRefused(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.Querier, Options{})
	_, err := engine.NewInstantQuery(t.Context(), queryable, nil, `info(m)`, time.UnixMilli(now))
	require.ErrorContains(t, err, "is not enabled")
}

// some has series with a sample each, at times one after the other.
func (w *world) some(n int, value string) (start, end time.Time) {
	var samples []metric.Sample
	for i := range n {
		id := w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}, metric.Label{Name: "job", Value: fmt.Sprint(i % 3)}, metric.Label{Name: "a", Value: value}))
		samples = append(samples, metric.Sample{Schedule: id, TimeMs: now - day + int64(i)*second, Value: 1})
	}
	w.Put(samples...)
	return time.UnixMilli(now - day), time.UnixMilli(now - day + int64(n)*second)
}

// TestShortLivedSeriesAreBounded: of each series that is evaluated step by step the engine makes room for all steps.
func TestShortLivedSeriesAreBounded(t *testing.T) {
	const series = 2000
	w := newWorld(t, "model", retention, now)
	start, end := w.some(series, "x")
	opts := Options{MaxSamples: 1_000_000, Lookback: time.Second}
	for _, expr := range []string{"m * 8", "abs(m)", "-m + 1", "max_over_time(abs(m)[2000s:1s])", "sum by (i) (m)", "label_replace(m * 2, \"b\", \"$1\", \"a\", \"(.*)\")", "m == on (i) m"} {
		took, err := w.heavy(opts, expr, start, end, time.Second)
		require.ErrorContains(t, err, "larger step", expr)
		require.Less(t, took, int64(opts.MaxSamples*sampleBytes), expr)
	}
	for _, expr := range []string{"m", "sum(m) * 8", "sum by (job) (m) * 8", `m{i=~"1.?.?"} * 8`, `count(m) / 2 + 1`} {
		_, err := w.heavy(opts, expr, start, end, time.Second)
		require.NoError(t, err, expr)
	}
	// Those that have no samples in the time do not count.
	_, err := w.heavy(opts, "m * 8", start, start.Add(100*time.Second), 50*time.Millisecond)
	require.NoError(t, err)
	_, err = w.heavy(opts, "m * 8", start, end, 10*time.Second)
	require.NoError(t, err)
}

// TestMadeLabelsAreBounded: a function may make a label of any length, of others that were made.
func TestMadeLabelsAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	_, end := w.some(500, strings.Repeat("x", 100))
	opts := Options{MaxSamples: 1_000_000, Lookback: time.Hour}
	long := `"` + strings.Repeat("y", 60_000) + `"`
	join := func(of string, n int) string {
		return `label_join(` + of + `, "a", ""` + strings.Repeat(`, "a"`, n) + ")"
	}
	replace := func(of, pattern string) string {
		return `label_replace(` + of + `, "b", "$1-", "a", "` + pattern + `")`
	}
	for _, expr := range []string{
		join(join("m", 100), 100), join(join(join("vector(1)", 10), 10), 10) + " or " + join("m", 1000),
		join(join(`label_replace(vector(1), "a", "yyyyyyyy", "", "")`, 200), 200),
		`label_replace(m, "b", ` + long + `, "a", ".*")`, `m * on () group_left (b) label_replace(vector(1), "b", ` + long + `, "", "")`,
		`label_replace(last_over_time(m[1h:1m]), "b", ` + long + `, "a", ".*") or up`,
		join(`count_values("a", m)`, 10_000),
	} {
		took, err := w.heavy(opts, expr, end, end, time.Second)
		require.Error(t, err, "%.100s", expr)
		require.Contains(t, err.Error(), "function", "%.100s", expr)
		require.Less(t, took, int64(2*opts.MaxSamples*sampleBytes), "%.100s", expr)
	}
	for _, expr := range []string{
		replace("m", "(.*)x"), join("m", 3), `label_join(m, "b", "-", "a", "i", "job")`,
	} {
		for range 10 { // a chain
			expr = replace(expr, "(.*)")
		}
		_, err := w.heavy(opts, expr, end, end, time.Second)
		require.NoError(t, err, "%.100s", expr)
	}
	// Matching looks at no context.
	slow := strings.Repeat(".?", 5000) + "z"
	_, err := w.heavy(opts, replace("m", strings.Repeat(".?", 50)+"z"), end, end, time.Second)
	require.NoError(t, err)
	for _, expr := range []string{
		strings.Repeat(replace("m", slow)+" or ", 20) + "m",
		strings.Repeat("label_replace(", 10) + replace("m", slow) + strings.Repeat(`, "c", "", "a", "`+slow+`")`, 10),
	} {
		_, err := w.heavy(Options{}, expr, end, end, time.Second)
		require.ErrorContains(t, err, "too long", "%.100s", expr)
	}
}
