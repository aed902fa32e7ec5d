package registry_test

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// fakeStore is the registry's tables in memory, with hooks that make the registry's requests fail
// or block.
type fakeStore struct {
	mu        sync.Mutex
	next      metric.ScheduleID
	bySource  map[string]map[string]storage.Schedule
	leases    int
	claims    int
	loads     int
	onLoad    func(ctx context.Context) error
	onLease   func() error
	onLeaseOf func(n int) error
	onClaim   func(want []storage.Claim) error
	afterward func() error
	onCount   func(ctx context.Context) error
}

// ids returns all ids that the store has given to series, and requires that no two series share
// one.
func (f *fakeStore) ids(t *testing.T) map[metric.ScheduleID]string {
	t.Helper()
	out := map[metric.ScheduleID]string{}
	for source, all := range f.bySource {
		for key, sch := range all {
			require.NotContains(t, out, sch.ID, "two series share an id")
			out[sch.ID] = source + key
		}
	}
	return out
}

func newFakeStore() *fakeStore {
	return &fakeStore{bySource: make(map[string]map[string]storage.Schedule)}
}

func (f *fakeStore) LeaseIDs(_ context.Context, n int) (blocks.Range, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onLease != nil {
		if err := f.onLease(); err != nil {
			return blocks.Range{}, err
		}
	}
	if f.onLeaseOf != nil {
		if err := f.onLeaseOf(n); err != nil {
			return blocks.Range{}, err
		}
	}
	f.leases++
	r := blocks.Range{Start: f.next, End: f.next + metric.ScheduleID(n)}
	f.next = r.End
	return r, nil
}

func (f *fakeStore) ClaimSchedules(_ context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	if f.onClaim != nil {
		if err := f.onClaim(want); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims++
	out := make([]metric.ScheduleID, len(want))
	for i, w := range want {
		known := f.bySource[w.Source]
		if known == nil {
			known = make(map[string]storage.Schedule)
			f.bySource[w.Source] = known
		}
		key := string(w.Labels.AppendKey(nil))
		if _, ok := known[key]; !ok {
			known[key] = storage.Schedule{ID: w.ID, Labels: slices.Clone(w.Labels)}
		}
		out[i] = known[key].ID
	}
	if f.afterward != nil {
		if err := f.afterward(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *fakeStore) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		f.mu.Lock()
		f.loads++
		onLoad := f.onLoad
		f.mu.Unlock()
		if onLoad != nil {
			if err := onLoad(ctx); err != nil {
				yield(storage.Schedule{}, err)
				return
			}
		}
		f.mu.Lock()
		var all []storage.Schedule
		for _, s := range f.bySource[source] {
			all = append(all, s)
		}
		f.mu.Unlock()
		for _, s := range all {
			if !yield(s, nil) {
				return
			}
		}
	}
}

func (f *fakeStore) Schedules(_ context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	f.mu.Lock()
	var all []storage.Schedule
	for _, series := range f.bySource {
		for _, s := range series {
			if ids.Contains(s.ID) {
				all = append(all, s)
			}
		}
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b storage.Schedule) int { return int(a.ID - b.ID) })
	return func(yield func(storage.Schedule, error) bool) {
		for _, s := range all {
			if !yield(s, nil) {
				return
			}
		}
	}
}

func (f *fakeStore) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	if f.onCount != nil {
		if err := f.onCount(ctx); err != nil {
			return blocks.Range{}, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return blocks.Range{End: f.next}, nil
}
