package remotewrite_test

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/limits"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/remotewrite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// catalog records notes.
type catalog struct {
	mu    sync.Mutex
	notes []metric.Metadata
}

func (c *catalog) Add(from limits.Client, m metric.Metadata) { c.Note(from, m) }

func (c *catalog) Note(_ limits.Client, m metric.Metadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes = append(c.notes, metric.Metadata{Name: strings.Clone(m.Name), Type: m.Type, Help: strings.Clone(m.Help), Unit: strings.Clone(m.Unit)})
}

const (
	protobuf1 = "application/x-protobuf;proto=prometheus.WriteRequest"
	protobuf2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
)

// staleNaN is the value that Prometheus sends when a series has ended.
var staleNaN = math.Float64frombits(0x7ff0000000000002)

func write1(tb testing.TB, series ...prompb.TimeSeries) []byte {
	tb.Helper()
	b, err := (&prompb.WriteRequest{Timeseries: series}).Marshal()
	require.NoError(tb, err)
	return b
}

func series1(value float64, labels ...string) prompb.TimeSeries {
	ts := prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: 1_732_161_600_000, Value: value}}}
	for i := 0; i < len(labels); i += 2 {
		ts.Labels = append(ts.Labels, prompb.Label{Name: labels[i], Value: labels[i+1]})
	}
	return ts
}

// write2 is write1 in version 2.0.
func write2(tb testing.TB, series ...prompb.TimeSeries) []byte {
	tb.Helper()
	table := writev2.NewSymbolTable()
	var r writev2.Request
	for _, ts := range series {
		out := writev2.TimeSeries{Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: table.Symbolize("Is it?")}}
		for _, l := range ts.Labels {
			out.LabelsRefs = append(out.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		for _, s := range ts.Samples {
			out.Samples = append(out.Samples, writev2.Sample{Timestamp: s.Timestamp, Value: s.Value})
		}
		for range ts.Histograms {
			out.Histograms = append(out.Histograms, writev2.Histogram{Sum: 1})
		}
		r.Timeseries = append(r.Timeseries, out)
	}
	r.Symbols = table.Symbols()
	b, err := r.Marshal()
	require.NoError(tb, err)
	return b
}

func writeServer(t *testing.T, a push.Appender, set func(*api.Options)) *api.Server {
	t.Helper()
	return apitest.Server(t, func(o *api.Options) {
		o.Appender, o.Sources = a, metric.SourceLabels{"instance"}
		if set != nil {
			set(o)
		}
	})
}

func TestRemoteWrite(t *testing.T) {
	series := []prompb.TimeSeries{
		series1(1, "__name__", "up", "instance", "web-1"), series1(math.Inf(1), "__name__", "up", "instance", "web-2", "z", ""),
	}
	const want = "web-1: \"up\" \"instance\"=\"web-1\" @1732161600000 1\nweb-2: \"up\" \"instance\"=\"web-2\" @1732161600000 +Inf\n"
	for _, c := range []struct {
		name    string
		body    []byte
		headers []string
		written []string
	}{
		{"1.0", apitest.Compressed(t, "snappy", write1(t, series...)), []string{"Content-Type", protobuf1, "Content-Encoding", "snappy"}, []string{"2"}},
		{
			"as Prometheus sends it", apitest.Compressed(t, "snappy", write1(t, series...)),
			[]string{"Content-Type", "application/x-protobuf", "Content-Encoding", "snappy", "X-Prometheus-Remote-Write-Version", "0.1.0"},
			[]string{"2"},
		},
		{"no headers", apitest.Compressed(t, "snappy", write1(t, series...)), nil, []string{"2"}},
		{
			"as vmagent sends it", apitest.Compressed(t, "zstd", write1(t, series...)),
			[]string{"Content-Type", "application/x-protobuf", "Content-Encoding", "zstd", "X-VictoriaMetrics-Remote-Write-Version", "1"},
			[]string{"2"},
		},
		{"gzip", apitest.Compressed(t, "gzip", write1(t, series...)), []string{"Content-Encoding", "gzip"}, []string{"2"}},
		{"not compressed, and said so", write1(t, series...), []string{"Content-Encoding", "identity"}, []string{"2"}},
		{"2.0", apitest.Compressed(t, "snappy", write2(t, series...)), []string{"Content-Type", protobuf2, "Content-Encoding", "snappy"}, []string{"2", "0", "0"}},
		{"2.0 in other words", apitest.Compressed(t, "snappy", write2(t, series...)), []string{"Content-Type", `Application/X-Protobuf; proto="io.prometheus.write.v2.Request"`}, []string{"2", "0", "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &apitest.Appender{}
			w := apitest.Send(t, writeServer(t, a, nil), remotewrite.Path, bytes.NewReader(c.body), c.headers...)
			require.Equal(t, http.StatusNoContent, w.Code, "%s", w.Body)
			require.Empty(t, w.Body.String())
			require.Equal(t, c.written, writtenOf(w.Header()))
			require.Equal(t, want, a.String())
		})
	}
}

// writtenOf returns the written counts that a sender gets: samples, and with version 2.0 histograms and exemplars.
func writtenOf(h http.Header) (out []string) {
	for _, what := range []string{"Samples", "Histograms", "Exemplars"} {
		out = append(out, h.Values("X-Prometheus-Remote-Write-"+what+"-Written")...)
	}
	return out
}

// Only its bits distinguish a stale marker from other NaNs.
func TestRemoteWriteKeepsBits(t *testing.T) {
	for _, body := range [][]byte{write1(t, series1(staleNaN, "__name__", "up")), write2(t, series1(staleNaN, "__name__", "up"))} {
		content := protobuf1
		if bytes.Contains(body, []byte("Is it?")) {
			content = protobuf2
		}
		a := &apitest.Appender{}
		w := apitest.Send(t, writeServer(t, a, nil), remotewrite.Path, bytes.NewReader(apitest.Compressed(t, "snappy", body)), "Content-Type", content)
		require.Equal(t, http.StatusNoContent, w.Code)
		require.Equal(t, math.Float64bits(staleNaN), math.Float64bits(a.Reports[0].Measurements[0].Value))
	}
}

// Prometheus sends metadata in requests without samples.
func TestRemoteWriteMetadata(t *testing.T) {
	body, err := (&prompb.WriteRequest{Metadata: []prompb.MetricMetadata{
		{MetricFamilyName: "up", Type: prompb.MetricMetadata_GAUGE, Help: "Is it?", Unit: "ratio"},
	}}).Marshal()
	require.NoError(t, err)
	a, c := &apitest.Appender{}, &catalog{}
	s := writeServer(t, a, func(o *api.Options) { o.Metadata = c })
	w := apitest.Send(t, s, remotewrite.Path, bytes.NewReader(apitest.Compressed(t, "snappy", body)))
	require.Equal(t, http.StatusNoContent, w.Code, "%s", w.Body)
	require.Zero(t, a.Calls)
	w = apitest.Send(t, s, remotewrite.Path, bytes.NewReader(apitest.Compressed(t, "snappy", write2(t, series1(1, "__name__", "down")))), "Content-Type", protobuf2)
	require.Equal(t, http.StatusNoContent, w.Code, "%s", w.Body)
	require.Equal(t, []metric.Metadata{
		{Name: "up", Type: metric.TypeGauge, Help: "Is it?", Unit: "ratio"}, {Name: "down", Type: metric.TypeGauge, Help: "Is it?"},
	}, c.notes)
}

func TestRemoteWriteErrors(t *testing.T) {
	up := series1(1, "__name__", "up", "instance", "web-1")
	bad := func(n int) (out []prompb.TimeSeries) {
		for range n {
			out = append(out, series1(1, "__name__", "up", "host", "bad\xff"))
		}
		return append(out, up)
	}
	histogram := prompb.TimeSeries{Labels: up.Labels, Samples: up.Samples, Histograms: []prompb.Histogram{{Sum: 1}}}
	good := write1(t, up, up, up)
	// A sender's mistake is an error in both versions.
	type request struct{ v1, v2 []byte }
	both := func(series ...prompb.TimeSeries) request { return request{write1(t, series...), write2(t, series...)} }
	for _, c := range []struct {
		name    string
		request request
		enc     string
		headers []string
		err     error
		code    int
		message string
		retry   string
		written string

		rejected string
	}{
		{
			name: "one rejected", request: both(up, series1(1, "__name__", "up", "host", "bad\xff"), up), code: 400, written: "2", rejected: "1",
			message: `2 samples stored, 1 rejected; sample 1: by the appender in up{host="bad\xff"} (invalid_label)`,
		},
		{
			name: "all rejected", request: both(series1(1, "instance", "web-1")), code: 400, written: "0", rejected: "1",
			message: `0 samples stored, 1 rejected; sample 0: by the appender in {instance="web-1"} (invalid_metric)`,
		},
		{
			name: "many rejected", request: both(bad(8)...), code: 400, written: "1", rejected: "8",
			message: "1 samples stored, 8 rejected; " + strings.Repeat(`sample N: by the appender in up{host="bad\xff"} (invalid_label); `, 5) + "and 3 more",
		},
		{
			name: "a series that is long", request: both(series1(1, "__name__", "up", "l", strings.Repeat("x", 5000))), code: 400, written: "0", rejected: "1",
			message: `0 samples stored, 1 rejected; sample 0: by the appender in up{l="` + strings.Repeat("x", push.SeriesBytes-6) + "… (invalid_label)",
		},
		{
			name: "histograms and a bad label", request: both(histogram, up, series1(1, "__name__", "up", "host", "bad\xff")), code: 400, written: "2", rejected: "2",
			message: `2 samples stored, 2 rejected; sample 1: native histograms are not stored (unsupported); sample 3: by the appender in up{host="bad\xff"} (invalid_label)`,
		},
		{
			name: "the other version", request: request{write2(t, up), good}, code: 400, written: "0",
			message: "0 samples stored, 0 rejected; cannot read the message to its end: the message is ",
		},
		{
			name: "cut", request: request{good[:len(good)-5], write2(t, up, up, up)[:len(write2(t, up, up, up))-5]}, code: 400, written: "2",
			message: "2 samples stored, 0 rejected; cannot read the message to its end: ",
		},
		{
			name: "no snappy", request: both(up), enc: "gzip", headers: []string{"Content-Encoding", "snappy"}, code: 400, written: "0",
			message: "the body cannot be decompressed: s2: corrupt input; nothing of it was kept",
		},
		{name: "busy", request: both(up), err: ingest.ErrBusy, code: 429, retry: "1", written: "0", message: "too many samples are waiting to be written"},
	} {
		for version, body := range map[string][]byte{protobuf1: c.request.v1, protobuf2: c.request.v2} {
			t.Run(c.name+" of "+version, func(t *testing.T) {
				a := &apitest.Appender{Err: c.err}
				s := writeServer(t, a, nil)
				enc := c.enc
				if enc == "" {
					enc = "snappy"
				}
				w := apitest.Send(t, s, remotewrite.Path, bytes.NewReader(apitest.Compressed(t, enc, body)), append([]string{"Content-Type", version}, c.headers...)...)
				require.Equal(t, c.code, w.Code, "%s", w.Body)
				require.Equal(t, "text/plain; charset=utf-8", w.Header().Get("Content-Type"))
				require.Equal(t, c.retry, w.Header().Get("Retry-After"))
				counts := []string{c.written, "0", "0"}
				if version == protobuf1 {
					counts = counts[:1]
				}
				require.Equal(t, counts, writtenOf(w.Header()))
				require.Equal(t, c.rejected, w.Header().Get(remotewrite.RejectedHeader))
				message := w.Body.String()
				if c.name == "many rejected" {
					message = strings.NewReplacer("sample 0", "sample N", "sample 1", "sample N", "sample 2", "sample N", "sample 3", "sample N", "sample 4", "sample N").Replace(message)
				}
				if c.name == "cut" || c.name == "the other version" {
					require.Contains(t, message, c.message)
					return
				}
				require.Equal(t, c.message+"\n", message)
			})
		}
	}
}

// The server trusts the Content-Type of newer versions and other formats: it never guesses.
func TestRemoteWriteContentTypes(t *testing.T) {
	for _, content := range []string{
		"application/json", "application/x-protobuf;proto=io.prometheus.write.v3.Request", "application/x-protobuf;;", "text/plain; charset=utf-8",
	} {
		a := &apitest.Appender{}
		w := apitest.Send(t, writeServer(t, a, nil), remotewrite.Path, io.NopCloser(strings.NewReader("")), "Content-Type", content)
		require.Equal(t, http.StatusUnsupportedMediaType, w.Code, content)
		require.Contains(t, w.Body.String(), "io.prometheus.write.v2.Request")
		require.Contains(t, w.Body.String(), content)
	}
	require.Equal(t, http.StatusMethodNotAllowed, apitest.Get(t, writeServer(t, &apitest.Appender{}, nil), http.MethodGet, remotewrite.Path).Code)
}

// A sender of version 1.0 counts its whole request as failed on any error. So a native histogram
// must not cause one: the samples next to it are stored, and operators hear of it. A sender of
// version 2.0 reads from the headers what was written.
func TestRemoteWriteHistograms(t *testing.T) {
	up := series1(1, "__name__", "up", "instance", "web-1")
	histogram := prompb.TimeSeries{Labels: up.Labels, Samples: up.Samples, Histograms: []prompb.Histogram{{Sum: 1}}}
	for _, c := range []struct {
		version string
		body    []byte
		code    int
		written []string
		unkept  string
	}{
		{
			protobuf1, write1(t, histogram, up), http.StatusNoContent,
			[]string{"2"},
			`[{"path":"/api/v1/write","sender":"192.0.2.1 (Prometheus/9)","reason":"unsupported","count":1,"last":1732161600000,"message":"native histograms are not stored"}]`,
		},
		{protobuf2, write2(t, histogram, up), http.StatusBadRequest, []string{"2", "0", "0"}, ""},
	} {
		t.Run(c.version, func(t *testing.T) {
			a := &apitest.Appender{}
			reg := prometheus.NewRegistry()
			s := writeServer(t, a, func(o *api.Options) { o.Status, o.Registerer = apitest.Status{}, reg })
			w := apitest.Send(t, s, remotewrite.Path, bytes.NewReader(apitest.Compressed(t, "snappy", c.body)), "Content-Type", c.version, "User-Agent", "Prometheus/9")
			require.Equal(t, c.code, w.Code, "%s", w.Body)
			require.Equal(t, c.written, writtenOf(w.Header()))
			require.Equal(t, strings.Repeat("web-1: \"up\" \"instance\"=\"web-1\" @1732161600000 1\n", 2), a.String())
			require.Equal(t, c.unkept, apitest.Unkept(t, s))
			n, err := testutil.GatherAndCount(reg, "quern_http_unkept_total")
			require.NoError(t, err)
			require.Equal(t, c.unkept != "", n == 1)
		})
	}
}
