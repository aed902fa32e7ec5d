package query_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// everySeries selects all series.
func everySeries(t testing.TB) []query.Selector { return parsed(t, `{__name__!=""}`) }

func parsed(t testing.TB, all ...string) []query.Selector {
	t.Helper()
	sels, err := query.ParseSelectors(t.Context(), all)
	require.NoError(t, err)
	return sels
}

// TestCardinality: the numbers are those of the series, by the postings of all and by the labels of the matched.
func TestCardinality(t *testing.T) {
	w := newWorld(t, querytest.Settings(), nil)
	rng := rand.New(rand.NewPCG(3, 4))
	series := map[metric.ScheduleID]metric.Labels{}
	for range 2 { // the second time, most series get other labels
		for id := range metric.ScheduleID(3000) {
			if series[id] != nil && rng.IntN(10) == 0 {
				continue
			}
			series[id] = querytest.Named(fmt.Sprint("m", rng.IntN(40)),
				metric.Label{Name: metric.SourceLabel, Value: fmt.Sprint("web-", rng.IntN(300))}, metric.Label{Name: fmt.Sprint("l", rng.IntN(5)), Value: fmt.Sprint(rng.IntN(2000))})
			w.index.Add([]storage.Schedule{{ID: id, Labels: series[id]}})
		}
	}
	count := func(keep func(metric.Labels) bool) (pairs map[[2]string]int, n int) {
		pairs = make(map[[2]string]int)
		for _, ls := range series {
			if keep(ls) {
				n++
				for _, l := range ls {
					pairs[[2]string{l.Name, l.Value}]++
				}
			}
		}
		return pairs, n
	}
	check := func(got *query.Cardinality, pairs map[[2]string]int, n int) {
		t.Helper()
		require.Equal(t, n, got.Series)
		require.Equal(t, len(pairs), got.Pairs)
		require.Equal(t, 7, got.Labels)
		require.Len(t, got.ByValues, 7)
		require.Len(t, got.ByBytes, 7)
		require.True(t, slices.IsSortedFunc(got.ByValues, func(a, b query.LabelCount) int { return b.Values - a.Values }))
		require.True(t, slices.IsSortedFunc(got.ByBytes, func(a, b query.LabelCount) int { return int(b.Bytes - a.Bytes) }))
		require.ElementsMatch(t, got.ByValues, got.ByBytes)
		require.Len(t, got.ByMetric, 10)
		for _, l := range got.ByValues {
			values, sum := 0, 0
			for pair, n := range pairs {
				if pair[0] == l.Name {
					values++
					sum += n
				}
			}
			require.Equal(t, [2]int{values, sum}, [2]int{l.Values, l.Series}, l.Name)
		}
		for _, list := range [][]query.PairCount{got.ByPair, got.ByMetric, got.BySource} {
			require.Len(t, list, 10)
			for i, p := range list {
				require.Equal(t, pairs[[2]string{p.Name, p.Value}], p.Series)
				require.True(t, i == 0 || list[i-1].Series >= p.Series)
			}
			beyond := 0 // as many have more than the last
			for pair, n := range pairs {
				if n > list[9].Series && (list[0].Name == pair[0] || list[0] == got.ByPair[0]) {
					beyond++
				}
			}
			require.LessOrEqual(t, beyond, 10)
		}
		require.Equal(t, metric.NameLabel, got.ByMetric[0].Name)
		require.Equal(t, metric.SourceLabel, got.BySource[0].Name)
	}
	ask := func(limit int, label string, sels ...query.Selector) *query.Cardinality {
		t.Helper()
		got, err := w.q.Cardinality(t.Context(), limit, label, new(query.Warnings), sels...)
		require.NoError(t, err)
		return got
	}
	pairs, n := count(func(metric.Labels) bool { return true })
	all := ask(10, "")
	check(all, pairs, n)
	require.Equal(t, all, ask(10, "", everySeries(t)...))
	require.Equal(t, ask(query.MaxTop, ""), ask(query.MaxTop, "", everySeries(t)...))
	some, m := count(func(ls metric.Labels) bool { return ls.Get(metric.NameLabel) < "m2" })
	check(ask(10, "", parsed(t, `{__name__=~"m[01].*"}`)...), some, m)

	reply := ask(3, "l2")
	require.Len(t, reply.ByPair, 3)
	for _, p := range reply.ByPair {
		require.Equal(t, "l2", p.Name)
	}
	require.Len(t, reply.ByMetric, 3)

	// The estimate of the memory is that of the index.
	sum := int64(query.SeriesBytes * n)
	for _, l := range all.ByBytes {
		sum += l.Bytes
	}
	t.Logf("%d bytes, and %d by labels", w.index.Bytes(), sum)
	require.InEpsilon(t, w.index.Bytes(), sum, 0.1)
}

// TestCardinalityIsBounded: lists, memory and work are bounded, and a request that has gone is not answered.
func TestCardinalityIsBounded(t *testing.T) {
	w := newWorld(t, querytest.Settings(), nil)
	for id := range metric.ScheduleID(20_000) {
		w.series(id, "cpu", fmt.Sprint("web-", id))
	}
	for _, limit := range []int{0, -1, query.MaxTop + 1} {
		_, err := w.q.Cardinality(t.Context(), limit, "", new(query.Warnings))
		require.ErrorAs(t, err, new(*query.RequestError))
	}
	ended, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	for _, sels := range [][]query.Selector{nil, everySeries(t)} {
		_, err := w.q.Cardinality(ended, 10, "", new(query.Warnings), sels...)
		require.ErrorIs(t, err, gone)
		claim := limits.NewBudget(2<<20, 1<<20).Claim(limits.Client{})
		charged := limits.WithClaim(t.Context(), &claim)
		_, err = w.q.Cardinality(charged, query.MaxTop, "", new(query.Warnings), sels...)
		require.ErrorIs(t, err, limits.ErrNoRoom)
	}
	// The values of what is matched take memory.
	claim := limits.NewBudget(2<<20, 1<<20).Claim(limits.Client{})
	_, err := w.q.Cardinality(limits.WithClaim(t.Context(), &claim), 10, "", new(query.Warnings))
	require.NoError(t, err)
	claim.Release()
	small := limits.NewBudget(1<<20, 1<<19).Claim(limits.Client{})
	_, err = w.q.Cardinality(limits.WithClaim(t.Context(), &small), 10, "", new(query.Warnings), everySeries(t)...)
	require.ErrorIs(t, err, limits.ErrNoRoom)
}

// TestDays: each series counts on the day of its last sample, and on the day on which the index met it.
func TestDays(t *testing.T) {
	onEachStoreKeeping(t, nil, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(20) {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
		put := func(id metric.ScheduleID, atMs int64) { w.put(metric.Sample{Schedule: id, TimeMs: atMs, Value: 1}) }
		today := metric.AlignDown(noon, day)
		for id := range metric.ScheduleID(20) {
			put(id, today-5*day)
		}
		put(1, today-3*day)
		put(2, today-3*day)
		put(2, today-day)
		put(3, today-1)
		put(9, today)
		put(10, noon)
		days := func(n int, sels ...query.Selector) (string, int64) {
			t.Helper()
			warn := new(query.Warnings)
			got, sinceMs, err := w.q.Days(t.Context(), n, warn, sels...)
			require.NoError(t, err)
			require.Empty(t, warn.List())
			text := ""
			for i, d := range got {
				require.Equal(t, today-int64(n-1-i)*day, d.StartMs)
				text += fmt.Sprintf("%d/%d ", d.Last, d.Met)
			}
			return text, sinceMs
		}
		for range 2 { // the second time it is known
			got, sinceMs := days(7)
			require.Equal(t, "0/0 15/0 0/0 1/0 0/0 2/0 2/0 ", got)
			require.Zero(t, sinceMs)
			got, _ = days(2, parsed(t, `{source=~"web-(2|3|10|19)"}`)...)
			require.Equal(t, "2/0 1/0 ", got)
		}
		w.index.CountNew(w.clock)
		w.series(3, "cpu", "web-3") // known
		w.series(20, "cpu", "web-20")
		w.clock.Set(w.clock.Now().Add(24 * time.Hour))
		today += day
		w.series(21, "cpu", "web-21")
		w.series(22, "mem", "web-22")
		got, sinceMs := days(3)
		require.Equal(t, "2/0 2/1 0/2 ", got)
		require.Equal(t, noon, sinceMs)
		got, _ = days(3, parsed(t, "cpu")...)
		require.Equal(t, "2/0 2/1 0/1 ", got)
	})
	w := newWorld(t, querytest.Settings(), nil)
	w.series(0, "cpu", "web")
	for _, n := range []int{0, -1, query.MaxDays + 1} {
		_, _, err := w.q.Days(t.Context(), n, new(query.Warnings))
		require.ErrorAs(t, err, new(*query.RequestError))
	}
	claim := limits.NewBudget(20, 10).Claim(limits.Client{})
	_, _, err := w.q.Days(limits.WithClaim(t.Context(), &claim), 1, new(query.Warnings))
	require.ErrorIs(t, err, limits.ErrNoRoom)
}
