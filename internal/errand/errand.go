// Package errand has work done that requests want, and that may take longer than any of them has time: were it to end with the
// request that began it, it might never come to an end. So it goes on beside them, and whoever wants the same meanwhile waits for it.
package errand

import (
	"context"
	"sync"
)

// Beside runs work under a context that ends with the process, and returns at once. Nil is a goroutine that ends with its work only.
type Beside func(work func(context.Context))

// Group is errands that are told apart by a key. It is safe for concurrent use.
type Group[K comparable, V any] struct {
	beside Beside
	most   int

	mu    sync.Mutex
	under map[K]*underWay[V]
	// ended is closed, and made anew, whenever an errand ends.
	ended chan struct{}
}

type underWay[V any] struct {
	done chan struct{}
	// What came of it; final when done is closed.
	value V
	err   error
}

// NewGroup makes one of which no more than most are done at once; 0 is no limit.
func NewGroup[K comparable, V any](beside Beside, most int) *Group[K, V] {
	return &Group[K, V]{beside: beside, most: most, under: make(map[K]*underWay[V]), ended: make(chan struct{})}
}

// Do has work done, unless the same is under way, and waits for what comes of it until ctx is done. All who wait get the same value.
func (g *Group[K, V]) Do(ctx context.Context, key K, work func(context.Context) (V, error)) (V, error) {
	return g.do(ctx, key, func() bool { return true }, work)
}

func (g *Group[K, V]) do(ctx context.Context, key K, due func() bool, work func(context.Context) (V, error)) (value V, err error) {
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

// begin returns what is to be waited for: an errand, or that there is room for it, or neither if it is not due.
func (g *Group[K, V]) begin(
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

// Errand is work of which there is one kind. It is safe for concurrent use.
type Errand struct {
	group *Group[struct{}, struct{}]
}

// New makes one.
func New(beside Beside) Errand { return Errand{NewGroup[struct{}, struct{}](beside, 0)} }

// Do has it done if it is due and not under way, and waits for it until ctx is done. What comes of it is for work to keep.
func (e Errand) Do(ctx context.Context, due func() bool, work func(context.Context) error) error {
	_, err := e.group.do(ctx, struct{}{}, due, func(ctx context.Context) (struct{}, error) { return struct{}{}, work(ctx) })
	return err
}

// Busy says whether it is under way.
func (e Errand) Busy() bool {
	e.group.mu.Lock()
	defer e.group.mu.Unlock()
	return len(e.group.under) > 0
}
