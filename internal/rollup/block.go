package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// grind is a workplace: the scratch memory in which blocks are ground one after the other.
type grind struct {
	run     *Runner
	lease   *shards.Lease // of the block's shard
	tally   *tally
	samples blocks.SampleSet
	rollups blocks.RollupSet
	grinder Grinder
	rows    []metric.RollupRow
}

func newGrind(r *Runner, t *tally) *grind { return &grind{run: r, tally: t} }

// block grinds one block, or gives the block up if its input has expired. Each step may be
// repeated, and the marks are deleted last: if block ends early, the next run does the same again.
// Before each write it checks that this worker still holds the shard.
func (g *grind) block(ctx context.Context, w *cache.Work, v recovery.Verdict) error {
	if err := g.compute(ctx, w, v); err != nil {
		return err
	}
	if len(g.rows) > 0 {
		level := w.Bucket() + 1
		if err := g.lease.Check(); err != nil {
			return err
		}
		if err := g.run.store.WriteRollups(ctx, g.lease.Fence, level, g.rows); err != nil {
			return fmt.Errorf("write %s rows of block %d: %w", g.run.ladder.Name(level), w.Block.Start, err)
		}
		if err := g.lease.Check(); err != nil {
			return err
		}
		if err := g.run.cache.Pass(ctx, g.lease.Fence, w, g.rows, g.tally.nextOpen); err != nil {
			return fmt.Errorf("pass block %d on: %w", w.Block.Start, err)
		}
	}
	if err := g.lease.Check(); err != nil {
		return err
	}
	if err := g.run.cache.Done(ctx, g.lease.Fence, w); err != nil {
		return err
	}
	if v == recovery.Expired {
		g.tally.dropped.Add(int64(len(w.Marks)))
		return nil
	}
	g.tally.blocks.Add(1)
	g.tally.schedules.Add(int64(len(g.rows)))
	if w.Late() {
		g.tally.late.Add(int64(len(g.rows)))
	}
	return nil
}

// compute fills g.rows with the block's rows. A schedule that may have had a row, but has no finite
// sample left, gets a zero row. The zero row takes the old row back: it means "no data", and
// readers skip it.
func (g *grind) compute(ctx context.Context, w *cache.Work, v recovery.Verdict) error {
	if n := w.Damaged(); n > 0 {
		g.run.damaged(ctx, w, tableIndex, n, fmt.Errorf(
			"%d marks of slice %s are damaged, and stand for the whole block; rows that they were to take back stay", n, w.Slice))
	}
	switch {
	case v == recovery.Expired:
		return g.giveUp(ctx, w)
	case w.Bucket() == metric.Raw:
		return g.fromSamples(ctx, w)
	}
	return g.fromRollups(ctx, w)
}

// read reads the block from its cache, or from the table below if the cache cannot serve the block.
// Each read counts as a block query (invariant 6). A damaged cache costs no more than that, but is
// counted and reported.
func (g *grind) read(ctx context.Context, w *cache.Work, reset func(blocks.Range), fromCache, fromTable func() error) error {
	reset(w.Block)
	err := cache.ErrUseTable
	if w.Fresh() {
		g.tally.blockQueries.Add(1)
		err = fromCache()
	}
	if errors.Is(err, cache.ErrUseTable) {
		if errors.Is(err, storage.ErrCorrupt) {
			g.run.damaged(ctx, w, tableCache, 1, fmt.Errorf("%w, and the table below is read: slice %s", err, w.Slice))
		}
		reset(w.Block)
		g.tally.blockQueries.Add(1)
		err = fromTable()
	}
	g.rows = g.rows[:0]
	g.grinder.Reset()
	return err
}

func (g *grind) fromSamples(ctx context.Context, w *cache.Work) error {
	var left damage
	if err := g.read(ctx, w, g.samples.Reset,
		func() error { return g.run.cache.Samples(ctx, w, &g.samples) },
		func() error { return g.readRaw(ctx, w, &left) },
	); err != nil {
		return err
	}
	only := w.Schedules()
	for id, samples := range g.samples.Series() {
		if !asked(only, id) {
			continue
		}
		if r, ok := g.grinder.Samples(samples); ok || w.Late() {
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: r})
		}
	}
	if left.n == 0 {
		return g.closeGaps(ctx, w)
	}
	g.run.damaged(ctx, w, tableRaw, left.n,
		fmt.Errorf("%d raw chunks of slice %s are left out, and the rows of their schedules are partial: %s", left.n, w.Slice, &left))
	size := g.run.store.Settings().GroupSize
	return g.keepFuller(ctx, w, func(id metric.ScheduleID) bool { return slices.Contains(left.groups, blocks.Of(id, size).Start) })
}

// readRaw reads the block's raw chunks and skips the damaged ones. A chunk that the store itself
// cannot read is an error: its number and groups are unknown.
func (g *grind) readRaw(ctx context.Context, w *cache.Work, left *damage) error {
	for ch, err := range g.run.store.RawChunks(ctx, w.Block, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read raw samples of block %d: %w", w.Block.Start, err)
		}
		if err := g.samples.Add(ch.Data); err != nil {
			left.add(ch.Group, ch.ID, err)
		}
	}
	return nil
}

func (g *grind) fromRollups(ctx context.Context, w *cache.Work) error {
	var left damage
	if err := g.read(ctx, w, g.rollups.Reset,
		func() error { return g.run.cache.Rollups(ctx, w, &g.rollups) },
		func() error { return g.readRollups(ctx, w, &left) },
	); err != nil {
		return err
	}
	only := w.Schedules()
	for id, rows := range g.rollups.Series() {
		if !asked(only, id) {
			continue
		}
		r, ok, err := g.grinder.Rollups(rows)
		if err != nil {
			left.name(err.Error())
		}
		if ok || r.Partial || w.Late() {
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: r})
		}
	}
	if left.n > 0 {
		g.run.damaged(ctx, w, tableRollups, left.n,
			fmt.Errorf("%d rows or sketches of rows are left out in slice %s, whose rows are partial: %s", left.n, w.Slice, &left))
	}
	return g.closeGaps(ctx, w)
}

// readRollups reads the block's rows. A damaged row becomes a partial row without samples, since it
// may have had samples.
func (g *grind) readRollups(ctx context.Context, w *cache.Work, left *damage) error {
	g.rows = g.rows[:0] // scratch, until the block's own rows replace these
	for row, err := range g.run.store.Rollups(ctx, w.Bucket(), w.Block, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read %s rows of block %d: %w", g.run.ladder.Name(w.Bucket()), w.Block.Start, err)
		}
		if row.Damaged {
			row.Rollup = metric.Rollup{Partial: true}
			if asked(w.Schedules(), row.Schedule) {
				left.name(fmt.Sprintf("the %s row of schedule %d at %d", g.run.ladder.Name(w.Bucket()), row.Schedule, row.TimeMs))
			}
		}
		g.rows = append(g.rows, row)
	}
	g.rollups.AddRows(g.rows)
	return nil
}

// asked reports whether only, which is sorted, names the schedule; nil names all.
func asked(only []metric.ScheduleID, id metric.ScheduleID) bool {
	if only == nil {
		return true
	}
	_, ok := slices.BinarySearch(only, id)
	return ok
}
