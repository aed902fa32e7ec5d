package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
)

// TestCountsOutlastRequests: a count takes longer than any request has. It goes on when the request
// that began it has ended, other requests wait for the same count, and it ends with the process.
func TestCountsOutlastRequests(t *testing.T) {
	const takes, patience = 50 * time.Second, 15 * time.Second
	for _, c := range []struct {
		name   string
		limits registry.Options
		first  bool // the count of all series, not of series without data
	}{
		{"all", registry.Options{MaxSeries: 3}, true},
		{"gone of all", registry.Options{MaxSeries: 2}, false},
		{"gone of a source", registry.Options{MaxSeriesPerSource: 2}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				process, stop := context.WithCancel(t.Context())
				defer stop()
				var background sync.WaitGroup
				counts, broken := 0, 0
				slow := func(ctx context.Context) error {
					counts++
					select {
					case <-time.After(takes):
						return nil
					case <-ctx.Done():
						broken++
						return context.Cause(ctx)
					}
				}
				store := newFakeStore()
				register(t, source(t, registry.New(store, registry.Options{}), "web-1"), series(t, "cpu", 0, 1))
				opts := c.limits
				opts.Clock = clock.System{}
				opts.Background = func(work func(context.Context)) { background.Go(func() { work(process) }) }
				opts.Gone = func(ctx context.Context, _ []metric.ScheduleID) (int, error) { return 1, slow(ctx) }
				if c.first {
					opts.Gone = nil
					store.onCount = slow
				}
				r := registry.New(store, opts)
				s := source(t, r, "web-1")
				ask := func(core int) error {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					_, err := s.Register(ctx, series(t, "cpu", core))
					return err
				}
				began := time.Now()
				for range 3 { // they wait in turn for one count
					require.ErrorIs(t, ask(2), context.DeadlineExceeded)
				}
				require.NoError(t, ask(2), "there is room for one")
				require.Equal(t, takes, time.Since(began))
				require.Equal(t, 1, counts)
				require.Zero(t, broken)
				var full *registry.LimitError
				require.ErrorAs(t, ask(3), &full)

				if c.first {
					return
				}
				// The count serves for a minute from its end on. Two requests at once wait for one
				// count.
				time.Sleep(time.Minute)
				both := make(chan error, 2)
				for i := range 2 {
					other := s
					if opts.MaxSeriesPerSource == 0 {
						other = source(t, r, fmt.Sprint("web-", 2+i))
					}
					more := series(t, "cpu", 4+i)
					go func() {
						_, err := other.Register(t.Context(), more)
						both <- err
					}()
				}
				require.ErrorAs(t, <-both, &full)
				require.ErrorAs(t, <-both, &full)
				require.Equal(t, 2, counts)

				// The process ends.
				time.Sleep(2 * time.Minute)
				ended := make(chan error, 1)
				go func() { ended <- ask(6) }()
				synctest.Wait()
				require.Equal(t, 3, counts)
				stop()
				require.ErrorIs(t, <-ended, context.Canceled)
				background.Wait()
				require.Equal(t, 1, broken)
			})
		})
	}
}

// TestCountFails: a waiting request gets the error, and the next request tries again.
func TestCountFails(t *testing.T) {
	store := newFakeStore()
	boom := errors.New("boom")
	store.onCount = func(context.Context) error { return boom }
	s := source(t, registry.New(store, registry.Options{MaxSeries: 1}), "web-1")
	_, err := s.Register(t.Context(), series(t, "cpu", 0))
	require.ErrorIs(t, err, boom)
	store.onCount = nil
	require.Equal(t, idRange(0, 1), register(t, s, series(t, "cpu", 0)))
}
