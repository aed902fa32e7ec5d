package agent

import (
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

const (
	// throttleEvery is how often the same thing is logged.
	throttleEvery = time.Minute
	// throttleTopics bounds the memory: reasons come from the server.
	throttleTopics = 64
)

// throttle lets each topic be logged once a minute, with the number of times that
// it was not.
type throttle struct {
	clock clock.Clock

	mu     sync.Mutex
	topics map[string]*throttled
}

type throttled struct {
	last       time.Time
	suppressed int
}

func newThrottle(c clock.Clock) throttle {
	return throttle{clock: c, topics: make(map[string]*throttled)}
}

func (t *throttle) allow(topic string) (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	s := t.topics[topic]
	if s == nil {
		if len(t.topics) >= throttleTopics {
			clear(t.topics)
		}
		t.topics[topic] = &throttled{last: now}
		return 0, true
	}
	if now.Sub(s.last) < throttleEvery && !now.Before(s.last) {
		s.suppressed++
		return 0, false
	}
	suppressed = s.suppressed
	*s = throttled{last: now}
	return suppressed, true
}
