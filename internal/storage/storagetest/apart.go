package storagetest

import (
	"context"
	"sync"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Apart is a store of which what belongs to some blocks lies elsewhere than the rest, and is out of reach at times: it
// fails the parts of a batch that are about them, and stores the others.
type Apart struct {
	storage.Store

	mu   sync.Mutex
	away func(metric.ScheduleID) bool
	err  error
}

// NewApart wraps a store all of which is in reach.
func NewApart(s storage.Store) *Apart { return &Apart{Store: s} }

// Away has what away says of a schedule fail with err from now on. With nil all is in reach again.
func (a *Apart) Away(away func(metric.ScheduleID) bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away, a.err = away, err
}

// Write implements storage.Store. A batch without parts fails as one.
func (a *Apart) Write(ctx context.Context, b *storage.Batch) error {
	a.mu.Lock()
	away, err := a.away, a.err
	a.mu.Unlock()
	if away == nil {
		return a.Store.Write(ctx, b)
	}
	parts := b.Parts
	if len(parts) == 0 {
		parts = []storage.Part{{Marks: len(b.Marks), Raw: len(b.Raw), Cache: len(b.Cache)}}
	}
	rest, reached := *b, storage.Batch{Fence: b.Fence, Open: b.Open}
	var failed []int
	for i, p := range parts {
		marks, raw, cached := rest.Marks[:p.Marks], rest.Raw[:p.Raw], rest.Cache[:p.Cache]
		rest.Marks, rest.Raw, rest.Cache = rest.Marks[p.Marks:], rest.Raw[p.Raw:], rest.Cache[p.Cache:]
		bad := false
		for _, m := range marks {
			bad = bad || away(m.Start)
		}
		for _, c := range raw {
			bad = bad || away(c.Group)
		}
		if bad {
			failed = append(failed, i)
			continue
		}
		reached.Marks = append(reached.Marks, marks...)
		reached.Raw, reached.Cache = append(reached.Raw, raw...), append(reached.Cache, cached...)
	}
	switch len(failed) {
	case 0:
		return a.Store.Write(ctx, b)
	case len(parts):
		return err
	}
	if werr := a.Store.Write(ctx, &reached); werr != nil {
		return werr
	}
	return &storage.PartsError{Failed: failed, Err: err}
}
