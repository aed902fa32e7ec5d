// Package late knows which roll-up rows late data has left behind: rows of slices with marks in the
// index of another slice, whose run is still to come. Readers of rows read the level below in their
// place.
//
//  1. Own marks at once: what this process has put, and acknowledged, before a View is taken is in
//     it, until a run has taken it. The slice into which it was put may be ahead of the clock,
//     which may have gone back.
//  2. Others' soon: a View has what other processes put before its last reading began, which is readEvery ago, or
//     ten times as long as a reading takes if that is more.
//  3. No gap on the way up: work whose mark was deleted while a View was read has its next mark in
//     it, or lies in a slice that was not complete then; see View.Open. So a View is to be taken before the states of
//     slices are asked for.
//  4. Reading the index goes on when the request that began it has gone, and who comes meanwhile
//     waits for the same reading.
//  5. A View may name a slice that has been ground since: reading the level below is slower, and as right.
//
// Times are in Unix ms, ranges half open.
package late

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	// readEvery is how long a reading of the index serves.
	readEvery = 5 * time.Second
	// restFactor bounds the share of time spent on reading: about one part in restFactor.
	restFactor = 10
	// maxBlocks bounds the memory, at about 20 bytes per block. Beyond it all blocks of a further
	// slice count as late.
	maxBlocks = 1 << 18
	// mostLost is how many index partitions of a reading may be out of reach before it tries no more.
	mostLost = 8
)

// Store is what a Tracker reads.
type Store interface {
	Settings() storage.Settings
	Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error]
}

// Options set up a Tracker.
type Options struct {
	// Outstanding lists the slices that were opened and not completed; see recovery.Outstanding.
	Outstanding func(ctx context.Context) ([]storage.SliceKey, error)
	// Shared says that other processes also put marks into the store. Otherwise the index is not
	// read while nothing is late.
	Shared bool
	// Background runs what goes on beside requests: reading the index may take longer than the request that begins it.
	Background limits.Background
}

// Tracker tracks what is late. It is safe for concurrent use.
type Tracker struct {
	store  Store
	ladder metric.Ladder
	clk    clock.Clock
	opts   Options

	// reading is that of the index.
	reading limits.Errand

	mu   sync.Mutex
	view *View
	// noted are the places noted since the current reading began, nil while none is under way.
	noted *[]place
	// marked are the slices into which this process has put marks, each with the number of the last
	// note. A slice stays until a reading finds no marks in it.
	marked map[storage.SliceKey]int
	notes  int
	// The last reading: when it ended, when the next one is due, and its error.
	read           bool
	readMs, nextMs int64
	err            error
}

// New makes a tracker. It reads nothing before it is asked for a View.
func New(store Store, clk clock.Clock, opts Options) *Tracker {
	return &Tracker{
		store: store, ladder: store.Settings().Ladder, clk: clk, opts: opts,
		reading: limits.NewErrand(opts.Background), view: newView(), marked: make(map[storage.SliceKey]int),
	}
}

// place is a block of a slice of a bucket.
type place struct {
	storage.SliceKey
	start metric.ScheduleID
}

// late returns the place that a mark stands for, and whether it lies in another slice than the one
// whose run reads the mark. If it does not, it is not late: readers do not rely on rows of a slice
// before the slice is complete.
func (t *Tracker) late(in storage.SliceKey, m *storage.Mark) (place, bool) {
	s := t.ladder.SliceAt(in.Bucket, m.TimeMs)
	return place{storage.SliceKey{Bucket: in.Bucket, StartMs: s.StartMs}, m.Start}, s.StartMs != in.StartMs
}

// Note adds marks that this process has put. Call it when the marks are durable, or may be, and
// before what they stand for is acknowledged.
func (t *Tracker) Note(marks []storage.PlacedMark) {
	epochs := t.store.Settings().Epochs
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes++
	for i := range marks {
		p, ok := t.late(marks[i].Partition.SliceKey, &marks[i].Mark)
		if !ok {
			continue
		}
		t.marked[marks[i].Partition.SliceKey] = t.notes
		if t.noted != nil {
			*t.noted = append(*t.noted, p)
		}
		if t.read { // the first reading finds marks that were put before it
			t.view.add(p, epochs)
		}
	}
}

// View returns what is late now. With an error it is what was known before, and what could be read.
func (t *Tracker) View(ctx context.Context) (*View, error) {
	if due, wait := t.due(); due && (wait || !t.reading.Busy()) {
		if err := t.reading.Do(ctx, func() bool { due, _ := t.due(); return due }, t.refresh); err != nil {
			return nil, err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view, t.err
}

// due says whether the index is to be read, and whether a View has to wait for that. If nobody else
// puts marks, no mark is missing from what is known, and a reading only finds what has been ground.
func (t *Tracker) due() (due, wait bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.read {
		return true, true
	}
	if !t.opts.Shared && t.err == nil && t.view.Empty() {
		return false, false
	}
	now := clock.NowMs(t.clk)
	return now >= t.nextMs || now < t.readMs, t.opts.Shared
}

// refresh reads the index anew, and keeps why it could not. Its error is that it was called off.
func (t *Tracker) refresh(ctx context.Context) error {
	began := t.clk.Now()
	t.mu.Lock()
	noted := &[]place{}
	t.noted = noted
	marked := maps.Clone(t.marked)
	t.mu.Unlock()

	fresh, err := t.readAll(ctx, marked)

	epochs := t.store.Settings().Epochs
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noted = nil
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	now := t.clk.Now()
	t.readMs = now.UnixMilli()
	t.nextMs = now.Add(max(readEvery, restFactor*now.Sub(began))).UnixMilli()
	t.read = true
	if t.err = err; fresh == nil {
		return nil
	}
	if err != nil {
		fresh.keep(t.view, epochs) // what could not be read may still be late
	}
	for k, note := range marked {
		if t.marked[k] == note && !fresh.from[k] {
			delete(t.marked, k) // a run has dealt with the marks
		}
	}
	for _, p := range *noted {
		fresh.add(p, epochs)
	}
	t.view = fresh
	return nil
}

// readAll reads the marks of all outstanding slices, and of the slices in marked, which may not be
// outstanding yet. It reads bucket by bucket, finest first, and in each the oldest slice first.
// Work moves on only to a later slice or a coarser bucket, and its new mark is put before the old
// one is deleted, so readAll meets one of the two. If slices were opened meanwhile, marks may have
// moved into them, and readAll starts again.
//
// If parts of the store are out of reach, readAll returns what it found elsewhere, and an error.
func (t *Tracker) readAll(ctx context.Context, marked map[storage.SliceKey]int) (*View, error) {
	s := t.store.Settings()
	var away error
	outstanding := func() ([]storage.SliceKey, error) {
		known, err := t.opts.Outstanding(ctx)
		var unread storage.UnreadError
		if errors.As(err, &unread) {
			away, err = fmt.Errorf("read the late marks: %w", err), nil
		}
		for k := range marked {
			if !slices.Contains(known, k) {
				known = append(known, k)
			}
		}
		return known, err
	}
	known, err := outstanding()
	if err != nil {
		return nil, fmt.Errorf("read the late marks: %w", err)
	}
	for {
		slices.SortFunc(known, func(a, b storage.SliceKey) int {
			return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.StartMs, b.StartMs))
		})
		v, lost := newView(), 0
		for _, k := range known {
			for shard := range s.IndexPartitions {
				if lost >= mostLost {
					v.from[k] = true // it may still have marks
					break
				}
				err := t.readShard(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}, v, s.Epochs)
				if err == nil {
					continue
				}
				err = fmt.Errorf("read the late marks in the index of %s: %w", t.ladder.SliceAt(k.Bucket, k.StartMs), err)
				if !storage.IsAway(err) || ctx.Err() != nil {
					return nil, err
				}
				lost++
				away, v.from[k] = err, true
			}
		}
		now, err := outstanding()
		if err != nil {
			return nil, fmt.Errorf("read the late marks: %w", err)
		}
		if !slices.ContainsFunc(now, func(k storage.SliceKey) bool { return !slices.Contains(known, k) }) {
			if t.opts.Shared {
				v.open = known
			}
			return v, away
		}
		known = now
	}
}

// readShard adds to v what is late by the marks of an index partition.
func (t *Tracker) readShard(ctx context.Context, p storage.IndexPartition, v *View, epochs blocks.Epochs) error {
	for m, err := range t.store.Marks(ctx, p, storage.MarkKey{}, 0) {
		if err != nil {
			return err
		}
		if at, ok := t.late(p.SliceKey, &m); ok {
			v.add(at, epochs)
			v.from[p.SliceKey] = true
		}
	}
	return nil
}

// View is what is late at some time. Once it is handed out, it loses nothing, and gets what this process puts.
type View struct {
	// from are the slices in whose indexes late marks were found.
	from map[storage.SliceKey]bool
	open []storage.SliceKey

	mu   sync.RWMutex
	late map[storage.SliceKey]*blockSet
	n    int
}

// blockSet is the late blocks of one slice, by their starts. All blocks of a slice have the same
// size.
type blockSet struct {
	size   int
	starts map[metric.ScheduleID]struct{}
	all    bool // all blocks are late, and starts is empty
}

func newView() *View {
	return &View{late: make(map[storage.SliceKey]*blockSet), from: make(map[storage.SliceKey]bool)}
}

// keep adds all that is late in an older view.
func (v *View) keep(old *View, epochs blocks.Epochs) {
	for k, s := range old.late {
		if s.all {
			v.late[k] = s
		}
		for start := range s.starts {
			v.add(place{k, start}, epochs)
		}
	}
}

func (v *View) add(p place, epochs blocks.Epochs) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.late[p.SliceKey]
	if s == nil {
		s = &blockSet{size: epochs.SizeAt(p.StartMs), starts: make(map[metric.ScheduleID]struct{})}
		v.late[p.SliceKey] = s
	}
	if _, known := s.starts[p.start]; known || s.all {
		return
	}
	if v.n >= maxBlocks {
		v.n -= len(s.starts)
		s.starts, s.all = nil, true
		return
	}
	v.n++
	s.starts[p.start] = struct{}{}
}

// Open returns the slices that were not complete before the index was read, if other processes put marks, too. Their blocks may
// have failed since, and then the slice is complete and the block's mark is in one that had been read.
func (v *View) Open() []storage.SliceKey { return v.open }

// Empty says whether nothing is late.
func (v *View) Empty() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.late) == 0
}

// Slices returns the starts of the slices of a bucket that start in [fromMs, toMs) and have late
// data for a block that ids touches, sorted.
func (v *View) Slices(b metric.Bucket, ids blocks.Range, fromMs, toMs int64) []int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var out []int64
	for k, s := range v.late {
		if k.Bucket == b && fromMs <= k.StartMs && k.StartMs < toMs && s.touches(ids) {
			out = append(out, k.StartMs)
		}
	}
	slices.Sort(out)
	return out
}

func (s *blockSet) touches(ids blocks.Range) bool {
	if s.all {
		return true
	}
	for start := blocks.BlockAt(ids.Start, s.size).Start; start < ids.End; start += metric.ScheduleID(s.size) {
		if _, ok := s.starts[start]; ok {
			return true
		}
	}
	return false
}
