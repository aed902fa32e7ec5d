package cache

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/treecheck/invariants"
)

// BlockSamples holds the samples of one block in one raw slice. It is not empty, it is sorted by
// metric.CompareSamples, and no two samples have the same schedule and time.
type BlockSamples struct {
	Slice   metric.Slice
	Block   blocks.Range
	Samples []metric.Sample
}

// check asserts what chunks and marks rely on.
func (g *BlockSamples) check() {
	invariants.Check(len(g.Samples) > 0, "no samples for block %d", g.Block.Start)
	for i, s := range g.Samples {
		invariants.Check(g.Block.Contains(s.Schedule) && g.Slice.Contains(s.TimeMs),
			"schedule %d at %d lies outside block %d of slice %s", s.Schedule, s.TimeMs, g.Block.Start, g.Slice)
		invariants.Check(i == 0 || metric.CompareSamples(g.Samples[i-1], s) < 0,
			"samples of block %d are out of order at %d", g.Block.Start, i)
	}
}

// Writer is ingest's side of the protocol. It remembers which marks this process has written, so
// that a block costs two marks per slice instead of one per flush. It is not safe for concurrent
// use: flushes run one after the other.
//
// A flush takes these steps:
//
//  1. mend writes the chunks of earlier failed flushes again, unless it failed a short time ago.
//     While a block is torn, Flush accepts nothing else for the block.
//  2. begin chooses the marks. The first flush into a block of an open slice writes an open mark.
//     Samples for a slice that is over get a late mark in the current slice.
//  3. encode packs the raw chunks and, unless the slice is over, the cache chunks.
//  4. write stores everything as one batch, in the order slices, marks, chunks. A mark without data
//     costs one empty read. No run grinds data without a mark.
//  5. closeRace checks the clock again. If the slice that samples rely on has closed meanwhile, its
//     run may have missed the mark or the chunk. closeRace puts a late mark first, then deletes the
//     mark in the closed slice.
//  6. succeeded or failed records the outcome of each block. The chunks of a failed one stay in torn
//     for step 1, and its mark stays open, so that the run reads the raw table.
//
// When the slice has closed, Seal replaces the open marks by fresh ones with the number of cache
// chunks.
type Writer struct {
	cache     *Cache
	groupSize int

	// written holds what this process has written to the index of each slice, by the start of the
	// slice. Seal, or the next flush once the run is due, removes the entry. A mark in that index
	// covers all data that reaches the raw table before the slice's run begins.
	written map[int64]*written
	// torn holds the chunks that failed flushes may have left on some copies of the raw table. A
	// repair or a hint may bring them to light at any later time. Flush or Settle writes them again
	// before anything else (see mend).
	torn map[blockKey]*torn
	// tornBytes is the size of torn; see torn.bytes.
	tornBytes int
	// rest is the pause after an attempt to mend that left blocks torn.
	rest pause
	// stray are marks in slices that are over, still to be deleted. Other marks lead a run to the
	// same work. Flushes try again after strayRest, the pause after a failed attempt.
	stray     []storage.PlacedMark
	strayRest pause
}

// NewWriter returns the writer of one ingest process.
func NewWriter(c *Cache) *Writer {
	return &Writer{
		cache:     c,
		groupSize: c.store.Settings().GroupSize,
		written:   make(map[int64]*written),
		torn:      make(map[blockKey]*torn),
	}
}

type blockKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

func (k blockKey) compare(o blockKey) int {
	return cmp.Or(cmp.Compare(k.sliceMs, o.sliceMs), cmp.Compare(k.start, o.start))
}

// written is what this process has written to the index of one slice.
type written struct {
	// begun: the slice's run has begun, whatever the clock says. The run may have missed the marks in
	// open and late, so catchUp puts late ones.
	begun bool
	open  map[metric.ScheduleID]*openBlock
	late  map[blockKey]lateRow
	// named is the number of schedules that the rows of late name together.
	named int
}

// openBlock is a block that this process has marked as open.
type openBlock struct {
	mark   blocks.ID
	chunks int
	// torn: a flush failed, and what it left in the cache is unknown. The mark stays open.
	torn bool
}

// lateRow is the one late mark that this process keeps per block of a closed slice in the index of
// an open slice. When other schedules of the block come late, the writer writes the mark again
// under the same id. That is safe until the slice whose index holds it closes: no run has read the
// mark yet.
type lateRow struct {
	id        blocks.ID
	schedules []metric.ScheduleID // sorted; empty means the whole block
}

// maxNamed is the maximum number of schedules that a late mark names. A mark with more stands for
// the whole block. The run then recomputes unchanged rows, but ingest does not rewrite
// the mark for each schedule.
const maxNamed = 32

// maxRememberedLate is the number of late marks per slice, in blocks plus schedules, from which the next
// flush forgets them and writes new marks, which costs only rows.
const maxRememberedLate = 1 << 18

// in returns what this process has written to the index of a slice, nil for a closed slice that it
// does not remember. On the first call for a slice, in asks the store whether its run has begun.
func (w *Writer) in(ctx context.Context, s metric.Slice, nowMs int64) (*written, error) {
	x := w.written[s.StartMs]
	if x != nil || w.cache.timing.Closed(s, nowMs) {
		return x, nil
	}
	begun, err := w.cache.begun(ctx, metric.Raw, s)
	if err != nil {
		return nil, err
	}
	x = &written{
		begun: begun,
		open:  make(map[metric.ScheduleID]*openBlock),
		late:  make(map[blockKey]lateRow),
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
func (x *written) unmarked(m storage.Mark) (storage.Mark, bool) {
	known, ok := x.late[blockKey{m.TimeMs, m.Start}]
	if !ok {
		return m, true
	}
	all := storage.Mark{Start: m.Start, TimeMs: m.TimeMs, ID: known.id, Kind: storage.MarkLate, Schedules: known.schedules}
	widen(&all, m.Schedules)
	return all, len(all.Schedules) != len(known.schedules)
}

// remember records late marks that the slice's index now holds.
func (x *written) remember(placed []storage.PlacedMark) {
	for _, m := range placed {
		k := blockKey{m.TimeMs, m.Start}
		x.named += len(m.Schedules) - len(x.late[k].schedules)
		x.late[k] = lateRow{m.ID, m.Schedules}
	}
}

// makeRoom forgets the late marks in the index of slice s if there are too many, and if they are there for the
// slice's run to read. If the run has begun, catchUp needs them.
func (w *Writer) makeRoom(ctx context.Context, s metric.Slice, x *written) error {
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

// drop forgets a mark of marksIn.
func (x *written) drop(m storage.PlacedMark) {
	if m.Kind == storage.MarkOpen {
		delete(x.open, m.Start)
		return
	}
	k := blockKey{m.TimeMs, m.Start}
	x.named -= len(x.late[k].schedules)
	delete(x.late, k)
}

// forget drops the entries of slices whose run is due. It asks the store first: a run that
// has not begun will read all marks. One that has may have begun long before the slice was over;
// then catchUp needs the entry. forget keeps an entry if the store does not answer.
func (w *Writer) forget(ctx context.Context, nowMs int64) {
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		s, x := w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]
		if w.cache.timing.Due(s, nowMs) && w.lookAt(ctx, s, x) == nil && !x.overtaken() {
			delete(w.written, start)
		}
	}
}
