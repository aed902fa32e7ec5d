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
		if err := g.run.cache.Pass(ctx, g.lease.Fence, w, g.rows, g.tally.next); err != nil {
			return fmt.Errorf("pass block %d on to the next bucket: %w", w.Block.Start, err)
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
	if w.Late() && w.Slice.StartMs != w.Partition.StartMs { // otherwise these are the first rows of the slice
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
			"%d marks of slice %s are damaged and count for the whole block; rows that they would take back stay", n, w.Slice))
	}
	switch {
	case v == recovery.Expired:
		return g.giveUp(ctx, w)
	case w.Bucket() == metric.Raw:
		return g.fromSamples(ctx, w)
	}
	return g.fromRollups(ctx, w)
}

// read has the block read from its cache, or from the table below where the cache
// cannot serve. Both count as queries of blocks (invariant 6). That the cache is damaged costs no more
// than that, but is counted and told of.
func (g *grind) read(ctx context.Context, w *cache.Work, reset func(), fromCache, fromTable func() error) error {
	reset()
	err := cache.ErrUseTable
	if w.Fresh() {
		g.tally.blockQueries.Add(1)
		err = fromCache()
	}
	if errors.Is(err, cache.ErrUseTable) {
		if errors.Is(err, storage.ErrCorrupt) {
			g.run.damaged(ctx, w, tableCache, 1, fmt.Errorf("%w; reading the table below instead: slice %s", err, w.Slice))
		}
		reset()
		g.tally.blockQueries.Add(1)
		err = fromTable()
	}
	return err
}

// errTooMany says that a part of a block has more samples than are held at a time.
var errTooMany = errors.New("too many samples at a time")

// fromSamples grinds a block in one, as the cache or the table has it, unless it has more samples than are held at a time.
// Then it reads the table once for each part of the block. A part of one schedule is ground whatever it has: at most one sample
// for each millisecond of the slice, and as much again until duplicates are dropped.
func (g *grind) fromSamples(ctx context.Context, w *cache.Work) error {
	g.rows = g.rows[:0]
	g.grinder.Reset()
	var left damage
	only := w.Schedules()
	for part := w.Block; part.Start < w.Block.End; {
		reset := func() {
			g.samples.Reset(part)
			if only != nil {
				g.samples.Only(only, w.Slice.StartMs, w.Slice.EndMs)
			}
		}
		add := func(chunk []byte) error {
			if err := g.samples.Add(chunk); err != nil {
				return err
			}
			if g.samples.Len() > g.run.opts.Samples && part.Len() > 1 {
				return errTooMany
			}
			return nil
		}
		fromTable := func() error { return g.readRaw(ctx, w, part, add, &left) }
		var err error
		if part == w.Block {
			err = g.read(ctx, w, reset, func() error { return g.run.cache.Load(ctx, w, add) }, fromTable)
		} else {
			reset()
			g.tally.blockQueries.Add(1)
			err = fromTable()
		}
		if errors.Is(err, errTooMany) {
			part.End = part.Start + metric.ScheduleID(part.Len()/2)
			continue
		}
		if err != nil {
			return err
		}
		for id, samples := range g.samples.Series() {
			if r, ok := g.grinder.Samples(samples); ok || w.Late() {
				g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: r})
			}
		}
		// The next part is tried twice as large: one schedule may have had nearly all.
		part = blocks.Range{Start: part.End, End: min(part.End+2*metric.ScheduleID(part.Len()), w.Block.End)}
	}
	if left.n == 0 {
		return g.closeGaps(ctx, w)
	}
	g.run.damaged(ctx, w, tableRaw, left.n,
		fmt.Errorf("%d raw chunks of slice %s were skipped, so the rows of their schedules are partial: %s", left.n, w.Slice, &left))
	size := g.run.store.Settings().GroupSize
	return g.keepFuller(ctx, w, func(id metric.ScheduleID) bool { return slices.Contains(left.groups, blocks.Of(id, size).Start) })
}

// readRaw reads the raw chunks of a part of the block, and leaves out those that are damaged. What the store itself cannot read
// is an error: nobody knows which chunks that are, or how many.
func (g *grind) readRaw(ctx context.Context, w *cache.Work, part blocks.Range, add func(chunk []byte) error, left *damage) error {
	for ch, err := range g.run.store.RawChunks(ctx, part, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read raw samples of block %d: %w", w.Block.Start, err)
		}
		switch err := add(ch.Data); {
		case errors.Is(err, storage.ErrCorrupt):
			left.add(ch.Group, ch.ID, err)
		case err != nil:
			return err
		}
	}
	return nil
}

func (g *grind) fromRollups(ctx context.Context, w *cache.Work) error {
	var left damage
	missing := make(map[metric.ScheduleID]bool)
	if err := g.read(ctx, w, func() { g.rollups.Reset(w.Block) },
		func() error { return g.run.cache.Load(ctx, w, g.rollups.Add) },
		func() error { return g.readRollups(ctx, w, &left, missing) },
	); err != nil {
		return err
	}
	g.rows = g.rows[:0]
	g.grinder.Reset()
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
			fmt.Errorf("%d rows or sketches of rows were skipped in slice %s, so its rows are partial: %s", left.n, w.Slice, &left))
	}
	if len(missing) > 0 {
		if err := g.keepFuller(ctx, w, func(id metric.ScheduleID) bool { return missing[id] }); err != nil {
			return err
		}
	}
	return g.closeGaps(ctx, w)
}

// readRollups reads the block's rows. A damaged row becomes a partial row without samples, since it
// may have had samples, and its schedule is added to missing.
func (g *grind) readRollups(ctx context.Context, w *cache.Work, left *damage, missing map[metric.ScheduleID]bool) error {
	g.rows = g.rows[:0] // scratch, until the block's own rows replace these
	for row, err := range g.run.store.Rollups(ctx, w.Bucket(), w.Block, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read %s rows of block %d: %w", g.run.ladder.Name(w.Bucket()), w.Block.Start, err)
		}
		if row.Damaged {
			row.Rollup = metric.Rollup{Partial: true}
			missing[row.Schedule] = true
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
