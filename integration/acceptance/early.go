package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/storage"
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

// testMarksAhead: late samples come while the clock is ahead, so their marks lie in a slice that has
// not begun when the clock is right again. Queries do not rely on the rows, and these are ground
// when the next slice is, and not when the clock comes to where it was.
func testMarksAhead(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, c := range map[string]struct {
		restart bool
		meets   func(s *System) // what shows the process that the clock has gone back
	}{
		"restart":           {restart: true},
		"the same process":  {meets: func(s *System) { require.NoError(t, s.engine.Ingest.Settle(t.Context())) }},
		"the next report":   {meets: func(s *System) { s.MustReport(s.point("B", 10, 30, 1)) }},
		"a later discovery": {meets: func(*System) {}},
	} {
		t.Run(name, func(t *testing.T) {
			const ahead = 20 * time.Hour
			s := startAt(t, b, 8, 30)
			s.MustReport(s.point("A", 8, 10, 1))
			s.setClock(10, 30)
			s.MustRun()
			count := func() uint64 {
				for _, r := range s.Rows(1) {
					if r.TimeMs == at(s, 8, 0) && r.Schedule == s.IDs()["A"] {
						return r.Count
					}
				}
				return 0
			}
			require.EqualValues(t, 1, count())

			s.Clock.Jump(ahead)
			s.MustReport(s.point("A", 8, 20, 7))
			s.Clock.Jump(-ahead)
			if c.restart {
				s.Restart()
			} else {
				c.meets(s)
			}
			late := func() []int64 {
				view, err := s.engine.Late.View(t.Context())
				require.NoError(t, err)
				return view.Slices(0, s.allIDs(), at(s, 0, 0), at(s, 48, 0))
			}
			require.Equal(t, []int64{at(s, 8, 0)}, late())
			s.MustRun() // as is done at start, and when the clock was set
			s.Clock.Set(s.Clock.Now().Add(time.Minute))
			require.Equal(t, []int64{at(s, 8, 0)}, late())
			s.setClock(11, 2)
			s.MustRun()
			require.EqualValues(t, 2, count())
			s.Clock.Set(s.Clock.Now().Add(time.Minute))
			require.Equal(t, []int64{at(s, 8, 0)}, late(), "the mark ahead stands for what may come yet")
			for hour := 12; hour < 14; hour++ {
				s.setClock(hour, 2)
				for _, run := range s.MustRun() {
					require.True(t, run.Bucket > 0 || run.Late == 0, "it is not brought back again")
				}
			}

			// What comes late in the slice that the clock was in once has a mark there.
			s.SetClock(time.UnixMilli(at(s, 30, 20)))
			s.MustRun()
			s.MustReport(s.point("A", 8, 25, 9))
			s.Restart() // a mark that is in memory alone is lost
			s.Drain()
			require.EqualValues(t, 3, count())
			s.MustCheck(Raw)
			require.Empty(t, s.Leftovers())
			s.Clock.Set(s.Clock.Now().Add(time.Minute))
			require.Empty(t, late())
		})
	}
}
