package registry_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// fakeStore is a store with hooks that make the registry's requests fail or block.
type fakeStore struct {
	storage.Store

	mu                    sync.Mutex
	leases, claims, loads int

	onLoad    func(ctx context.Context) error
	onLease   func(n int) error
	onClaim   func(want []storage.Claim) error
	afterward func() error
	onCount   func(ctx context.Context) error
}

func newFakeStore() *fakeStore {
	return &fakeStore{Store: storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 128}},
	}, nil, clock.NewSimulated(time.Unix(0, 0)))}
}

// ids requires that no two series share an id, and returns their number.
func (f *fakeStore) ids(t *testing.T) int {
	t.Helper()
	leased, err := f.LeasedIDs(t.Context())
	require.NoError(t, err)
	seen := map[metric.ScheduleID]bool{}
	for s, err := range f.Schedules(t.Context(), leased) {
		require.NoError(t, err)
		require.False(t, seen[s.ID], "two series share an id")
		seen[s.ID] = true
	}
	return len(seen)
}

func (f *fakeStore) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

func (f *fakeStore) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	if f.onLease != nil {
		if err := f.onLease(n); err != nil {
			return blocks.Range{}, err
		}
	}
	f.count(&f.leases)
	return f.Store.LeaseIDs(ctx, n)
}

func (f *fakeStore) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	if f.onClaim != nil {
		if err := f.onClaim(want); err != nil {
			return nil, err
		}
	}
	f.count(&f.claims)
	ids, err := f.Store.ClaimSchedules(ctx, want)
	if f.afterward != nil {
		err = f.afterward()
	}
	return ids, err
}

func (f *fakeStore) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		f.count(&f.loads)
		if f.onLoad != nil {
			if err := f.onLoad(ctx); err != nil {
				yield(storage.Schedule{}, err)
				return
			}
		}
		f.Store.SourceSchedules(ctx, source)(yield)
	}
}

func (f *fakeStore) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	if f.onCount != nil {
		if err := f.onCount(ctx); err != nil {
			return blocks.Range{}, err
		}
	}
	return f.Store.LeasedIDs(ctx)
}
