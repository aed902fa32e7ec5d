package bound

import (
	"sync"
	"time"
)

// recountEvery is the time after which the series are counted again: other processes make some, too.
const recountEvery = time.Minute

// room counts the series of a Bound, whoever made them, so that there are no more than most. The store knows them, so
// the count survives a restart.
type room struct {
	most int // 0 for any number

	mu      sync.Mutex
	counted bool
	at      time.Duration // of the last count, by the clock's Elapsed
	n       int           // series, with those that are being made
}

// Room reserves places for up to n new series, and returns how many there are. count returns how many series there are
// now; it is called at first, and then at most once a minute. What is not used is given back by Unused.
func (b *Bound) Room(n int, now time.Duration, count func() (int, error)) (int, error) {
	if b == nil || b.most == 0 {
		return n, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.counted || now-b.at >= recountEvery {
		all, err := count()
		if err != nil {
			return 0, err
		}
		b.counted, b.at, b.n = true, now, all
	}
	n = max(0, min(n, b.most-b.n))
	b.n += n
	return n, nil
}

// Unused gives back n places of Room.
func (b *Bound) Unused(n int) {
	if b == nil || b.most == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n -= n
}

// MaxSeries returns how many series there may be, 0 for any number.
func (b *Bound) MaxSeries() int { return b.most }
