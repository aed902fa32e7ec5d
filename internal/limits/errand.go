package limits

import (
	"context"
	"sync"
)

// Background starts work under a context that ends with the process, and returns at once. Nil starts a
// goroutine that ends only with its work.
type Background func(work func(context.Context))

// Errands run work that several requests want and that may take longer than any of them may wait. The work does not end
// with the request that began it, or it might never be finished. Requests that want the same work meanwhile, which has the
// same key, wait for the same result. It is safe for concurrent use.
type Errands[K comparable, V any] struct {
	background Background
	most       int

	mu    sync.Mutex
	under map[K]*underWay[V]
	// ended is closed and replaced whenever work ends.
	ended chan struct{}
}

type underWay[V any] struct {
	done chan struct{}
	// value and err are the result. They are set before done is closed.
	value V
	err   error
}

// NewErrands returns Errands that run at most most at once; 0 is no limit.
func NewErrands[K comparable, V any](background Background, most int) *Errands[K, V] {
	if background == nil {
		background = func(work func(context.Context)) { go work(context.Background()) } //nolint:forbidigo // it outlives whoever asked first
	}
	return &Errands[K, V]{background: background, most: most, under: make(map[K]*underWay[V]), ended: make(chan struct{})}
}

// Do starts work unless work with the same key is under way, and waits for the result until ctx is
// done. All callers that wait get the same result.
func (e *Errands[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (V, error) {
	return e.do(ctx, key, func() bool { return true }, work)
}

func (e *Errands[K, V]) do(ctx context.Context, key K, due func() bool, work func(context.Context) (V, error)) (value V, err error) {
	for {
		e.mu.Lock()
		u, wait := e.under[key], e.ended
		if u == nil && (e.most == 0 || len(e.under) < e.most) {
			if !due() {
				e.mu.Unlock()
				return value, nil
			}
			u = e.begin(key, work)
		}
		e.mu.Unlock()
		if u != nil {
			wait = u.done
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
		if u != nil {
			return u.value, u.err
		}
	}
}

// begin begins work. The caller holds mu.
func (e *Errands[K, V]) begin(key K, work func(context.Context) (V, error)) *underWay[V] {
	u := &underWay[V]{done: make(chan struct{})}
	e.under[key] = u
	e.background(func(ctx context.Context) {
		u.value, u.err = work(ctx)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.under, key)
		close(u.done)
		close(e.ended)
		e.ended = make(chan struct{})
	})
	return u
}

// Errand runs one kind of work, once at a time. It is safe for concurrent use.
type Errand struct{ one *Errands[struct{}, struct{}] }

// NewErrand returns an Errand.
func NewErrand(background Background) Errand {
	return Errand{NewErrands[struct{}, struct{}](background, 0)}
}

// Do starts work if it is due and not under way, and waits for it until ctx is done. work itself keeps
// its result.
func (e Errand) Do(ctx context.Context, due func() bool, work func(context.Context) error) error {
	_, err := e.one.do(ctx, struct{}{}, due, func(ctx context.Context) (_ struct{}, err error) { return struct{}{}, work(ctx) })
	return err
}

// Busy reports whether the work is under way.
func (e Errand) Busy() bool {
	e.one.mu.Lock()
	defer e.one.mu.Unlock()
	return len(e.one.under) > 0
}
