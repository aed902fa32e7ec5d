package rollup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
)

// giveUp makes the rows of g those that say that the work's input has expired before it was ground: of all that it asks
// for. They are passed on like any others, and so every coarser row says it too, also when it is ground once more.
func (g *grind) giveUp(ctx context.Context, w *cache.Work) error {
	g.rows = g.rows[:0]
	return g.keepFuller(ctx, w, func(metric.ScheduleID) bool { return true })
}

// keepFuller makes the rows of g, which were ground without some of the block's input, those to be stored. It is about
// the schedules that touched says may have had something there: which of them did cannot be told.
//
//   - The rows of all of them are partial.
//   - Where the row that is stored has more samples, it stays, and is partial from now on: what was read of it once is
//     not given up for what can be read now, and what came since may be missing from it.
//   - None takes an old row back: that no samples can be read does not say that there are none.
//   - Where there is no row to say so, one without samples does. Readers pass over it, and the rows above are partial by it.
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

// closeGaps adds the zero rows of schedules that late work names and that have no input, all of which could be read: where a
// row only says that there may have been some, and of those to be taken back, which tells the rows above too.
func (g *grind) closeGaps(ctx context.Context, w *cache.Work) error {
	without := make(map[metric.ScheduleID]bool)
	for _, m := range w.Marks {
		for _, id := range m.Schedules {
			without[id] = true
		}
	}
	for i := range g.rows {
		delete(without, g.rows[i].Schedule)
	}
	if len(without) == 0 {
		return nil
	}
	stored, err := g.stored(ctx, w)
	if err != nil {
		return err
	}
	takesBack := w.TakesBack()
	for id := range without {
		was, there := stored[id]
		_, back := slices.BinarySearch(takesBack, id)
		if back || there && was.Count == 0 && was.Partial {
			g.rows = append(g.rows, metric.RollupRow{Schedule: id, TimeMs: w.Slice.StartMs})
		}
	}
	g.sort()
	return nil
}

func (g *grind) sort() {
	slices.SortFunc(g.rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
}

// stored are the rows that the work is about, as they are. One that is damaged may have had samples.
func (g *grind) stored(ctx context.Context, w *cache.Work) (map[metric.ScheduleID]metric.Rollup, error) {
	level := w.Bucket() + 1
	out := make(map[metric.ScheduleID]metric.Rollup)
	g.tally.blockQueries.Add(1)
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

// schedules are those that the work asks for: where it is the whole block, all that are registered in it or have a row.
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
