package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// state says whether the cache of a block in one slice may stand for its raw chunks:
//
//	         first flush            grace over              rows stored
//	nothing ────────────▶ open ────────────────▶ sealed ────────────────▶ ground
//	                       │                       │                        ▲
//	        a flush failed │                       │ chunks lost or damaged │ rows stored
//	                       ▼                       ▼                        │
//	                     broken ─────────────▶ read raw ────────────────────┘
//	                              due
//
// The state is in the store, since the writer of a block and the run that grinds it share nothing else:
//
//   - open: a writer has put an open mark. It may add chunks to the cache.
//   - broken: a flush failed, so that nobody knows what is in the cache. The mark stays open, and that of a writer that has
//     died stays open as well.
//   - sealed: each writer has replaced its mark by a fresh one, with the number of chunks that it put into the cache. The cache
//     is whole if it has as many chunks as its marks say.
//   - ground: rows and marks for coarser rows are stored, and the cache and the marks that were read are deleted, in this order.
//
// A run reads raw for a block that is not sealed, or whose cache is not whole. Sealing is thus a hint, and a failed seal is
// not repeated. Nobody relies on the cache of a slice, or seals it, once a run of that slice or of a later one has begun: see
// Trusts. The writer remembers only blocks that are open or broken.
type state int

const (
	open state = iota
	broken
)

// block is what a writer remembers of a block that it has marked.
type block struct {
	state  state
	mark   blocks.ID
	chunks int // those that it put into the cache
}

// Trusts reports whether the cache of slice k may be relied on: whether no run of k, or of a later slice of the bucket, has
// ever begun. A run of a later slice grinds late data of k, and deletes the cache of its blocks. What is written
// afterwards may agree with its marks and be a part. If the store cannot say, the answer is no.
func (c *Cache) Trusts(ctx context.Context, k storage.SliceKey) (bool, error) {
	newestMs, ok, err := c.store.NewestBegun(ctx, k.Bucket)
	switch {
	case storage.IsAway(err) && ctx.Err() == nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the newest slice of %s that a run has begun: %w", c.ladder.Name(k.Bucket), err)
	}
	return !ok || newestMs < k.StartMs, nil
}

// seals returns the marks that seal the open blocks of a slice.
func (w *Writer) seals(s metric.Slice, x *index) (marks []storage.PlacedMark) {
	for _, start := range sortedKeys(x.blocks) {
		if b := x.blocks[start]; b.state == open {
			marks = append(marks, w.cache.blockMark(storage.MarkFresh, metric.Raw, s, start, b.mark, b.chunks))
		}
	}
	return marks
}

// Fresh reports whether all writers have sealed the block. A part of the marks does not say that.
func (w *Work) Fresh() bool {
	return !w.Part && !slices.ContainsFunc(w.Marks, func(m storage.Mark) bool { return m.Kind != storage.MarkFresh })
}

// chunks returns the number of chunks that the writers put into the cache, according to the marks.
func (w *Work) chunks() int {
	n := 0
	for _, m := range w.Marks {
		n += m.Chunks
	}
	return n
}

// ErrUseTable says that the cache of a block is not whole: it has other chunks than the marks say, or is damaged or too large.
// The table below holds the same and more. It wraps storage.ErrCorrupt too if the cache is damaged.
var ErrUseTable = errors.New("the cache cannot serve the block")

// Load calls add with each chunk that the cache holds for sealed work, by ID. ErrCorrupt is ErrUseTable too; any other
// error of add ends it, and is returned.
func (c *Cache) Load(ctx context.Context, w *Work, add func(storage.Chunk) error) error {
	chunks, err := c.store.CacheBlock(ctx, w.CacheKey())
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrUseTable, err)
	}
	if err == nil && (len(chunks) == 0 || len(chunks) != w.chunks()) {
		return ErrUseTable
	}
	if err != nil {
		return err
	}
	for _, ch := range chunks {
		err := add(ch)
		if errors.Is(err, storage.ErrCorrupt) {
			return fmt.Errorf("%w: chunk %s: %w", ErrUseTable, ch.ID, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Done deletes the input of work, once its rows are stored and promoted: first the cache of the
// block, then exactly the marks that were read.
func (c *Cache) Done(ctx context.Context, fence storage.Fence, w *Work) error {
	if err := c.store.DeleteCacheBlock(ctx, fence, w.CacheKey()); err != nil {
		return fmt.Errorf("delete cache of block %d: %w", w.Block.Start, err)
	}
	return c.Unmark(ctx, fence, w)
}

// Unmark deletes exactly the marks that were read.
func (c *Cache) Unmark(ctx context.Context, fence storage.Fence, w *Work) error {
	if err := c.store.DeleteMarks(ctx, fence, w.Partition, w.Marks); err != nil {
		return fmt.Errorf("delete marks of block %d: %w", w.Block.Start, err)
	}
	return nil
}
