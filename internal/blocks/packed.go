package blocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/quern/quern/internal/blocks/columns"
	"github.com/quern/quern/internal/metric"
)

// PackedID returns the id of the chunk that replaces the chunks with the given ids, at least one. In the order it comes after
// them, and before all ids that are made later. It has the time and count of the last of them, and a variant of UUID that no
// writer makes. Then follows how often that one was packed before, and a hash of the ids, so that the same ids give the same
// result.
func PackedID(ids []ID) ID {
	h := fnv.New64a()
	for _, id := range ids {
		_, _ = h.Write(id[:])
	}
	last := slices.MaxFunc(ids, ID.Compare)
	times := uint64(0)
	if last.Packed() {
		times = binary.BigEndian.Uint64(last[8:])>>packedHashBits&(1<<(62-packedHashBits)-1) + 1
	}
	id := makeID(last.TimeMs(), binary.BigEndian.Uint16(last[6:8]), times<<packedHashBits|h.Sum64()>>(64-packedHashBits))
	id[8] |= packedVariant
	return id
}

// packedHashBits is the number of bits of the hash; those before it count.
const packedHashBits = 44

// packedVariant is set in byte 8 of the ids of packed chunks.
const packedVariant = 0xc0

// Packed reports whether the id is one of PackedID.
func (id ID) Packed() bool { return id[8]&packedVariant == packedVariant }

// ReplacedRanges returns ranges, first and last included, that together hold each id for which replaced is true, and none of the
// others. The ids are those of the chunks of a storage group and slice, ascending. No range may hold the id of a chunk that
// another packer makes of the others meanwhile. That id has the time and count of the last chunk in it, and comes after all
// writers' ids with these. So an id whose time and count one of the others has is a range of its own.
func ReplacedRanges(ids []ID, replaced func(ID) bool) [][2]ID {
	var out [][2]ID
	var kept ID
	extends := false // the last range may go on
	for _, id := range ids {
		switch alone := bytes.Equal(id[:8], kept[:8]); {
		case !replaced(id):
			kept, extends = id, false
		case extends:
			out[len(out)-1][1] = id
		default:
			out, extends = append(out, [2]ID{id, id}), !alone
		}
	}
	return out
}

// fewSamples is the number of samples a series below which a chunk of samples may be shorter than one of columns, which
// has a directory.
const fewSamples = 16

// fewest is the number of samples a series below which a chunk of samples is as short as one of columns, or shorter, if the times of
// each series are regular. If they are not, series that share their times may take half in columns.
const fewest = 7

// Packer makes chunks of samples at rest. It keeps its buffers, and is not for concurrent use. The zero value is ready.
type Packer struct {
	encoder columns.Encoder
	series  []columns.Series
	times   []int64
	values  []float64
	rows    []metric.Sample
	columns []byte
	samples []byte
	reader  columns.Reader
	read    []float64
	again   []metric.Sample
}

// maxColumn is the number of samples of a series up to which it is packed: to read a part of a column, all of it is decoded.
const maxColumn = 1 << 16

// Pack returns a chunk of what a set holds of the schedules in ids: one of columns, or of samples if that is shorter. It is nil if
// there is nothing, more than most samples, or more than maxColumn of one schedule. It is valid until the next call. The error
// says that the chunk does not give back the samples.
func (p *Packer) Pack(set *SampleSet, ids Range, most int) ([]byte, error) {
	most = min(most, columns.MaxSamples)
	room := min(most, set.Len()) // so that what p.series has of these does not move
	p.series = p.series[:0]
	p.times, p.values = slices.Grow(p.times[:0], room), slices.Grow(p.values[:0], room)
	for id, samples := range set.Series() {
		if !ids.Contains(id) {
			continue
		}
		from := len(p.times)
		if from+len(samples) > most || len(samples) > maxColumn || len(p.series) == columns.MaxSeries {
			return nil, nil
		}
		to := from + len(samples)
		p.times, p.values = p.times[:to], p.values[:to]
		times, values := p.times[from:], p.values[from:]
		for i := range samples {
			times[i], values[i] = samples[i].TimeMs, samples[i].Value
		}
		p.series = append(p.series, columns.Series{Schedule: id, Times: times, Values: values})
	}
	if len(p.series) == 0 {
		return nil, nil
	}
	few := len(p.times) < fewest*len(p.series) && p.regular()
	if !few {
		p.columns = p.encoder.Append(p.columns[:0], p.series)
	}
	if len(p.times) >= fewSamples*len(p.series) {
		return p.columns, p.checkColumns()
	}
	p.rows = p.rows[:0]
	for _, s := range p.series {
		for i := range s.Times {
			p.rows = append(p.rows, metric.Sample{Schedule: s.Schedule, TimeMs: s.Times[i], Value: s.Values[i]})
		}
	}
	p.samples = AppendSamples(p.samples[:0], p.rows)
	if few || len(p.samples) < len(p.columns) {
		return p.samples, p.checkSamples()
	}
	return p.columns, p.checkColumns()
}

// regular reports whether the times of each series are at one interval.
func (p *Packer) regular() bool {
	for i := range p.series {
		times := p.series[i].Times
		for k := 2; k < len(times); k++ {
			if times[k]-times[k-1] != times[1]-times[0] {
				return false
			}
		}
	}
	return true
}

// checkColumns reads p.columns back. It takes a third of the time of making them, and whoever has the chunk deletes what it was
// made of.
func (p *Packer) checkColumns() error {
	err := p.reader.Open(p.columns)
	if err == nil && p.reader.Len() != len(p.series) {
		err = fmt.Errorf("%d series instead of %d", p.reader.Len(), len(p.series))
	}
	for i := 0; i < len(p.series) && err == nil; i++ {
		var times []int64
		s := &p.series[i]
		times, p.read, err = p.reader.Read(i, p.read[:0])
		if err == nil && (p.reader.Schedule(i) != s.Schedule || !slices.Equal(times, s.Times) || !sameBits(p.read, s.Values)) {
			err = fmt.Errorf("it differs from the samples of schedule %d", s.Schedule)
		}
	}
	return unlikeSamples(err)
}

// checkSamples reads p.samples back, as checkColumns does.
func (p *Packer) checkSamples() error {
	var err error
	p.again, err = DecodeSamples(p.again[:0], p.samples)
	if err == nil && !slices.EqualFunc(p.again, p.rows, func(a, b metric.Sample) bool {
		return a.Schedule == b.Schedule && a.TimeMs == b.TimeMs && math.Float64bits(a.Value) == math.Float64bits(b.Value)
	}) {
		err = errors.New("it differs from the samples")
	}
	return unlikeSamples(err)
}

func unlikeSamples(err error) error {
	if err != nil {
		return fmt.Errorf("a packed chunk does not give back its samples: %w", err)
	}
	return nil
}

func sameBits(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	differ := uint64(0)
	for i, v := range a {
		differ |= math.Float64bits(v) ^ math.Float64bits(b[i])
	}
	return differ == 0
}

// Count returns the number of samples of a chunk that can be decoded.
func Count(chunk []byte) int {
	if !isColumns(chunk) {
		return countIn(chunk)
	}
	r, err := openColumns(chunk)
	if err != nil {
		return 0
	}
	defer r.free()
	return r.Samples()
}

// isColumns reports whether a chunk is one of columns, by its first byte.
func isColumns(chunk []byte) bool { return len(chunk) > 0 && chunk[0] == columns.Format }

// columnReader reads the columns of a chunk as samples.
type columnReader struct {
	columns.Reader
	values  []float64
	ends    []int // see read
	weighed bool  // whether those below are of the open chunk
	wants   int   // samples of the series in question
	takes   int   // bytes to decode them
}

var columnReaders = sync.Pool{New: func() any { return new(columnReader) }}

// allIDs stands for all schedules, also the greatest.
var allIDs = Range{Start: 0, End: math.MaxInt64}

// DamagedColumns is the error for a chunk of which some columns cannot be read, and the others were. It wraps ErrCorrupt.
type DamagedColumns struct {
	// Schedules are those of the columns, sorted. The errors say what is wrong with each.
	Schedules []metric.ScheduleID
	Errs      []error
}

// Error implements error.
func (e *DamagedColumns) Error() string {
	more := ""
	if n := len(e.Errs) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more series", n)
	}
	return fmt.Sprintf("%v: %v%s", ErrCorrupt, e.Errs[0], more)
}

// Unwrap returns ErrCorrupt.
func (e *DamagedColumns) Unwrap() error { return ErrCorrupt }

// openColumns opens a chunk. Whoever has the reader frees it. The error is ErrCorrupt.
func openColumns(chunk []byte) (*columnReader, error) {
	r := columnReaders.Get().(*columnReader)
	r.weighed = false
	if err := r.Open(chunk); err != nil {
		r.free()
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return r, nil
}

// readColumns appends to dst the samples of a chunk of columns whose schedules are in ids; see columnReader.read.
func readColumns(dst []metric.Sample, chunk []byte, ids Range) ([]metric.Sample, error) {
	r, err := openColumns(chunk)
	if err != nil {
		return dst, err
	}
	defer r.free()
	return r.read(dst, ids, nil)
}

// read appends to dst the samples whose schedules are in ids, and of those what filter asks for; nil is all. It reads no other
// columns. The error is a *DamagedColumns, with the samples of the other columns. r.ends then has where in dst each series
// ends, unless the times of one do not ascend.
func (r *columnReader) read(dst []metric.Sample, ids Range, filter *only) ([]metric.Sample, error) {
	var damaged *DamagedColumns
	r.ends = r.ends[:0]
	ascend := true
	for i := range r.wanted(ids, filter) {
		id := r.Schedule(i)
		times, values, err := r.Read(i, r.values[:0])
		if err != nil {
			if damaged == nil {
				damaged = &DamagedColumns{}
			}
			damaged.Schedules, damaged.Errs = append(damaged.Schedules, id), append(damaged.Errs, err)
			continue
		}
		r.values = values
		from, to := 0, len(times)
		if filter != nil {
			from, to = filter.within(times)
		}
		if from == to {
			continue
		}
		begin := len(dst)
		dst = slices.Grow(dst, to-from)[:begin+to-from]
		times, values = times[from:to], values[from:to]
		into := dst[begin:][:len(times)]
		for k, t := range times {
			into[k] = metric.Sample{Schedule: id, TimeMs: t, Value: values[k]}
		}
		r.ends, ascend = append(r.ends, len(dst)), ascend && r.Ascend(i)
	}
	if !ascend {
		r.ends = r.ends[:0]
	}
	if damaged != nil {
		return dst, damaged
	}
	return dst, nil
}

// weigh finds out how many samples the series in question have, at all times, and what it takes to decode them: their times,
// and for the longest of them an integer and a value for each sample. It decodes nothing, and leaves out damaged columns.
func (r *columnReader) weigh(ids Range, filter *only) {
	if r.weighed {
		return
	}
	r.weighed, r.wants = true, 0
	times, longest := 0, 0
	for i := range r.wanted(ids, filter) {
		count, more, err := r.Count(i)
		if err != nil {
			continue
		}
		r.wants += count
		times += more
		longest = max(longest, count)
	}
	const word = 8
	r.takes = word * (times + 2*longest)
}

// scratch returns the bytes that reading takes meanwhile, whichever times are in question.
func (r *columnReader) scratch(ids Range, filter *only) int {
	r.weigh(ids, filter)
	return r.takes
}

// count returns how many samples read appends. It counts what lies outside of the times in question only if there are so few
// that this does not matter.
func (r *columnReader) count(ids Range, filter *only) int {
	r.weigh(ids, filter)
	if r.wants < minCompact || filter == nil {
		return r.wants
	}
	n := 0
	for i := range r.wanted(ids, filter) {
		times, err := r.Times(i)
		if err != nil {
			continue
		}
		from, to := filter.within(times)
		n += to - from
	}
	return n
}

// maxKept bounds the bytes of a reader that is kept for others.
const maxKept = 1 << 20

// free lets others use the reader, unless it has grown large.
func (r *columnReader) free() {
	if r.Bytes()+cap(r.values)*8 <= maxKept {
		columnReaders.Put(r)
	}
}

// within returns which of the times are asked for: those in [from, to).
func (o *only) within(times []int64) (from, to int) {
	from, _ = slices.BinarySearch(times, o.fromMs)
	to, _ = slices.BinarySearch(times, o.toMs)
	return from, max(from, to)
}

// wanted yields the indexes of the series in ids, and of those the ones that filter names; nil is all.
func (r *columnReader) wanted(ids Range, filter *only) iter.Seq[int] {
	return func(yield func(int) bool) {
		if filter == nil {
			i, _ := r.Find(ids.Start)
			for ; i < r.Len() && (r.Schedule(i) < ids.End || ids == allIDs); i++ {
				if !yield(i) {
					return
				}
			}
			return
		}
		for _, id := range filter.ids {
			if i, ok := r.Find(id); ok && ids.Contains(id) && !yield(i) {
				return
			}
		}
	}
}
