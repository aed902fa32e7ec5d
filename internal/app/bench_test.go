package app

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// benchServer returns a server that accepts all protocols into a store on disk, and a function that
// stops it.
func benchServer(b *testing.B, sources api.Sources) (s *api.Server, stop func()) {
	b.Helper()
	clk, log := clock.System{}, slog.New(slog.DiscardHandler)
	st, err := pebble.Open(b.TempDir(), pebble.Options{
		Settings: storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: 128}}},
		Clock:    clk, Logger: log, OnFatal: func(err error) { panic(err) },
	})
	require.NoError(b, err)
	in := ingest.Start(b.Context(), st, registry.New(st, registry.Options{}), cache.New(st, clk, 1, cache.DefaultTiming()), clk, ingest.Options{})
	s, err = api.New(api.Options{Clock: clk, Logger: log, Appender: in, Sources: sources})
	require.NoError(b, err)
	return s, func() {
		require.NoError(b, in.Close())
		require.NoError(b, st.Close())
	}
}
