package api_test

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/client/pipes"
	"github.com/quern/quern/internal/clock"
)

// inBoth runs a test in a bubble over HTTP/1.1 and over HTTP/2, with handlers by their patterns.
func inBoth(t *testing.T, handlers map[string]http.HandlerFunc, test func(t *testing.T, client *http.Transport)) {
	for _, name := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.Server(t, func(o *api.Options) {
					o.Clock = clock.System{}
					o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
						for pattern, h := range handlers {
							to.HandleFunc(access.Read, route.NoData, pattern, h)
						}
					})}
				})
				l, served := pipes.Listen(), make(chan struct{})
				srv := s.HTTPServer()
				srv.Protocols = new(http.Protocols)
				srv.Protocols.SetHTTP1(name == "HTTP/1.1")
				srv.Protocols.SetUnencryptedHTTP2(name == "HTTP/2.0")
				go func() {
					defer close(served)
					_ = srv.Serve(l)
				}()
				client := &http.Transport{
					DialContext: l.Dial, Protocols: srv.Protocols, DisableCompression: true,
					HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}, // a client takes no more than it reads
				}
				defer func() {
					client.CloseIdleConnections()
					assert.NoError(t, srv.Close())
					<-served
				}()
				test(t, client)
			})
		})
	}
}

// sent sends a request and returns the reply, of which the caller closes the body.
func sent(t *testing.T, client *http.Transport, method, path, accept string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
	require.NoError(t, err)
	if accept != "" {
		r.Header.Set("Accept-Encoding", accept)
	}
	resp, err := client.RoundTrip(r)
	require.NoError(t, err)
	return resp
}

// unpacked reads a body through its coding.
func unpacked(t *testing.T, resp *http.Response) io.Reader {
	t.Helper()
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		r, err := gzip.NewReader(resp.Body)
		require.NoError(t, err)
		return r
	case "zstd":
		r, err := zstd.NewReader(resp.Body, zstd.WithDecoderConcurrency(1))
		require.NoError(t, err)
		t.Cleanup(r.Close)
		return r
	}
	return resp.Body
}

// TestWhatIsCompressed: answers have the coding that their client prefers, except those that must not be changed.
func TestWhatIsCompressed(t *testing.T) {
	long := strings.Repeat("many words ", 1000)
	says := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, long)
		}
	}
	empty := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	cases := []struct {
		path       string
		h          http.HandlerFunc
		code       int
		compressed bool
		vary       string
		body       string
	}{
		{"/long", says(200), 200, true, "Accept-Encoding", long},
		{"/fails", says(400), 400, true, "Accept-Encoding", long},
		{"/sized", says(200, "Content-Length", strconv.Itoa(len(long))), 200, true, "Accept-Encoding", long},
		{"/varies", says(200, "Vary", "Accept-Encoding"), 200, true, "Accept-Encoding", long},
		{"/short", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, "few words")
		}, 200, false, "Accept-Encoding", "few words"},
		{"/empty", empty(200), 200, false, "Accept-Encoding", ""},
		{"/nothing", func(http.ResponseWriter, *http.Request) {}, 200, false, "", ""},
		{"/none", empty(204), 204, false, "", ""},
		{"/same", empty(304), 304, false, "", ""},
		{"/part", says(206), 206, false, "", long},
		{"/tagged", says(200, "ETag", `"a"`), 200, false, "", long},
		{"/coded", says(200, "Content-Encoding", "br"), 200, false, "", long},
		{"/untyped", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) }, 200, false, "Accept-Encoding", long},
		{"/early", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			says(200)(w, r)
		}, 200, true, "Accept-Encoding", long},
	}
	handlers := make(map[string]http.HandlerFunc)
	for _, c := range cases {
		handlers["GET "+c.path] = c.h
	}
	inBoth(t, handlers, func(t *testing.T, client *http.Transport) {
		for _, c := range cases {
			for accept, coding := range map[string]string{"": "", "identity": "", "gzip": "gzip", "zstd;q=0.5, gzip;q=0.4": "zstd", "br, *;q=0": ""} {
				resp := sent(t, client, http.MethodGet, c.path, accept)
				require.Equal(t, c.code, resp.StatusCode, c.path)
				if c.path != "/coded" {
					want := ""
					if c.compressed {
						want = coding
					}
					require.Equal(t, want, resp.Header.Get("Content-Encoding"), "%s %s", c.path, accept)
				}
				require.Equal(t, c.vary, strings.Join(resp.Header.Values("Vary"), ", "), c.path)
				body, err := io.ReadAll(unpacked(t, resp))
				require.NoError(t, err)
				require.Equal(t, c.body, string(body), c.path)
				require.NoError(t, resp.Body.Close())

				resp = sent(t, client, http.MethodHead, c.path, accept)
				require.NoError(t, resp.Body.Close())
				if c.path != "/coded" {
					require.Empty(t, resp.Header.Get("Content-Encoding"), c.path)
				}
				require.Equal(t, c.vary, strings.Join(resp.Header.Values("Vary"), ", "), c.path)
				if c.path == "/sized" {
					require.EqualValues(t, len(long), resp.ContentLength)
				}
			}
		}
	})
}

// TestCompressedStreams: a client sees what a handler flushes, at once: the header, and then each line, however short it
// is.
func TestCompressedStreams(t *testing.T) {
	next := make(chan string)
	handlers := map[string]http.HandlerFunc{"GET /lines": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		out := http.NewResponseController(w)
		assert.NoError(t, out.EnableFullDuplex())
		for {
			assert.NoError(t, out.Flush())
			select {
			case line := <-next:
				if line == "" {
					return
				}
				_, _ = io.WriteString(w, line)
			case <-r.Context().Done():
				return
			}
		}
	}}
	for _, accept := range []string{"", "gzip", "zstd"} {
		t.Run("as "+accept, func(t *testing.T) {
			next = make(chan string)
			inBoth(t, handlers, func(t *testing.T, client *http.Transport) {
				next = make(chan string) // of this bubble
				resp := sent(t, client, http.MethodGet, "/lines", accept)
				defer resp.Body.Close()
				require.Equal(t, accept, resp.Header.Get("Content-Encoding"))
				next <- "{}\n"
				lines := bufio.NewReader(unpacked(t, resp))
				for _, want := range []string{"{}\n", `{"x":1}` + "\n", strings.Repeat("y", 5000) + "\n"} {
					if want != "{}\n" {
						next <- want
					}
					got, err := lines.ReadString('\n')
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
				next <- ""
				_, err := lines.ReadByte()
				require.ErrorIs(t, err, io.EOF)
			})
		})
	}
}

// TestHalfCompressed: an answer that breaks off does not look whole, though all that was flushed arrives.
func TestHalfCompressed(t *testing.T) {
	handlers := map[string]http.HandlerFunc{"GET /half": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, "half\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}}
	for _, coding := range []string{"gzip", "zstd"} {
		t.Run(coding, func(t *testing.T) {
			inBoth(t, handlers, func(t *testing.T, client *http.Transport) {
				resp := sent(t, client, http.MethodGet, "/half", coding)
				defer resp.Body.Close()
				body, err := io.ReadAll(unpacked(t, resp))
				require.Error(t, err)
				require.Equal(t, "half\n", string(body))
			})
		})
	}
}

// TestTrailers: what an answer says at its end arrives, however short the answer becomes.
func TestTrailers(t *testing.T) {
	handlers := map[string]http.HandlerFunc{"GET /warns": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, strings.Repeat("{}\n", 20_000))
		w.Header().Set(http.TrailerPrefix+reading.WarningHeader, "a part is damaged")
	}}
	inBoth(t, handlers, func(t *testing.T, client *http.Transport) {
		for _, accept := range []string{"", "gzip", "zstd"} {
			resp := sent(t, client, http.MethodGet, "/warns", accept)
			require.Equal(t, accept, resp.Header.Get("Content-Encoding"))
			_, err := io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.Equal(t, "a part is damaged", resp.Trailer.Get(reading.WarningHeader), accept)
			require.NoError(t, resp.Body.Close())
		}
	})
}
