package agent

import "sync"

// queue holds measurements in the order of their time, bounded in number and bytes. Each
// measurement has a number that counts up from 0. So a measurement that was dropped while its
// report was under way is not removed twice.
type queue struct {
	limit      int
	limitBytes int64

	mu sync.Mutex
	// items[head:] wait. The items before head were removed and are reclaimed in bulk.
	items []Measurement
	head  int
	// firstSeq is the number of items[head].
	firstSeq uint64
	bytes    int64
	dropped  uint64
}

func newQueue(limit int, limitBytes int64) *queue {
	return &queue{limit: limit, limitBytes: limitBytes}
}

// push appends ms and returns how many measurements it dropped for them, the oldest first.
func (q *queue) push(ms []Measurement) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, ms...)
	for i := range ms {
		q.bytes += sizeBytes(&ms[i])
	}
	n := 0
	for q.len() > q.limit || q.bytes > q.limitBytes {
		q.pop()
		n++
	}
	q.dropped += uint64(n)
	q.reclaim()
	return n
}

// first returns the number of the oldest measurement.
func (q *queue) first() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.firstSeq
}

// front copies up to n of the oldest measurements. end is the number after the last of them.
func (q *queue) front(n int) (ms []Measurement, end uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, q.len())
	return append(ms, q.items[q.head:q.head+n]...), q.firstSeq + uint64(n)
}

// remove removes all measurements before the number end.
func (q *queue) remove(end uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.firstSeq < end && q.len() > 0 {
		q.pop()
	}
	q.reclaim()
}

// clear drops all measurements and returns how many there were.
func (q *queue) clear() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.len()
	for q.len() > 0 {
		q.pop()
	}
	q.dropped += uint64(n)
	q.reclaim()
	return n
}

func (q *queue) state() (queued int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.len(), q.dropped
}

func (q *queue) len() int { return len(q.items) - q.head }

func (q *queue) pop() {
	m := &q.items[q.head]
	q.bytes -= sizeBytes(m)
	*m = Measurement{} // lets go of its labels
	q.head++
	q.firstSeq++
}

// reclaim moves the waiting items to the start of the array once they fill less than half of it, so
// that the moves cost a constant per measurement.
func (q *queue) reclaim() {
	if q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items = q.items[:n]
		q.head = 0
	}
}

// sizeBytes estimates the memory of a measurement: the struct, its labels and their values. Names
// are constants of the collector.
func sizeBytes(m *Measurement) int64 {
	const structBytes, labelBytes = 56, 32
	n := int64(structBytes + labelBytes*len(m.Labels))
	for _, l := range m.Labels {
		n += int64(len(l.Value))
	}
	return n
}
