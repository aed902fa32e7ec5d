package otlp

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/prometheus/model/value"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// lines returns the samples of a batch, in order, and the rejections.
func lines(b *ingest.Batch) []string {
	var out []string
	for _, r := range b.Reports() {
		for _, m := range r.Measurements {
			ls := slices.Clone(m.Labels)
			slices.SortFunc(ls, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
			var sb strings.Builder
			for _, l := range ls {
				if l.Value != "" {
					fmt.Fprintf(&sb, " %s=%q", l.Name, l.Value)
				}
			}
			at, v := fmt.Sprint(m.TimeMs), fmt.Sprint(m.Value)
			if m.TimeMs == ingest.NoTime {
				at = "now"
			}
			if math.Float64bits(m.Value) == value.StaleNaN {
				v = "stale"
			}
			out = append(out, fmt.Sprintf("%s%s @%s %s", m.Metric, sb.String(), at, v))
		}
	}
	for _, r := range b.Result(ingest.Result{}).Rejected {
		out = append(out, fmt.Sprintf("%d %s: %s", r.Index, r.Reason, r.Message))
	}
	return out
}

func textValue(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

// attrs returns text attributes from pairs of key and value.
func attrs(pairs ...string) []*commonpb.KeyValue {
	var out []*commonpb.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, &commonpb.KeyValue{Key: pairs[i], Value: textValue(pairs[i+1])})
	}
	return out
}

func number(v float64, pairs ...string) *metricspb.NumberDataPoint {
	return &metricspb.NumberDataPoint{
		TimeUnixNano: 1_700_000_000_123_999_999, Attributes: attrs(pairs...),
		Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v},
	}
}

func gauge(name, unit string, points ...*metricspb.NumberDataPoint) *metricspb.Metric {
	return &metricspb.Metric{Name: name, Unit: unit, Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: points}}}
}

func sum(name, unit string, t metricspb.AggregationTemporality, monotonic bool, points ...*metricspb.NumberDataPoint) *metricspb.Metric {
	return &metricspb.Metric{Name: name, Unit: unit, Data: &metricspb.Metric_Sum{Sum: &metricspb.Sum{
		AggregationTemporality: t, IsMonotonic: monotonic, DataPoints: points,
	}}}
}

func histogram(name string, t metricspb.AggregationTemporality, points ...*metricspb.HistogramDataPoint) *metricspb.Metric {
	return &metricspb.Metric{Name: name, Data: &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{
		AggregationTemporality: t, DataPoints: points,
	}}}
}

const (
	cumulative = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE
	delta      = metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA
)

// request returns a request with a resource without attributes.
func request(metrics ...*metricspb.Metric) *metricspb.MetricsData {
	return message(nil, nil, metrics...)
}

func message(resource []*commonpb.KeyValue, scope *commonpb.InstrumentationScope, metrics ...*metricspb.Metric) *metricspb.MetricsData {
	return &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource:     &resourcepb.Resource{Attributes: resource},
		ScopeMetrics: []*metricspb.ScopeMetrics{{Scope: scope, Metrics: metrics}},
	}}}
}

func options() settings { return settings{Promote: []string{"host.name", "k8s.node.name"}, Labels: 16} }

func TestDecode(t *testing.T) {
	anyOf := func(v ...*commonpb.AnyValue) *metricspb.MetricsData {
		p := number(1)
		for i, v := range v {
			p.Attributes = append(p.Attributes, &commonpb.KeyValue{Key: string(rune('a' + i)), Value: v})
		}
		return request(gauge("m", "", p))
	}
	double := func(v float64) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}
	}
	list := func(v ...*commonpb.AnyValue) *commonpb.AnyValue {
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: v}}}
	}
	negative := int64(-7)
	five := 5.5
	shop := attrs("service.name", "cart", "service.namespace", "shop", "service.instance.id", "cart-1", "host.name", "web-1", "os.type", "linux")
	const deltaAdvice = "set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative for the SDK, or use the collector's deltatocumulative processor"
	for _, c := range []struct {
		name string
		in   *metricspb.MetricsData
		want []string
	}{
		{"nothing", request(), nil},
		{"a gauge of a share", request(gauge("system.cpu.utilization", "1", number(0.5, "cpu.id", "0"))), []string{
			`system_cpu_utilization_ratio cpu_id="0" @1700000000123 0.5`,
		}},
		{"a counter", request(sum("http.requests", "{request}", cumulative, true, number(3))), []string{
			`http_requests_total @1700000000123 3`,
		}},
		{"a sum that goes up and down", request(sum("queue.size", "By", cumulative, false, number(3))), []string{
			`queue_size_bytes @1700000000123 3`,
		}},
		{"an integer, without a time", request(gauge("m", "", &metricspb.NumberDataPoint{
			Value: &metricspb.NumberDataPoint_AsInt{AsInt: negative},
		})), []string{`m @now -7`}},
		{"zero is a value, none is not", request(gauge("m", "", &metricspb.NumberDataPoint{
			Value: &metricspb.NumberDataPoint_AsInt{},
		}, &metricspb.NumberDataPoint{})), []string{`m @now 0`, `1 invalid_value: the data point has no value`}},
		{"the end of a series", request(gauge("m", "", &metricspb.NumberDataPoint{Flags: 1})), []string{`m @now stale`}},
		{"deltas", request(
			sum("a", "", delta, true, number(1), number(2)), sum("b", "", 0, false, number(1)),
			histogram("c", delta, &metricspb.HistogramDataPoint{}), gauge("d", "", number(1)),
		), []string{
			`d @1700000000123 1`,
			`0 unsupported: metric "a" has delta temporality, only cumulative is stored: ` + deltaAdvice,
			`1 unsupported: metric "a" has delta temporality, only cumulative is stored: ` + deltaAdvice,
			`2 unsupported: metric "b" has no temporality, only cumulative is stored: ` + deltaAdvice,
			`3 unsupported: metric "c" has delta temporality, only cumulative is stored: ` + deltaAdvice,
		}},
		{"deltas of a job with a long name", message(attrs("service.name", strings.Repeat("j", 1<<20)), nil, sum(strings.Repeat("a", 100), "", delta, true, number(1))), []string{
			`0 unsupported: metric "` + strings.Repeat("a", 80) + `"… of job "` + strings.Repeat("j", 80) + `"… has delta temporality, only cumulative is stored: ` + deltaAdvice,
		}},
		{"a histogram", request(histogram("d", cumulative, &metricspb.HistogramDataPoint{
			TimeUnixNano: 2e6, Count: 10, Sum: &five, BucketCounts: []uint64{1, 2, 7}, ExplicitBounds: []float64{0.1, 10},
			Attributes: attrs("le", "mine", "k", "v"),
		})), []string{
			`d_count k="v" le="mine" @2 10`, `d_sum k="v" le="mine" @2 5.5`,
			`d_bucket k="v" le="0.1" @2 1`, `d_bucket k="v" le="10" @2 3`, `d_bucket k="v" le="+Inf" @2 10`,
		}},
		{"a histogram without sum and buckets", request(histogram("d", cumulative, &metricspb.HistogramDataPoint{Count: 4})), []string{
			`d_count @now 4`, `d_bucket le="+Inf" @now 4`,
		}},
		{"the end of a histogram", request(histogram("d", cumulative, &metricspb.HistogramDataPoint{Flags: 1, ExplicitBounds: []float64{1}})), []string{
			`d_count @now stale`, `d_bucket le="1" @now stale`, `d_bucket le="+Inf" @now stale`,
		}},
		{"histograms that are none", request(histogram("d", cumulative,
			&metricspb.HistogramDataPoint{BucketCounts: []uint64{1, 2}, ExplicitBounds: []float64{1, 2}},
			&metricspb.HistogramDataPoint{BucketCounts: []uint64{1, 2, 3}, ExplicitBounds: []float64{2, 2}},
			&metricspb.HistogramDataPoint{BucketCounts: []uint64{1, 2}, ExplicitBounds: []float64{math.NaN()}},
		)), []string{
			`0 invalid_value: the histogram has 2 bounds and 2 buckets, there must be one bucket more`,
			`1 invalid_value: the histogram's bounds do not increase`, `2 invalid_value: the histogram's bounds do not increase`,
		}},
		{"an exponential histogram", request(&metricspb.Metric{Name: "e", Data: &metricspb.Metric_ExponentialHistogram{
			ExponentialHistogram: &metricspb.ExponentialHistogram{
				AggregationTemporality: cumulative,
				DataPoints:             []*metricspb.ExponentialHistogramDataPoint{{Count: 1}},
			},
		}}), []string{`0 unsupported: metric "e" is an exponential histogram, which is not stored: have the SDK use explicit buckets ` +
			`(OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION=explicit_bucket_histogram)`}},
		{"a summary", request(&metricspb.Metric{Name: "s", Unit: "s", Data: &metricspb.Metric_Summary{Summary: &metricspb.Summary{
			DataPoints: []*metricspb.SummaryDataPoint{{Count: 2, QuantileValues: []*metricspb.SummaryDataPoint_ValueAtQuantile{
				{Quantile: 0.5, Value: 1}, {Quantile: 1, Value: 9},
			}}},
		}}}), []string{
			`s_seconds_count @now 2`, `s_seconds_sum @now 0`, `s_seconds quantile="0.5" @now 1`, `s_seconds quantile="1" @now 9`,
		}},
		{"values that are no text", anyOf(
			&commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: true}},
			&commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: -9223372036854775808}},
			double(0.5), double(1e21), double(math.NaN()), double(math.Inf(-1)), double(3),
			&commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: []byte{0xfe, 0xff}}},
			list(textValue(`"`), double(math.Inf(1)), &commonpb.AnyValue{}, list()),
			&commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: attrs("z", "1", "b", "2")}}},
			&commonpb.AnyValue{},
		), []string{`m a="true" b="-9223372036854775808" c="0.5" d="1e+21" e="NaN" f="-Infinity" g="3" h="/v8=" ` +
			`i="[\"\\\"\",\"Infinity\",null,[]]" j="{\"b\":\"2\",\"z\":\"1\"}" @1700000000123 1`}},
		{"names that need quoting", request(gauge("1/größe", "", number(1, "http.method", "GET", "1st", "x", "__name__", "n"))), []string{
			`_1_gr_e http_method="GET" key_1st="x" @1700000000123 1`,
		}},
		{"names that are none", request(
			gauge("", "", number(1)), gauge("...", "", number(1)), gauge("m", "", number(1, "", "x"), number(1, "--", "x"), number(2, "k", "v")),
		), []string{
			`m k="v" @1700000000123 2`,
			`0 invalid_metric: normalization for metric "" resulted in empty name`,
			`1 invalid_metric: normalization for metric "..." resulted in empty name`,
			`2 invalid_label: label name is empty`, `3 invalid_label: normalization for label name "--" resulted in invalid name "_"`,
		}},
		{"keys that become one", request(gauge("m", "", number(1, "a/b", "2", "x", "0", "a.b", "1", "a_b", "3"))), []string{
			`m a_b="1;2;3" x="0" @1700000000123 1`,
		}},
		{"more attributes than allowed", request(gauge("m", "", number(1, make([]string, 34)...))), []string{
			`0 limit_exceeded: more than the limit of 16 attributes`,
		}},
		{"resource and scope", message(shop, &commonpb.InstrumentationScope{Name: "lib", Version: "2", Attributes: attrs("lang.x", "go")},
			gauge("m", "", number(1, "job", "mine", "host.name", "other"), number(2))), []string{
			`m host_name="other" instance="cart-1" job="shop/cart" otel_scope_lang_x="go" otel_scope_name="lib" otel_scope_version="2" @1700000000123 1`,
			`m host_name="web-1" instance="cart-1" job="shop/cart" otel_scope_lang_x="go" otel_scope_name="lib" otel_scope_version="2" @1700000000123 2`,
			`target_info host_name="web-1" instance="cart-1" job="shop/cart" os_type="linux" @1700000000123 1`,
		}},
		{"a namespace alone is no job", message(attrs("service.namespace", "shop", "k8s.node.name", "n"), nil, gauge("m", "", number(1))), []string{
			`m k8s_node_name="n" @1700000000123 1`,
		}},
		{"nothing to tell of the target", message(attrs("service.name", "cart"), nil, gauge("m", "", number(1))), []string{
			`m job="cart" @1700000000123 1`,
		}},
		{"a target of which nothing was taken", message(shop, nil, sum("m", "", delta, false, number(1))), []string{
			`0 unsupported: metric "m" of job "shop/cart" has delta temporality, only cumulative is stored: ` + deltaAdvice,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := proto.Marshal(c.in)
			require.NoError(t, err)
			text, err := protojson.Marshal(c.in)
			require.NoError(t, err)
			d := newDecoder(options())
			var b ingest.Batch
			for range 2 { // the second time uses cached names
				b.Reset()
				require.NoError(t, d.fromProtobuf(body, &b))
				assert.Equal(t, c.want, lines(&b))
				b.Reset()
				require.NoError(t, d.fromJSON(text, &b))
				assert.Equal(t, c.want, lines(&b), "%s", text)
			}
		})
	}
}

// The body has the form of the examples in OpenTelemetry's repository: lowerCamelCase, 64-bit
// integers as strings or numbers, enums as numbers, ids in hex, and unknown members.
func TestJSON(t *testing.T) {
	const body = `{"resourceMetrics":[{
		"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"my.service"}}],"droppedAttributesCount":0,"unknown":{"a":[1]}},
		"scopeMetrics":[{"scope":{"name":"my.library","version":"1.0.0"},"schemaUrl":"https://example.org/1","metrics":[
			{"name":"my.counter","unit":"1","description":"a Counter","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[
				{"asDouble":5,"startTimeUnixNano":"1544712660300000000","timeUnixNano":"1544712660300000000",
				 "attributes":[{"key":"n","value":{"intValue":"7"}},{"key":"o","value":{"intValue":8}}],
				 "exemplars":[{"asInt":"1","traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b174"}]}]}},
			{"name":"my.histogram","unit":"ms","histogram":{"aggregationTemporality":2,"dataPoints":[
				{"timeUnixNano":1544712660300000000,"count":"3","sum":2.5,"bucketCounts":["1","2"],"explicitBounds":[1],"min":0,"max":2}]}},
			{"name":"nan","gauge":{"dataPoints":[{"asDouble":"NaN","flags":0},{"asDouble":"-Infinity"}]}}
		]}]}]}`
	var b ingest.Batch
	require.NoError(t, newDecoder(options()).fromJSON([]byte(body), &b))
	const rest = ` otel_scope_name="my.library" otel_scope_schema_url="https://example.org/1" otel_scope_version="1.0.0" @`
	assert.Equal(t, []string{
		`my_counter_total job="my.service" n="7" o="8"` + rest + `1544712660300 5`,
		`my_histogram_milliseconds_count job="my.service"` + rest + `1544712660300 3`,
		`my_histogram_milliseconds_sum job="my.service"` + rest + `1544712660300 2.5`,
		`my_histogram_milliseconds_bucket job="my.service" le="1"` + rest + `1544712660300 1`,
		`my_histogram_milliseconds_bucket job="my.service" le="+Inf"` + rest + `1544712660300 3`,
		`nan job="my.service"` + rest + `now NaN`,
		`nan job="my.service"` + rest + `now -Inf`,
	}, lines(&b))
}

// TestRecorded runs testdata/recorded: requests of a real SDK. `go test -rewrite` rewrites the
// results.
func TestRecorded(t *testing.T) {
	datadriven.RunTest(t, "testdata/recorded", func(t *testing.T, td *datadriven.TestData) string {
		if td.Cmd != "decode" {
			td.Fatalf(t, "unknown command %s", td.Cmd)
		}
		body, err := os.ReadFile("testdata/" + td.CmdArgs[0].Key)
		require.NoError(t, err)
		var b ingest.Batch
		require.NoError(t, newDecoder(options()).fromProtobuf(body, &b))
		return strings.Join(lines(&b), "\n") + "\n"
	})
}

// Data before a damaged byte is kept, and the error has its position. JSON is all or nothing.
func TestBroken(t *testing.T) {
	whole, err := proto.Marshal(message(attrs("service.name", "cart"), nil, gauge("a", "", number(1))))
	require.NoError(t, err)
	two := slices.Concat(whole, whole)
	d := newDecoder(options())
	for cut := range whole {
		var b ingest.Batch
		err := d.fromProtobuf(two[:len(whole)+cut], &b)
		if cut == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("at byte %d: ", len(whole)))
		}
		require.Equal(t, 1, b.Len())
	}

	// The second metric of a scope is no message, or has a text that is none.
	metrics := field(2, whole[bytes.LastIndex(whole, []byte{'\n', 1, 'a'}):]...)
	for _, damaged := range [][]byte{{0x80}, {'\n', 1, 0xff}} {
		body := field(1, field(2, slices.Concat(metrics, field(2, damaged...))...)...)
		var b ingest.Batch
		require.ErrorContains(t, d.fromProtobuf(append(body, whole...), &b), fmt.Sprintf("at byte %d: ", len(body)-len(damaged)))
		require.Equal(t, []string{`a @1700000000123 1`}, lines(&b))
	}

	for _, body := range []string{
		"", "null", "[]", `{"resourceMetrics":[{]}`, `{"resourceMetrics":[null]}`, `{"resourceMetrics":[{"scopeMetrics":1}]}`, "{} {}",
	} {
		var b ingest.Batch
		err := d.fromJSON([]byte(body), &b)
		require.Error(t, err, "%s", body)
		require.NotContains(t, err.Error(), "proto:")
		require.Zero(t, b.Len())
	}
}

// Measurements, samples, labels and JSON objects all stay within the batch's limits.
func TestBounds(t *testing.T) {
	points := make([]*metricspb.NumberDataPoint, 8)
	for i := range points {
		points[i] = number(1)
	}
	wide := message(nil, &commonpb.InstrumentationScope{Attributes: attrs("a", "1", "b", "1", "c", "1", "d", "1", "e", "1", "f", "1", "g", "1", "h", "1", "i", "1")},
		gauge("m", "", points...))
	buckets := request(histogram("h", cumulative, &metricspb.HistogramDataPoint{
		BucketCounts: make([]uint64, 6), ExplicitBounds: []float64{1, 2, 3, 4, 5},
	}))
	for _, c := range []struct {
		name string
		in   *metricspb.MetricsData
		most int // a limit that is too small
	}{
		{"data points", request(gauge("m", "", points...)), 7},
		{"rejected data points", request(sum("m", "", delta, false, points...)), 7},
		{"samples of a histogram", buckets, 6},
		{"target_info", message(attrs("service.name", "a", "b", "c"), nil, gauge("m", "", number(1))), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := proto.Marshal(c.in)
			require.NoError(t, err)
			d := newDecoder(options())
			b := ingest.Batch{Max: c.most}
			require.NoError(t, d.fromProtobuf(body, &b))
			require.True(t, b.TooMany())
			b = ingest.Batch{Max: c.most + 1}
			require.NoError(t, d.fromProtobuf(body, &b))
			require.False(t, b.TooMany())
		})
	}
	b := ingest.Batch{Allowance: ingest.Allowance{Max: 8 * 32}}
	body, err := proto.Marshal(wide)
	require.NoError(t, err)
	require.NoError(t, newDecoder(options()).fromProtobuf(body, &b))
	require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)
	for objects, want := range map[int]error{100: nil, 200: ingest.ErrTooLarge} {
		b := ingest.Batch{Allowance: ingest.Allowance{Max: 150 * objectBytes}}
		body := `{"resourceMetrics":[` + strings.TrimSuffix(strings.Repeat("{},", objects-1), ",") + `]}`
		require.NoError(t, newDecoder(options()).fromJSON([]byte(body), &b))
		require.Equal(t, want, b.Err(), objects)
	}
}

// field encodes a field that is a message.
func field(number protowire.Number, message ...byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
}

// TestEmptyMessages: messages without a data point are bounded, too, and end when the client leaves.
func TestEmptyMessages(t *testing.T) {
	const n = 2000
	for name, body := range map[string][]byte{
		"resources":  bytes.Repeat(field(1), n),
		"scopes":     field(1, bytes.Repeat(field(2), n)...),
		"metrics":    field(1, field(2, bytes.Repeat(field(2), n)...)...),
		"attributes": field(1, field(1, bytes.Repeat(field(1), n)...)...),
	} {
		t.Run(name, func(t *testing.T) {
			b := ingest.Batch{Allowance: ingest.Allowance{Max: (n - 1) * ingest.MessageBytes}}
			require.NoError(t, newDecoder(options()).fromProtobuf(body, &b))
			require.ErrorIs(t, b.Err(), ingest.ErrTooLarge)
			b = ingest.Batch{Allowance: ingest.Allowance{Max: 8 * n * ingest.MessageBytes}}
			require.NoError(t, newDecoder(options()).fromProtobuf(body, &b))
			require.NoError(t, b.Err())
			if name == "attributes" {
				return // a message is decoded whole
			}
			b = ingest.Batch{Allowance: ingest.Allowance{Gone: func() error { return context.Canceled }}}
			require.NoError(t, newDecoder(options()).fromProtobuf(body, &b))
			require.ErrorIs(t, b.Err(), context.Canceled)
		})
	}
}

func TestMetadata(t *testing.T) {
	var got []metric.Metadata
	opts := options()
	opts.Note = func(m metric.Metadata) { got = append(got, m) }
	c := sum("requests", "1", cumulative, true, number(1))
	c.Description = "What was asked."
	body, err := proto.Marshal(message(attrs("service.name", "cart", "os.type", "linux"), nil, c,
		sum("size", "By", cumulative, false, number(1)), sum("left out", "", delta, true, number(1)), gauge("rate", "m/s", number(1)),
		histogram("d", cumulative, &metricspb.HistogramDataPoint{}),
		&metricspb.Metric{Name: "s", Data: &metricspb.Metric_Summary{Summary: &metricspb.Summary{}}}))
	require.NoError(t, err)
	require.NoError(t, newDecoder(opts).fromProtobuf(body, &ingest.Batch{}))
	require.Equal(t, []metric.Metadata{
		{Name: "requests_total", Type: metric.TypeCounter, Help: "What was asked.", Unit: ""},
		{Name: "size_bytes", Type: metric.TypeGauge, Unit: "bytes"},
		{Name: "rate_meters_per_second", Type: metric.TypeGauge, Unit: "meters_per_second"},
		{Name: "d", Type: metric.TypeHistogram},
		{Name: "s", Type: metric.TypeSummary},
		{Name: "target_info", Type: metric.TypeGauge, Help: "Attributes of the resource"},
	}, got)
}

// The caches stay bounded for a sender with ever new names.
func TestNamesAreBounded(t *testing.T) {
	n := newNames()
	for i := range 3 * maxNames {
		key := fmt.Sprintf("a.%d", i)
		require.Equal(t, "a_"+key[2:], n.family(familyKey{name: key}).name)
		name, err := n.label(key)
		require.NoError(t, err)
		require.Equal(t, "a_"+key[2:], name)
	}
	require.LessOrEqual(t, max(len(n.families), len(n.labels)), maxNames)
}

// maxGrowth is the maximum ratio of decoded memory to input size: a data point of a few bytes has
// the labels of its resource and scope, possibly some hundred.
const maxGrowth = 4000

// What the protocol's library can decode is decoded, and no input ends the process.
func FuzzProtobuf(f *testing.F) {
	for _, name := range []string{"cumulative.pb", "delta.pb", "exponential.pb"} {
		body, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := ingest.Batch{Max: 1000}
		err := newDecoder(options()).fromProtobuf(body, &b)
		require.LessOrEqual(t, b.Allowance.Used(), maxGrowth*int64(len(body)+1))
		if proto.Unmarshal(body, &metricspb.MetricsData{}) == nil {
			require.NoError(t, err)
		}
		checkBatch(t, &b)
	})
}

func FuzzJSON(f *testing.F) {
	for _, name := range []string{"cumulative.pb", "delta.pb", "exponential.pb"} {
		body, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		var m metricspb.MetricsData
		require.NoError(f, proto.Unmarshal(body, &m))
		text, err := protojson.Marshal(&m)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := ingest.Batch{Max: 1000}
		if err := newDecoder(options()).fromJSON(body, &b); err != nil {
			require.Zero(t, b.Len())
		}
		checkBatch(t, &b)
	})
}

// checkBatch checks that each data point exists once with all of its samples, or is rejected, and
// that labels have names without duplicates.
func checkBatch(t *testing.T, b *ingest.Batch) {
	t.Helper()
	samples := 0
	for _, r := range b.Reports() {
		samples += len(r.Measurements)
		for _, m := range r.Measurements {
			require.NotEmpty(t, m.Metric)
			seen := map[string]bool{}
			for _, l := range m.Labels {
				require.NotEmpty(t, l.Name)
				require.NotEqual(t, metric.NameLabel, l.Name)
				require.False(t, seen[l.Name], "%s twice", l.Name)
				seen[l.Name] = true
			}
		}
	}
	res := b.Result(ingest.Result{Accepted: samples})
	require.Equal(t, b.Len(), res.Accepted+len(res.Rejected))
	require.Len(t, res.Rejected, b.Rejected())
	for _, r := range res.Rejected {
		require.NotEmpty(t, r.Message)
		require.LessOrEqual(t, len(r.Message), 1<<10)
	}
}
