package integration

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// TestHostile: whatever comes over the wire, the process survives and serves others.
func TestHostile(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir(), "--group-commit", "5ms")
	const head = "POST /api/v1/reports HTTP/1.1\r\nHost: localhost\r\n"

	// Half a request each, held open through everything that follows.
	for i := range 60 {
		conn := p.Dial()
		_, err := io.WriteString(conn, head[:len(head)-i%10])
		require.NoError(t, err)
		if i%3 == 0 {
			_, err = fmt.Fprintf(conn, "\r\nContent-Length: %d\r\n\r\n[", 16<<20)
			require.NoError(t, err)
		}
	}

	raw := func(text string) string {
		t.Helper()
		conn := p.Dial()
		// A server may reply and close before it has read everything.
		_, _ = io.WriteString(conn, text)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		answer, _ := io.ReadAll(conn)
		line, _, _ := strings.Cut(string(answer), "\r\n")
		return line
	}
	const good = `{"source":"a","measurements":[{"metric":"it_cut","time":1,"value":1}`
	for name, c := range map[string]struct{ request, want string }{
		"cut off":               {head + "Content-Length: 1000\r\n\r\n" + good, "HTTP/1.1 4"},
		"cut off in a chunk":    {head + "Transfer-Encoding: chunked\r\n\r\nffff\r\n" + good, "HTTP/1.1 4"},
		"not HTTP":              {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTP/1.1 400 "},
		"binary":                {head + "Content-Length: 8\r\n\r\n\x00\x01\x02\xff\xfe\x00\x00\x7b", "HTTP/1.1 400 "},
		"a length that is none": {head + "Content-Length: -1\r\n\r\n", "HTTP/1.1 400 "},
		"two lengths":           {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n[]", "HTTP/1.1 400 "},
		"a huge header":         {head + "X: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "HTTP/1.1 431 "},
		"a claimed terabyte":    {head + "Content-Encoding: gzip\r\nContent-Length: 1099511627776\r\n\r\n", "HTTP/1.1 413 "},
		"path traversal":        {"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 "},
	} {
		got := raw(c.request)
		assert.True(t, strings.HasPrefix(got, c.want), "%s: %s", name, got)
	}

	post := func(name string, want int, body []byte, header ...string) process.Reply {
		t.Helper()
		r, err := p.Post("/api/v1/reports", body, header...)
		// The reply may come, and the connection close, before the body is sent.
		if err == nil {
			assert.Equal(t, want, r.Code, "%s: %.200s", name, r.Body)
		} else {
			assert.Equal(t, 413, want, "%s: %v", name, err)
		}
		return r
	}
	post("gzip bomb", 413, bomb(t, 66<<20), "Content-Encoding", "gzip")
	post("a bomb in a bomb", 400, gzipped(t, bomb(t, 1<<20)), "Content-Encoding", "gzip")
	post("not gzip", 400, []byte("hello"), "Content-Encoding", "gzip")
	post("unknown encoding", 415, []byte("{}"), "Content-Encoding", "lzma")
	post("too large", 413, bytes.Repeat([]byte(" "), 64<<20+1))
	post("nested", 400, bytes.Repeat([]byte("["), 1<<20))
	label := strings.Repeat("x", 10<<20)
	r := post("a label of 10 MB", 400, fmt.Appendf(nil, `{"source":"a","measurements":[{"metric":"it_m","labels":{"l":%q},"value":1}]}`, label))
	assert.Contains(t, string(r.Body), "limit_exceeded")
	assert.Less(t, len(r.Body), 64<<10, "the reply does not send it back")
	r = post("a source of 10 MB", 400, fmt.Appendf(nil, `{"source":%q,"measurements":[{"metric":"it_m","value":1}]}`, label))
	assert.Less(t, len(r.Body), 64<<10)
	post("ten thousand labels", 400, []byte(`{"source":"a","measurements":[{"metric":"it_m","labels":{`+manyLabels(10_000)+`},"value":1}]}`))

	for path, allow := range map[string]string{"/api/v1/reports": "POST", "/metrics": "GET, HEAD"} {
		method := "DELETE"
		line := raw(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		assert.Contains(t, line, "405", "%s %s", method, path)
		assert.NotEmpty(t, allow)
	}
	r, err := p.Get("/api/v1/reports", nil)
	require.NoError(t, err)
	assert.Equal(t, 405, r.Code)
	assert.Equal(t, "POST", r.Header.Get("Allow"))
	r, err = p.Get("/api/v1/export", process.Within(`{__name__=~"(((((.*)*)*)*)*)x"}`, time.Hour))
	require.NoError(t, err)
	assert.Less(t, r.Code, 500)

	// Others are served meanwhile.
	want := []process.Sample{{Source: "a", Metric: "it_alive", Ms: time.Now().UnixMilli(), Value: 1}}
	_, err = p.Report(t.Context(), want)
	require.NoError(t, err)
	got, err := p.Export(`it_alive`, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	r, err = p.Get("/metrics", nil)
	require.NoError(t, err)
	assert.Contains(t, string(r.Body), "quern_http_panics_total 0\n")
}

// bomb returns zeros, compressed.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := io.CopyN(w, zeros{}, size)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func gzipped(t *testing.T, body []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func manyLabels(n int) string {
	var sb strings.Builder
	for i := range n {
		if i > 0 {
			sb.WriteByte(',')
		}
		fmt.Fprintf(&sb, `"l%d":"v"`, i)
	}
	return sb.String()
}
