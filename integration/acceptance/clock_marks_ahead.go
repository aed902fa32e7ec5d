package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

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

// testMarkAheadGrows: a flush that began while the clock was ahead adds a series to a late mark.
// The clock is put right, and a pass brings that mark back: it reads the mark before the flush has
// written it, and ends after that.
func testMarkAheadGrows(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 8, 30)
	s.MustReport(s.point("A", 8, 10, 1), s.point("B", 8, 10, 1))
	s.setClock(10, 30)
	s.MustRun()
	const ahead = 3 * time.Hour
	s.Clock.Jump(ahead)
	s.MustReport(s.point("A", 8, 20, 7))
	read, written, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error { // the flush
		s.Clock.Jump(-ahead)
		go func() {
			_, err := s.engine.Runner.RunDue(t.Context())
			done <- err
		}()
		<-read
		return nil
	}})
	s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error { // the pass
		close(read)
		<-written
		return nil
	}})
	s.MustReport(s.point("B", 8, 20, 7))
	close(written)
	require.NoError(t, <-done)
	s.DrainAndCheck()
}

// testMarkAheadToCome: the clock is ahead by 20 hours for a minute, just before an hour ends, and an agent whose clock
// is five minutes ahead of the right one reports. Its mark stands for an hour that has not begun when the clock is
// right again. It is copied when that hour has.
func testMarkAheadToCome(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, restarts := range map[string]bool{"the same process": false, "a new process": true} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 14, 58)
			s.MustReport(s.point("A", 14, 50, 1))
			s.Clock.Jump(20 * time.Hour)
			s.MustReport(s.point("A", 15, 3, 5))
			s.Clock.Jump(-20 * time.Hour)
			require.NoError(t, s.engine.Ingest.Settle(t.Context()))
			s.MustRun()
			if restarts {
				s.Restart()
				s.MustRun()
			}
			s.setClock(15, 10)
			s.MustReport(s.point("A", 15, 9, 7))
			for _, hour := range []int{16, 17, 18} {
				s.setClock(hour, 2)
				s.MustRun()
			}
			require.Equal(t, 2, int(s.row(1, "A", at(s, 15, 0)).Count))
			s.DrainAndCheck()
		})
	}
}

// testExpiredAhead: a late sample waits for its run when everything is off for three weeks. Its input expires. Then the
// clock is ahead by a month. The run drops the work, and marks the coarser row in a slice of then. When the clock is
// right, that mark is dealt with at once, although its input has expired: the coarser row says that it is partial.
func testExpiredAhead(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := Start(t, b, Config{Retention: storage.Retention{7 * day, 20 * day}})
	s.setClock(10, 30)
	s.MustReport(s.point("A", 10, 29, 1))
	s.setClock(12, 2)
	s.MustRun()
	s.MustReport(s.point("A", 10, 20, 5))
	s.Stop()
	s.Clock.Set(s.Clock.Now().Add(21 * day))
	s.start()
	s.Clock.Jump(30 * day)
	s.ConfirmClock()
	s.MustRun()
	s.Clock.Jump(-30 * day)
	s.ConfirmClock()
	s.MustRun()
	s.Advance(7 * time.Hour)
	s.MustRun()
	require.True(t, s.row(2, "A", at(s, 6, 0)).Partial)
}
