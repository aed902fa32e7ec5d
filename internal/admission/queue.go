package admission

import "fmt"

// Queue bounds what waits for one thing that is done for all clients. It is not safe for concurrent use.
type Queue struct{ waits holdings }

// NewQueue returns a queue of limit, of which one client has up to half.
func NewQueue(limit int64) *Queue { return &Queue{newHoldings(limit, half(limit))} }

// Take has n more of c wait. If there is no room, it changes nothing: the error is ErrQueueFull, or a *ShareError if
// there is room for others. What is larger than the queue, or than a client's part, waits where no other does.
func (q *Queue) Take(c Client, n int64) error {
	h := &q.waits
	switch {
	case h.all > 0 && h.all+n > h.limit:
		return ErrQueueFull
	case h.of[c] > 0 && h.of[c]+n > h.shareOf(c):
		return &ShareError{Waits: h.of[c], Share: h.shareOf(c)}
	}
	h.add(c, n)
	return nil
}

// Give says that n of c wait no longer.
func (q *Queue) Give(c Client, n int64) { q.waits.give(c, n) }

// Waits returns how much waits.
func (q *Queue) Waits() int64 { return q.waits.all }

// ShareError means that a client has its part of a queue.
type ShareError struct{ Waits, Share int64 }

// Error implements error.
func (e *ShareError) Error() string {
	return fmt.Sprintf("%d wait of this client, which may have %d, half of the queue", e.Waits, e.Share)
}
