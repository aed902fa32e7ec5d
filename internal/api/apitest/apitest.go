// Package apitest has what tests of the endpoints share: servers, requests, and what takes the data.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/wire"
)

// Compressed returns a body in an encoding; snappy-framed is the framed form of snappy.
func Compressed(tb testing.TB, enc string, body []byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	var w io.WriteCloser
	switch enc {
	case "", "identity":
		return body
	case "gzip", "x-gzip":
		w = gzip.NewWriter(&buf)
	case "zstd":
		zw, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		require.NoError(tb, err)
		w = zw
	case "snappy":
		return snappy.Encode(nil, body)
	case "snappy-framed":
		w = snappy.NewBufferedWriter(&buf)
	default:
		tb.Fatalf("unknown encoding %s", enc)
	}
	_, err := w.Write(body)
	require.NoError(tb, err)
	require.NoError(tb, w.Close())
	return buf.Bytes()
}

// AcceptAll is an appender and a back-filler that keeps nothing.
type AcceptAll struct{}

// Append implements push.Appender.
func (AcceptAll) Append(_ context.Context, reports []ingest.Report) (ingest.Result, error) {
	n := 0
	for _, r := range reports {
		n += len(r.Measurements)
	}
	return ingest.Result{Accepted: n}, nil
}

// BackFill implements importer.BackFiller.
func (a AcceptAll) BackFill(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	return a.Append(ctx, reports)
}

// CutOff returns a body that breaks off behind b, as that of a client that disconnects.
func CutOff(b []byte) io.Reader {
	return io.MultiReader(bytes.NewReader(b), iotest.ErrReader(io.ErrUnexpectedEOF))
}

// HeaderOf returns the Content-Encoding of an encoding of Compressed.
func HeaderOf(enc string) string { return strings.TrimSuffix(enc, "-framed") }

// OneReport is a body with one measurement.
const OneReport = `{"source":"a","measurements":[{"metric":"m","value":1,"time":1}]}`

// Appender keeps copies of the reports, as the contract demands, and rejects what only
// validation can detect. It replaces ingest; other tests use the API with the real one.
type Appender struct {
	Err     error
	Reports []ingest.Report
	Calls   int
}

// Append implements push.Appender.
func (a *Appender) Append(_ context.Context, reports []ingest.Report) (ingest.Result, error) {
	a.Calls++
	if a.Err != nil {
		return ingest.Result{}, a.Err
	}
	var result ingest.Result
	index := 0
	for _, r := range reports {
		out := ingest.Report{Source: strings.Clone(r.Source)}
		for _, m := range r.Measurements {
			if reason := reasonAgainst(m); reason != "" {
				result.Rejected = append(result.Rejected, ingest.Rejection{Index: index, Reason: reason, Message: "by the appender"})
			} else {
				result.Accepted++
				out.Measurements = append(out.Measurements, cloneMeasurement(m))
			}
			index++
		}
		a.Reports = append(a.Reports, out)
	}
	return result, nil
}

func reasonAgainst(m ingest.Measurement) ingest.Reason {
	if m.Metric == "" || !utf8.ValidString(m.Metric) {
		return ingest.ReasonInvalidMetric
	}
	for _, l := range m.Labels {
		if l.Name == "" || !utf8.ValidString(l.Name) || !utf8.ValidString(l.Value) || len(l.Value) > 4096 {
			return ingest.ReasonInvalidLabel
		}
	}
	return ""
}

func cloneMeasurement(m ingest.Measurement) ingest.Measurement {
	out := ingest.Measurement{Metric: strings.Clone(m.Metric), TimeMs: m.TimeMs, Value: m.Value}
	for _, l := range m.Labels {
		out.Labels = append(out.Labels, metric.Label{Name: strings.Clone(l.Name), Value: strings.Clone(l.Value)})
	}
	return out
}

// String prints the kept measurements, one per line.
func (a *Appender) String() string {
	var sb strings.Builder
	for _, r := range a.Reports {
		for _, m := range r.Measurements {
			fmt.Fprintf(&sb, "%s: %q", r.Source, m.Metric)
			for _, l := range m.Labels {
				fmt.Fprintf(&sb, " %q=%q", l.Name, l.Value)
			}
			if m.TimeMs == ingest.NoTime {
				fmt.Fprintf(&sb, " now %v\n", m.Value)
			} else {
				fmt.Fprintf(&sb, " @%d %v\n", m.TimeMs, m.Value)
			}
		}
	}
	return sb.String()
}

// Options returns the options of a server with a simulated clock.
func Options(tb testing.TB) api.Options {
	tb.Helper()
	return api.Options{
		Clock:  clock.NewSimulated(time.UnixMilli(1_732_161_600_000)),
		Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
}

// Server makes a server; set changes its options.
func Server(tb testing.TB, set func(o *api.Options)) *api.Server {
	tb.Helper()
	opts := Options(tb)
	if set != nil {
		set(&opts)
	}
	s, err := api.New(opts)
	require.NoError(tb, err)
	return s
}

// Share returns a budget of which one client may hold n bytes.
func Share(n int64) *limits.Budget { return limits.NewBudget(2*n, n) }

// ReportServer makes a server that ingests.
func ReportServer(tb testing.TB, a push.Appender, limits push.Limits) *api.Server {
	tb.Helper()
	return Server(tb, func(o *api.Options) { o.Appender, o.Limits = a, limits })
}

// Post sends a body to POST /api/v1/reports; headers come in pairs.
func Post(tb testing.TB, h http.Handler, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	return Send(tb, h, wire.ReportsPath, body, headers...)
}

// Get sends a request without a body.
func Get(tb testing.TB, h http.Handler, method, path string) *httptest.ResponseRecorder {
	tb.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), method, path, nil))
	return w
}

// DecodeReply decodes a reply in Quern's own form.
func DecodeReply(tb testing.TB, w *httptest.ResponseRecorder) wire.Report {
	tb.Helper()
	var reply wire.Report
	dec := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	dec.DisallowUnknownFields()
	require.NoError(tb, dec.Decode(&reply), "%s", w.Body)
	require.NotNil(tb, reply.Rejected, "rejected is a list, never null")
	return reply
}

// Counter returns the sum of the counters with a name.
func Counter(tb testing.TB, g prometheus.Gatherer, name string) float64 {
	tb.Helper()
	families, err := g.Gather()
	require.NoError(tb, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// PlainBody makes a body like an agent's, in the form of the documented example.
func PlainBody(n int) []byte {
	var buf bytes.Buffer
	buf.WriteString(`{"source":"web-1","measurements":[`)
	for i := range n {
		if i > 0 {
			buf.WriteByte(',')
		}
		fmt.Fprintf(&buf, `{"metric":"node_cpu_seconds_total","labels":{"core":"%d","mode":"user"},"time":%d,"value":%d.%02d}`,
			i%8, 1732161600000+i, i*7, i%100)
	}
	buf.WriteString(`]}`)
	return buf.Bytes()
}

// Send sends a body to a path; headers come in pairs.
func Send(tb testing.TB, h http.Handler, path string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, path, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// BackFiller is an Appender for history that can be busy.
type BackFiller struct {
	Appender
	Busy  int // the number of calls to refuse, after the first at calls
	At    int
	Bits  []uint64
	Sizes []int
}

// BackFill implements importer.BackFiller.
func (b *BackFiller) BackFill(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	if b.Calls >= b.At && b.Busy > 0 {
		b.Busy--
		return ingest.Result{}, ingest.ErrBusy
	}
	n := 0
	for _, r := range reports {
		n += len(r.Measurements)
		for _, m := range r.Measurements {
			b.Bits = append(b.Bits, math.Float64bits(m.Value))
		}
	}
	b.Sizes = append(b.Sizes, n)
	return b.Append(ctx, reports)
}

// Status is a status provider with one answer.
type Status struct {
	Reply wire.Status
	Lines wire.Slices
	Err   error
}

// Slices implements reading.StatusProvider.
func (s Status) Slices(context.Context, int64, int64) (wire.Slices, error) { return s.Lines, s.Err }

// AggregationStatus implements reading.StatusProvider.
func (s Status) AggregationStatus(context.Context, bool) (wire.Status, error) {
	return s.Reply, s.Err
}

// Unkept returns the losses of senders in the status.
func Unkept(t *testing.T, s http.Handler) string {
	t.Helper()
	var reply struct{ Unkept json.RawMessage }
	require.NoError(t, json.Unmarshal(Get(t, s, http.MethodGet, "/api/v1/status/aggregation").Body.Bytes(), &reply))
	return string(reply.Unkept)
}

// Registrar registers endpoints.
type Registrar func(to *route.Table)

// Register implements api.Registrar.
func (r Registrar) Register(to *route.Table) { r(to) }

// Proto encodes a field of a protobuf message from parts.
func Proto[T string | []byte](field protowire.Number, parts ...T) string {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return string(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), all))
}

// ImportLine is a line of an import.
const ImportLine = `{"metric":{"__name__":"cpu","source":"web-1"},"values":[1,2.5],"timestamps":[1000,2000]}`
