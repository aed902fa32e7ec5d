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

// parts tracks the outcome of each part of a batch. Once a part has failed, nothing more of it is
// sent, so no chunk is written whose mark may be missing.
type parts struct {
	batch *storage.Batch
	// ofMark and ofChunk give the part of each mark and each chunk of the batch. Cache chunks come
	// after raw chunks.
	ofMark, ofChunk []int

	mu sync.Mutex
	// failed is the error of each failed part. Any later failure of the part replaces a refusal.
	failed map[int]error
	// done counts the requests that succeeded, missed those that failed other than by a refusal,
	// and silent the missed ones without an answer.
	done, missed, silent int
}

// mostMissing bounds the failed requests of a batch. The rest is not sent after that many without
// an answer, since each has cost a time-out, nor after that many failures without a success, since
// the store is away.
const mostMissing = 16

func partsOf(b *storage.Batch) *parts {
	p := &parts{batch: b, failed: make(map[int]error)}
	var cached []int
	add := func(indexes []int, part, n int) []int { return append(indexes, slices.Repeat([]int{part}, n)...) }
	for i, x := range b.Parts {
		p.ofMark, p.ofChunk, cached = add(p.ofMark, i, x.Marks), add(p.ofChunk, i, x.Raw), add(cached, i, x.Cache)
	}
	p.ofChunk = append(p.ofChunk, cached...)
	return p
}

// in returns the parts that have marks in a slice.
func (p *parts) in(k storage.SliceKey) (out []int) {
	for i, part := range p.ofMark {
		if p.batch.Marks[i].Partition.SliceKey == k {
			out = append(out, part)
		}
	}
	return out
}

// each runs do for all of [0, n), many at once. partsOf returns the parts that one call is for. For a
// batch with parts, each returns an error only when ctx has ended.
func (p *parts) each(ctx context.Context, n int, partsOf func(i int) []int, do func(ctx context.Context, i int) error) error {
	return each(ctx, n, maxSpread, func(ctx context.Context, i int) error {
		if len(p.batch.Parts) == 0 {
			return do(ctx, i)
		}
		indexes := partsOf(i)
		if p.lost(indexes) {
			return nil
		}
		err := do(ctx, i)
		if ctx.Err() != nil {
			return err
		}
		p.note(indexes, err)
		return nil
	})
}

// errGivenUp is the error of a part that was not sent because too many requests of the batch had
// failed.
var errGivenUp = fmt.Errorf("%w: too many requests of the batch have failed", storage.ErrUnavailable)

// lost says whether a request for some parts is pointless: all of them have failed.
func (p *parts) lost(indexes []int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent >= mostMissing || p.done == 0 && p.missed >= mostMissing {
		p.fail(indexes, errGivenUp)
	}
	return !slices.ContainsFunc(indexes, func(part int) bool { return p.failed[part] == nil })
}

// note records the outcome of a request.
func (p *parts) note(indexes []int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.done++
		return
	}
	if !errors.Is(err, storage.ErrRefused) { // a refusal is an answer
		p.missed++
	}
	if errors.Is(err, storage.ErrTimeout) {
		p.silent++
	}
	p.fail(indexes, err)
}

func (p *parts) fail(indexes []int, err error) {
	for _, part := range indexes {
		if p.failed[part] == nil || errors.Is(p.failed[part], storage.ErrRefused) {
			p.failed[part] = err
		}
	}
}

// outcome is the error that Write returns.
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
