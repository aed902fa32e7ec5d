package app

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// benchServer returns a server that accepts all protocols into a store on disk, and a function that
// stops it.
func benchServer(b *testing.B, sources metric.SourceLabels) (s *api.Server, stop func()) {
	b.Helper()
	clk, log := clock.System{}, slog.New(slog.DiscardHandler)
	st, err := pebble.Open(b.TempDir(), pebble.Options{
		Settings: storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: 128}}},
		Clock:    clk, Logger: log, OnFatal: func(err error) { panic(err) },
	})
	require.NoError(b, err)
	e := engine.New(engine.Options{Store: st, Clock: clk, Writer: 1})
	e.Start(b.Context(), registry.Options{}, ingest.Options{})
	s, err = api.New(api.Options{Clock: clk, Logger: log, Appender: e.Ingest, Sources: sources})
	require.NoError(b, err)
	return s, func() {
		require.NoError(b, e.Close())
	}
}
