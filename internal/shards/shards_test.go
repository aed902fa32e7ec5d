package shards

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const partitions = 16

func newStore() *storagetest.Faulty {
	return storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: partitions, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clock.System{}))
}

func aggregator(store Store, id string) *Member {
	return New(store, clock.System{}, storage.Worker{ID: id, Host: "h", StartedMs: time.Now().UnixMilli(), Aggregates: true}, 0)
}

func workers(ids ...string) (out []storage.Worker) {
	for _, id := range ids {
		out = append(out, storage.Worker{ID: id, Aggregates: true})
	}
	return out
}

// Each shard has a worker, each worker has about as many shards, and only a worker's own shards
// move when it comes or goes.
func TestAssign(t *testing.T) {
	const n = 1024
	var ids []string
	for i := range 8 {
		ids = append(ids, fmt.Sprintf("worker-%d", i))
		before, after := Assign(workers(ids[:i]...), n), Assign(workers(ids...), n)
		counts := map[string]int{}
		for shard := range n {
			counts[after[shard]]++
			if before[shard] != after[shard] {
				require.Equal(t, ids[i], after[shard], "what moves, moves to who came")
			}
		}
		for _, id := range ids {
			require.InDelta(t, n/len(ids), counts[id], float64(n)/float64(len(ids))/2, id)
		}
	}
	require.Equal(t, Assign(workers("a", "b", "c"), n), Assign(workers("c", "a", "b"), n), "whatever their order")
	require.Equal(t, []string{"", ""}, Assign([]storage.Worker{{ID: "ingest"}}, 2), "those that aggregate only")
	// The assignment must not change between versions: they run side by side during an upgrade.
	require.Equal(t, []string{"b", "a", "b", "b"}, Assign(workers("a", "b"), 4))
}

// All workers with a heartbeat share all shards between them, whichever asks. A worker that falls
// silent is left out after the timeout.
func TestMine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		a, b, c := aggregator(store, "a"), aggregator(store, "b"), aggregator(store, "c")
		ingest := New(store, clock.System{}, storage.Worker{ID: "ingest"}, 0)
		mine := func(m *Member) []int {
			got, err := m.Mine(t.Context())
			require.NoError(t, err)
			return got
		}
		beat := func(ms ...*Member) {
			for _, m := range ms {
				require.NoError(t, m.Beat(t.Context()))
			}
		}
		require.Len(t, mine(a), partitions, "alone, before its first heartbeat")
		beat(a, b, c, ingest)
		var all []int
		for _, m := range []*Member{a, b, c} {
			require.NotEmpty(t, mine(m))
			all = append(all, mine(m)...)
		}
		require.ElementsMatch(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, all)

		was := mine(a)
		for range 4 { // c falls silent
			time.Sleep(a.Every())
			beat(a, b, ingest)
		}
		require.Subset(t, mine(a), was)
		require.Len(t, append(mine(a), mine(b)...), partitions)

		require.NoError(t, b.Leave(t.Context()))
		time.Sleep(time.Second)
		require.Len(t, mine(a), partitions)
	})
}

// TestUnfit: a worker by whose clock or settings nothing may be done leaves no heartbeat and takes no shards, until both are
// right again.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		m := aggregator(store, "a")
		require.NoError(t, m.Beat(t.Context()))
		store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrSettings)
		store.Forget()
		require.ErrorIs(t, m.Beat(t.Context()), storage.ErrSettings)
		require.Zero(t, store.Count("PutItems"))
		_, err := m.Mine(t.Context())
		require.ErrorIs(t, err, ErrUnfit)

		store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrUnavailable) // no answer
		require.ErrorIs(t, m.Beat(t.Context()), storage.ErrUnavailable)
		_, err = m.Mine(t.Context())
		require.ErrorIs(t, err, ErrUnfit)
		require.NoError(t, m.Beat(t.Context()))
		got, err := m.Mine(t.Context())
		require.NoError(t, err)
		require.Len(t, got, partitions)
	})
}

// A lease lasts as long as the work, with one fence, and is free afterwards.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		a, b := aggregator(store, "a"), aggregator(store, "b")
		held := false
		err := a.Hold(t.Context(), 3, func(ctx context.Context, l *Lease) error {
			held = true
			for range 10 {
				time.Sleep(DefaultTimeout / 2)
				require.NoError(t, l.Check())
				require.NoError(t, ctx.Err())
				require.ErrorIs(t, b.Hold(ctx, 3, nil), storage.ErrConflict)
			}
			require.NoError(t, store.WriteRollups(ctx, l.Fence, 1, nil), "its fence is the newest")
			return nil
		})
		require.NoError(t, err)
		require.True(t, held)
		boom := errors.New("boom")
		require.ErrorIs(t, b.Hold(t.Context(), 3, func(context.Context, *Lease) error { return boom }), boom)
		require.NoError(t, a.Hold(t.Context(), 3, func(context.Context, *Lease) error {
			require.InDelta(t, 1, testutil.ToFloat64(a.held), 0)
			return nil
		}), "free after a failure too")
		require.InDelta(t, 0, testutil.ToFloat64(a.held), 0)
		require.InDelta(t, 2, testutil.ToFloat64(a.leases.WithLabelValues("taken")), 0)
		require.InDelta(t, 10, testutil.ToFloat64(b.leases.WithLabelValues("refused")), 0)
	})
}

// A worker that cannot renew its lease stops, by its own clock, before another can get the lease.
func TestHoldWithoutRenewal(t *testing.T) {
	for name, fault := range map[string]error{"away": storage.ErrUnavailable, "no answer": storage.ErrTimeout} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				a, b := aggregator(store, "a"), aggregator(store, "b")
				store.Fail("RenewShard", blocks.Range{}, -1, fault)
				begun := time.Now()
				err := a.Hold(t.Context(), 3, func(ctx context.Context, l *Lease) error {
					<-ctx.Done()
					require.Error(t, l.Check())
					return ctx.Err()
				})
				require.ErrorIs(t, err, storage.ErrConflict)
				require.Equal(t, DefaultTimeout, time.Since(begun))
				require.NoError(t, b.Hold(t.Context(), 3, func(context.Context, *Lease) error { return nil }))
			})
		})
	}
}

// Two renewals in a row may fail.
func TestHoldWithTwoRenewalsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		store.Fail("RenewShard", blocks.Range{}, 2, storage.ErrTimeout)
		err := aggregator(store, "a").Hold(t.Context(), 3, func(ctx context.Context, l *Lease) error {
			time.Sleep(2 * DefaultTimeout)
			require.NoError(t, l.Check())
			return ctx.Err()
		})
		require.NoError(t, err)
	})
}

// A process that was stopped for longer than its lease lasts finds out before it does anything
// else. Another worker holds the shard by then.
func TestHoldOfAStoppedProcess(t *testing.T) {
	for name, ends := range map[string]func(*Lease) error{
		"before a step": func(l *Lease) error { return l.Check() },
		"within a step": func(*Lease) error { return storage.ErrTimeout },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { holdStopped(t, ends) })
		})
	}
}

func holdStopped(t *testing.T, ends func(*Lease) error) {
	store := newStore()
	a, b := aggregator(store, "a"), aggregator(store, "b")
	// Its renewals do not run either: the whole process is stopped.
	stopped := make(chan struct{})
	store.Add(storagetest.Rule{Op: "RenewShard", Times: -1, Before: func() error { <-stopped; return nil }})
	err := a.Hold(t.Context(), 3, func(ctx context.Context, l *Lease) error {
		time.Sleep(DefaultTimeout)
		require.NoError(t, b.Hold(context.WithoutCancel(ctx), 3, func(_ context.Context, taken *Lease) error {
			require.Greater(t, taken.Fence, l.Fence)
			require.ErrorIs(t, l.Check(), storage.ErrConflict)
			return nil
		}))
		defer close(stopped)
		return ends(l)
	})
	require.ErrorIs(t, err, storage.ErrConflict)
}

// A worker that is told to stop releases its lease.
func TestHoldIsToldToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("shutting down")
		err := aggregator(store, "a").Hold(ctx, 3, func(ctx context.Context, _ *Lease) error {
			cancel(stop)
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, stop)
		leases, err := store.Leases(t.Context())
		require.NoError(t, err)
		require.Empty(t, leases)
	})
}

// A worker whose lease is taken anew stops at the next renewal, long before the lease would have
// ended.
func TestHoldIsTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		a := aggregator(store, "a")
		begun := time.Now()
		err := a.Hold(t.Context(), 3, func(ctx context.Context, l *Lease) error {
			_, err := store.AcquireShard(ctx, 3, "a", time.Hour) // by another process with its name
			require.NoError(t, err)
			<-ctx.Done()
			require.NoError(t, l.Check(), "by its clock it would have it still")
			return ctx.Err()
		})
		require.ErrorIs(t, err, storage.ErrConflict)
		require.Equal(t, a.Every(), time.Since(begun))
		require.InDelta(t, 1, testutil.ToFloat64(a.leases.WithLabelValues("lost")), 0)
		leases, err := store.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases, 1, "it does not give back what is another's")
	})
}

// TestLapsed: a process that was suspended for longer than the timeout must not write before a heartbeat is answered.
// One whose heartbeats get no answer goes on.
func TestLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		m := aggregator(store, "a")
		require.NoError(t, m.Beat(t.Context()))
		time.Sleep(DefaultTimeout)
		require.NoError(t, m.Lapsed())
		time.Sleep(time.Second)
		require.ErrorContains(t, m.Lapsed(), "no heartbeat for longer than 30s")
		store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrUnavailable)
		require.ErrorIs(t, m.Beat(t.Context()), storage.ErrUnavailable)
		require.Error(t, m.Lapsed(), "nobody has answered")
		require.NoError(t, m.Beat(t.Context()))
		require.NoError(t, m.Lapsed())

		for range 10 {
			time.Sleep(m.Every())
			store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrUnavailable)
			require.ErrorIs(t, m.Beat(t.Context()), storage.ErrUnavailable)
			require.NoError(t, m.Lapsed())
		}
	})
}
