package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// elsewhere sends a report to another process.
func (s *System) elsewhere(points []Point) {
	p := s.join("other")
	defer p.stop()
	res, err := s.reportTo(p.engine.Ingest, points)
	require.NoError(s.t, err)
	require.Empty(s.t, res.Rejected)
}

// checkIDs requires what must always hold of ids. Each acknowledged series has the id that it was
// given. No id stands for two series. The index by block lists all series that are listed by source
// or have samples, and no id that was never leased.
func (s *System) checkIDs(given map[string]metric.ScheduleID) {
	s.t.Helper()
	byID, byName := map[metric.ScheduleID]string{}, map[string]metric.ScheduleID{}
	gather := func(sch storage.Schedule, err error) (name string) {
		require.NoError(s.t, err)
		require.True(s.t, s.allIDs().Contains(sch.ID), "%d was never leased", sch.ID)
		require.Equal(s.t, source, sch.Labels.Get(metric.SourceLabel))
		return sch.Labels.Get(metric.NameLabel)
	}
	for sch, err := range s.inspect().SourceSchedules(s.t.Context(), source) {
		name := gather(sch, err)
		require.NotContains(s.t, byID, sch.ID, "an id with two series")
		require.NotContains(s.t, byName, name, "a series with two ids")
		byID[sch.ID], byName[name] = name, sch.ID
	}
	listed := map[metric.ScheduleID]string{}
	for sch, err := range s.inspect().Schedules(s.t.Context(), blocks.Range{End: 1 << 40}) {
		name := gather(sch, err)
		require.NotContains(s.t, listed, sch.ID, "an id twice in the index by block")
		listed[sch.ID] = name
	}
	for name, id := range given {
		require.Equal(s.t, id, byName[name], name)
	}
	for id, name := range byID {
		require.Equal(s.t, name, listed[id], "schedule %d, which its source lists", id)
	}
	for _, sm := range s.RawSamples() {
		require.Contains(s.t, listed, sm.Schedule, "it has samples")
	}
}

// testIDs gives ingest each fate at each step of assigning ids to new series: leasing ids, claiming
// them, listing them by block, and the rest of a first report. Another process meets the same
// series before, meanwhile and after.
func testIDs(t *testing.T, b Backend) {
	for _, f := range fates {
		t.Run(f.name, func(t *testing.T) {
			b.sweep(t, func(k int) int {
				s := Start(t, b, Config{BlockSize: 2, GroupSize: 4, LeaseSize: 4})
				s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
				given := map[string]metric.ScheduleID{}
				// note requires that each acknowledged series keeps its id.
				note := func(points []Point) {
					all := s.IDs()
					for _, p := range points {
						require.Contains(t, all, p.Series)
						if id, ok := given[p.Series]; ok {
							require.Equal(t, id, all[p.Series], p.Series)
						}
						given[p.Series] = all[p.Series]
					}
				}
				points := func(minute int, names string) []Point {
					var out []Point
					for _, r := range names {
						out = append(out, s.point(string(r), 10, minute, float64(r)))
					}
					return out
				}
				reports := [][]Point{points(1, "AB"), points(2, "ABCDE"), points(3, "FGHIJKL"), points(4, "MA")}
				others := [][]Point{points(5, "BCDIKM"), points(6, "AEHN"), points(7, "DFG")}
				f.befall(s.Steps, k, func() { s.elsewhere(others[0]) })
				for i, points := range reports {
					if _, err := s.Report(points...); err != nil {
						s.Restart()
						s.checkIDs(given)
						s.elsewhere(others[1])
						note(others[1])
						s.MustReport(points...)
					}
					note(points)
					if i == 0 {
						s.elsewhere(others[2])
						note(others[2])
					}
				}
				steps := s.Steps.Taken()
				if k == never {
					require.Greater(t, s.Store.Count("LeaseIDs"), 1)
					require.Greater(t, s.Store.Count("ClaimSchedules"), 2)
				}
				s.checkIDs(given)
				s.Restart()
				for _, points := range reports {
					s.MustReport(points...)
					note(points)
				}
				for _, points := range others {
					s.elsewhere(points)
					note(points)
				}
				s.checkIDs(given)
				require.Equal(t, given, s.IDs(), "at step %d", k)
				s.MustCheck(Raw)
				s.Settle()
				s.MustCheck(Raw)
				require.Empty(t, s.Leftovers())
				s.End()
				return steps
			})
		})
	}
}
