package pebble

import (
	"context"
	"fmt"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// keepClock is the interval at which the newest time seen is stored while the store is in use.
const keepClock = 30 * time.Second

// loadClock makes the clock's gate from the newest time that an earlier process stored.
func (s *Store) loadClock() error {
	ms, err := s.getCounter(metaClock)
	if err != nil {
		return err
	}
	var newest time.Time
	if ms != 0 {
		newest = time.UnixMilli(ms).UTC()
	}
	s.keptMs.Store(ms)
	s.gate = clock.NewGate(s.clk, newest)
	s.gate.Tolerate(s.settings.Policy.MostStep())
	return nil
}

// refusal is a storage.ErrSettings with its own message: the gate refuses the clock.
type refusal struct{ error }

// Unwrap makes a refusal a storage.ErrSettings.
func (refusal) Unwrap() error { return storage.ErrSettings }

// ClockRefused returns why nothing is done by the clock for now, nil when it is right.
func (s *Store) ClockRefused() error { return s.gate.Check() }

// AcceptClock takes the clock for right, whatever the store has seen before, and records that.
func (s *Store) AcceptClock(ctx context.Context) error {
	err := s.gate.Check()
	s.gate.Accept()
	s.log.Warn("clock accepted: leave --accept-clock out of the next start", "clock", s.gate.Newest(), "refused_before", err)
	return s.do(ctx, "accept the clock", s.keepTime)
}

// Confirms implements storage.Store.
func (s *Store) Confirms(_ context.Context, now clock.Reading) error {
	if err := s.gate.Confirms(now); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return nil
}

// CheckFit implements storage.Store. It is called at each heartbeat, and keeps the time for later processes.
func (s *Store) CheckFit(ctx context.Context) error {
	if err := s.begin(ctx, "check the clock"); err != nil {
		return err
	}
	if err := s.gate.Check(); err != nil {
		return refusal{err}
	}
	return s.sawTime(ctx)
}

// sawTime stores the newest time seen every keepClock. The write is synced: after a power loss the clock would be refused
// if it were missing.
func (s *Store) sawTime(ctx context.Context) error {
	if s.gate.Newest().UnixMilli()-s.keptMs.Load() < keepClock.Milliseconds() {
		return nil
	}
	return s.do(ctx, "record the time", s.keepTime)
}

// keepTime stores the newest time seen.
func (s *Store) keepTime() error {
	s.clockMu.Lock()
	defer s.clockMu.Unlock()
	newest := s.gate.Newest()
	if newest.IsZero() || newest.UnixMilli() == s.keptMs.Load() {
		return nil
	}
	if err := s.putCounter(metaClock, newest.UnixMilli()); err != nil {
		return err
	}
	s.keptMs.Store(newest.UnixMilli())
	return nil
}
