package promquery

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// retention is the server's default retention.
var retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

// world is a store with a queryable.
type world struct {
	*querytest.World
	t         testing.TB
	queryable *Queryable
}

// newWorld makes a world whose clock is at nowMs.
func newWorld(t testing.TB, kind string, keep storage.Retention, nowMs int64) *world {
	return readable(t, querytest.New(t, kind, keep, nowMs))
}

func newWorldOn(t testing.TB, st storage.Store, clk clock.Clock) *world {
	return readable(t, querytest.NewOn(t, st, clk))
}

func readable(t testing.TB, w *querytest.World) *world {
	_, queryable := New(w.Querier, Options{})
	return &world{World: w, t: t, queryable: queryable}
}
