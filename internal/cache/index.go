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
	// begun: the slice's run has begun, whatever the clock says. The run may have missed the marks, so catchUp puts late ones.
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

// look asks the store again which remembered slices have a run that has begun: the clock of another
// process may be ahead of this one's, or this one's may have been. It returns, by start, the error for
// each slice that the store cannot answer for.
func (w *Writer) look(ctx context.Context) (away map[int64]error) {
	away = make(map[int64]error)
	for _, start := range sortedKeys(w.written) {
		if err := w.lookAt(ctx, w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]); err != nil {
			away[start] = err
		}
	}
	return away
}

func (w *Writer) lookAt(ctx context.Context, s metric.Slice, x *index) (err error) {
	if !x.begun {
		x.begun, err = w.cache.begun(ctx, metric.Raw, s)
	}
	return err
}

// overtaken reports whether a run of the slice began while its index held marks of this process.
func (x *index) overtaken() bool { return x.begun && len(x.blocks)+len(x.late) > 0 }

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

// drop forgets a mark of marksIn.
func (x *index) drop(m storage.PlacedMark) {
	if m.Kind == storage.MarkOpen {
		delete(x.blocks, m.Start)
		return
	}
	k := blockKey{m.TimeMs, m.Start}
	x.named -= len(x.late[k].schedules)
	delete(x.late, k)
}

// marksIn returns the marks of this process in the index of a slice: those of its blocks, and late ones.
func (w *Writer) marksIn(s metric.Slice, x *index) (out []storage.PlacedMark) {
	for _, start := range sortedKeys(x.blocks) {
		out = append(out, w.cache.blockMark(storage.MarkOpen, metric.Raw, s, start, x.blocks[start].mark, 0))
	}
	for _, k := range slices.SortedFunc(maps.Keys(x.late), blockKey.compare) {
		m := storage.Mark{Start: k.start, TimeMs: k.sliceMs, ID: x.late[k].id, Kind: storage.MarkLate, Schedules: x.late[k].schedules}
		out = append(out, w.cache.place(metric.Raw, s, []storage.Mark{m}, 0)...)
	}
	return out
}

// makeRoom forgets the late marks in the index of slice s if there are too many, and if they are there for the
// slice's run to read. If the run has begun, catchUp needs them.
func (w *Writer) makeRoom(ctx context.Context, s metric.Slice) error {
	x := w.written[s.StartMs]
	if len(x.late)+x.named < maxRememberedLate {
		return nil
	}
	if err := w.lookAt(ctx, s, x); err != nil || x.begun {
		return err
	}
	clear(x.late)
	x.named = 0
	return nil
}

// forget drops the entries of slices whose run is due. It asks the store first: a run that
// has not begun will read all marks. One that has may have begun long before the slice was over;
// then catchUp needs the entry. forget keeps an entry if the store does not answer.
func (w *Writer) forget(ctx context.Context, nowMs int64) {
	for _, start := range sortedKeys(w.written) {
		s, x := w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]
		if w.cache.timing.Due(s, nowMs) && w.lookAt(ctx, s, x) == nil && !x.overtaken() {
			delete(w.written, start)
		}
	}
}
