package acceptance

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestModel(t *testing.T) { Run(t, Backend{Open: openModel, Believes: true}) }

// TestLastWriteWins: runs that begin too early, over a store where deletes and rows carry timestamps, as in Cassandra.
func TestLastWriteWins(t *testing.T) {
	b := Backend{Believes: true, Open: func(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
		var place *storagetest.LWWModel
		return func() storage.Store {
			if place == nil {
				place = storagetest.NewLWWModel(s, r, clk)
				return place
			}
			return place.Session(clk)
		}
	}}
	earlyRuns(t, b)
	Wander(t, b)
	t.Run("WeeksAhead", func(t *testing.T) { testWeeksAhead(t, b) })
	t.Run("EarlyRunStopsAtEveryStep", func(t *testing.T) { testEarlyRunStopsAtEveryStep(t, b) })
}
