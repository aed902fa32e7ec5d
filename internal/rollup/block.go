package rollup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// grind is a workplace: the scratch memory in which blocks are ground one after the other.
type grind struct {
	run     *run
	lease   *shards.Lease // of the block's shard
	samples blocks.SampleSet
	rollups blocks.RollupSet
	grinder Grinder
	rows    []metric.RollupRow
}

// block grinds one block, or gives the block up if its input has expired. Each step may be
// repeated, and the marks are deleted last: if block ends early, the next run does the same again.
// Before each write it checks that this worker still holds the shard.
func (g *grind) block(ctx context.Context, w *cache.Work, expired bool) error {
	if err := g.compute(ctx, w, expired); err != nil {
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
		if err := g.run.cache.Promote(ctx, g.lease.Fence, w, g.rows, g.run.next); err != nil {
			return fmt.Errorf("pass block %d on to the next bucket: %w", w.Block.Start, err)
		}
	}
	if err := g.lease.Check(); err != nil {
		return err
	}
	if err := g.run.cache.Done(ctx, g.lease.Fence, w); err != nil {
		return err
	}
	if expired {
		g.run.dropped.Add(int64(len(w.Marks)))
		return nil
	}
	g.run.blocks.Add(1)
	g.run.schedules.Add(int64(len(g.rows)))
	if w.Late() && w.Slice.StartMs != w.Partition.StartMs { // otherwise these are the first rows of the slice
		g.run.late.Add(int64(len(g.rows)))
		if w.Bucket() == metric.Raw {
			g.run.cameLate(w)
		}
	}
	return nil
}

// compute fills g.rows with the block's rows. A schedule that may have had a row, but has no finite
// sample left, gets a zero row. The zero row takes the old row back: it means "no data", and
// readers skip it.
func (g *grind) compute(ctx context.Context, w *cache.Work, expired bool) error {
	if n := w.Damaged(); n > 0 {
		g.run.damaged(ctx, w, tableIndex, n, fmt.Errorf(
			"%d marks of slice %s are damaged and count for the whole block; rows that they would take back stay", n, w.Slice))
	}
	switch {
	case expired:
		return g.giveUp(ctx, w)
	case w.Bucket() == metric.Raw:
		return g.fromSamples(ctx, w)
	}
	return g.fromRollups(ctx, w)
}

// input is what a block is ground from: raw samples, or rows of the level below.
type input interface {
	// reset drops what was added, and limits what comes to a part of the block.
	reset(part blocks.Range)
	// add adds a chunk of the block's cache.
	add(chunk storage.Chunk) error
	// addTable adds what the table has of the part.
	addTable(ctx context.Context, part blocks.Range) error
}

// read reads the input of a part of a block from the block's cache, or from the table if the cache
// cannot serve. Only the whole block is in the cache. Both count as queries of blocks (invariant 6).
func (g *grind) read(ctx context.Context, w *cache.Work, part blocks.Range, in input) error {
	in.reset(part)
	err := cache.ErrUseTable
	if w.Fresh() && part == w.Block && g.run.trusts {
		g.run.blockQueries.Add(1)
		err = g.run.cache.Load(ctx, w, in.add)
	}
	if !errors.Is(err, cache.ErrUseTable) {
		return err
	}
	if errors.Is(err, storage.ErrCorrupt) {
		g.run.damaged(ctx, w, tableCache, 1, fmt.Errorf("%w; reading the table below instead: slice %s", err, w.Slice))
	}
	in.reset(part)
	g.run.blockQueries.Add(1)
	return in.addTable(ctx, part)
}

// errTooMany says that a part of a block has more samples than are held at a time.
var errTooMany = errors.New("too many samples at a time")

// sampleInput is the raw samples of a block.
type sampleInput struct {
	*grind

	work *cache.Work
	only []metric.ScheduleID
	// most is how many samples it holds at a time.
	most int
	left damage
}

func (in *sampleInput) reset(part blocks.Range) {
	in.samples.Reset(part)
	if in.only != nil {
		in.samples.Only(in.only, in.work.Slice.StartMs, in.work.Slice.EndMs)
	}
	in.most = in.run.opts.Samples
	if part.Len() == 1 { // cannot be made smaller
		in.most = math.MaxInt
	}
}

func (in *sampleInput) add(chunk storage.Chunk) error {
	return in.few(in.samples.Add(chunk.Data))
}

// few returns err, or errTooMany if the samples are too many.
func (in *sampleInput) few(err error) error {
	if err == nil && in.samples.Len() > in.most {
		return errTooMany
	}
	return err
}

// addTable skips damaged chunks. An error of the store itself stays an error: nobody knows which
// chunks it concerns, or how many.
func (in *sampleInput) addTable(ctx context.Context, part blocks.Range) error {
	for ch, err := range in.run.store.RawChunks(ctx, part, in.work.Slice.StartMs, in.work.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read raw samples of block %d: %w", in.work.Block.Start, err)
		}
		switch err := in.few(in.samples.Add(ch.Data)); {
		case errors.Is(err, storage.ErrCorrupt):
			in.left.add(ch.Group, ch.ID, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// fromSamples grinds a block from its raw samples: as a whole, or part by part if it has more
// samples than are held at a time. A part of one schedule has at most one sample for each
// millisecond of the slice, and as much again until duplicates are dropped.
func (g *grind) fromSamples(ctx context.Context, w *cache.Work) error {
	g.rows = g.rows[:0]
	g.grinder.Reset()
	in := &sampleInput{grind: g, work: w, only: w.Schedules()}
	for part := w.Block; part.Start < w.Block.End; {
		err := g.read(ctx, w, part, in)
		if errors.Is(err, errTooMany) {
			part.End = part.Start + metric.ScheduleID(part.Len()/2)
			continue
		}
		if err != nil {
			return err
		}
		for id, samples := range g.samples.Series() {
			if r, ok := g.grinder.Samples(samples); ok || r.NonFinite || w.Late() {
				g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: r})
			}
		}
		// The next part is tried twice as large: one schedule may have had nearly all.
		part = blocks.Range{Start: part.End, End: min(part.End+2*metric.ScheduleID(part.Len()), w.Block.End)}
	}
	left := &in.left
	if left.n == 0 {
		return g.closeGaps(ctx, w)
	}
	g.run.damaged(ctx, w, tableRaw, left.n,
		fmt.Errorf("%d raw chunks or columns of slice %s were skipped, so the rows of their schedules are partial: %s", left.n, w.Slice, left))
	size := g.run.store.Settings().GroupSize
	return g.keepFuller(ctx, w, func(id metric.ScheduleID) bool { return left.concerns(id, size) })
}

// rowInput is the rows of the level below a block's own rows.
type rowInput struct {
	*grind

	work *cache.Work
	left damage
	// missing are the schedules of damaged rows.
	missing map[metric.ScheduleID]bool
}

func (in *rowInput) reset(part blocks.Range) { in.rollups.Reset(part) }

func (in *rowInput) add(chunk storage.Chunk) error { return in.rollups.Add(chunk.Data) }

// addTable adds a damaged row as a partial row without samples, since it may have had samples.
func (in *rowInput) addTable(ctx context.Context, part blocks.Range) error {
	w := in.work
	in.rows = in.rows[:0] // scratch, until the block's own rows replace these
	for row, err := range in.run.store.Rollups(ctx, w.Bucket(), part, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read %s rows of block %d: %w", in.run.ladder.Name(w.Bucket()), w.Block.Start, err)
		}
		if row.Damaged {
			row.Rollup = metric.Rollup{Partial: true}
			in.missing[row.Schedule] = true
			if asked(w.Schedules(), row.Schedule) {
				in.left.name(fmt.Sprintf("the %s row of schedule %d at %d", in.run.ladder.Name(w.Bucket()), row.Schedule, row.TimeMs))
			}
		}
		in.rows = append(in.rows, row)
	}
	in.rollups.AddRows(in.rows)
	return nil
}

// fromRollups grinds a block from the rows of the level below.
func (g *grind) fromRollups(ctx context.Context, w *cache.Work) error {
	in := &rowInput{grind: g, work: w, missing: make(map[metric.ScheduleID]bool)}
	if err := g.read(ctx, w, w.Block, in); err != nil {
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
			in.left.name(err.Error())
		}
		if ok || r.Partial || r.NonFinite || w.Late() {
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: r})
		}
	}
	if left := &in.left; left.n > 0 {
		g.run.damaged(ctx, w, tableRollups, left.n,
			fmt.Errorf("%d rows or sketches of rows were skipped in slice %s, so its rows are partial: %s", left.n, w.Slice, left))
	}
	if len(in.missing) > 0 {
		if err := g.keepFuller(ctx, w, func(id metric.ScheduleID) bool { return in.missing[id] }); err != nil {
			return err
		}
	}
	return g.closeGaps(ctx, w)
}

// asked reports whether only, which is sorted, names the schedule; nil names all.
func asked(only []metric.ScheduleID, id metric.ScheduleID) bool {
	if only == nil {
		return true
	}
	_, ok := slices.BinarySearch(only, id)
	return ok
}
