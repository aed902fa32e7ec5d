package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
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

// testClockBack: the clock goes back behind the run of a slice, by as much as a store accepts, by a step or over a restart.
// Data that it now takes for on time belongs to a complete slice, where no run would ever look for it.
func testClockBack(t *testing.T, b Backend) {
	for name, timing := range map[string]cache.Timing{
		"default": cache.DefaultTiming(), "short delay": {Grace: 10 * time.Second, Delay: 20 * time.Second},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart=%t", name, restart), func(t *testing.T) {
				s := Start(t, b, Config{Timing: timing})
				s.setClock(10, 30)
				s.MustReport(s.point("A", 10, 30, 1))
				s.SetClock(time.UnixMilli(at(s, 11, 0)).Add(timing.Delay))
				s.MustRun()
				s.Clock.Jump(-clock.MostStep)
				if restart {
					s.Restart()
				}
				s.MustReport(s.point("A", 10, 45, 7), s.point("B", 8, 45, 8))
				s.DrainAndCheck()
			})
		}
	}
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
