package cassandra

import (
	"sync"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// timestamps gives each write without a fence its write timestamp, in µs since 1970. They
// ascend, also when the clock does not, and lie above every fence that this process has seen: what
// it writes after a run has deleted a row is there.
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

// of is the write timestamp of a write with the fence f.
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
