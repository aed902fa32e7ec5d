package dashboard_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func board(t *testing.T, title string) *dashboard.Dashboard {
	t.Helper()
	d, err := dashboard.Decode(fmt.Appendf(nil, `{"format":1,"title":%q}`, title))
	require.NoError(t, err)
	return d
}

func library(t *testing.T, files *dashboard.Files) (*dashboard.Library, *storagetest.Model) {
	t.Helper()
	clk := clock.NewSimulated(start)
	docs := storagetest.NewModel(storage.Settings{}, nil, clk)
	l, err := dashboard.NewLibrary(dashboard.Options{Documents: docs, Clock: clk, Files: files})
	require.NoError(t, err)
	return l, docs
}

// TestWhatWins: a file wins over what is stored, and that over what is built in. None of the three is changed for another.
func TestWhatWins(t *testing.T) {
	dir := t.TempDir()
	w := newFiles(t, dir)
	l, docs := library(t, w.files)
	ctx := t.Context()
	_, err := l.Put(ctx, "hosts", 0, board(t, "Mine"), "")
	require.ErrorAs(t, err, new(*dashboard.FixedError))
	require.ErrorContains(t, err, "save a copy")
	_, err = l.Delete(ctx, "hosts", 0, "")
	require.ErrorAs(t, err, new(*dashboard.FixedError))
	title := func() string {
		d, err := l.Get(ctx, "hosts", 0)
		require.NoError(t, err)
		return d.Title + ", " + d.Origin
	}
	require.Equal(t, "Hosts, built in", title())
	// By an earlier version, which did not have it.
	text, err := board(t, "Stored").Encode()
	require.NoError(t, err)
	require.NoError(t, docs.PutDocument(ctx, storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: dashboard.Kind, ID: "hosts"}, Version: 1, Title: "Stored",
	}, Body: text}))
	require.Equal(t, "Stored, ", title())
	w.put("hosts.json", `{"format":1,"title":"File"}`)
	_ = w.files.Reload()
	require.Equal(t, "File, hosts.json", title())
	_, err = l.Put(ctx, "hosts", 1, board(t, "Mine"), "")
	require.ErrorAs(t, err, new(*dashboard.FixedError))
	require.NoError(t, os.Remove(filepath.Join(dir, "hosts.json")))
	_ = w.files.Reload()
	_, err = l.Put(ctx, "hosts", 1, board(t, "Mine"), "")
	require.NoError(t, err)
	require.Equal(t, "Mine, ", title())
	_, err = l.Get(ctx, "quern", 1)
	require.ErrorContains(t, err, `there is no dashboard "quern"`)
	for _, id := range []string{"", "A", "a/b", strings.Repeat("a", 129)} {
		_, err := l.Put(ctx, id, 0, board(t, "x"), "")
		require.ErrorAs(t, err, new(*dashboard.InvalidError), id)
		_, err = l.Get(ctx, id, 0)
		require.ErrorAs(t, err, new(*dashboard.MissingError), id)
	}
}

func TestID(t *testing.T) {
	for text, want := range map[string]string{"Node Exporter (Full)": "node-exporter-full", "a_b.c": "a_b.c", "日本": "dashboard", "": "dashboard"} {
		require.Equal(t, want, dashboard.ID(text))
	}
	require.True(t, dashboard.ValidID(dashboard.ID(strings.Repeat("Ab ", 100))))
}

type world struct {
	t     *testing.T
	dir   string
	log   *bytes.Buffer
	reg   *prometheus.Registry
	files *dashboard.Files
}

func newFiles(t *testing.T, dir string) *world {
	t.Helper()
	w := &world{t: t, dir: dir, log: &bytes.Buffer{}, reg: prometheus.NewRegistry()}
	var err error
	w.files, err = dashboard.OpenFiles(dir, dashboard.FilesOptions{Clock: clock.System{}, Logger: slog.New(slog.NewTextHandler(w.log, nil)), Metrics: w.reg})
	require.NoError(t, err)
	return w
}

func (w *world) put(name, text string) {
	w.t.Helper()
	require.NoError(w.t, os.MkdirAll(filepath.Dir(filepath.Join(w.dir, name)), 0o700))
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600))
}

func (w *world) failed() float64 {
	w.t.Helper()
	n, err := testutil.GatherAndCount(w.reg, "quern_dashboard_files_failed")
	require.NoError(w.t, err)
	require.Equal(w.t, 1, n)
	all, err := w.reg.Gather()
	require.NoError(w.t, err)
	for _, f := range all {
		if f.GetName() == "quern_dashboard_files_failed" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// TestFiles: a file that becomes wrong keeps its last good dashboard, and says so once; a mended one is used again.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	w := newFiles(t, dir)
	l, _ := library(t, w.files)
	ctx := t.Context()
	w.put("team/shop.json", `{"format":1,"title":"Shop"}`)
	w.put("theirs.json", `{"title":"Shop","panels":[]}`)
	w.put("bad.json", `{"format":1`)
	w.put(".hidden/x.json", `{"format":1,"title":"Hidden"}`)
	w.put("note.txt", `no dashboard`)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir.json"), 0o700))
	require.ErrorContains(t, w.files.Reload(), "bad.json: ")
	ids := func() map[string]dashboard.Head {
		all, err := l.List(ctx, false)
		require.NoError(t, err)
		out := map[string]dashboard.Head{}
		for _, h := range all {
			if h.Origin != dashboard.BuiltIn {
				out[h.ID] = h
			}
		}
		return out
	}
	require.Len(t, ids(), 3)
	require.Equal(t, "team/shop.json", ids()["shop"].Origin)
	require.Contains(t, ids()["bad"].Problem, "unexpected end of JSON input")
	require.Contains(t, ids()["theirs"].Problem, "quern dashboard convert")
	require.InDelta(t, 2, w.failed(), 0)
	_, err := l.Get(ctx, "bad", 0)
	require.ErrorContains(t, err, "bad.json")

	w.put("team/shop.json", `{"format":1,"title":"Shop","panel":[]}`)
	for range 3 {
		_ = w.files.Reload()
	}
	require.Equal(t, "Shop", ids()["shop"].Title)
	require.Contains(t, ids()["shop"].Problem, `unknown field "panel"`)
	d, err := l.Get(ctx, "shop", 0)
	require.NoError(t, err)
	require.Contains(t, string(d.Body), `"title":"Shop"`)
	require.Equal(t, 1, strings.Count(w.log.String(), "unknown field"))
	w.put("team/shop.json", `{"format":1,"title":"Shop 2"}`)
	_ = w.files.Reload()
	require.Equal(t, "Shop 2", ids()["shop"].Title)

	// Of two files with one id none is chosen.
	w.put("zzz/shop.json", `{"format":1,"title":"Other"}`)
	_ = w.files.Reload()
	_ = w.files.Reload()
	require.Equal(t, "Shop 2", ids()["shop"].Title)
	require.Equal(t, 1, strings.Count(w.log.String(), "the files team/shop.json and zzz/shop.json have the same id, shop: rename one"))
	_, err = dashboard.OpenFiles(dir, dashboard.FilesOptions{Clock: clock.System{}, Logger: slog.Default()})
	require.ErrorContains(t, err, "the same id")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "zzz")))
	_ = w.files.Reload()

	// A directory that cannot be read takes nothing away.
	require.NoError(t, os.Rename(dir, dir+".away"))
	_ = w.files.Reload()
	_ = w.files.Reload()
	require.Len(t, ids(), 3)
	require.Equal(t, 1, strings.Count(w.log.String(), "no such file or directory"))
	require.NoError(t, os.Rename(dir+".away", dir))

	_, err = dashboard.OpenFiles(filepath.Join(dir, "note.txt"), dashboard.FilesOptions{Clock: clock.System{}, Logger: slog.Default()})
	require.ErrorContains(t, err, "--dashboards")
}

// stand replaces variables as the page does.
var stand = strings.NewReplacer("$__rate_interval", "4m", "$__interval", "1m", "$__range", "6h", "$quantile", "0.9",
	"$host", ".*", "$region", ".*", "$role", ".*", "$job", ".*", "$instance", ".*")

// TestBuiltIn: what is built in has six panels or more, all kinds are used, and each expression parses.
func TestBuiltIn(t *testing.T) {
	l, err := dashboard.NewLibrary(dashboard.Options{Documents: storagetest.NewModel(storage.Settings{}, nil, clock.System{}), Clock: clock.System{}, Demo: true})
	require.NoError(t, err)
	kinds := map[string]bool{}
	for _, id := range []string{"quern", "hosts", "demo"} {
		s, err := l.Get(t.Context(), id, 0)
		require.NoError(t, err)
		d, err := dashboard.Decode(s.Body)
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(d.Panels), 6)
		grid := map[[2]int]string{}
		for _, p := range d.Panels {
			kinds[p.Kind] = true
			require.Equal(t, p.Kind == dashboard.Text, len(p.Queries) == 0, p.Title)
			for _, q := range p.Queries {
				expr := stand.Replace(q.Expr)
				require.NotContains(t, expr, "$")
				_, err := parser.NewParser(parser.Options{EnableExperimentalFunctions: true}).ParseExpr(expr)
				require.NoError(t, err, "%s: %s", p.Title, expr)
			}
			for x := range p.At.W {
				for y := range p.At.H {
					at := [2]int{p.At.X + x, p.At.Y + y}
					require.Empty(t, grid[at], "%s lies over %s", p.Title, grid[at])
					grid[at] = "panel " + p.Title
				}
			}
		}
	}
	require.Len(t, kinds, 6)
	plain, _ := library(t, nil)
	_, err = plain.Get(t.Context(), "demo", 0)
	require.ErrorAs(t, err, new(*dashboard.MissingError), "only with the demo's data")
}
