package agent

import (
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/throttle"
)

const (
	// topicEvery is how often the same thing is logged.
	topicEvery = time.Minute
	// maxTopics bounds the memory: reasons come from the server.
	maxTopics = 64
)

// topics lets each topic be logged once a minute, with the number of times that it
// was not.
type topics struct {
	clock clock.Clock

	mu sync.Mutex
	of map[string]*throttle.Throttle
}

func newTopics(c clock.Clock) topics {
	return topics{clock: c, of: make(map[string]*throttle.Throttle)}
}

func (t *topics) allow(topic string) (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	th := t.of[topic]
	if th == nil {
		if len(t.of) >= maxTopics {
			clear(t.of)
		}
		th = throttle.New(t.clock, topicEvery)
		t.of[topic] = th
	}
	return th.Pass()
}
