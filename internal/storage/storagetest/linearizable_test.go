package storagetest

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

func TestModelLinearizable(t *testing.T) {
	Linearizable(t, func(*testing.T) []storage.Store {
		return []storage.Store{NewModel(LinearizableSettings(), nil, clock.NewSimulated(day0))}
	})
}

func TestLWWModelLinearizable(t *testing.T) {
	Linearizable(t, func(*testing.T) []storage.Store {
		clk := clock.NewSimulated(day0)
		m := NewLWWModel(LinearizableSettings(), nil, clk)
		ahead, behind := clock.NewSimulated(day0.Add(time.Second)), clock.NewSimulated(day0.Add(-time.Second))
		return []storage.Store{m, m.Session(ahead), m.Session(behind)}
	})
}

// broken is a store that breaks promises. Each field breaks another.
type broken struct {
	storage.Store
	acquire func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error)
	renew   func(ctx context.Context, l storage.Lease, ttl time.Duration) error
	release func(ctx context.Context, shard int, owner string) error
	ids     func(ctx context.Context, n int) (blocks.Range, error)
	claim   func(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error)
	series  func(ctx context.Context, source string) iter.Seq2[storage.Schedule, error]
	put     func(ctx context.Context, d storage.Document, keep int) error
}

func (b *broken) PutDocument(ctx context.Context, d storage.Document, keep int) error {
	if b.put != nil {
		return b.put(ctx, d, keep)
	}
	return b.Store.PutDocument(ctx, d, keep)
}

func (b *broken) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	if b.acquire != nil {
		return b.acquire(ctx, shard, owner, ttl)
	}
	return b.Store.AcquireShard(ctx, shard, owner, ttl)
}

func (b *broken) RenewShard(ctx context.Context, l storage.Lease, ttl time.Duration) error {
	if b.renew != nil {
		return b.renew(ctx, l, ttl)
	}
	return b.Store.RenewShard(ctx, l, ttl)
}

func (b *broken) ReleaseShard(ctx context.Context, shard int, owner string) error {
	if b.release != nil {
		return b.release(ctx, shard, owner)
	}
	return b.Store.ReleaseShard(ctx, shard, owner)
}

func (b *broken) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	if b.ids != nil {
		return b.ids(ctx, n)
	}
	return b.Store.LeaseIDs(ctx, n)
}

func (b *broken) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	if b.claim != nil {
		return b.claim(ctx, want)
	}
	return b.Store.ClaimSchedules(ctx, want)
}

func (b *broken) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	if b.series != nil {
		return b.series(ctx, source)
	}
	return b.Store.SourceSchedules(ctx, source)
}

// every returns a function that is true on each nth call.
func every(n int) func() bool {
	var mu sync.Mutex
	i := 0
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		i++
		return i%n == 0
	}
}

// TestLinearizableFindsBreaks runs the check on stores that break what it checks.
func TestLinearizableFindsBreaks(t *testing.T) {
	for _, tc := range []struct {
		name string
		want string
		make func(m *Model) *broken
	}{
		{"a document is put over another's version", "documents are not", func(m *Model) *broken {
			return &broken{put: func(ctx context.Context, d storage.Document, keep int) error {
				err := m.PutDocument(ctx, d, keep)
				if errors.Is(err, storage.ErrConflict) {
					err = nil
				}
				return err
			}}
		}},
		{"a fence is given out twice", "leases are not", func(m *Model) *broken {
			var mu sync.Mutex
			var last storage.Fence
			again := every(3)
			return &broken{acquire: func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
				mu.Lock()
				defer mu.Unlock()
				l, err := m.AcquireShard(ctx, shard, owner, ttl)
				if err == nil && last != 0 && again() {
					l.Fence = last
				}
				last = max(last, l.Fence)
				return l, err
			}}
		}},
		{"fences ascend for each shard only", "leases are not", func(m *Model) *broken {
			return &broken{acquire: func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
				l, err := m.AcquireShard(ctx, shard, owner, ttl)
				l.Fence += storage.Fence(1000 * (64 - shard))
				return l, err
			}}
		}},
		{"two hold a shard", "leases are not", func(m *Model) *broken {
			both := every(2)
			return &broken{acquire: func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
				l, err := m.AcquireShard(ctx, shard, owner, ttl)
				if !errors.Is(err, storage.ErrConflict) || !both() {
					return l, err
				}
				held, err := m.Leases(ctx)
				if err != nil {
					return l, err
				}
				for _, h := range held {
					if h.Shard == shard {
						return storage.Lease{Shard: shard, Owner: owner, Fence: h.Fence + 1}, nil
					}
				}
				return l, storage.ErrConflict
			}}
		}},
		{"a lease is taken from its holder", "leases are not", func(m *Model) *broken {
			take := every(3)
			return &broken{acquire: func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
				l, err := m.AcquireShard(ctx, shard, owner, ttl)
				if !errors.Is(err, storage.ErrConflict) || !take() {
					return l, err
				}
				held, err := m.Leases(ctx)
				if err != nil {
					return l, err
				}
				for _, h := range held {
					if h.Shard == shard {
						_ = m.ReleaseShard(ctx, shard, h.Owner)
					}
				}
				return m.AcquireShard(ctx, shard, owner, ttl)
			}}
		}},
		{"a free shard is refused", "leases are not", func(m *Model) *broken {
			refuse := every(4)
			return &broken{acquire: func(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
				l, err := m.AcquireShard(ctx, shard, owner, ttl)
				if err == nil && refuse() {
					_ = m.ReleaseShard(ctx, shard, owner)
					return storage.Lease{}, storage.ErrConflict
				}
				return l, err
			}}
		}},
		{"a lost lease is renewed", "leases are not", func(*Model) *broken {
			return &broken{renew: func(context.Context, storage.Lease, time.Duration) error { return nil }}
		}},
		{"a release is forgotten", "leases are not", func(m *Model) *broken {
			forget := every(2)
			return &broken{release: func(ctx context.Context, shard int, owner string) error {
				if forget() {
					return nil
				}
				return m.ReleaseShard(ctx, shard, owner)
			}}
		}},
		{"a release frees another's", "leases are not", func(m *Model) *broken {
			return &broken{release: func(ctx context.Context, shard int, _ string) error {
				held, err := m.Leases(ctx)
				for _, h := range held {
					if h.Shard == shard {
						_ = m.ReleaseShard(ctx, shard, h.Owner)
					}
				}
				return err
			}}
		}},
		{"ids overlap", "ids are not", func(m *Model) *broken {
			return &broken{ids: func(ctx context.Context, n int) (blocks.Range, error) {
				r, err := m.LeaseIDs(ctx, n)
				if r.Start > 0 {
					r = blocks.Range{Start: r.Start - 1, End: r.End - 1}
				}
				return r, err
			}}
		}},
		{"the counter goes on after the answer", "ids are not", func(m *Model) *broken {
			return &broken{ids: func(ctx context.Context, n int) (blocks.Range, error) {
				was, err := m.LeasedIDs(ctx)
				if err != nil {
					return was, err
				}
				if n > 1 { // a read and a write that is not conditional
					_, err = m.LeaseIDs(ctx, n-1)
				}
				return blocks.Range{Start: was.End, End: was.End + metric.ScheduleID(n)}, err
			}}
		}},
		{"a second id", "claims are not", func(m *Model) *broken {
			second := every(3)
			return &broken{claim: func(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
				ids, err := m.ClaimSchedules(ctx, want)
				if err == nil && second() {
					ids[0] = want[0].ID
				}
				return ids, err
			}}
		}},
		{"a claim is forgotten", "claims are not", func(m *Model) *broken {
			forget := every(2)
			return &broken{claim: func(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
				if !forget() {
					return m.ClaimSchedules(ctx, want)
				}
				ids := make([]metric.ScheduleID, len(want))
				for i, w := range want {
					ids[i] = w.ID
				}
				return ids, nil
			}}
		}},
		{"a series is not read back", "claims are not", func(m *Model) *broken {
			return &broken{series: func(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
				return func(yield func(storage.Schedule, error) bool) {
					skipped := false
					for s, err := range m.SourceSchedules(ctx, source) {
						if skipped && !yield(s, err) {
							return
						}
						skipped = true
					}
				}
			}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := NewModel(LinearizableSettings(), nil, clock.NewSimulated(day0))
			b := tc.make(m)
			b.Store = m
			require.ErrorContains(t, Linearizability{Seed: 1}.Check(t.Context(), []storage.Store{b}), tc.want)
		})
	}
}
