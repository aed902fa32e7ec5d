package query

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// SeriesBytes is what a series takes beside its labels, with its part of a page.
const SeriesBytes = seriesBytes + pageBytes/pageSize

// TestLabelsAreReadWithoutTheLock: who reads labels does not wait for a writer.
func TestLabelsAreReadWithoutTheLock(t *testing.T) {
	x := NewIndex()
	ls := metric.Labels{{Name: metric.NameLabel, Value: "m"}, {Name: "source", Value: "web"}}
	x.Add([]storage.Schedule{{ID: 7, Labels: ls}})
	x.mu.Lock()
	defer x.mu.Unlock()
	require.Equal(t, ls, x.Labels(7))
	require.Equal(t, "web", x.Packed(7).Get("source"))
	require.Zero(t, x.Packed(8).Len())
	values, err := x.valuesOf(t.Context(), "source", []metric.ScheduleID{7})
	require.NoError(t, err)
	require.Equal(t, []string{"web"}, values)
}

// TestPackedOrder: packed labels are in the order of their texts, whatever their numbers.
func TestPackedOrder(t *testing.T) {
	x := NewIndex()
	for i, text := range []string{"b", "a", "c"} {
		x.Add([]storage.Schedule{{ID: metric.ScheduleID(i), Labels: metric.Labels{{Name: "n", Value: text}}}})
	}
	x.Add([]storage.Schedule{
		{ID: 3, Labels: metric.Labels{{Name: "n", Value: "b"}, {Name: "o", Value: "x"}}},
		{ID: 4, Labels: metric.Labels{{Name: "m", Value: "z"}}},
	})
	order := []metric.ScheduleID{4, 1, 0, 3, 2} // m=z, n=a, n=b, n=b o=x, n=c
	for i, a := range order {
		for j, b := range order {
			got := x.Packed(a).Compare(x.Packed(b))
			require.Equal(t, [2]bool{i < j, i > j}, [2]bool{got < 0, got > 0}, "%s and %s", x.Labels(a), x.Labels(b))
		}
	}
}

// TestSeriesThatAreNotTaken: an index has no series without labels, and none whose id is out of range.
func TestSeriesThatAreNotTaken(t *testing.T) {
	x := NewIndex()
	ls := metric.Labels{{Name: metric.NameLabel, Value: "m"}}
	x.Add([]storage.Schedule{{ID: -1, Labels: ls}, {ID: metric.MaxScheduleID + 1, Labels: ls}, {ID: math.MaxInt64, Labels: ls}, {ID: 3}})
	require.Zero(t, x.Len())
	require.Zero(t, x.Bytes())
	require.Nil(t, x.Labels(metric.MaxScheduleID+1))
}

// TestReplacedLabelsLeaveNoTrace: labels that take the place of others again and again take no more and more memory.
func TestReplacedLabelsLeaveNoTrace(t *testing.T) {
	x := NewIndex()
	labels := func(i int) metric.Labels {
		ls := metric.Labels{{Name: metric.NameLabel, Value: "m"}}
		for j := range 10 {
			ls = append(ls, metric.Label{Name: fmt.Sprint("n", j), Value: fmt.Sprint(i % 2)})
		}
		return ls
	}
	for id := range metric.ScheduleID(100) {
		x.Add([]storage.Schedule{{ID: id, Labels: labels(0)}})
	}
	held := func() int { return len(*x.pages.page(0).refs.Load()) }
	before := held()
	for i := range 2000 {
		x.Add([]storage.Schedule{{ID: metric.ScheduleID(i % 100), Labels: labels(i/100 + 1)}})
	}
	require.Less(t, held(), 4*before)
	for id := range metric.ScheduleID(100) {
		require.Equal(t, labels(20), x.Labels(id))
	}
}

// TestPatternsAreBounded: what is remembered of patterns is counted, and bounded.
func TestPatternsAreBounded(t *testing.T) {
	var p patterns
	long := strings.Repeat("x", 100_000)
	for i := range 300 {
		p.put(pattern{"n", fmt.Sprint(i, long), true}, 2000, make([]uint32, i))
		require.LessOrEqual(t, p.bytes.Load(), int64(maxPatternsBytes))
	}
	require.Greater(t, p.bytes.Load(), int64(maxPatternsBytes*9/10))
	sum := int64(0)
	for key, m := range p.all {
		sum += m.bytes(key)
	}
	require.Equal(t, sum, p.bytes.Load())
	newest := pattern{"n", fmt.Sprint(299, long), true}
	looked, found := p.get(newest, 2000)
	require.Equal(t, 2000, looked)
	require.Len(t, found, 299)

	// One that takes most of the room is not remembered, nor is one that has looked at less.
	p.put(pattern{"n", "much", true}, 1<<20, make([]uint32, 1<<20))
	looked, _ = p.get(pattern{"n", "much", true}, 1<<20)
	require.Zero(t, looked)
	p.put(newest, 1500, nil)
	looked, found = p.get(newest, 2000)
	require.Equal(t, 2000, looked)
	require.Len(t, found, 299)
	looked, found = p.get(newest, 1999) // another has seen more values than this reader
	require.Zero(t, looked)
	require.Empty(t, found)
}

// TestRunsOfAGroup: of few series that lie apart, only their own rows are read.
func TestRunsOfAGroup(t *testing.T) {
	runs := func(ids ...metric.ScheduleID) []blocks.Range { return Group{ids: ids}.runs() }
	require.Equal(t, []blocks.Range{{Start: 5, End: 6}}, runs(5))
	require.Equal(t, []blocks.Range{{Start: 5, End: 9}}, runs(5, 8), "close together")
	require.Equal(t, []blocks.Range{{Start: 5, End: 7}, {Start: 50, End: 51}, {Start: 90, End: 93}}, runs(5, 6, 50, 90, 91, 92))
	var many []metric.ScheduleID
	for i := range metric.ScheduleID(fewRuns + 1) {
		many = append(many, 7*i)
	}
	require.Equal(t, []blocks.Range{{Start: 0, End: 7*fewRuns + 1}}, runs(many...))
	require.Equal(t, []metric.ScheduleID{6, 90}, Group{ids: []metric.ScheduleID{5, 6, 50, 90}}.Only([]int{1, 3}).IDs())
}
