package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// startAt starts a system with the clock at hour:minute of the first day.
func startAt(t *testing.T, b Backend, hour, minute int) *System {
	t.Helper()
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, hour, minute)))
	return s
}

// testClockBack: the clock goes back behind the run of a slice, by a step or over a restart. Data
// that it now takes for on time belongs to a complete slice, where no run would ever look for it.
func testClockBack(t *testing.T, b Backend) {
	for _, c := range []struct {
		name    string
		restart bool
		minute  int
	}{
		{"step", false, 60},
		{"restart", true, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startAt(t, b, 10, 30)
			s.MustReport(s.point("A", 10, 30, 1))
			s.setClock(11, 2)
			s.MustRun()
			s.Clock.Set(time.UnixMilli(at(s, 10, c.minute)).Add(30 * time.Second))
			if c.restart {
				s.Restart()
			}
			s.MustReport(s.point("A", 10, 45, 7), s.point("B", 8, 45, 8))
			s.DrainAndCheck()
		})
	}
}

// testClockBackAfterAbort: the clock goes back into a slice that has been ground, but is not
// complete since the store went away. Data that it now takes for on time is ground when the slice
// is run again.
func testClockBackAfterAbort(t *testing.T, b Backend) {
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 30, 1))
	s.setClock(11, 2)
	s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrUnavailable)
	_, err := s.Run()
	require.ErrorIs(t, err, storage.ErrUnavailable)
	s.Clock.Set(time.UnixMilli(at(s, 10, 50)))
	s.MustReport(s.point("A", 10, 45, 7))
	s.DrainAndCheck()
}

// testClockBackBetweenLooks: the clock is back for a while, a slice is opened, and the clock is
// right again before the next look for outstanding slices. The slice must be found.
func testClockBackBetweenLooks(t *testing.T, b Backend) {
	s := startAt(t, b, 12, 2)
	s.MustRun()
	s.Clock.Set(time.UnixMilli(at(s, 10, 50)))
	s.MustReport(s.point("A", 10, 45, 7))
	s.Clock.Set(time.UnixMilli(at(s, 12, 3)))
	s.MustRun()
	s.DrainAndCheck()
}

// testCorrectionAfterRestart: a sample is sent again, with another value, to a process that started
// with its clock behind that of the process before. The later value wins.
func testCorrectionAfterRestart(t *testing.T, b Backend) {
	if b.ManyWriters {
		t.Skip("only the writers' clocks order what they write")
	}
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 29, 1))
	s.Clock.Set(s.Clock.Now().Add(-5 * time.Second))
	s.Restart()
	s.MustReport(s.point("A", 10, 29, 2))
	require.Equal(t, 2.0, s.RawSamples()[0].Value)
	s.Drain()
	s.MustCheck(Raw)
}

// testClockLeap: the clock is six hours ahead for a while, then right again. The slices in between
// are ground when they are due.
func testClockLeap(t *testing.T, b Backend) {
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 30, 1))
	s.Clock.Set(time.UnixMilli(at(s, 16, 30)))
	s.MustRun()
	s.MustRun()
	for h := 11; h < 16; h++ {
		s.Clock.Set(time.UnixMilli(at(s, h, 30)))
		s.MustReport(s.point("A", h, 29, float64(h)))
		s.Clock.Set(time.UnixMilli(at(s, h+1, 2)))
		s.MustRun()
	}
	s.DrainAndCheck()
}

// testDamagedIndex: the index of one slice cannot be read. Later slices are ground even so, and
// this slice is ground once it can be read.
func testDamagedIndex(t *testing.T, b Backend) {
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 30, 1))
	s.Clock.Set(time.UnixMilli(at(s, 11, 30)))
	s.MustReport(s.point("A", 11, 30, 2))
	s.setClock(12, 2)
	// One failure in each shard of the first slice.
	s.Store.Add(storagetest.Rule{Op: "Marks", Times: s.cfg.IndexPartitions, Before: func() error { return storage.ErrCorrupt }})
	_, err := s.Run()
	require.ErrorIs(t, err, storage.ErrCorrupt)
	rows := s.Rows(1)
	require.Len(t, rows, 1)
	require.Equal(t, at(s, 11, 0), rows[0].TimeMs)
	require.Empty(t, s.Rows(2), "a slice is not run before its parts are complete")
	s.DrainAndCheck()
}

// testClockFarBackBetweenLooks is the same where the clock is back by less, and by more, than any look goes back.
func testClockFarBackBetweenLooks(t *testing.T, b Backend) {
	for _, back := range []time.Duration{20 * time.Hour, 50 * time.Hour} {
		t.Run(back.String(), func(t *testing.T) {
			s := startAt(t, b, 12, 30)
			s.MustRun()
			s.MustReport(s.point("A", 12, 29, 1))
			s.Clock.Jump(-back)
			s.MustReport(Point{Series: "A", TimeMs: s.Clock.Now().UnixMilli(), Value: 7}) // a sample without a time gets this one
			s.Clock.Jump(back)
			s.MustRun()
			for _, k := range s.Slices(metric.Raw) {
				require.True(t, k.Complete || k.StartMs == at(s, 12, 0), "the next look finds what is due")
			}
			s.DrainAndCheck()
		})
	}
}
