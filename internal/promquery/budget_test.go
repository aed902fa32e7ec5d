package promquery

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/treecheck/linear"
)

// hostile are expressions that take much more than their length, each in a way of its own. Those in instant are so slow in a
// range that they take their time instead.
func hostile() (ranges, instant map[string]string) {
	join := func(expr string, n int) string {
		return `label_join(` + expr + `, "a", ""` + strings.Repeat(`, "a"`, n) + ")"
	}
	long := `"` + strings.Repeat("y", 60_000) + `"`
	slow := strings.Repeat(".?", 5000) + "z"
	nested := "none @ 0"
	for range 20 {
		nested = "(none @ 0) or max_over_time((" + nested + ")[1ms:1ms])"
	}
	return map[string]string{
		"a series of each value":           `count_values("v", random)`,
		"a series of each time":            `count_values("v", vector(time()))`,
		"many counts of values":            arms(20, `count_values("v$", vector(time()))`),
		"room for short-lived series":      arms(10, `short{i!="x$"} * 8`),
		"a long label for each series":     `label_replace(random, "b", ` + long + `, "a", ".*")`,
		"a long label of one for all":      `random * on () group_left (b) label_replace(vector(1), "b", ` + long + `, "", "")`,
		"a label of one for all":           `random * on () group_left (b) label_replace(vector(1), "b", ` + long[:30_000] + `", "", "")`,
		"labels of counted values":         join(`count_values("a", random)`, 9_000),
		"samples":                          `sum(count_over_time(random[1d])) + max_over_time(random[1d:1s])`,
		"values of a subquery":             `max_over_time(count_values("v", random)[99m:1s])`,
		"short-lived series in a subquery": `max_over_time(abs(short)[2000s:1s])`,
	}, map[string]string{
		"copies of labels":             arms(200, `label_replace(wide, "a", "$", "", "")`),
		"copies of labels in groups":   arms(200, `sum without (x$) (wide)`),
		"copies of labels in pairs":    arms(200, `wide + ignoring (x$) wide`),
		"labels of labels":             join(join(join("vector(1)", 10), 10), 10) + " or " + join("short", 1000),
		"long labels of long labels":   join(join(join(`label_replace(vector(1), "a", "yyyyyyyy", "", "")`, 300), 300), 300),
		"a slow pattern":               arms(20, `label_replace(random, "b", "$$1-", "i", "`+slow+`")`),
		"steps of a subquery":          `max_over_time(none[3000d:1ms])`,
		"steps of nested subqueries":   `max_over_time((` + nested + `)[1d:1ms])`,
		"steps of subqueries in a row": `max_over_time(vector(time())[3600s:1ms]) or max_over_time(vector(1)[3600s:1ms])`,
		"copies of points":             arms(50, `max_over_time((random{i!="x$"} @ 1763722800)[3600s:1ms])`),
		"smoothed points":              `count(max_over_time((short smoothed)[3600s:1ms]))`,
		"warnings":                     `max_over_time(quantile_over_time(time(), vector(1)[1ms:1ms])[3000s:1ms])`,
		"windows of a subquery":        `max_over_time(max_over_time(vector(1)[2000s:1ms])[2000s:1ms])`,
	}
}

// TestHostileQueriesEnd: each hostile query ends with a result or an error that names a limit, and the heap stays below the memory
// limit and a quarter, as far as it lives.
func TestHostileQueriesEnd(t *testing.T) {
	const series, steps, mb = 500, 100, 1 << 20
	w := newWorld(t, "model", retention, now)
	w.wide("wide", 100)
	var samples []metric.Sample
	for i := range series {
		name := metric.Label{Name: "i", Value: fmt.Sprint(i)}
		random, short := w.ID(querytest.Named("random", name, metric.Label{Name: "a", Value: strings.Repeat("x", 100)})), w.ID(querytest.Named("short", name))
		for step := range steps {
			samples = append(samples, metric.Sample{Schedule: random, TimeMs: now - (steps-int64(step))*minute, Value: float64(i*steps+step) / 7})
		}
		for at := range int64(4) {
			samples = append(samples, metric.Sample{Schedule: short, TimeMs: now - hour + int64(4*i)*second + at*second, Value: 1})
		}
	}
	w.Put(samples...)

	limit := linear.Heap() + 384*mb
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(limit)))
	opts := Options{MaxSamples: 10_000_000, MemoryLimit: int64(limit), Lookback: time.Minute, Timeout: 3 * time.Second}
	ended := 0
	end := func(expr string, start int64) func(t *testing.T) {
		return func(t *testing.T) {
			engine, queryable := New(w.Querier, opts)
			q, err := engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(start), time.UnixMilli(now), time.Second)
			require.NoError(t, err)
			defer q.Close()
			stop, most := make(chan struct{}), make(chan uint64)
			go func() { most <- highest(limit*5/4, stop) }()
			r := q.Exec(t.Context())
			close(stop)
			peak := <-most
			t.Logf("the heap had %d of %d MB: %v", peak/mb, limit/mb, r.Err)
			require.Less(t, peak, limit*5/4)
			if r.Err != nil {
				ended++
				require.Regexp(t, `--query-max-samples|GOMEMLIMIT|--query-timeout|would take too long`, r.Err.Error())
				require.Regexp(t, `narrow the selectors|use larger steps`, r.Err.Error(), "what to do")
			}
		}
	}
	ranges, instant := hostile()
	for name, expr := range ranges {
		t.Run(name, end(expr, now-hour))
	}
	for name, expr := range instant {
		t.Run(name, end(expr, now))
	}
	require.Greater(t, ended, 15)

	// What is asked for usually has its result beside the limits.
	engine, queryable := New(w.Querier, opts)
	for _, expr := range []string{
		"random", "sum(short) * 8", `count_values("v", round(random / 1000))`, `label_replace(random, "b", "$1-", "a", "(.*)x")`,
		`label_join(random, "b", "-", "a", "i")`, "max_over_time(random[10m:1m])", "rate(random[5m])",
	} {
		q, err := engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now-hour), time.UnixMilli(now), time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Exec(t.Context()).Err, expr)
		q.Close()
	}
}

// highest returns the most bytes of the heap until stop is closed. Beyond a limit, only what lives counts.
func highest(limit uint64, stop chan struct{}) (peak uint64) {
	for next := time.NewTicker(time.Millisecond); ; {
		n := heap()
		if n > limit {
			n = linear.Heap()
		}
		peak = max(peak, n)
		select {
		case <-stop:
			next.Stop()
			return peak
		case <-next.C:
		}
	}
}

// TestWatchEndsTheOldest: of several queries the one ends that runs longest, and then the next.
func TestWatchEndsTheOldest(t *testing.T) {
	var none *watch
	require.Nil(t, newWatch(0))
	require.Nil(t, newWatch(math.MaxInt64))
	ctx, end := none.begin(t.Context())
	end()
	require.NoError(t, ctx.Err())

	w := newWatch(1 << 40)
	first, endFirst := w.begin(t.Context())
	second, endSecond := w.begin(t.Context())
	third, endThird := w.begin(t.Context())
	w.endOne()
	require.Error(t, first.Err())
	require.NoError(t, second.Err())
	endSecond()
	w.endOne()
	require.NotErrorAs(t, context.Cause(second), new(*memoryError))
	require.ErrorAs(t, context.Cause(third), new(*memoryError))
	endThird()
	endFirst()
	w.endOne()
	_, endLast := w.begin(t.Context()) // it looks again
	endLast()
}

// TestLimitsAreNamed: an error says which limit a query is past, what that is, and what to do.
func TestLimitsAreNamed(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	w.wide("m", 10)
	expr := "sum(m)" + strings.Repeat(" + sum(m)", 100)
	for want, opts := range map[string]Options{
		"a query may hold 5 at a time (--query-max-samples)": {MaxSamples: 5},
		"a query may take 1ns (--query-timeout)":             {Timeout: 1},
		"the 0 MB of memory that it may use (GOMEMLIMIT)":    {MemoryLimit: 1000},
	} {
		engine, queryable := New(w.Querier, opts)
		var err error
		for err == nil { // the watch looks at a query that takes a few milliseconds, and is given time
			var q promql.Query
			if q, err = engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now-hour), time.UnixMilli(now), time.Second); err == nil {
				err = q.Exec(t.Context()).Err
				q.Close()
			}
		}
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "narrow the selectors")
	}
}
