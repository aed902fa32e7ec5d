package admission

import (
	"context"
	"errors"
	"sync"
)

// ErrNoRoom says that other requests, or others of this client, hold the memory that a request needs.
var ErrNoRoom = errors.New("other requests hold the memory that is set aside for what is asked for, try again")

// Budget bounds the memory that requests of one kind hold together. It is safe for concurrent use.
type Budget struct {
	mu   sync.Mutex
	held holdings
}

// NewBudget makes a budget of so many bytes. One client holds up to half of them, or largest if that is more: a request of that
// size must find room when nobody else holds any.
func NewBudget(limit, largest int64) *Budget {
	return &Budget{held: newHoldings(limit, max(half(limit), largest))}
}

// Claim begins a request's claim to the budget. It holds nothing yet.
func (b *Budget) Claim(c Client) Claim { return Claim{budget: b, client: c} }

// Claim is what one request holds of a Budget. It is used by one goroutine at a time.
type Claim struct {
	budget *Budget
	client Client
	held   int64
}

// Grow has the claim hold n bytes more. It is false, and nothing has changed, when there is no room for them.
func (c *Claim) Grow(n int64) bool {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if !c.budget.held.take(c.client, n) {
		return false
	}
	c.held += n
	return true
}

// Release gives back all that the claim holds.
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

// WithClaim is a context in which Charge finds the claim. The claim is released by who made it.
func WithClaim(ctx context.Context, c *Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, c)
}

// Charge has the claim of the request that a context is of hold n bytes more, for those who make much of little. Without a
// claim nothing is bounded. The error is ErrNoRoom.
func Charge(ctx context.Context, n int64) error {
	if c, ok := ctx.Value(claimKey{}).(*Claim); ok && !c.Grow(n) {
		return ErrNoRoom
	}
	return nil
}

// Discharge gives back what the request that a context is of was charged, when it is not held any more but the request goes on.
func Discharge(ctx context.Context) {
	if c, ok := ctx.Value(claimKey{}).(*Claim); ok {
		c.Release()
	}
}
