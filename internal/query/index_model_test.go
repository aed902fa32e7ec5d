package query_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

// plain is an index that looks at every series.
type plain map[metric.ScheduleID]metric.Labels

func (p plain) selected(sels []query.Selector) []metric.ScheduleID {
	var out []metric.ScheduleID
	for _, id := range slices.Sorted(maps.Keys(p)) {
		if slices.ContainsFunc(sels, func(sel query.Selector) bool {
			for _, m := range sel {
				if !m.Matches(p[id].Get(m.Name)) {
					return false
				}
			}
			return true
		}) {
			out = append(out, id)
		}
	}
	return out
}

func (p plain) values(ids []metric.ScheduleID, name string) (names, values []string) {
	foundNames, foundValues := make(map[string]bool), make(map[string]bool)
	for _, id := range ids {
		for _, l := range p[id] {
			if foundNames[l.Name] = true; l.Name == name {
				foundValues[l.Value] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(foundNames)), slices.Sorted(maps.Keys(foundValues))
}

// both are an index and its model.
type both struct {
	t     *testing.T
	index *query.Index
	plain plain
}

func (b *both) add(all ...storage.Schedule) {
	b.index.Add(all)
	for _, s := range all {
		b.plain[s.ID] = s.Labels
	}
}

// ask asks both for what selectors match. Selectors that are not allowed are passed over.
func (b *both) ask(texts ...string) {
	b.t.Helper()
	sels, err := query.ParseSelectors(b.t.Context(), texts)
	if err != nil {
		return
	}
	want := b.plain.selected(sels)
	got, err := b.index.Select(b.t.Context(), sels...)
	require.NoError(b.t, err)
	require.True(b.t, slices.Equal(want, got), "%s: %v, not %v", texts, got, want)
	for _, name := range []string{"i", "few", metric.NameLabel} {
		names, values := b.plain.values(want, name)
		list, err := b.index.LabelNames(b.t.Context(), sels...)
		require.NoError(b.t, err)
		require.True(b.t, slices.Equal(names, list), "%s: %v, not %v", texts, list, names)
		list, err = b.index.LabelValues(b.t.Context(), name, sels...)
		require.NoError(b.t, err)
		require.True(b.t, slices.Equal(values, list), "%s: %v, not %v", texts, list, values)
	}
}

// patterns are what values are compared with in these tests: some list values, some have a prefix, some are neither.
var patterns = []string{
	"", ".*", ".+", "v7", "v1|v22|v333|none", "v1.*", "v(1|2)[0-9]", "v.+7", ".*5.*", ".*[13]", "(?i)V2.*", "|v3", "|v4.*", "v[0-9]{3}", "x.*", ".?", "v12.*|v3",
}

var operators = []string{"=", "!=", "=~", "!~"}

// sel makes a selector of numbers.
func sel(n func(below int) int) string {
	all := []string{`__name__=~"m.*"`, `__name__="m1"`, `i!=""`, `few="v1"`, `few=~".+"`, `i=~"v.*"`}[n(6):][:1]
	for range n(4) {
		name := []string{"i", "few", "none", metric.NameLabel}[n(4)]
		all = append(all, fmt.Sprintf("%s%s%q", name, operators[n(4)], patterns[n(len(patterns))]))
	}
	return "{" + strings.Join(all, ",") + "}"
}

// TestIndexAgainstEverySeries: whatever was added and replaced in whatever order, an index finds what a look at every series
// finds, before and after labels have many values.
func TestIndexAgainstEverySeries(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 5))
	b := &both{t, query.NewIndex(), plain{}}
	labels := func() metric.Labels {
		pairs := []string{metric.NameLabel, fmt.Sprint("m", rnd.IntN(5))}
		if rnd.IntN(4) > 0 {
			pairs = append(pairs, "few", fmt.Sprint("v", rnd.IntN(40)))
		}
		if rnd.IntN(8) > 0 {
			pairs = append(pairs, "i", fmt.Sprint("v", rnd.IntN(4000)))
		}
		return labelsOf(t, pairs...)
	}
	const most = 4000
	ids := rnd.Perm(most)
	for len(ids) > 0 {
		n := min(len(ids), 1+rnd.IntN(1200))
		for _, id := range ids[:n] {
			b.add(storage.Schedule{ID: metric.ScheduleID(id * 20), Labels: labels()}) // over several chunks
		}
		ids = ids[n:]
		known := slices.Sorted(maps.Keys(b.plain))
		for range rnd.IntN(100) {
			b.add(storage.Schedule{ID: known[rnd.IntN(len(known))], Labels: labels()})
		}
		require.Equal(t, len(b.plain), b.index.Len())
		for range 8 {
			texts := []string{sel(rnd.IntN)}
			for rnd.IntN(3) == 0 {
				texts = append(texts, sel(rnd.IntN))
			}
			b.ask(texts...)
		}
	}
	for id, ls := range b.plain {
		require.Equal(t, ls, b.index.Labels(id))
	}
	all, err := b.index.LabelValues(t.Context(), "i")
	require.NoError(t, err)
	_, values := b.plain.values(slices.Collect(maps.Keys(b.plain)), "i")
	require.Subset(t, all, values, "values stay")
	require.True(t, slices.IsSorted(all))
}

// FuzzIndex adds series, of two bytes each, and asks for them.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 1, 9, 200, 3}, []byte{0, 1, 2, 0, 3, 4})
	f.Add([]byte{1, 2, 1, 3, 1, 2, 255, 255, 0, 0}, []byte{4, 3, 1, 2, 16, 0, 3, 5, 2, 1, 10})
	f.Fuzz(func(t *testing.T, series, question []byte) {
		b := &both{t, query.NewIndex(), plain{}}
		for i := 0; i+1 < min(len(series), 2000); i += 2 {
			id, v := series[i], series[i+1]
			b.add(storage.Schedule{ID: metric.ScheduleID(id), Labels: labelsOf(t,
				metric.NameLabel, fmt.Sprint("m", v%4), "few", fmt.Sprint("v", v/4%8), "i", fmt.Sprint("v", int(id)+int(v/32)))})
		}
		next := func(below int) int {
			if len(question) == 0 {
				return 0
			}
			n := int(question[0]) % below
			question = question[1:]
			return n
		}
		for range 5 {
			b.ask(sel(next))
		}
	})
}

// TestWritersAndReaders: sources add series while others are selected, listed and read, and some ids get other labels. Who
// reads sees only what was there, whole, and all that was there before.
func TestWritersAndReaders(t *testing.T) {
	const writers, each = 4, 1500
	x := query.NewIndex()
	labels := func(id, edition int) metric.Labels {
		return labelsOf(t, metric.NameLabel, "m", "edition", strconv.Itoa(edition), "i", fmt.Sprint("v", id), "writer", strconv.Itoa(id%writers))
	}
	sels := map[string][]query.Selector{}
	for _, text := range []string{`m`, `{i=~"v1.*"}`, `{i=~".*7.*"}`, `m{i!~"v.*9"}`, `{writer="1"}`, `{writer=~"1|2",edition!="7"}`} {
		sels[text] = parsed(t, text)
	}
	var reading, writing sync.WaitGroup
	done := make(chan struct{})
	for text, s := range sels {
		reading.Go(func() {
			for before := 0; ; {
				end := false
				select {
				case <-done:
					end = true
				default:
				}
				ids, err := x.Select(t.Context(), s...)
				if err != nil || !slices.IsSorted(ids) || len(ids) < before {
					t.Errorf("%s: %d series, before %d: %v", text, len(ids), before, err)
					return
				}
				before = len(ids)
				for _, id := range ids {
					ls := x.Labels(id)
					if len(ls) != 4 || ls.Get("i") != fmt.Sprint("v", id) || ls.Get("writer") != strconv.Itoa(int(id)%writers) {
						t.Errorf("%d has %s", id, ls)
						return
					}
				}
				values, err := x.LabelValues(t.Context(), "i", s...)
				if err != nil || len(values) < before {
					t.Errorf("%d values of %d series: %v", len(values), before, err)
					return
				}
				if all, err := x.LabelValues(t.Context(), "i"); err != nil || !slices.IsSorted(all) || len(slices.Compact(all)) < len(values) {
					t.Errorf("%d values of all series: %v", len(all), err)
					return
				}
				if end {
					return
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 6))
			for _, i := range rnd.Perm(each) {
				id := i*writers + w
				x.Add([]storage.Schedule{{ID: metric.ScheduleID(id), Labels: labels(id, 0)}})
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()

	// Labels are replaced: an id is for a moment in no list, and never in two.
	for range 2 {
		done = make(chan struct{})
		reading.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for id := range metric.ScheduleID(100) {
					if ls := x.Labels(id); len(ls) != 4 || ls.Get("i") != fmt.Sprint("v", id) {
						t.Errorf("%d has %s", id, ls)
						return
					}
				}
			}
		})
		for i := range 5000 {
			x.Add([]storage.Schedule{{ID: metric.ScheduleID(i % 100), Labels: labels(i%100, i/100)}})
		}
		close(done)
		reading.Wait()
	}
	ids, err := x.Select(t.Context(), sels["m"]...)
	require.NoError(t, err)
	require.Len(t, ids, writers*each)
}
