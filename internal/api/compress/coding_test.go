package compress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct{ accept, want string }{
		{"", ""},
		{"gzip", Gzip},
		{"GZip ; Q=0.5", Gzip},
		{"gzip, deflate, br, zstd", Zstd},
		{"gzip;q=0", ""},
		{"gzip;q=0.000,zstd;q=0.001", Zstd},
		{"deflate, br", ""},
		{"*", Zstd},
		{"*;q=0", ""},
		{"*;q=0.5, zstd;q=0", Gzip},
		{"gzip, *;q=0", Gzip},
		{"identity", ""},
		{" , ,gzip", Gzip},
		{"gzip;q=0.4|zstd;q=0.5", Zstd}, // in two fields
	} {
		require.Equal(t, c.want, choose(strings.Split(c.accept, "|")), c.accept)
	}
	require.Empty(t, choose(nil))
}

func newAnswers(answers int64) *Answers {
	return New(limits.NewBudget(2*answers*AnswerBytes, answers*AnswerBytes), limits.NewClients(nil))
}

// ask sends a request to a handler behind a.
func ask(t *testing.T, a *Answers, accept string, h http.HandlerFunc) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.Header.Set("Accept-Encoding", accept)
	w := httptest.NewRecorder()
	a.Handler(h).ServeHTTP(w, r)
	return w
}

// unpack returns the body of an answer that has a coding.
func unpack(t *testing.T, coding string, body io.Reader) string {
	t.Helper()
	switch coding {
	case Gzip:
		r, err := gzip.NewReader(body)
		require.NoError(t, err)
		body = r
	case Zstd:
		r, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1))
		require.NoError(t, err)
		defer r.Close()
		body = r
	}
	all, err := io.ReadAll(body)
	require.NoError(t, err)
	return string(all)
}

// jsonText writes text as JSON, in pieces of so many bytes.
func jsonText(text string, piece int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for text := text; len(text) > 0; text = text[min(piece, len(text)):] {
			_, _ = io.WriteString(w, text[:min(piece, len(text))])
		}
	}
}

// TestSizes: answers of every size arrive whole, however they are written, and the long ones are compressed.
func TestSizes(t *testing.T) {
	a := newAnswers(1)
	text := strings.Repeat(`{"metric":"cpu"},`, 1<<14)
	for _, coding := range []string{"", Gzip, Zstd} {
		for _, size := range []int{1, leastBytes - 1, leastBytes, leastBytes + 1, 20_000} {
			for _, piece := range []int{1, 100, leastBytes, 1 << 20} {
				w := ask(t, a, coding, jsonText(text[:size], piece))
				want := coding
				if size < leastBytes {
					want = ""
				}
				require.Equal(t, want, w.Header().Get("Content-Encoding"), size)
				require.Equal(t, text[:size], unpack(t, want, w.Body))
				require.Equal(t, []string{"Accept-Encoding"}, w.Header().Values("Vary"))
			}
		}
	}
}

// TestBudget: an answer for which there is no memory is sent as it is, and answers give back what they hold, however they
// end.
func TestBudget(t *testing.T) {
	a := newAnswers(1)
	long := strings.Repeat("x", 2*leastBytes)
	var other *httptest.ResponseRecorder
	w := ask(t, a, Zstd, func(w http.ResponseWriter, r *http.Request) {
		jsonText(long, 1<<20)(w, r)
		other = ask(t, a, Gzip, jsonText(long, 1<<20))
	})
	require.Equal(t, long, unpack(t, Zstd, w.Body))
	require.Empty(t, other.Header().Get("Content-Encoding"), "half is for other clients")
	require.Equal(t, long, other.Body.String())
	for range 3 {
		require.PanicsWithValue(t, "oh", func() {
			ask(t, a, Gzip, func(w http.ResponseWriter, r *http.Request) {
				jsonText(long, 1<<20)(w, r)
				panic("oh")
			})
		})
		gone := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		gone.Header.Set("Accept-Encoding", Gzip)
		require.PanicsWithValue(t, http.ErrAbortHandler, func() {
			a.Handler(jsonText(long, 1<<20)).ServeHTTP(&deaf{ResponseWriter: httptest.NewRecorder()}, gone)
		}, "it does not end as if it were whole")
	}
	w = ask(t, a, Gzip, jsonText(long, 1<<20))
	require.Equal(t, long, unpack(t, Gzip, w.Body), "the encoder has nothing of those that broke off")
}

// deaf is the answer to a client that has gone.
type deaf struct{ http.ResponseWriter }

// Write implements http.ResponseWriter.
func (*deaf) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestAnswerBytes: an answer that is being compressed holds no more than what it is charged.
func TestAnswerBytes(t *testing.T) {
	const answers = 8
	var data bytes.Buffer
	for data.Len() < 1<<20 {
		fmt.Fprintf(&data, `[%d,"%.3f"],`, data.Len(), rand.Float64()) //nolint:gosec // any will do
	}
	for _, coding := range []string{Gzip, Zstd} {
		a := newAnswers(answers)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var held []encoder
		for range answers {
			e := a.idle[coding].New().(encoder)
			e.Reset(io.Discard)
			_, err := e.Write(data.Bytes())
			require.NoError(t, err)
			require.NoError(t, e.Flush())
			held = append(held, e)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(held)
		each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / answers
		t.Logf("%s: %d bytes", coding, each)
		require.Less(t, each, int64(AnswerBytes))
		require.Greater(t, each, int64(AnswerBytes/4), "it was measured")
	}
}
