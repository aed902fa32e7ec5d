package metric

// Metadata describes all series of one name. It is for people and their tools: Quern computes
// nothing from it.
type Metadata struct {
	// Name is the name of the metric family: for a histogram, the name without _bucket, _sum and
	// _count.
	Name string
	Type Type
	Help string
	// Unit is the base unit, as in OpenMetrics: "seconds", or "".
	Unit string
}

// Type is the kind of a metric. The numbers are those of remote write, and are stored.
type Type uint8

// The types of OpenMetrics.
const (
	TypeUnknown Type = iota
	TypeCounter
	TypeGauge
	TypeHistogram
	TypeGaugeHistogram
	TypeSummary
	TypeInfo
	TypeStateset
	types
)

// String returns the type's name in OpenMetrics and in Prometheus' API.
func (t Type) String() string {
	if t >= types {
		t = TypeUnknown
	}
	return [...]string{"unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset"}[t]
}

// ParseType parses the name of a type. An unknown name gives TypeUnknown.
func ParseType(name string) Type {
	for t := range types {
		if t.String() == name {
			return t
		}
	}
	return TypeUnknown
}
