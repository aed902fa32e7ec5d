package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recordingAppender keeps copies of the reports, as the contract demands, and rejects what only
// validation can detect. It replaces ingest; other tests use the API with the real one.
type recordingAppender struct {
	err     error
	reports []ingest.Report
	calls   int
}

func (a *recordingAppender) Append(_ context.Context, reports []ingest.Report) (ingest.Result, error) {
	a.calls++
	if a.err != nil {
		return ingest.Result{}, a.err
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
		a.reports = append(a.reports, out)
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
func (a *recordingAppender) String() string {
	var sb strings.Builder
	for _, r := range a.reports {
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

func testOptions(tb testing.TB) Options {
	tb.Helper()
	return Options{
		Clock:  clock.NewSimulated(time.UnixMilli(1_732_161_600_000)),
		Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
		Ladder: metric.DefaultLadder(),
	}
}

func newServer(tb testing.TB, set func(o *Options)) *Server {
	tb.Helper()
	opts := testOptions(tb)
	if set != nil {
		set(&opts)
	}
	s, err := New(opts)
	require.NoError(tb, err)
	return s
}

func reportServer(tb testing.TB, a Appender, limits Limits) *Server {
	tb.Helper()
	return newServer(tb, func(o *Options) { o.Appender, o.Limits = a, limits })
}

// post sends a body to POST /api/v1/reports; headers come in pairs.
func post(tb testing.TB, h http.Handler, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, reportsPath, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(tb testing.TB, h http.Handler, method, path string) *httptest.ResponseRecorder {
	tb.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), method, path, nil))
	return w
}

func decodeReply(tb testing.TB, w *httptest.ResponseRecorder) reportsReply {
	tb.Helper()
	var reply reportsReply
	dec := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	dec.DisallowUnknownFields()
	require.NoError(tb, dec.Decode(&reply), "%s", w.Body)
	require.NotNil(tb, reply.Rejected, "rejected is a list, never null")
	return reply
}

func counterValue(tb testing.TB, g prometheus.Gatherer, name string) float64 {
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
