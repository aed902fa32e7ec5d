package cache

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Group is the samples of one block in one raw slice, sorted by
// metric.CompareSamples, no two with the same schedule and time, not empty.
type Group struct {
	Slice   metric.Slice
	Block   blocks.Range
	Samples []metric.Sample
}

// check asserts what a chunk and its mark rely on.
func (g *Group) check() {
	invariants.Check(len(g.Samples) > 0, "empty group of block %d", g.Block.Start)
	for i, s := range g.Samples {
		invariants.Check(g.Block.Contains(s.Schedule) && g.Slice.Contains(s.TimeMs),
			"schedule %d at %d lies outside block %d of slice %s", s.Schedule, s.TimeMs, g.Block.Start, g.Slice)
		invariants.Check(i == 0 || metric.CompareSamples(g.Samples[i-1], s) < 0,
			"samples of block %d are out of order at %d", g.Block.Start, i)
	}
}

// Writer is ingest's side of the protocol. It remembers which marks this process
// has written, so that a block costs one mark a slice and not one a flush. It is
// not safe for concurrent use: flushes come one after the other.
type Writer struct {
	cache     *Cache
	groupSize int

	// slices that have marks of this process, by the start of the slice in whose index they lie.
	written map[int64]*written
	// suspect are blocks whose last flush failed: their cache may lack what reached
	// the raw table. Their marks go out with the next flush.
	suspect map[blockKey]struct{}
}

type blockKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

type lateKey struct {
	timeMs int64
	id     metric.ScheduleID
}

// written is what one slice's index holds already. A mark that lies there stands
// for everything that reaches the raw table before the slice's run begins.
type written struct {
	fresh map[metric.ScheduleID]struct{}
	late  map[lateKey]struct{}
}

// maxRememberedLate bounds the memory of late schedules per slice. Beyond it marks
// are written again, which costs rows and nothing else.
const maxRememberedLate = 1 << 18

// NewWriter makes the writing side for one ingest process.
func NewWriter(c *Cache) *Writer {
	return &Writer{
		cache:     c,
		groupSize: c.store.Settings().GroupSize,
		written:   make(map[int64]*written),
		suspect:   make(map[blockKey]struct{}),
	}
}

// Flush makes the groups durable together with the marks that lead a run to them,
// and returns nil only then. After an error any part of them may have been
// written, and a later Flush sees to it that no roll-up misses that part.
func (w *Writer) Flush(ctx context.Context, groups []Group) error {
	if invariants.Enabled {
		for _, g := range groups {
			g.check()
		}
	}
	// In order, so that the same history writes the same rows in the same order.
	suspects := slices.SortedFunc(maps.Keys(w.suspect), func(a, b blockKey) int {
		return cmp.Or(cmp.Compare(a.sliceMs, b.sliceMs), cmp.Compare(a.start, b.start))
	})
	if err := w.flush(ctx, groups, suspects); err != nil {
		for _, g := range groups {
			w.suspect[blockKey{g.Slice.StartMs, g.Block.Start}] = struct{}{}
		}
		return err
	}
	for _, k := range suspects {
		delete(w.suspect, k)
	}
	return nil
}

func (w *Writer) flush(ctx context.Context, groups []Group, suspects []blockKey) error {
	now := clock.NowMs(w.cache.clk)
	w.forget(now)
	current := w.cache.ladder.SliceAt(metric.Raw, now)

	b := &storage.Batch{}
	var late []storage.Mark
	for _, g := range groups {
		if w.cache.timing.Closed(g.Slice, now) {
			late = w.appendLate(late, current, g)
		} else if _, ok := w.in(g.Slice.StartMs).fresh[g.Block.Start]; !ok {
			b.Marks = append(b.Marks, w.cache.whole(storage.MarkFresh, metric.Raw, g.Slice, g.Block.Start))
		}
	}
	for _, k := range suspects {
		if s := w.cache.ladder.SliceAt(metric.Raw, k.sliceMs); w.cache.timing.Closed(s, now) {
			late = append(late, suspectMark(k))
		} else {
			b.Marks = append(b.Marks, w.cache.whole(storage.MarkSuspect, metric.Raw, s, k.start))
		}
	}
	b.Marks = append(b.Marks, w.cache.place(metric.Raw, current, late)...)
	b.Open = slicesOf(b.Marks)
	w.encode(b, groups, now)
	if err := w.cache.store.Write(ctx, b); err != nil {
		return err
	}
	if err := w.settle(ctx, groups, suspects, now); err != nil {
		return err
	}
	w.remember(groups, late, now)
	return nil
}

// settle closes the race with the runs (invariant 4). Each group relies on a mark
// in its own slice, or in the current one if it was late at startedMs. Where that
// slice has closed before the write was done, its run may have read the index
// without the mark or the raw table without the chunk: such a group gets a late mark.
func (w *Writer) settle(ctx context.Context, groups []Group, suspects []blockKey, startedMs int64) error {
	now := clock.NowMs(w.cache.clk)
	missed := func(s metric.Slice) bool {
		if w.cache.timing.Closed(s, startedMs) {
			s = w.cache.ladder.SliceAt(metric.Raw, startedMs)
		}
		return w.cache.timing.Closed(s, now)
	}
	var again []storage.Mark
	for _, g := range groups {
		if missed(g.Slice) {
			again = append(again, lateMark(g))
		}
	}
	for _, k := range suspects {
		if missed(w.cache.ladder.SliceAt(metric.Raw, k.sliceMs)) {
			again = append(again, suspectMark(k))
		}
	}
	return w.cache.Put(ctx, 0, metric.Raw, again)
}

// appendLate adds a mark for those of the group's schedules that the current
// slice's index does not hold yet.
func (w *Writer) appendLate(marks []storage.Mark, current metric.Slice, g Group) []storage.Mark {
	known := w.in(current.StartMs).late
	m := lateMark(g)
	m.Schedules = slices.DeleteFunc(m.Schedules, func(id metric.ScheduleID) bool {
		_, ok := known[lateKey{g.Slice.StartMs, id}]
		return ok
	})
	if len(m.Schedules) == 0 {
		return marks
	}
	return append(marks, m)
}

func lateMark(g Group) storage.Mark {
	m := storage.Mark{Start: g.Block.Start, TimeMs: g.Slice.StartMs, Kind: storage.MarkLate}
	for i, s := range g.Samples {
		if i == 0 || s.Schedule != g.Samples[i-1].Schedule {
			m.Schedules = append(m.Schedules, s.Schedule)
		}
	}
	return m
}

func suspectMark(k blockKey) storage.Mark {
	return storage.Mark{Start: k.start, TimeMs: k.sliceMs, Kind: storage.MarkSuspect}
}

// encode packs each group into its chunks. The packing is the costly part of a
// flush, so the groups are shared out over the processors.
func (w *Writer) encode(b *storage.Batch, groups []Group, nowMs int64) {
	type packed struct {
		raw   []storage.RawChunk
		cache []storage.CacheChunk
	}
	out := make([]packed, len(groups))
	ids := make([]blocks.ID, len(groups))
	for i := range ids {
		ids[i] = w.cache.ids.Next(nowMs)
	}
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(groups))
	for n := range workers {
		wg.Go(func() {
			for i := n; i < len(groups); i += workers {
				g := &groups[i]
				out[i].raw = w.rawChunks(g, ids[i])
				if !w.cache.timing.Closed(g.Slice, nowMs) {
					out[i].cache = []storage.CacheChunk{w.cacheChunk(g, out[i].raw, ids[i])}
				}
			}
		})
	}
	wg.Wait()
	for _, p := range out {
		b.Raw = append(b.Raw, p.raw...)
		b.Cache = append(b.Cache, p.cache...)
	}
}

// rawChunks cuts a block's samples along the storage groups, which do not move when the
// block size does.
func (w *Writer) rawChunks(g *Group, id blocks.ID) []storage.RawChunk {
	var out []storage.RawChunk
	rest := g.Samples
	for len(rest) > 0 {
		group := blocks.Of(rest[0].Schedule, w.groupSize)
		n := len(rest)
		if !group.Contains(rest[n-1].Schedule) {
			n, _ = slices.BinarySearchFunc(rest, group.End, func(s metric.Sample, end metric.ScheduleID) int {
				return int(s.Schedule - end)
			})
		}
		out = append(out, storage.RawChunk{
			Group: group.Start, SliceMs: g.Slice.StartMs,
			Chunk: storage.Chunk{ID: id, Data: blocks.AppendSamples(nil, rest[:n])},
		})
		rest = rest[n:]
	}
	return out
}

func (w *Writer) cacheChunk(g *Group, raw []storage.RawChunk, id blocks.ID) storage.CacheChunk {
	c := storage.CacheChunk{
		CacheKey: storage.CacheKey{
			SliceKey: storage.SliceKey{Bucket: metric.Raw, StartMs: g.Slice.StartMs},
			Start:    g.Block.Start,
		},
		Chunk: storage.Chunk{ID: id},
	}
	if len(raw) == 1 {
		c.Data = raw[0].Data
	} else {
		c.Data = blocks.AppendSamples(nil, g.Samples)
	}
	return c
}

func slicesOf(marks []storage.PlacedMark) []storage.SliceKey {
	var out []storage.SliceKey
	for _, m := range marks {
		if !slices.Contains(out, m.Partition.SliceKey) {
			out = append(out, m.Partition.SliceKey)
		}
	}
	return out
}

func (w *Writer) in(sliceMs int64) *written {
	x := w.written[sliceMs]
	if x == nil {
		x = &written{
			fresh: make(map[metric.ScheduleID]struct{}),
			late:  make(map[lateKey]struct{}),
		}
		w.written[sliceMs] = x
	}
	return x
}

// remember notes what the index holds now. What lies in a slice that has closed
// meanwhile is noted too: nobody asks for it any more.
func (w *Writer) remember(groups []Group, late []storage.Mark, startedMs int64) {
	for _, g := range groups {
		if !w.cache.timing.Closed(g.Slice, startedMs) {
			w.in(g.Slice.StartMs).fresh[g.Block.Start] = struct{}{}
		}
	}
	known := w.in(w.cache.ladder.SliceAt(metric.Raw, startedMs).StartMs).late
	for _, m := range late {
		for _, id := range m.Schedules {
			if len(known) >= maxRememberedLate {
				clear(known)
			}
			known[lateKey{m.TimeMs, id}] = struct{}{}
		}
	}
}

// forget drops the memory of slices that nothing can be put into any more.
func (w *Writer) forget(nowMs int64) {
	for start := range w.written {
		if w.cache.timing.Closed(w.cache.ladder.SliceAt(metric.Raw, start), nowMs) {
			delete(w.written, start)
		}
	}
}
