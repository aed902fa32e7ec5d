package otlp

import (
	"errors"
	"math"
	"strconv"

	"github.com/prometheus/otlptranslator"
	"github.com/prometheus/prometheus/model/value"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// metric adds the data points of a metric to the batch, or rejects them.
func (d *decoder) metric(m *metricspb.Metric) error {
	typ, kind := types(m)
	f, bad := d.family(m, kind)
	if bad == nil {
		d.note(metric.Metadata{Name: f.name, Type: typ, Help: m.GetDescription(), Unit: f.unit})
	}
	switch data := m.GetData().(type) {
	case *metricspb.Metric_Gauge:
		return addPoints(d, data.Gauge.GetDataPoints(), f, bad, d.number)
	case *metricspb.Metric_Sum:
		return addPoints(d, data.Sum.GetDataPoints(), f, bad, d.number)
	case *metricspb.Metric_Histogram:
		return addPoints(d, data.Histogram.GetDataPoints(), f, bad, d.histogram)
	case *metricspb.Metric_Summary:
		return addPoints(d, data.Summary.GetDataPoints(), f, bad, d.summary)
	case *metricspb.Metric_ExponentialHistogram:
		return addPoints(d, data.ExponentialHistogram.GetDataPoints(), f, bad, nil)
	}
	return nil
}

// types returns Prometheus' type for a metric, and the type that determines the name.
func types(m *metricspb.Metric) (metric.Type, otlptranslator.MetricType) {
	switch data := m.GetData().(type) {
	case *metricspb.Metric_Gauge:
		return metric.TypeGauge, otlptranslator.MetricTypeGauge
	case *metricspb.Metric_Sum:
		if data.Sum.GetIsMonotonic() {
			return metric.TypeCounter, otlptranslator.MetricTypeMonotonicCounter
		}
		return metric.TypeGauge, otlptranslator.MetricTypeNonMonotonicCounter
	case *metricspb.Metric_Histogram:
		return metric.TypeHistogram, otlptranslator.MetricTypeHistogram
	case *metricspb.Metric_Summary:
		return metric.TypeSummary, otlptranslator.MetricTypeSummary
	}
	return metric.TypeUnknown, otlptranslator.MetricTypeUnknown
}

// family returns the names of a metric's series, or why none of its data points is stored.
func (d *decoder) family(m *metricspb.Metric, kind otlptranslator.MetricType) (family, error) {
	name := excerpt.Quoted(m.GetName())
	if d.bad != nil {
		return family{}, d.bad
	}
	if n := len(m.GetName()) + len(m.GetUnit()); n > ingest.MaxNameBytes {
		return family{}, flawed(ingest.ReasonInvalidMetric, "metric %s: its name and unit have %d bytes, more than the limit of %d", name, n, ingest.MaxNameBytes)
	}
	if at := find(d.identity, "job"); at >= 0 {
		name += " of job " + excerpt.Quoted(d.identity[at].Value) // that is what to reconfigure
	}
	temporality := metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	switch {
	case m.GetExponentialHistogram() != nil:
		return family{}, flawed(ingest.ReasonUnsupported, "metric %s is an exponential histogram, which is not stored: have the SDK "+
			"use explicit buckets (OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=explicit_bucket_histogram)", name)
	case m.GetSum() != nil:
		temporality = m.GetSum().GetAggregationTemporality()
	case m.GetHistogram() != nil:
		temporality = m.GetHistogram().GetAggregationTemporality()
	}
	if temporality != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
		what := "no temporality"
		if temporality == metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA {
			what = "delta temporality"
		}
		return family{}, flawed(ingest.ReasonUnsupported, "metric %s has %s, only cumulative is stored: "+
			"set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative for the SDK, or use the collector's deltatocumulative processor",
			name, what)
	}
	f := d.names.family(familyKey{m.GetName(), m.GetUnit(), kind})
	if f.err != nil {
		return f, flawed(ingest.ReasonInvalidMetric, "%s", f.err)
	}
	return f, nil
}

// dataPoint is a data point of any kind.
type dataPoint interface {
	GetAttributes() []*commonpb.KeyValue
	GetTimeUnixNano() uint64
	GetFlags() uint32
}

// point is what is stored of the current data point.
type point struct {
	timeMs  int64
	stale   bool // it marks the end of its series
	counted bool // already counted in the batch
}

// addPoints adds data points to the batch, or rejects them. bad is why it rejects all of them; add returns a flaw for one
// that cannot be stored, before it adds any sample of it.
func addPoints[P dataPoint](d *decoder, points []P, f family, bad error, add func(family, P) error) error {
	for _, p := range points {
		err := bad
		if err == nil {
			err = d.begin(p)
		}
		if err == nil {
			err = add(f, p)
		}
		if rejected := (*flaw)(nil); errors.As(err, &rejected) {
			if !d.b.Reject(rejected.reason, "%s", rejected.message) {
				return errFull
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// begin sets the time and the labels of a data point.
func (d *decoder) begin(p dataPoint) error {
	d.point = point{timeMs: ingest.NoTime, stale: p.GetFlags()&uint32(metricspb.DataPointFlags_DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK) != 0}
	if ns := p.GetTimeUnixNano(); ns != 0 {
		d.point.timeMs = int64(ns / 1_000_000)
	}
	if n := len(p.GetAttributes()); n > d.opts.Labels {
		return flawed(ingest.ReasonLimit, "more than the limit of %d attributes", d.opts.Labels)
	}
	d.scratch = d.attributes(d.scratch[:0], p.GetAttributes())
	labels, bad := d.translate(d.labels[:0], d.scratch, "")
	for _, l := range d.promoted {
		if at := find(labels, l.Name); at < 0 || labels[at].Value == "" {
			labels = set(labels, l.Name, l.Value)
		}
	}
	for _, l := range d.strong {
		labels = set(labels, l.Name, l.Value)
	}
	d.labels = labels
	return bad
}

// sample adds a sample to a series with the labels of the data point. The first sample of a data point counts as the
// measurement; further samples belong to it.
func (d *decoder) sample(name string, v float64) error {
	d.b.Series(name, d.labels)
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

func (d *decoder) number(f family, p *metricspb.NumberDataPoint) error {
	switch v := p.GetValue().(type) {
	case *metricspb.NumberDataPoint_AsDouble:
		return d.sample(f.name, v.AsDouble)
	case *metricspb.NumberDataPoint_AsInt:
		return d.sample(f.name, float64(v.AsInt))
	}
	if d.point.stale {
		return d.sample(f.name, 0)
	}
	return flawed(ingest.ReasonInvalidValue, "the data point has no value")
}

func (d *decoder) histogram(f family, p *metricspb.HistogramDataPoint) error {
	counts, bounds := p.GetBucketCounts(), p.GetExplicitBounds()
	if len(counts) != len(bounds)+1 && len(counts)+len(bounds) > 0 && !d.point.stale {
		return flawed(ingest.ReasonInvalidValue, "the histogram has %d bounds and %d buckets, there must be one bucket more", len(bounds), len(counts))
	}
	for i, b := range bounds {
		if math.IsNaN(b) || i > 0 && b <= bounds[i-1] {
			return flawed(ingest.ReasonInvalidValue, "the histogram's bounds do not increase")
		}
	}
	if err := d.sample(f.count, float64(p.GetCount())); err != nil {
		return err
	}
	if p.Sum != nil {
		if err := d.sample(f.sum, p.GetSum()); err != nil {
			return err
		}
	}
	cumulative := uint64(0)
	for i, bound := range bounds {
		if i < len(counts) { // false if no value was recorded
			cumulative += counts[i]
		}
		if err := d.labelled("le", bound, f.bucket, float64(cumulative)); err != nil {
			return err
		}
	}
	return d.labelled("le", math.Inf(1), f.bucket, float64(p.GetCount()))
}

func (d *decoder) summary(f family, p *metricspb.SummaryDataPoint) error {
	if err := d.sample(f.count, float64(p.GetCount())); err != nil {
		return err
	}
	if err := d.sample(f.sum, p.GetSum()); err != nil {
		return err
	}
	for _, q := range p.GetQuantileValues() {
		if err := d.labelled("quantile", q.GetQuantile(), f.name, q.GetValue()); err != nil {
			return err
		}
	}
	return nil
}

// labelled adds a sample of a series with one more label, which is a number.
func (d *decoder) labelled(label string, number float64, name string, v float64) error {
	d.labels = set(d.labels, label, d.b.Copy(strconv.AppendFloat(nil, number, 'f', -1, 64)))
	return d.sample(name, v)
}
