package pebble

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/storage"
)

// TestStuckWriteHoldsUpNobody covers a write that waits for the disk and keeps its locks. Other
// operations that need these locks still return when their contexts end.
func TestStuckWriteHoldsUpNobody(t *testing.T) {
	noLeaks(t)
	st, err := Open("/data", fullOptions(vfs.NewMem()))
	require.NoError(t, err)
	lease, err := st.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)
	st.fences.mu.RLock() // as commit does
	st.registryMu.Lock() // as ClaimSchedules does
	for _, op := range []func(context.Context) error{
		func(ctx context.Context) error { return st.RenewShard(ctx, lease, time.Hour) },
		func(ctx context.Context) error { return st.ReleaseShard(ctx, 0, "w") },
		func(ctx context.Context) error { _, err := st.Leases(ctx); return err }, // the operations before it wait to write
		func(ctx context.Context) error { _, err := st.LeasedIDs(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		require.ErrorIs(t, op(ctx), storage.ErrTimeout)
		cancel()
	}
	st.registryMu.Unlock()
	st.fences.mu.RUnlock()
	require.NoError(t, st.Close())
}

// TestCloseUnderUse closes the store while it is read and written. Each call either succeeds or
// returns the error of a closed store.
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
