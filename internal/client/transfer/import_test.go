package transfer

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// importer is a server for lines of one sample: "bad" is malformed, "old" is rejected.
type importer struct {
	*httptest.Server
	mu       sync.Mutex
	lines    []string
	requests []int // number of lines of each
	// before, unless nil, may reply instead, given the number of earlier requests.
	before func(w http.ResponseWriter, request int, lines []string) bool
}

func newImporter(t *testing.T) *importer {
	s := new(importer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		assert.Equal(t, "/api/v1/import", r.URL.Path)
		assert.Equal(t, "zstd", r.Header.Get("Content-Encoding"))
		z, err := zstd.NewReader(r.Body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if !assert.NoError(t, err) {
			return
		}
		defer z.Close()
		text, err := io.ReadAll(z)
		assert.NoError(t, err)
		lines := strings.SplitAfter(string(text), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		s.requests = append(s.requests, len(lines))
		if s.before == nil || !s.before(w, len(s.requests)-1, lines) {
			s.take(w, lines)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *importer) take(w http.ResponseWriter, lines []string) {
	var rejected []wire.RejectedOfLine
	accepted := 0
	for i, l := range lines {
		switch {
		case strings.HasPrefix(l, "bad"):
			reply(w, 400, accepted, rejected, i, fmt.Sprintf("line %d: at byte 0: an object is wanted", i+1))
			return
		case strings.HasPrefix(l, "old"):
			rejected = append(rejected, wire.RejectedOfLine{Line: i + 1, Reason: "too_old", Message: "it is old", Samples: 1})
		default:
			accepted++
			s.lines = append(s.lines, l)
		}
	}
	reply(w, 200, accepted, rejected, len(lines), "")
}

func reply(w http.ResponseWriter, code, accepted int, rejected []wire.RejectedOfLine, lines int, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"error": message, "accepted": accepted, "rejected": rejected, "rejected_total": len(rejected), "lines": lines,
	})
}

// file writes lines to a new file.
func file(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return path
}

func numbered(from, until int) (out []string) {
	for i := from; i < until; i++ {
		out = append(out, fmt.Sprintf("line %04d", i))
	}
	return out
}

func (s *importer) run(ctx context.Context, paths ...string) (Imported, []string, error) {
	var messages []string
	im := Import{
		Client: client.Client{URL: s.URL, HTTP: s.Client()}, Files: paths, GiveUp: time.Hour, Rate: 8, // requests of 128 bytes, 12 lines
		Clock: clock.NewSimulated(time.UnixMilli(startMs)), Tell: func(l string) { messages = append(messages, l) },
	}
	x, err := im.Run(ctx)
	return x, messages, err
}

func (s *importer) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, l := range s.lines {
		out = append(out, strings.TrimSuffix(l, "\n"))
	}
	return out
}

// TestImportAround: malformed or rejected lines are named, and the lines around them are imported
// once.
func TestImportAround(t *testing.T) {
	all := numbered(0, 100)
	want := append(append(append([]string(nil), all[:30]...), all[31:50]...), all[53:]...)
	want = want[:len(want)-1]
	all[30], all[50], all[51], all[52], all[99] = "old", "bad", "old", "bad", "bad"
	s := newImporter(t)
	path := file(t, "x", all...)
	x, messages, err := s.run(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, Imported{Lines: 100, Accepted: 95, Rejected: map[string]int64{"too_old": 2}, Malformed: 3}, x)
	assert.Equal(t, want, s.took())
	assert.Equal(t, []string{
		path + ":31: 1 rejected, too_old: it is old",
		path + ":51: malformed: at byte 0: an object is wanted",
		path + ":52: 1 rejected, too_old: it is old",
		path + ":53: malformed: at byte 0: an object is wanted",
		path + ":100: malformed: at byte 0: an object is wanted",
	}, messages)
	assert.NoFileExists(t, path+importSuffix)

	_, messages, err = s.run(t.Context(), file(t, "x", strings.Split(strings.Repeat("bad ", 20), " ")...))
	require.NoError(t, err)
	assert.Len(t, messages, toldProblems+1)
	assert.Equal(t, "… and more", messages[toldProblems])
}

// TestImportWaits: what a busy or unavailable server has processed is not sent again, and
// everything else is.
func TestImportWaits(t *testing.T) {
	s := newImporter(t)
	s.before = func(w http.ResponseWriter, request int, lines []string) bool {
		switch request {
		case 1:
			s.lines = append(s.lines, lines[:5]...)
			// The rejection of line 6 comes again.
			reply(w, 429, 5, []wire.RejectedOfLine{{Line: 6, Reason: "too_old", Samples: 1}}, 5, "busy")
		case 2:
			reply(w, 503, 0, nil, 0, "away")
		case 3:
			w.WriteHeader(502)
		case 4:
			panic(http.ErrAbortHandler)
		default:
			return false
		}
		return true
	}
	all := numbered(0, 100)
	x, messages, err := s.run(t.Context(), file(t, "x", all...))
	require.NoError(t, err)
	assert.Equal(t, Imported{Lines: 100, Accepted: 100}, x)
	assert.Equal(t, all, s.took())
	assert.Empty(t, messages)

	s = newImporter(t)
	s.before = func(w http.ResponseWriter, _ int, _ []string) bool {
		reply(w, 503, 0, nil, 0, "away")
		return true
	}
	im := Import{
		Client: client.Client{URL: s.URL, HTTP: s.Client()}, Files: []string{file(t, "x", "1")}, GiveUp: 4 * time.Second,
		Clock: passing{clock.NewSimulated(time.UnixMilli(startMs))},
	}
	_, err = im.Run(t.Context())
	require.ErrorContains(t, err, "after line 0: gave up: 503 Service Unavailable: away")
	assert.Len(t, s.requests, 3, "at 0, 1 and 3 seconds")

	clk := clock.NewSimulated(time.UnixMilli(startMs))
	s.before = func(w http.ResponseWriter, _ int, _ []string) bool {
		clk.Jump(-time.Hour)
		reply(w, 503, 0, nil, 0, "away")
		return true
	}
	s.requests, im.Clock = nil, passing{clk}
	_, err = im.Run(t.Context())
	require.ErrorContains(t, err, "gave up")
	assert.Len(t, s.requests, 3, "although the clock was set back")

	s.before = func(w http.ResponseWriter, _ int, _ []string) bool {
		w.WriteHeader(404)
		return true
	}
	_, _, err = s.run(t.Context(), file(t, "x", "1"))
	require.ErrorContains(t, err, "404")
	s.before = func(w http.ResponseWriter, _ int, _ []string) bool {
		reply(w, 200, 1, nil, 0, "")
		return true
	}
	_, _, err = s.run(t.Context(), file(t, "x", "1"))
	require.ErrorContains(t, err, "not a Quern response")
}

// passing is a clock on which a sleep moves the time.
type passing struct{ *clock.Simulated }

func (c passing) Sleep(ctx context.Context, d time.Duration) error {
	c.Set(c.Now().Add(d))
	return context.Cause(ctx)
}

// TestImportGoesOn: a stopped import waits for the request under way. The next run begins after
// that request, and does not read a finished file again.
func TestImportGoesOn(t *testing.T) {
	for _, name := range []string{"x", "x.gz", "x.zst"} {
		t.Run(name, func(t *testing.T) {
			first := file(t, "first", "a", "old")
			path := filepath.Join(t.TempDir(), name)
			var text bytes.Buffer
			// In several members or frames, as exports have.
			for i := 0; i < 100; i += 25 {
				z, err := compressor(path, &text)
				require.NoError(t, err)
				_, err = io.WriteString(z, strings.Join(numbered(i, i+25), "\n")+"\n")
				require.NoError(t, err)
				require.NoError(t, z.Close())
			}
			require.NoError(t, os.WriteFile(path, text.Bytes(), 0o600))

			s := newImporter(t)
			ctx, stop := context.WithCancel(t.Context())
			s.before = func(_ http.ResponseWriter, request int, _ []string) bool {
				if request == 3 {
					stop()
				}
				return false
			}
			_, _, err := s.run(ctx, first, path)
			require.ErrorContains(t, err, "stopped after line 36 of "+path+": run the same command to continue")
			assert.Len(t, s.took(), 37)

			s.before = nil
			x, _, err := s.run(t.Context(), first, path)
			require.NoError(t, err)
			assert.Equal(t, Imported{Lines: 102, Accepted: 101, Rejected: map[string]int64{"too_old": 1}}, x, "of both runs")
			assert.Equal(t, append([]string{"a"}, numbered(0, 100)...), s.took())
			assert.NoFileExists(t, path+importSuffix)
			assert.NoFileExists(t, first+importSuffix)
		})
	}
}

// TestImportOfAnother: a state belongs to one file and one server.
func TestImportOfAnother(t *testing.T) {
	path := file(t, "x", numbered(0, 100)...)
	s := newImporter(t)
	s.before = func(w http.ResponseWriter, request int, _ []string) bool {
		if request == 2 {
			w.WriteHeader(500)
		}
		return request == 2
	}
	_, _, err := s.run(t.Context(), path)
	require.ErrorContains(t, err, "after line 24")
	for _, other := range [][]string{numbered(0, 99), numbered(1, 101)} {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(other, "\n")), 0o600))
		_, _, err = s.run(t.Context(), path)
		require.ErrorContains(t, err, "has changed since its import was stopped")
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(numbered(0, 100), "\n")), 0o600))
	_, _, err = newImporter(t).run(t.Context(), path)
	require.ErrorContains(t, err, "was into "+s.URL)
	assert.Len(t, s.took(), 24)
	_, _, err = s.run(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, numbered(0, 100), s.took())
}

// TestImportThroughAnother: a proxy's refusal says nothing about a line, but a body that is too
// large for the proxy may be sent in parts.
func TestImportThroughAnother(t *testing.T) {
	for _, c := range []struct {
		name    string
		code    int
		refuses func(lines []string) bool
		took    int
	}{
		{"that refuses all", 400, func([]string) bool { return true }, 0},
		{"that takes one line at a time", 413, func(lines []string) bool { return len(lines) > 1 }, 100},
		{"that does not take a line", 413, func(lines []string) bool { return slices.Contains(lines, "line 0030\n") }, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := file(t, "x", numbered(0, 100)...)
			s := newImporter(t)
			s.before = func(w http.ResponseWriter, _ int, lines []string) bool {
				if !c.refuses(lines) {
					return false
				}
				w.WriteHeader(c.code)
				_, err := io.WriteString(w, "<html>no</html>")
				assert.NoError(t, err)
				return true
			}
			x, messages, err := s.run(t.Context(), path)
			assert.Empty(t, messages)
			assert.Equal(t, numbered(0, c.took), s.took())
			assert.EqualValues(t, c.took, x.Lines)
			if c.took == 100 {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "which is not a Quern response")
			assert.FileExists(t, path+importSuffix, "it can go on")
		})
	}
}

// TestImportOfBroken: all whole lines before the damage are imported.
func TestImportOfBroken(t *testing.T) {
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	_, err := io.WriteString(z, strings.Join(numbered(0, 100), "\n"))
	require.NoError(t, err)
	require.NoError(t, z.Flush())
	s := newImporter(t)
	path := file(t, "x.gz", text.String())
	_, _, err = s.run(t.Context(), path)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, path+", after line 99")
	assert.Equal(t, numbered(0, 99), s.took())
	assert.FileExists(t, path+importSuffix)

	_, _, err = s.run(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestImportAlone: of two imports of a file only one keeps a state.
func TestImportAlone(t *testing.T) {
	s := newImporter(t)
	path := file(t, "x", numbered(0, 100)...)
	im := Import{Client: client.Client{URL: s.URL, HTTP: s.Client()}, Files: []string{path}, Rate: 8, Clock: clock.NewSimulated(time.UnixMilli(startMs))}
	others := 0
	im.Progress = func(int64, int64, int64) {
		others++
		_, _, err := s.run(t.Context(), path)
		assert.ErrorContains(t, err, "another import or export is using "+path)
	}
	x, err := im.Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Imported{Lines: 100, Accepted: 100}, x)
	assert.Equal(t, numbered(0, 100), s.took())
	assert.Positive(t, others)
	assert.NoFileExists(t, path+importSuffix)
}

// silent is a pipe without a writer.
type silent struct{ read, end chan struct{} }

func (s silent) Read([]byte) (int, error) {
	close(s.read)
	<-s.end
	return 0, io.EOF
}

// TestImportStopsWaiting: an import stops even if no data comes.
func TestImportStopsWaiting(t *testing.T) {
	s := newImporter(t)
	for _, before := range []string{"", "line 1\nline 2\n"} {
		pipe := silent{make(chan struct{}), make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			<-pipe.read
			stop()
		}()
		im := Import{
			Client: client.Client{URL: s.URL, HTTP: s.Client()}, Files: []string{"-"}, Stdin: io.MultiReader(strings.NewReader(before), pipe),
			Clock: clock.NewSimulated(time.UnixMilli(startMs)),
		}
		_, err := im.Run(ctx)
		require.ErrorContains(t, err, "stopped after line 0 of standard input")
		close(pipe.end)
	}
}

// TestImportOfLongLines: a line beyond the server's limit is skipped, and one just within it is
// sent in a request of its own.
func TestImportOfLongLines(t *testing.T) {
	s := newImporter(t)
	im := Import{
		Client: client.Client{URL: s.URL, HTTP: s.Client()}, Files: []string{"-"}, Clock: clock.System{},
		Stdin: io.MultiReader(
			strings.NewReader("a\n"+strings.Repeat("b", 9<<20)+"\nc\n"),
			strings.NewReader(strings.Repeat("d", maxLine)+"\ne"),
		),
	}
	var messages []string
	im.Tell = func(l string) { messages = append(messages, l) }
	x, err := im.Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Imported{Lines: 5, Accepted: 4, Malformed: 1}, x)
	assert.Equal(t, []string{"a", "c", "e"}, append(s.took()[:1:1], s.took()[2:]...))
	require.Len(t, messages, 1)
	assert.Contains(t, messages[0], "standard input:4: malformed: the line is longer than the limit")
	assert.Equal(t, []int{1, 1, 1, 1}, s.requests)
}
