package limits

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

// NewThrottle makes a throttle that lets the first message through.
func NewThrottle(clk clock.Clock, every time.Duration) *Throttle {
	return &Throttle{clk: clk, every: every}
}

// Pass returns whether to log now, and how many messages were skipped since the last one that
// passed. A clock that goes back does not suppress messages.
func (t *Throttle) Pass() (skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clk.Now()
	if t.holds(now) {
		t.skipped++
		return 0, false
	}
	skipped, t.skipped = t.skipped, 0
	t.passed, t.last = true, now
	return skipped, true
}

// holds returns whether a message would be skipped now.
func (t *Throttle) holds(now time.Time) bool {
	return t.passed && !now.Before(t.last) && now.Sub(t.last) < t.every
}

// Topics throttles the messages of each topic by itself, and bounds those of all topics together. It is safe for
// concurrent use.
type Topics struct {
	clk   clock.Clock
	every time.Duration
	most  int

	mu sync.Mutex
	of map[string]*Throttle
	// rest is for topics beyond most.
	rest *Throttle
	// forgotten counts the messages skipped of topics that were forgotten.
	forgotten int
}

// NewTopics returns Topics that tell most topics apart in each interval. Others together are one topic.
func NewTopics(clk clock.Clock, every time.Duration, most int) *Topics {
	return &Topics{clk: clk, every: every, most: most, of: make(map[string]*Throttle), rest: NewThrottle(clk, every)}
}

// Pass is Throttle.Pass for a message of a topic. Those skipped may be of topics that have had no message since.
func (t *Topics) Pass(topic string) (skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	th := t.of[topic]
	if th == nil {
		if len(t.of) >= t.most {
			t.forget()
		}
		if th = t.rest; len(t.of) < t.most {
			th = NewThrottle(t.clk, t.every)
			t.of[topic] = th
		}
	}
	if skipped, ok = th.Pass(); ok {
		skipped, t.forgotten = skipped+t.forgotten, 0
	}
	return skipped, ok
}

// forget forgets the topics whose next message would pass.
func (t *Topics) forget() {
	now := t.clk.Now()
	for topic, th := range t.of {
		th.mu.Lock()
		if !th.holds(now) {
			t.forgotten += th.skipped
			delete(t.of, topic)
		}
		th.mu.Unlock()
	}
}
