package pebble

import (
	"context"
	"encoding/binary"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
)

// keepClock is the interval at which the guard's memory is stored while the store is in use.
const keepClock = 30 * time.Second

// doubtBytes is the size of metaDoubt: the time of a doubted clock, and how long it has run on,
// both in ms.
const doubtBytes = 16

// loadClock makes the clock's guard from the memory that an earlier process stored. A store of a
// version that did not store it has only the time of its last raw chunk.
func (s *Store) loadClock() error {
	ms, err := s.getCounter(metaClock)
	if err != nil {
		return err
	}
	var newest time.Time
	switch {
	case ms != 0:
		newest = time.UnixMilli(ms).UTC()
	case s.NewestID() != blocks.ID{}:
		newest = time.UnixMilli(s.NewestID().TimeMs()).UTC()
	}
	kept := clock.Memory{Newest: newest}
	doubted, err := s.get(metaKey(metaDoubt))
	if err != nil {
		return err
	}
	if len(doubted) == doubtBytes {
		kept.Doubted = time.UnixMilli(int64(binary.BigEndian.Uint64(doubted))).UTC()
		kept.Ran = time.Duration(binary.BigEndian.Uint64(doubted[8:])) * time.Millisecond
	}
	s.kept.Store(&kept)
	s.guard = clock.NewGuard(s.clk, kept)
	return nil
}

// ClockDoubt returns why nothing expires by the clock for now, nil when the clock is believed.
func (s *Store) ClockDoubt() error { return s.guard.Check() }

// ConfirmClock makes the guard believe the clock as it is.
func (s *Store) ConfirmClock(ctx context.Context) error {
	s.guard.Confirm()
	return s.do(ctx, "confirm the clock", s.keepTime)
}

// Confirms implements storage.Store. The clock has nothing to be compared with, and NewestID keeps ids ascending.
func (s *Store) Confirms(context.Context, clock.Reading) error { return nil }

// CheckFit implements storage.Store. It does not check the clock: WholeFrom ignores a doubted clock
// by itself.
func (s *Store) CheckFit(ctx context.Context) error { return s.begin(ctx, "check the clock") }

// sawTime checks the clock and stores the guard's memory every keepClock, or when a doubt begins or
// ends. The write is synced: no other synced write may come for hours, and after a power loss the
// clock would be doubted if this one were missing.
func (s *Store) sawTime(ctx context.Context) error {
	_ = s.guard.Check() // ClockDoubt reports the doubt
	m, kept := s.guard.Memory(), s.kept.Load()
	if m.Newest.Sub(kept.Newest).Abs() < keepClock && (m.Ran-kept.Ran).Abs() < keepClock && m.Doubted.IsZero() == kept.Doubted.IsZero() {
		return nil
	}
	return s.do(ctx, "record the time", s.keepTime)
}

// keepTime stores the guard's memory.
func (s *Store) keepTime() error {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	m := s.guard.Memory()
	if m == *s.kept.Load() {
		return nil
	}
	batch := s.db.NewBatch()
	err := batch.Set(metaKey(metaClock), binary.BigEndian.AppendUint64(nil, uint64(m.Newest.UnixMilli())), nil)
	switch {
	case err != nil:
	case m.Doubted.IsZero():
		err = batch.Delete(metaKey(metaDoubt), nil)
	default:
		text := binary.BigEndian.AppendUint64(make([]byte, 0, doubtBytes), uint64(m.Doubted.UnixMilli()))
		err = batch.Set(metaKey(metaDoubt), binary.BigEndian.AppendUint64(text, uint64(m.Ran.Milliseconds())), nil)
	}
	if err == nil {
		err = batch.Commit(lsm.Sync)
	}
	if err = closed(batch, err); err != nil {
		return err
	}
	s.kept.Store(&m)
	return nil
}
