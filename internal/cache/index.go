package cache

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

type blockKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

func (k blockKey) compare(o blockKey) int {
	return cmp.Or(cmp.Compare(k.sliceMs, o.sliceMs), cmp.Compare(k.start, o.start))
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// index is what this process has written to the index of one slice.
type index struct {
	// begun: the slice's run had begun when the store was asked, whatever the clock says. A clock that is ahead by so much that a
	// run begins later, and before the slice is over, is refused.
	begun  bool
	blocks map[metric.ScheduleID]*block
	late   map[blockKey]lateRow
	// named is the number of schedules that the rows of late name together.
	named int
}

// lateRow is the one late mark that this process keeps per block of a closed slice in the index of
// an open slice. When other schedules of the block come late, the writer writes the mark again
// under the same id. That is safe until the slice whose index holds it closes: no run has read the
// mark yet.
type lateRow struct {
	id        blocks.ID
	schedules []metric.ScheduleID // sorted; empty means the whole block
}

// maxRememberedLate is the number of late marks per slice, in blocks plus schedules, from which the next
// flush forgets them and writes new marks, which costs only rows.
const maxRememberedLate = 1 << 18

// index returns what this process has written to the index of a slice, nil for a closed slice that it
// does not remember. On the first call for a slice, it asks the store whether its run has begun.
func (w *Writer) index(ctx context.Context, s metric.Slice, nowMs int64) (*index, error) {
	x := w.written[s.StartMs]
	if x != nil || w.cache.timing.Closed(s, nowMs) {
		return x, nil
	}
	begun, err := w.cache.begun(ctx, metric.Raw, s)
	if err != nil {
		return nil, err
	}
	x = &index{
		begun:  begun,
		blocks: make(map[metric.ScheduleID]*block),
		late:   make(map[blockKey]lateRow),
	}
	w.written[s.StartMs] = x
	return x, nil
}

// over says whether the slice is closed or its run has begun.
func (w *Writer) over(s metric.Slice, nowMs int64) bool {
	x := w.written[s.StartMs]
	return w.cache.timing.Closed(s, nowMs) || x != nil && x.begun
}

// unmarked merges m with the late mark that this process has already put for the block, under that
// mark's id, so that writing it replaces the old row. It returns false if m adds no schedule.
func (x *index) unmarked(m storage.Mark) (storage.Mark, bool) {
	known, ok := x.late[blockKey{m.TimeMs, m.Start}]
	if !ok {
		return m, true
	}
	all := storage.Mark{Start: m.Start, TimeMs: m.TimeMs, ID: known.id, Kind: storage.MarkLate, Schedules: known.schedules}
	widen(&all, m.Schedules)
	return all, len(all.Schedules) != len(known.schedules)
}

// remember records a late mark that the slice's index now holds.
func (x *index) remember(m storage.PlacedMark) {
	k := blockKey{m.TimeMs, m.Start}
	x.named += len(m.Schedules) - len(x.late[k].schedules)
	x.late[k] = lateRow{m.ID, m.Schedules}
}

// makeRoom forgets the late marks in the slice's index if there are too many. They are there for the slice's run to read.
func (x *index) makeRoom() {
	if len(x.late)+x.named >= maxRememberedLate {
		clear(x.late)
		x.named = 0
	}
}

// forget drops the entries of slices whose run is due: the run reads all marks. If the clock is set back then, the store is asked
// again.
func (w *Writer) forget(nowMs int64) {
	maps.DeleteFunc(w.written, func(start int64, _ *index) bool {
		return w.cache.timing.Due(w.cache.ladder.SliceAt(metric.Raw, start), nowMs)
	})
}
