package influx

import (
	"strings"

	"github.com/quern/quern/internal/ingest"
)

const (
	// maxNames bounds what is remembered, and maxNameBytes one name of it: 16 MiB at the very most.
	maxNames     = 16 << 10
	maxNameBytes = 1 << 10
)

// names remembers the metrics that fields become, so that in the long run none is put together anew: most lines of a
// measurement have the same fields in the same order. When there are too many it begins from nothing.
type names struct {
	measurements map[string]*fieldNames
	metrics      map[string]string
	n            int // measurements, metrics and places
	last         *fieldNames
	scratch      []byte
}

// fieldNames are those of one measurement, by the place of the field in the line.
type fieldNames struct {
	measurement string
	places      []fieldName
}

type fieldName struct {
	field, metric string
	clash         *clash // nil for none
}

// of are the names of a measurement, at the beginning of a line.
func (n *names) of(measurement string) *fieldNames {
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

// metric is what a field at some place in its line becomes. What is not remembered is b's.
func (n *names) metric(f *fieldNames, at int, field string, b *ingest.Batch, clashes *Clashes) (string, *clash) {
	if at < len(f.places) && f.places[at].field == field {
		return f.places[at].metric, f.places[at].clash
	}
	if f.measurement == "" {
		return field, nil
	}
	n.scratch = append(n.scratch[:0], f.measurement...)
	n.scratch = append(n.scratch, '_')
	n.scratch = append(n.scratch, field...)
	name, ok := n.metrics[string(n.scratch)]
	if !ok {
		if len(n.scratch) > maxNameBytes || n.n >= maxNames {
			return b.Own(n.scratch), nil
		}
		name = string(n.scratch)
		n.metrics[name] = name
		n.n++
	}
	c := clashes.find(name, len(f.measurement))
	if at == len(f.places) && n.n < maxNames {
		f.places = append(f.places, fieldName{})
		n.n++
	}
	if at < len(f.places) {
		f.places[at] = fieldName{field: name[len(name)-len(field):], metric: name, clash: c}
	}
	return name, c
}
