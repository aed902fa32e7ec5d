package acceptance

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// ranges are the five token ranges of a cluster that keeps one copy. One of them may be away.
type ranges struct {
	away int
	mode awayMode
	r    *rand.Rand
}

// none says that no range is away.
const none = -1

// awayMode is what is stored of a part of a batch that fails.
type awayMode int

const (
	nothing    awayMode = iota
	inReach             // the marks and chunks in reach, if all marks are
	everything          // all of it, without an answer
)

// moves has another range be away, or none.
func (g *ranges) moves() {
	g.mode = awayMode(g.r.IntN(3))
	if g.away = g.r.IntN(8); g.away > 4 {
		g.away = none
	}
}

// String implements fmt.Stringer.
func (g *ranges) String() string { return fmt.Sprintf("range %d, mode %d", g.away, g.mode) }

// gone returns the error of a request for a partition.
func (g *ranges) gone(table string, key ...any) error {
	if g.away == none {
		return nil
	}
	h := fnv.New32a()
	fmt.Fprint(h, append([]any{table}, key...)...)
	if int(h.Sum32()%5) != g.away {
		return nil
	}
	return fmt.Errorf("range %d: %w", g.away, []error{storage.ErrUnavailable, storage.ErrTimeout}[g.r.IntN(2)])
}

func (g *ranges) index(p storage.IndexPartition) error { return g.gone("index", p) }
func (g *ranges) cache(k storage.CacheKey) error       { return g.gone("cache", k) }
func (g *ranges) newest() error                        { return g.gone("newest") }
func (g *ranges) slice(b metric.Bucket, startMs int64) error {
	return g.gone("slices", b, metric.AlignDown(startMs, day.Milliseconds()))
}

// apart is a store of which a range may be away.
type apart struct {
	storage.Store
	*ranges
}

// Write implements storage.Store.
func (a *apart) Write(ctx context.Context, b *storage.Batch) error {
	parts := b.Parts
	if len(parts) == 0 {
		parts = []storage.Part{{Marks: len(b.Marks), Raw: len(b.Raw), Cache: len(b.Cache)}}
		for _, k := range b.Open {
			if err := a.slice(k.Bucket, k.StartMs); err != nil {
				return err
			}
		}
	}
	some := &storage.PartsError{}
	stored := &storage.Batch{Fence: b.Fence, Open: b.Open}
	marks, raw, cached := b.Marks, b.Raw, b.Cache
	for i, p := range parts {
		part := storage.Batch{Marks: marks[:p.Marks], Raw: raw[:p.Raw], Cache: cached[:p.Cache]}
		marks, raw, cached = marks[p.Marks:], raw[p.Raw:], cached[p.Cache:]
		if err := a.writePart(stored, &part); err != nil {
			some.Failed, some.Errs = append(some.Failed, i), append(some.Errs, err)
		}
	}
	if err := a.Store.Write(ctx, stored); err != nil {
		return err
	}
	switch {
	case len(some.Failed) == 0:
		return nil
	case len(b.Parts) == 0:
		return some.Errs[0]
	}
	return some
}

// writePart adds to stored what the store takes of a part. It returns why the part fails.
func (a *apart) writePart(stored, part *storage.Batch) (err error) {
	failed := func(e error) bool {
		if e != nil {
			err = e
		}
		return e != nil
	}
	for _, m := range part.Marks {
		failed(a.index(m.Partition))
		failed(a.slice(m.Partition.Bucket, m.Partition.StartMs))
	}
	if err != nil {
		return err
	}
	var in storage.Batch
	for _, c := range part.Raw {
		if !failed(a.gone("raw", c.Group)) {
			in.Raw = append(in.Raw, c)
		}
	}
	for _, c := range part.Cache {
		if !failed(a.cache(c.CacheKey)) {
			in.Cache = append(in.Cache, c)
		}
	}
	switch {
	case err != nil && a.mode == nothing:
		return err
	case err == nil || a.mode == everything:
		in.Raw, in.Cache = part.Raw, part.Cache
	}
	stored.Marks = append(stored.Marks, part.Marks...)
	stored.Raw, stored.Cache = append(stored.Raw, in.Raw...), append(stored.Cache, in.Cache...)
	return err
}

// unless returns rows, or an error in their place.
func unless[T any](err error, rows func() iter.Seq2[T, error]) iter.Seq2[T, error] {
	if err == nil {
		return rows()
	}
	return func(yield func(T, error) bool) {
		var zero T
		yield(zero, err)
	}
}

// Marks implements storage.Reader.
func (a *apart) Marks(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error] {
	return unless(a.index(p), func() iter.Seq2[storage.Mark, error] { return a.Store.Marks(ctx, p) })
}

// FirstMark implements storage.Runs.
func (a *apart) FirstMark(ctx context.Context, p storage.IndexPartition, from storage.MarkKey) (storage.MarkKey, bool, error) {
	if err := a.index(p); err != nil {
		return storage.MarkKey{}, false, err
	}
	return a.Store.FirstMark(ctx, p, from)
}

// DeleteMarks implements storage.Runs.
func (a *apart) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	if err := a.index(p); err != nil {
		return err
	}
	return a.Store.DeleteMarks(ctx, f, p, marks)
}

// CacheBlock implements storage.Runs.
func (a *apart) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	if err := a.cache(k); err != nil {
		return nil, err
	}
	return a.Store.CacheBlock(ctx, k)
}

// DeleteCacheBlock implements storage.Runs.
func (a *apart) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	if err := a.cache(k); err != nil {
		return err
	}
	return a.Store.DeleteCacheBlock(ctx, f, k)
}

// groups returns why some of the ids are away in a table.
func (a *apart) groups(table string, ids blocks.Range) error {
	for _, g := range ids.Cover(a.Settings().GroupSize) {
		if err := a.gone(table, g.Start); err != nil {
			return err
		}
	}
	return nil
}

// PackRaw implements storage.Runs.
func (a *apart) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, of []blocks.ID) error {
	if err := a.gone("raw", packed.Group); err != nil {
		return err
	}
	return a.Store.PackRaw(ctx, f, packed, of)
}

// RawChunks implements storage.Reader.
func (a *apart) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return unless(a.groups("raw", ids), func() iter.Seq2[storage.RawChunk, error] { return a.Store.RawChunks(ctx, ids, fromMs, toMs) })
}

// Rollups implements storage.Reader.
func (a *apart) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return unless(a.groups("rollups", ids), func() iter.Seq2[metric.RollupRow, error] { return a.Store.Rollups(ctx, level, ids, fromMs, toMs) })
}

// WriteRollups implements storage.Runs. It stores the rows before the first that is away.
func (a *apart) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	for _, r := range rows {
		if err := a.gone("rollups", blocks.Of(r.Schedule, a.Settings().GroupSize).Start); err != nil {
			return err
		}
		if err := a.Store.WriteRollups(ctx, f, level, []metric.RollupRow{r}); err != nil {
			return err
		}
	}
	return nil
}

// Slices implements storage.Runs. Days that are away are gaps, from five days before the first clock to 25 after it.
func (a *apart) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	states, err := a.Store.Slices(ctx, b, fromMs, toMs)
	if err != nil || a.away == none {
		return states, err
	}
	var out []storage.SliceState
	for _, s := range states {
		if a.slice(b, s.StartMs) == nil {
			out = append(out, s)
		}
	}
	gaps := &storage.GapsError{}
	dayMs := day.Milliseconds()
	lo := max(fromMs, defaultStart.Add(-5*day).UnixMilli())
	hi := min(toMs, defaultStart.Add(25*day).UnixMilli())
	for d := metric.AlignDown(lo, dayMs); d < hi; d += dayMs {
		if err := a.slice(b, d); err != nil {
			gaps.Gaps = append(gaps.Gaps, storage.Gap{Bucket: b, FromMs: max(d, fromMs), ToMs: min(d+dayMs, toMs), Err: err})
		}
	}
	if len(gaps.Gaps) > 0 {
		return out, gaps
	}
	return out, nil
}

// BeginSlice implements storage.Runs.
func (a *apart) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	if err := a.newest(); err != nil {
		return err
	}
	if err := a.slice(k.Bucket, k.StartMs); err != nil {
		return err
	}
	return a.Store.BeginSlice(ctx, k)
}

// NewestBegun implements storage.Runs.
func (a *apart) NewestBegun(ctx context.Context, b metric.Bucket) (int64, bool, error) {
	if err := a.newest(); err != nil {
		return 0, false, err
	}
	return a.Store.NewestBegun(ctx, b)
}

// CompleteSlice implements storage.Runs.
func (a *apart) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	if err := a.slice(k.Bucket, k.StartMs); err != nil {
		return err
	}
	return a.Store.CompleteSlice(ctx, k)
}
