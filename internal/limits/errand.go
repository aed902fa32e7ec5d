package limits

import (
	"context"
	"sync"
)

// Background starts work under a context that ends with the process, and returns at once. Nil starts a
// goroutine that ends only with its work.
type Background func(work func(context.Context))

// Errands runs errands that a key tells apart. It is safe for concurrent use.
type Errands[K comparable, V any] struct {
	beside Background
	most   int

	mu    sync.Mutex
	under map[K]*underWay[V]
	// ended is closed and replaced whenever an errand ends.
	ended chan struct{}
}

type underWay[V any] struct {
	done chan struct{}
	// value and err are the result. They are set before done is closed.
	value V
	err   error
}

// NewErrands returns a Errands that runs at most most errands at once; 0 is no limit.
func NewErrands[K comparable, V any](beside Background, most int) *Errands[K, V] {
	return &Errands[K, V]{beside: beside, most: most, under: make(map[K]*underWay[V]), ended: make(chan struct{})}
}

// Do starts work unless work with the same key is under way, and waits for the result until ctx is
// done. All callers that wait get the same result.
func (g *Errands[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (V, error) {
	return g.do(ctx, key, func() bool { return true }, work)
}

func (g *Errands[K, V]) do(ctx context.Context, key K, due func() bool, work func(context.Context) (V, error)) (value V, err error) {
	for {
		u, wait := g.begin(ctx, key, due, work)
		if u == nil && wait == nil {
			return value, nil
		}
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

// begin returns the errand to wait for, or the channel that is closed when there may be room for one, or
// neither if the errand is not due.
func (g *Errands[K, V]) begin(
	ctx context.Context, key K, due func() bool, work func(context.Context) (V, error),
) (u *underWay[V], room chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if u := g.under[key]; u != nil {
		return u, nil
	}
	if g.most > 0 && len(g.under) >= g.most {
		return nil, g.ended
	}
	if !due() {
		return nil, nil
	}
	u = &underWay[V]{done: make(chan struct{})}
	g.under[key] = u
	beside := g.beside
	if beside == nil {
		beside = func(work func(context.Context)) { go work(context.WithoutCancel(ctx)) }
	}
	beside(func(ctx context.Context) {
		value, err := work(ctx)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.under, key)
		u.value, u.err = value, err
		close(u.done)
		close(g.ended)
		g.ended = make(chan struct{})
	})
	return u, nil
}

// Errand runs one kind of work, once at a time. It is safe for concurrent use.
type Errand struct {
	one *Errands[struct{}, struct{}]
}

// NewErrand returns an Errand.
func NewErrand(beside Background) Errand { return Errand{NewErrands[struct{}, struct{}](beside, 0)} }

// Do starts work if it is due and not under way, and waits for it until ctx is done. work itself keeps
// its result.
func (e Errand) Do(ctx context.Context, due func() bool, work func(context.Context) error) error {
	_, err := e.one.do(ctx, struct{}{}, due, func(ctx context.Context) (struct{}, error) { return struct{}{}, work(ctx) })
	return err
}

// Busy reports whether the work is under way.
func (e Errand) Busy() bool {
	e.one.mu.Lock()
	defer e.one.mu.Unlock()
	return len(e.one.under) > 0
}
