package adaptor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
)

// later is so far ahead that no deadline passes.
var later = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// httpRig is an HTTP that runs.
type httpRig struct {
	*rig
	lines logLines
	url   string
	stop  func() // and wait
}

func runHTTP(t *testing.T, r *rig, h *HTTP) *httpRig {
	t.Helper()
	require.NoError(t, h.check())
	running := &httpRig{rig: r, lines: make(logLines, 1000)}
	out := NewOutput(r.Spool, stepped{clock.NewSimulated(later), make(chan time.Time)}, slog.New(slog.NewTextHandler(running.lines, nil)), "web-1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx, out)
	}()
	running.stop = func() {
		cancel()
		<-ended
	}
	_, address, _ := strings.Cut(running.lines.find("receiving"), "address=")
	running.url = "http://" + strings.TrimSpace(address)
	return running
}

// post returns the answer: its code and its text.
func (r *httpRig) post(t *testing.T, path, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// TestHTTP: what the server takes is in the spool when it is answered, with its labels as they came. What is wrong is named at once.
func TestHTTP(t *testing.T) {
	r := newRig(t)
	running := runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	write, err := (&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels:  []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "instance", Value: "a:9100"}},
		Samples: []prompb.Sample{{Timestamp: 5, Value: 1}, {Timestamp: 6, Value: 0}},
	}}}).Marshal()
	require.NoError(t, err)
	code, text := running.post(t, "/api/v1/write", string(snappy.Encode(nil, write)))
	require.Equal(t, 204, code, text)
	code, text = running.post(t, "/api/v1/reports", `{"source":"kitchen","measurements":[{"metric":"tea","value":71.5},{"metric":"","valve":1}]}`)
	require.Equal(t, 200, code, text)
	require.Contains(t, text, `"index":1`)
	code, text = running.post(t, "/write", "cpu,host=b usage=0.5 7000000")
	require.Equal(t, 204, code, text)
	code, text = running.post(t, "/v1/metrics", `{"resourceMetrics": [{"resource": {"attributes": [{"key": "host.name", "value": {"stringValue": "c"}}]},
		"scopeMetrics": [{"metrics": [{"name": "load", "gauge": {"dataPoints": [{"timeUnixNano": "8000000", "asDouble": 2}]}}]}]}]}`, "Content-Type", "application/json")
	require.Equal(t, 200, code, text)
	for _, path := range []string{"/api/v1/import", "/explore"} {
		code, _ = running.post(t, path, "")
		require.Equal(t, 404, code, path)
	}
	running.stop()

	samples, chunks := spooled(t, r.Spool)
	require.Equal(t, []sample{
		{"", "up", map[string]string{"instance": "a:9100"}, 5, 1},
		{"", "up", map[string]string{"instance": "a:9100"}, 6, 0},
		{"kitchen", "tea", nil, later.UnixMilli(), 71.5},
		{"", "cpu_usage", map[string]string{"host": "b"}, 7, 0.5},
		{"", "load", map[string]string{"host_name": "c"}, 8, 2},
	}, samples)
	require.EqualValues(t, 4, chunks[2].Seq)

	// The stream goes on behind a restart.
	running = runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	code, _ = running.post(t, "/write", "cpu,host=b usage=0.5 8000000")
	require.Equal(t, 204, code)
	running.stop()
	require.EqualValues(t, 6, r.Spool.Stream("http 127.0.0.1:0").Seq)
}

// TestHTTPParts: a large request becomes several chunks, each of which a server takes.
func TestHTTPParts(t *testing.T) {
	r := newRig(t)
	running := runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	var all strings.Builder
	const n = 40_000
	for i := range n {
		fmt.Fprintf(&all, "m,%s=%d value=%d %d\n", strings.Repeat("n", 100), i%3, i, (i+1)*1_000_000)
	}
	code, text := running.post(t, "/write", all.String())
	require.Equal(t, 204, code, text)
	running.stop()
	samples, chunks := spooled(t, r.Spool)
	require.Len(t, samples, n)
	for i, s := range samples {
		require.EqualValues(t, i, s.Value)
	}
	require.Greater(t, len(chunks), 4)
	var seq uint64
	for _, c := range chunks {
		require.LessOrEqual(t, c.Samples, maxPart/(partSample+100)+1)
		seq += uint64(c.Samples)
		require.Equal(t, seq, c.Seq)
	}
}

// TestHTTPFull: while the spool is full, senders keep what they have, and nothing of what was answered goes.
func TestHTTPFull(t *testing.T) {
	r := &rig{clock: clock.NewSimulated(begin), log: new(bytes.Buffer)}
	r.disk = spool.Options{FS: spool.Memory(), Clock: r.clock, Logger: slog.New(slog.DiscardHandler), MaxBytes: 1000}
	r.open(t)
	running := runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	long := ""
	for range 20 {
		long += rand.Text() // which compresses badly
	}
	code, text := running.post(t, "/write", "m,n="+long+" value=1")
	require.Equal(t, 413, code, "it will never have room: %s", text)
	kept := 0
	for {
		if code, text := running.post(t, "/write", fmt.Sprintf("m value=%d 1000000", kept)); code != 204 {
			require.Equal(t, 503, code)
			require.Contains(t, text, "the spool of the agent is full")
			break
		}
		kept++
	}
	running.stop()
	samples, _ := spooled(t, r.Spool)
	require.Len(t, samples, kept)
	require.Positive(t, kept)
	require.Contains(t, running.lines.find("refused samples"), "http 127.0.0.1:0")
	require.NoError(t, r.Spool.Close())
}

// TestHTTPWhole: of a request that has several chunks, nothing is kept if there is no room for all.
func TestHTTPWhole(t *testing.T) {
	r := &rig{clock: clock.NewSimulated(begin), log: new(bytes.Buffer)}
	r.disk = spool.Options{FS: spool.Memory(), Clock: r.clock, Logger: slog.New(slog.DiscardHandler), MaxBytes: 16 << 20}
	r.open(t)
	running := runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	var request strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&request, "m,n=%d value=%v\n", i, math.Sqrt(float64(i)))
	}
	code, text := running.post(t, "/write", request.String())
	require.Equal(t, 204, code, text)
	kept := r.Spool.Stream("http 127.0.0.1:0")
	bytes := r.Spool.Rest(spool.Position{})
	chunk := spool.Chunk{Stream: "other", Data: make([]byte, 10_000)}
	for r.Spool.Rest(spool.Position{}) < 14<<20-bytes/2 {
		require.NoError(t, r.Spool.PutOrWait(t.Context(), chunk))
	}
	code, _ = running.post(t, "/write", request.String())
	require.Equal(t, 503, code)
	require.Equal(t, kept, r.Spool.Stream("http 127.0.0.1:0"))
	code, _ = running.post(t, "/write", "m value=1")
	require.Equal(t, 204, code, "a small one has room")
	running.stop()
	require.NoError(t, r.Spool.Close())
}

// TestHTTPToken: with a token, only those may send who show it.
func TestHTTPToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	running := runHTTP(t, newRig(t), &HTTP{Listen: "0.0.0.0:0", TokenFile: file})
	running.url = strings.Replace(running.url, "[::]", "127.0.0.1", 1)
	post := func(headers ...string) int {
		code, _ := running.post(t, "/write", "m value=1 1000000", headers...)
		return code
	}
	require.Equal(t, 401, post())
	require.Equal(t, 401, post("Authorization", "Bearer wrong"))
	require.Equal(t, 204, post("Authorization", "Bearer secret"))
	require.Equal(t, 204, post("Authorization", "Token secret"))
	require.Equal(t, 204, post("Authorization", "Basic YW55OnNlY3JldA=="))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Equal(t, 401, post("Authorization", "Bearer "), "nothing is no token")
	running.stop()

	require.ErrorContains(t, (&HTTP{Listen: "0.0.0.0:9095"}).check(), "token-file: other machines reach this address")
	require.ErrorContains(t, (&HTTP{Listen: "127.0.0.1:9095", TokenFile: file + "s"}).check(), "token-file: stat "+file+"s")
	require.ErrorContains(t, (&HTTP{Listen: "9095"}).check(), "listen: must be an address and a port")
}

// TestHTTPStop: a request under way is answered when the adaptor ends.
func TestHTTPStop(t *testing.T) {
	r := newRig(t)
	running := runHTTP(t, r, &HTTP{Listen: "127.0.0.1:0"})
	address := strings.TrimPrefix(running.url, "http://")
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	const body = "m value=1 1000000"
	_, err = fmt.Fprintf(conn, "POST /write HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
	require.NoError(t, err)
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "100 Continue") // it is inside
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		running.stop()
	}()
	for { // until it takes no more
		other, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			break
		}
		require.NoError(t, other.Close())
		runtime.Gosched()
	}
	_, err = conn.Write([]byte(body))
	require.NoError(t, err)
	_, err = in.ReadString('\n')
	require.NoError(t, err)
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "204 No Content")
	<-stopped
	samples, _ := spooled(t, r.Spool)
	require.Len(t, samples, 1)
}
