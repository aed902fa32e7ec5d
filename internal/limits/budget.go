package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrNoRoom means that other requests, or other requests of this client, hold the memory that a
// request needs.
var ErrNoRoom = errors.New("other requests hold the memory for such requests, try again")

// Budget bounds the memory that requests of one kind hold together. It is safe for concurrent use.
type Budget struct {
	mu   sync.Mutex
	held holdings
}

// NewBudget returns a budget of limit bytes, of which one client holds up to half. A request of
// largest bytes must fit into the half: NewBudget panics if it does not. To let one client hold more
// would leave less than half, or nothing, to all others.
func NewBudget(limit, largest int64) *Budget {
	if largest > half(limit) {
		panic(fmt.Sprintf("limits: a request of %d bytes does not fit into half of %d", largest, limit))
	}
	return &Budget{held: newHoldings(limit, half(limit))}
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
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if !c.budget.held.take(c.client, n) {
		return false
	}
	c.held += n
	return true
}

// Held returns the bytes that the claim holds.
func (c *Claim) Held() int64 { return c.held }

// Shrink gives back all but n bytes, if the claim holds more.
func (c *Claim) Shrink(n int64) {
	if c.held <= n {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.held.give(c.client, c.held-n)
	c.held = n
}

// Release gives back all bytes that the claim holds.
func (c *Claim) Release() {
	if c.held == 0 {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.held.give(c.client, c.held)
	c.held = 0
}

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

// Discharge gives back what the request that a context is of was charged, when it is not held any
// more but the request goes on.
func Discharge(ctx context.Context) {
	if c, _ := ctx.Value(claimKey{}).(*Claim); c != nil {
		c.Release()
	}
}
