package query_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
)

// TestLevelsOfGroups: a group counts once, however often it is read, and damage shows where it is.
func TestLevelsOfGroups(t *testing.T) {
	w := newPebbleWorld(t, querytest.Settings(), nil)
	for id := range metric.ScheduleID(20) {
		w.series(id, "cpu", fmt.Sprint("web-", id))
	}
	w.fill([]metric.ScheduleID{0, 9, 19}, noon-2*hour, noon, 10*minute, func(metric.ScheduleID, int64) float64 { return 1 })
	sels, err := query.ParseSelectors(t.Context(), []string{"cpu"})
	require.NoError(t, err)
	groups, err := w.q.Groups(t.Context(), sels...)
	require.NoError(t, err)
	require.Len(t, groups, 3)

	var levels query.Levels
	all, some := new(query.Warnings), new(query.Warnings)
	reads := levels.Selector("cpu")
	warn := reads.Warnings(all)
	read := func(g query.Group, warn *query.Warnings, fromMs int64) {
		t.Helper()
		require.NoError(t, g.Samples(t.Context(), fromMs, noon, warn, nil, func(int, []metric.Sample) error { return nil }))
	}
	for range 2 {
		for _, g := range groups {
			read(g, warn, noon-2*hour)
		}
	}
	other := levels.Selector("cpu[5m]").Warnings(some)
	read(groups[2], other, noon-hour)
	warn.Add("text")
	other.Add("other text")
	require.Equal(t, []string{"text"}, all.List())
	require.Equal(t, all.List(), warn.List())
	require.Equal(t, []string{"other text"}, some.List())
	list, more := levels.List()
	require.Zero(t, more)
	require.Equal(t, []query.SelectorLevels{
		{Selector: "cpu", Parts: []query.LevelPart{{StartMs: noon - 2*hour, EndMs: noon, Series: 20}}},
		{Selector: "cpu[5m]", Parts: []query.LevelPart{{StartMs: noon - hour, EndMs: noon, Series: 4}}},
	}, list)
}

// TestLevelsAreBounded: the parts, the selectors, their texts and the bytes have bounds, and what is beyond is said.
func TestLevelsAreBounded(t *testing.T) {
	w := newPebbleWorld(t, querytest.Settings(), nil)
	for id := range metric.ScheduleID(8 * 9000) {
		if id%8 == 0 {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
	}
	sels, err := query.ParseSelectors(t.Context(), []string{"cpu"})
	require.NoError(t, err)
	groups, err := w.q.Groups(t.Context(), sels...)
	require.NoError(t, err)
	require.Len(t, groups, 9000)

	var levels query.Levels
	reads := levels.Selector(strings.Repeat("é", 5000))
	for i, g := range groups { // each has its own time
		fromMs := noon - 200*hour + int64(2*i)
		require.NoError(t, g.Samples(t.Context(), fromMs, fromMs+1, reads.Warnings(new(query.Warnings)), nil, nil))
	}
	for range 150 {
		levels.Selector("more")
	}
	list, more := levels.List()
	require.Equal(t, 51, more)
	require.Len(t, list, 100)
	require.True(t, list[0].Cut)
	require.Len(t, list[0].Parts, 500)
	// The newest that were recorded.
	require.Equal(t, noon-200*hour+2*(1<<13-1), list[0].Parts[499].StartMs)
	require.Less(t, len(list[0].Selector), 1100)

	// Without a record there is nothing.
	var nothing *query.Levels
	require.Nil(t, nothing.Selector("x"))
	plain := new(query.Warnings)
	require.Same(t, plain, nothing.Selector("x").Warnings(plain))
}
