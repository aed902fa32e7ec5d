package otlp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/limits"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"

	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type notes []string

func (n *notes) Add(from limits.Client, m metric.Metadata) { n.Note(from, m) }

func (n *notes) Note(_ limits.Client, m metric.Metadata) {
	*n = append(*n, m.Name+" "+m.Type.String())
}

// otlpStatus is the form of errors.
type otlpStatus struct {
	Message string `json:"message"`
}

func otlpServer(tb testing.TB, a push.Appender, limits push.Limits) *api.Server {
	tb.Helper()
	return apitest.Server(tb, func(o *api.Options) {
		o.Appender, o.Limits = a, limits
		o.Sources = metric.SourceLabels{"instance", "host_name", "job"}
		o.OTLPPromote = []string{"host.name"}
	})
}

func postOTLP(tb testing.TB, h http.Handler, path, contentType string, body []byte, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, path, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// otlpRequest makes a resource with some metrics: a gauge, a histogram and, if requested, a counter
// with delta temporality.
func otlpRequest(name string, deltas bool) *metricspb.MetricsData {
	text := func(k, v string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
	}
	number := func(v float64) *metricspb.NumberDataPoint {
		return &metricspb.NumberDataPoint{
			TimeUnixNano: 1_732_161_600_000_000_000, Value: &metricspb.NumberDataPoint_AsDouble{AsDouble: v},
			Attributes: []*commonpb.KeyValue{text("k", "v")},
		}
	}
	metrics := []*metricspb.Metric{
		{Name: name, Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{number(1)}}}},
		{Name: "latency", Unit: "s", Data: &metricspb.Metric_Histogram{Histogram: &metricspb.Histogram{
			AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
			DataPoints: []*metricspb.HistogramDataPoint{{
				TimeUnixNano: 1_732_161_600_000_000_000, Count: 3, BucketCounts: []uint64{1, 2}, ExplicitBounds: []float64{0.5},
			}},
		}}},
	}
	if deltas {
		metrics = append(metrics, &metricspb.Metric{Name: "d", Data: &metricspb.Metric_Sum{Sum: &metricspb.Sum{
			AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_DELTA, IsMonotonic: true,
			DataPoints: []*metricspb.NumberDataPoint{number(1), number(2)},
		}}})
	}
	return &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource:     &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "cart"), text("host.name", "web-1")}},
		ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: metrics}},
	}}}
}

func marshalOTLP(tb testing.TB, m *metricspb.MetricsData) (wire, text []byte) {
	tb.Helper()
	wire, err := proto.Marshal(m)
	require.NoError(tb, err)
	text, err = protojson.Marshal(m)
	require.NoError(tb, err)
	return wire, text
}

// partialOf decodes an ExportMetricsServiceResponse.
func partialOf(tb testing.TB, body []byte) (rejected uint64, message string) {
	tb.Helper()
	eachField(tb, body, func(n protowire.Number, _ uint64, partial []byte) {
		require.EqualValues(tb, 1, n)
		eachField(tb, partial, func(n protowire.Number, bits uint64, text []byte) {
			switch n {
			case 1:
				rejected = bits
			case 2:
				message = string(text)
			default:
				require.Fail(tb, "unknown field", "%d", n)
			}
		})
	})
	return rejected, message
}

// rpcStatus decodes the message of a google.rpc.Status.
func rpcStatus(tb testing.TB, body []byte) (message string) {
	tb.Helper()
	eachField(tb, body, func(n protowire.Number, _ uint64, text []byte) {
		require.EqualValues(tb, 2, n)
		message = string(text)
	})
	return message
}

func eachField(tb testing.TB, b []byte, do func(n protowire.Number, bits uint64, content []byte)) {
	tb.Helper()
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		require.Positive(tb, n)
		b = b[n:]
		var bits uint64
		var content []byte
		if typ == protowire.VarintType {
			bits, n = protowire.ConsumeVarint(b)
		} else {
			require.Equal(tb, protowire.BytesType, typ)
			content, n = protowire.ConsumeBytes(b)
		}
		require.Positive(tb, n)
		do(num, bits, content)
		b = b[n:]
	}
}

const otlpStored = `web-1: "load" "k"="v" "host_name"="web-1" "job"="cart" @1732161600000 1
web-1: "latency_seconds_count" "host_name"="web-1" "job"="cart" @1732161600000 3
web-1: "latency_seconds_bucket" "host_name"="web-1" "job"="cart" "le"="0.5" @1732161600000 1
web-1: "latency_seconds_bucket" "host_name"="web-1" "job"="cart" "le"="+Inf" @1732161600000 3
web-1: "target_info" "host_name"="web-1" "job"="cart" @1732161600000 1
`

func TestOTLP(t *testing.T) {
	wire, text := marshalOTLP(t, otlpRequest("load", false))
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, err := zw.Write(wire)
	require.NoError(t, err)
	require.NoError(t, zw.Close())

	for _, path := range []string{"/v1/metrics", "/api/v1/otlp/v1/metrics"} {
		a := &apitest.Appender{}
		s := otlpServer(t, a, push.Limits{})
		w := postOTLP(t, s, path, "application/x-protobuf", wire)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "application/x-protobuf", w.Header().Get("Content-Type"))
		require.Empty(t, w.Body.Bytes(), "partial_success is not set")
		require.Equal(t, otlpStored, a.String())

		a.Reports = nil
		w = postOTLP(t, s, path, "application/x-protobuf", zipped.Bytes(), "Content-Encoding", "gzip")
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, otlpStored, a.String())

		a.Reports = nil
		w = postOTLP(t, s, path, "application/json; charset=utf-8", text)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.JSONEq(t, `{}`, w.Body.String())
		require.Equal(t, otlpStored, a.String())

		w = postOTLP(t, s, path, "application/x-protobuf", nil)
		require.Equal(t, http.StatusOK, w.Code, "a request without anything is one")
	}
}

// The reply counts data points, not samples, whether the decoder or ingest rejects them.
func TestOTLPPartialSuccess(t *testing.T) {
	const deltas = `2 unsupported (metric "d" of job "cart" has delta temporality, only cumulative is stored: ` +
		`set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative for the SDK, or use the collector's deltatocumulative processor)`
	wire, text := marshalOTLP(t, otlpRequest("load", true))
	a := &apitest.Appender{}
	s := otlpServer(t, a, push.Limits{})
	w := postOTLP(t, s, "/v1/metrics", "application/x-protobuf", wire)
	require.Equal(t, http.StatusOK, w.Code)
	rejected, message := partialOf(t, w.Body.Bytes())
	assert.EqualValues(t, 2, rejected)
	assert.Equal(t, "2 of 4 data points were rejected: "+deltas, message)
	assert.Equal(t, otlpStored, a.String())

	w = postOTLP(t, s, "/v1/metrics", "application/json", text)
	require.Equal(t, http.StatusOK, w.Code)
	assert.JSONEq(t, fmt.Sprintf(`{"partialSuccess":{"rejectedDataPoints":"2","errorMessage":%q}}`, "2 of 4 data points were rejected: "+deltas),
		w.Body.String())

	// All samples of the histogram are rejected. They count as one data point, with the first
	// message; target_info does not count.
	a = &apitest.Appender{}
	s = otlpServer(t, refusing{a, "latency"}, push.Limits{})
	w = postOTLP(t, s, "/v1/metrics", "application/x-protobuf", wire)
	require.Equal(t, http.StatusOK, w.Code)
	rejected, message = partialOf(t, w.Body.Bytes())
	assert.EqualValues(t, 3, rejected)
	assert.Equal(t, `3 of 4 data points were rejected: 1 too_old (old in latency_seconds_count{host_name="web-1",job="cart"}), `+deltas, message)

	s = otlpServer(t, refusing{a, "target_info"}, push.Limits{})
	w = postOTLP(t, s, "/v1/metrics", "application/json", text)
	require.Equal(t, http.StatusOK, w.Code)
	assert.Contains(t, w.Body.String(), `"rejectedDataPoints":"2"`)
	assert.Contains(t, w.Body.String(), `; target_info was rejected: old"`)

	wire, _ = marshalOTLP(t, otlpRequest("load", false))
	w = postOTLP(t, s, "/v1/metrics", "application/x-protobuf", wire)
	require.Equal(t, http.StatusOK, w.Code)
	rejected, message = partialOf(t, w.Body.Bytes())
	assert.Zero(t, rejected)
	assert.Equal(t, "target_info was rejected: old", message)
}

// refusing rejects measurements whose name begins with prefix.
type refusing struct {
	*apitest.Appender

	prefix string
}

func (a refusing) Append(_ context.Context, reports []ingest.Report) (ingest.Result, error) {
	var result ingest.Result
	index := 0
	for _, r := range reports {
		for _, m := range r.Measurements {
			if strings.HasPrefix(m.Metric, a.prefix) {
				result.Rejected = append(result.Rejected, ingest.Rejection{Index: index, Reason: ingest.ReasonTooOld, Message: "old"})
			} else {
				result.Accepted++
			}
			index++
		}
	}
	return result, nil
}

// Each failure has its own status code, and the reply is a Status in the request's encoding.
func TestOTLPRefusals(t *testing.T) {
	wire, text := marshalOTLP(t, otlpRequest("load", true))
	for _, c := range []struct {
		name       string
		wire, text []byte
		headers    []string
		err        error
		code       int
		retryAfter string
		message    string
	}{
		{name: "broken", wire: append(bytes.Clone(wire), 0xff), text: append(bytes.Clone(text), '}'), code: http.StatusBadRequest, message: "the body is malformed: "},
		{name: "gzip that ends early", wire: nil, text: nil, headers: []string{"Content-Encoding", "gzip"}, code: http.StatusBadRequest, message: "the body cannot be decompressed: it ends early; nothing of it was kept"},
		{name: "busy", wire: wire, text: text, err: ingest.ErrBusy, code: http.StatusTooManyRequests, retryAfter: "1", message: "too many samples are waiting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := otlpServer(t, &apitest.Appender{Err: c.err}, push.Limits{})
			w := postOTLP(t, s, "/v1/metrics", "application/x-protobuf", c.wire, c.headers...)
			assert.Equal(t, c.code, w.Code)
			assert.Equal(t, c.retryAfter, w.Header().Get("Retry-After"))
			assert.Equal(t, "application/x-protobuf", w.Header().Get("Content-Type"))
			assert.Contains(t, rpcStatus(t, w.Body.Bytes()), c.message)

			w = postOTLP(t, s, "/v1/metrics", "application/json", c.text, c.headers...)
			assert.Equal(t, c.code, w.Code)
			assert.Equal(t, c.retryAfter, w.Header().Get("Retry-After"))
			var status otlpStatus
			dec := json.NewDecoder(w.Body)
			dec.DisallowUnknownFields()
			require.NoError(t, dec.Decode(&status))
			assert.Contains(t, status.Message, c.message)
		})
	}
	for _, contentType := range []string{"", "text/plain", "application/protobuf"} {
		w := postOTLP(t, otlpServer(t, &apitest.Appender{}, push.Limits{}), "/v1/metrics", contentType, wire)
		assert.Equal(t, http.StatusUnsupportedMediaType, w.Code)
		assert.Equal(t, "application/x-protobuf, application/json", w.Header().Get("Accept"))
		assert.Contains(t, w.Body.String(), "use application/x-protobuf or application/json")
	}
}

// Data before a damaged byte is kept, and the reply says how much that is.
func TestOTLPBroken(t *testing.T) {
	wire, _ := marshalOTLP(t, otlpRequest("load", true))
	a := &apitest.Appender{}
	w := postOTLP(t, otlpServer(t, a, push.Limits{}), "/v1/metrics", "application/x-protobuf", append(wire, 0x0a, 0x7f))
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Equal(t, fmt.Sprintf("the body is malformed: at byte %d: unexpected EOF; of the data points before that, 2 were stored and 2 rejected", len(wire)),
		rpcStatus(t, w.Body.Bytes()))
	require.Equal(t, otlpStored, a.String())
}

// TestOTLPLongTexts: a reply repeats little of a text that cannot be read.
func TestOTLPLongTexts(t *testing.T) {
	long := strings.Repeat("1", 1<<20)
	for name, body := range map[string]string{
		"a number":  `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"dataPoints":[{"asInt":` + long + `}]}}]}]}]}`,
		"a text":    `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"dataPoints":[{"asInt":"` + long + `"}]}}]}]}]}`,
		"a time":    `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"dataPoints":[{"timeUnixNano":"` + long + `"}]}}]}]}]}`,
		"one value": long, "a name": `{"resourceMetrics":{"` + long + `":1}}`,
	} {
		w := postOTLP(t, otlpServer(t, &apitest.Appender{}, push.Limits{}), "/v1/metrics", "application/json", []byte(body))
		require.Equal(t, http.StatusBadRequest, w.Code, name)
		require.Less(t, w.Body.Len(), 5<<10, name)
	}
}

func TestOTLPMetadata(t *testing.T) {
	var n notes
	s := apitest.Server(t, func(o *api.Options) { o.Appender, o.Metadata = &apitest.Appender{}, &n })
	wire, _ := marshalOTLP(t, otlpRequest("load", true))
	require.Equal(t, http.StatusOK, postOTLP(t, s, "/v1/metrics", "application/x-protobuf", wire).Code)
	require.Equal(t, notes{"load gauge", "latency_seconds histogram", "target_info gauge"}, n)
}

// The SDKs ignore partial_success, so operators hear of its contents: which service sends data that
// cannot be stored.
func TestOTLPUnkept(t *testing.T) {
	wire, _ := marshalOTLP(t, otlpRequest("load", true))
	s := apitest.Server(t, func(o *api.Options) { o.Appender, o.Status = &apitest.Appender{}, apitest.Status{} })
	for range 2 {
		require.Equal(t, http.StatusOK, postOTLP(t, s, "/v1/metrics", "application/x-protobuf", wire).Code)
	}
	require.Contains(t, apitest.Unkept(t, s), `"path":"/v1/metrics","sender":"192.0.2.1","reason":"unsupported","count":4,"last":1732161600000,`+
		`"message":"metric \"d\" of job \"cart\" has delta temporality`)
}
