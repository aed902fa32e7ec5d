package pebble

import (
	"context"
	"encoding/binary"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
)

// keepClock is how often the newest time is written down while the store is used.
const keepClock = 30 * time.Second

// loadClock makes the guard of the clock, which goes on from the newest time that a process before has written down. One of
// a version that wrote none down has left the time of its last raw chunk.
func (s *Store) loadClock() error {
	ms, err := s.getCounter(metaClock)
	if err != nil {
		return err
	}
	var newest time.Time
	switch {
	case ms != 0:
		newest = time.UnixMilli(ms).UTC()
	case s.newest != blocks.ID{}:
		newest = time.UnixMilli(s.newest.TimeMs()).UTC()
	}
	s.guard = clock.NewGuard(s.clk, newest)
	s.kept = newest
	return nil
}

// ClockDoubt says why nothing expires by the clock for now, nil when it is believed.
func (s *Store) ClockDoubt() error { return s.guard.Check() }

// ConfirmClock has the clock believed as it is.
func (s *Store) ConfirmClock(ctx context.Context) error {
	s.guard.Confirm()
	return s.do(ctx, "confirm the clock", func() error { return s.keepTime(lsm.Sync) })
}

// CheckClock implements storage.Store: WholeFrom does not go by a clock that is doubted.
func (s *Store) CheckClock(ctx context.Context) error { return s.begin(ctx, "check the clock") }

// sawTime looks at the clock, and writes the newest time down now and again. It need not be durable soon: a time that is
// somewhat older has a jump found as well.
func (s *Store) sawTime(ctx context.Context) error {
	if s.guard.Check() != nil || s.guard.Newest().Sub(s.keptTime()) < keepClock {
		return nil //nolint:nilerr // a time that is doubted is not written down, and ClockDoubt says why
	}
	return s.do(ctx, "write down the time", func() error { return s.keepTime(lsm.NoSync) })
}

func (s *Store) keptTime() time.Time {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	return s.kept
}

func (s *Store) keepTime(sync *lsm.WriteOptions) error {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	newest := s.guard.Newest()
	if newest.Equal(s.kept) {
		return nil
	}
	if err := s.db.Set(metaKey(metaClock), binary.BigEndian.AppendUint64(nil, uint64(newest.UnixMilli())), sync); err != nil {
		return err
	}
	s.kept = newest
	return nil
}
