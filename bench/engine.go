package main

import (
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// The settings are those of `quern serve` without flags.
const (
	blockSize  = 128
	groupSize  = 128
	partitions = 16
)

// worker is the name of the worker.
const worker = "bench"

var retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

// measured is an engine wired as in `quern serve`.
type measured struct {
	*engine.Engine

	// ground counts each block that a run has finished.
	ground *bar
}

// watched is the store that a run uses. It counts finished blocks.
type watched struct {
	storage.Store
	engine *measured
}

// DeleteCacheBlock implements storage.Runs. It is nearly the last step for a block.
func (w watched) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	if w.engine.ground != nil {
		w.engine.ground.add(1)
	}
	return w.Store.DeleteCacheBlock(ctx, f, k)
}

func storeDir(dir string) string { return filepath.Join(dir, "store") }

func settings(blockSize int) storage.Settings {
	return storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: groupSize, IndexPartitions: partitions,
		Epochs: blocks.Epochs{{FromMs: 0, BlockSize: blockSize}},
	}
}

func (b *bench) openStore(ctx context.Context, clk clock.Clock, log *slog.Logger) (storage.Store, error) {
	if b.cluster.keyspace != "" {
		return openCassandra(ctx, b, clk, log)
	}
	return pebble.Open(storeDir(b.dir), pebble.Options{
		Settings: settings(blockSize), Policy: storage.Policy{Retention: retention}.Always, Clock: clk, Logger: log,
	})
}

func openEngine(ctx context.Context, b *bench, clk clock.Clock) (*measured, error) {
	return openEngineWith(ctx, b, clk, registry.Options{})
}

func openEngineWith(ctx context.Context, b *bench, clk clock.Clock, series registry.Options) (*measured, error) {
	log := slog.New(slog.NewTextHandler(b.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	st, err := b.openStore(ctx, clk, log)
	if err != nil {
		return nil, err
	}
	runs, takes := rollup.Options{Logger: log, PackRate: math.MaxInt}, ingest.Options{Logger: log}
	if b.cluster.keyspace != "" {
		// As the programs do over Cassandra.
		runs.Parallel, takes.Window = blocksInFlight, 100*time.Millisecond
	}
	e := new(measured)
	e.Engine = engine.New(engine.Options{Store: watched{st, e}, Clock: clk, Worker: storage.Worker{ID: worker}, Rollup: &runs})
	e.Start(ctx, series, takes)
	return e, nil
}
