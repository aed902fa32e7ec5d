package agent

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/wire"
)

// controlled is a Control with an agent that runs.
type controlled struct {
	*Control
	*running
	inFile   string // the agent's own file
	warnings bytes.Buffer
}

func newControlled(t *testing.T, dir string) *controlled {
	c := &controlled{inFile: "- {type: tail, path: " + dir + "/own.log, format: json}"}
	c.Control = &Control{Dir: dir, Logger: slog.New(slog.NewTextHandler(&c.warnings, nil))}
	c.running = start(t, Options{}, &counting{n: 2}, &server{})
	c.Control.Agent = c.running.Agent
	return c
}

// reload is what a signal does.
func (c *controlled) reload(t *testing.T) (int, error) {
	t.Helper()
	var node yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(c.inFile), &node))
	inFile, err := adaptor.Parse("agent.yaml", node.Content[0])
	if err != nil {
		return 0, err
	}
	return c.Reload(inFile)
}

// ask returns the code of an answer, and its body or message.
func (c *controlled) ask(t *testing.T, method, path, body string, to any) (int, string) {
	t.Helper()
	table := route.NewTable()
	c.Register(table)
	answer := httptest.NewRecorder()
	table.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, wire.AdaptorsPath+path, strings.NewReader(body)))
	text := answer.Body.String()
	if answer.Code == http.StatusOK {
		require.NoError(t, json.Unmarshal([]byte(text), to))
	}
	return answer.Code, text
}

// TestControl: what a client adds runs beside what is in the agent's file, also after a restart, until it is removed.
func TestControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "added.log")
		require.NoError(t, os.WriteFile(file, []byte("m 1\nm what\nm 2\n"), 0o600))
		c := newControlled(t, dir)
		n, err := c.reload(t)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		var added wire.Adaptor
		one := "{type: tail, path: " + file + ", format: graphite, labels: {a: b}}"
		code, text := c.ask(t, "POST", "", one, &added)
		require.Equal(t, 200, code, text)
		after(time.Minute)
		var all wire.Adaptors
		code, text = c.ask(t, "GET", "", "", &all)
		require.Equal(t, 200, code, text)
		require.Len(t, all.Adaptors, 2)
		require.Equal(t, "tail "+file, all.Adaptors[0].Adaptor)
		require.True(t, all.Adaptors[0].Added)
		require.False(t, all.Adaptors[1].Added)
		require.Equal(t, 0, all.Waiting)
		require.EqualValues(t, 4, all.Delivered, "two of each")

		code, text = c.ask(t, "GET", "/"+added.ID, "", &added)
		require.Equal(t, 200, code, text)
		require.EqualValues(t, 2, added.Samples)
		require.Positive(t, added.Rates[0])
		require.Contains(t, added.Error, "some lines cannot be read")
		require.Len(t, added.Streams, 1)
		require.EqualValues(t, 15, added.Streams[0].Offset)
		require.EqualValues(t, 15, added.Streams[0].Acknowledged)
		require.NoError(t, testutil.CollectAndCompare(prometheus.Collector(c.Control.Agent), strings.NewReader(`
# HELP quern_agent_read_samples_total Samples that an adaptor has put into the spool.
# TYPE quern_agent_read_samples_total counter
quern_agent_read_samples_total{adaptor="tail `+file+`"} 2
quern_agent_read_samples_total{adaptor="tail `+dir+`/own.log"} 0
`), "quern_agent_read_samples_total"))
		c.stop()

		c = newControlled(t, dir)
		defer c.stop()
		_, err = c.reload(t)
		require.NoError(t, err)
		require.Len(t, c.Control.Agent.Adaptors(), 2)
		code, text = c.ask(t, "DELETE", "/"+added.ID, "", &added)
		require.Equal(t, 200, code, text)
		require.Len(t, c.Control.Agent.Adaptors(), 1)
		n, err = c.reload(t)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		// What comes into the agent's file counts from there.
		code, text = c.ask(t, "POST", "", one, &added)
		require.Equal(t, 200, code, text)
		c.inFile = "- " + one
		_, err = c.reload(t)
		require.NoError(t, err)
		require.Len(t, c.Control.Agent.Adaptors(), 1)
		code, text = c.ask(t, "DELETE", "/"+added.ID, "", nil)
		require.Equal(t, 409, code, text)
	})
}

// TestControlRefuses: a bad request changes nothing, and says why.
func TestControlRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := newControlled(t, dir)
		defer c.stop()
		_, err := c.reload(t)
		require.NoError(t, err)
		inFile := c.Control.Agent.Adaptors()[0].ID
		for _, one := range []struct {
			method, path, body string
			code               int
			says               string
		}{
			{"POST", "", "", 400, "give one adaptor"},
			{"POST", "", "{type: tial}", 400, "the adaptor, line 1: type \\\"tial\\\""},
			{"POST", "", "{type: [", 400, "yaml"},
			{"POST", "", "{type: exec, command: [date], format: json}", 400, "--allow-commands"},
			{"POST", "", strings.TrimPrefix(c.inFile, "- "), 409, "is read already"},
			{"DELETE", "/" + inFile, "", 409, "is in the file of the agent"},
			{"DELETE", "/0", "", 404, "there is no adaptor 0"},
			{"GET", "/0", "", 404, "there is no adaptor 0"},
		} {
			code, text := c.ask(t, one.method, one.path, one.body, nil)
			require.Equal(t, one.code, code, text)
			require.Contains(t, text, one.says)
		}
		require.NoFileExists(t, filepath.Join(dir, addedName))
		require.Len(t, c.Control.Agent.Adaptors(), 1)

		c.Commands = true
		code, text := c.ask(t, "POST", "", "{type: exec, command: [date], format: json}", new(wire.Adaptor))
		require.Equal(t, 200, code, text)
		c.Commands = false
		n, err := c.reload(t)
		require.NoError(t, err)
		require.Equal(t, 1, n, "the others go on")
		require.Contains(t, c.warnings.String(), "--allow-commands")

		// What is wrong in the agent's own file waits for a signal, and nothing is written if the file of the added ones is damaged.
		c.inFile = "- {type: tial}"
		one := "{type: tail, path: " + dir + "/other.log, format: json}"
		code, text = c.ask(t, "POST", "", one, new(wire.Adaptor))
		require.Equal(t, 200, code, text)
		_, err = c.reload(t)
		require.ErrorContains(t, err, "tial")
		require.NoError(t, os.WriteFile(filepath.Join(dir, addedName), []byte("nothing"), 0o600))
		code, text = c.ask(t, "POST", "", "{type: host}", nil)
		require.Equal(t, 500, code, text)
		require.Contains(t, text, "mend or remove it")
		require.Len(t, c.Control.Agent.Adaptors(), 2)
	})
}

// TestControlStopped: a change while the agent stops is kept, and answered 503.
func TestControlStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newControlled(t, t.TempDir())
		c.stop()
		code, text := c.ask(t, "POST", "", "{type: host}", nil)
		require.Equal(t, 503, code, text)
		_, err := c.reload(t)
		require.ErrorIs(t, err, errStopped)
		all, err := c.Load()
		require.NoError(t, err)
		require.Len(t, all, 2)
	})
}
