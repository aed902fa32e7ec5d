package influx_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// influxVersion is the version that clients are told.
const influxVersion = "1.8.10-quern"

// influx1Error and influx2Error are the forms of errors.
type (
	influx1Error struct {
		Error string `json:"error"`
	}
	influx2Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
)

func influxServer(t *testing.T, a push.Appender, set func(*api.Options)) *api.Server {
	t.Helper()
	return apitest.Server(t, func(o *api.Options) {
		o.Appender, o.Sources = a, metric.SourceLabels{"host"}
		if set != nil {
			set(o)
		}
	})
}

const influxLines = "cpu,host=web-1 user=1.5,system=2i 1732161600000000000\nup,host=web-1 value=t\n"

func TestInfluxWrite(t *testing.T) {
	for _, path := range []string{
		"/write?db=telegraf&u=me&p=secret&rp=one&consistency=one", "/influx/write?db=telegraf", "/api/v2/write?org=o&bucket=b&db=telegraf&precision=ns",
	} {
		for _, headers := range [][]string{
			{"Content-Type", "text/plain; charset=utf-8", "Authorization", "Token secret"}, {"Content-Type", "application/x-www-form-urlencoded"}, nil,
		} {
			a := &apitest.Appender{}
			w := apitest.Send(t, influxServer(t, a, nil), path, strings.NewReader(influxLines), headers...)
			require.Equal(t, http.StatusNoContent, w.Code, "%s", w.Body)
			require.Empty(t, w.Body.String())
			require.Equal(t, `web-1: "cpu_user" "host"="web-1" "db"="telegraf" @1732161600000 1.5
web-1: "cpu_system" "host"="web-1" "db"="telegraf" @1732161600000 2
web-1: "up_value" "host"="web-1" "db"="telegraf" now 1
`, a.String())
		}
	}
	// A bucket is not a database, and an empty body is not an error.
	a := &apitest.Appender{}
	s := influxServer(t, a, nil)
	require.Equal(t, http.StatusNoContent, apitest.Send(t, s, "/api/v2/write?bucket=b&precision=s", strings.NewReader("m v=1 1732161600")).Code)
	require.Equal(t, ": \"m_v\" @1732161600000 1\n", a.String())
	require.Equal(t, http.StatusNoContent, apitest.Send(t, s, "/write", strings.NewReader("# nothing\n\n")).Code)
	require.Equal(t, 1, a.Calls)
}

// Errors have the format of the InfluxDB version that the client expects.
func TestInfluxErrors(t *testing.T) {
	broken := apitest.Compressed(t, "gzip", []byte(strings.Repeat(influxLines, 1000)))
	for _, c := range []struct {
		name    string
		path    string
		body    io.Reader
		headers []string
		err     error
		drain   bool
		set     func(*api.Options)
		v1, v2  int
		code    string // of InfluxDB 2
		message string
		retry   string
	}{
		{
			name: "bad lines", body: strings.NewReader("m v=1\n\nm v=x\nm v=2\nm\n"), v1: 400, v2: 400, code: "invalid",
			message: `partial write: 2 accepted, 2 rejected, the first in line 3: field "v": "x" is not a number that can be stored (invalid_value)`,
		},
		{
			name: "rejected behind the decoder", body: strings.NewReader("m s=\"\n\",v=1\nm,t=\xff v=1,w=2\nm v=2\n"), v1: 400, v2: 400, code: "invalid",
			message: "partial write: 2 accepted, 2 rejected, the first in line 3: by the appender (invalid_label)",
		},
		{
			name: "nothing accepted", body: strings.NewReader("{\"json\": 1}"), v1: 400, v2: 400, code: "invalid",
			message: `partial write: 0 accepted, 1 rejected, the first in line 1: field "1}" has no value (invalid_value)`,
		},
		{name: "precision", path: "?precision=d", body: strings.NewReader(influxLines), v1: 400, v2: 400, code: "invalid", message: `unknown precision "d": use ns, us, ms, s, m or h`},
		{
			name: "an encoding", body: strings.NewReader(influxLines), headers: []string{"Content-Encoding", "br"}, v1: 415, v2: 415, code: "unsupported media type",
			message: `the Content-Encoding "br" is not supported: use one of gzip, zstd, snappy, identity`,
		},
		{
			name: "too large", body: strings.NewReader(influxLines), set: func(o *api.Options) { o.Limits.BodyBytes = 10 }, v1: 413, v2: 413, code: "request too large",
			message: "the body is larger than the limit of 10 bytes, nothing of it was kept: send smaller requests",
		},
		{
			name: "too many", body: strings.NewReader(influxLines), set: func(o *api.Options) { o.Limits.Measurements = 2 }, v1: 413, v2: 413, code: "request too large",
			message: "the body has more than the limit of 2 measurements, nothing of it was kept: send smaller requests",
		},
		{
			name: "busy", body: strings.NewReader(influxLines), err: ingest.ErrBusy, v1: 503, v2: 429, code: "too many requests", retry: "1",
			message: "too many samples are waiting to be written",
		},
		{
			name: "no room", body: strings.NewReader(influxLines), set: func(o *api.Options) { o.Bodies = apitest.Share(1) }, v1: 503, v2: 429, code: "too many requests", retry: "1",
			message: "the bodies of other requests fill the memory for request bodies, try again",
		},
		{
			name: "the store is away", body: strings.NewReader(influxLines), err: storage.ErrUnavailable, v1: 503, v2: 503, code: "unavailable", retry: "5",
			message: storage.ErrUnavailable.Error(),
		},
		{name: "a failure", body: strings.NewReader(influxLines), err: errors.New("oh"), v1: 500, v2: 500, code: "internal error", message: "oh"},
		{name: "draining", body: strings.NewReader(influxLines), drain: true, v1: 503, v2: 503, code: "unavailable", retry: "5", message: respond.Draining},
	} {
		t.Run(c.name, func(t *testing.T) {
			body, err := io.ReadAll(c.body)
			require.NoError(t, err)
			for path, v2 := range map[string]bool{"/write": false, "/influx/write": false, "/api/v2/write": true} {
				s := influxServer(t, &apitest.Appender{Err: c.err}, c.set)
				if c.drain {
					s.Drain()
				}
				w := apitest.Send(t, s, path+c.path, bytes.NewReader(body), c.headers...)
				code, want := c.v1, any(influx1Error{c.message})
				if v2 {
					code, want = c.v2, influx2Error{c.code, c.message}
				}
				require.Equal(t, code, w.Code, "%s", w.Body)
				require.JSONEq(t, asJSON(t, want), w.Body.String())
				require.Equal(t, c.retry, w.Header().Get("Retry-After"))
				require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			}
		})
	}

	// Of a body that breaks off, the complete lines are kept, but not the cut line.
	a := &apitest.Appender{}
	w := apitest.Send(t, influxServer(t, a, nil), "/write", apitest.CutOff(broken[:len(broken)-9]), "Content-Encoding", "gzip")
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "accepted, cannot read the body to its end: unexpected EOF")
	cut := &cutReader{data: "m v=1\nm v=23", err: io.ErrUnexpectedEOF}
	a = &apitest.Appender{}
	w = apitest.Send(t, influxServer(t, a, nil), "/write", cut)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.JSONEq(t, `{"error":"partial write: 1 accepted, cannot read the body to its end: unexpected EOF"}`, w.Body.String())
	require.Equal(t, ": \"m_v\" now 1\n", a.String())
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

// cutReader is a body that breaks off.
type cutReader struct {
	data string
	err  error
}

func (r *cutReader) Read(p []byte) (int, error) {
	n := copy(p, r.data)
	if r.data = r.data[n:]; r.data == "" {
		return n, r.err
	}
	return n, nil
}

func TestInfluxGzip(t *testing.T) {
	a := &apitest.Appender{}
	w := apitest.Send(t, influxServer(t, a, nil), "/api/v2/write", bytes.NewReader(apitest.Compressed(t, "gzip", []byte(influxLines))), "Content-Encoding", "gzip")
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Len(t, a.Reports[0].Measurements, 3)
}

// String fields are counted and are not an error.
func TestInfluxStrings(t *testing.T) {
	reg := prometheus.NewRegistry()
	a := &apitest.Appender{}
	s := influxServer(t, a, func(o *api.Options) { o.Registerer = reg })
	w := apitest.Send(t, s, "/write", strings.NewReader("system,host=a uptime=5i,uptime_format=\"5 s\" 1732161600000000000\nsystem,host=a s=\"\"\n"))
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Equal(t, "a: \"system_uptime\" \"host\"=\"a\" @1732161600000 5\n", a.String())
	require.EqualValues(t, 2, apitest.Counter(t, reg, "quern_influx_string_fields_ignored_total"))
}

// Clients send these requests before they write.
func TestInfluxQuestions(t *testing.T) {
	var away error
	s := influxServer(t, &apitest.Appender{}, func(o *api.Options) { o.Ready = func(context.Context) error { return away } })
	for _, path := range []string{"/ping", "/influx/ping"} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := apitest.Get(t, s, method, path)
			require.Equal(t, http.StatusNoContent, w.Code)
			require.Equal(t, influxVersion, w.Header().Get("X-Influxdb-Version"))
		}
	}

	ask := func(path, q string) *httptest.ResponseRecorder {
		return apitest.Send(t, s, path, strings.NewReader(url.Values{"q": {q}}.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	}
	for _, q := range []string{`CREATE DATABASE "telegraf"`, "create database x;", `CREATE DATABASE x WITH DURATION 1d`} {
		for _, w := range []*httptest.ResponseRecorder{ask("/query", q), ask("/influx/query", q), apitest.Get(t, s, http.MethodGet, "/query?q="+url.QueryEscape(q))} {
			require.Equal(t, http.StatusOK, w.Code)
			require.JSONEq(t, `{"results":[{"statement_id":0}]}`, w.Body.String())
		}
	}
	for _, q := range []string{"", "CREATE", "CREATE DATABASE", "SHOW DATABASES", `SELECT * FROM cpu`, `CREATE DATABASE a; DROP DATABASE b`} {
		w := ask("/query", q)
		require.Equal(t, http.StatusBadRequest, w.Code, q)
		require.Contains(t, w.Body.String(), `{"error":"InfluxQL is not supported`)
	}

	w := apitest.Get(t, s, http.MethodGet, "/health")
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, fmt.Sprintf(`{"name":"influxdb","status":"pass","message":"ready for writes","version":%q}`, influxVersion), w.Body.String())
	away = storage.ErrUnavailable
	w = apitest.Get(t, s, http.MethodGet, "/health")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), `"status":"fail"`)
}

// A series gets its bucket as a label, unless it has a tag with the label's name.
func TestInfluxBucketLabel(t *testing.T) {
	a := &apitest.Appender{}
	s := influxServer(t, a, func(o *api.Options) { o.InfluxBucketLabel = "bucket" })
	require.Equal(t, http.StatusNoContent, apitest.Send(t, s, "/api/v2/write?org=o&bucket=b&db=d", strings.NewReader("m v=1\nm,bucket=mine v=2\nm,db=mine v=3")).Code)
	require.Equal(t, `: "m_v" "db"="d" "bucket"="b" now 1
: "m_v" "bucket"="mine" "db"="d" now 2
: "m_v" "db"="mine" "bucket"="b" now 3
`, a.String())
}
