package metric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// NameLabel is the label that holds the metric's name.
	NameLabel = "__name__"
	// SourceLabel is the label that holds the source: what reports. The series of one source share
	// a registry partition and have neighbouring ids.
	SourceLabel = "source"
)

// Label is one label of a series: a name and a value.
type Label struct {
	Name  string
	Value string
}

// Labels identifies a series. The labels are sorted by name, names are unique, and no value is
// empty. NewLabels ensures this.
type Labels []Label

// NewLabels sorts the given labels and drops those with an empty value: by Prometheus' rule they
// are the same as absent labels. A duplicate name is an error.
func NewLabels(ls ...Label) (Labels, error) {
	out := make(Labels, 0, len(ls))
	for _, l := range ls {
		if l.Value != "" {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(out); i++ {
		if out[i].Name == out[i-1].Name {
			return nil, fmt.Errorf("label %s is given twice", excerpt.Quoted(out[i].Name))
		}
	}
	return out, nil
}

// ResourceAttributes are the attributes of an OpenTelemetry resource that become labels of its series, if nothing else is said. Without
// them the series of many hosts would be one.
const ResourceAttributes = "host.name,k8s.cluster.name,k8s.namespace.name,k8s.node.name,k8s.pod.name,k8s.container.name"

// SourceLabels are the labels that may name the source of a series that has no label SourceLabel, best first.
type SourceLabels []string

// SourceOf returns the source of a series, whose labels may be in any order. If a label SourceLabel names it, that is
// the label at index at. Otherwise the source is derived: it is the value of the first label of the list that the series
// has, or empty. Labels with an empty value count as absent.
func (s SourceLabels) SourceOf(labels []Label) (source string, derived bool, at int) {
	best := len(s)
	for i := range labels {
		l := &labels[i]
		if l.Value == "" {
			continue
		}
		if l.Name == SourceLabel {
			return l.Value, false, i
		}
		if rank := slices.Index(s[:best], l.Name); rank >= 0 {
			source, best = l.Value, rank
		}
	}
	return source, true, 0
}

// Get returns the value of the named label, "" when absent.
func (ls Labels) Get(name string) string {
	for _, l := range ls {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// String returns the series in Prometheus' notation: name{label="value",…}.
func (ls Labels) String() string {
	var sb strings.Builder
	sb.WriteString(ls.Get(NameLabel))
	sb.WriteByte('{')
	first := true
	for _, l := range ls {
		if l.Name == NameLabel {
			continue
		}
		if !first {
			sb.WriteByte(',')
		}
		first = false
		sb.WriteString(l.Name)
		sb.WriteByte('=')
		sb.WriteString(strconv.Quote(l.Value))
	}
	sb.WriteByte('}')
	return sb.String()
}

// AppendKey appends the canonical bytes of one label: name and value, each after its length as an
// unsigned varint. The key of a series consists of its labels in order; docs/format/series.md has
// the bytes.
func (l Label) AppendKey(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(l.Name)))
	dst = append(dst, l.Name...)
	dst = binary.AppendUvarint(dst, uint64(len(l.Value)))
	return append(dst, l.Value...)
}

// AppendKey appends the canonical bytes of the labels. Two series are the same if and only if their
// keys are equal.
func (ls Labels) AppendKey(dst []byte) []byte {
	for _, l := range ls {
		dst = l.AppendKey(dst)
	}
	return dst
}

// In returns the labels with the text of key, which AppendKey has made of them. So they take no more
// memory than it.
func (ls Labels) In(key string) Labels {
	out := make(Labels, len(ls), len(ls)+1) // there is room for the label of the source
	cut := func(n int) (s string) {
		key = key[uvarintLen(n):]
		s, key = key[:n], key[n:]
		return s
	}
	for i, l := range ls {
		out[i].Name = cut(len(l.Name))
		out[i].Value = cut(len(l.Value))
	}
	return out
}

func uvarintLen(n int) int { return max(1, (bits.Len(uint(n))+6)/7) }

var errLabelKey = errors.New("series key is damaged")

// ParseLabels decodes labels from the bytes of AppendKey.
func ParseLabels(key []byte) (Labels, error) {
	var out Labels
	for len(key) > 0 {
		var l Label
		var ok bool
		if l.Name, key, ok = cutString(key); !ok {
			return nil, errLabelKey
		}
		if l.Value, key, ok = cutString(key); !ok {
			return nil, errLabelKey
		}
		if len(out) > 0 && out[len(out)-1].Name >= l.Name {
			return nil, errLabelKey
		}
		out = append(out, l)
	}
	return out, nil
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) || !utf8.Valid(b[w:w+int(n)]) {
		return "", nil, false
	}
	return string(b[w : w+int(n)]), b[w+int(n):], true
}
