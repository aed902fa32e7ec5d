package cassandra

import (
	"sync"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// timestamps gives each write without a fence its write timestamp, in µs since 1970. Timestamps
// ascend even when the clock does not. They lie above every fence that this process has seen, so a
// row that it writes after a run deleted that row is visible.
type timestamps struct {
	clk clock.Clock

	mu   sync.Mutex
	last int64
}

func (t *timestamps) next() int64 {
	now := t.clk.Now().UnixMicro()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last+1, now)
	return t.last
}

// of returns the write timestamp of a write with the fence f.
func (t *timestamps) of(f storage.Fence) int64 {
	if f != 0 {
		return int64(f)
	}
	return t.next()
}

func (t *timestamps) observe(f storage.Fence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = max(t.last, int64(f))
}
