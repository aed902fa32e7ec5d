package deletion_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/deletion"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestSeveralIDs: of a series with several ids no sample is left under any of them, and no row has one: neither samples
// that readers see, nor those that a sample or a tombstone of another id hides.
func TestSeveralIDs(t *testing.T) {
	at := func(h, m int) time.Time {
		return noon.Truncate(24 * time.Hour).Add(time.Duration(h*60+m) * time.Minute)
	}
	clk := clock.NewSimulated(at(10, 0))
	index := query.NewIndex()
	store := storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 128}},
	}, nil, clk)
	e := engine.New(engine.Options{
		Store: store, Clock: clk, Writer: 1, Worker: storage.Worker{ID: "w", Aggregates: true}, Rollup: &rollup.Options{Parallel: 1},
	})
	e.Start(t.Context(), registry.Options{OnNew: index.Add, LeaseSize: 4}, ingest.Options{})
	t.Cleanup(func() { require.NoError(t, e.Drain()) })
	q := query.New(query.Parts{Store: store, Index: index, Settings: store.Settings(), Clock: clk}, query.Options{})

	// By the old list of source labels the source of m{host="web-1",pod="p"} is its pod, by the new one its host.
	send := func(source string, h, m int, v float64) {
		res, err := e.Ingest.Append(t.Context(), []ingest.Report{{Source: source, Derived: true, Measurements: []ingest.Measurement{
			{Metric: "m", Labels: []metric.Label{{Name: "host", Value: "web-1"}, {Name: "pod", Value: "p"}}, TimeMs: at(h, m).UnixMilli(), Value: v},
		}}})
		require.NoError(t, err)
		require.Equal(t, 1, res.Accepted)
	}
	clk.Set(at(11, 15))
	send("p", 10, 10, 1)
	send("p", 10, 20, 2)
	send("web-1", 10, 20, 2) // hides the one before
	send("web-1", 10, 40, 4)
	send("web-1", 11, 10, 5)
	clk.Set(at(12, 2))
	_, err := e.Runner.RunDue(t.Context())
	require.NoError(t, err)

	// A deletion by series left this sample under its second id: a tombstone of the first id hides it.
	ids, err := index.Select(t.Context(), set(t, "m"))
	require.NoError(t, err)
	require.Len(t, ids, 2)
	place, err := e.Ingest.Place(t.Context())
	require.NoError(t, err)
	require.NoError(t, e.Ingest.Delete(t.Context(), place, []metric.Sample{{Schedule: ids[0], TimeMs: at(10, 40).UnixMilli()}}))

	del := deletion.New(deletion.Parts{Querier: q, Ingest: e.Ingest, Kept: always{}, Clock: clk, Logger: slog.New(slog.DiscardHandler)})
	res, err := del.Delete(t.Context(), 0, at(12, 0).UnixMilli(), set(t, `m{host="web-1"}`))
	require.NoError(t, err)
	require.Equal(t, 1, res.Series)
	require.EqualValues(t, 5, res.Samples)
	for range 30 {
		clk.Set(clk.Now().Truncate(time.Hour).Add(62 * time.Minute))
		require.NoError(t, e.Ingest.Seal(t.Context()))
		_, err := e.Runner.RunDue(t.Context())
		require.NoError(t, err)
	}
	for _, level := range store.Settings().Ladder.Levels() {
		rows, err := q.Rollups(t.Context(), []query.Selector{set(t, "m")}, level, 0, noon.Add(72*time.Hour).UnixMilli())
		require.NoError(t, err)
		for row, err := range rows.All() {
			require.NoError(t, err)
			require.Fail(t, "a row is left", "level %d: %+v", level, row)
		}
	}
	again, err := del.Delete(t.Context(), 0, at(12, 0).UnixMilli(), set(t, "m"))
	require.NoError(t, err)
	require.Equal(t, deletion.Result{}, again, "nothing is left to delete")
}
