package rollup_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// newestIs is a store with another answer of NewestBegun.
type newestIs struct {
	storage.Store
	startMs int64
	ok      bool
	err     error
}

func (n *newestIs) NewestBegun(context.Context, metric.Bucket) (int64, bool, error) {
	return n.startMs, n.ok, n.err
}

// TestTrustsNoCacheBehindAnotherRun: a sealed block is ground from its table if another run of this slice or of a later
// one has ever begun.
func TestTrustsNoCacheBehindAnotherRun(t *testing.T) {
	for name, c := range map[string]struct {
		newest  time.Duration // after the slice
		none    bool
		away    error
		begun   bool
		trusted bool
	}{
		"none":                   {none: true, trusted: true},
		"the slice before":       {newest: -time.Hour, trusted: true},
		"another run goes on":    {begun: true},
		"its record is gone":     {},
		"a later one":            {newest: time.Hour},
		"a later one, goes on":   {newest: time.Hour, begun: true},
		"out of reach, goes on":  {away: storage.ErrUnavailable, begun: true},
		"years later, goes back": {newest: 5 * 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewSimulated(hour.Add(30 * time.Minute))
			model := storagetest.NewModel(storage.Settings{
				Ladder: metric.DefaultLadder(), GroupSize: 16, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
			}, nil, clk)
			slice := metric.DefaultLadder().SliceAt(metric.Raw, hour.UnixMilli())
			w := cache.NewWriter(cache.New(model, clk, 1, cache.DefaultTiming()))
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{{
				Slice: slice, Block: blocks.Of(0, 4), Samples: []metric.Sample{{TimeMs: slice.StartMs, Value: 1}},
			}}))
			clk.Set(hour.Add(time.Hour + time.Minute))
			require.NoError(t, w.Seal(t.Context()))
			clk.Set(hour.Add(time.Hour + 2*time.Minute))
			k := storage.SliceKey{StartMs: slice.StartMs}
			if c.begun {
				require.NoError(t, model.BeginSlice(t.Context(), k))
			}
			store := storagetest.NewFaulty(&newestIs{model, slice.StartMs + c.newest.Milliseconds(), !c.none, c.away})
			rec, err := worker(store, clk, 1, storage.Worker{ID: "w"}, rollup.Options{}).Runner.Run(t.Context(), k)
			require.NoError(t, err)
			require.Equal(t, 1, rec.Blocks)
			require.Equal(t, 1, rec.BlockQueries, "one read from either")
			asked := map[string]int{}
			for _, step := range store.Log() {
				asked[step.Op]++
			}
			require.Equal(t, c.trusted, asked["CacheBlock"] == 1)
			require.Equal(t, c.trusted, asked["RawChunks"] == 0)
		})
	}
}
