package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/storage"
)

// skipIfClocksAreChecked skips a test with a clock that is ahead if the store refuses such a clock.
func skipIfClocksAreChecked(t *testing.T, b Backend) {
	t.Helper()
	if b.ManyWriters {
		t.Skip("a clock that is ahead is refused there")
	}
}

// aheadFor is by how much the clock is ahead in these cases. The slice that it should be in is due by it.
const aheadFor = 2 * time.Hour

// abortEarlyRun has a pass begin by a clock that is ahead, by less than a store refuses. The pass ends before it has completed
// the slice. The clock is put right, and the process that starts then accepts it.
func abortEarlyRun(s *System) {
	s.t.Helper()
	s.Clock.Jump(aheadFor)
	s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrUnavailable)
	_, err := s.Run()
	require.ErrorIs(s.t, err, storage.ErrUnavailable)
	s.Clock.Jump(-aheadFor)
	s.Restart()
}

// testRestartAfterEarlyRun: the slice that the clock should be in is ground in part. The process that starts then knows
// nothing of that but what is stored.
func testRestartAfterEarlyRun(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1), s.point("A", 12, 15, 2))
	abortEarlyRun(s)
	s.MustReport(s.point("A", 12, 25, 4))
	s.DrainAndCheck()
}

// testKilledAfterEarlyRun: ingest is killed before it seals, and more than a second after a run
// that was too early has begun.
func testKilledAfterEarlyRun(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1))
	abortEarlyRun(s)
	s.MustReport(s.point("A", 12, 25, 2))
	require.NoError(t, s.engine.Ingest.Settle(t.Context()))
	s.MustReport(s.point("A", 12, 26, 4))
	s.Restart()
	s.DrainAndCheck()
}

// testLateGroundFirst: the clock is ahead for some minutes, over the run of a later slice, which
// grinds what was late by this clock. The slice of the samples is ground after that, by the right
// clock.
func testLateGroundFirst(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, c := range map[string]struct {
		ahead  time.Duration
		minute int
	}{
		"1h50":             {110 * time.Minute, 8},
		"2h over the hour": {2 * time.Hour, 55},
		"22h50":            {22*time.Hour + 50*time.Minute, 8},
	} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 12, c.minute)
			s.Clock.Jump(c.ahead)
			s.MustReport(s.point("A", 12, c.minute, 1)) // late by this clock
			s.Advance(10 * time.Minute)
			s.MustRun() // the slice that the clock was in is due by it
			s.Clock.Jump(-c.ahead)
			s.Restart()
			s.MustRun()
			s.MustReport(s.point("A", 12, c.minute+2, 2), s.point("A", 12, c.minute+3, 4))
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// testAsleepOverTheHour: a machine sleeps over the end of an hour, until the hour is due. Nothing
// has begun, so nothing is marked late, and the hour is ground once.
func testAsleepOverTheHour(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1))
	s.Clock.Jump(time.Hour)
	require.NoError(t, s.engine.Ingest.Settle(t.Context()))
	require.NoError(t, s.engine.Ingest.Seal(t.Context()))
	s.MustReport(s.point("A", 13, 20, 1))
	runs := s.MustRun()
	require.Len(t, runs, 1)
	require.Equal(t, 1, runs[0].Blocks)
	s.Drain()
	s.MustCheck(Raw)
	all, err := storage.RecentRuns(t.Context(), s.Store, 100)
	require.NoError(t, err)
	for _, r := range all {
		require.Zero(t, r.Late, "%+v", r)
	}
}

// testEarlyRunStopsAtEveryStep: a run that began too early ends at any of its steps. The samples
// that come after that, to its successor, are in the rows in the end.
func testEarlyRunStopsAtEveryStep(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	b.sweep(t, func(k int) int {
		s := startAt(t, b, 12, 20)
		s.MustReport(s.point("A", 12, 10, 1), s.point("B", 12, 15, 2), s.point("A", 11, 10, 1))
		s.Clock.Jump(7 * time.Hour)
		s.Steps.CrashAt(k)
		_, _ = s.Run()
		taken := s.Steps.Taken()
		s.Steps.CrashAt(-1)
		s.Store.Heal()
		s.Clock.Jump(-7 * time.Hour)
		s.Restart()
		s.MustReport(s.point("A", 12, 25, 4), s.point("C", 12, 25, 8))
		s.setClock(13, 20)
		s.MustReport(s.point("A", 13, 10, 1), s.point("C", 13, 15, 2))
		s.DrainAndCheck()
		s.End()
		return taken
	})
}

// earlyRuns runs the cases in which a run begins too early.
func earlyRuns(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"RestartAfterEarlyRun", testRestartAfterEarlyRun},
		{"KilledAfterEarlyRun", testKilledAfterEarlyRun},
		{"LateGroundFirst", testLateGroundFirst},
		{"AsleepOverTheHour", testAsleepOverTheHour},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}
