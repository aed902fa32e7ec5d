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

// openModel is the OpenFunc of the in-memory model.
func openModel(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	m := storagetest.NewModel(s, r, clk)
	return func() storage.Store { return m.Reopen() }
}

// lastWriteWins opens stores where rows and deletes carry timestamps, as in Cassandra. All are sessions on one place.
type lastWriteWins struct {
	place *storagetest.LWWModel
}

func (l *lastWriteWins) open(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	return func() (st storage.Store) {
		if l.place == nil {
			l.place = storagetest.NewLWWModel(s, r, clk)
			st = l.place
		} else {
			st = l.place.Session(clk)
		}
		return st
	}
}

// TestLastWriteWins: runs that begin too early, over a store where deletes and rows carry timestamps.
func TestLastWriteWins(t *testing.T) {
	b := Backend{Believes: true, Open: func(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
		return new(lastWriteWins).open(t, s, r, clk)
	}}
	earlyRuns(t, b)
	t.Run("EarlyRunStopsAtEveryStep", func(t *testing.T) { testEarlyRunStopsAtEveryStep(t, b) })
}
