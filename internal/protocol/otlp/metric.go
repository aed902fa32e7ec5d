package otlp

import (
	"math"

	"github.com/prometheus/otlptranslator"
	"github.com/prometheus/prometheus/model/value"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// These are the fields of a metric and of its data, which is of one of five kinds.
var (
	metricName        = bytesTag(1)
	metricDescription = bytesTag(2)
	metricUnit        = bytesTag(3)
	metricGauge       = bytesTag(5)
	metricSum         = bytesTag(7)
	metricHistogram   = bytesTag(9)
	metricExponential = bytesTag(10)
	metricSummary     = bytesTag(11)

	dataPoints      = bytesTag(1)
	dataTemporality = varintTag(2)
	sumMonotonic    = varintTag(3)
)

// These are the values of AggregationTemporality other than unspecified.
const (
	temporalityDelta      = 1
	temporalityCumulative = 2
)

// series is the metric of the data points that are being decoded.
type series struct {
	family

	kind tag
	typ  metric.Type
}

func (d *decoder) metric(b []byte, bad flaw) error {
	if !d.b.Charge(ingest.MessageBytes) {
		return errFull
	}
	var name, description, unit string
	var data []byte
	var m series
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case metricName:
			name = view(f.bytes)
		case metricDescription:
			description = view(f.bytes)
		case metricUnit:
			unit = view(f.bytes)
		case metricGauge, metricSum, metricHistogram, metricExponential, metricSummary:
			m.kind, data = f.tag, f.bytes
		}
	}
	if f.err != nil {
		return f.err
	}
	temporality, monotonic := uint64(0), false
	f = fields{rest: data}
	for f.next() {
		switch f.tag {
		case dataTemporality:
			temporality = f.bits
		case sumMonotonic:
			monotonic = f.bits != 0
		}
	}
	if f.err != nil {
		return f.err
	}
	var kind otlptranslator.MetricType
	m.typ, kind = types(m.kind, monotonic)
	n := len(name) + len(unit)
	if n <= ingest.MaxNameBytes {
		m.family = d.names.family(familyKey{name, unit, kind})
	}
	switch {
	case bad.reason != "":
	case n > ingest.MaxNameBytes:
		bad = flawed(ingest.ReasonInvalidMetric, "metric %s: its name and unit have %d bytes, more than the limit of %d", excerpt.Quoted(name), n, ingest.MaxNameBytes)
	case m.kind == metricExponential:
		bad = flawed(ingest.ReasonUnsupported, "metric %s%s is an exponential histogram, which is not stored: have the SDK "+
			"use explicit buckets (OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=explicit_bucket_histogram)", excerpt.Quoted(name), d.ofJob())
	case (m.kind == metricSum || m.kind == metricHistogram) && temporality != temporalityCumulative:
		what := "no temporality"
		if temporality == temporalityDelta {
			what = "delta temporality"
		}
		bad = flawed(ingest.ReasonUnsupported, "metric %s%s has %s, only cumulative is stored: "+
			"set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative for the SDK, or use the collector's deltatocumulative processor",
			excerpt.Quoted(name), d.ofJob(), what)
	case m.err != nil:
		bad = flawed(ingest.ReasonInvalidMetric, "%s", m.err)
	default:
		d.note(metric.Metadata{Name: m.name, Type: m.typ, Help: description, Unit: m.unit})
	}
	f = fields{rest: data}
	for f.next() {
		if f.tag != dataPoints {
			continue
		}
		if err := d.dataPoint(&m, f.bytes, bad); err != nil {
			return err
		}
	}
	return f.err
}

// ofJob names the service to reconfigure, if the resource identifies it.
func (d *decoder) ofJob() string {
	if at := find(d.identity, "job"); at >= 0 {
		return " of job " + excerpt.Quoted(d.identity[at].Value)
	}
	return ""
}

// types returns Prometheus' type for a kind of data, and the type that determines the name.
func types(kind tag, monotonic bool) (metric.Type, otlptranslator.MetricType) {
	switch {
	case kind == metricGauge:
		return metric.TypeGauge, otlptranslator.MetricTypeGauge
	case kind == metricSum && monotonic:
		return metric.TypeCounter, otlptranslator.MetricTypeMonotonicCounter
	case kind == metricSum:
		return metric.TypeGauge, otlptranslator.MetricTypeNonMonotonicCounter
	case kind == metricHistogram:
		return metric.TypeHistogram, otlptranslator.MetricTypeHistogram
	case kind == metricSummary:
		return metric.TypeSummary, otlptranslator.MetricTypeSummary
	}
	return metric.TypeUnknown, otlptranslator.MetricTypeUnknown
}

// These are the fields of NumberDataPoint, HistogramDataPoint and SummaryDataPoint, which share
// some numbers.
var (
	pointTime = fixed64Tag(3)

	numberDouble     = fixed64Tag(4)
	numberInt        = fixed64Tag(6)
	numberAttributes = bytesTag(7)
	numberFlags      = varintTag(8)

	histogramCount      = fixed64Tag(4)
	histogramSum        = fixed64Tag(5)
	histogramCounts     = bytesTag(6)
	histogramCountAlone = fixed64Tag(6)
	histogramBounds     = bytesTag(7)
	histogramBoundAlone = fixed64Tag(7)
	histogramAttributes = bytesTag(9)
	histogramFlags      = varintTag(10)

	summaryCount      = fixed64Tag(4)
	summarySum        = fixed64Tag(5)
	summaryQuantiles  = bytesTag(6)
	summaryAttributes = bytesTag(7)
	summaryFlags      = varintTag(8)
	quantileQuantile  = fixed64Tag(1)
	quantileValue     = fixed64Tag(2)
)

// noRecordedValue is the data point flag that marks the end of a series.
const noRecordedValue = 1

// point is a data point of any kind.
type point struct {
	timeMs  int64
	stale   bool
	counted bool // already counted in the batch

	attributes []attribute
	bad        flaw

	value    float64
	hasValue bool

	count     uint64
	sum       float64
	hasSum    bool
	counts    []uint64
	bounds    []float64
	quantiles []quantile
}

type quantile struct{ quantile, value float64 }

// quantileBytes is the memory of a quantile. In the message, a zero quantile takes only two bytes.
const quantileBytes = 16

func (p *point) reset() {
	*p = point{
		timeMs: ingest.NoTime, attributes: p.attributes[:0],
		counts: emptied(p.counts), bounds: emptied(p.bounds), quantiles: emptied(p.quantiles),
	}
}

// emptied returns s, emptied for the next data point. It drops a slice that a huge data point has
// made large.
func emptied[T any](s []T) []T {
	const keep = 16 << 10
	if cap(s) > keep {
		return nil
	}
	return s[:0]
}

// dataPoint adds a data point to the batch, or rejects it.
func (d *decoder) dataPoint(m *series, b []byte, bad flaw) error {
	if bad.reason == "" {
		d.point.reset()
		if err := d.read(m.kind, b); err != nil {
			return err
		}
		if bad = d.point.bad; bad.reason == "" {
			bad = d.pointLabels()
		}
	}
	if bad.reason != "" {
		if !d.b.Reject(bad.reason, "%s", bad.message) {
			return errFull
		}
		return nil
	}
	switch m.kind {
	case metricHistogram:
		return d.histogram(m)
	case metricSummary:
		return d.summary(m)
	}
	if err := d.series(m.name); err != nil {
		return err
	}
	return d.sample(d.point.value)
}

// pointLabels builds the data point's labels.
func (d *decoder) pointLabels() flaw {
	labels, bad := d.translate(d.labels[:0], d.point.attributes, "")
	own := len(labels)
	for i := range d.fixed {
		l := &d.fixed[i]
		switch at := find(labels[:own], l.Name); {
		case at < 0:
			labels = append(labels, l.Label)
		case l.strong || labels[at].Value == "":
			labels[at] = l.Label
		}
	}
	d.labels = labels
	return bad
}

// sample adds a sample to the series. The first sample of a data point counts as the measurement;
// further samples belong to it.
func (d *decoder) sample(v float64) error {
	p := &d.point
	if p.stale {
		v = math.Float64frombits(value.StaleNaN)
	}
	ok := false
	if p.counted {
		ok = d.b.AddTo(d.b.Len()-1, p.timeMs, v)
	} else {
		ok = d.b.Add(p.timeMs, v)
	}
	if !ok {
		return errFull
	}
	p.counted = true
	d.taken++
	d.latestMs = max(d.latestMs, p.timeMs)
	return nil
}

// countAndSum adds the series that histograms and summaries have in common.
func (d *decoder) countAndSum(m *series) error {
	if err := d.series(m.count); err != nil {
		return err
	}
	if err := d.sample(float64(d.point.count)); err != nil {
		return err
	}
	if !d.point.hasSum {
		return nil
	}
	d.b.Metric(m.sum)
	return d.sample(d.point.sum)
}

func (d *decoder) histogram(m *series) error {
	if err := d.countAndSum(m); err != nil {
		return err
	}
	p, cumulative := &d.point, uint64(0)
	for i, bound := range p.bounds {
		if i < len(p.counts) { // false if no value was recorded
			cumulative += p.counts[i]
		}
		d.set(metric.Label{Name: "le", Value: d.names.number(bound)})
		if err := d.series(m.bucket); err != nil {
			return err
		}
		if err := d.sample(float64(cumulative)); err != nil {
			return err
		}
	}
	d.set(metric.Label{Name: "le", Value: "+Inf"})
	if err := d.series(m.bucket); err != nil {
		return err
	}
	return d.sample(float64(p.count))
}

func (d *decoder) summary(m *series) error {
	if err := d.countAndSum(m); err != nil {
		return err
	}
	for _, q := range d.point.quantiles {
		d.set(metric.Label{Name: "quantile", Value: d.names.number(q.quantile)})
		if err := d.series(m.name); err != nil {
			return err
		}
		if err := d.sample(q.value); err != nil {
			return err
		}
	}
	return nil
}

// read decodes a data point. It returns an error for a malformed message only; other faults go into
// point.bad.
func (d *decoder) read(kind tag, b []byte) error {
	switch kind {
	case metricHistogram:
		return d.readHistogram(b)
	case metricSummary:
		return d.readSummary(b)
	}
	return d.readNumber(b)
}

func (d *decoder) readNumber(b []byte) error {
	p := &d.point
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case numberAttributes:
			if err := d.pointAttribute(f.bytes); err != nil {
				return err
			}
		case pointTime:
			p.time(f.bits)
		case numberDouble:
			p.value, p.hasValue = f.double(), true
		case numberInt:
			p.value, p.hasValue = float64(int64(f.bits)), true
		case numberFlags:
			p.stale = f.bits&noRecordedValue != 0
		}
	}
	if !p.hasValue && !p.stale {
		p.bad = flawed(ingest.ReasonInvalidValue, "the data point has no value")
	}
	return f.err
}

func (d *decoder) readHistogram(b []byte) error {
	p := &d.point
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case histogramAttributes:
			if err := d.pointAttribute(f.bytes); err != nil {
				return err
			}
		case pointTime:
			p.time(f.bits)
		case histogramCount:
			p.count = f.bits
		case histogramSum:
			p.sum, p.hasSum = f.double(), true
		case histogramCountAlone:
			p.counts = append(p.counts, f.bits)
		case histogramBoundAlone:
			p.bounds = append(p.bounds, f.double())
		case histogramCounts:
			if err := d.packed(f.bytes, func(bits uint64) { p.counts = append(p.counts, bits) }); err != nil {
				return err
			}
		case histogramBounds:
			if err := d.packed(f.bytes, func(bits uint64) { p.bounds = append(p.bounds, math.Float64frombits(bits)) }); err != nil {
				return err
			}
		case histogramFlags:
			p.stale = f.bits&noRecordedValue != 0
		}
	}
	p.checkBuckets()
	return f.err
}

// packed decodes packed numbers and charges their memory.
func (d *decoder) packed(b []byte, do func(bits uint64)) error {
	if !d.b.Charge(int64(len(b))) {
		return errFull
	}
	return fixed64s(b, do)
}

// checkBuckets sets p.bad if the histogram's buckets are invalid. A histogram may have no buckets.
func (p *point) checkBuckets() {
	if len(p.counts) != len(p.bounds)+1 && len(p.counts)+len(p.bounds) > 0 && !p.stale {
		p.bad = flawed(ingest.ReasonInvalidValue, "the histogram has %d bounds and %d buckets, there must be one bucket more",
			len(p.bounds), len(p.counts))
		return
	}
	for i, b := range p.bounds {
		if math.IsNaN(b) || i > 0 && b <= p.bounds[i-1] {
			p.bad = flawed(ingest.ReasonInvalidValue, "the histogram's bounds do not increase")
			return
		}
	}
}

func (d *decoder) readSummary(b []byte) error {
	p := &d.point
	p.hasSum = true // a sum of 0 is not encoded
	f := fields{rest: b}
	for f.next() {
		switch f.tag {
		case summaryAttributes:
			if err := d.pointAttribute(f.bytes); err != nil {
				return err
			}
		case pointTime:
			p.time(f.bits)
		case summaryCount:
			p.count = f.bits
		case summarySum:
			p.sum = f.double()
		case summaryQuantiles:
			var q quantile
			qf := fields{rest: f.bytes}
			for qf.next() {
				switch qf.tag {
				case quantileQuantile:
					q.quantile = qf.double()
				case quantileValue:
					q.value = qf.double()
				}
			}
			if qf.err != nil {
				return qf.err
			}
			if !d.b.Charge(quantileBytes) {
				return errFull
			}
			p.quantiles = append(p.quantiles, q)
		case summaryFlags:
			p.stale = f.bits&noRecordedValue != 0
		}
	}
	return f.err
}

func (d *decoder) pointAttribute(b []byte) error {
	if len(d.point.attributes) > d.opts.Labels {
		return nil // translate will reject it
	}
	key, value, err := keyValue(b)
	if err != nil {
		return err
	}
	a, bad, err := d.attribute(key, value)
	if err != nil {
		return err
	}
	if bad.reason != "" {
		d.point.bad = bad
	}
	d.point.attributes = append(d.point.attributes, a)
	return nil
}

// time sets the time from ns since 1970; 0 means none.
func (p *point) time(ns uint64) {
	if ns != 0 {
		p.timeMs = int64(ns / 1_000_000)
	}
}
