package pebble

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestManyLongAnnotations: reading holds some pages of the annotations that are longer than a day, and not an entry of
// each.
func TestManyLongAnnotations(t *testing.T) {
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock(), Logger: quiet()})
	const n, atOnce = 60_000, 10_000
	hourMs := int64(3_600_000)
	for first := 0; first < n; first += atOnce {
		var put []storage.Annotation
		for i := first; i < first+atOnce; i++ {
			put = append(put, storage.Annotation{ID: fmt.Sprintf("%064d", i), StartMs: int64(i), EndMs: 1000 * 24 * hourMs, Text: "x"})
		}
		require.NoError(t, st.PutAnnotations(t.Context(), put, 0))
	}
	held := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, found := held(), 0
	for a, err := range st.Annotations(t.Context(), 900*24*hourMs, 901*24*hourMs) {
		require.NoError(t, err)
		require.Equal(t, int64(found), a.StartMs)
		if found++; found == 1 {
			require.Less(t, int64(held())-int64(before), int64(3<<20)) // an entry of each has 7 MiB
		}
	}
	require.Equal(t, n, found)
}
