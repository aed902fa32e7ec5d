package query

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/postings"
	"github.com/quern/quern/internal/storage"
)

// Index finds series by their labels, in memory. For each label it keeps the ids of the series that have it. It is safe
// for concurrent use.
//
//  1. The labels of a series, and what a selector has found, are read without a lock. Readers hold it only while they look
//     up labels and take snapshots of lists: so a slow expression blocks nobody, and many series do not wait for those
//     that are added.
//  2. Each label is stored once; series refer to it by a number. Labels that all series share take next to nothing.
//  3. Adding series costs the same in any order of their ids, whatever their number.
type Index struct {
	pages   pages
	symbols symbols
	// patterns remember which values patterns match.
	patterns patterns
	bytes    atomic.Int64 // see Bytes

	mu  sync.RWMutex
	all postings.List // the ids of all series
	// refs and last are the numbers of the labels of the series that is being added, and of the one before: most have most
	// labels in common.
	refs, last []uint32
	// clock is set when CountNew has been called, at sinceMs. met are the days on which series were met since.
	clock   clock.Clock
	sinceMs int64
	met     days

	// refreshing serializes calls of Refresh. It guards polls, one per page, and polled, the number
	// of calls so far.
	refreshing sync.Mutex
	polls      []poll
	polled     int
	// unread says what the last Refresh could not read; nil if it was nothing.
	unread atomic.Pointer[UnreadError]
}

// poll schedules the next look at a page that is not full. Times are poll numbers.
type poll struct {
	end      metric.ScheduleID // end of the leased ids in the page
	leased   int               // when this end was first seen
	grew     int               // when a look last found a new series, or the end moved
	next     int               // when the next look is due
	had      int               // series at the last look
	finished bool              // no more series can come
	away     error             // why the last look did not read the whole page
}

// UnreadError says that the labels of some series are out of reach. The index has all others.
type UnreadError struct {
	// IDs is how many ids the series may have.
	IDs int
	Err error
}

// Error implements error.
func (e *UnreadError) Error() string {
	return fmt.Sprintf("the labels of up to %d series cannot be read: %v", e.IDs, e.Err)
}

// Unwrap returns the store's error.
func (e *UnreadError) Unwrap() error { return e.Err }

// Unread returns a *UnreadError while the labels of some series are out of reach, and nil otherwise.
func (x *Index) Unread() error {
	if e := x.unread.Load(); e != nil {
		return e
	}
	return nil
}

// NewIndex makes an empty index; Refresh fills it.
func NewIndex() *Index {
	x := new(Index)
	x.symbols.init()
	return x
}

// Add adds series, but none without labels. If an id is known with other labels, the new labels replace them. Add can
// serve as a registry's OnNew. Readers may see a part of the series before the others.
func (x *Index) Add(schedules []storage.Schedule) {
	for some := range slices.Chunk(schedules, addAtOnce) {
		x.addAll(some, true)
		runtime.Gosched() // see ADR 9
	}
}

// CountNew has the index note the UTC day on which it meets each series that is new to it from now on. Call it when the
// index has the series of the store. Those that were out of reach until now are not new.
func (x *Index) CountNew(clk clock.Clock) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clock, x.sinceMs = clk, clock.NowMs(clk)
}

// addAtOnce is how many series are added before readers, and requests without new series, get their turn.
const addAtOnce = 32

func (x *Index) addAll(schedules []storage.Schedule, fresh bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range schedules {
		if x.add(s) && fresh && x.clock != nil {
			x.met.set(s.ID, dayOf(clock.NowMs(x.clock)))
		}
	}
}

// add returns whether the id is new.
func (x *Index) add(s storage.Schedule) bool {
	if s.ID < 0 || s.ID > metric.MaxScheduleID || len(s.Labels) == 0 || x.has(s.ID, s.Labels) {
		return false
	}
	bytes := 0
	if old := x.pages.refs(s.ID); old != nil {
		// A writer that lost a race left a row with this id, which now belongs to another series.
		bytes -= seriesBytes
		bytes += x.each(old, uint32(s.ID), (*postings.List).Remove)
	}
	x.refs = x.refs[:0]
	for i, l := range s.Labels {
		if i < len(x.last) {
			if known := x.symbols.symbol(x.last[i] &^ lastRef); known.value == l.Value && known.name.text == l.Name {
				x.refs = append(x.refs, x.last[i]&^lastRef)
				continue
			}
		}
		number, fresh := x.symbols.number(l)
		if x.refs = append(x.refs, number); fresh {
			bytes += nameBytes + len(l.Name) + len(l.Name)/textShare
		}
	}
	x.refs[len(x.refs)-1] |= lastRef
	bytes += seriesBytes
	bytes += x.each(x.refs, uint32(s.ID), (*postings.List).Add)
	fresh, more := x.pages.set(s.ID, x.refs)
	x.all.Add(uint32(s.ID))
	x.bytes.Add(int64(bytes + more))
	x.refs, x.last = x.last, x.refs
	return fresh
}

// has returns whether the index has a series with an id and these labels.
func (x *Index) has(id metric.ScheduleID, ls metric.Labels) bool {
	refs := x.pages.refs(id)
	if len(refs) != len(ls) {
		return false
	}
	for i, ref := range refs {
		if l := x.symbols.symbol(ref &^ lastRef); l.value != ls[i].Value || l.name.text != ls[i].Name {
			return false
		}
	}
	return true
}

// each changes the lists of the labels of a series, and returns how many bytes more they take. A value counts while a
// series has it.
func (x *Index) each(refs []uint32, id uint32, change func(*postings.List, uint32)) (bytes int) {
	for _, ref := range refs {
		l := x.symbols.symbol(ref &^ lastRef)
		had := l.ids.Len()
		for _, ids := range [...]*postings.List{&l.ids, &l.name.ids} {
			bytes -= ids.Bytes()
			change(ids, id)
			bytes += ids.Bytes()
		}
		switch {
		case had == 0:
			bytes += valueBytes + len(l.value) + len(l.value)/textShare
		case l.ids.Len() == 0:
			bytes -= valueBytes + len(l.value) + len(l.value)/textShare
		}
	}
	return bytes
}

// What a series takes in memory, measured and rounded up; see TestBytesAreWhatIsHeld. Lists and pages are counted beside.
const (
	// seriesBytes are for its places in the registry and in Sightings.
	seriesBytes = 48
	// labelBytes are for a label of the series: its number in a page, and its share of lists.
	labelBytes = 8
	// valueBytes and nameBytes are for a value and a name that no other series has, beside the text.
	valueBytes = 72
	nameBytes  = 240
	// gapsBytes is what a list takes at least that has gaps.
	gapsBytes = 112
	pageBytes = 2400
	// textShare: size classes of the allocator add 1/textShare to texts.
	textShare = 10
)

// Bytes returns what all series take in memory, those of the registry included, but not what the
// registry needs for their sources. It is an estimate that errs upwards; values that several series share count once.
func (x *Index) Bytes() int64 { return x.bytes.Load() + x.patterns.bytes.Load() }

// Weight returns how many bytes more a new series would take.
func (x *Index) Weight(ls metric.Labels) int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n, text := seriesBytes+pageBytes/pageSize, 0
	for _, l := range ls {
		n += labelBytes
		if x.symbols.names[l.Name] == nil {
			n += nameBytes
			text += len(l.Name)
		}
		if number, known := x.symbols.lookUp(l.Name, l.Value); !known || x.symbols.symbol(number).ids.Len() == 0 {
			n += valueBytes
			text += len(l.Value)
		}
	}
	return int64(n + text + text/textShare)
}

// Len returns the number of series.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.all.Len()
}

// Labels returns the labels of a series as the caller's own, nil if it is unknown. See Packed.
func (x *Index) Labels(id metric.ScheduleID) metric.Labels {
	return x.Packed(id).Labels()
}

// LabelNames returns the label names of the series that match any of the selectors, of all
// series when there is none, sorted. The error is why ctx is done, or that of words.hold.
func (x *Index) LabelNames(ctx context.Context, sels ...Selector) ([]string, error) {
	if len(sels) > 0 || bound.FromContext(ctx) != nil {
		ids, err := x.matched(ctx, sels)
		if err != nil {
			return nil, err
		}
		return x.namesOf(ctx, ids)
	}
	out, err := x.names(ctx)
	slices.Sort(out)
	return out, err
}

func (x *Index) names(ctx context.Context) ([]string, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	w := words{ctx: ctx}
	if err := w.hold(len(x.symbols.names), headerBytes); err != nil {
		return nil, err
	}
	return slices.AppendSeq(make([]string, 0, len(x.symbols.names)), maps.Keys(x.symbols.names)), nil
}

// LabelValues returns the values of a label of the series that match any of the selectors, of
// all series when there is none, sorted. The error is as for LabelNames.
func (x *Index) LabelValues(ctx context.Context, name string, sels ...Selector) ([]string, error) {
	if len(sels) > 0 || bound.FromContext(ctx) != nil {
		ids, err := x.matched(ctx, sels)
		if err != nil {
			return nil, err
		}
		return x.valuesOf(ctx, name, ids)
	}
	n, values := x.values(name)
	if n == nil {
		return nil, nil
	}
	w := words{ctx: ctx}
	if err := w.hold(len(values), headerBytes); err != nil {
		return nil, err
	}
	sorted, rest := x.symbols.inOrder(n, values)
	if len(rest) > 0 {
		rest = slices.Clone(rest)
		slices.SortFunc(rest, x.symbols.compare)
		sorted = x.symbols.merged(sorted, rest)
	}
	out := make([]string, len(sorted))
	for i, number := range sorted {
		out[i] = x.symbols.value(number)
	}
	return out, nil
}

// namesOf returns the label names of the given series, sorted.
func (x *Index) namesOf(ctx context.Context, ids []metric.ScheduleID) ([]string, error) {
	names := words{ctx: ctx}
	err := x.eachLabel(ctx, ids, func(l *symbol) error { return names.add(l.name.text) })
	return names.list(), err
}

// valuesOf returns the values of a label among the given series, sorted.
func (x *Index) valuesOf(ctx context.Context, name string, ids []metric.ScheduleID) ([]string, error) {
	values := words{ctx: ctx}
	err := x.eachLabel(ctx, ids, func(l *symbol) error {
		if l.name.text == name {
			return values.add(l.value)
		}
		return nil
	})
	return values.list(), err
}

// eachLabel calls visit for the labels of series. It leaves out those that a series has at the same place as the one before
// it: these are most of them.
func (x *Index) eachLabel(ctx context.Context, ids []metric.ScheduleID, visit func(*symbol) error) error {
	var last []uint32
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return err
		}
		refs := x.pages.refs(id)
		for j, ref := range refs {
			if j < len(last) && last[j]&^lastRef == ref&^lastRef {
				continue
			}
			if err := visit(x.symbols.symbol(ref &^ lastRef)); err != nil {
				return err
			}
		}
		last = refs
	}
	return nil
}

const (
	// headerBytes is what a list takes for each word: the texts are the index's own.
	headerBytes = 16
	// wordInSetBytes is the most that a set takes for each word: when it grows, until it is sorted.
	wordInSetBytes = 96
	// maxWordsBytes bounds what the words of one selector take.
	maxWordsBytes = 64 << 20
)

// words are names or values that are found for a request. What they take is charged to it; see limits.Charge.
type words struct {
	ctx   context.Context //nolint:containedctx // that of the request
	found map[string]struct{}
	bytes int64
}

// hold charges n words more, before they are found. The error is a *RequestError or limits.ErrNoRoom.
func (w *words) hold(n int, each int64) error {
	grow := int64(n) * each
	if w.bytes += grow; w.bytes > maxWordsBytes {
		return badRequest("there are so many names or values that a list of them takes more than %d MB, the limit for one request: "+
			"narrow them with match[]", maxWordsBytes>>20)
	}
	return limits.Charge(w.ctx, grow)
}

func (w *words) add(word string) error {
	if _, known := w.found[word]; known {
		return nil
	}
	if err := w.hold(1, wordInSetBytes); err != nil {
		return err
	}
	if w.found == nil {
		w.found = make(map[string]struct{})
	}
	w.found[word] = struct{}{}
	return nil
}

// list returns the words that were added, sorted.
func (w *words) list() []string { return slices.Sorted(maps.Keys(w.found)) }

// ended returns why ctx is done. It asks every 64th turn i.
func ended(ctx context.Context, i int) error {
	if i%64 == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
