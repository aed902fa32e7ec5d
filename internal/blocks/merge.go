package blocks

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"unsafe"

	"github.com/quern/quern/internal/metric"
)

// SampleSet puts the chunks of one block together. Chunks are added in the order
// of their IDs; Series then yields every schedule's samples by time, and of two
// with the same time the one that was added last. The zero value is a set without
// schedules; a set is made for reuse, and allocates only to grow.
//
// The same samples may be added any number of times. The set drops duplicates whenever
// it has doubled, so that its memory grows with the samples that differ in schedule or time.
type SampleSet struct {
	ids      Range
	only     *only // of ids, which is kept; nil is all
	kept     only
	added    []metric.Sample
	ordered  bool  // whether added is by schedule, as a chunk is
	ends     []int // where in added each schedule ends, if that is known; then its times ascend
	distinct int   // of added, after duplicates were last dropped
	total    int
	groups   bySchedule[metric.Sample]
	incoming Incoming
}

// only is what a set keeps of its schedules.
type only struct {
	ids    []metric.ScheduleID
	fromMs int64
	toMs   int64
}

// minCompact is from how many samples on a set drops duplicates: 1.5 MB of them.
const minCompact = 1 << 16

// Reset empties the set and sets the schedules it keeps. Memory and the cost of
// Series grow with ids.Len(), which is meant to be a block's.
func (s *SampleSet) Reset(ids Range) {
	s.ids, s.only = ids, nil
	s.added, s.ordered, s.ends = s.added[:0], true, s.ends[:0]
	s.distinct, s.total = 0, 0
}

// Only has the set, which was just reset, keep the samples of these schedules in [fromMs, toMs)
// and no others: what is not wanted takes no memory. The ids are sorted, and used until the next Reset.
func (s *SampleSet) Only(ids []metric.ScheduleID, fromMs, toMs int64) {
	s.kept = only{ids: ids, fromMs: fromMs, toMs: toMs}
	s.only = &s.kept
}

// wanted leaves out, in place, what the set does not keep of a chunk's samples.
func (o *only) wanted(samples []metric.Sample) []metric.Sample {
	ids := o.ids
	return slices.DeleteFunc(samples, func(s metric.Sample) bool {
		for len(ids) > 0 && ids[0] < s.Schedule { // samples are by schedule
			ids = ids[1:]
		}
		return len(ids) == 0 || ids[0] != s.Schedule || s.TimeMs < o.fromMs || s.TimeMs >= o.toMs
	})
}

// Add adds the samples of a chunk, except those of schedules that the set does not keep. On error
// it returns ErrCorrupt and leaves the set unchanged, or a *DamagedColumns and adds the other columns. The
// set does not keep a reference to chunk.
func (s *SampleSet) Add(chunk []byte) error { return s.Open(chunk).Add() }

// Open begins to add a chunk, as Add does, and says what that takes. It is valid until the next call of a method of the set.
func (s *SampleSet) Open(chunk []byte) *Incoming {
	if before := s.incoming.reader; before != nil { // of one that was not added
		before.free()
	}
	s.incoming = Incoming{set: s, chunk: chunk, ids: s.ids, only: s.only}
	if isColumns(chunk) {
		s.incoming.reader, s.incoming.err = openColumns(chunk)
	}
	return &s.incoming
}

// Incoming is a chunk that is about to be added to a set: its samples that are in ids, and of those what only asks for; nil is
// all.
type Incoming struct {
	set    *SampleSet
	chunk  []byte
	ids    Range
	only   *only
	reader *columnReader // of a chunk of columns
	err    error
}

// Add adds the chunk; see SampleSet.Add.
func (in *Incoming) Add() error {
	s, before := in.set, len(in.set.added)
	var all []metric.Sample
	err := in.err
	switch {
	case err != nil:
	case in.reader != nil:
		all, err = in.reader.read(s.added, in.ids, in.only)
		if before == 0 {
			s.ends = append(s.ends[:0], in.reader.ends...)
		}
		in.reader.free()
	default:
		if all, err = DecodeSamplesIn(s.added, in.chunk, in.ids); err == nil && in.only != nil {
			all = all[:before+len(in.only.wanted(all[before:]))]
		}
	}
	*in = Incoming{}
	if err != nil {
		if damaged := (*DamagedColumns)(nil); !errors.As(err, &damaged) {
			return err
		}
	}
	s.added = all
	if len(s.added) > before {
		s.ordered = before == 0
		if before > 0 {
			s.ends = s.ends[:0]
		}
	}
	s.total += len(s.added) - before
	if len(s.added) >= max(minCompact, 2*s.distinct) {
		s.compact()
	}
	return err
}

// Scratch returns the bytes that decoding takes, however few of the samples are wanted. It decodes nothing.
func (in *Incoming) Scratch() int {
	if in.reader == nil {
		return 0
	}
	return in.reader.scratch(in.ids, in.only)
}

const (
	sampleBytes = int(unsafe.Sizeof(metric.Sample{}))
	placeBytes  = int(unsafe.Sizeof(uint32(0)))
)

// Needs returns the bytes that the set takes at most once the chunk is added and Series has been called: two arrays of samples
// and one of places, which grow by a quarter at a time, and Scratch.
func (in *Incoming) Needs() int {
	s, n, scratch := in.set, len(in.set.added), 0
	if in.reader != nil {
		n, scratch = n+in.reader.count(in.ids, in.only), in.Scratch()
	} else if in.err == nil {
		n += countIn(in.chunk)
	}
	n += n/4 + 256
	return sampleBytes*(max(n, cap(s.added))+max(n, cap(s.groups.sorted))) + placeBytes*max(n, cap(s.groups.at)) + scratch
}

// Bytes returns the bytes that the set takes now.
func (s *SampleSet) Bytes() int {
	return sampleBytes*(cap(s.added)+cap(s.groups.sorted)) + placeBytes*cap(s.groups.at)
}

// compact drops duplicates. What is left precedes whatever is added later, so that the
// last one added still wins.
func (s *SampleSet) compact() {
	if len(s.ends) > 0 { // there are none
		s.distinct = len(s.added)
		return
	}
	s.order()
	kept := s.added[:0]
	for _, samples := range s.Series() { // which never lie before what is kept
		kept = append(kept, samples...)
	}
	s.added, s.distinct = kept, len(kept)
}

// Len is the number of samples that the set holds: at most minCompact or twice those
// without duplicates, and a chunk.
func (s *SampleSet) Len() int { return len(s.added) }

// Distinct is how many samples there are at least, not counting duplicates.
func (s *SampleSet) Distinct() int { return s.distinct }

// Added is the number of samples added, duplicates included.
func (s *SampleSet) Added() int { return s.total }

// Series yields the schedules that have samples, by id. The samples are the set's: they are valid until the next call of Reset,
// Add or Series. Whoever changes them MUST call Reset next.
func (s *SampleSet) Series() iter.Seq2[metric.ScheduleID, []metric.Sample] {
	return func(yield func(metric.ScheduleID, []metric.Sample) bool) {
		if len(s.ends) > 0 {
			start := 0
			for _, end := range s.ends {
				if !yield(s.added[start].Schedule, s.added[start:end:end]) {
					return
				}
				start = end
			}
			return
		}
		s.order()
		s.runs(yield)
	}
}

// order puts what was added by schedule, unless it is.
func (s *SampleSet) order() {
	if !s.ordered {
		at := s.groups.places(len(s.added))
		for i := range s.added {
			at[i] = uint32(s.added[i].Schedule - s.ids.Start)
		}
		s.groups.sort(s.ids.Len(), s.added)
		s.added, s.groups.sorted, s.ordered = s.groups.sorted, s.added, true
	}
}

// runs yields what is by schedule already. It copies the samples of a schedule only to sort them.
func (s *SampleSet) runs(yield func(metric.ScheduleID, []metric.Sample) bool) {
	for rest := s.added; len(rest) > 0; {
		id, last, ascend := rest[0].Schedule, rest[0].TimeMs, true
		end := 1
		for ; end < len(rest) && rest[end].Schedule == id; end++ {
			next := rest[end].TimeMs
			ascend = ascend && last < next
			last = next
		}
		samples := rest[:end:end]
		rest = rest[end:]
		if !ascend {
			s.groups.sorted = append(s.groups.sorted[:0], samples...)
			samples = keepLast(s.groups.sorted, compareSampleTimes)
		}
		if !yield(samples[0].Schedule, samples) {
			return
		}
	}
}

func compareSampleTimes(a, b metric.Sample) int { return cmp.Compare(a.TimeMs, b.TimeMs) }

// RollupSet is like SampleSet, for roll-up rows.
type RollupSet struct {
	ids    Range
	added  []metric.RollupRow
	groups bySchedule[metric.RollupRow]
}

// Reset empties the set and sets the schedules that it keeps; see SampleSet.Reset.
func (s *RollupSet) Reset(ids Range) {
	s.ids = ids
	clear(s.added) // releases the sketches
	clear(s.groups.sorted)
	s.added = s.added[:0]
}

// Add adds the rows of a roll-up chunk, except those of schedules that the set does not keep. The
// sketches alias chunk, which must not change while the set is used. On error Add returns
// ErrCorrupt and leaves the set unchanged.
func (s *RollupSet) Add(chunk []byte) error {
	before := len(s.added)
	all, err := decodeRollups(s.added, chunk)
	if err != nil {
		return err
	}
	s.added = all[:before]
	s.AddRows(all[before:])
	return nil
}

// AddRows adds rows that were read from a table, in any order. It keeps their sketches without
// copying them.
func (s *RollupSet) AddRows(rows []metric.RollupRow) {
	for i := range rows {
		if s.ids.Contains(rows[i].Schedule) {
			s.added = append(s.added, rows[i])
		}
	}
}

// Len returns the number of rows added, duplicates included.
func (s *RollupSet) Len() int { return len(s.added) }

// Series yields the schedules that have rows, by id; see SampleSet.Series.
func (s *RollupSet) Series() iter.Seq2[metric.ScheduleID, []metric.RollupRow] {
	return func(yield func(metric.ScheduleID, []metric.RollupRow) bool) {
		at := s.groups.places(len(s.added))
		for i := range s.added {
			at[i] = uint32(s.added[i].Schedule - s.ids.Start)
		}
		s.groups.sort(s.ids.Len(), s.added)
		start := 0
		for i, end := range s.groups.ends {
			rows := s.groups.sorted[start:end:end]
			start = end
			if len(rows) > 0 && !yield(s.ids.Start+metric.ScheduleID(i), keepLast(rows, compareRollupTimes)) {
				return
			}
		}
	}
}

func compareRollupTimes(a, b metric.RollupRow) int { return cmp.Compare(a.TimeMs, b.TimeMs) }

// bySchedule is the working memory of a set. It groups by schedule with a counting sort, which is
// stable, and linear because a block is small.
type bySchedule[T any] struct {
	sorted []T
	at     []uint32 // the schedule of each row, counted from the first of the block
	ends   []int    // of the rows of each schedule
}

// places returns room for the schedules of n rows, which the caller fills in.
func (g *bySchedule[T]) places(n int) []uint32 {
	g.at = slices.Grow(g.at[:0], n)[:n]
	return g.at
}

// sort puts the rows of n schedules into g.sorted, by g.at.
func (g *bySchedule[T]) sort(n int, added []T) {
	g.ends = slices.Grow(g.ends[:0], n)[:n]
	clear(g.ends)
	ends := g.ends
	for _, at := range g.at {
		ends[at]++
	}
	sum := 0
	for i, count := range ends {
		ends[i] = sum
		sum += count
	}
	g.sorted = slices.Grow(g.sorted[:0], len(added))[:len(added)]
	sorted := g.sorted
	for i, at := range g.at {
		to := ends[at]
		ends[at] = to + 1
		sorted[to] = added[i]
	}
}

// keepLast sorts rows by time, in place, and keeps the last row of each time. The times mostly ascend already, unless data came
// late or twice.
func keepLast[T any](rows []T, compareTimes func(a, b T) int) []T {
	ascends := true
	for i := 1; i < len(rows) && ascends; i++ {
		ascends = compareTimes(rows[i-1], rows[i]) < 0
	}
	if ascends {
		return rows
	}
	slices.SortStableFunc(rows, compareTimes)
	n := 0
	for i := range rows {
		if n > 0 && compareTimes(rows[n-1], rows[i]) == 0 {
			n--
		}
		rows[n] = rows[i]
		n++
	}
	return rows[:n]
}
