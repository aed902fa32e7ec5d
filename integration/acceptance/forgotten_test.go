package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/storage"
)

// forgetful is the only copy of the data, on a server that is killed before it has synced what it acknowledged.
type forgetful struct {
	storage.Store
	// forgets says that the server will have forgotten what it acknowledges now.
	forgets bool
}

func (f *forgetful) Write(ctx context.Context, b *storage.Batch) error {
	if f.forgets {
		return nil
	}
	return f.Store.Write(ctx, b)
}

// TestForgottenOpening: the server forgets the seconds in which the slice of 11:00 was opened, and with them the first
// marks. Ingest believes that both are there. What is acknowledged after that is ground with the hour.
func TestForgottenOpening(t *testing.T) {
	var server forgetful
	stores := lastWriteWins{wrap: func(st storage.Store) storage.Store {
		server.Store = st
		return &server
	}}
	s := startAt(t, Backend{Believes: true, Open: stores.open}, 10, 30)
	s.MustReport(s.point("A", 10, 29, 1))
	s.setClock(11, 0)
	s.Advance(2 * time.Second)
	server.forgets = true
	_, err := s.engine.Ingest.Append(t.Context(), []ingest.Report{{Source: source, Measurements: []ingest.Measurement{
		{Metric: "A", TimeMs: at(s, 11, 0), Value: 5},
	}}})
	require.NoError(t, err) // it is lost, as docs/cassandra.md says
	server.forgets = false
	for minute := 1; minute < 60; minute += 10 {
		s.setClock(11, minute)
		require.NoError(t, s.engine.Ingest.Settle(t.Context()))
		s.MustReport(s.point("A", 11, minute, float64(minute)))
	}
	s.Drain()
	s.MustCheck(Raw)
}
