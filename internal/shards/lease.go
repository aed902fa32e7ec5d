package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/storage"
)

// Lease is a shard that this worker holds. It is renewed until Hold returns.
type Lease struct {
	// Fence goes with everything that is written under the lease.
	Fence storage.Fence

	lease storage.Lease
	// until is when the lease may have ended, on the monotonic clock.
	until atomic.Pointer[time.Time]
}

// Check fails once the lease may have ended, for example because this process was stopped for a
// while. What the process still writes loses against its successor by the fence. A check before
// each step spares both workers that work.
func (l *Lease) Check() error {
	if monotonic().Before(*l.until.Load()) {
		return nil
	}
	return fmt.Errorf("shard %d: %w: not renewed in time", l.lease.Shard, storage.ErrConflict)
}

// Hold acquires a shard's lease, runs do under it, and releases it. If the lease is lost, the
// context of do is cancelled with ErrConflict as its cause. Hold also returns ErrConflict if
// another worker holds the lease.
func (m *Member) Hold(ctx context.Context, shard int, do func(context.Context, *Lease) error) error {
	l, err := m.acquire(ctx, shard)
	if err != nil {
		if errors.Is(err, storage.ErrConflict) {
			m.leases.WithLabelValues("refused").Inc()
		}
		return err
	}
	m.leases.WithLabelValues("taken").Inc()
	m.held.Inc()
	defer m.held.Dec()

	working, lose := context.WithCancelCause(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		m.keep(working, l, lose)
	}()
	err = do(working, l)
	if cause := context.Cause(working); cause != nil {
		err = cause
	} else if storage.IsAway(err) {
		// A process that was stopped may get a time-out from the store before it notices that its
		// lease has ended.
		err = cmp.Or(l.Check(), err)
	}
	lose(nil)
	<-kept
	if errors.Is(err, storage.ErrConflict) {
		m.leases.WithLabelValues("lost").Inc()
	}
	if errors.Is(err, storage.ErrConflict) || storage.IsAway(err) {
		return err // another worker holds it, or it ends by itself
	}
	return errors.Join(err, m.release(context.WithoutCancel(ctx), shard))
}

func (m *Member) acquire(ctx context.Context, shard int) (*Lease, error) {
	m.turn.Lock()
	defer m.turn.Unlock()
	began := monotonic()
	got, err := m.store.AcquireShard(ctx, shard, m.self.ID, m.timeout)
	if err != nil {
		return nil, err
	}
	l := &Lease{Fence: got.Fence, lease: got}
	l.renewed(began, m.timeout)
	return l, nil
}

func (m *Member) release(ctx context.Context, shard int) error {
	m.turn.Lock()
	defer m.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	return m.store.ReleaseShard(ctx, shard, m.self.ID)
}

// monotonic is this machine's own time. Nobody sets it, and it is compared with no other machine's.
// A lease does not depend on wall-clock time, nor on a test's simulated time.
func monotonic() time.Time { return time.Now() } //nolint:forbidigo // see above

func (l *Lease) renewed(began time.Time, ttl time.Duration) {
	until := began.Add(ttl)
	l.until.Store(&until)
}

// keep renews a lease until ctx is done or the lease is lost.
func (m *Member) keep(ctx context.Context, l *Lease, lose context.CancelCauseFunc) {
	tick := time.NewTicker(m.Every()) //nolint:forbidigo // as monotonic
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := monotonic()
		ask, cancel := context.WithTimeout(ctx, m.Every())
		err := m.store.RenewShard(ask, l.lease, m.timeout)
		cancel()
		switch {
		case err == nil:
			l.renewed(began, m.timeout)
		case errors.Is(err, storage.ErrConflict):
			lose(err)
		default: // there may be time to try again
			if err := l.Check(); err != nil {
				lose(err)
			}
		}
	}
}
