package query

import (
	"context"
	"fmt"
	"sync"

	"github.com/quern/quern/internal/admission"
)

// claimStep is by how many bytes the claim of a request grows.
const claimStep = 1 << 20

// memory is what one request holds of the memory that all queries have together. It is safe for
// concurrent use.
type memory struct {
	mu    sync.Mutex
	claim *admission.Claim // nil bounds nothing
	held  int64
}

// memory begins to count what the request of ctx holds.
func (q *Querier) memory(ctx context.Context) *memory {
	if q.opts.Memory == nil {
		return new(memory)
	}
	claim := q.opts.Memory.Claim(admission.ClientOf(ctx))
	return &memory{claim: &claim}
}

// hold counts n bytes more, or less. The error is admission.ErrNoRoom, or a *RequestError if there will
// never be room.
func (m *memory) hold(n int) error {
	if n == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held += int64(n); m.claim == nil {
		return nil
	}
	want := (m.held + claimStep - 1) / claimStep * claimStep
	switch more := want - m.claim.Held(); {
	case want > m.claim.Share():
		return badRequest("the request may take more than %d MB, the part of this process's memory that the queries of one client may hold: "+
			"narrow the selectors, or give the process more memory", m.claim.Share()>>20)
	case more > 0 && !m.claim.Grow(more):
		return fmt.Errorf("there is no room for %d MB more of a query: %w, or narrow the selectors", more>>20, admission.ErrNoRoom)
	}
	m.claim.Shrink(want)
	return nil
}

// release gives back all.
func (m *memory) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claim != nil {
		m.claim.Release()
	}
	m.held = 0
}
