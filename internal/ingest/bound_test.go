package ingest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestPendingOfOneClient: one client has half of the room for samples that wait, however much it sends, and another finds
// the rest. Its report of any size is taken if none of its own waits. Who is unknown has no share.
func TestPendingOfOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{MaxPending: 20}, registry.Options{})
		clients := limits.NewClients(nil)
		client := func(address string) context.Context {
			return limits.WithClient(t.Context(), clients.ByAddress(address))
		}
		greedy, other, third := client("192.0.2.1:1"), client("192.0.2.2:1"), client("192.0.2.3:1")
		for range 2 { // what has been written is given back
			hold := make(chan struct{})
			g.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { <-hold; return nil }})
			var wg sync.WaitGroup
			taken := func(ctx context.Context, values ...float64) {
				t.Helper()
				wg.Go(func() {
					if res, err := in.Append(ctx, report(values...)); err != nil || res.Accepted != len(values) {
						t.Errorf("%+v, %v", res, err)
					}
				})
				synctest.Wait()
			}
			refused := func(ctx context.Context, values ...float64) {
				t.Helper()
				answer := make(chan error, 1)
				go func() {
					_, err := in.Append(ctx, report(values...))
					answer <- err
				}()
				synctest.Wait()
				select {
				case err := <-answer:
					require.ErrorIs(t, err, ingest.ErrBusy)
				default:
					require.Fail(t, "it is taken")
				}
			}
			for range 3 {
				taken(greedy, 1, 2, 3)
			}
			refused(greedy, 1, 2)
			taken(greedy, 1)
			refused(greedy, 1)
			taken(other, 1, 2, 3, 4, 5, 6)
			refused(other, 1, 2, 3, 4, 5)
			taken(t.Context(), 1, 2)
			refused(third, 1, 2, 3)
			taken(third, 1, 2)
			refused(t.Context(), 1)
			close(hold)
			wg.Wait()
			taken(greedy, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		}
		require.NoError(t, in.Close())
	})
}

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
