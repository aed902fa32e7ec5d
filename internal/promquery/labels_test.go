package promquery

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/linear"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
)

// wide adds series with long labels, and a sample each.
func (w *world) wide(name string, series int) (bytes int) {
	long := strings.Repeat("x", 4000)
	var samples []metric.Sample
	for i := range series {
		ls := []metric.Label{{Name: "i", Value: fmt.Sprint(i)}, {Name: "job", Value: fmt.Sprint(i % 3)}}
		for j := range 60 {
			ls = append(ls, metric.Label{Name: fmt.Sprintf("l%d", j), Value: long})
			bytes += len(long)
		}
		samples = append(samples, metric.Sample{Schedule: w.ID(querytest.Named(name, ls...)), TimeMs: now - second, Value: 1})
	}
	w.Put(samples...)
	return bytes
}

// arms joins n variants of an expression, in which $ is the number of the variant.
func arms(n int, expr string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(expr, "$", fmt.Sprint(i))
	}
	return strings.Join(all, " or ")
}

// TestMadeLabelSetsCount: what copies the labels of series counts them against the query's limit.
func TestMadeLabelSetsCount(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	size := w.wide("m", 10)
	w.wide("n", 10)
	opts := Options{MaxSamples: 16 * size / sampleBytes}
	for _, expr := range []string{
		`label_replace(m,"a","$","","")`,
		`label_replace(m{i!="x$"},"a","$","","")`,
		`label_join(m,"a$","")`,
		`sum without (x$) (m)`,
		`sum by (i,job,` + names(60) + `) (m)`,
		`m + ignoring (x$) n`,
		`m * on (i) group_left () n`,
		`n * on (i) group_right () m`,
		`count_values without (x$) ("v", m)`,
		`abs(label_replace(m,"A","$","",""))`,
		`-label_replace(m,"A","$","","")`,
		`label_replace(m,"A","$","","") * 2`,
		`last_over_time(label_replace(m,"a","$","","")[10s:5s])`,
		`topk(100,label_replace(m,"a","$","",""))`,
	} {
		for _, n := range []int{1, 6, 50} {
			held, _, err := w.holds(opts, arms(n, expr))
			switch n {
			case 1:
				require.NoError(t, err, expr)
			case 50:
				require.ErrorContains(t, err, "--query-max-samples", expr)
			}
			t.Logf("%d × %s: %.1f times the labels: %v", n, expr, float64(held)/float64(size), err != nil)
			require.Less(t, held, int64(opts.MaxSamples*sampleBytes), expr)
		}
	}
}

// holds returns the bytes that the result of an expression holds, and those that were weighed.
func (w *world) holds(opts Options, expr string) (held int64, weighed float64, err error) {
	engine, queryable := New(w.Querier, opts)
	before := linear.Heap()
	q, err := engine.NewInstantQuery(w.t.Context(), queryable, nil, expr, time.UnixMilli(now))
	require.NoError(w.t, err, expr)
	defer q.Close()
	weigher := q.(*preparedQuery).prep.weigher
	r := q.Exec(w.t.Context())
	if r.Err == nil {
		weighed = weigher.eval(weigher.expr, weigher.grid).most * sampleBytes
		counted := make(map[*labels.Labels]bool)
		for _, sel := range weigher.selected {
			for _, f := range sel.series {
				if of := f.named; !counted[of] {
					counted[of] = true
					weighed += float64(namedBytes + labelBytes(f.stored))
				}
			}
		}
	}
	weigher = nil
	after := linear.Heap()
	runtime.KeepAlive(r)
	return int64(after) - int64(before), weighed, r.Err
}

// names lists l0 and so on.
func names(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("l%d", i)
	}
	return strings.Join(all, ",")
}

// TestLabelsAreWeighedNearly: what is weighed of labels is no less than what is held, and little
// more, so that queries over many series run.
func TestLabelsAreWeighedNearly(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	size := float64(w.wide("m", 30))
	w.wide("n", 30)
	for expr, most := range map[string]float64{ // of the labels of a metric
		`m`: 1, `abs(m)`: 1, `sum(m)`: 1, `m * 2`: 1, `-m`: 1, `rate(m[1m])`: 1, `m == 1`: 1, `topk(100, m)`: 1,
		`m or n`: 4, `m and n`: 4, `m and on (i) n`: 2.1, `m + n`: 7, `m * on (i) group_left () n`: 5.1, `m + on (i) n`: 4.1,
		`label_replace(m,"a","b","","")`: 2, `sum without (x) (m)`: 2, `sum by (i) (label_replace(m,"a","b","",""))`: 2,
		`label_replace(label_replace(m,"a","b","",""),"b","c","","")`: 3, `abs(label_replace(m,"A","b","",""))`: 3,
		arms(4, `label_replace(m,"a","$","","")`): 9,
	} {
		held, weighed, err := w.holds(Options{}, expr)
		require.NoError(t, err, expr)
		t.Logf("%s: the result holds %.1f times the labels, weighed %.1f times", expr, float64(held)/size, weighed/size)
		require.Less(t, float64(held), 1.2*weighed, expr)
		require.Less(t, weighed, 1.05*most*size, expr)
	}
}

// TestSelectorsShareLabels: selectors that differ hold the labels of a series once.
func TestSelectorsShareLabels(t *testing.T) {
	const series = 60
	w := newWorld(t, "model", retention, now)
	size := w.wide("m", series)
	held := func(most, selectors int) (int64, error) {
		_, queryable := New(w.Querier, Options{MaxSamples: most})
		q, err := queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		var all []promstorage.Series
		before := linear.Heap()
		for i := range selectors {
			set := q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"),
				labels.MustNewMatcher(labels.MatchNotEqual, "i", fmt.Sprintf("x%d", i)))
			for set.Next() {
				all = append(all, set.At())
				require.False(t, set.At().Labels().IsEmpty())
			}
			if err = set.Err(); err != nil {
				break
			}
		}
		after := linear.Heap()
		runtime.KeepAlive(all)
		require.NoError(t, q.Close())
		return int64(after) - int64(before), err
	}
	few, err := held(2*size/sampleBytes, 1)
	require.NoError(t, err)
	many, err := held(2*size/sampleBytes, 40)
	require.NoError(t, err)
	require.Less(t, many, 2*few)
	_, err = held(size/2/sampleBytes, 1)
	var bad *query.RequestError
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "--query-max-samples")
}

// TestSeriesCount: a selector's series count by what they take, besides their labels.
func TestSeriesCount(t *testing.T) {
	const series, selectors = 2000, 40
	w := newWorld(t, "model", retention, now)
	for i := range series {
		w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
	}
	for name, matcher := range map[string]string{"the same": "x", "different": "x%d"} {
		s, err := w.queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		q := s.(*querier)
		var all []promstorage.Series
		before := linear.Heap()
		for i := range selectors {
			value := matcher
			if strings.Contains(matcher, "%") {
				value = fmt.Sprintf(matcher, i)
			}
			set := q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"), labels.MustNewMatcher(labels.MatchNotEqual, "i", value))
			for set.Next() {
				all = append(all, set.At())
				set.At().Labels()
			}
			require.NoError(t, set.Err())
		}
		after := linear.Heap()
		counted := float64(q.account.found.Load() * sampleBytes)
		taken := float64(int64(after) - int64(before))
		t.Logf("%s: %.0f bytes, counted as %.0f", name, taken, counted)
		require.Less(t, taken, 1.2*counted, name)
		require.Greater(t, taken, 0.5*counted, name)
		runtime.KeepAlive(all)
		require.NoError(t, q.Close())
	}
}

// TestListedSeriesHoldNoLabels: a list of series is sent series by series.
func TestListedSeriesHoldNoLabels(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	size := w.wide("m", 60)
	_, queryable := New(w.Querier, Options{MaxSamples: size / 100 / sampleBytes})
	q, err := queryable.Querier(math.MinInt64, now)
	require.NoError(t, err)
	before := linear.Heap()
	var all []promstorage.Series
	set := q.Select(t.Context(), true, &promstorage.SelectHints{Start: math.MinInt64, End: now, Func: "series"}, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"))
	for set.Next() {
		all = append(all, set.At())
		require.Equal(t, "m", set.At().Labels().Get(metric.NameLabel))
	}
	require.NoError(t, set.Err())
	after := linear.Heap()
	require.Len(t, all, 60)
	require.Less(t, int64(after)-int64(before), int64(size/10))
	runtime.KeepAlive(all)
	require.NoError(t, q.Close())
}
