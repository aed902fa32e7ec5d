package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
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
// A flush takes the steps of docs/protocol.md, each with all blocks that have not failed before:
//
//  0. writeAgain stores what earlier flushes have failed to store, unless that failed a short time ago. A block of which
//     something is missing takes nothing else.
//  1. begin and mark ask the store which runs have begun, and choose a mark for each block. The first flush into a block of an
//     open slice puts an open mark. Samples for a slice that is over get a late mark in the current slice.
//  2. encode packs raw chunks and, unless the slice is over, cache chunks. write stores all as one batch, in the order slices,
//     marks, chunks: a mark without data costs an empty read, and data without a mark is never ground. What fails may be there
//     in part.
//  3. closing looks at the clock again. Where a slice has closed meanwhile, its run may have missed the mark or the chunk, so it
//     puts a late mark. A block for which it cannot has failed. Then it deletes the marks in closed slices. If that fails
//     they stay, and lead to work that is done.
//
// record remembers the outcome: the marks that are there, the number of chunks in each cache, and of a failed block that it is
// broken, and its chunks for step 0 of the next flush.
//
// When the slice has closed, Seal seals its blocks.
type Writer struct {
	cache     *Cache
	groupSize int

	// written holds what this process has written to the index of each slice, by the start of the
	// slice. Seal, or the next flush once the run is due, removes the entry. A mark in that index
	// covers all data that reaches the raw table before the slice's run begins.
	written map[int64]*index
	// retries holds what failed flushes may have left on some copies of the raw table. retryBytes is its size.
	retries    map[blockKey]*retry
	retryBytes int
	// rest is the pause after an attempt to write again that left something.
	rest pause
}

// NewWriter returns the writer of one ingest process.
func NewWriter(c *Cache) *Writer {
	return &Writer{
		cache:     c,
		groupSize: c.store.Settings().GroupSize,
		written:   make(map[int64]*index),
		retries:   make(map[blockKey]*retry),
	}
}

// BlocksError says that some blocks of a flush are durable and others are not.
type BlocksError struct {
	// Failed are the indexes, in the flush, of the BlockSamples that are not durable, ascending.
	Failed []int
	// Errs are the causes, in the order of Failed. Samples whose cause is storage.ErrRefused are
	// dropped: they are not written again.
	Errs []error
}

// Error implements error.
func (e *BlocksError) Error() string {
	return fmt.Sprintf("%d blocks not written: %s", len(e.Failed), e.Errs[0])
}

// Unwrap returns the causes.
func (e *BlocksError) Unwrap() []error { return e.Errs }

var (
	// errWaits says that the chunks of an earlier failed flush come first, and cannot be written now.
	errWaits = fmt.Errorf("%w: an earlier write of the block failed and cannot be repeated yet", storage.ErrUnavailable)
	// errUnmarked says that a block waits because the store refuses its late mark.
	errUnmarked = fmt.Errorf("%w: the block cannot be marked", storage.ErrUnavailable)
	// errStale is the error of flushes at a place that took longer than maxFlush.
	errStale = fmt.Errorf("%w: %w", storage.ErrTimeout, blocks.ErrStale)
)

// maxFlush is the time in which chunks must be durable, from when their ids were drawn.
const maxFlush = 30 * time.Second

// unit is one block of a flush. It is stored or fails by itself.
type unit struct {
	// BlockSamples has no samples if the unit is written again: then it stands for the whole block.
	BlockSamples
	again *retry
	// late: the slice was over when the flush began, so the unit relies on a mark in the current slice, not in its own.
	late bool
	// marks has the mark that the flush puts for the unit, if it needs one.
	marks  []storage.PlacedMark
	raw    []storage.RawChunk
	cached []storage.CacheChunk

	// err says why the samples are not durable. tried: they may be there all the same.
	err   error
	tried bool
	// refused: the store has refused some chunks for good. The others are stored, and none is in doubt.
	refused bool
	// lost: chunks are to be written again, or the block to be marked.
	lost bool
}

func (u *unit) key() blockKey { return blockKey{u.Slice.StartMs, u.Block.Start} }

// flush is the state of one flush.
type flush struct {
	startedMs int64         // by a clock that the store has confirmed, since ids are drawn at it
	began     time.Duration // by clock.Clock.Elapsed
	// at is the place of the chunks' ids; nil if they are drawn at startedMs.
	at *blocks.Place
	// current is the slice that late marks go into.
	current metric.Slice
	// away holds, by its start, the error of each slice whose state the store cannot tell. The states of different days lie in
	// different partitions.
	away  map[int64]error
	units []*unit
	// checkedMs is the time at which closing looked at the clock.
	checkedMs int64
}

// Flush makes the samples durable, together with the marks that lead a run to them. It returns nil only
// if all samples are durable. A *BlocksError names the blocks whose samples are not; any other error
// concerns all of them.
//
// After an error, any part of the failed samples may have been written. No roll-up relies on a cache
// that may lack that part. A later Flush or Settle writes that part again (see writeAgain). Until then Flush
// accepts nothing else for the block, so memory holds at most one flush of each block and slice.
// Samples that the store has refused for good are dropped, and not written again.
func (w *Writer) Flush(ctx context.Context, samples []BlockSamples) error {
	return w.FlushAt(ctx, samples, nil)
}

// FlushAt is Flush for samples that count as written when the place was taken: of two samples with the same schedule and
// time, one that was flushed since stays. nil is the place of a Flush.
func (w *Writer) FlushAt(ctx context.Context, samples []BlockSamples, at *blocks.Place) error {
	if invariants.Enabled {
		for _, g := range samples {
			g.check()
		}
	}
	if w.retriesFirst(samples) {
		// What cannot be written to some blocks holds up no others.
		if err := w.writeAgain(ctx); err != nil && (ctx.Err() != nil || w.retryBytes >= mostRetryBytes) {
			return err
		}
	}
	f, err := w.begin(ctx, at)
	if err != nil {
		return err
	}
	waits := w.waiting()
	for _, g := range samples {
		u := &unit{BlockSamples: g}
		if waits(u.key()) {
			u.err = errWaits
		}
		f.units = append(f.units, u)
	}
	w.store(ctx, f)
	if w.overtaken(f) {
		return w.FlushAt(ctx, samples, nil)
	}
	return f.outcome()
}

// overtaken reports whether a flush took so long that another process may have packed chunks with greater ids. Then
// its samples, which have come after that, must be written again with new ids. A store with one writer has no greater ids.
func (w *Writer) overtaken(f *flush) bool {
	return f.at == nil && w.age(f) > maxFlush && w.cache.store.NewestID() == (blocks.ID{}) &&
		slices.ContainsFunc(f.units, func(u *unit) bool { return u.err == nil })
}

// outcome returns the error of the flush.
func (f *flush) outcome() error {
	e := &BlocksError{}
	for i, u := range f.units {
		if u.err != nil {
			e.Failed, e.Errs = append(e.Failed, i), append(e.Errs, u.err)
		}
	}
	if len(e.Failed) == 0 {
		return nil
	}
	return e
}

func (w *Writer) begin(ctx context.Context, at *blocks.Place) (*flush, error) {
	f := &flush{at: at, began: w.cache.clk.Elapsed(), away: make(map[int64]error)}
	var err error
	if f.startedMs, err = w.cache.confirmedMs(ctx); err != nil {
		return nil, err
	}
	if w.stale(f) {
		return nil, errStale
	}
	w.forget(ctx, f.startedMs)
	f.current, err = w.cache.current(metric.Raw, f.startedMs, func(s metric.Slice) (bool, error) {
		x, err := w.index(ctx, s, f.startedMs)
		return err == nil && x.begun, err
	})
	if err != nil {
		return nil, err
	}
	return f, w.makeRoom(ctx, f.current)
}

// store makes the units durable that have no error yet. Those that are not durable then have one.
func (w *Writer) store(ctx context.Context, f *flush) {
	for _, u := range f.units {
		if u.err == nil {
			u.err = w.mark(ctx, f, u)
		}
	}
	w.encode(f)
	w.write(ctx, f)
	w.closing(ctx, f)
	for _, u := range f.units {
		if u.tried {
			w.record(f, u)
		}
	}
}

// mark chooses the unit's mark. The error is that the store cannot tell the state of its slice.
func (w *Writer) mark(ctx context.Context, f *flush, u *unit) error {
	if err := f.away[u.Slice.StartMs]; err != nil {
		return err
	}
	x, err := w.index(ctx, u.Slice, f.startedMs)
	if err != nil {
		f.away[u.Slice.StartMs] = err
		return err
	}
	u.late = w.over(u.Slice, f.startedMs)
	in, m := u.Slice, storage.Mark{}
	if u.late {
		in = f.current
		var add bool
		if m, add = w.written[in.StartMs].unmarked(lateMark(&u.BlockSamples)); !add {
			return nil
		}
	} else {
		if x.blocks[u.Block.Start] != nil {
			return nil
		}
		m = storage.Mark{Start: u.Block.Start, TimeMs: u.Slice.StartMs, Kind: storage.MarkOpen}
	}
	if m.ID == (blocks.ID{}) && u.again != nil {
		m.ID = u.again.id(w.cache.partition(metric.Raw, in, m.Start))
	}
	u.marks = w.cache.place(metric.Raw, in, []storage.Mark{m}, f.startedMs)
	return nil
}

// write stores the units as one batch. A store may tell them apart.
func (w *Writer) write(ctx context.Context, f *flush) {
	var b storage.Batch
	var tried []*unit
	for _, u := range f.units {
		if u.err != nil {
			continue
		}
		u.tried = true
		tried = append(tried, u)
		b.Marks, b.Raw, b.Cache = append(b.Marks, u.marks...), append(b.Raw, u.raw...), append(b.Cache, u.cached...)
		b.Parts = append(b.Parts, storage.Part{Marks: len(u.marks), Raw: len(u.raw), Cache: len(u.cached)})
	}
	if len(tried) == 0 {
		return
	}
	b.Open = slicesOf(b.Marks)
	err := w.cache.store.Write(ctx, &b)
	var some *storage.PartsError
	if errors.As(err, &some) {
		err = nil
		for i, part := range some.Failed {
			u := tried[part]
			u.err = some.Errs[i]
			// A refusal of what is written again says nothing of the first attempt, unless that was refused too.
			u.refused = (u.again == nil || len(u.raw) == 0) && errors.Is(u.err, storage.ErrRefused)
			u.lost = !u.refused
		}
	}
	for _, u := range tried {
		if u.late {
			w.cache.onLate(u.marks)
		}
		if err != nil {
			u.err, u.lost = err, true
		}
	}
}

// record remembers what has become of a unit that was written.
func (w *Writer) record(f *flush, u *unit) {
	x := w.written[u.Slice.StartMs] // nil if the slice was closed long ago
	if u.lost {
		if x != nil && x.blocks[u.Block.Start] != nil {
			x.blocks[u.Block.Start].state = broken
		}
		w.failed(u)
		return
	}
	if u.again != nil {
		w.retryBytes -= u.again.bytes()
		delete(w.retries, u.key())
	}
	if len(u.marks) > 0 && !u.refused && !w.over(f.slice(u), f.checkedMs) {
		if u.late {
			w.written[f.current.StartMs].remember(u.marks[0])
		} else {
			x.blocks[u.Block.Start] = &block{mark: u.marks[0].ID}
		}
	}
	if u.late || x.blocks[u.Block.Start] == nil {
		return
	}
	b := x.blocks[u.Block.Start]
	b.chunks += u.chunks()
	if u.again != nil || u.refused {
		b.state = broken
	}
}

// slice returns the slice whose run the unit relies on.
func (f *flush) slice(u *unit) metric.Slice {
	if u.late {
		return f.current
	}
	return u.Slice
}

// stale reports whether the place of a flush has passed.
func (w *Writer) stale(f *flush) bool { return f.at != nil && w.age(f) > maxFlush }

// age returns how long ago the ids of a flush were drawn, by whichever clock says more.
func (w *Writer) age(f *flush) time.Duration {
	drawnMs := f.startedMs
	if f.at != nil {
		drawnMs = min(drawnMs, f.at.TimeMs())
	}
	return max(w.cache.clk.Elapsed()-f.began, time.Duration(clock.NowMs(w.cache.clk)-drawnMs)*time.Millisecond)
}

// Seal seals the blocks of this process in every slice that has closed since the last call, so that the
// slice's run may use the cache. Call it after a slice's end plus the grace, and before the run.
//
// A block that is not sealed, or too late, is ground from raw. So a seal that fails is not repeated: the open marks
// are there, since the run had not begun when Seal asked the store. If it has begun, by whatever clock, when the seals are
// written, it may have deleted the marks that these replace. Then Seal puts late marks until that succeeds.
func (w *Writer) Seal(ctx context.Context) error {
	away := w.look(ctx)
	unknown := w.catchUp(ctx)
	now := clock.NowMs(w.cache.clk)
	b := &storage.Batch{}
	sealed := make(map[int64]*index)
	for _, start := range sortedKeys(w.written) {
		s, x := w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]
		if !w.cache.timing.Closed(s, now) || x.overtaken() {
			continue
		}
		if err := away[start]; err != nil {
			unknown = err // the next call asks again
			continue
		}
		delete(w.written, start)
		if w.cache.timing.Due(s, now) || x.begun {
			continue // its run may be reading the marks, or there are none
		}
		trusted, err := w.cache.Trusts(ctx, storage.SliceKey{Bucket: metric.Raw, StartMs: s.StartMs})
		if err != nil {
			unknown = err // its blocks stay open
			continue
		}
		if !trusted {
			continue
		}
		b.Marks = append(b.Marks, w.seals(s, x)...)
		sealed[start] = x
	}
	if len(b.Marks) == 0 {
		return unknown
	}
	err := w.cache.writeMarks(ctx, b)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) {
		err = fmt.Errorf("seal %d blocks: %w", len(b.Marks), err)
	}
	for _, start := range sortedKeys(sealed) {
		x := sealed[start]
		lerr := w.lookAt(ctx, w.cache.ladder.SliceAt(metric.Raw, start), x)
		if lerr != nil || x.begun {
			w.written[start], unknown = x, cmp.Or(unknown, lerr)
		}
	}
	return errors.Join(unknown, err, w.catchUp(ctx))
}

// Settle does what the next flush would do first, because there may be no next flush:
//
//   - It writes the chunks of failed flushes again, except during the pause after a failed attempt (see
//     Hurry).
//   - It looks for slices that were ground before they were over, and marks late what this process has
//     written to them.
//
// Call it every second and before the process ends, so that little exists only in memory.
func (w *Writer) Settle(ctx context.Context) error {
	var err error
	if w.rest.over(w.cache.clk) {
		err = w.writeAgain(ctx)
	}
	away := w.look(ctx)
	for _, start := range sortedKeys(away) {
		err = cmp.Or(err, away[start])
	}
	return errors.Join(err, w.catchUp(ctx))
}
