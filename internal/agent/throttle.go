package agent

import (
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/throttle"
)

const (
	// topicEvery is the minimum time between two log lines on the same topic.
	topicEvery = time.Minute
	// maxTopics bounds the memory, since reasons come from the server.
	maxTopics = 64
)

// topics lets each topic be logged once a minute, with the number of suppressed messages.
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
