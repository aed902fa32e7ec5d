package rollup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// giveUp fills g.rows with rows that say that the input of the work has expired before it was
// ground: one for each schedule that the work asks for. Promote hands them on like other rows, so
// every coarser row becomes partial too, and stays so when it is ground again.
func (g *grind) giveUp(ctx context.Context, w *cache.Work) error {
	g.rows = g.rows[:0]
	return g.keepFuller(ctx, w, func(metric.ScheduleID) bool { return true })
}

// keepFuller decides which rows to store when some of the block's input could not be read. touched
// reports whether a schedule may have had samples in that input; nobody can tell for sure.
//
//   - The rows of all touched schedules are partial.
//   - A stored row with more samples stays and becomes partial. It keeps what was read once, and may
//     lack samples that came since.
//   - No old row is taken back: samples that cannot be read may still exist.
//   - A schedule without a row gets a partial row without samples. Readers skip it, and the rows above
//     become partial.
func (g *grind) keepFuller(ctx context.Context, w *cache.Work, touched func(metric.ScheduleID) bool) error {
	stored, err := g.stored(ctx, w)
	if err != nil {
		return err
	}
	concerned, err := g.schedules(ctx, w, stored)
	if err != nil {
		return err
	}
	ground := make(map[metric.ScheduleID]bool, len(g.rows))
	for i := range g.rows {
		row := &g.rows[i]
		ground[row.Schedule] = true
		if !touched(row.Schedule) {
			continue
		}
		if was := stored[row.Schedule]; was.Count > row.Count {
			row.Rollup = was
		}
		row.Partial = true
	}
	for _, id := range concerned {
		if !ground[id] && touched(id) {
			row := metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs, Rollup: stored[id]}
			row.Partial = true
			g.rows = append(g.rows, row)
		}
	}
	g.sort()
	return nil
}

// closeGaps adds zero rows for schedules that late work asks for and that have no input, although all
// input could be read. Only two kinds of schedule get one: those whose stored row is partial
// without samples, and those that a mark takes back. The rows above hear of it through the zero
// row.
func (g *grind) closeGaps(ctx context.Context, w *cache.Work) error {
	has := make(map[metric.ScheduleID]bool, len(g.rows))
	for i := range g.rows {
		has[g.rows[i].Schedule] = true
	}
	named, all := make(map[metric.ScheduleID]bool), false
	for _, m := range w.Marks {
		for _, id := range m.Schedules {
			if !has[id] {
				named[id] = true
			}
		}
		all = all || len(m.Schedules) == 0 && m.Kind == storage.MarkLate
	}
	if len(named) == 0 && !all {
		return nil
	}
	stored, err := g.stored(ctx, w)
	if err != nil {
		return err
	}
	for id, was := range stored {
		if !has[id] && was.Count == 0 && was.Partial && (all || named[id]) {
			has[id] = true
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs})
		}
	}
	for _, id := range w.TakesBack() {
		if !has[id] {
			has[id] = true
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs})
		}
	}
	g.sort()
	return nil
}

func (g *grind) sort() {
	slices.SortFunc(g.rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
}

// stored returns the stored rows that the work may replace, by schedule. A damaged row counts as
// partial without samples.
func (g *grind) stored(ctx context.Context, w *cache.Work) (map[metric.ScheduleID]metric.Rollup, error) {
	level := w.Bucket() + 1
	out := make(map[metric.ScheduleID]metric.Rollup)
	g.run.blockQueries.Add(1)
	for row, err := range g.run.store.Rollups(ctx, level, w.Block, w.Slice.StartMs, w.Slice.StartMs+1) {
		if err != nil {
			return nil, fmt.Errorf("read %s rows of block %d: %w", g.run.ladder.Name(level), w.Block.Start, err)
		}
		if row.Damaged {
			row.Rollup = metric.Rollup{Partial: true}
		}
		out[row.Schedule] = row.Rollup
	}
	return out, nil
}

// schedules returns the schedules that the work asks for. If it asks for the whole block, these are
// all schedules that are registered in the block or have a row.
func (g *grind) schedules(ctx context.Context, w *cache.Work, stored map[metric.ScheduleID]metric.Rollup) ([]metric.ScheduleID, error) {
	if only := w.Schedules(); only != nil {
		return only, nil
	}
	only := slices.Collect(maps.Keys(stored))
	for s, err := range g.run.store.Schedules(ctx, w.Block) {
		if err != nil {
			return nil, fmt.Errorf("read the series of block %d: %w", w.Block.Start, err)
		}
		only = append(only, s.ID)
	}
	slices.Sort(only)
	return slices.Compact(only), nil
}
