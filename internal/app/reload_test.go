//go:build unix

package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/bcrypt"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire"
)

// reloaded is a server with files that can be changed.
type reloaded struct {
	*server
	t    *testing.T
	addr string
	logs lockedBuffer
	done chan struct{} // receives after a reload that is logged
}

// tells is a handler that tells of messages about reloads.
type tells struct {
	slog.Handler
	done chan struct{}
}

func (h tells) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if r.Message == "reloaded" {
		h.done <- struct{}{}
	}
	return err
}

func (s *reloaded) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.cfg.DataDir, "..", name)
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// user is a web config file with a user, whose password is right.
func user(t *testing.T, name string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	require.NoError(t, err)
	return "basic_auth_users:\n  " + name + ": " + string(hash) + "\n"
}

func newReloaded(t *testing.T) *reloaded {
	t.Helper()
	s := &reloaded{t: t, done: make(chan struct{}, 10)}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "boards"), 0o700))
	for name, text := range map[string]string{
		"quern.yaml": "log-level: warn\n", "web.yaml": user(t, "admin"), "boards/team.json": `{"format":1,"title":"Team"}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var cfg config.Config
	serve := cli.App{Flags: config.ServeFlags(), Commands: []*cli.Command{{Name: "serve", Flags: config.ServeFlags(), Action: func(c *cli.Context) (err error) {
		cfg, err = config.FromServe(c)
		return err
	}}}}
	require.NoError(t, serve.RunContext(t.Context(), []string{
		"quern", "serve", "--config", filepath.Join(dir, "quern.yaml"), "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"),
		"--host-metrics=false", "--web.config.file", filepath.Join(dir, "web.yaml"), "--dashboards", filepath.Join(dir, "boards"), "--drain-delay", "0s",
	}))
	s.server = newServer(setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clock.System{}, log: slog.New(tells{cfg.Logger(&s.logs).Handler(), s.done})})
	require.NoError(t, s.openWebConfig())
	require.NoError(t, s.openDashboards())
	s.addr, _ = running(t, s.server)
	return s
}

// ask sends a request of the user admin.
func (s *reloaded) ask(method, path, body string) (code int, text string) {
	a, text := call(s.t, http.DefaultClient, method, s.addr+path, body, "admin", "right")
	return a.StatusCode, text
}

// reload asks for a reload that works.
func (s *reloaded) reload() (done wire.Reload) {
	s.t.Helper()
	code, text := s.ask(http.MethodPost, "/-/reload", "")
	require.Equal(s.t, 200, code, text)
	require.NoError(s.t, json.Unmarshal([]byte(text), &done))
	return done
}

// accepted sends a new series, and returns whether it was accepted.
func (s *reloaded) accepted(metric string) bool {
	s.t.Helper()
	code, text := s.ask(http.MethodPost, "/api/v1/reports", `{"source":"a","measurements":[{"metric":"`+metric+`","value":1}]}`)
	var done wire.Report
	require.NoError(s.t, json.Unmarshal([]byte(text), &done))
	require.Equal(s.t, code == 200, done.Accepted == 1, text)
	return code == 200
}

// TestReload: what has changed in a file is in use for the next request, and the answer names what needs a restart.
func TestReload(t *testing.T) {
	s := newReloaded(t)
	require.Equal(t, wire.Reload{Status: wire.Success, Changed: []string{}, NeedsRestart: []string{}}, s.reload())
	require.True(t, s.accepted("a"))
	require.NotContains(t, s.logs.String(), "reloaded", "below the level")

	s.write("quern.yaml", "log-level: info\nmax-series: 1\nquery-timeout: 1s\nlisten: :1\n") // --listen is a flag, which wins
	s.write("boards/team.json", `{"format":1,"title":"Group"}`)
	s.write("web.yaml", user(t, "admin")+user(t, "other")[len("basic_auth_users:\n"):])
	done := s.reload()
	require.Equal(t, []string{"log-level", "max-series"}, done.Changed)
	require.Equal(t, []string{"query-timeout"}, done.NeedsRestart)
	require.False(t, s.accepted("b"))
	require.True(t, s.accepted("a"))
	require.Contains(t, s.logs.String(), "needs_restart=[query-timeout]")
	_, boards := s.ask(http.MethodGet, wire.DashboardsPath, "")
	require.Contains(t, boards, `"Group"`)
	a, _ := call(t, http.DefaultClient, http.MethodGet, s.addr+"/metrics", "", "other", "right")
	require.Equal(t, 200, a.StatusCode)
	require.Empty(t, s.reload().Changed)

	// The role decides.
	_, secret, err := s.tokens.Create(t.Context(), access.NewToken{Name: "t", Roles: access.Read | access.Write})
	require.NoError(t, err)
	a, _ = call(t, http.DefaultClient, http.MethodPost, s.addr+"/-/reload", "", "token", secret)
	require.Equal(t, 403, a.StatusCode)
}

// TestReloadOfBrokenFiles: a file that cannot be used changes nothing, and the answer says where it is wrong.
func TestReloadOfBrokenFiles(t *testing.T) {
	s := newReloaded(t)
	good := map[string]string{"quern.yaml": "log-level: warn\nmax-series: 1\n", "web.yaml": user(t, "admin"), "boards/team.json": `{"format":1,"title":"Team"}`}
	s.write("quern.yaml", good["quern.yaml"])
	s.reload()
	require.True(t, s.accepted("a"))
	for name, c := range map[string]struct{ file, text, want string }{
		"no number":       {"quern.yaml", "max-series: 5\nmax-series-per-source: many\n", `quern.yaml, line 2: max-series-per-source many: must be a whole number`},
		"a wrong value":   {"quern.yaml", "max-series: 5\n\nlog-level: loud\n", `quern.yaml, line 3: --log-level loud: must be debug`},
		"an unknown key":  {"quern.yaml", "max-series: 5\nseries: 7\n", `quern.yaml, line 2: unknown option`},
		"no YAML":         {"quern.yaml", "max-series: 5\n  x: y: z\n", `yaml: line 2`},
		"web config":      {"web.yaml", "basic_auth_users:\n  other: no hash\nwhat: 1\n", "web.yaml: yaml: unmarshal errors:\n  line 3"},
		"settings of TLS": {"web.yaml", user(t, "other") + "http_server_config:\n  http2: false\n", `without a restart`},
		"a dashboard":     {"boards/team.json", `{"format":1,"title":"Group","panel":[]}`, `team.json: `},
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			s.write(c.file, c.text)
			code, text := s.ask(http.MethodPost, "/-/reload", "")
			require.Equal(t, 500, code)
			var failure wire.Error
			require.NoError(t, json.Unmarshal([]byte(text), &failure))
			require.Contains(t, failure.Error, c.want)
			require.False(t, s.accepted("b"))
			_, boards := s.ask(http.MethodGet, wire.DashboardsPath, "")
			require.Contains(t, boards, `"Team"`)
			s.write(c.file, good[c.file])
			require.Empty(t, s.reload().Changed)
		})
	}
}

// TestHangUp: SIGHUP reloads.
func TestHangUp(t *testing.T) {
	s := newReloaded(t)
	s.write("quern.yaml", "log-level: info\nmax-series: 1\n")
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	<-s.done
	require.True(t, s.accepted("a"))
	require.False(t, s.accepted("b"))
}

// TestFilesAreLookedAt: files are read again a few seconds after they have changed, without being asked.
func TestFilesAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, s := t.TempDir(), testServer(t)
		web, board := filepath.Join(dir, "web.yaml"), filepath.Join(dir, "team.json")
		require.NoError(t, os.WriteFile(web, []byte(user(t, "admin")), 0o600))
		s.cfg.WebConfig, s.cfg.Dashboards = web, dir
		require.NoError(t, s.openWebConfig())
		require.NoError(t, s.openDashboards())
		library, err := dashboard.NewLibrary(dashboard.Options{Documents: newSharedStore("1h", s.clk), Clock: s.clk, Files: s.dashboards})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		looking.Go(func() { s.reloads(ctx, nil) })

		require.NoError(t, os.WriteFile(web, []byte(user(t, "other")), 0o600))
		require.NoError(t, os.WriteFile(board, []byte(`{"format":1,"title":"Team"}`), 0o600))
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		_, has := s.web.Fingerprint("other")
		require.True(t, has)
		d, err := library.Get(ctx, "team", 0)
		require.NoError(t, err)
		require.Equal(t, "Team", d.Title)
		cancel()
		looking.Wait()
	})
}
