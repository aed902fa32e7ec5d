package storagetest

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Apart is a store that keeps some blocks in another place, which is out of reach at times. It then
// fails the parts of a batch that concern these blocks, and stores the other parts. The slices of each bucket are in a place
// of their own too.
type Apart struct {
	storage.Store

	mu    sync.Mutex
	fails func(metric.ScheduleID) error
	away  func(metric.Bucket) error
}

// NewApart wraps a store with everything in reach.
func NewApart(s storage.Store) *Apart { return &Apart{Store: s} }

// Away makes writes for the schedules that away selects fail with err from now on. With nil nothing
// fails.
func (a *Apart) Away(away func(metric.ScheduleID) bool, err error) {
	if away == nil {
		a.Fail(nil)
		return
	}
	a.Fail(func(id metric.ScheduleID) error {
		if away(id) {
			return err
		}
		return nil
	})
}

// Fail makes writes for a schedule fail with what fails returns for it, from now on. With nil
// nothing fails.
func (a *Apart) Fail(fails func(metric.ScheduleID) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = fails
}

// FailSlices makes reads of the slices of a bucket fail with what away returns for it, from now on. With nil nothing fails.
func (a *Apart) FailSlices(away func(metric.Bucket) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// Slices implements storage.Runs.
func (a *Apart) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	a.mu.Lock()
	away := a.away
	a.mu.Unlock()
	if away != nil {
		if err := away(b); err != nil {
			return nil, err
		}
	}
	return a.Store.Slices(ctx, b, fromMs, toMs)
}

// Write implements storage.Store. A batch without parts fails as one.
func (a *Apart) Write(ctx context.Context, b *storage.Batch) error {
	a.mu.Lock()
	fails := a.fails
	a.mu.Unlock()
	if fails == nil {
		return a.Store.Write(ctx, b)
	}
	parts := b.Parts
	if len(parts) == 0 {
		parts = []storage.Part{{Marks: len(b.Marks), Raw: len(b.Raw), Cache: len(b.Cache)}}
	}
	rest, reached := *b, storage.Batch{Fence: b.Fence, Open: b.Open}
	failed := &storage.PartsError{}
	for i, p := range parts {
		marks, raw, cached := rest.Marks[:p.Marks], rest.Raw[:p.Raw], rest.Cache[:p.Cache]
		rest.Marks, rest.Raw, rest.Cache = rest.Marks[p.Marks:], rest.Raw[p.Raw:], rest.Cache[p.Cache:]
		var err error
		for _, m := range marks {
			err = cmp.Or(err, fails(m.Start))
		}
		for _, c := range raw {
			err = cmp.Or(err, fails(c.Group))
		}
		if err != nil {
			failed.Failed, failed.Errs = append(failed.Failed, i), append(failed.Errs, err)
			continue
		}
		reached.Marks = append(reached.Marks, marks...)
		reached.Raw, reached.Cache = append(reached.Raw, raw...), append(reached.Cache, cached...)
	}
	switch {
	case len(failed.Failed) == 0:
		return a.Store.Write(ctx, b)
	case len(failed.Failed) == len(parts) && (len(b.Parts) == 0 || !errors.Is(failed, storage.ErrRefused)):
		return failed.Errs[0]
	}
	if werr := a.Store.Write(ctx, &reached); werr != nil {
		return werr
	}
	return failed
}
