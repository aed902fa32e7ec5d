// Package throttle limits a message that could be logged many times a second.
package throttle

import (
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// Throttle lets one message through per interval and counts the others. It is safe
// for concurrent use.
type Throttle struct {
	clk   clock.Clock
	every time.Duration

	mu      sync.Mutex
	passed  bool
	last    time.Time
	skipped int
}

// New makes a throttle that lets the first message through.
func New(clk clock.Clock, every time.Duration) *Throttle {
	return &Throttle{clk: clk, every: every}
}

// Pass returns whether to log now, and how many messages were skipped since the last one that
// passed. A clock that goes back does not suppress messages.
func (t *Throttle) Pass() (skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clk.Now()
	if t.passed && !now.Before(t.last) && now.Sub(t.last) < t.every {
		t.skipped++
		return 0, false
	}
	skipped, t.skipped = t.skipped, 0
	t.passed, t.last = true, now
	return skipped, true
}

// Topics throttles the messages of each topic by itself. It is safe for concurrent use.
type Topics struct {
	clk   clock.Clock
	every time.Duration
	most  int

	mu sync.Mutex
	of map[string]*Throttle
}

// NewTopics returns Topics that forget all topics when there are more than most.
func NewTopics(clk clock.Clock, every time.Duration, most int) *Topics {
	return &Topics{clk: clk, every: every, most: most, of: make(map[string]*Throttle)}
}

// Pass is Throttle.Pass for a message of a topic.
func (t *Topics) Pass(topic string) (skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	th := t.of[topic]
	if th == nil {
		if len(t.of) >= t.most {
			clear(t.of)
		}
		th = New(t.clk, t.every)
		t.of[topic] = th
	}
	return th.Pass()
}
