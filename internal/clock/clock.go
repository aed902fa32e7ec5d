// Package clock supplies the time to everything below internal/app. So a test, or the demo's 26
// hours, can run on a simulated clock.
package clock

import (
	"context"
	"sync"
	"time"
)

// Clock tells the time and waits.
type Clock interface {
	// Now returns the current time in UTC.
	Now() time.Time
	// Elapsed returns how long the clock has run, whatever time it was set to meanwhile.
	Elapsed() time.Duration
	// Sleep waits for d, or until ctx is done; it then returns ctx's error.
	Sleep(ctx context.Context, d time.Duration) error
	// After returns a channel that receives a value once d has passed.
	After(d time.Duration) <-chan time.Time
}

// NowMs returns c's time in Unix milliseconds.
func NowMs(c Clock) int64 { return c.Now().UnixMilli() }

// System is the machine's clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return now().UTC() }

// begun is a reading of the monotonic clock, which cannot be set.
var begun = time.Now()

// Elapsed implements Clock.
func (System) Elapsed() time.Duration { return time.Since(begun) }

// Sleep implements Clock.
func (System) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// After implements Clock.
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Simulated is a clock that moves only when Set or Jump moves it. Sleep does not wait and does not
// move the clock either, so back-off and group commit take no time in a test.
type Simulated struct {
	mu      sync.Mutex
	now     time.Time
	elapsed time.Duration
}

// NewSimulated returns a simulated clock that starts at the given time.
func NewSimulated(start time.Time) *Simulated { return &Simulated{now: start.UTC()} }

// Now implements Clock.
func (s *Simulated) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Elapsed implements Clock.
func (s *Simulated) Elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elapsed
}

// Set moves the clock to t, forwards or backwards. A move forwards counts as elapsed time.
func (s *Simulated) Set(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elapsed += max(0, t.Sub(s.now))
	s.now = t.UTC()
}

// Jump sets the clock by d. It does not change Elapsed.
func (s *Simulated) Jump(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// Sleep implements Clock: it returns at once.
func (s *Simulated) Sleep(ctx context.Context, _ time.Duration) error {
	return context.Cause(ctx)
}

// After implements Clock: the channel is ready at once.
func (s *Simulated) After(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- s.Now()
	return c
}
