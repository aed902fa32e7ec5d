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

// testCorrectionAfterMend: a commit fails, another one of another block succeeds, and the process ends, which writes
// the chunks of the first once more. Their ids are older than those of the second. The process after it, whose clock is
// behind, gets a correction of the second.
func testCorrectionAfterMend(t *testing.T, b Backend) {
	if b.ManyWriters {
		t.Skip("only the writers' clocks order what they write")
	}
	s := startAt(t, b, 10, 30)
	for _, n := range []string{"A", "B", "C", "D", "E"} { // E has a block of its own
		s.MustReport(s.point(n, 10, 20, 1))
	}
	fails := func(takes time.Duration) {
		s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error {
			s.Clock.Set(s.Clock.Now().Add(takes))
			return storage.ErrUnavailable
		}})
	}
	fails(0)
	_, err := s.Report(s.point("A", 10, 29, 5))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	fails(time.Second) // the next attempt, after which a pause begins
	s.Clock.Set(s.Clock.Now().Add(20 * time.Second))
	s.MustReport(s.point("E", 10, 29, 1))
	s.Clock.Set(s.Clock.Now().Add(-time.Minute))
	s.Restart()
	s.MustReport(s.point("E", 10, 29, 2))
	s.DrainAndCheck()
}

// testDeletedAfterMigration: the clock is hours ahead for a while. Then raw chunks are copied into the store as a
// migration does, under ids as old as their samples. After a restart, what came while the clock was ahead is deleted.
func testDeletedAfterMigration(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	s := startAt(t, b, 10, 30)
	s.MustReport(s.point("A", 10, 28, 1))
	s.Clock.Jump(3 * time.Hour)
	s.MustReport(s.point("A", 10, 29, 1))
	s.Clock.Jump(-3 * time.Hour)
	s.Restart()
	old := s.point("A", 5, 0, 1)
	require.NoError(t, s.inspect().Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
		Group: 0, SliceMs: old.TimeMs, Chunk: storage.Chunk{
			ID:   blocks.KeyID(old.TimeMs, 7),
			Data: blocks.AppendSamples(nil, []metric.Sample{{Schedule: s.IDs()["A"], TimeMs: old.TimeMs, Value: old.Value}}),
		},
	}}}))
	s.Restart()
	_, err := s.Delete("A", time.UnixMilli(at(s, 10, 29)), time.UnixMilli(at(s, 10, 30)))
	require.NoError(t, err)
	require.Equal(t, []string{"A 05:00=1 10:28=1"}, s.export())
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
