package query

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// Packed are the labels of a series as the index holds them, in the order of their names. They never change: if the id
// gets other labels, these are others. The zero value has none.
type Packed struct {
	symbols *symbols
	refs    []uint32
}

// Packed returns the labels of a series without a copy, none if it is unknown.
func (x *Index) Packed(id metric.ScheduleID) Packed { return Packed{&x.symbols, x.pages.refs(id)} }

// Packed returns the labels of the series at index i.
func (g Group) Packed(i int) Packed { return g.q.index.Packed(g.ids[i]) }

// Len returns the number of labels.
func (p Packed) Len() int { return len(p.refs) }

// At returns the label at index i.
func (p Packed) At(i int) metric.Label {
	l := p.symbols.symbol(p.refs[i] &^ lastRef)
	return metric.Label{Name: l.name.text, Value: l.value}
}

// All yields the labels.
func (p Packed) All() iter.Seq[metric.Label] {
	return func(yield func(metric.Label) bool) {
		for i := range p.refs {
			if !yield(p.At(i)) {
				return
			}
		}
	}
}

// Get returns the value of the named label, "" when absent.
func (p Packed) Get(name string) string {
	for l := range p.All() {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// Labels returns the labels as the caller's own, nil if there are none.
func (p Packed) Labels() metric.Labels { return p.appendTo(slices.Grow(metric.Labels(nil), p.Len())) }

func (p Packed) appendTo(to metric.Labels) metric.Labels {
	for l := range p.All() {
		to = append(to, l)
	}
	return to
}

// Compare orders labels by the first that differ, by name and then by value, of labels of one index.
func (p Packed) Compare(other Packed) int {
	for i := range min(len(p.refs), len(other.refs)) {
		if p.refs[i]&^lastRef == other.refs[i]&^lastRef {
			continue
		}
		a, b := p.At(i), other.At(i)
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	}
	return cmp.Compare(len(p.refs), len(other.refs))
}
