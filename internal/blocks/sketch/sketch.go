// Package sketch summarises the values of a slice so that percentiles can be computed and
// neighbouring slices merged. It is a DDSketch (Masson, Rim and Lee, "DDSketch: A Fast and
// Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB 2019).
//
// The mapping of values to bins and the encoding are those of github.com/DataDog/sketches-go, so
// that its decoders in several languages can read the roll-up tables. This package has bins of its
// own: a roll-up fills and empties a sketch per schedule, of some dozens of values each, and the
// library's stores clear and encode whole pages for that.
package sketch

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/DataDog/sketches-go/ddsketch/encoding"
	"github.com/DataDog/sketches-go/ddsketch/mapping"
)

// RelativeAccuracy is the maximum relative distance of a quantile from a value of that rank: 1 %.
const RelativeAccuracy = 0.01

// MaxBins bounds the bins of either sign. A bin is 2 % wide, so values that span a factor of 10^8
// fit, however many there are. Beyond that the bins nearest to 0 are merged, and only quantiles in
// the merged bins lose their accuracy; see ErrCollapsed.
const MaxBins = 1024

// ErrCollapsed says why a quantile is not within RelativeAccuracy.
var ErrCollapsed = errors.New("the values span more than a factor of 10^8, and those of this rank are among the nearest to 0, which are stored as one")

// ErrCorrupt marks an encoded sketch that does not decode.
var ErrCorrupt = errors.New("sketch is damaged")

// version is the first encoded byte. It stands for the mapping, which the encoding therefore omits:
// cubic interpolation, RelativeAccuracy, no offset.
const version = 1

// indexes maps values to bins and back. It is immutable.
var indexes = func() *mapping.CubicallyInterpolatedMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(RelativeAccuracy)
	if err != nil {
		panic(err)
	}
	return m
}()

// minIndex and maxIndex bound the indexes of finite values. Values nearer to 0 than the least
// normal float64 count as 0.
var (
	minIndex = indexes.Index(indexes.MinIndexableValue())
	maxIndex = indexes.Index(indexes.MaxIndexableValue())
)

// Sketch is a DDSketch. The zero value is empty and ready to use. Reset empties a sketch and keeps
// its memory, at most about 150 kB.
type Sketch struct {
	zeros    uint64
	positive bins
	negative bins
}

// Reset empties the sketch.
func (s *Sketch) Reset() {
	s.zeros = 0
	s.positive.reset()
	s.negative.reset()
}

// Bytes returns the memory that the sketch holds.
func (s *Sketch) Bytes() int { return s.positive.bytes() + s.negative.bytes() }

// Add adds a value. sketches-go's mapping ends at about ±1.25e308; values beyond it, and the
// infinities, count as that limit. Add ignores NaN.
func (s *Sketch) Add(v float64) {
	switch least := indexes.MinIndexableValue(); {
	case v > least:
		s.positive.add(indexOf(v))
	case v < -least:
		s.negative.add(indexOf(-v))
	case !math.IsNaN(v):
		s.zeros = plus(s.zeros, 1)
	}
}

func indexOf(v float64) int32 {
	return int32(indexes.Index(min(v, indexes.MaxIndexableValue())))
}

// Count returns the number of values added.
func (s *Sketch) Count() uint64 {
	return s.zeros + s.positive.count() + s.negative.count()
}

// Quantile returns the quantile q of the values by the rule of PromQL: with r = q·(n-1), the values with the ranks ⌊r⌋ and
// ⌈r⌉ among the n added, counted from 0, each with a weight of 1 less its distance from r. least and most are the extremes
// of the values: the first and the last rank have exactly these values, and no quantile lies beyond them. The values of
// other ranks are within RelativeAccuracy; the error is ErrCollapsed if one of them may not be. Quantile returns NaN when
// the sketch is empty or q is NaN, and an infinity when q lies outside [0, 1].
func (s *Sketch) Quantile(q, least, most float64) (float64, error) {
	n := s.Count()
	switch {
	case n == 0 || math.IsNaN(q):
		return math.NaN(), nil
	case q < 0:
		return math.Inf(-1), nil
	case q > 1:
		return math.Inf(1), nil
	}
	var err error
	at := func(rank uint64) float64 {
		// A row's sketch may lack some of its samples. If it has a single one, this need not be an extreme.
		switch {
		case rank == 0 && n > 1:
			return least
		case rank == n-1 && n > 1:
			return most
		}
		v, collapsed := s.ranked(rank)
		if collapsed {
			err = ErrCollapsed
		}
		return max(least, min(most, v))
	}
	r := q * float64(n-1)
	below := min(uint64(r), n-1)
	v, weight := at(below), r-float64(below)
	if weight > 0 && below < n-1 {
		v = v*(1-weight) + at(below+1)*weight
	}
	return max(least, min(most, v)), err // the sum may have been rounded
}

// ranked returns a value within RelativeAccuracy of the value with the given rank, which must be below Count. The least
// value has rank 0. If collapsed, the value may lie in merged bins; then it may be any from 0 to v.
func (s *Sketch) ranked(rank uint64) (v float64, collapsed bool) {
	s.positive.fold()
	s.negative.fold()
	switch negatives := s.negative.count(); {
	case rank < negatives:
		rank = negatives - 1 - rank
		return -indexes.Value(s.negative.at(rank)), s.negative.collapsed(rank)
	case rank < negatives+s.zeros:
		return 0, false
	default:
		rank -= negatives + s.zeros
		return indexes.Value(s.positive.at(rank)), s.positive.collapsed(rank)
	}
}

// AppendEncoded appends the sketch to dst: the version byte, then up to three blocks of
// sketches-go, for the zeros, the positive and the negative values. Equal sketches have equal
// bytes, whatever the order of their values.
func (s *Sketch) AppendEncoded(dst []byte) []byte {
	dst = append(dst, version)
	if s.zeros > 0 {
		encoding.EncodeFlag(&dst, encoding.FlagZeroCountVarFloat)
		encoding.EncodeVarfloat64(&dst, float64(s.zeros))
	}
	dst = s.positive.appendEncoded(dst, encoding.FlagTypePositiveStore)
	return s.negative.appendEncoded(dst, encoding.FlagTypeNegativeStore)
}

// Merge adds all values of an encoded sketch. On error it returns ErrCorrupt; the sketch then holds
// part of the values and must be Reset.
func (s *Sketch) Merge(encoded []byte) error {
	if len(encoded) == 0 || encoded[0] != version {
		return fmt.Errorf("%w: unknown version", ErrCorrupt)
	}
	b := encoded[1:]
	for len(b) > 0 {
		flag, err := encoding.DecodeFlag(&b)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		switch {
		case flag == encoding.FlagZeroCountVarFloat:
			n, err := decodeCount(&b)
			if err != nil {
				return err
			}
			s.zeros = plus(s.zeros, n)
		case flag.Type() == encoding.FlagTypePositiveStore:
			err = s.positive.merge(&b, flag.SubFlag())
		case flag.Type() == encoding.FlagTypeNegativeStore:
			err = s.negative.merge(&b, flag.SubFlag())
		default:
			err = fmt.Errorf("%w: an unknown block", ErrCorrupt)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxCount bounds the count of a bin. Counts are encoded as float64, which is exact up to this
// value. A count that would exceed it stays there.
const maxCount = 1 << 52

func plus(a, b uint64) uint64 { return min(a+b, maxCount) }

func decodeCount(b *[]byte) (uint64, error) {
	v, err := encoding.DecodeVarfloat64(b)
	if err != nil || !(v >= 1 && v <= maxCount) || v != math.Trunc(v) {
		return 0, fmt.Errorf("%w: invalid bin count", ErrCorrupt)
	}
	return uint64(v), nil
}

// bin counts the values with one index.
type bin struct {
	index int32
	count uint64
}

// bins holds the values of one sign. It first only notes values, and then folds many at a time into
// the bins: sorting a few dozen small integers is cheaper than keeping an array that spans their
// range, and clearing them costs nothing.
type bins struct {
	noted  []int32 // indexes of single values not in sorted yet
	sorted []bin   // by index, at most MaxBins
	merged []bin   // scratch
}

// maxNoted bounds the number of noted values.
const maxNoted = 1024

func (s *bins) bytes() int {
	return cap(s.noted)*int(unsafe.Sizeof(int32(0))) + (cap(s.sorted)+cap(s.merged))*int(unsafe.Sizeof(bin{}))
}

func (s *bins) reset() {
	s.noted = s.noted[:0]
	s.sorted = s.sorted[:0]
}

func (s *bins) add(index int32) {
	if len(s.noted) == maxNoted {
		s.fold()
	}
	s.noted = append(s.noted, index)
}

func (s *bins) count() uint64 {
	n := uint64(len(s.noted))
	for _, b := range s.sorted {
		n += b.count
	}
	return n
}

// at returns the index of the value with the given rank; the least value has rank 0. The bins must
// be folded, and rank must be below count.
func (s *bins) at(rank uint64) int {
	for _, b := range s.sorted {
		if rank < b.count {
			return int(b.index)
		}
		rank -= b.count
	}
	return 0
}

// collapsed reports whether the value with the given rank may come from merged bins. collapse leaves MaxBins bins, and
// merges into the first of them; there are never fewer again. A bin of one value holds no other.
func (s *bins) collapsed(rank uint64) bool {
	return len(s.sorted) == MaxBins && rank < s.sorted[0].count && s.sorted[0].count > 1
}

// fold moves the noted values into the bins.
func (s *bins) fold() {
	if len(s.noted) == 0 {
		return
	}
	slices.Sort(s.noted)
	s.merged = s.merged[:0]
	for _, index := range s.noted {
		if n := len(s.merged); n > 0 && s.merged[n-1].index == index {
			s.merged[n-1].count++
		} else {
			s.merged = append(s.merged, bin{index: index, count: 1})
		}
	}
	s.noted = s.noted[:0]
	s.join()
}

// join adds the sorted bins in merged to those in sorted.
func (s *bins) join() {
	if len(s.sorted) == 0 {
		s.sorted, s.merged = s.merged, s.sorted
	} else {
		// Merge backwards in place, so that no third array is needed.
		i, j := len(s.sorted)-1, len(s.merged)-1
		s.sorted = append(s.sorted, s.merged...)
		at := len(s.sorted)
		for j >= 0 {
			at--
			switch {
			case i < 0 || s.merged[j].index > s.sorted[i].index:
				s.sorted[at] = s.merged[j]
				j--
			case s.merged[j].index == s.sorted[i].index:
				s.sorted[at] = bin{index: s.sorted[i].index, count: plus(s.sorted[i].count, s.merged[j].count)}
				i--
				j--
			default:
				s.sorted[at] = s.sorted[i]
				i--
			}
		}
		// Each pair of equal indexes has left a gap of one bin between i and at.
		s.sorted = slices.Delete(s.sorted, i+1, at)
	}
	s.collapse()
}

// collapse keeps the MaxBins bins furthest from 0 and adds the others to the nearest of these. The
// result does not depend on the order of the values. Only values with an index below the MaxBins-th
// from the top ever move, and they move at most up to that index.
func (s *bins) collapse() {
	extra := len(s.sorted) - MaxBins
	if extra <= 0 {
		return
	}
	for _, b := range s.sorted[:extra] {
		s.sorted[extra].count = plus(s.sorted[extra].count, b.count)
	}
	s.sorted = slices.Delete(s.sorted, 0, extra)
}

// appendEncoded uses the shortest of the three layouts of sketches-go.
func (s *bins) appendEncoded(dst []byte, sign encoding.FlagType) []byte {
	s.fold()
	n := len(s.sorted)
	if n == 0 {
		return dst
	}
	span := int(s.sorted[n-1].index-s.sorted[0].index) + 1
	single := true
	for _, b := range s.sorted {
		single = single && b.count == 1
	}

	last := int32(0)
	switch {
	case single:
		encoding.EncodeFlag(&dst, encoding.NewFlag(sign, encoding.BinEncodingIndexDeltas))
		encoding.EncodeUvarint64(&dst, uint64(n))
		for _, b := range s.sorted {
			encoding.EncodeVarint64(&dst, int64(b.index-last))
			last = b.index
		}
	case span < 2*n:
		encoding.EncodeFlag(&dst, encoding.NewFlag(sign, encoding.BinEncodingContiguousCounts))
		encoding.EncodeUvarint64(&dst, uint64(span))
		encoding.EncodeVarint64(&dst, int64(s.sorted[0].index))
		encoding.EncodeVarint64(&dst, 1)
		last = s.sorted[0].index - 1
		for _, b := range s.sorted {
			for last++; last < b.index; last++ {
				encoding.EncodeVarfloat64(&dst, 0)
			}
			encoding.EncodeVarfloat64(&dst, float64(b.count))
		}
	default:
		encoding.EncodeFlag(&dst, encoding.NewFlag(sign, encoding.BinEncodingIndexDeltasAndCounts))
		encoding.EncodeUvarint64(&dst, uint64(n))
		for _, b := range s.sorted {
			encoding.EncodeVarint64(&dst, int64(b.index-last))
			encoding.EncodeVarfloat64(&dst, float64(b.count))
			last = b.index
		}
	}
	return dst
}

var errBins = fmt.Errorf("%w: invalid bins", ErrCorrupt)

// merge decodes one block as appendEncoded writes it: indexes ascend, counts are whole. The library
// accepts more, and ignores errors here.
func (s *bins) merge(b *[]byte, layout encoding.SubFlag) error {
	s.fold()
	n, err := encoding.DecodeUvarint64(b)
	if err != nil || n == 0 || n > min(2*MaxBins, uint64(len(*b))) {
		return errBins
	}
	first, err := encoding.DecodeVarint64(b)
	if err != nil {
		return errBins
	}
	index, step := first, int64(1)
	if layout == encoding.BinEncodingContiguousCounts {
		if step, err = encoding.DecodeVarint64(b); err != nil || step != 1 {
			return errBins
		}
	}

	s.merged = s.merged[:0]
	for i := range n {
		if i > 0 && layout != encoding.BinEncodingContiguousCounts {
			if step, err = encoding.DecodeVarint64(b); err != nil || step <= 0 {
				return errBins
			}
		}
		if i > 0 {
			index += step
		}
		if index < int64(minIndex) || index > int64(maxIndex) || step > int64(maxIndex-minIndex) {
			return errBins
		}
		count := uint64(1)
		if layout != encoding.BinEncodingIndexDeltas {
			if layout == encoding.BinEncodingContiguousCounts && len(*b) > 0 && (*b)[0] == 0 {
				*b = (*b)[1:] // an empty bin between others
				continue
			}
			if count, err = decodeCount(b); err != nil {
				return err
			}
		}
		s.merged = append(s.merged, bin{index: int32(index), count: count})
	}
	if len(s.merged) == 0 {
		return errBins
	}
	s.join()
	return nil
}
