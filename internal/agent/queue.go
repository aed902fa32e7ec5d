package agent

import "sync"

// queue holds up to limit measurements in the order of their time. Each has a number that counts up from 0. So a
// measurement that was dropped while its report was under way is not removed twice.
type queue struct {
	limit int

	mu    sync.Mutex
	items []Measurement
	// first is the number of items[0].
	first, dropped uint64
}

// push appends ms and returns how many measurements it dropped for them, the oldest first.
func (q *queue) push(ms []Measurement) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, ms...)
	return q.drop(max(0, len(q.items)-q.limit))
}

// front copies up to n of the oldest measurements. end is the number after the last of them.
func (q *queue) front(n int) (ms []Measurement, end uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.items))
	return append(ms, q.items[:n]...), q.first + uint64(n)
}

// remove removes all measurements before the number end.
func (q *queue) remove(end uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if end > q.first {
		q.cut(min(int(end-q.first), len(q.items)))
	}
}

// clear drops all measurements and returns how many there were.
func (q *queue) clear() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.drop(len(q.items))
}

func (q *queue) state() (queued int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items), q.dropped
}

func (q *queue) drop(n int) int {
	q.cut(n)
	q.dropped += uint64(n)
	return n
}

// cut removes the first n. Their memory is let go when the next append finds no room behind the others.
func (q *queue) cut(n int) {
	clear(q.items[:n]) // lets go of labels
	q.items = q.items[n:]
	q.first += uint64(n)
}
