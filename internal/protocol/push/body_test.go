package push_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEncodings(t *testing.T) {
	a := &apitest.Appender{}
	s := apitest.ReportServer(t, a, push.Limits{})
	// Run it twice, so that pooled readers and buffers are reused. The body exceeds one buffer.
	body := apitest.PlainBody(3000)
	for range 2 {
		for _, enc := range []string{"", "identity", "gzip", "x-gzip", "zstd", "snappy", "snappy-framed"} {
			a.Reports = nil
			w := apitest.Post(t, s, bytes.NewReader(apitest.Compressed(t, enc, body)), "Content-Encoding", apitest.HeaderOf(enc))
			require.Equal(t, http.StatusOK, w.Code, "%s: %s", enc, w.Body)
			require.Equal(t, 3000, apitest.DecodeReply(t, w).Accepted, enc)
			require.Len(t, a.Reports[0].Measurements, 3000, enc)
			require.Equal(t, "node_cpu_seconds_total", a.Reports[0].Measurements[2999].Metric, enc)
		}
	}
}

// TestGzipMembers: gzip allows several members in a row; logs are sent that way.
func TestGzipMembers(t *testing.T) {
	a := &apitest.Appender{}
	member := apitest.Compressed(t, "gzip", []byte(apitest.OneReport+"\n"))
	w := apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), bytes.NewReader(append(bytes.Clone(member), member...)), "Content-Encoding", "gzip")
	require.Equal(t, 2, apitest.DecodeReply(t, w).Accepted)
}

func TestHeaders(t *testing.T) {
	for _, c := range []struct {
		headers []string
		code    int
		says    string
	}{
		{nil, 200, ""},
		{[]string{"Content-Type", "application/json"}, 200, ""},
		{[]string{"Content-Type", "application/json; charset=utf-8"}, 200, ""},
		{[]string{"Content-Type", "Application/JSON;charset=UTF-8"}, 200, ""},
		{[]string{"Content-Type", "application/x-ndjson"}, 200, ""},
		{[]string{"Content-Type", "application/json; charset=latin1"}, 415, "latin1"},
		{[]string{"Content-Type", "application/x-www-form-urlencoded"}, 200, ""},
		{[]string{"Content-Type", "text/plain"}, 415, "text/plain"},
		{[]string{"Content-Type", "application/json/x"}, 415, "use application/json"},
		{[]string{"Content-Type", ";;;"}, 415, "use application/json"},
		{[]string{"Content-Encoding", "identity"}, 200, ""},
		{[]string{"Content-Encoding", " Identity "}, 200, ""},
		{[]string{"Content-Encoding", "br"}, 415, "gzip, zstd, snappy"},
		{[]string{"Content-Encoding", "deflate"}, 415, "deflate"},
		{[]string{"Content-Encoding", "gzip, zstd"}, 415, "gzip, zstd"},
	} {
		t.Run(strings.Join(c.headers, ": "), func(t *testing.T) {
			a := &apitest.Appender{}
			w := apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), strings.NewReader(apitest.OneReport), c.headers...)
			require.Equal(t, c.code, w.Code)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Contains(t, w.Body.String(), c.says)
			if c.code != 200 {
				require.Zero(t, a.Calls)
			}
		})
	}
}

// TestBombs sends small bodies that claim or unpack to large sizes. Nothing of them may be kept,
// and the server must not allocate the claimed size.
func TestBombs(t *testing.T) {
	spaces := bytes.Repeat([]byte(" "), 70<<20)
	hugeSnappy := append(binary.AppendUvarint(nil, 1<<32-1), 0, 'x')
	// This is within the limit of a body, but more than five bytes can unpack to.
	unlikelySnappy := append(binary.AppendUvarint(nil, 60<<20), 0, 'x')
	// A magic number, then a frame that requests a window of 2^41 bytes.
	hugeWindow := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x01, 0x00, 0x00}
	// A magic number, then a single segment that claims 2^62 bytes.
	hugeContent := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x40, 0x01, 0x00, 0x00}
	for _, c := range []struct {
		name, enc string
		body      []byte
		code      int
		allocates uint64
	}{
		// Buffers double up to the limit: 64 MiB and all smaller buffers before.
		{"gzip", "gzip", apitest.Compressed(t, "gzip", spaces), 413, 140 << 20},
		{"zstd", "zstd", apitest.Compressed(t, "zstd", spaces), 413, 160 << 20},
		{"snappy", "snappy", apitest.Compressed(t, "snappy", spaces), 413, 16 << 20},
		{"snappy-framed", "snappy", apitest.Compressed(t, "snappy-framed", spaces), 413, 160 << 20},
		{"plain", "", spaces, 413, 16 << 20},
		{"snappy claims 4 GiB", "snappy", hugeSnappy, 413, 4 << 20},
		{"snappy claims 60 MiB", "snappy", unlikelySnappy, 400, 4 << 20},
		{"zstd claims a window", "zstd", hugeWindow, 413, 4 << 20},
		{"zstd claims a length", "zstd", hugeContent, 413, 4 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &apitest.Appender{}
			s := apitest.ReportServer(t, a, push.Limits{})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := apitest.Post(t, s, bytes.NewReader(c.body), "Content-Encoding", c.enc)
			runtime.ReadMemStats(&after)
			require.Equal(t, c.code, w.Code, "%s", w.Body)
			require.Zero(t, a.Calls)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, c.allocates)
			apitest.DecodeReply(t, w)
		})
	}
}

// TestZstdWindowIsCharged: a few bytes may request a decoder's full window; a small body requests a
// small one.
func TestZstdWindowIsCharged(t *testing.T) {
	const room = 2 << 20                                                 // two windows of small bodies
	large := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3}, 1, 0, 0) // a window of 8 MiB and an empty block
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, large...)
	for name, c := range map[string]struct {
		body []byte
		code int
	}{
		"small":   {apitest.Compressed(t, "zstd", []byte(apitest.OneReport)), 200},
		"large":   {large, 429},
		"behind":  {skipped, 429},
		"nothing": {[]byte("not zstd at all"), 400},
	} {
		s := apitest.Server(t, func(o *api.Options) { o.Appender, o.Bodies = &apitest.Appender{}, apitest.Share(room) })
		for range 3 { // each releases what it held
			w := apitest.Post(t, s, bytes.NewReader(c.body), "Content-Encoding", "zstd")
			require.Equal(t, c.code, w.Code, "%s: %s", name, w.Body)
		}
	}
	s := apitest.ReportServer(t, &apitest.Appender{}, push.Limits{})
	w := apitest.Post(t, s, bytes.NewReader(append(apitest.Compressed(t, "zstd", []byte(apitest.OneReport)), large...)), "Content-Encoding", "zstd")
	require.Equal(t, 413, w.Code, "a later frame's window was not set aside: %s", w.Body)
	w = apitest.Post(t, s, bytes.NewReader(append(slices.Clone(large), apitest.Compressed(t, "zstd", []byte(apitest.OneReport))...)), "Content-Encoding", "zstd")
	require.Equal(t, 200, w.Code, w.Body)
}

// TestCompressedLimit: a random body, which no encoding makes smaller, exceeds the limit of the
// body as sent, with and without a Content-Length.
func TestCompressedLimit(t *testing.T) {
	for _, enc := range []string{"gzip", "zstd", "snappy", ""} {
		body := apitest.Compressed(t, enc, apitest.PlainBody(5000))
		s := apitest.ReportServer(t, &apitest.Appender{}, push.Limits{CompressedBytes: 5000, BodyBytes: 6000})
		for _, r := range []io.Reader{bytes.NewReader(body), io.MultiReader(bytes.NewReader(body))} {
			w := apitest.Post(t, s, r, "Content-Encoding", enc)
			require.Equal(t, http.StatusRequestEntityTooLarge, w.Code, enc)
			require.Contains(t, apitest.DecodeReply(t, w).Error, "nothing of it was kept")
		}
	}
}

func TestBodyAtTheLimit(t *testing.T) {
	s := apitest.ReportServer(t, &apitest.Appender{}, push.Limits{BodyBytes: int64(len(apitest.OneReport))})
	for _, enc := range []string{"", "gzip", "zstd", "snappy"} {
		w := apitest.Post(t, s, bytes.NewReader(apitest.Compressed(t, enc, []byte(apitest.OneReport))), "Content-Encoding", enc)
		require.Equal(t, http.StatusOK, w.Code, "%s %s", enc, w.Body)
		w = apitest.Post(t, s, bytes.NewReader(apitest.Compressed(t, enc, []byte(apitest.OneReport+" "))), "Content-Encoding", enc)
		require.Equal(t, http.StatusRequestEntityTooLarge, w.Code, enc)
	}
}

// TestCutOff cuts bodies off. The part that arrived is kept if the encoding can be decoded from its
// beginning; the reply is always 400.
func TestCutOff(t *testing.T) {
	body := apitest.PlainBody(5000)
	for _, c := range []struct {
		enc string
		// without is how many bytes do not arrive.
		without int
		// keeps means that some, but not all, measurements are kept.
		keeps bool
	}{
		{"", 1000, true},
		{"gzip", 1000, true},
		{"zstd", 100, true},
		{"snappy-framed", 1000, true},
		{"snappy", 1, false}, // a block is read whole or not at all
	} {
		t.Run(c.enc, func(t *testing.T) {
			a := &apitest.Appender{}
			s := apitest.ReportServer(t, a, push.Limits{})
			whole := apitest.Compressed(t, c.enc, body)
			w := apitest.Post(t, s, apitest.CutOff(whole[:len(whole)-c.without]), "Content-Encoding", apitest.HeaderOf(c.enc))
			require.Equal(t, http.StatusBadRequest, w.Code, "%s", w.Body)
			reply := apitest.DecodeReply(t, w)
			require.Contains(t, reply.Error, "body ends early")
			if c.keeps {
				require.Positive(t, reply.Accepted)
				require.Less(t, reply.Accepted, 5000)
				require.Contains(t, reply.Error, fmt.Sprintf("measurement %d, at byte", reply.Accepted))
			} else {
				require.Zero(t, a.Calls)
			}

			a.Calls = 0
			w = apitest.Post(t, s, apitest.CutOff(nil), "Content-Encoding", apitest.HeaderOf(c.enc))
			require.Equal(t, http.StatusBadRequest, w.Code)
			require.Contains(t, apitest.DecodeReply(t, w).Error, "body ends early")
			require.Zero(t, a.Calls)
		})
	}

	t.Run("gzip without its trailer", func(t *testing.T) {
		a := &apitest.Appender{}
		whole := apitest.Compressed(t, "gzip", body)
		w := apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), apitest.CutOff(whole[:len(whole)-8]), "Content-Encoding", "gzip")
		require.Equal(t, http.StatusBadRequest, w.Code)
		reply := apitest.DecodeReply(t, w)
		require.Equal(t, 5000, reply.Accepted)
		require.Contains(t, reply.Error, "after measurement 4999")
	})
}

// TestDamaged: nothing is kept of a compressed body that arrives whole and cannot be decompressed.
// What was decoded before the fault may be wrong, too.
func TestDamaged(t *testing.T) {
	body := apitest.PlainBody(5000)
	for _, c := range []struct {
		enc    string
		damage func(b []byte) []byte
		says   string
	}{
		{"gzip", func(b []byte) []byte { return b[:len(b)*3/4] }, "it ends early"},
		{"gzip", func(b []byte) []byte { return b[:len(b)-8] }, "it ends early"},
		{"gzip", func(b []byte) []byte { return b[:5] }, "it ends early"},
		{"gzip", func([]byte) []byte { return nil }, "it ends early"},
		{"gzip", func([]byte) []byte { return []byte("not gzip at all, but long enough") }, "gzip: invalid header"},
		{"gzip", func(b []byte) []byte { b[len(b)-6] ^= 1; return b }, "gzip: invalid checksum"},
		{"gzip", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, ""},
		{"gzip", func(b []byte) []byte { return append(b, "more"...) }, "it ends early"},
		{"zstd", func([]byte) []byte { return []byte("not zstd at all, but long enough") }, "magic number mismatch"},
		{"zstd", func(b []byte) []byte { return b[:len(b)-100] }, "it ends early"},
		{"zstd", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, "CRC check failed"},
		{"zstd", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, ""},
		{"snappy", func(b []byte) []byte { return b[:len(b)/2] }, "corrupt input"},
		{"snappy", func([]byte) []byte { return nil }, "corrupt input"},
		{"snappy", func(b []byte) []byte { return append([]byte{0xff}, b[1:]...) }, "corrupt input"},
		{"snappy-framed", func(b []byte) []byte { return b[:len(b)-1000] }, "corrupt input"},
		{"snappy-framed", func(b []byte) []byte { b[len(b)-1000] ^= 1; return b }, ""},
		// Readers skip frames of this kind.
		{"snappy-framed", func(b []byte) []byte { b[10] |= 0x80; return b }, "corrupt input"},
	} {
		t.Run(c.enc+" "+c.says, func(t *testing.T) {
			a := &apitest.Appender{}
			damaged := c.damage(apitest.Compressed(t, c.enc, body))
			w := apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), bytes.NewReader(damaged), "Content-Encoding", apitest.HeaderOf(c.enc))
			require.Equal(t, http.StatusBadRequest, w.Code, "%s", w.Body)
			reply := apitest.DecodeReply(t, w)
			require.Contains(t, reply.Error, "the body cannot be decompressed: ")
			require.Contains(t, reply.Error, c.says)
			require.Contains(t, reply.Error, "nothing of it was kept")
			require.Zero(t, a.Calls)
		})
	}
}

// TestHangUp: over a real connection, a client announces more than it sends and closes its side.
// The complete reports are kept, and the client gets a reply if it still reads.
func TestHangUp(t *testing.T) {
	a := &apitest.Appender{}
	srv := httptest.NewServer(apitest.ReportServer(t, a, push.Limits{}))
	defer srv.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n%s\n{\"sour", wire.ReportsPath, apitest.OneReport)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	reply, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(reply), "HTTP/1.1 400")
	require.Contains(t, string(reply), `"accepted":1`)
	require.Contains(t, string(reply), "the body ends early")
}

// TestCancelled: a client that disconnects while its reports are being written is not a server
// failure.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := apitest.ReportServer(t, &apitest.Appender{Err: context.Canceled}, push.Limits{})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, wire.ReportsPath, strings.NewReader(apitest.OneReport))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	require.Equal(t, respond.ClientGone, w.Code)
}

func TestAppendErrors(t *testing.T) {
	for _, c := range []struct {
		err        error
		code       int
		retryAfter string
	}{
		{fmt.Errorf("wrapped: %w", ingest.ErrBusy), 429, "1"},
		{fmt.Errorf("flush: %w", storage.ErrUnavailable), 503, "5"},
		{storage.ErrTimeout, 503, "5"},
		{storage.ErrOverloaded, 503, "5"},
		{storage.ErrCorrupt, 500, ""},
		{fmt.Errorf("samples not stored: %w", storage.ErrRefused), 400, ""},
		{context.DeadlineExceeded, 500, ""},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			s := apitest.ReportServer(t, &apitest.Appender{Err: c.err}, push.Limits{})
			// Also with a fault in the body: the store's failure is reported first.
			for _, body := range []string{apitest.OneReport, apitest.OneReport + "{"} {
				w := apitest.Post(t, s, strings.NewReader(body))
				require.Equal(t, c.code, w.Code)
				require.Equal(t, c.retryAfter, w.Header().Get("Retry-After"))
				require.Contains(t, apitest.DecodeReply(t, w).Error, c.err.Error())
			}
		})
	}
}

// TestNothingLeftToAppend: a report without kept measurements does not reach the appender.
func TestNothingLeftToAppend(t *testing.T) {
	a := &apitest.Appender{}
	apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), strings.NewReader(`{"source":"a","measurements":[{}]}`))
	require.Zero(t, a.Calls)
}

func TestLongLabelValue(t *testing.T) {
	a := &apitest.Appender{}
	body := `{"source":"a","measurements":[{"metric":"m","labels":{"a":"` + strings.Repeat("x", 10<<20) + `"},"value":1,"time":1},{"metric":"n","value":1,"time":1}]}`
	w := apitest.Post(t, apitest.ReportServer(t, a, push.Limits{}), strings.NewReader(body))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, wire.Report{
		Accepted: 1,
		Rejected: []wire.Rejection{{Index: 0, Reason: string(ingest.ReasonInvalidLabel), Message: "by the appender"}},
	}, apitest.DecodeReply(t, w))
}

// blockingAppender blocks requests until release.
type blockingAppender struct{ entered, release chan struct{} }

func (a *blockingAppender) Append(context.Context, []ingest.Report) (ingest.Result, error) {
	a.entered <- struct{}{}
	<-a.release
	return ingest.Result{Accepted: 1}, nil
}

// TestInFlightBytes: a body that exceeds the memory of all requests is answered with 429. The
// memory is available again when the request that holds it ends.
func TestInFlightBytes(t *testing.T) {
	a := &blockingAppender{entered: make(chan struct{}), release: make(chan struct{})}
	s := apitest.Server(t, func(o *api.Options) { o.Appender, o.Bodies = a, apitest.Share(push.MinBufferBytes+4<<10) })
	first := make(chan int)
	go func() { first <- apitest.Post(t, s, strings.NewReader(apitest.OneReport)).Code }()
	<-a.entered
	w := apitest.Post(t, s, strings.NewReader(apitest.OneReport))
	require.Equal(t, http.StatusTooManyRequests, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	close(a.release)
	require.Equal(t, http.StatusOK, <-first)

	go func() { <-a.entered }()
	require.Equal(t, http.StatusOK, apitest.Post(t, s, strings.NewReader(apitest.OneReport)).Code)
}
