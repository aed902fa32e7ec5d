package acceptance

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// outdated is a store whose restored tables of rows are older than its other tables: snapshots of a cluster are made
// table by table. What is written to those tables while taken is set is not in the backup.
type outdated struct {
	storage.Store
	taken *bool
}

func (o *outdated) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	if *o.taken {
		return nil
	}
	return o.Store.WriteRollups(ctx, f, level, rows)
}

// TestSnapshotBesideARun: a snapshot made beside a run has neither the rows nor the marks of what was ground meanwhile.
// Only a request has these rows ground again.
func TestSnapshotBesideARun(t *testing.T) {
	var taken bool
	s := startAt(t, Backend{Believes: true, Open: func(_ testing.TB, st storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
		place := storagetest.NewLWWModel(st, r, clk)
		return func() storage.Store { return &outdated{place.Session(clk), &taken} }
	}}, 10, 30)
	s.MustReport(s.point("A", 10, 29, 1), s.point("B", 10, 29, 1))
	s.setClock(11, 2)
	taken = true
	s.MustRun()
	taken = false
	s.Restart()
	s.Drain()
	require.NotEmpty(t, s.Check(Raw))
	s.reaggregate(false)
	s.allWhole()
}
