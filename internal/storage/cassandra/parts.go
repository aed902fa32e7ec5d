package cassandra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/quern/quern/internal/storage"
)

// parts follows what becomes of each part of a batch. A part that has failed is not gone on with, so that
// no chunk is written whose mark may be missing.
type parts struct {
	batch *storage.Batch
	// ofMark and ofChunk are the parts that the batch's marks belong to, and its chunks, those of the cache after
	// the raw ones.
	ofMark, ofChunk []int

	mu sync.Mutex
	// failed is why, by part. A refusal stands only for as long as no other request of the part has failed in another way.
	failed map[int]error
	// done and missed are the requests that have ended, silent those of the missed that had no answer.
	done, missed, silent int
}

// mostMissing bounds the requests of a batch that fail before the rest is given up unsent: where none has succeeded
// the store is away, and each without an answer has cost a time-out.
const mostMissing = 16

func partsOf(b *storage.Batch) *parts {
	p := &parts{batch: b, failed: make(map[int]error)}
	var cached []int
	add := func(of []int, part, n int) []int { return append(of, slices.Repeat([]int{part}, n)...) }
	for i, x := range b.Parts {
		p.ofMark, p.ofChunk, cached = add(p.ofMark, i, x.Marks), add(p.ofChunk, i, x.Raw), add(cached, i, x.Cache)
	}
	p.ofChunk = append(p.ofChunk, cached...)
	return p
}

// in are the parts that have marks in a slice.
func (p *parts) in(k storage.SliceKey) (out []int) {
	for i, part := range p.ofMark {
		if p.batch.Marks[i].Partition.SliceKey == k {
			out = append(out, part)
		}
	}
	return out
}

// each runs do for all of [0, n), many at once; of says which parts one is for. The error of a batch with parts is the
// caller's, who has called it off.
func (p *parts) each(ctx context.Context, n int, of func(i int) []int, do func(ctx context.Context, i int) error) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		if len(p.batch.Parts) == 0 {
			return do(ctx, i)
		}
		of := of(i)
		if p.lost(of) {
			return nil
		}
		err := do(ctx, i)
		if ctx.Err() != nil {
			return err
		}
		p.note(of, err)
		return nil
	})
}

// errGivenUp: others of the batch had no answer, and this part is not asked for.
var errGivenUp = fmt.Errorf("%w: too many requests of the batch have failed", storage.ErrUnavailable)

// lost says whether nothing is gained by a request for some parts.
func (p *parts) lost(of []int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent >= mostMissing || p.done == 0 && p.missed >= mostMissing {
		p.fail(of, errGivenUp)
	}
	return !slices.ContainsFunc(of, func(part int) bool { return p.failed[part] == nil })
}

// note takes in what has become of a request.
func (p *parts) note(of []int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.done++
		return
	}
	if !errors.Is(err, storage.ErrRefused) { // that is an answer
		p.missed++
	}
	if errors.Is(err, storage.ErrTimeout) {
		p.silent++
	}
	p.fail(of, err)
}

func (p *parts) fail(of []int, err error) {
	for _, part := range of {
		if p.failed[part] == nil || errors.Is(p.failed[part], storage.ErrRefused) {
			p.failed[part] = err
		}
	}
}

// outcome is what Write returns.
func (p *parts) outcome() error {
	if len(p.failed) == 0 {
		return nil
	}
	e := &storage.PartsError{Failed: slices.Sorted(maps.Keys(p.failed))}
	for _, part := range e.Failed {
		e.Errs = append(e.Errs, p.failed[part])
	}
	if len(e.Failed) == len(p.batch.Parts) && !errors.Is(e, storage.ErrRefused) {
		return e.Errs[0]
	}
	return e
}
