package storagetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

func TestModelConformance(t *testing.T) {
	Run(t, func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		m := NewModel(s, r, clk)
		return m, func() storage.Store {
			require.NoError(t, m.Close())
			return m.Reopen()
		}
	})
}
