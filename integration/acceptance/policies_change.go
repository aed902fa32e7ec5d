package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// SetRetention changes how long raw is kept, with a restart, and expires rows.
func (s *System) SetRetention(raw time.Duration) {
	s.t.Helper()
	p := s.Store.Settings().Policy
	p.Retention = storage.Retention{raw}
	require.NoError(s.t, s.Store.SetPolicy(s.t.Context(), p))
	s.Restart()
	require.NoError(s.t, s.Store.Expire(s.t.Context()))
}

// backFillOne sends a sample of the past, and returns whether it was accepted.
func (s *System) backFillOne(p Point) (taken bool) {
	s.t.Helper()
	res, err := s.engine.Ingest.BackFill(s.t.Context(), []ingest.Report{{
		Source: source, Measurements: []ingest.Measurement{{Metric: p.Series, TimeMs: p.TimeMs, Value: p.Value}},
	}})
	require.NoError(s.t, err)
	for _, r := range res.Rejected {
		require.Equal(s.t, ingest.ReasonTooOld, r.Reason)
	}
	return res.Accepted == 1
}

// sixSamples grinds an hour with six samples, and returns its 1h row.
func (s *System) sixSamples() metric.RollupRow {
	s.t.Helper()
	for m := range 6 {
		s.Clock.Set(time.UnixMilli(at(s, 12, 10*m+5)))
		s.MustReport(s.point("A", 12, 10*m, 1))
	}
	s.Drain()
	rows := s.Rows(1)
	require.Len(s.t, rows, 1)
	require.EqualValues(s.t, 6, rows[0].Count)
	return rows[0]
}

// testRetentionRaised: the raw samples of some rows have expired, then the retention is raised. A
// corrected sample must not recompute the rows from what is left, and readers must not take what is
// left for everything.
func testRetentionRaised(t *testing.T, b Backend) {
	s := Start(t, b, Config{Retention: storage.Retention{3 * day}})
	whole := s.sixSamples()

	s.Clock.Set(s.Clock.Now().Add(8 * day))
	require.NoError(t, s.Store.Expire(t.Context()))
	s.SetRetention(20 * day)
	s.SetRetention(30 * day)
	later := s.Clock.Now().Add(-time.Hour)
	require.False(t, s.backFillOne(s.point("A", 12, 30, 5)), "nothing can be made of it")
	require.True(t, s.backFillOne(Point{Series: "A", TimeMs: later.UnixMilli(), Value: 7}))
	slice := s.cfg.Ladder.SliceAt(metric.Raw, whole.TimeMs)
	require.NoError(t, s.engine.Cache.Put(t.Context(), 0, metric.Raw, []storage.Mark{{
		Start: 0, TimeMs: slice.StartMs, Kind: storage.MarkLate, Schedules: []metric.ScheduleID{whole.Schedule},
	}}), "as it was put before the raising")
	s.Clock.Set(s.Clock.Now().Add(time.Hour))
	for range 3 {
		s.MustRun()
		s.Clock.Set(s.Clock.Now().Add(day))
	}
	want := whole
	want.Partial = true // it lacks a sample that was accepted, as far as anybody knows
	require.Equal(t, want, s.Rows(1)[0])
	require.Empty(t, s.Leftovers())

	q, _ := s.querier()
	require.NotEqual(t, metric.Raw, q.LevelFor(slice.StartMs))
}

// testRetentionLowered: the retention is lowered and raised again. What was not removed in between
// is still whole.
func testRetentionLowered(t *testing.T, b Backend) {
	s := Start(t, b, Config{Retention: storage.Retention{30 * day}})
	before := s.sixSamples()
	s.Clock.Set(s.Clock.Now().Add(8 * day))
	s.SetRetention(2 * day)
	s.SetRetention(30 * day)
	taken := s.backFillOne(s.point("A", 12, 35, 5))
	for range 3 {
		s.Clock.Set(s.Clock.Now().Add(day))
		s.MustRun()
	}
	after := s.Rows(1)
	require.Len(t, after, 1)
	want := before.Count
	if taken { // rows keep the TTL that they were written with, so all of them are there
		require.True(t, b.ManyWriters)
		want++
	}
	require.Equal(t, want, after[0].Count)
}

// testGraceRaised: by a longer grace a complete slice would still be open. What ingest then takes
// for on time is ground all the same.
func testGraceRaised(t *testing.T, b Backend) {
	s := Start(t, b, Config{Timing: cache.Timing{Grace: time.Minute, Delay: 2 * time.Minute}})
	s.Clock.Set(time.UnixMilli(at(s, 12, 30)))
	s.MustReport(s.point("A", 12, 30, 1))
	s.setClock(13, 3)
	s.MustRun()
	s.cfg.Timing = cache.Timing{Grace: 20 * time.Minute, Delay: 30 * time.Minute}
	s.Restart()
	s.MustReport(s.point("A", 12, 40, 7), s.point("B", 12, 50, 8), s.point("A", 13, 0, 9))
	s.DrainAndCheck()

	// By a shorter grace a slice closes before its writers thought so.
	s.Clock.Set(time.UnixMilli(at(s, 108, 30)))
	s.MustReport(s.point("A", 108, 30, 1))
	s.Clock.Set(time.UnixMilli(at(s, 109, 5)))
	s.cfg.Timing = cache.Timing{Grace: time.Minute, Delay: 2 * time.Minute}
	s.Restart()
	s.MustRun()
	s.MustReport(s.point("A", 108, 50, 4))
	s.DrainAndCheck()
}
