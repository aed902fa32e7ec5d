// Package app puts the pieces together: it is the only place that knows all of them.
// Nothing is decided here but the order in which they start and stop.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// engine is ingest and aggregation over one store, on one clock.
type engine struct {
	store    storage.Store
	worker   string
	timing   cache.Timing
	recovery *recovery.Recovery
	runner   *rollup.Runner
	ingest   *ingest.Ingest
}

// openStore opens the embedded store and brings its block size to the one asked for.
// onFatal hears, once, that the store cannot go on in this process.
func openStore(ctx context.Context, cfg config.Config, clk clock.Clock, log *slog.Logger, onFatal func(error)) (*pebble.Store, error) {
	st, err := pebble.Open(cfg.DataDir, pebble.Options{
		Settings: storage.Settings{
			Ladder:          cfg.Ladder,
			GroupSize:       cfg.GroupSize,
			IndexPartitions: cfg.IndexPartitions,
			Epochs:          blocks.Epochs{{FromMs: 0, BlockSize: cfg.BlockSize}},
		},
		Retention: cfg.Retention,
		Clock:     clk,
		Logger:    log,
		OnFatal:   onFatal,
	})
	if err != nil {
		return nil, err
	}
	if err := changeBlockSize(ctx, st, cfg, clk, log); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// changeBlockSize adds an epoch when another block size is asked for. It begins a
// slice after the last one that a sample may have been written to.
func changeBlockSize(ctx context.Context, st storage.Store, cfg config.Config, clk clock.Clock, log *slog.Logger) error {
	epochs := st.Settings().Epochs
	last := epochs[len(epochs)-1]
	if last.BlockSize == cfg.BlockSize {
		return nil
	}
	from := cfg.Ladder.SliceAt(metric.Raw, clk.Now().Add(cfg.FutureLimit).UnixMilli()).EndMs
	// Under another future limit, or a clock that was ahead, slices beyond may be in use.
	opened, err := st.Slices(ctx, metric.Raw, from, from+(30*24*time.Hour).Milliseconds())
	if err != nil {
		return err
	}
	for _, s := range opened {
		from = max(from, cfg.Ladder.SliceAt(metric.Raw, s.StartMs).EndMs)
	}
	from = max(from, last.FromMs) + cfg.Ladder.WidthMs(metric.Raw+1)
	if err := st.AddEpoch(ctx, blocks.Epoch{FromMs: from, BlockSize: cfg.BlockSize}); err != nil {
		return fmt.Errorf("change the block size from %d to %d: %w", last.BlockSize, cfg.BlockSize, err)
	}
	log.Info("the block size changes", "from", last.BlockSize, "to", cfg.BlockSize, "at", metric.Slice{StartMs: from})
	return nil
}

// startEngine starts ingest over the store. onNew hears of new series.
func startEngine(ctx context.Context, cfg config.Config, st storage.Store, clk clock.Clock, log *slog.Logger,
	onNew func([]storage.Schedule), metrics prometheus.Registerer,
) *engine {
	worker := workerName()
	timing := cache.Timing{Grace: cfg.LateGrace, Delay: cfg.AggregationDelay}
	c := cache.New(st, clk, rand.Uint64(), timing)
	rec := recovery.New(st, c, clk, recovery.Options{AgeCap: cfg.AgeCap, Retention: cfg.Retention})
	reg := registry.New(st, registry.Options{
		MaxSeries: cfg.MaxSeries, MaxSeriesPerSource: cfg.MaxSeriesPerSource, OnNew: onNew,
	})
	return &engine{
		store:    st,
		worker:   worker,
		timing:   timing,
		recovery: rec,
		runner:   rollup.NewRunner(st, c, rec, clk, rollup.Options{Worker: worker, Logger: log, Metrics: metrics}),
		ingest: ingest.Start(ctx, st, reg, c, clk, ingest.Options{
			Window: cfg.GroupCommit, MaxPending: cfg.MaxPendingSamples,
			AgeCap: cfg.AgeCap, FutureLimit: cfg.FutureLimit,
			Logger: log, Metrics: metrics,
		}),
	}
}

// workerName tells this process from all others, also from one that ran here before.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%08x", host, rand.Uint32())
}
