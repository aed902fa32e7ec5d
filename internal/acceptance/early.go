package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// testGroundEarly: the clock jumps ahead, the slice that it was in is ground, and the clock is put right. All that comes for the
// slice then is in its row in the end, and what came late into it in others.
func testGroundEarly(t *testing.T, b Backend) {
	if b.ManyWriters {
		t.Skip("a clock that is ahead is refused there")
	}
	for _, jump := range []time.Duration{2 * time.Hour, 9 * 24 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			s := Start(t, b, Config{})
			s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
			s.MustReport(s.point("A", 10, 10, 1), s.point("A", 9, 10, 1))
			s.Clock.Jump(jump)
			s.MustRun()
			s.Clock.Jump(-jump)
			require.NotEmpty(t, s.Rows(1), "ground early")
			s.MustReport(s.point("A", 10, 31, 7), s.point("A", 9, 11, 1))
			s.Drain()
			s.MustCheck(Raw)
			require.Empty(t, s.Leftovers())
		})
	}
}

// testGroundEarlyInPart is the same where the clock is put right before the run is done.
func testGroundEarlyInPart(t *testing.T, b Backend) {
	if b.ManyWriters {
		t.Skip("a clock that is ahead is refused there")
	}
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 30)))
	s.MustReport(s.point("A", 10, 10, 1), s.point("A", 9, 10, 1))
	s.Clock.Jump(2 * time.Hour)
	s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrUnavailable)
	_, err := s.Run()
	require.ErrorIs(t, err, storage.ErrUnavailable)
	s.Clock.Jump(-2 * time.Hour)
	s.MustReport(s.point("A", 10, 31, 7), s.point("A", 9, 11, 1))
	s.Drain()
	s.MustCheck(Raw)
	require.Empty(t, s.Leftovers())
}

// testGroundEarlyByAnother: another worker's clock is ahead for a moment, in which it begins a pass. Ingest's is right all the time.
func testGroundEarlyByAnother(t *testing.T, b Backend) {
	if b.ManyWriters {
		t.Skip("a clock that is ahead is refused there")
	}
	s := Start(t, b, Config{})
	s.Clock.Set(time.UnixMilli(at(s, 10, 5)))
	s.MustReport(s.point("A", 10, 4, 1))
	ahead := clock.NewSimulated(s.Clock.Now().Add(2 * time.Hour))
	c := cache.New(s.Store, ahead, 99, s.cfg.Timing)
	m := shards.New(s.Store, ahead, storage.Worker{ID: "other", Aggregates: true}, time.Hour)
	r := rollup.NewRunner(s.Store, m, c, recovery.New(s.Store, c, ahead, recovery.Options{}), ahead, rollup.Options{Parallel: 1})
	n, err := r.RunDue(t.Context())
	require.NoError(t, err)
	require.Positive(t, n, "ground early")
	for minute := 6; minute < 60; minute++ {
		s.SetClock(time.UnixMilli(at(s, 10, minute)))
		s.MustReport(s.point("A", 10, minute, 7))
	}
	s.Drain()
	s.MustCheck(Raw)
	require.Empty(t, s.Leftovers())
}
