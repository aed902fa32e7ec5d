package ingest

import "errors"

// Why decoding stops before the end of a body.
var (
	// ErrTooMany: there are more measurements than a request may have.
	ErrTooMany = errors.New("too many measurements")
	// ErrTooLarge: what is decoded is more than a request may hold.
	ErrTooLarge = errors.New("what is decoded is too large")
	// ErrNoRoom: other requests hold the memory that is set aside for all.
	ErrNoRoom = errors.New("other requests hold the memory")
)

const (
	// A request takes memory in steps, so that it seldom asks for some: the first and the largest.
	firstStep = 4 << 10
	lastStep  = 64 << 10
	// askEvery is how many calls of Grow come between two looks at whether the client has gone.
	askEvery = 1 << 10
)

// Allowance is what decoding one request may take: memory, and time for as long as the client waits. The zero value has no
// bound. What is decoded may be far larger than the body that it is decoded from, so it is asked for before it is allocated.
type Allowance struct {
	// Max bounds the bytes. The default is no bound.
	Max int64
	// Take takes so many bytes of what all requests may hold together. It is false when there is no room. Whoever made the
	// allowance gives them back when the request ends. The default always has room.
	Take func(n int64) bool
	// Gone is not nil when nobody waits for the result any more. The default is never.
	Gone func() error

	used, taken int64
	calls       int
	err         error
}

// Grow says whether n bytes more may be used. Once it is false it stays so, see Err.
func (a *Allowance) Grow(n int64) bool {
	if a.err != nil {
		return false
	}
	if a.calls++; a.calls%askEvery == 0 && a.Gone != nil {
		if a.err = a.Gone(); a.err != nil {
			return false
		}
	}
	a.used += n
	switch {
	case a.Max > 0 && a.used > a.Max:
		a.err = ErrTooLarge
	case a.used > a.taken && a.Take != nil:
		step := max(a.used-a.taken, min(max(a.taken, firstStep), lastStep))
		if a.Max > 0 {
			step = min(step, a.Max-a.taken)
		}
		if !a.Take(step) {
			a.err = ErrNoRoom
			break
		}
		a.taken += step
	}
	return a.err == nil
}

// Err is why no more may be used, nil as long as it may: ErrTooLarge, ErrNoRoom, or what Gone said.
func (a *Allowance) Err() error { return a.err }

// Used is how many bytes are used.
func (a *Allowance) Used() int64 { return a.used }

// reuse begins anew with what is taken already.
func (a *Allowance) reuse() { a.used, a.err = 0, nil }
