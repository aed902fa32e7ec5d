package hostagent

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

var quiet = slog.New(slog.DiscardHandler)

func open(t *testing.T, dir string) *spool.Spool {
	kept, err := spool.Open(filepath.Join(dir, "spool"), spool.Options{Clock: clock.System{}, Logger: quiet, Others: agent.ControlFiles})
	require.NoError(t, err)
	return kept
}

func newControl(kept *spool.Spool, dir string) *agent.Control {
	return &agent.Control{
		Dir: filepath.Join(dir, "spool"), Logger: quiet,
		Agent: agent.New(agent.Parts{
			Output: adaptor.NewOutput(kept, clock.System{}, quiet, "web-1"), Sender: agent.NewFailover(clock.System{}, quiet, nil), Clock: clock.System{}, Logger: quiet,
		}, agent.Options{}),
	}
}

// TestAgentCommands: the commands ask and change an agent, if they show its token.
func TestAgentCommands(t *testing.T) {
	dir := t.TempDir()
	token, log := filepath.Join(dir, "token"), filepath.Join(dir, "app.log")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	kept := open(t, dir)
	control := newControl(kept, dir)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		control.Agent.Run(ctx)
	}()
	web, err := newServer(config.Agent{Control: "0.0.0.0:9097", ControlTokenFile: token}, control, quiet)
	require.NoError(t, err)
	server := httptest.NewServer(web.Handler)
	defer server.Close()
	ask := func(command func(context.Context, config.AgentClient, io.Writer, io.Writer) error, file, argument string) (string, error) {
		var out bytes.Buffer
		err := command(t.Context(), config.AgentClient{Connection: config.Connection{URL: server.URL, TokenFile: file}, Argument: argument}, &out, io.Discard)
		return out.String(), err
	}
	_, err = ask(commands.ListAdaptors, "", "")
	require.ErrorContains(t, err, "needs a login")
	out, err := ask(commands.AddAdaptor, token, "{type: tail, path: "+log+", format: json}")
	require.NoError(t, err)
	require.Regexp(t, `tail /.* runs\. .quern agent stop \w{8}. ends it\.`, out)
	id := out[len(out)-len("12345678` ends it.\n"):][:8]
	out, err = ask(commands.ListAdaptors, token, "")
	require.NoError(t, err)
	require.Regexp(t, id+` +tail .*app\.log +client +0 +0\.0/s .* -\n`, out)
	out, err = ask(commands.AgentStatus, token, "")
	require.NoError(t, err)
	require.Contains(t, out, "0 samples delivered, 0 wait in the spool.")
	out, err = ask(commands.StopAdaptor, token, id)
	require.NoError(t, err)
	require.Contains(t, out, "has ended, after 0 samples.")
	end()
	<-ended
	server.Close()
	require.NoError(t, kept.Close())
	require.NoError(t, open(t, dir).Close(), "with the file of what was added")
	_, err = ask(commands.ListAdaptors, token, "")
	require.ErrorContains(t, err, "start the agent with --control")
}

// TestAgentOpen: without a token, this machine may ask, and not change anything.
func TestAgentOpen(t *testing.T) {
	kept := open(t, t.TempDir())
	defer kept.Close()
	web, err := newServer(config.Agent{Control: "127.0.0.1:9097"}, newControl(kept, ""), quiet)
	require.NoError(t, err)
	for method, want := range map[string]int{http.MethodGet: http.StatusNotFound, http.MethodDelete: http.StatusForbidden} {
		answer := httptest.NewRecorder()
		web.Handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:9097/rest/v2/adaptor/0", http.NoBody))
		require.Equal(t, want, answer.Code, answer.Body)
		require.Equal(t, want == http.StatusForbidden, strings.Contains(answer.Body.String(), "--control-token-file"))
	}
}

// TestRunFromPipe: the file is read once, since a pipe has nothing more.
func TestRunFromPipe(t *testing.T) {
	cfg := config.Agent{Connection: config.Connection{URL: "http://127.0.0.1:1"}, File: "/dev/fd/63", DataDir: t.TempDir()}
	require.NoError(t, yaml.Unmarshal([]byte("[{type: tail, path: /none, format: json}]"), &cfg.Adaptors))
	cfg.Adaptors = *cfg.Adaptors.Content[0]
	ctx, end := context.WithCancel(t.Context())
	end()
	var log bytes.Buffer
	require.NoError(t, Run(ctx, cfg, io.Discard, &log))
	require.Contains(t, log.String(), "msg=reading adaptors=1")
	require.NotContains(t, log.String(), "not delivered", "nothing but that file, which is not there")
}
