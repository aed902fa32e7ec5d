package pebble

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestStuckDisk has the disk keep a sync of the log from returning, for each operation that waits
// for one and keeps its locks. Operations that take no context, and reads, still return. So do those
// that need the locks, when their contexts end.
func TestStuckDisk(t *testing.T) {
	later := storagetest.TestSettings().Policy
	later.Retention = storage.Retention{24 * time.Hour}
	for name, stuck := range map[string]func(ctx context.Context, st *Store) error{
		"heartbeat": func(ctx context.Context, st *Store) error {
			return storage.Heartbeat(ctx, st, storage.Worker{ID: "a"}, time.Hour)
		},
		"check the clock":  func(ctx context.Context, st *Store) error { return st.CheckFit(ctx) },
		"accept the clock": func(ctx context.Context, st *Store) error { return st.AcceptClock(ctx) },
		"set policy":       func(ctx context.Context, st *Store) error { return st.SetPolicy(ctx, later) },
		"add epoch": func(ctx context.Context, st *Store) error {
			return st.AddEpoch(ctx, blocks.Epoch{FromMs: benchStart + 100*benchHourMs, BlockSize: 64})
		},
		"lease a shard": func(ctx context.Context, st *Store) error {
			_, err := st.AcquireShard(ctx, 0, "w", time.Hour)
			return err
		},
		"lease ids": func(ctx context.Context, st *Store) error { _, err := st.LeaseIDs(ctx, 10); return err },
		"write":     func(ctx context.Context, st *Store) error { return st.Write(ctx, crashBatch(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			disk := &stuckSyncs{held: make(chan struct{}), free: make(chan struct{})}
			clk := newClock()
			opts := crashOptions(noReuse{errorfs.Wrap(vfs.NewMem(), disk)})
			opts.Clock = clk
			st, err := Open("/data", opts)
			require.NoError(t, err)
			require.NoError(t, storage.Heartbeat(t.Context(), st, storage.Worker{ID: "b"}, 24*time.Hour))
			clk.Set(clk.Now().Add(time.Hour)) // a time to write down
			disk.holds.Store(true)
			done := make(chan error, 1)
			go func() { done <- stuck(t.Context(), st) }()
			<-disk.held

			answered := make(chan struct{})
			go func() {
				defer close(answered)
				workers, err := storage.Workers(t.Context(), st)
				assert.NoError(t, err)
				assert.NotEmpty(t, workers)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				assert.ErrorIs(t, storage.Heartbeat(ctx, st, storage.Worker{ID: "c"}, time.Hour), storage.ErrTimeout)
				locked := map[string]func(context.Context) error{
					"lease a shard": func(ctx context.Context) error { return st.ReleaseShard(ctx, 0, "w") },
					"lease ids":     func(ctx context.Context) error { return second(st.LeaseIDs(ctx, 1)) },
				}
				if op := locked[name]; op != nil {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					assert.ErrorIs(t, op(ctx), storage.ErrTimeout)
				}
				assert.Len(t, st.Settings().Epochs, 1)
				assert.Empty(t, st.Settings().Policy.Retention)
				assert.NotZero(t, st.WholeFrom(metric.Raw, benchStart))
				assert.NoError(t, st.ClockRefused())
				_, err = st.LeasedIDs(t.Context())
				assert.NoError(t, err)
				assert.NoError(t, first(st.RawChunks(t.Context(), blocks.Range{End: 1000}, 0, math.MaxInt64)))
			}()
			select {
			case <-answered:
			case <-time.After(time.Minute):
				assert.Fail(t, "they wait for the disk")
			}
			close(disk.free)
			<-answered
			require.NoError(t, <-done)
			require.NoError(t, st.Close())
		})
	}
}

// stuckSyncs holds syncs of logs, once holds is set, until free is closed. The first one closes
// held.
type stuckSyncs struct {
	holds      atomic.Bool
	once       sync.Once
	held, free chan struct{}
}

// String implements errorfs.Injector.
func (*stuckSyncs) String() string { return "stuck syncs" }

// MaybeError implements errorfs.Injector.
func (s *stuckSyncs) MaybeError(op errorfs.Op) error {
	isSync := op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
	if s.holds.Load() && isSync && strings.HasSuffix(op.Path, logSuffix) {
		s.once.Do(func() { close(s.held) })
		<-s.free
	}
	return nil
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
