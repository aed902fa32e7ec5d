package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// offClock is another clock that was set apart.
type offClock struct {
	*clock.Simulated
	off time.Duration
}

func (c *offClock) Now() time.Time { return c.Simulated.Now().Add(c.off) }

// TestTimestampsAhead: one of two ingest processes has written by a clock that was hours ahead for a moment. Its
// timestamps ascend from there, above the fences of the runs, so a run's deletes leave its sealed marks and cache
// chunks, and take those of the other process. When the slice is run again, these marks and chunks agree, but they are
// only a part.
func TestTimestampsAhead(t *testing.T) {
	for _, how := range []string{"completing times out", "another worker waits"} {
		t.Run(how, func(t *testing.T) {
			var stores lastWriteWins
			s := startAt(t, Backend{Believes: true, Open: stores.open}, 9, 30)
			names := []string{"A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"} // of several blocks
			for _, n := range names {
				s.MustReport(s.point(n, 9, 29, 1))
			}
			off := &offClock{Simulated: s.Clock}
			second := s.cfg.engine(engine.Options{Store: stores.place.Session(off), Clock: off, Writer: 77, Worker: storage.Worker{ID: "second"}, Timeout: time.Hour})
			second.Start(context.WithoutCancel(t.Context()), registry.Options{LeaseSize: s.cfg.LeaseSize}, ingest.Options{})
			defer func() { require.NoError(t, second.Drain()) }()
			report := func(p Point) {
				res, err := s.reportTo(second.Ingest, []Point{p})
				require.NoError(t, err)
				require.Empty(t, res.Rejected)
			}
			s.setClock(10, 20)
			s.MustRun()
			off.off = 3 * time.Hour
			report(s.point("A", 10, 19, 2))
			off.off = 0
			s.Advance(time.Second)
			require.NoError(t, second.Ingest.Settle(t.Context()))

			s.setClock(11, 10)
			s.MustRun()
			for _, n := range names {
				s.MustReport(s.point(n, 11, 5, 4))
				report(s.point(n, 11, 6, 8))
			}
			s.Clock.Set(time.UnixMilli(at(s, 12, 1)))
			require.NoError(t, s.engine.Ingest.Seal(t.Context()))
			require.NoError(t, second.Ingest.Seal(t.Context()))
			s.Clock.Set(time.UnixMilli(at(s, 12, 2)))
			if how == "completing times out" {
				s.Store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrTimeout)
				_, err := s.Run()
				require.ErrorIs(t, err, storage.ErrTimeout)
			} else {
				require.NoError(t, s.engine.Member.Beat(t.Context()))
				other := s.cfg.engine(engine.Options{
					Store: stores.place.Session(s.Clock), Clock: s.Clock, Writer: 99, Worker: storage.Worker{ID: "other", Aggregates: true}, Timeout: 24 * time.Hour,
				})
				require.NoError(t, other.Member.Beat(t.Context()))
				// Each finds marks in the shards of the other, until both forget how far they have come, and grind theirs again.
				for range 200 {
					_, _ = s.Run()
					_, _ = other.Runner.RunDue(t.Context())
					s.Clock.Set(s.Clock.Now().Add(time.Second))
				}
				require.NoError(t, other.Member.Leave(t.Context()))
				s.Clock.Set(s.Clock.Now().Add(2 * time.Second))
			}
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}
