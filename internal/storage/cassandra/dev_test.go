package cassandra

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestDev(t *testing.T) {
	host := os.Getenv("DEV")
	if host == "" {
		t.Skip()
	}
	storagetest.Run(t, func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		o := Options{Hosts: []string{host}, Keyspace: fmt.Sprintf("k%d", rand.Uint32()), Settings: s, Retention: r, Clock: clk,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
		require.NoError(t, ApplySchema(context.Background(), o, "", func(done, total int, step string) {}))
		var st *Store
		open := func() storage.Store {
			if st != nil {
				st.Close()
			}
			var err error
			st, err = Open(context.Background(), o)
			require.NoError(t, err)
			return st
		}
		t.Cleanup(func() { st.Close() })
		return open(), open
	}, storagetest.MissingExpire, storagetest.MissingTTL, storagetest.MissingNewestID)
}
