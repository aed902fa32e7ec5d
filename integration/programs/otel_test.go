package programs

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
)

// noted records what the SDK hands to an exporter, if the exporter reports it as delivered.
type noted struct {
	sdk.Exporter
	delivered []metricdata.ResourceMetrics
}

func (n *noted) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	// The end of the program cancels the export under way, and leaves open whether it was stored.
	if err := n.Exporter.Export(context.WithoutCancel(ctx), rm); err != nil {
		return err
	}
	// A deep copy: the SDK reuses everything, down to the points.
	c := metricdata.ResourceMetrics{Resource: rm.Resource}
	for _, sm := range rm.ScopeMetrics {
		var ms []metricdata.Metrics
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				data.DataPoints = append([]metricdata.DataPoint[int64](nil), data.DataPoints...)
				m.Data = data
			case metricdata.Gauge[float64]:
				data.DataPoints = append([]metricdata.DataPoint[float64](nil), data.DataPoints...)
				m.Data = data
			case metricdata.Histogram[float64]:
				data.DataPoints = append([]metricdata.HistogramDataPoint[float64](nil), data.DataPoints...)
				for i, p := range data.DataPoints {
					data.DataPoints[i].BucketCounts = append([]uint64(nil), p.BucketCounts...)
				}
				m.Data = data
			}
			ms = append(ms, m)
		}
		c.ScopeMetrics = append(c.ScopeMetrics, metricdata.ScopeMetrics{Scope: sm.Scope, Metrics: ms})
	}
	n.delivered = append(n.delivered, c)
	return nil
}

// TestOpenTelemetry runs OpenTelemetry's SDK, which measures and exports every half second.
func TestOpenTelemetry(t *testing.T) {
	t.Parallel()
	p := serve(t)
	front := record(t, p)
	to, err := otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpointURL(front.URL+"/v1/metrics"),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression))
	require.NoError(t, err)
	exporter := &noted{Exporter: to}
	provider := sdk.NewMeterProvider(
		sdk.WithReader(sdk.NewPeriodicReader(exporter, sdk.WithInterval(500*time.Millisecond))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "shop"), attribute.String("service.instance.id", "i1"),
			attribute.String("cloud.region", "north"))))
	meter := provider.Meter("it")
	orders, err := meter.Int64Counter("it.orders", metric.WithUnit("{order}"))
	require.NoError(t, err)
	open, err := meter.Int64UpDownCounter("it.open")
	require.NoError(t, err)
	took, err := meter.Float64Histogram("it.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(0.1, 0.5, 2.5))
	require.NoError(t, err)
	i := 0
	_, err = meter.Float64ObservableGauge("it.temperature", metric.WithUnit("Cel"),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			i++
			o.Observe(20+float64(i)/8, metric.WithAttributes(attribute.String("room.name", "küche \"1\"")))
			return nil
		}))
	require.NoError(t, err)

	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := range 500 {
		paid := metric.WithAttributes(attribute.Bool("paid", n%3 == 0))
		orders.Add(t.Context(), int64(n%4), paid)
		open.Add(t.Context(), int64(n%5-2))
		took.Record(t.Context(), float64(n%40)/10, paid)
		<-tick.C
	}
	require.NoError(t, provider.Shutdown(t.Context()))

	sent := points{}
	for _, rm := range exporter.delivered {
		// The names and labels that Prometheus uses.
		var last time.Time
		add := func(at time.Time, v float64, name string, attrs attribute.Set, more ...string) {
			m := labels.FromStrings(append([]string{"__name__", name, "job", "shop", "instance", "i1", "otel_scope_name", "it"}, more...)...).Map()
			for _, kv := range attrs.ToSlice() {
				m[map[attribute.Key]string{"paid": "paid", "room.name": "room_name"}[kv.Key]] = kv.Value.String()
			}
			sent.add(labels.FromMap(m), at.UnixMilli(), v)
			last = at
		}
		for _, m := range rm.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				name := map[string]string{"it.orders": "it_orders_total", "it.open": "it_open"}[m.Name]
				for _, dp := range data.DataPoints {
					add(dp.Time, float64(dp.Value), name, dp.Attributes)
				}
			case metricdata.Gauge[float64]:
				for _, dp := range data.DataPoints {
					add(dp.Time, dp.Value, "it_temperature_celsius", dp.Attributes)
				}
			case metricdata.Histogram[float64]:
				for _, dp := range data.DataPoints {
					add(dp.Time, dp.Sum, "it_duration_seconds_sum", dp.Attributes)
					add(dp.Time, float64(dp.Count), "it_duration_seconds_count", dp.Attributes)
					n := uint64(0)
					for i, bound := range dp.Bounds {
						n += dp.BucketCounts[i]
						add(dp.Time, float64(n), "it_duration_seconds_bucket", dp.Attributes, "le", strconv.FormatFloat(bound, 'g', -1, 64))
					}
					add(dp.Time, float64(dp.Count), "it_duration_seconds_bucket", dp.Attributes, "le", "+Inf")
				}
			default:
				require.Fail(t, "not measured here", "%T", data)
			}
		}
		sent.add(labels.FromStrings("__name__", "target_info", "job", "shop", "instance", "i1", "cloud_region", "north"), last.UnixMilli(), 1)
	}
	assert.Greater(t, len(exporter.delivered), 10)
	stored, err := exported(p)
	require.NoError(t, err)
	requireSame(t, sent, stored)
	for _, r := range front.all() {
		require.Empty(t, r.reply, "a partial success")
	}
	ground(t, p)
}
