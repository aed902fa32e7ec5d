package ingest

import "errors"

// The reasons why decoding stops before the end of a body.
var (
	// ErrTooMany says that the request has too many measurements.
	ErrTooMany = errors.New("too many measurements")
	// ErrTooLarge says that the decoded data is larger than a request may hold.
	ErrTooLarge = errors.New("the decoded data is too large")
	// ErrNoRoom says that other requests hold the shared memory.
	ErrNoRoom = errors.New("other requests hold the memory")
)

const (
	// A request takes memory in steps, so that it seldom calls Take: the first step and the
	// largest.
	firstStep = 4 << 10
	lastStep  = 64 << 10
	// askEvery is the number of calls of Grow between two checks of whether the client has gone.
	askEvery = 1 << 10
)

// Allowance limits what decoding one request may use: memory, and time while the client waits. The
// zero value has no limit. The decoded data may be far larger than its body, so decoders ask before
// they allocate.
type Allowance struct {
	// Max is the maximum number of bytes. The default is no limit.
	Max int64
	// Take reserves n bytes of the memory that all requests share. It returns false if there is no
	// room. The creator of the allowance releases them when the request ends. The default always
	// has room.
	Take func(n int64) bool
	// Gone returns an error when no client waits for the result any more. The default never does.
	Gone func() error

	used, taken int64
	calls       int
	err         error
}

// Grow reports whether n more bytes may be used. Once it returns false it always does; Err says
// why.
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

// Err returns why nothing more may be used, or nil: ErrTooLarge, ErrNoRoom, or the error of Gone.
func (a *Allowance) Err() error { return a.err }

// Used returns the number of bytes in use.
func (a *Allowance) Used() int64 { return a.used }

// reuse begins a new request that keeps the reserved bytes.
func (a *Allowance) reuse() { a.used, a.err = 0, nil }
