package promquery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/treecheck/linear"
)

// owning yields rows with their own copies of sketches, like a store that reads from disk.
type owning struct {
	storage.Store
	before func() // unless nil, called before each row
}

func (s owning) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return func(yield func(metric.RollupRow, error) bool) {
		for row, err := range s.Store.Rollups(ctx, level, ids, fromMs, toMs) {
			if s.before != nil {
				s.before()
			}
			row.Sketch = bytes.Clone(row.Sketch)
			if !yield(row, err) {
				return
			}
		}
	}
}

// TestRowsCountAsWhatTheyHold: a row holds a span, and for a quantile a sketch, too. The query's
// limit counts their bytes in units of samples. Otherwise a query could hold several times its
// limit.
func TestRowsCountAsWhatTheyHold(t *testing.T) {
	clk := clock.NewSimulated(time.UnixMilli(midnight))
	settings := querytest.Settings()
	settings.GroupSize = 64
	var before func()
	w := newWorldOn(t, owning{storagetest.NewModel(settings, retention, clk), func() { before() }}, clk)
	var sk sketch.Sketch
	for i := range 300 {
		sk.Add(math.Pow(1.1, float64(i)))
	}
	from, until := midnight-60*day, midnight-8*day
	row := metric.Rollup{Count: 300, Sum: 1, Min: 1, Max: 2, First: 1, Last: 2, Sketch: sk.AppendEncoded(nil)}
	for i := range settings.GroupSize {
		id := w.ID(querytest.Named("x", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
		var all []metric.RollupRow
		for at := from; at < until; at += hour {
			all = append(all, metric.RollupRow{Schedule: id, TimeMs: at, Rollup: row})
		}
		require.NoError(t, w.Store.WriteRollups(t.Context(), 0, 1, all))
	}
	for _, function := range []string{"max_over_time", "quantile_over_time"} {
		for _, most := range []int64{50_000, 200_000} {
			t.Run(fmt.Sprintf("%s/%d", function, most), func(t *testing.T) {
				groups, err := w.Querier.Groups(t.Context(), query.Selector{labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "x")})
				require.NoError(t, err)
				var empty, peak uint64
				n := 0
				before = func() {
					if n++; n == 1 { // the model has copied its rows
						empty = linear.Heap()
					} else if n%400 == 0 {
						peak = max(peak, linear.Heap())
					}
				}
				r := rows{
					reading: &reading{function: function, level: 1, rangeMs: until - from, grid: grid{startMs: until, endMs: until}},
					q:       w.Querier, warn: new(query.Warnings),
				}
				_, err = r.read(t.Context(), groups[0], (&account{most: most}).hold)
				var tooMany promql.ErrTooManySamples
				require.ErrorAs(t, err, &tooMany, "there is more than the limit")
				held := float64(peak) - float64(empty)
				t.Logf("%.2f of what the limit allows", held/float64(most*sampleBytes))
				require.Less(t, held, 1.5*float64(most*sampleBytes))
				require.Greater(t, held, 0.5*float64(most*sampleBytes), "it counts more than there is")
			})
		}
	}
	// A window has a point for each step, however few the rows are.
	before = func() {}
	groups, err := w.Querier.Groups(t.Context(), query.Selector{labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "x")})
	require.NoError(t, err)
	for stepMs, refused := range map[int64]bool{hour: false, minute: true} {
		r := rows{
			reading: &reading{function: "max_over_time", level: 1, rangeMs: day, grid: grid{startMs: from + day, endMs: until, stepMs: stepMs}},
			q:       w.Querier, warn: new(query.Warnings),
		}
		_, err := r.read(t.Context(), groups[0], (&account{most: 1_000_000}).hold)
		require.Equal(t, refused, errors.As(err, new(promql.ErrTooManySamples)), err)
	}
}

// TestSelectorsAreBounded: an expression may have thousands of selectors, of which each holds what
// it matches until the end.
func TestSelectorsAreBounded(t *testing.T) {
	const series = 2000
	w := newWorld(t, "model", retention, now)
	for i := range series {
		w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}, metric.Label{Name: "path", Value: "/some/longer/label/value"}))
	}
	few := query.New(query.Parts{
		Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
	}, query.Options{MaxSeries: series})
	exec := func(q *query.Querier, expr string) (took int64, err error) {
		engine, queryable := New(q, Options{})
		r, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		require.NoError(t, err)
		defer r.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = r.Exec(t.Context()).Err
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc), err
	}
	same := func(n int) string { return strings.Repeat("m or ", n-1) + "m" }
	different := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`m{i!="x%d"}`, i))
		}
		return strings.Join(all, " or ")
	}
	for name, expr := range map[string]func(n int) string{"the same": same, "different": different} {
		allowed, err := exec(few, expr(4))
		require.NoError(t, err, name)
		for _, n := range []int{5, 1000} {
			took, err := exec(few, expr(n))
			var bad *query.RequestError
			require.ErrorAs(t, err, &bad, "%s: %d", name, n)
			require.Contains(t, err.Error(), "narrow them")
			// For selectors that were never evaluated, only the engine's parsed form remains.
			require.Less(t, took, 2*allowed+int64(n)<<14, "%s: %d", name, n)
		}
	}
}

// TestSelectorsShareTheirWork: what all selectors of a querier look at counts together, also if they match nothing.
func TestSelectorsShareTheirWork(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	for i := range 2000 {
		w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
	}
	matchers := []*labels.Matcher{
		labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"), labels.MustNewMatcher(labels.MatchRegexp, "none", "x.*"),
	}
	for i := range 2490 {
		matchers = append(matchers, labels.MustNewMatcher(labels.MatchNotEqual, "i", fmt.Sprint(i)))
	}
	for name, ask := range map[string]func(q promstorage.Querier) error{
		"series": func(q promstorage.Querier) error { return q.Select(t.Context(), false, nil, matchers...).Err() },
		"names": func(q promstorage.Querier) error {
			_, _, err := q.LabelNames(t.Context(), nil, matchers...)
			return err
		},
		"values": func(q promstorage.Querier) error {
			_, _, err := q.LabelValues(t.Context(), "i", nil, matchers...)
			return err
		},
	} {
		q, err := w.queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		require.NoError(t, ask(q))
		for range 200 {
			matchers[2] = labels.MustNewMatcher(labels.MatchNotEqual, "i", matchers[2].Value+"x") // not a selector that is known
			if err = ask(q); err != nil {
				break
			}
		}
		require.ErrorContains(t, err, "the selectors look at more than", name)
		require.NoError(t, q.Close())
	}
}

// TestListsAreBounded: only listed series within the limit count.
func TestListsAreBounded(t *testing.T) {
	const series = 2000
	w := newWorld(t, "model", retention, now)
	for i := range series {
		w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprintf("%04d", series-i)}))
	}
	few := query.New(query.Parts{
		Store: w.Store, Index: w.Index, Settings: w.Store.Settings(), WholeFrom: w.Store.WholeFrom, Clock: clock.NewSimulated(time.UnixMilli(now)),
	}, query.Options{MaxSeries: series})
	_, queryable := New(few, Options{})
	name := labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m")
	for limit, ends := range map[int]int{0: 4, 10: 150} {
		q, err := queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		hints := &promstorage.SelectHints{Start: math.MinInt64, End: now, Limit: limit, Func: "series"}
		for range ends {
			set := q.Select(t.Context(), true, hints, name)
			require.NoError(t, set.Err())
			require.True(t, set.Next())
			require.Equal(t, "0001", set.At().Labels().Get("i"))
		}
		var bad *query.RequestError
		if limit == 0 {
			require.ErrorAs(t, q.Select(t.Context(), true, hints, name).Err(), &bad)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, q.Select(gone, true, hints, name).Err(), context.Canceled)
		require.NoError(t, q.Close())
	}
}

// TestAnAnswerHoldsNoExpression: what an expression was compiled to is free when it has been
// evaluated: its answer may be sent slowly.
func TestAnAnswerHoldsNoExpression(t *testing.T) {
	w := newWorld(t, "model", retention, midnight)
	engine, queryable := New(w.Querier, Options{})
	expr := "up{x=~`" + strings.Repeat(`\pL`, 300) + "`}"
	before := linear.Heap()
	q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(midnight))
	require.NoError(t, err)
	compiled := linear.Heap()
	r := q.Exec(t.Context())
	require.NoError(t, r.Err)
	after := linear.Heap()
	t.Logf("%d bytes compiled, %d left", compiled-before, int64(after)-int64(before))
	require.Greater(t, compiled, before+1<<20)
	require.Less(t, after, before+(compiled-before)/4)
	runtime.KeepAlive(r)
	q.Close()
}

// TestSelectorsOfAQueryShareItsLimit: what one selector has read is free when the next one is read, and counts no more.
func TestSelectorsOfAQueryShareItsLimit(t *testing.T) {
	const perSeries, series, most = 20_000, 8, 400_000
	clk := clock.NewSimulated(time.UnixMilli(midnight))
	w := newWorldOn(t, owning{Store: storagetest.NewModel(querytest.Settings(), retention, clk)}, clk)
	var sk sketch.Sketch
	for i := range 300 {
		sk.Add(math.Pow(1.1, float64(i)))
	}
	old := midnight - 60*day
	row := metric.Rollup{Count: 300, Sum: 1, Min: 1, Max: 2, First: 1, Last: 2, Sketch: sk.AppendEncoded(nil)}
	for i := range series {
		id := w.ID(querytest.Named("x", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
		var all []metric.Sample
		for k := range int64(perSeries) {
			all = append(all, metric.Sample{Schedule: id, TimeMs: midnight - hour + k*100, Value: float64(k)})
		}
		w.Put(all...)
		var rows []metric.RollupRow
		for at := old; at < old+10*day; at += hour {
			rows = append(rows, metric.RollupRow{Schedule: id, TimeMs: at, Rollup: row})
		}
		require.NoError(t, w.Store.WriteRollups(t.Context(), 0, 1, rows))
	}
	type asked struct {
		matcher     string // of a selector's matcher
		start, end  int64
		step        time.Duration
		fewer, more int // selectors
		everyReads  int // at which the heap is measured
	}
	exec := func(t *testing.T, a asked, selectors int) (held int64) {
		t.Helper()
		var parts []string
		for i := range selectors {
			parts = append(parts, "sum("+strings.ReplaceAll(a.matcher, "$", fmt.Sprintf(`x{i!="none%d"}`, i))+")")
		}
		engine, queryable := New(w.Querier, Options{MaxSamples: most, Timeout: time.Hour})
		q, err := engine.NewRangeQuery(t.Context(), queryable, nil, strings.Join(parts, " + "), time.UnixMilli(a.start), time.UnixMilli(a.end), a.step)
		require.NoError(t, err)
		defer q.Close()
		before := linear.Heap()
		var peak uint64
		reads := 0
		measure := func() {
			if reads++; reads%a.everyReads == 0 {
				peak = max(peak, linear.Heap())
			}
		}
		w.Store.OnRaw, w.Store.OnRollups = measure, measure
		defer func() { w.Store.OnRaw, w.Store.OnRollups = nil, nil }()
		r := q.Exec(t.Context())
		require.NoError(t, r.Err, "a selector counts while it is read")
		require.NotZero(t, peak)
		return int64(peak) - int64(before)
	}
	for name, a := range map[string]asked{
		"samples":   {matcher: "count_over_time($[1h])", start: midnight, end: midnight, step: time.Minute, fewer: 10, more: 80, everyReads: 10},
		"timestamp": {matcher: "timestamp($)", start: midnight - hour, end: midnight, step: time.Minute, fewer: 10, more: 80, everyReads: 10},
		"rows":      {matcher: "quantile_over_time(0.5, $[2h])", start: old + day, end: old + 9*day, step: time.Hour, fewer: 10, more: 80, everyReads: 10},
		"points":    {matcher: "max_over_time($[2h])", start: old + day, end: old + 9*day, step: time.Minute, fewer: 4, more: 40, everyReads: 4},
	} {
		t.Run(name, func(t *testing.T) {
			few, many := exec(t, a, a.fewer), exec(t, a, a.more)
			t.Logf("%d selectors hold %d bytes, %d hold %d; the limit allows %d", a.fewer, few, a.more, many, most*sampleBytes)
			require.Less(t, many, int64(2*most*sampleBytes))
		})
	}
}
