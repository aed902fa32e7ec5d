package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// The settings are those of `quern serve` without flags.
const (
	blockSize = 128
	shards    = 16
)

var retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

// engine is the store with ingest and aggregation over it, as `quern serve` puts
// them together.
type engine struct {
	store  *pebble.Store
	ingest *ingest.Ingest
	runner *rollup.Runner
}

func storeDir(dir string) string { return filepath.Join(dir, "store") }

func openStore(dir string, clk clock.Clock, log *slog.Logger) (*pebble.Store, error) {
	return pebble.Open(storeDir(dir), pebble.Options{
		Settings: storage.Settings{
			Ladder: metric.DefaultLadder(), GroupSize: blockSize, IndexPartitions: shards,
			Epochs: blocks.Epochs{{FromMs: 0, BlockSize: blockSize}},
		},
		Retention: retention,
		Clock:     clk,
		Logger:    log,
	})
}

func openEngine(ctx context.Context, b *bench, clk clock.Clock) (*engine, error) {
	log := slog.New(slog.NewTextHandler(b.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	st, err := openStore(b.dir, clk, log)
	if err != nil {
		return nil, err
	}
	c := cache.New(st, clk, rand.Uint64(), cache.DefaultTiming())
	rec := recovery.New(st, c, clk, recovery.Options{Retention: retention})
	return &engine{
		store:  st,
		ingest: ingest.Start(ctx, st, registry.New(st, registry.Options{}), c, clk, ingest.Options{Logger: log}),
		runner: rollup.NewRunner(st, c, rec, clk, rollup.Options{Worker: "bench", Logger: log}),
	}, nil
}

func (e *engine) close() error { return errors.Join(e.ingest.Close(), e.store.Close()) }
