package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestMarksAheadOfAnother: the clock of another aggregator goes back, so it takes the current slice
// for one that has not begun. Ingest's clock is right all the time, and ingest relies on its late
// marks there; it is restarted before it seals. The last write wins, as on Cassandra.
func TestMarksAheadOfAnother(t *testing.T) {
	for name, refused := range map[string]bool{"confirmed": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			var stores lastWriteWins
			s := startAt(t, Backend{ManyWriters: true, Open: stores.open}, 8, 30)
			s.MustReport(s.point("A", 8, 10, 1))
			s.setClock(10, 30)
			s.MustRun()
			s.MustReport(s.point("A", 10, 29, 1))
			s.setClock(11, 1) // the slice of 10:00 is not due yet
			s.MustReport(s.point("A", 8, 20, 7))

			s.Advance(10 * time.Second)
			theirs := clock.NewSimulated(s.Clock.Now())
			session := stores.place.Session(theirs)
			_, err := session.AcquireShard(t.Context(), 0, "other", time.Second) // in place of heartbeats, which advance its timestamps
			require.NoError(t, err)
			require.NoError(t, session.ReleaseShard(t.Context(), 0, "other"))
			store := storagetest.NewFaulty(session)
			if refused {
				store.Add(storagetest.Rule{Op: "CheckFit", Times: -1, Before: func() error { return storage.ErrSettings }})
			}
			other := s.cfg.engine(engine.Options{
				Store: store, Clock: theirs, Writer: 99, Worker: storage.Worker{ID: "other", Aggregates: true}, Timeout: time.Hour,
			})
			theirs.Jump(-20 * time.Minute)
			marks := len(s.Marks(0))
			_, err = other.Runner.RunDue(t.Context())
			require.NoError(t, err)
			if refused {
				require.Len(t, s.Marks(0), marks, "nothing is written by a clock that nobody confirms")
			}

			s.setClock(11, 2)
			s.MustRun()
			s.SetClock(time.UnixMilli(at(s, 11, 30)))
			s.MustReport(s.point("A", 8, 25, 9))
			s.Restart()
			s.DrainAndCheck()
		})
	}
}
