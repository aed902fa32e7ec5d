package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestLinearizable(t *testing.T) {
	noLeaks(t)
	storagetest.Linearizable(t, func(t *testing.T) []storage.Store {
		s, err := Open("data", Options{Settings: storagetest.LinearizableSettings(), Clock: newClock(), FS: vfs.NewMem(), Logger: quiet()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return []storage.Store{s}
	})
}
