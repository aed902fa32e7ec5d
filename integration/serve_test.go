package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// TestFirstContact does what a new user tries in the first minute.
func TestFirstContact(t *testing.T) {
	t.Parallel()
	p := serve(t, filepath.Join(t.TempDir(), "not", "there", "yet"))

	r, err := p.Post("/api/v1/reports", []byte(`{"source":"kitchen","measurements":[
		{"metric":"it_tea_celsius","value":71.5},{"metric":"it_tea_celsius","labels":{"cup":"2"},"value":68},
		{"metric":"it_tea_celsius","value":"hot"}]}`))
	require.NoError(t, err)
	require.Equal(t, 200, r.Code, "%s", r.Body)
	var result struct {
		Accepted int
		Rejected []struct {
			Index           int
			Reason, Message string
		}
	}
	require.NoError(t, json.Unmarshal(r.Body, &result))
	assert.Equal(t, 2, result.Accepted)
	require.Len(t, result.Rejected, 1)
	assert.Equal(t, 2, result.Rejected[0].Index)
	assert.Equal(t, "invalid_value", result.Rejected[0].Reason)

	got, err := p.Export(process.OfTests, time.Hour)
	require.NoError(t, err)
	assert.Len(t, got, 2, "an acknowledged sample can be read at once")

	r, err = p.Get("/metrics", nil)
	require.NoError(t, err)
	for _, want := range []string{
		"quern_ingest_samples_accepted_total 2\n",
		`quern_ingest_commits_total{outcome="ok"} 1` + "\n",
		`quern_http_requests_total{code="200",path="/api/v1/reports"} 1` + "\n",
		`quern_http_undecodable_measurements_total{path="/api/v1/reports"} 1` + "\n",
		"go_goroutines ",
	} {
		assert.Contains(t, string(r.Body), want)
	}

	r, err = p.Get("/api/v1/status/aggregation", nil)
	require.NoError(t, err)
	var st map[string][]map[string]any
	require.NoError(t, json.Unmarshal(r.Body, &st), "%s", r.Body)
	keys := func(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
	assert.ElementsMatch(t, []string{"levels", "buckets", "runs", "workers", "shards", "errors"}, slices.Collect(maps.Keys(st)))
	require.Len(t, st["buckets"], 3)
	assert.Equal(t, []string{"bucket", "lag_seconds", "outstanding"}, keys(st["buckets"][0]))
	process.Eventually(t, "the heartbeat", func() error {
		r, err := p.Get("/api/v1/status/aggregation", nil)
		if err != nil {
			return err
		}
		st = nil
		if err := json.Unmarshal(r.Body, &st); err != nil || len(st["workers"]) != 1 {
			return fmt.Errorf("%s: %w", r.Body, err)
		}
		return nil
	})
	assert.Equal(t, []string{"aggregates", "host", "id", "seen", "started"}, keys(st["workers"][0]))

	r, err = p.Get("/", nil)
	require.NoError(t, err)
	assert.Contains(t, string(r.Body), "/api/v1/reports")
	p.Stop()
}

// TestSecondSignal: an operator who cannot wait for a drain need not.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	p := serve(t, t.TempDir())
	// Half a request, for which a drain waits.
	conn := p.Dial()
	_, err := fmt.Fprintf(conn, "POST /api/v1/reports HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	require.NoError(t, err)
	process.Eventually(t, "the request to be under way", func() error {
		r, err := p.Get("/metrics", nil)
		if err == nil && !strings.Contains(string(r.Body), "quern_http_requests_in_flight 2\n") {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	p.Signal(os.Interrupt)
	p.Wrote("draining; a second signal stops at once")
	// The log line comes just before or after the signal's default behaviour is back.
	process.Eventually(t, "the end", func() error {
		_ = p.Cmd.Process.Signal(os.Interrupt)
		select {
		case <-p.Ended:
			return nil
		default:
			return fmt.Errorf("it goes on")
		}
	})
	assert.Equal(t, -1, p.ExitCode(), "by the signal")
}

// TestPrivateFiles: other users of the machine can read nothing that a server makes.
func TestPrivateFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	serve(t, dir).Stop()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			assert.Zero(t, info.Mode().Perm()&0o077, path)
		}
		return err
	}))
}

// TestRefusals: the program ends with the promised code and one clear sentence.
func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := filepath.Join(dir, "made")
	serve(t, made, seconds...).Stop()
	running := serve(t, filepath.Join(dir, "running"))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	readOnly := filepath.Join(dir, "read-only")
	require.NoError(t, os.Mkdir(readOnly, 0o500))

	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"directory in use", serveArgs(filepath.Join(dir, "running")), 1, []string{filepath.Join(dir, "running"), "is in use by another process"}},
		{"another ladder", serveArgs(made, "--rollups", "1h,6h,24h"), 1, []string{made, "roll-ups 1s,2s,4s", "not the requested 1h,6h,24h"}},
		{"port taken", []string{"serve", "--listen", strings.TrimPrefix(running.URL, "http://"), "--data-dir", filepath.Join(dir, "new")}, 1, []string{"cannot listen on --listen 127.0.0.1:", "address already in use"}},
		{"directory is a file", serveArgs(file), 1, []string{file}},
		{"directory below a file", serveArgs(filepath.Join(file, "sub")), 1, []string{file, "not a directory"}},
		{"directory may not be written", serveArgs(filepath.Join(readOnly, "sub")), 1, []string{readOnly, "permission denied"}},
		{"bad value", []string{"serve", "--block-size", "0"}, 2, []string{"--block-size 0: must be between 1 and 4096", "See 'quern serve --help'"}},
		{"unknown flag", []string{"serve", "--lisen", ":1"}, 2, []string{"unknown flag --lisen; did you mean --listen?"}},
		{"unknown command", []string{"grind"}, 2, []string{`unknown command "grind"`}},
		{"demo over a cluster", []string{"serve", "--store", "cassandra", "--demo"}, 2, []string{"--demo: needs --store pebble", "See 'quern serve --help'"}},
		{"copies nowhere", []string{"schema", "apply", "--replication", "3"}, 2, []string{"--replication 3: must be DC=COPIES", "See 'quern schema apply --help'"}},
		{"agent without a server's URL", []string{"agent", "--url", "there"}, 2, []string{"--url there: must be like"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want[len(c.want)-1] == "permission denied" && os.Geteuid() == 0 {
				t.Skip("root may write everywhere")
			}
			p := start(t, c.args...)
			assert.Equal(t, c.code, p.ExitCode())
			stderr := p.Stderr.String()
			for _, want := range c.want {
				assert.Contains(t, stderr, want)
			}
			assert.True(t, strings.HasPrefix(stderr, "quern: "), stderr)
			if c.code == 1 {
				assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
			}
			assert.Empty(t, p.Stdout.String())
		})
	}
	assert.NoDirExists(t, filepath.Join(dir, "new"), "made before the port was tried")
	running.Stop()
}

// TestCompletionInBash runs completion in bash itself, as after `source <(quern completion bash)`.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash := lookPath(t, "bash")
	const script = `source <("$1" completion bash)
		for line in 'se' '' 'serve --la' 'serve --' 'serve -' 'agent --' 'completion ba' 'serve --data-dir '; do
			COMP_WORDS=("$1"); COMP_CWORD=0; COMPREPLY=()
			while IFS= read -r -d ' ' word; do COMP_WORDS+=("$word"); done <<<"$line "
			COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _quern; echo "$line|${COMPREPLY[*]}"
		done`
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), bash, "-c", script, "bash", binary)
	cmd.Stdout = &out
	require.NoError(t, cmd.Run())
	offered := map[string][]string{}
	for line := range strings.Lines(out.String()) {
		typed, words, _ := strings.Cut(line, "|")
		offered[typed] = strings.Fields(words)
	}
	require.Len(t, offered, 8)
	assert.Equal(t, []string{"serve", "series", "settings"}, offered["se"])
	assert.Subset(t, offered[""], []string{"serve", "agent", "completion"})
	assert.Equal(t, []string{"--late-grace"}, offered["serve --la"])
	assert.Subset(t, offered["serve --"], []string{"--listen", "--data-dir"})
	assert.Subset(t, offered["serve -"], []string{"--listen", "--data-dir"})
	assert.Subset(t, offered["agent --"], []string{"--url"})
	assert.Equal(t, []string{"bash"}, offered["completion ba"])
	assert.Empty(t, offered["serve --data-dir "], "bash completes files by itself")
}
