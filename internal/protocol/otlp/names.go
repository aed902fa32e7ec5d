package otlp

import (
	"math"
	"strconv"
	"strings"

	"github.com/prometheus/otlptranslator"
)

// maxRemembered and maxRememberedName bound the caches, so that a sender with ever new names cannot
// fill the memory.
const (
	maxRemembered     = 4096
	maxRememberedName = 256
)

// names translates names as Prometheus does: it adds suffixes for unit and type, and replaces
// characters that PromQL would need to quote by underscores. It caches the results, since a sender
// sends the same names for ever.
type names struct {
	families map[familyKey]family
	labels   map[string]labelName
	numbers  map[uint64]string
}

type familyKey struct {
	name, unit string
	kind       otlptranslator.MetricType
}

// family holds the names of a metric's series.
type family struct {
	name, bucket, sum, count string
	unit                     string
	err                      error
}

type labelName struct {
	name string
	err  error
}

func newNames() names {
	return names{families: map[familyKey]family{}, labels: map[string]labelName{}, numbers: map[uint64]string{}}
}

func (n *names) family(key familyKey) family {
	if f, ok := n.families[key]; ok {
		return f
	}
	key.name, key.unit = strings.Clone(key.name), strings.Clone(key.unit)
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	name, err := namer.Build(otlptranslator.Metric{Name: key.name, Unit: key.unit, Type: key.kind})
	units := otlptranslator.UnitNamer{}
	f := family{
		name: name, bucket: name + "_bucket", sum: name + "_sum", count: name + "_count",
		unit: units.Build(key.unit), err: err,
	}
	if len(key.name)+len(key.unit) <= maxRememberedName {
		remember(n.families, key, f)
	}
	return f
}

func (n *names) label(key string) (string, error) {
	if l, ok := n.labels[key]; ok {
		return l.name, l.err
	}
	key = strings.Clone(key)
	namer := otlptranslator.LabelNamer{}
	name, err := namer.Build(key)
	if len(key) <= maxRememberedName {
		remember(n.labels, key, labelName{name, err})
	}
	return name, err
}

// number formats a bound or a quantile as the value of le or quantile.
func (n *names) number(v float64) string {
	bits := math.Float64bits(v)
	if s, ok := n.numbers[bits]; ok {
		return s
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	remember(n.numbers, bits, s)
	return s
}

func remember[K comparable, V any](m map[K]V, key K, value V) {
	if len(m) >= maxRemembered {
		clear(m)
	}
	m[key] = value
}
