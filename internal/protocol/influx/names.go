package influx

import (
	"strings"

	"github.com/quern/quern/internal/ingest"
)

const (
	// maxNames bounds the cached names, and maxNameBytes each name: 16 MiB at most.
	maxNames     = 16 << 10
	maxNameBytes = 1 << 10
)

// names caches the metrics of fields, so that they are not concatenated anew for each line: most
// lines of a measurement have the same fields in the same order. When the cache is full, it starts
// over.
type names struct {
	measurements map[string]*fieldNames
	metrics      map[string]string
	n            int // number of cached measurements, metrics and places
	last         *fieldNames
	scratch      []byte
}

// fieldNames are the names of one measurement's fields, by position in the line.
type fieldNames struct {
	measurement string
	places      []fieldName
}

type fieldName struct{ field, metric string }

// fields returns the names of a measurement, at the beginning of a line.
func (n *names) fields(measurement string) *fieldNames {
	if n.last != nil && n.last.measurement == measurement {
		return n.last
	}
	if n.measurements == nil || n.n >= maxNames {
		*n = names{measurements: make(map[string]*fieldNames), metrics: make(map[string]string), scratch: n.scratch}
	}
	f, ok := n.measurements[measurement]
	if !ok {
		if len(measurement) > maxNameBytes {
			return &fieldNames{measurement: measurement}
		}
		f = &fieldNames{measurement: strings.Clone(measurement)}
		n.measurements[f.measurement] = f
		n.n++
	}
	n.last = f
	return f
}

// metric returns the metric of a field at a position in its line. A name that is not cached is
// owned by b.
func (n *names) metric(f *fieldNames, at int, field string, b *ingest.Batch) string {
	if at < len(f.places) && f.places[at].field == field {
		return f.places[at].metric
	}
	if f.measurement == "" {
		return field
	}
	n.scratch = append(n.scratch[:0], f.measurement...)
	n.scratch = append(n.scratch, '_')
	n.scratch = append(n.scratch, field...)
	name, ok := n.metrics[string(n.scratch)]
	if !ok {
		if len(n.scratch) > maxNameBytes || n.n >= maxNames {
			return b.Copy(n.scratch)
		}
		name = string(n.scratch)
		n.metrics[name] = name
		n.n++
	}
	if at == len(f.places) && n.n < maxNames {
		f.places = append(f.places, fieldName{})
		n.n++
	}
	if at < len(f.places) {
		f.places[at] = fieldName{field: name[len(name)-len(field):], metric: name}
	}
	return name
}
