package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"
)

// ErrNoRoom means that other requests, or other requests of this client, hold the memory that a
// request needs.
var ErrNoRoom = errors.New("other requests hold the memory for such requests, try again")

// Budget bounds what one client, and what all clients together, hold of a resource such as bytes. It is safe for
// concurrent use.
type Budget struct {
	all *semaphore.Weighted
	// share is what a client may hold.
	share func(Client) int64

	mu      sync.Mutex
	clients map[Client]*holding
}

// holding is what one client holds, and waits for.
type holding struct {
	held   *semaphore.Weighted
	wanted int64
}

// NewBudget returns a budget of limit bytes, of which one client holds up to half. A request of
// largest bytes must fit into the half: NewBudget panics if it does not. To let one client hold more
// would leave less than half, or nothing, to all others.
func NewBudget(limit, largest int64) *Budget {
	half := max((limit+1)/2, 1)
	if largest > half {
		panic(fmt.Sprintf("limits: a request of %d bytes does not fit into half of %d", largest, limit))
	}
	return &Budget{all: semaphore.NewWeighted(limit), clients: make(map[Client]*holding), share: func(c Client) int64 {
		if c == (Client{}) {
			return limit
		}
		return half
	}}
}

// try takes n for a client if it may hold so much more.
func (b *Budget) try(c Client, n int64) bool {
	h := b.enter(c, n)
	if h.held.TryAcquire(n) {
		if b.all.TryAcquire(n) {
			return true
		}
		h.held.Release(n)
	}
	b.leave(c, n)
	return false
}

// wait takes n for a client as soon as it may hold so much more, first come, first served. A client that holds its share
// does not keep others waiting.
func (b *Budget) wait(ctx context.Context, c Client, n int64) error {
	h := b.enter(c, n)
	err := h.held.Acquire(ctx, n)
	if err == nil {
		if err = b.all.Acquire(ctx, n); err == nil {
			return nil
		}
		h.held.Release(n)
	}
	b.leave(c, n)
	return err
}

// give gives back n.
func (b *Budget) give(c Client, n int64) {
	b.all.Release(n)
	b.leave(c, n).Release(n)
}

func (b *Budget) enter(c Client, n int64) *holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.clients[c]
	if h == nil {
		h = &holding{held: semaphore.NewWeighted(b.share(c))}
		b.clients[c] = h
	}
	h.wanted += n
	return h
}

func (b *Budget) leave(c Client, n int64) *semaphore.Weighted {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.clients[c]
	if h.wanted -= n; h.wanted == 0 {
		delete(b.clients, c)
	}
	return h.held
}

// Claim starts a claim of a request to the budget. The claim holds nothing yet.
func (b *Budget) Claim(c Client) Claim { return Claim{budget: b, client: c} }

// Claim is what one request holds of a Budget. It is used by one goroutine at a time.
type Claim struct {
	budget *Budget
	client Client
	held   int64
}

// Grow adds n bytes to the claim. If there is no room for them, it returns false and changes
// nothing.
func (c *Claim) Grow(n int64) bool {
	if n > 0 && !c.budget.try(c.client, n) {
		return false
	}
	c.held += max(n, 0)
	return true
}

// Held returns the bytes that the claim holds.
func (c *Claim) Held() int64 { return c.held }

// Shrink gives back all but n bytes, if the claim holds more.
func (c *Claim) Shrink(n int64) {
	if c.held > n {
		c.budget.give(c.client, c.held-n)
		c.held = n
	}
}

// Release gives back all bytes that the claim holds.
func (c *Claim) Release() { c.Shrink(0) }

type claimKey struct{}

// WithClaim returns a context from which Charge takes the claim. Whoever made the claim releases
// it.
func WithClaim(ctx context.Context, c *Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, c)
}

// Charge adds n bytes to the claim of ctx's request. Callers use it where a small request takes
// much memory. Without a claim Charge bounds nothing. The error is ErrNoRoom.
func Charge(ctx context.Context, n int64) error {
	if c, _ := ctx.Value(claimKey{}).(*Claim); c != nil && !c.Grow(n) {
		return ErrNoRoom
	}
	return nil
}

// Discharge gives back what ctx's request was charged, when it no longer holds that but goes on.
func Discharge(ctx context.Context) {
	if c, _ := ctx.Value(claimKey{}).(*Claim); c != nil {
		c.Release()
	}
}
