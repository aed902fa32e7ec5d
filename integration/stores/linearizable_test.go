package stores

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestLinearizable runs three processes on one keyspace, whose clocks differ by as much as is
// allowed.
func TestLinearizable(t *testing.T) {
	storagetest.Linearizable(t, func(t *testing.T) []storage.Store {
		settings := storagetest.LinearizableSettings()
		opts := place(t, settings.Ladder)
		opts.Settings = settings
		opts.Policy = storage.Policy{}.Always
		opts.Clock = clock.System{}
		require.NoError(t, cassandra.ApplySchema(t.Context(), opts, "", func(int, int, string) {}))
		var out []storage.Store
		for _, off := range []time.Duration{0, 20 * time.Second, -20 * time.Second} {
			opts.Clock = clock.NewSimulated(time.Now().Add(off))
			s, err := cassandra.Open(context.WithoutCancel(t.Context()), opts)
			require.NoError(t, err)
			t.Cleanup(func() { _ = s.Close() })
			out = append(out, s)
		}
		return out
	})
}
