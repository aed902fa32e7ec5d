package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
)

// answering returns the URL of a server with a fixed reply.
func answering(t *testing.T, code int, body string, header ...string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, body)
	}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return s.URL
}

func TestReaggregateSays(t *testing.T) {
	const progress = `{"done":1,"total":3,"blocks":1,"skipped":0}` + "\n"
	for _, c := range []struct {
		name, body string
		want, fail string
	}{
		{
			"all", progress + `{"status":"success","done":9,"total":9,"blocks":7,"skipped":2,"series":2,
			"slices":{"marked":7,"not_closed":1,"expired":1},"rows":[{"level":"1h","by":1763730120000},{"level":"24h","by":1763769720500}]}`,
			`2 series: 7 slices marked, 1 slice not closed yet, 1 slice expired.
Slices that are not closed yet will be ground when they close.
Expired slices keep their rows: some of their samples may be gone.
7 blocks will be read again. The rows are ready soon after the run at:
   1h     2025-11-21T13:02:00Z
   24h    2025-11-22T00:02:00.5Z
`, "",
		},
		{
			"nothing", `{"status":"success","series":1,"slices":{"not_closed":1},"rows":[]}`,
			`1 series: 0 slices marked, 1 slice not closed yet, 0 slices expired.
Slices that are not closed yet will be ground when they close.
There is nothing to recompute.
`, "",
		},
		{"no series", `{"status":"success","series":0,"rows":[]}`, "", "no series match cpu"},
		{"broken off", progress, "", "the server's answer ended early; slices marked so far stay marked"},
		{"failed", progress + `{"status":"error","error":"the store is unavailable"}`, "", "the store is unavailable (1 of 3 blocks were done"},
		{"another program", "hello", "", "the server's answer is not a Quern response"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The table breaks long lines for readability.
			body := bytes.ReplaceAll([]byte(c.body), []byte(",\n\t\t\t"), []byte(","))
			var out, errs bytes.Buffer
			err := Reaggregate(t.Context(), config.Reaggregate{Connection: config.Connection{URL: answering(t, 200, string(body))}, Match: []string{"cpu"}}, &out, &errs)
			if c.fail != "" {
				require.ErrorContains(t, err, c.fail)
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, c.want, out.String())
			assert.Empty(t, errs.String(), "no bar where nobody looks on")
		})
	}
}

func TestExplainSays(t *testing.T) {
	const body = `{"time":1763722800000,"now":1763726400000,"matched":2,"series":[{"metric":{"__name__":"cpu","source":"a"},"schedule":7,
"source":"a","levels":[{"level":"1h","verdict":"late","why":"late data","next":"that run","slice":1763722800000,
"slice_end":1763726400000,"run_at":1763726520000,"state":"complete","block":0,"block_end":128,"shard":3,"worker":"",
"input":{"bucket":"raw","chunks":2,"samples":3,"finite":2,"not_finite":1,"damaged":1,"expires":1764327600000},
"row":{"count":2,"min":1,"max":2},"marks":[{"kind":"retry","slice":1763726400000,"run_at":1763730120000,"schedules":1,"due":1763726400000,
"attempt":1,"last_error":"no"}],"more_marks":4,"runs":[{"worker":"w","started":1763726520000,"seconds":0.5,"blocks":1,"error":"gone"}],
"errors":[{"time":1763726520000,"slice":1763722800000,"worker":"w","message":"oh"}]}]}]}`
	var out bytes.Buffer
	cfg := config.Explain{Connection: config.Connection{URL: answering(t, 200, body)}, Match: []string{"cpu"}}
	require.NoError(t, Explain(t.Context(), cfg, &out, nil))
	assert.Equal(t, `at 2025-11-21T11:00:00Z, as seen at 2025-11-21T12:00:00Z

cpu{source="a"}
schedule 7 of source a

  1h row of 2025-11-21T11:00:00Z: late data
    next   that run
    slice  2025-11-21T11:00:00Z to 2025-11-21T12:00:00Z, complete, ground at 2025-11-21T12:02:00Z
    block  block 0, block end 128, shard 3, worker -
    input  bucket raw, chunks 2, samples 3, finite 2, not finite 1, damaged 1, expires 2025-11-28T11:00:00Z
    row    count 2, min 1, max 2
    mark   kind retry, slice 2025-11-21T12:00:00Z, run at 2025-11-21T13:02:00Z, schedules 1, due 2025-11-21T12:00:00Z, attempt 1, last error no
    mark   and 4 more
    run    worker w, started 2025-11-21T12:02:00Z, seconds 0.5, blocks 1, rescheduled 0, dropped 0, error gone
    error  time 2025-11-21T12:02:00Z, slice 2025-11-21T11:00:00Z, worker w, message oh

1 more series match; --limit shows more
`, out.String())

	out.Reset()
	cfg.JSON = true
	require.NoError(t, Explain(t.Context(), cfg, &out, nil))
	assert.Equal(t, body, out.String())

	out.Reset()
	cfg = config.Explain{Connection: config.Connection{URL: answering(t, 200, `{"matched":0,"series":[]}`)}, Match: []string{"cpu"}}
	require.ErrorContains(t, Explain(t.Context(), cfg, &out, nil), "no series match cpu")
	assert.Empty(t, out.String())
	cfg.JSON = true
	require.ErrorContains(t, Explain(t.Context(), cfg, &out, nil), "no series match cpu")
	assert.JSONEq(t, `{"matched":0,"series":[]}`, out.String())
}

// TestRefusalOfAServer: each refusal is reported in one sentence.
func TestRefusalOfAServer(t *testing.T) {
	for _, c := range []struct {
		url, want string
	}{
		{answering(t, 503, `{"status":"error","error":"the store is unavailable"}`, "Retry-After", "5"), "the store is unavailable; try again in 5 s"},
		{answering(t, 404, `{"status":"error","error":"there is nothing at /"}`), "does not serve this request: it is an aggregator, or older than this program"},
		{answering(t, 500, `{"status":"error","error":"oh"}`), "500 Internal Server Error: oh"},
		{answering(t, 502, `<html>`), "answered 502 Bad Gateway, which is not a Quern response"},
		{"http://127.0.0.1:1", "the server is unavailable: "},
	} {
		err := Explain(t.Context(), config.Explain{Connection: config.Connection{URL: c.url}}, nil, nil)
		require.ErrorContains(t, err, c.want)
		assert.False(t, client.Refused(err))
	}
	err := Explain(t.Context(), config.Explain{Connection: config.Connection{URL: answering(t, 400, `{"status":"error","error":"selector"}`)}}, nil, nil)
	require.True(t, client.Refused(err))
}

// TestInterrupted: a command that a signal ends does not report an unreachable server.
func TestInterrupted(t *testing.T) {
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the handler does not notice that the client has gone
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	for name, c := range map[string]struct {
		do   func(context.Context) error
		want string
	}{
		"verify": {func(ctx context.Context) error {
			app := &cli.App{Flags: config.VerifyFlags(), Action: func(c *cli.Context) error {
				cfg, err := config.FromVerify(c)
				require.NoError(t, err)
				return Verify(c.Context, cfg, io.Discard, io.Discard)
			}}
			return app.RunContext(ctx, []string{"verify", "--url", server.URL})
		}, "stopped before all rows were compared"},
		"status": {func(ctx context.Context) error {
			return Status(ctx, config.Status{Connection: config.Connection{URL: server.URL}}, io.Discard, io.Discard)
		}, "stopped"},
		"explain": {func(ctx context.Context) error {
			return Explain(ctx, config.Explain{Connection: config.Connection{URL: server.URL}}, io.Discard, io.Discard)
		}, "stopped"},
		"reaggregate": {func(ctx context.Context) error {
			return Reaggregate(ctx, config.Reaggregate{Connection: config.Connection{URL: server.URL}}, io.Discard, io.Discard)
		}, "stopped; slices marked so far stay marked, and repeating the request is safe"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			require.EqualError(t, c.do(ctx), c.want)
		})
	}
}

// TestTextOfServersIsEscaped: what a server says does not control the terminal.
func TestTextOfServersIsEscaped(t *testing.T) {
	const evil = `\u001b[2J\u009b31m\u202e`
	var st map[string]any
	require.NoError(t, json.Unmarshal([]byte(statusBody), &st))
	st["runs"].([]any)[0].(map[string]any)["error"] = "\x1b[2J\u009b31m\u202e"
	status, err := json.Marshal(st)
	require.NoError(t, err)
	for name, run := range map[string]func(stdout, stderr io.Writer) error{
		"status": func(stdout, stderr io.Writer) error {
			return Status(t.Context(), config.Status{Connection: config.Connection{URL: answering(t, 200, string(status))}}, stdout, stderr)
		},
		"status as JSON": func(stdout, stderr io.Writer) error {
			return Status(t.Context(), config.Status{Connection: config.Connection{URL: answering(t, 200, string(status))}, JSON: true}, stdout, stderr)
		},
		"explain": func(stdout, stderr io.Writer) error {
			return Explain(t.Context(), config.Explain{Connection: config.Connection{URL: answering(t, 200, `{"matched":1,"series":[{"metric":{},"source":"`+evil+`","levels":[]}]}`)}}, stdout, stderr)
		},
		"reaggregate": func(stdout, stderr io.Writer) error {
			body := `{"status":"success","blocks":1,"series":1,"rows":[{"level":"` + evil + `","by":1}]}`
			return Reaggregate(t.Context(), config.Reaggregate{Connection: config.Connection{URL: answering(t, 200, body)}}, stdout, stderr)
		},
		"import": func(stdout, stderr io.Writer) error {
			file := filepath.Join(t.TempDir(), "lines")
			require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
			body := `{"status":"error","error":"x","accepted":0,"lines":1,"rejected":[{"line":1,"reason":"` + evil + `","message":"` + evil + `","samples":1}],"rejected_total":1}`
			err := Import(t.Context(), config.Import{Connection: config.Connection{URL: answering(t, 200, body)}, Files: []string{file}}, stdout, stderr)
			require.ErrorContains(t, err, "1 sample")
			return nil
		},
	} {
		var out bytes.Buffer
		require.NoError(t, run(&out, &out), name)
		require.Contains(t, out.String(), `[2J\u009b31m\u202e`, name)
		require.NotContains(t, out.String(), "\x1b", name)
		require.NotContains(t, out.String(), "\u009b", name)
	}
}
