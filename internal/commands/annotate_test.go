package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// annotated returns the URL of a server that takes annotations, and reports.
func annotated(t *testing.T) string {
	t.Helper()
	clk := clock.System{}
	store := apitest.Store(clk)
	book := annotations.New(store, clk, 0)
	s := httptest.NewServer(apitest.Server(t, func(o *api.Options) {
		o.Clock, o.Appender, o.BackFiller, o.Annotations = clk, apitest.AcceptAll{}, apitest.AcceptAll{}, book
		reader := query.New(query.Parts{Store: store, Index: query.NewIndex(), Settings: store.Settings(), Clock: clk}, query.Options{})
		o.Extra = []api.Registrar{reading.New(reader, book, clk, reading.Turns{})}
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return s.URL
}

// run runs a command with flags and arguments.
func run[T any](t *testing.T, flags []cli.Flag, read func(*cli.Context) (T, error), do func(context.Context, T, io.Writer, io.Writer) error, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := (&cli.App{Flags: flags, Writer: io.Discard, Action: func(c *cli.Context) error {
		cfg, err := read(c)
		if err != nil {
			return err
		}
		return do(t.Context(), cfg, &out, &out)
	}}).RunContext(t.Context(), append([]string{"quern"}, args...))
	return out.String(), err
}

// TestAnnotate: annotations are made, listed and deleted from a terminal.
func TestAnnotate(t *testing.T) {
	at := annotated(t)
	annotate := func(args ...string) (string, error) {
		return run(t, config.AnnotateFlags(), config.FromAnnotate, Annotate, append([]string{"--url", at}, args...)...)
	}
	list := func(args ...string) string {
		out, err := run(t, config.FindAnnotationsFlags(), config.FromFindAnnotations, ListAnnotations, append([]string{"--url", at}, args...)...)
		require.NoError(t, err)
		return out
	}
	out, err := annotate("--at", "-1h", "--id", "build-1", "--tag", "release", "--tag", "team=web", "Build 1\nwith \x1b[31mcolour")
	require.NoError(t, err)
	require.Contains(t, out, "Annotation build-1 starts at ")
	out, err = annotate("--from", "2026-01-31T12:00:00Z", "--to", "2026-01-31T13:00:00Z", "--selector", `{source="web-1"}`, "Disk replaced")
	require.NoError(t, err)
	require.Contains(t, out, " starts at 2026-01-31T12:00:00Z.")

	out = list()
	require.Contains(t, out, "build-1")
	require.Contains(t, out, "release,team=web")
	require.NotContains(t, out, "Disk")
	require.NotContains(t, out, "\x1b", "a text does not command the terminal")
	out = list("--start", "2026-01-01", "--end", "2026-02-01", "--text", "DISK")
	require.Contains(t, out, "2026-01-31T12:00:00Z  2026-01-31T13:00:00Z")

	// What is wrong is said before anything is sent, or by the server.
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "give a text"},
		{[]string{"two", "words"}, "put the text in quotes"},
		{[]string{"text", "--tag", "a"}, "put flags before the text"},
		{[]string{"--at", "soon", "text"}, "--at soon"},
		{[]string{"--to", "now", "text"}, "--to now: needs --from"},
		{[]string{"--from", "-1h", "--to", "-2h", "text"}, "must be before --to"},
		{[]string{"--at", "-1h", "--from", "-2h", "text"}, "conflicts with --from"},
		{[]string{"--selector", "cpu{", "text"}, "the selector: "},
		{[]string{"--tag", "", "text"}, "a tag is empty"},
	} {
		_, err := annotate(c.args...)
		require.ErrorContains(t, err, c.says, c.args)
	}

	remove := func(args ...string) (string, error) {
		return run(t, config.DeleteAnnotationFlags(), config.FromDeleteAnnotation, DeleteAnnotation, append([]string{"--url", at}, args...)...)
	}
	start := strings.Fields(strings.Split(list("--tag", "release"), "\n")[1])[0]
	out, err = remove("--start", start, "build-1")
	require.NoError(t, err)
	require.Contains(t, out, "is deleted")
	require.NotContains(t, list(), "build-1")
	_, err = remove("--start", start, "build-1")
	require.EqualError(t, err, `there is no annotation "build-1" that starts at `+start)
	_, err = remove("build-1")
	require.ErrorContains(t, err, "--start: must not be empty")
}

// TestAnnotationsMove: an export has the annotations that start in its time, each once however many parts it has, and
// an import puts them into another store with their authors. Twice is once.
func TestAnnotationsMove(t *testing.T) {
	from, to := annotated(t), annotated(t)
	post := func(body string) {
		c := client.Client{URL: from}
		var reply wire.PutAnnotations
		_, err := c.Post(t.Context(), wire.AnnotationsPath, http.Header{}, []byte(body), &reply)
		require.NoError(t, err)
		require.Empty(t, reply.Rejected)
	}
	post(`[{"id":"early","start":"2026-01-30","text":"before the export"},
		{"id":"a","start":"2026-01-31T06:00:00Z","end":"2026-02-02","text":"a <b>span</b> over \"parts\"\n","tags":["x","ä"],"selector":"{a=\"b\"}"},
		{"id":"b","start":"2026-01-31T23:59:59.999Z","text":"b"},{"id":"c","start":"2026-02-01","text":"c"},{"id":"late","start":"2026-02-02","text":"at the end"}]`)
	export := func(more ...string) (string, string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "out.ndjson.zst")
		out, err := run(t, config.ExportFlags(), config.FromExport, Export, append([]string{
			"--url", from, "--start", "2026-01-31", "--end", "2026-02-02", "--part", "5h", "--output", path,
		}, more...)...)
		require.NoError(t, err)
		return path, out
	}
	path, out := export()
	require.Contains(t, out, "0 samples and 3 annotations from 2026-01-31T00:00:00Z")
	for range 2 {
		out, err := run(t, config.ImportFlags(), config.FromImport, Import, "--url", to, path)
		require.NoError(t, err)
		require.Contains(t, out, "0 samples and 3 annotations accepted")
	}
	find := func(url string) (found wire.Annotations) {
		c := client.Client{URL: url}
		resp, err := c.Do(t.Context(), http.MethodGet, wire.AnnotationsPath, map[string][]string{"start": {"2026-01-01"}})
		require.NoError(t, err)
		defer resp.Body.Close()
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&found))
		return found
	}
	require.Equal(t, find(from).Annotations[1:4], find(to).Annotations)

	_, out = export("--annotations=false")
	require.Contains(t, out, "0 samples from ")

	// Bad lines are named; the others are imported.
	bad := filepath.Join(t.TempDir(), "bad.ndjson")
	lines := `{"annotation":{"id":"x","start":1,"text":"x"},"values":[1],"timestamps":[1],"metric":{"__name__":"m"}}
{"annotation":{"id":"x","text":"x"}}
{"annotation":{"id":"x","start":"now","text":"x"}}
{"annotation":{"start":1,"text":"x"}}
{"annotation":{"id":"good","start":1767225600000,"end":1767225600000,"text":"kept","tags":[],"selector":"","author":"user ali","updated":7}}
`
	require.NoError(t, os.WriteFile(bad, []byte(lines), 0o600))
	out, err := run(t, config.ImportFlags(), config.FromImport, Import, "--url", to, bad)
	require.ErrorContains(t, err, "4 malformed lines")
	for _, says := range []string{"samples or an annotation, not both", "it has no start", "start must be a whole number of Unix ms, not a string", "the id is empty", "1 annotation accepted"} {
		require.Contains(t, out, says)
	}
	kept := find(to).Annotations[0]
	require.Equal(t, wire.Annotation{ID: "good", Start: 1767225600000, End: 1767225600000, Text: "kept", Tags: []string{}, Author: "user ali", Updated: 7}, kept)
}
