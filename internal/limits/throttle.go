package limits

import (
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// Throttle lets one message through per interval and counts the others. It is safe
// for concurrent use.
type Throttle struct{ one *Topics }

// NewThrottle makes a throttle that lets the first message through.
func NewThrottle(clk clock.Clock, every time.Duration) *Throttle {
	return &Throttle{NewTopics(clk, every, 0)}
}

// Pass returns whether to log now, and how many messages were skipped since the last one that
// passed. A clock that goes back does not suppress messages.
func (t *Throttle) Pass() (skipped int, ok bool) { return t.one.Pass("") }

// Topics lets one message of each topic through per interval, and bounds those of all topics together. Intervals follow
// one another: the next begins with the first message after the end of one. It is safe for concurrent use.
type Topics struct {
	clk   clock.Clock
	every time.Duration
	most  int

	mu    sync.Mutex
	began time.Time
	// skipped counts the messages skipped in this interval by topic, before those in the last interval that had any.
	// forgotten counts those of topics that have had no message since.
	skipped, before map[string]int
	forgotten       int
}

// NewTopics returns Topics that tell most topics apart in each interval. Others together are one topic.
func NewTopics(clk clock.Clock, every time.Duration, most int) *Topics {
	return &Topics{clk: clk, every: every, most: most}
}

// Pass is Throttle.Pass for a message of a topic. Those skipped may be of topics that have had no message since.
func (t *Topics) Pass(topic string) (skipped int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clk.Now(); t.skipped == nil || now.Before(t.began) || now.Sub(t.began) >= t.every {
		for _, n := range t.before {
			t.forgotten += n
		}
		t.began, t.before, t.skipped = now, t.skipped, make(map[string]int)
	}
	if _, known := t.skipped[topic]; !known && len(t.skipped) >= t.most {
		topic = ""
	}
	if n, known := t.skipped[topic]; known {
		t.skipped[topic] = n + 1
		return 0, false
	}
	skipped, t.forgotten = t.before[topic]+t.forgotten, 0
	delete(t.before, topic)
	t.skipped[topic] = 0
	return skipped, true
}
