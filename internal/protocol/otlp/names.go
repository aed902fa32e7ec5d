package otlp

import (
	"github.com/prometheus/otlptranslator"
)

// maxNames bounds each cache of names, so that a sender with ever new names cannot fill the memory.
const maxNames = 4096

// names translates names as Prometheus does: it adds suffixes for unit and type, and replaces
// characters that PromQL would need to quote by underscores. It caches the results, since a sender
// sends the same names for ever.
type names struct {
	families map[familyKey]family
	labels   map[string]labelName
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
	return names{families: map[familyKey]family{}, labels: map[string]labelName{}}
}

func (n *names) family(key familyKey) family {
	return cached(n.families, key, func() family {
		namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
		name, err := namer.Build(otlptranslator.Metric{Name: key.name, Unit: key.unit, Type: key.kind})
		units := otlptranslator.UnitNamer{}
		return family{
			name: name, bucket: name + "_bucket", sum: name + "_sum", count: name + "_count",
			unit: units.Build(key.unit), err: err,
		}
	})
}

func (n *names) label(key string) (string, error) {
	l := cached(n.labels, key, func() labelName {
		namer := otlptranslator.LabelNamer{}
		name, err := namer.Build(key)
		return labelName{name, err}
	})
	return l.name, l.err
}

// cached returns the value of a key. A full cache starts over.
func cached[K comparable, V any](m map[K]V, key K, build func() V) V {
	v, ok := m[key]
	if !ok {
		if len(m) >= maxNames {
			clear(m)
		}
		v = build()
		m[key] = v
	}
	return v
}
