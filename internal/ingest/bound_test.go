package ingest_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestPendingIsBounded is invariant 7: the number of samples waiting in memory is bounded, however
// many callers there are.
func TestPendingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, each, bound = 50, 2, 10
		in, g := start(t, ingest.Options{MaxPending: bound}, registry.Options{})
		hold := make(chan struct{})
		g.Add(storagetest.Rule{Op: "Write", Times: -1, Before: func() error { <-hold; return nil }})
		var taken, refused atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				switch _, err := in.Append(t.Context(), report(1, 2)); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, ingest.ErrBusy):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		require.EqualValues(t, bound/each, taken.Load())
		require.EqualValues(t, callers-bound/each, refused.Load())
		require.NoError(t, in.Close())
	})
}
