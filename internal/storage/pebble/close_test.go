package pebble

import (
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/storage"
)

// TestCloseUnderUse closes the store while it is read and written: each call ends with
// what it was asked for, or with the word that the store is closed.
func TestCloseUnderUse(t *testing.T) {
	for range 20 {
		st, err := Open("/data", fullOptions(vfs.NewMem()))
		require.NoError(t, err)
		n := 0
		for ; n < 200; n++ {
			require.NoError(t, st.Write(t.Context(), crashBatch(n)))
		}
		var wg, begun sync.WaitGroup
		begun.Add(4)
		for range 3 {
			wg.Go(func() {
				var err error
				for begun.Done(); err == nil; {
					for _, err = range st.RawChunks(t.Context(), blocks.Range{End: 1 << 30}, 0, 1<<50) {
						if err != nil {
							break
						}
					}
				}
				require.ErrorIs(t, err, storage.ErrUnavailable)
			})
		}
		wg.Go(func() {
			var err error
			for begun.Done(); err == nil; n++ {
				err = st.Write(t.Context(), crashBatch(n))
			}
			require.ErrorIs(t, err, storage.ErrUnavailable)
		})
		begun.Wait()
		require.NoError(t, st.Close())
		wg.Wait()
	}
}
