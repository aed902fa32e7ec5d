package query

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/postings"
)

// symbols number the labels of all series, from 0. Series refer to their labels by these numbers, so that each text is
// stored once.
//
//  1. The texts of a label never change, and labels stay when their last series has gone. So who has a number needs no lock
//     for its texts.
//  2. Everything else is guarded by Index.mu.
type symbols struct {
	seed  maphash.Seed
	names map[string]*name
	at    places // of labels, by the hashes of name and value
	n     uint32
	// byNumber has the labels, symbolsAtOnce to an array. It is replaced when it grows.
	byNumber atomic.Pointer[[]*[symbolsAtOnce]symbol]
	texts    texts
}

const symbolsAtOnce = 512

// symbol is a label, with the series that have it.
type symbol struct {
	name  *name
	value string
	ids   postings.List
}

// name is the name of a label.
type name struct {
	text string
	hash uint64
	// values are the numbers of the label's values, in the order of arrival. What is before their end never changes.
	values []uint32
	// sorted are the first of values by their texts, nil until somebody asks.
	sorted atomic.Pointer[[]uint32]
	ids    postings.List // the series that have any value
}

func (s *symbols) init() {
	s.seed, s.names, s.at = maphash.MakeSeed(), make(map[string]*name), newPlaces()
	s.byNumber.Store(new([]*[symbolsAtOnce]symbol))
}

// symbol returns the label with a number.
func (s *symbols) symbol(number uint32) *symbol {
	return &(*s.byNumber.Load())[number/symbolsAtOnce][number%symbolsAtOnce]
}

// value returns the text of a label's value.
func (s *symbols) value(number uint32) string { return s.symbol(number).value }

// find returns the number of a label, and where it is or would be.
func (s *symbols) find(n *name, value string) (at, number uint32, ok bool) {
	return s.at.find(n.hash^maphash.String(s.seed, value), func(number uint32) bool {
		l := s.symbol(number)
		return l.name == n && l.value == value
	})
}

// lookUp returns the number of a label; ok is false if no series ever had it.
func (s *symbols) lookUp(name, value string) (number uint32, ok bool) {
	if n := s.names[name]; n != nil {
		_, number, ok = s.find(n, value)
	}
	return number, ok
}

// number returns the number of a label, and whether its name is new.
func (s *symbols) number(l metric.Label) (number uint32, fresh bool) {
	n := s.names[l.Name]
	if fresh = n == nil; fresh {
		n = &name{text: s.texts.keep(l.Name), hash: maphash.Comparable(s.seed, len(s.names))}
		s.names[n.text] = n
	}
	at, number, ok := s.find(n, l.Value)
	if ok {
		return number, fresh
	}
	number = s.n
	arrays := *s.byNumber.Load()
	if int(number/symbolsAtOnce) == len(arrays) {
		arrays = append(arrays, new([symbolsAtOnce]symbol)) // beyond the end of what readers have
		s.byNumber.Store(&arrays)
	}
	to := &arrays[number/symbolsAtOnce][number%symbolsAtOnce]
	to.name, to.value = n, s.texts.keep(l.Value)
	n.values = append(n.values, number)
	s.at.put(at, number)
	s.n++
	return number, fresh
}

// places find numbers of labels by the hashes of these: a number is at the hash, or at a later place if others are there.
// They hold less than a map by the labels themselves, and grow in small steps.
type places struct{ at map[uint32]uint32 }

func newPlaces() places { return places{make(map[uint32]uint32)} }

// find returns the first number that matches, and its place; ok is false if none does. Then at is where to put it.
func (p places) find(hash uint64, matches func(number uint32) bool) (at, number uint32, ok bool) {
	for at = uint32(hash); ; at++ {
		if number, ok = p.at[at]; !ok || matches(number) {
			return at, number, ok
		}
	}
}

func (p places) put(at, number uint32) { p.at[at] = number }

// textsAtOnce is how many bytes of texts are allocated together.
const textsAtOnce = 16 << 10

// texts keep copies of texts, many to an allocation.
type texts struct{ last *strings.Builder }

func (t *texts) keep(text string) string {
	if len(text) > textsAtOnce/16 {
		return strings.Clone(text)
	}
	if t.last == nil || t.last.Len()+len(text) > t.last.Cap() {
		t.last = new(strings.Builder)
		t.last.Grow(textsAtOnce)
	}
	at := t.last.Len()
	t.last.WriteString(text)
	return t.last.String()[at:]
}

const (
	// unsortedShare: values are sorted again when 1/unsortedShare of them have come since. Until then readers look at each
	// of these.
	unsortedShare = 8
	leastUnsorted = 64
)

// inOrder returns the values of a name by their texts, and those that have come since, in the order of arrival. values are
// name.values.
func (s *symbols) inOrder(n *name, values []uint32) (sorted, rest []uint32) {
	if known := n.sorted.Load(); known != nil {
		sorted = (*known)[:min(len(*known), len(values))]
		if len(sorted) < len(*known) { // another has sorted more meanwhile
			return *known, nil
		}
	}
	rest = values[len(sorted):]
	if len(rest) <= len(sorted)/unsortedShare+leastUnsorted {
		return sorted, rest
	}
	more := slices.Clone(rest)
	slices.SortFunc(more, s.compare)
	sorted = s.merged(sorted, more)
	n.sorted.Store(&sorted)
	return sorted, nil
}

func (s *symbols) compare(a, b uint32) int { return cmp.Compare(s.value(a), s.value(b)) }

// merged returns the values of two lists by their texts. Both are in order.
func (s *symbols) merged(a, b []uint32) []uint32 {
	out := make([]uint32, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if s.compare(a[0], b[0]) < 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// withPrefix returns the values that begin with a prefix, among them those in order and the rest.
func (s *symbols) withPrefix(sorted, rest []uint32, prefix string) []uint32 {
	from, _ := slices.BinarySearchFunc(sorted, prefix, func(number uint32, prefix string) int { return cmp.Compare(s.value(number), prefix) })
	n, _ := slices.BinarySearchFunc(sorted[from:], prefix, func(number uint32, prefix string) int {
		if strings.HasPrefix(s.value(number), prefix) {
			return -1
		}
		return 1
	})
	out := sorted[from : from+n : from+n]
	for _, number := range rest {
		if strings.HasPrefix(s.value(number), prefix) {
			out = append(out, number)
		}
	}
	return out
}
