package query_test

import (
	"context"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/treecheck/linear"
)

func labelsOf(t testing.TB, pairs ...string) metric.Labels {
	t.Helper()
	var ls []metric.Label
	for i := 0; i < len(pairs); i += 2 {
		ls = append(ls, metric.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	out, err := metric.NewLabels(ls...)
	require.NoError(t, err)
	return out
}

func selectIDs(t testing.TB, x *query.Index, sels ...string) []metric.ScheduleID {
	t.Helper()
	parsed, err := query.ParseSelectors(t.Context(), sels)
	require.NoError(t, err)
	ids, err := x.Select(t.Context(), parsed...)
	require.NoError(t, err)
	return ids
}

func TestLabelsOfAll(t *testing.T) {
	x := query.NewIndex()
	all := []metric.Labels{
		labelsOf(t, "__name__", "cpu", "core", "0", "source", "web-1"),
		labelsOf(t, "__name__", "cpu", "core", "0", "source", "db-1"),
		labelsOf(t, "__name__", "mem", "source", "web-10"),
	}
	for _, i := range []int{1, 0, 2, 1} { // out of order, with a page between them, and one twice
		x.Add([]storage.Schedule{{ID: metric.ScheduleID(i * 600), Labels: all[i]}})
	}
	require.Equal(t, 3, x.Len())
	require.Equal(t, all[2], x.Labels(1200))
	for _, id := range []metric.ScheduleID{-1, 1201, 1 << 40} {
		require.Nil(t, x.Labels(id))
	}
	names, err := x.LabelNames(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"__name__", "core", "source"}, names)
	for name, want := range map[string][]string{"source": {"db-1", "web-1", "web-10"}, "none": nil} {
		values, err := x.LabelValues(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, want, values)
	}
}

func TestBadSelectors(t *testing.T) {
	for _, sels := range [][]string{nil, {""}, {"{}"}, {`{a=~".*"}`}, {`{a=""}`}, {`cpu{`}, {`{a=~"("}`}, {"cpu[5m]"}, {"cpu", "{}"}} {
		_, err := query.ParseSelectors(t.Context(), sels)
		var bad *query.RequestError
		require.ErrorAs(t, err, &bad, "%v", sels)
		require.NotContains(t, err.Error(), "\n")
	}
}

// Series of this process are found at once, series of another process after a refresh.
func TestIndexLearnsOfNewSeries(t *testing.T) {
	st := storagetest.NewModel(querytest.Settings(), nil, clock.System{})
	register := func(r *registry.Registry, source string, n int) {
		src, err := r.Source(t.Context(), source, false)
		require.NoError(t, err)
		var all []metric.Labels
		for i := range n {
			all = append(all, labelsOf(t, "__name__", "cpu", "core", strconv.Itoa(i)))
		}
		_, err = src.Register(t.Context(), all)
		require.NoError(t, err)
	}
	register(registry.New(st, registry.Options{}), "old", 700)
	x := query.NewIndex()
	require.NoError(t, x.Refresh(t.Context(), st))
	require.Len(t, selectIDs(t, x, `{source="old"}`), 700)

	register(registry.New(st, registry.Options{OnNew: x.Add}), "new", 10)
	require.Len(t, selectIDs(t, x, `cpu{source="new"}`), 10)

	other := registry.New(st, registry.Options{})
	register(other, "other", 1500)
	register(other, "old", 701)
	require.Empty(t, selectIDs(t, x, `{source="other"}`))
	require.NoError(t, x.Refresh(t.Context(), st))
	require.Len(t, selectIDs(t, x, `{source="other"}`), 1500)
	require.Len(t, selectIDs(t, x, `{source="old"}`), 701)
	require.Equal(t, 700+10+1500+1, x.Len())

	require.NoError(t, st.Close())
	require.ErrorIs(t, x.Refresh(t.Context(), st), storage.ErrUnavailable)
}

// Of many reads some fail. Refresh retries these, and repeats none that succeeded.
func TestRefreshOverFailures(t *testing.T) {
	st := storagetest.NewFaulty(storagetest.NewModel(querytest.Settings(), nil, clock.System{}))
	src, err := registry.New(st, registry.Options{LeaseSize: 20_000}).Source(t.Context(), "s", false)
	require.NoError(t, err)
	var all []metric.Labels
	for i := range 10_000 {
		all = append(all, labelsOf(t, "__name__", "m", "i", strconv.Itoa(i)))
	}
	_, err = src.Register(t.Context(), all)
	require.NoError(t, err)
	x := query.NewIndex()
	st.Fail("Schedules", blocks.Range{}, 4, storage.ErrTimeout)
	require.NoError(t, x.Refresh(t.Context(), st))
	require.Equal(t, 10_000, x.Len())
	require.Equal(t, 4+5, st.Count("Schedules"), "four that failed, and five parts")

	st.Fail("Schedules", blocks.Range{}, -1, storage.ErrTimeout)
	require.ErrorIs(t, query.NewIndex().Refresh(t.Context(), st), storage.ErrTimeout)
	st.Heal()
	st.Fail("Schedules", blocks.Range{}, 1, storage.ErrCorrupt)
	require.ErrorIs(t, query.NewIndex().Refresh(t.Context(), st), storage.ErrCorrupt)
}

// hostSchedules returns a host's 100 series with five labels, as agents report them.
func hostSchedules(host int) []storage.Schedule {
	out := make([]storage.Schedule, 100)
	for i := range out {
		out[i] = storage.Schedule{ID: metric.ScheduleID(host*100 + i), Labels: metric.Labels{
			{Name: "__name__", Value: fmt.Sprint("metric_of_a_host_", i)},
			{Name: "datacenter", Value: fmt.Sprint("dc-", host%4)},
			{Name: "device", Value: fmt.Sprint("dev-", i%8)},
			{Name: "instance", Value: fmt.Sprintf("10.0.%d.%d:9100", host/256, host%256)},
			{Name: "source", Value: fmt.Sprint("host-", host)},
		}}
	}
	return out
}

// TestBytesAreWhatIsHeld: the index knows what it holds, and what the registry holds of the same series, rounded up.
func TestBytesAreWhatIsHeld(t *testing.T) {
	made := func(labels, bytes int) func(i int) []storage.Schedule {
		return func(i int) []storage.Schedule {
			ls := metric.Labels{{Name: metric.NameLabel, Value: "m"}}
			for l := range labels {
				ls = append(ls, metric.Label{Name: fmt.Sprintf("l%02d", l), Value: fmt.Sprintf("%0*d", bytes, i*labels+l)})
			}
			return []storage.Schedule{{ID: metric.ScheduleID(i), Labels: ls}}
		}
	}
	for name, c := range map[string]struct {
		n    int
		some func(i int) []storage.Schedule
	}{
		"hosts":  {200, hostSchedules},
		"short":  {2000, made(60, 8)},
		"long":   {500, made(60, 1000)},
		"single": {20_000, made(1, 8)},
		"late":   {200, func(i int) []storage.Schedule { return hostSchedules(199 - i) }},
	} {
		t.Run(name, func(t *testing.T) {
			before := inUse()
			x := query.NewIndex()
			x.CountNew(clock.System{})
			src, err := registry.New(new(forgetful), registry.Options{}).Source(t.Context(), "", true)
			require.NoError(t, err)
			for i := range c.n {
				all := c.some(i)
				var labels []metric.Labels
				for _, s := range all {
					labels = append(labels, s.Labels)
				}
				_, err := src.Register(t.Context(), labels)
				require.NoError(t, err)
				x.Add(all)
			}
			held := float64(inUse() - before)
			charged := float64(x.Bytes())
			t.Logf("%d series: %.0f bytes, charged %.2f of it", x.Len(), held, charged/held)
			require.Greater(t, charged, held)
			require.Less(t, charged, 2*held)
			if name == "hosts" {
				require.Less(t, held/float64(x.Len()), 1024.0, "of an idle series")
			}
			runtime.KeepAlive(x)
			runtime.KeepAlive(src)

			// Other labels take the place of those that an id had.
			all := c.some(0)
			x.Add([]storage.Schedule{{ID: all[0].ID, Labels: metric.Labels{{Name: metric.NameLabel, Value: "other"}}}})
			x.Add(all)
			require.InDelta(t, charged, float64(x.Bytes()), 2000)
		})
	}
}

// fleet returns the series with an id: it shares three labels with all others.
func fleet(id int) storage.Schedule {
	return storage.Schedule{ID: metric.ScheduleID(id), Labels: metric.Labels{
		{Name: metric.NameLabel, Value: "m" + strconv.Itoa(id%500)},
		{Name: "env", Value: "prod"},
		{Name: "job", Value: "node"},
		{Name: "region", Value: "eu"},
	}}
}

func fleetOf(ids iter.Seq[int]) (all []storage.Schedule) {
	for id := range ids {
		all = append(all, fleet(id))
	}
	return all
}

// upTo yields the numbers from first below end, by steps.
func upTo(first, end, step int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := first; i < end && yield(i); i += step {
		}
	}
}

// TestLateIDsCopyNoLists: series whose ids are below others cost the same whatever the number of
// series that share their labels, at once and one by one.
func TestLateIDsCopyNoLists(t *testing.T) {
	const more = 500
	for name, piece := range map[string]int{"at once": more, "one by one": 1} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) int64 {
				x := query.NewIndex()
				x.Add(fleetOf(upTo(0, n, 1)))
				x.Add([]storage.Schedule{fleet(n + more)})
				late := fleetOf(upTo(n, n+more, 1))
				return allocated(func() {
					for some := range slices.Chunk(late, piece) {
						x.Add(some)
					}
				})
			}
			few, many := cost(10_000), cost(160_000)
			t.Logf("among 10,000 series %d bytes, among 160,000 %d", few, many)
			require.Less(t, many, 8*few, "a copy of a list takes 16 times as much; the map of all series grows in steps")
		})
	}
}

// Each process that was started leaves the rest of a lease unused. Looking for series in that rest
// costs ever less, and in the end nothing. A series that is claimed there later is still found.
func TestPollingDoesNotGrowWithRestarts(t *testing.T) {
	clk := clock.NewSimulated(time.UnixMilli(noon))
	st := storagetest.NewFaulty(storagetest.NewModel(querytest.Settings(), nil, clk))
	register := func(r *registry.Registry, name string) {
		t.Helper()
		src, err := r.Source(t.Context(), "s", false)
		require.NoError(t, err)
		_, err = src.Register(t.Context(), []metric.Labels{labelsOf(t, "__name__", name)})
		require.NoError(t, err)
	}
	x := query.NewIndex()
	poll := func(n int) (reads int) {
		t.Helper()
		st.Forget()
		for range n {
			clk.Set(clk.Now().Add(query.RefreshEvery))
			require.NoError(t, x.Refresh(t.Context(), st))
		}
		return st.Count("Schedules")
	}
	start := func() *registry.Registry {
		return registry.New(st, registry.Options{Clock: clk, LeaseAge: registry.LeaseAge})
	}
	const hour = int(time.Hour / query.RefreshEvery)
	for i := range 100 {
		register(start(), fmt.Sprint("m", i))
		poll(hour / 10)
		require.Equal(t, i+1, x.Len())
	}
	reads := poll(hour)
	require.Less(t, reads, 3*hour, "of 100 leases")

	// A slow process is found after an eighth of its idle time, here at most about six minutes.
	slow := start()
	register(slow, "slow")
	poll(hour)
	require.Equal(t, 101, x.Len())
	register(slow, "slow too")
	poll(64)
	require.Equal(t, 102, x.Len())
	// A process that registers continuously is found at once.
	for i := range 20 {
		register(slow, fmt.Sprint("soon", i))
		poll(1)
		require.Equal(t, 103+i, x.Len())
	}

	// After a day nothing is read any more, and a process that still runs uses a new lease, which
	// is read.
	for range 25 {
		poll(hour)
	}
	require.Zero(t, poll(hour))
	register(slow, "late")
	poll(1)
	require.Equal(t, 123, x.Len())
}

// many returns an index of n series m, which differ in the label i.
func many(t testing.TB, n int) *query.Index {
	x, series := query.NewIndex(), make([]storage.Schedule, n)
	for i := range series {
		series[i] = storage.Schedule{ID: metric.ScheduleID(i), Labels: labelsOf(t, metric.NameLabel, "m", "i", strconv.Itoa(i))}
	}
	x.Add(series)
	return x
}

// The cost is linear in the number of selectors, and of matchers in a selector, whether or not they
// match the same series. A series that several selectors match is held once.
func TestSelectIsLinear(t *testing.T) {
	x := many(t, 2000)
	for name, input := range map[string]func(n int) []string{
		"the same": func(n int) []string { return slices.Repeat([]string{"m"}, n) },
		"different": func(n int) []string {
			var out []string
			for i := range n {
				out = append(out, fmt.Sprintf(`m{i!="%d"}`, i))
			}
			return out
		},
		"matchers": func(n int) []string {
			var out strings.Builder
			for i := range n / 4 {
				fmt.Fprintf(&out, `i=~".+|x%d",`, i)
			}
			return []string{"m{" + out.String() + "}"}
		},
	} {
		linear.Check(t, 100, func(n int) []query.Selector {
			sels, err := query.ParseSelectors(t.Context(), input(n))
			require.NoError(t, err)
			return sels
		}, func(sels []query.Selector) {
			if _, err := x.Select(t.Context(), sels...); err != nil {
				t.Error(name, err)
			}
		})
	}
}

// until is a context that ends after a number of calls of Err.
type until struct {
	context.Context
	left *int
}

func (u until) Err() error {
	if *u.left--; *u.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestSelectEnds: a selection looks at the context between selectors, between matchers, and within each.
func TestSelectEnds(t *testing.T) {
	differ, share := many(t, 2000), same(t, 20_000)
	for _, c := range []struct {
		x     *query.Index
		sels  []string
		looks []int // at which the context ends
	}{
		{differ, []string{`m{i=~".+1"}`}, []int{0, 1, 7, 30, 1500}}, // a pattern may take a second for one value
		{differ, []string{`m{i!~".+1"}`}, []int{0, 1, 7, 30, 1500}},
		{differ, slices.Repeat([]string{`m{i=~".+1"}`}, 100), []int{0, 1, 7, 30, 1500}},
		// Of equality matchers, fewer than there are thousands of series to look at.
		{share, []string{`{a="v"}`}, []int{0}},
		{share, []string{"{" + strings.Repeat(`a="v",`, 1000) + "}"}, []int{0}},
		{share, []string{`{a="v",b="v"}`}, []int{100}},
		{share, []string{`{a="v",i!="1"}`}, []int{100}},
		{share, slices.Repeat([]string{`{a="v"}`}, 100), []int{50}},
	} {
		for _, n := range c.looks {
			_, err := c.x.Select(until{t.Context(), &n}, parsed(t, c.sels...)...)
			require.ErrorIs(t, err, context.Canceled, "%.100q", c.sels)
		}
	}
	n := 3
	_, err := differ.LabelValues(until{t.Context(), &n}, "i", parsed(t, `m{i=~".+1"}`)...)
	require.ErrorIs(t, err, context.Canceled)
	_, err = differ.LabelNames(until{t.Context(), &n}, parsed(t, `m{i=~".+1"}`)...)
	require.ErrorIs(t, err, context.Canceled)
}

// same returns an index of n series that share the values of two labels, and differ in the label i.
func same(t testing.TB, n int) *query.Index {
	x, series := query.NewIndex(), make([]storage.Schedule, n)
	for i := range series {
		series[i] = storage.Schedule{ID: metric.ScheduleID(i), Labels: labelsOf(t, "a", "v", "b", "v", "i", strconv.Itoa(i))}
	}
	x.Add(series)
	return x
}

// TestEqualMatchersCountOnce: a selector with a matcher a thousand times is as much work as with it once.
func TestEqualMatchersCountOnce(t *testing.T) {
	x := same(t, 20_000)
	sel := func(text string) []query.Selector {
		parsed, err := query.ParseSelectors(t.Context(), []string{text})
		require.NoError(t, err)
		return parsed
	}
	looks := func(text string) int {
		const most = 1 << 30
		n := most
		ids, err := x.Select(until{t.Context(), &n}, sel(text)...)
		require.NoError(t, err)
		require.Len(t, ids, 20_000)
		return most - n
	}
	once := looks(`{a="v",b=~"v.*",i!="",none!="x"}`)
	require.Less(t, looks("{"+strings.Repeat(`a="v",b=~"v.*",i!="",none!="x",`, 500)+"}"), 2*once)
}

// TestSelectsAreBounded: what selectors look at is bounded for one request, in one call or in
// several, and refused before it is looked at.
func TestSelectsAreBounded(t *testing.T) {
	x := same(t, 50_000)
	// The second matcher leaves nothing for the others.
	without := func(n int) query.Selector {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, `,i!="%d"`, i)
		}
		parsed, err := query.ParseSelectors(t.Context(), []string{`{a="v",b=~"x.*"` + text.String() + "}"})
		require.NoError(t, err)
		return parsed[0]
	}
	var bad *query.RequestError
	much := slices.Repeat([]query.Selector{without(2400)}, 4)
	_, err := x.Select(t.Context(), append(much, much[0])...)
	require.ErrorAs(t, err, &bad)
	require.Contains(t, bad.Message, "fewer matchers")
	_, err = x.Select(t.Context(), slices.Repeat([]query.Selector{without(3)}, 1000)...)
	require.NoError(t, err, "many selectors of a few matchers each")
	one := query.WithWork(t.Context(), new(query.Work))
	_, err = x.Select(one, much...)
	require.NoError(t, err)
	_, err = x.Select(one, much[0])
	require.ErrorAs(t, err, &bad)
	_, err = x.Select(t.Context(), much[0])
	require.NoError(t, err, "another request")
}

// TestWordsAreCharged: names and values that are found are held on account of the request, and no
// request may hold any number.
func TestWordsAreCharged(t *testing.T) {
	const n = 10_000
	x := query.NewIndex()
	all := make([]storage.Schedule, n)
	for i := range all {
		all[i] = storage.Schedule{ID: metric.ScheduleID(i), Labels: labelsOf(t, "__name__", "m", fmt.Sprintf("l%05d", i), "v", "x", strconv.Itoa(i))}
	}
	x.Add(all)
	sel, err := query.ParseSelectors(t.Context(), []string{"m"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		bytes int64 // of a word
		list  func(ctx context.Context) ([]string, error)
	}{
		"names":           {16, func(ctx context.Context) ([]string, error) { return x.LabelNames(ctx) }},
		"values":          {16, func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "x") }},
		"names of some":   {50, func(ctx context.Context) ([]string, error) { return x.LabelNames(ctx, sel...) }},
		"values of some":  {50, func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "x", sel...) }},
		"the same values": {0, func(ctx context.Context) ([]string, error) { return x.LabelValues(ctx, "__name__", sel...) }},
	} {
		for room, want := range map[int64]error{n * c.bytes / 2: limits.ErrNoRoom, 200 * (n + 2): nil} {
			if c.bytes == 0 {
				room, want = 100, nil
			}
			claim := limits.NewBudget(room, 0).Claim(limits.Client{})
			found, err := c.list(limits.WithClaim(t.Context(), &claim))
			require.ErrorIs(t, err, want, name)
			if want == nil && c.bytes > 0 {
				require.GreaterOrEqual(t, len(found), n, name)
			}
		}
	}
}

// TestPatternsLookAtFewValues: a pattern with a prefix looks at the values that have it, and one without looks at each value
// once.
func TestPatternsLookAtFewValues(t *testing.T) {
	const n = 5000
	x := many(t, n)
	looks := func(text string, found int) int {
		t.Helper()
		const most = 1 << 30
		left := most
		ids, err := x.Select(until{t.Context(), &left}, parsed(t, text)...)
		require.NoError(t, err)
		require.Len(t, ids, found, text)
		return most - left
	}
	require.Less(t, looks(`{i=~"123.*"}`, 11), 50)
	require.Less(t, looks(`m{i=~"12|34|none"}`, 2), 50)
	require.Less(t, looks(`{i!=""}`, n), n/64+50)
	require.Less(t, looks(`m{i=""}`, 0), 50)
	require.Less(t, looks(`m{i=~".*",i=~".+"}`, n), n/64+50)
	require.GreaterOrEqual(t, looks(`{i=~".*99"}`, 50), n)
	require.Less(t, looks(`{i=~".*99"}`, 50), 50)
	require.GreaterOrEqual(t, looks(`{i!~".*99",i!=""}`, n-50), n/64)
	before := x.Bytes()
	require.GreaterOrEqual(t, looks(`{i=~".*98"}`, 50), n)
	require.Greater(t, x.Bytes(), before, "what is remembered is charged")

	var more []storage.Schedule
	for i := range 20 {
		more = append(more, storage.Schedule{ID: metric.ScheduleID(n + i), Labels: labelsOf(t, metric.NameLabel, "m", "i", fmt.Sprint("x", i, "99"))})
	}
	x.Add(more)
	require.Less(t, looks(`{i=~".*99"}`, 70), 100)

	// Where few series are left of other matchers, their labels are looked at, and not all values.
	require.Less(t, looks(`{i="7",i=~".*7"}`, 1), 50)
}

// groups is a store of which some groups of 128 series are out of reach.
type groups struct {
	storage.Store

	away  func(group metric.ScheduleID) bool
	reads int
}

func (g *groups) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	g.reads++
	return func(yield func(storage.Schedule, error) bool) {
		for id := ids.Start; id < ids.End; id++ {
			if g.away(blocks.BlockAt(id, 128).Start) {
				yield(storage.Schedule{}, storage.ErrUnavailable)
				return
			}
		}
		for s, err := range g.Store.Schedules(ctx, ids) {
			if !yield(s, err) {
				return
			}
		}
	}
}

// Groups of series that are out of reach leave out their own series, and no others. They are named,
// and added when they can be read.
func TestRefreshWithGroupsAway(t *testing.T) {
	st := &groups{Store: storagetest.NewModel(querytest.Settings(), nil, clock.System{}), away: func(g metric.ScheduleID) bool {
		return slices.Contains([]metric.ScheduleID{0, 5 * 128, 77 * 128}, g)
	}}
	src, err := registry.New(st, registry.Options{LeaseSize: 10_240}).Source(t.Context(), "s", false)
	require.NoError(t, err)
	var all []metric.Labels
	for i := range 10_240 {
		all = append(all, labelsOf(t, "__name__", "m", "i", strconv.Itoa(i)))
	}
	_, err = src.Register(t.Context(), all)
	require.NoError(t, err)
	x := query.NewIndex()
	var unread *query.UnreadError
	require.ErrorAs(t, x.Refresh(t.Context(), st), &unread)
	require.ErrorIs(t, unread, storage.ErrUnavailable)
	require.Equal(t, 10_240-3*128, x.Len())
	require.Equal(t, 3*128, unread.IDs)
	require.Equal(t, unread, x.Unread())
	x.CountNew(clock.System{})

	q := query.New(query.Parts{Store: st, Index: x, Settings: querytest.Settings(), Clock: clock.System{}}, query.Options{})
	warned := func() []string {
		var warn query.Warnings
		_, err = q.LabelNames(t.Context(), math.MinInt64, math.MaxInt64, &warn)
		require.NoError(t, err)
		return warn.List()
	}
	require.Equal(t, []string{"incomplete: the labels of up to 384 series cannot be read: " + storage.ErrUnavailable.Error()}, warned())

	st.reads = 0
	require.ErrorAs(t, x.Refresh(t.Context(), st), &unread)
	require.Zero(t, st.reads, "what is out of reach is not asked for at each call")
	lost := st.away
	st.away = func(metric.ScheduleID) bool { return false }
	for range 10 {
		_ = x.Refresh(t.Context(), st)
	}
	require.NoError(t, x.Unread())
	require.Empty(t, warned())
	require.Equal(t, 10_240, x.Len())
	// They are not new. What other processes register is.
	met := func() int {
		days, _, err := q.Days(t.Context(), 2, new(query.Warnings))
		require.NoError(t, err)
		return days[0].Met + days[1].Met
	}
	require.Zero(t, met())
	_, err = src.Register(t.Context(), []metric.Labels{labelsOf(t, "__name__", "new")})
	require.NoError(t, err)
	require.NoError(t, x.Refresh(t.Context(), st))
	require.Equal(t, 10_241, x.Len())
	require.Equal(t, 1, met())

	// What is in the index stays, and what is new is out of reach.
	st.away = lost
	require.NoError(t, x.Refresh(t.Context(), st))

	// If nothing can be read, the whole store is away, and the caller does not go on with a part.
	st.away, st.reads = func(metric.ScheduleID) bool { return true }, 0
	err = query.NewIndex().Refresh(t.Context(), st)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.NotErrorAs(t, err, &unread)
	require.Less(t, st.reads, 100)
}
