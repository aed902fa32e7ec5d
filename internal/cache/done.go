package cache

import (
	"context"
	"fmt"

	"github.com/quern/quern/internal/storage"
)

// Done deletes the input of work, once its rows are stored and passed on: first the cache of the
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
