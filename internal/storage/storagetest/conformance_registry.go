package storagetest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// registryCases test storage.Registry.
var registryCases = []conformanceCase{
	{"ClaimSchedulesOfSources", (*suite).claimSchedulesOfSources, nil},
	{"SchedulesByRange", (*suite).schedulesByRange, nil},
}

// series returns a series of a source.
func series(source, name string, more ...string) metric.Labels {
	ls := []metric.Label{{Name: metric.NameLabel, Value: name}, {Name: metric.SourceLabel, Value: source}}
	for i := 0; i < len(more); i += 2 {
		ls = append(ls, metric.Label{Name: more[i], Value: more[i+1]})
	}
	out, err := metric.NewLabels(ls...)
	if err != nil {
		panic(err)
	}
	return out
}

func (s *suite) sourceSchedules(source string) []storage.Schedule {
	s.Helper()
	out := all(s, s.store.SourceSchedules(s.ctx, source))
	slices.SortFunc(out, compareSchedules)
	return out
}

func compareSchedules(a, b storage.Schedule) int { return int(a.ID - b.ID) }

// claimSchedulesOfSources: one call claims series of many sources, in any order, of which some are
// known and some are wanted twice.
func (s *suite) claimSchedulesOfSources() {
	const sources, each = 60, 5
	r, err := s.store.LeaseIDs(s.ctx, 4*sources*each)
	require.NoError(s, err)
	_, none := s.store.LeaseIDs(s.ctx, 0)
	require.Error(s, none)
	next := r.Start
	claim := func(source, i int) storage.Claim {
		name := "web-" + strconv.Itoa(source)
		next++
		return storage.Claim{Source: name, Schedule: storage.Schedule{ID: next - 1, Labels: series(name, "m"+strconv.Itoa(i))}}
	}
	want := map[string]metric.ScheduleID{}
	call := func(claims []storage.Claim) {
		s.Helper()
		rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
		ids, err := s.store.ClaimSchedules(s.ctx, claims)
		require.NoError(s, err)
		require.Len(s, ids, len(claims))
		for i, c := range claims {
			key := c.Labels.String()
			if _, known := want[key]; !known {
				want[key] = c.ID
			}
			require.Equal(s, want[key], ids[i], key)
		}
	}
	var some, twice []storage.Claim
	for source := range sources {
		for i := range each {
			if (source+i)%3 == 0 {
				some = append(some, claim(source, i))
			}
			twice = append(twice, claim(source, i), claim(source, i))
		}
	}
	call(some)
	call(twice)
	require.Len(s, want, sources*each)
	check := func() {
		s.Helper()
		for source := range sources {
			got := s.sourceSchedules("web-" + strconv.Itoa(source))
			require.Len(s, got, each)
			for _, sc := range got {
				require.Equal(s, want[sc.Labels.String()], sc.ID)
			}
		}
		byID := all(s, s.store.Schedules(s.ctx, r))
		require.Len(s, byID, sources*each)
		for _, sc := range byID {
			require.Equal(s, want[sc.Labels.String()], sc.ID)
		}
	}
	check()
	s.reopen()
	check()
}

func (s *suite) schedulesByRange() {
	const n = 3000
	r, err := s.store.LeaseIDs(s.ctx, n)
	require.NoError(s, err)
	var want []storage.Schedule
	for from := 0; from < n; from += 100 {
		source := "s" + strconv.Itoa(from)
		var claim []storage.Schedule
		for i := from; i < from+100; i++ {
			claim = append(claim, storage.Schedule{
				ID:     r.Start + metric.ScheduleID(i),
				Labels: series(source, "m"+strconv.Itoa(i), "long", string(bytes.Repeat([]byte("x"), 200))),
			})
		}
		_, err := s.store.ClaimSchedules(s.ctx, ClaimsOf(source, claim))
		require.NoError(s, err)
		want = append(want, claim...)
	}
	equal(s, want, all(s, s.store.Schedules(s.ctx, r)))
	equal(s, want[130:1270], all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.Start + 130, End: r.Start + 1270})))
	require.Empty(s, all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.End, End: r.End + 1000})))
	require.Empty(s, all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.Start + 5, End: r.Start + 5})))
}

// ClaimsOf returns claims of series that have one source.
func ClaimsOf(source string, series []storage.Schedule) []storage.Claim {
	claims := make([]storage.Claim, len(series))
	for i, s := range series {
		claims[i] = storage.Claim{Source: source, Schedule: s}
	}
	return claims
}
