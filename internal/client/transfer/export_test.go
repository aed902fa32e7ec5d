package transfer

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/client"
)

// exporter is a server whose only series has a sample each second. It serves a number of parts, and
// breaks off in the next.
type exporter struct {
	*httptest.Server
	left, asked atomic.Int64
}

func newExporter(t *testing.T, parts int) *exporter {
	s := new(exporter)
	s.left.Store(int64(parts))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/api/v1/export", r.URL.Path)
		assert.Equal(t, "cpu", r.FormValue("match[]"))
		s.asked.Add(1)
		start, err := strconv.ParseInt(r.FormValue("start"), 10, 64)
		assert.NoError(t, err)
		end, err := strconv.ParseInt(r.FormValue("end"), 10, 64)
		assert.NoError(t, err)
		for at := start; at < end; at += 1000 {
			_, _ = io.WriteString(w, lineAt(at))
		}
		if s.left.Add(-1) < 0 {
			_, _ = io.WriteString(w, `{"metric":{"__na`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func lineAt(ms int64) string {
	return fmt.Sprintf(`{"metric":{"__name__":"cpu"},"values":[1,2],"timestamps":[%d,%d]}`+"\n", ms, ms+1)
}

const startMs, endMs = 1_763_722_800_000, 1_763_722_800_000 + 35_000

func export(s *exporter, path string) *Export {
	return &Export{
		Client: client.Client{URL: s.URL, HTTP: s.Client()}, Match: []string{"cpu"}, Start: "-35s", End: "now",
		StartMs: startMs, EndMs: endMs, Part: 10 * time.Second, Path: path,
	}
}

// plainText returns the decompressed contents of an export.
func plainText(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var from io.Reader = f
	switch filepath.Ext(path) {
	case ".gz":
		from, err = gzip.NewReader(f)
		require.NoError(t, err)
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
		require.NoError(t, err)
		defer z.Close()
		from = z
	}
	text, err := io.ReadAll(from)
	require.NoError(t, err)
	return string(text)
}

// TestExportGoesOn: after a part that broke off, or bytes that the state does not know, the result
// equals that of an uninterrupted export.
func TestExportGoesOn(t *testing.T) {
	var want bytes.Buffer
	for at := int64(startMs); at < endMs; at += 1000 {
		want.WriteString(lineAt(at))
	}
	for _, name := range []string{"x.ndjson", "x.gz", "x.zst"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			s := newExporter(t, 2)
			x, err := export(s, path).Run(t.Context())
			require.ErrorContains(t, err, "the server's answer ended early")
			assert.Equal(t, int64(startMs+20_000), x.NextMs)
			assert.Equal(t, int64(40), x.Samples)
			for _, private := range []string{path, path + exportSuffix} {
				info, err := os.Stat(private)
				require.NoError(t, err)
				assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), private)
			}

			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = f.WriteString("what a crash leaves")
			require.NoError(t, errors.Join(err, f.Close()))

			s.left.Store(100)
			s.asked.Store(0)
			e := export(s, path)
			e.StartMs, e.EndMs = startMs+5000, endMs+5000 // the current time has moved on
			var steps []Exported
			e.Progress = func(x Exported) { steps = append(steps, x) }
			x, err = e.Run(t.Context())
			require.NoError(t, err)
			assert.Equal(t, int64(2), s.asked.Load())
			assert.Equal(t, Exported{StartMs: startMs, EndMs: endMs, NextMs: endMs, Samples: 70, Bytes: x.Bytes}, x)
			assert.Equal(t, x, steps[len(steps)-1])
			assert.Equal(t, want.String(), plainText(t, path))
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, x.Bytes, info.Size())
			assert.NoFileExists(t, path+exportSuffix)

			_, err = export(s, path).Run(t.Context())
			require.ErrorContains(t, err, "already exists")
			e = export(s, path)
			e.Overwrite, e.EndMs = true, startMs+1000
			_, err = e.Run(t.Context())
			require.NoError(t, err)
			assert.Equal(t, lineAt(startMs), plainText(t, path))
		})
	}
}

// TestExportGoesOnWithItself: what another export began stays unchanged.
func TestExportGoesOnWithItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	s := newExporter(t, 1)
	_, err := export(s, path).Run(t.Context())
	require.Error(t, err)
	s.left.Store(100)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, change := range []func(*Export){
		func(e *Export) { e.Match = []string{"mem"} },
		func(e *Export) { e.Start = "-1h" },
		func(e *Export) { e.End = "-1s" },
		func(e *Export) { e.Client.URL += "/" },
	} {
		e := export(s, path)
		change(e)
		_, err := e.Run(t.Context())
		require.ErrorContains(t, err, "is part of another export")
	}
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, before, after)

	require.NoError(t, os.Truncate(path, 10))
	_, err = export(s, path).Run(t.Context())
	require.ErrorContains(t, err, "is shorter than the")
	require.NoError(t, os.WriteFile(path+exportSuffix, []byte("{"), 0o600))
	_, err = export(s, path).Run(t.Context())
	require.ErrorContains(t, err, "--overwrite starts over")
	e := export(s, path)
	e.Overwrite = true
	_, err = e.Run(t.Context())
	require.NoError(t, err)
}

// TestExportAlone: while an export writes a file, no other does, and its state is its own.
func TestExportAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	s := newExporter(t, 100)
	e, begun := export(s, path), 0
	e.Progress = func(Exported) {
		begun++
		before, err := os.ReadFile(path + exportSuffix)
		assert.NoError(t, err)
		for _, overwrite := range []bool{false, true} {
			other := export(s, path)
			other.Overwrite = overwrite
			_, err := other.Run(t.Context())
			assert.ErrorContains(t, err, "another export is writing "+path)
		}
		after, err := os.ReadFile(path + exportSuffix)
		assert.NoError(t, err)
		assert.Equal(t, string(before), string(after))
	}
	x, err := e.Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 4, begun)
	assert.Equal(t, int64(4), s.asked.Load())
	assert.Len(t, plainText(t, path), int(x.Bytes))
	assert.NoFileExists(t, path+exportSuffix)
}

// TestExportKeepsNoPassword: the state beside the file may be read by anybody, so it holds no
// password.
func TestExportKeepsNoPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	s := newExporter(t, 1)
	for range 2 {
		e := export(s, path)
		e.Client.URL = strings.Replace(s.URL, "http://", "http://who:secret@", 1)
		_, err := e.Run(t.Context())
		require.ErrorContains(t, err, "the server's answer ended early")
		state, err := os.ReadFile(path + exportSuffix)
		require.NoError(t, err)
		assert.Contains(t, string(state), "who")
		assert.NotContains(t, string(state), "secret")
	}
}

// TestExportToStdout: the output has only whole lines, without the server's error message.
func TestExportToStdout(t *testing.T) {
	var out bytes.Buffer
	e := export(newExporter(t, 0), "")
	e.Stdout, e.EndMs = &out, startMs+1000
	_, err := e.Run(t.Context())
	require.ErrorContains(t, err, "the server's answer ended early")
	assert.Equal(t, lineAt(startMs), out.String())

	for _, c := range []struct {
		answer, want string
	}{
		{`{"status":"error","error":"the store is unavailable"}` + "\n", "the store is unavailable"},
		{"hello\n", "not a Quern response"},
	} {
		out.Reset()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, lineAt(startMs)+c.answer) }))
		e.Client = client.Client{URL: s.URL, HTTP: s.Client()}
		_, err := e.Run(t.Context())
		require.ErrorContains(t, err, c.want)
		assert.Equal(t, lineAt(startMs), out.String())
		s.Close()
	}

	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = e.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// TestExportOfDamaged: missing data is reported and counted, whether the header or the trailer
// names it.
func TestExportOfDamaged(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(warningHeader, "one")
		_, _ = io.WriteString(w, lineAt(startMs))
		_ = http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+warningHeader, "two")
	}))
	defer s.Close()
	var messages []string
	e := Export{
		Client: client.Client{URL: s.URL, HTTP: s.Client()}, Match: []string{"cpu"}, StartMs: 1, EndMs: 2, Part: time.Hour, Stdout: io.Discard,
		Warn: func(w string) { messages = append(messages, w) },
	}
	x, err := e.Run(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, x.Damaged)
	assert.Equal(t, []string{"one", "two"}, messages)
}

func TestUnixMs(t *testing.T) {
	assert.Equal(t, "0.001", unixMs(1))
	assert.Equal(t, "99999999.999", unixMs(1e11-1))
	assert.Equal(t, "100000000000", unixMs(1e11))
}
