package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// skipIfClocksAreChecked skips a test with a clock that is ahead if the store refuses such a clock.
func skipIfClocksAreChecked(t *testing.T, b Backend) {
	t.Helper()
	if b.ManyWriters {
		t.Skip("a clock that is ahead is refused there")
	}
}

// startBeforeJump starts a system whose clock is to jump ahead, with samples that are on time and
// late.
func startBeforeJump(t *testing.T, b Backend) *System {
	t.Helper()
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 10, 1), s.point("A", 9, 10, 1))
	return s
}

// testGroundEarly: the clock jumps ahead, the slice that it was in is ground, and the clock is put
// right. All that comes for the slice then is in its row in the end, and what came late into it in
// others.
func testGroundEarly(t *testing.T, b Backend) {
	for _, jump := range []time.Duration{2 * time.Hour, 9 * 24 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			s := startBeforeJump(t, b)
			s.Clock.Jump(jump)
			s.MustRun()
			s.Clock.Jump(-jump)
			require.NotEmpty(t, s.Rows(1), "ground early")
			s.MustReport(s.point("A", 10, 31, 7), s.point("A", 9, 11, 1))
			s.DrainAndCheck()
		})
	}
}

// testGroundEarlyInPart is the same where the clock is put right before the run is done.
func testGroundEarlyInPart(t *testing.T, b Backend) {
	s := startBeforeJump(t, b)
	s.Clock.Jump(2 * time.Hour)
	s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrUnavailable)
	_, err := s.Run()
	require.ErrorIs(t, err, storage.ErrUnavailable)
	s.Clock.Jump(-2 * time.Hour)
	s.MustReport(s.point("A", 10, 31, 7), s.point("A", 9, 11, 1))
	s.DrainAndCheck()
}

// testGroundEarlyByAnother: another worker's clock is ahead for a moment, in which it begins a
// pass. Ingest's is right all the time.
func testGroundEarlyByAnother(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 10, 5)
	s.MustReport(s.point("A", 10, 4, 1))
	ahead := clock.NewSimulated(s.Clock.Now().Add(2 * time.Hour))
	other := s.cfg.engine(engine.Options{
		Store: s.Store, Clock: ahead, Writer: 99, Worker: storage.Worker{ID: "other", Aggregates: true}, Timeout: time.Hour,
	})
	n, err := other.Runner.RunDue(t.Context())
	require.NoError(t, err)
	require.Positive(t, n, "ground early")
	for minute := 6; minute < 60; minute++ {
		s.SetClock(time.UnixMilli(at(s, 10, minute)))
		s.MustReport(s.point("A", 10, minute, 7))
	}
	s.DrainAndCheck()
}

// aheadFor is by how much the clock is ahead in these cases. The slice that it should be in is due by it.
const aheadFor = 2 * time.Hour

// abortEarlyRun has a pass begin by a clock that is ahead. The pass ends before it has completed
// the slice, and the clock is right again.
func abortEarlyRun(s *System) {
	s.t.Helper()
	s.Clock.Jump(aheadFor)
	s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrUnavailable)
	_, err := s.Run()
	require.ErrorIs(s.t, err, storage.ErrUnavailable)
	s.Clock.Jump(-aheadFor)
}

// correctDuringRun has the clock put right, while a run is under way, after the first block of which when says so.
func correctDuringRun(s *System, by time.Duration, when func() bool) {
	corrected := false
	s.Store.Add(storagetest.Rule{Op: "DeleteMarks", Times: -1, After: func() error {
		if !corrected && when() {
			corrected = true
			s.Clock.Jump(-by)
		}
		return nil
	}})
	s.t.Helper()
	_, err := s.Run()
	require.ErrorContains(s.t, err, "the clock was set")
	require.True(s.t, corrected)
	s.Store.Heal()
	s.MustRun()
}

// testRebootWithClockAhead: a machine is rebooted in the middle of an hour. Its clock is ahead
// until the time is synchronised, while the first pass is grinding. Nothing fails, and nothing is
// restarted after that.
func testRebootWithClockAhead(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1), s.point("A", 12, 15, 2))
	s.Stop()
	s.Clock.Jump(aheadFor)
	s.start()
	correctDuringRun(s, aheadFor, func() bool { return true })
	s.MustReport(s.point("A", 12, 25, 4))
	s.DrainAndCheck()
}

// testReportWhileAhead: the clock of a running server is ahead for some seconds, in which a report
// comes and a pass begins.
func testReportWhileAhead(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1), s.point("A", 12, 15, 2))
	for _, other := range []string{"B", "C", "D", "E"} {
		s.MustReport(s.point(other, 12, 10, 1)) // E is in another block than A
	}
	s.Clock.Jump(aheadFor)
	s.MustReport(s.point("E", 12, 20, 3))
	correctDuringRun(s, aheadFor, func() bool { return true })
	s.MustReport(s.point("A", 12, 25, 4))
	s.DrainAndCheck()
}

// testRestartAfterEarlyRun: the slice that the clock should be in is ground in part. Then the
// process ends, and its successor knows nothing of that but what is stored.
func testRestartAfterEarlyRun(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 12, 20)
	s.MustReport(s.point("A", 12, 10, 1), s.point("A", 12, 15, 2))
	abortEarlyRun(s)
	s.Restart()
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

// testCoarseEarlyInPart: the run of a slice of 6 h begins by a clock that is ahead, and is aborted
// since the clock is put right. The hours that are ground after that have rows in it too.
func testCoarseEarlyInPart(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	const ahead = 8 * time.Hour
	// The hour in which the clock is wrong has late data of A. E is in another block, and reports in all other hours.
	report := func(s *System, hour, minute int) {
		s.MustReport(s.point("A", hour, minute, float64(hour)))
		if hour != 15 {
			for _, series := range []string{"B", "C", "D", "E"} {
				s.MustReport(s.point(series, hour, minute, float64(hour)))
			}
		}
	}
	for name, restart := range map[string]bool{"the same process": false, "a reboot": true} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 12, 20)
			for h := 12; h < 15; h++ {
				s.SetClock(time.UnixMilli(at(s, h, 20)))
				report(s, h, 19)
				s.SetClock(time.UnixMilli(at(s, h+1, 2)))
				s.MustRun()
			}
			s.SetClock(time.UnixMilli(at(s, 15, 20)))
			report(s, 15, 19)
			if restart {
				s.Stop()
			}
			s.Clock.Jump(ahead)
			if restart {
				s.start()
			}
			blocks := 0 // of the slice of 6 h
			correctDuringRun(s, ahead, func() bool {
				for _, st := range s.Slices(0) {
					if !st.Complete {
						return false
					}
				}
				blocks++
				return blocks == 2
			})
			for h := 15; h < 18; h++ {
				s.SetClock(time.UnixMilli(at(s, h, 40)))
				report(s, h, 39)
				s.SetClock(time.UnixMilli(at(s, h+1, 2)))
				s.MustRun()
			}
			s.DrainAndCheck()
		})
	}
}

// testLateGroundFirst: the clock is ahead for some minutes, over the run of a later slice, which
// grinds what was late by this clock. The slice of the samples is ground after that, by the right
// clock.
func testLateGroundFirst(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, c := range map[string]struct {
		ahead   time.Duration
		minute  int
		restart bool
	}{
		"1h50":             {110 * time.Minute, 8, false},
		"1h50, restart":    {110 * time.Minute, 8, true},
		"2h over the hour": {2 * time.Hour, 55, false},
		"22h50, restart":   {22*time.Hour + 50*time.Minute, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 12, c.minute)
			s.Clock.Jump(c.ahead)
			s.MustReport(s.point("A", 12, c.minute, 1)) // late by this clock
			s.Advance(10 * time.Minute)
			s.MustRun() // the slice that the clock was in is due by it
			s.Clock.Jump(-c.ahead)
			if c.restart {
				s.Restart()
			}
			s.MustRun()
			s.MustReport(s.point("A", 12, c.minute+2, 2), s.point("A", 12, c.minute+3, 4))
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// testEarlyInPartOtherSeries: after a run that was too early, other series of the same block
// report. Their hash orders what was passed on in any way.
func testEarlyInPartOtherSeries(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for _, series := range []string{"B", "C", "D"} {
		t.Run(series, func(t *testing.T) {
			s := startAt(t, b, 12, 20)
			var all []Point
			for _, name := range []string{"A", "B", "C", "D"} {
				all = append(all, s.point(name, 11, 20, 1)) // so that all have ids in one block
			}
			s.MustReport(all...)
			s.MustReport(s.point("A", 12, 15, 1))
			abortEarlyRun(s)
			s.MustReport(s.point("A", 12, 25, 4), s.point(series, 12, 25, 4))
			s.DrainAndCheck()
		})
	}
}

// testSealAfterEarlyRun: after a run that was too early, the write of the seal fails, or the seal
// comes when the slice is due.
func testSealAfterEarlyRun(t *testing.T, b Backend) {
	for _, how := range []string{"fails", "late"} {
		t.Run(how, func(t *testing.T) {
			s := startBeforeJump(t, b)
			abortEarlyRun(s)
			s.MustReport(s.point("A", 10, 31, 7))
			if how == "fails" { // as on a disk that is full for a moment
				s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error { return storage.ErrUnavailable }})
			} else { // as in a machine that sleeps over the end of the hour
				s.Clock.Jump(2 * time.Hour)
				require.NoError(t, s.engine.Ingest.Settle(t.Context()))
				require.NoError(t, s.engine.Ingest.Seal(t.Context()))
			}
			s.DrainAndCheck()
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
	all, err := s.Store.RecentRuns(t.Context(), 100)
	require.NoError(t, err)
	for _, r := range all {
		require.Zero(t, r.Late, "%+v", r)
	}
}

// testEarlyRunStopsAtEveryStep: a run that began too early ends at any of its steps. The samples
// that come after that, to the same process or its successor, are in the rows in the end.
func testEarlyRunStopsAtEveryStep(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for _, restart := range variants(t, b, false, true) {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
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
				if restart {
					s.Restart()
				}
				s.MustReport(s.point("A", 12, 25, 4), s.point("C", 12, 25, 8))
				s.setClock(13, 20)
				s.MustReport(s.point("A", 13, 10, 1), s.point("C", 13, 15, 2))
				s.DrainAndCheck()
				s.End()
				return taken
			})
		})
	}
}

// earlyRuns runs the cases in which a run begins too early.
func earlyRuns(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"RebootWithClockAhead", testRebootWithClockAhead},
		{"ReportWhileAhead", testReportWhileAhead},
		{"RestartAfterEarlyRun", testRestartAfterEarlyRun},
		{"KilledAfterEarlyRun", testKilledAfterEarlyRun},
		{"CoarseEarlyInPart", testCoarseEarlyInPart},
		{"LateGroundFirst", testLateGroundFirst},
		{"EarlyInPartOtherSeries", testEarlyInPartOtherSeries},
		{"SealAfterEarlyRun", testSealAfterEarlyRun},
		{"AsleepOverTheHour", testAsleepOverTheHour},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}
