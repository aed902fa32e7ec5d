package acceptance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// peer is another process on the store of a System, which aggregates or accepts reports. If a store
// belongs to one process, the peer runs inside the System's process.
type peer struct {
	store  *storagetest.Faulty
	steps  Steps
	engine *engine.Engine
	stop   func()
}

// join starts another process. The caller must stop it before the System.
func (s *System) join(id string) *peer {
	st, stop := s.inspect(), func() {}
	lasts := shards.DefaultTimeout
	if s.manyWriters {
		st = s.open()
		stop = func() { require.NoError(s.t, st.Close()) }
		lasts = 2 * time.Second // the test waits for it; a lease of one second may end at once
	}
	p := &peer{store: storagetest.NewFaulty(st)}
	p.steps = Steps{p.store, st}
	through := &tended{Store: p.store, lasts: lasts}
	s.peers++
	p.engine = s.cfg.engine(engine.Options{
		Store: through, Clock: s.Clock, Writer: 1<<32 + s.peers,
		// By the peer's own clock its leases last: the tests check what happens when it continues with
		// leases that it has lost.
		Worker: storage.Worker{ID: id, Aggregates: true}, Timeout: 24 * time.Hour,
	})
	s.startIngest(p.engine)
	p.stop = func() {
		require.NoError(s.t, p.engine.Drain())
		stop()
	}
	return p
}

// tended renews a lease before each write of rows, and ignores a failure: renewals go by real time,
// so no test could say when they happen. lasts bounds the duration of leases and heartbeats.
type tended struct {
	storage.Store
	lasts time.Duration
	lease storage.Lease
}

func (s *tended) PutItems(ctx context.Context, es []storage.Item) error {
	es = slices.Clone(es)
	for i := range es {
		if es[i].Kind == storage.KindWorker {
			es[i].TTL = min(es[i].TTL, s.lasts)
		}
	}
	return s.Store.PutItems(ctx, es)
}

func (s *tended) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (l storage.Lease, err error) {
	l, err = s.Store.AcquireShard(ctx, shard, owner, min(ttl, s.lasts))
	s.lease = l
	return l, err
}

func (s *tended) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	_ = s.Store.RenewShard(ctx, s.lease, s.lasts)
	return s.Store.WriteRollups(ctx, f, level, rows)
}

// shift runs a worker from its first heartbeat until it leaves. The worker and the System grind all
// that is due, in turns. shift returns early with the error by which the worker learns of its end.
func (p *peer) shift(s *System) error {
	for range 100 {
		if err := p.engine.Member.Beat(s.t.Context()); err != nil {
			return err
		}
		_, err := p.engine.Runner.RunDue(s.t.Context())
		if err == nil {
			return p.engine.Member.Leave(s.t.Context())
		}
		if !errors.Is(err, rollup.ErrShared) {
			return err
		}
		if _, err := s.Run(); !errors.Is(err, rollup.ErrShared) {
			require.NoError(s.t, err)
		}
	}
	require.Fail(s.t, "two workers do not come to an end")
	return nil
}

// runAlone runs all that is due, and waits until the leases and heartbeats of others have ended.
func (s *System) runAlone() {
	s.t.Helper()
	s.eventually("the run is shared", func() bool {
		_, err := s.Run()
		if !errors.Is(err, rollup.ErrShared) {
			require.NoError(s.t, err)
		}
		return err == nil
	})
}

// awaitAlone waits until there is no other worker, and none holds a shard.
func (s *System) awaitAlone() {
	s.t.Helper()
	s.eventually("another worker is there", func() bool {
		mine, err := s.engine.Member.Mine(s.t.Context())
		require.NoError(s.t, err)
		return len(mine) == s.cfg.IndexPartitions
	})
	for shard := range s.cfg.IndexPartitions {
		s.eventually("another worker holds a shard", func() bool {
			err := s.engine.Member.Hold(s.t.Context(), shard, func(context.Context, *shards.Lease) error { return nil })
			if !errors.Is(err, storage.ErrConflict) {
				require.NoError(s.t, err)
			}
			return err == nil
		})
	}
}

// eventually lets time pass, by the store's clock, until holds returns true.
func (s *System) eventually(whatElse string, holds func() bool) {
	s.t.Helper()
	for range 1000 {
		if holds() {
			return
		}
		if s.manyWriters {
			require.NoError(s.t, clock.System{}.Sleep(s.t.Context(), 50*time.Millisecond))
		} else {
			s.Advance(shards.DefaultTimeout)
		}
	}
	require.Fail(s.t, whatElse)
}

// testLeaseChange gives a worker each fate at each step of its shift: heartbeats, leases acquired,
// renewed and released, blocks ground, slices completed, leaving. Another worker takes over when
// the first one's heartbeat and leases have ended, and grinds late data an hour later. What the
// first still does then changes nothing of that.
//
// integration/explore tries every order of the steps of two workers, on the model and with leases that
// end on command. This test has real stores, with leases and heartbeats that end by themselves, all
// levels, and steps as fine as the store's.
func testLeaseChange(t *testing.T, b Backend) {
	for _, f := range fates {
		t.Run(f.name, func(t *testing.T) {
			b.sweep(t, func(k int) int {
				s := Start(t, b, eventfulConfig)
				eventful(s)
				require.NoError(t, s.engine.Member.Beat(t.Context()))
				other := s.join("other")
				takenOver := false
				takeOver := func() {
					takenOver = true
					s.runAlone()
					s.MustCheck(Raw)
					s.MustReport(s.point("A", 23, 40, 20), s.point("B", 23, 41, 21), s.point("C", 22, 42, 22),
						s.point("D", 22, 43, 23), s.point("E", 23, 44, 24))
					s.setClock(25, 2)
					s.runAlone()
					s.MustCheck(Raw)
				}
				f.befall(other.steps, k, takeOver)
				err := other.shift(s)
				steps := other.steps.Taken()
				if k == never {
					require.NoError(t, err)
					for _, op := range []string{"PutItems", "AcquireShard", "RenewShard", "ReleaseShard", "DeleteMarks", "CompleteSlice"} {
						require.Positive(t, other.store.Count(op), "the other had nothing to do: %s", op)
					}
				}
				if !takenOver {
					takeOver()
				}
				s.MustCheck(Raw)
				s.awaitAlone()
				other.stop()
				s.Settle()
				s.MustCheck(Raw)
				require.Empty(t, s.Leftovers(), "step %d, %v", k, err)
				s.End()
				return steps
			})
		})
	}
}
