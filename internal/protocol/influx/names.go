package influx

import "github.com/quern/quern/internal/ingest"

const (
	// maxNames bounds the cached names, and maxNameBytes each name: 16 MiB at most.
	maxNames     = 16 << 10
	maxNameBytes = 1 << 10
)

// names caches the metrics of fields, so that they are not concatenated anew for each line. When the cache is full, it
// starts over.
type names struct {
	metrics map[nameKey]name
	scratch []byte
}

// nameKey is a metric and the length of its measurement's name.
type nameKey struct {
	metric      string
	measurement int
}

type name struct {
	metric string
	clash  *clash // nil if there is none
}

// metric returns the metric of a field. A name that is not cached is owned by b.
func (n *names) metric(measurement, field string, b *ingest.Batch, clashes *clashMemory) (string, *clash) {
	if measurement == "" {
		return field, nil
	}
	n.scratch = append(n.scratch[:0], measurement...)
	n.scratch = append(n.scratch, '_')
	n.scratch = append(n.scratch, field...)
	known, ok := n.metrics[nameKey{string(n.scratch), len(measurement)}]
	switch {
	case ok:
		return known.metric, known.clash
	case len(n.scratch) > maxNameBytes:
		return b.Own(n.scratch), nil
	case n.metrics == nil || len(n.metrics) >= maxNames:
		n.metrics = make(map[nameKey]name)
	}
	metric := string(n.scratch)
	known = name{metric, clashes.find(metric, len(measurement))}
	n.metrics[nameKey{metric, len(measurement)}] = known
	return known.metric, known.clash
}
