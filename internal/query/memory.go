package query

import (
	"context"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// claimStep is by how many bytes a claim grows.
const claimStep = 256 << 10

// Memory is what a request, or a part of it, holds of the memory that all queries have together. It is
// safe for concurrent use.
type Memory struct {
	mu    sync.Mutex
	claim *admission.Claim // nil bounds nothing
	share int64
	held  int64
}

// NewMemory begins to count what one of n parts holds that the request of ctx works on at the same time.
// Each may hold as much as fits n times, so that a request that is alone is not in its own way. A nil
// budget bounds nothing.
func NewMemory(ctx context.Context, all *admission.Budget, n int) *Memory {
	m := &Memory{share: share(ctx, all, n)}
	if all != nil {
		claim := all.Claim(admission.ClientOf(ctx))
		m.claim = &claim
	}
	return m
}

// share returns what each of n parts may hold that the request of ctx works on at the same time.
func share(ctx context.Context, all *admission.Budget, n int) int64 {
	if all == nil {
		return math.MaxInt64
	}
	return all.Share(admission.ClientOf(ctx)) / int64(n)
}

// toRead returns how much of a share may be read: what is computed from it needs room too.
func toRead(share int64) int { return int(share / 2) }

// Hold counts n bytes more, or less. The error is admission.ErrNoRoom, or a *RequestError if there will
// never be room. Nothing more is then counted.
func (m *Memory) Hold(n int) error {
	if n == 0 || m.claim == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	held := m.held + int64(n)
	if held > m.share {
		return badRequest("the request may take more than %d MB, the part of this process's memory that the queries of one client may hold: "+
			"narrow the selectors, or give the process more memory", m.claim.Share()>>20)
	}
	if more, ok := m.claim.Cover(held, claimStep, m.share); !ok {
		return fmt.Errorf("there is no room for %d kB more of a query: %w, or narrow the selectors", more>>10, admission.ErrNoRoom)
	}
	m.held = held
	return nil
}

// Raise holds needs bytes instead of held, if these are more, and returns what is held. The error is that
// of Hold.
func (m *Memory) Raise(held, needs int) (int, error) {
	needs = max(needs, held)
	if err := m.Hold(needs - held); err != nil {
		return held, err
	}
	return needs, nil
}

// Release gives back all.
func (m *Memory) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claim != nil {
		m.claim.Release()
	}
	m.held = 0
}

const (
	// leastPart is the memory that a part is given at least, unless there is no room: for two of the
	// largest chunks. Each part reads all chunks of its slice, so there should be few.
	leastPart = 8 << 20
	// leastWanted is what a part takes at least of that for the samples wanted, beside what it takes to decode a chunk.
	leastWanted = 1 << 20
	// pooledBytes bounds the sets that are kept for the next request.
	pooledBytes = 4 << 20
)

// countedSet is a SampleSet that holds memory.
type countedSet struct {
	*blocks.SampleSet
	q    *Querier
	in   *Memory
	held int
}

// set returns a set, until close.
func (q *Querier) set(in *Memory) *countedSet {
	return &countedSet{SampleSet: q.sets.Get().(*blocks.SampleSet), q: q, in: in}
}

// admit holds what the set takes with what it wants of a chunk of [fromMs, toMs) more, before it is added. The error is
// errTooMany if a smaller part may fit, otherwise that of Hold. What it takes to decode the chunk is the same for a smaller part.
func (s *countedSet) admit(chunk []byte, fromMs, toMs int64) (*blocks.Incoming, error) {
	in := s.Open(chunk)
	scratch := in.Scratch()
	var err error
	if s.held, err = s.in.Raise(s.held, s.Bytes()+scratch); err != nil {
		if s.Len()*int(unsafe.Sizeof(metric.Sample{})) > leastWanted && toMs-fromMs > 1 {
			return nil, errTooMany
		}
		return nil, err
	}
	needs := in.Needs()
	smaller := needs > leastPart && needs-scratch > leastWanted && toMs-fromMs > 1
	if smaller && needs > toRead(s.in.share) {
		return nil, errTooMany
	}
	// What the set has grown to it keeps when it is reset.
	if s.held, err = s.in.Raise(s.held, needs); err != nil && smaller {
		return nil, errTooMany
	}
	return in, err
}

// close lets go of the set.
func (s *countedSet) close() {
	_ = s.in.Hold(-s.held) // less always fits
	if s.Bytes() <= pooledBytes {
		s.q.sets.Put(s.SampleSet)
	}
}
