package cassandra

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// timestamps gives each write without a fence its write timestamp, in µs since 1970. Timestamps
// ascend even when the clock does not. They lie above every fence that this process has seen, so a
// row that it writes after a run deleted that row is visible.
type timestamps struct {
	mu   sync.Mutex
	last int64
	// confirmed is a reading of the clock that the servers' clocks have confirmed.
	confirmed clock.Reading
}

// next returns the next timestamp, at a time of the clock that is confirmed. A clock that is ahead for a moment must
// leave no timestamp: later ones ascend from there, so the deletes of runs would not cover what this process writes
// until the true time has come so far.
func (t *timestamps) next(now clock.Reading) (us int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last+1, now.Time().UnixMicro())
	return t.last
}

// holds reports whether the clock was not set by more than mostStep between its confirmation and now. A mostStep of 0
// means any.
func (t *timestamps) holds(now clock.Reading, mostStep time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return mostStep == 0 || t.confirmed.Step(now).Abs() <= mostStep
}

func (t *timestamps) observe(f storage.Fence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last, int64(f))
}

// confirm notes that the servers' clocks have confirmed a reading.
func (t *timestamps) confirm(r clock.Reading) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.confirmed = r
}

// timestamp returns the write timestamp of a write with the fence f, 0 for none. If the clock was set, timestamp
// compares it with those of the nodes first.
func (s *Store) timestamp(ctx context.Context, f storage.Fence) (int64, error) {
	if f != 0 {
		return int64(f), nil
	}
	now := clock.Read(s.clk)
	if err := s.Confirms(ctx, now); err != nil {
		return 0, err
	}
	return s.stamps.next(now), nil
}

// Confirms implements storage.Store. Ids ascend as timestamps do, so the same holds for them.
func (s *Store) Confirms(ctx context.Context, now clock.Reading) error {
	most := s.policy().MaxClockSkew()
	if s.stamps.holds(now, most) {
		return nil
	}
	if err := s.checkClock(ctx); err != nil {
		return fmt.Errorf("%w: the clock was set: %w", storage.ErrUnavailable, err)
	}
	if !s.stamps.holds(now, most) { // it was set again since
		return fmt.Errorf("%w: the clock was set", storage.ErrUnavailable)
	}
	return nil
}

// writeOne executes one statement at the write timestamp for the fence f, 0 for none.
func (s *Store) writeOne(ctx context.Context, f storage.Fence, st statement) error {
	tsUs, err := s.timestamp(ctx, f)
	if err != nil {
		return err
	}
	return s.session.exec(ctx, tsUs, st)
}
