// Package integration holds the program itself to what it promises: its real binary, real
// sockets, signals, files and time. What can be tested within one process is tested
// where it lives; here is what only shows from outside.
package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// buildFlags are those that the test itself was built with, as far as they matter: so
// the packages are in the build cache, and the program is checked as the test is.
var buildFlags []string

// The programs under test. Most of what is tested is in the first.
var binary, ingestBinary, aggregatorBinary string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "quern-integration-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left in the directory of temporary files, others clean up
	binary, ingestBinary, aggregatorBinary = filepath.Join(dir, "quern"), filepath.Join(dir, "ingest"), filepath.Join(dir, "aggregator")
	build := exec.CommandContext(context.Background(), "go", append(append([]string{"build", "-o", dir}, buildFlags...), "github.com/quern/quern/cmd/...")...)
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return m.Run(), nil
}

// limit is how long anything is waited for before it counts as not happening. A
// loaded machine under the race detector is slow; a test that succeeds does not wait.
const limit = time.Minute

// eventually polls until try succeeds, and fails the test with try's last error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "waited %s for: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// output is what a process has written so far.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a running program.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout output
	stderr output
	ended  chan struct{}
	url    string // of a server
}

// start starts the program. It does not outlive the test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.CommandContext(t.Context(), binary, args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "QUERN_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	require.NoError(t, cmd.Start())
	go func() {
		// The exit code is in ProcessState.
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:", "invariant"} {
			if strings.Contains(p.stderr.String(), bad) {
				t.Errorf("%q in what the program wrote", bad)
			}
		}
		if t.Failed() {
			t.Logf("%s wrote to standard error:\n%s", cmd, tail(p.stderr.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 8 << 10
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}

// signal sends a signal to this process and no other.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// kill ends the process as a power cut would, as far as a process can tell.
func (p *process) kill() {
	// It may have ended already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// exitCode waits for the end; it is -1 when a signal was the end.
func (p *process) exitCode() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		require.Fail(p.t, "the program goes on", "%s", p.cmd)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop ends the process as an operator would.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	require.Equal(p.t, 0, p.exitCode(), "exit code after SIGTERM")
}

// wrote waits until the program has logged what matches, and returns the submatches.
func (p *process) wrote(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	eventually(p.t, pattern, func() error {
		if found = re.FindStringSubmatch(p.stderr.String()); found != nil {
			return nil
		}
		select {
		case <-p.ended:
			require.Fail(p.t, "the program has ended", "%s: exit code %d, without: %s\n%s",
				p.cmd, p.cmd.ProcessState.ExitCode(), pattern, tail(p.stderr.String()))
		default:
		}
		return errors.New("not written yet")
	})
	return found
}

// seconds is a ladder on which a day passes in four seconds.
var seconds = []string{"--rollups", "1s,2s,4s", "--aggregation-delay", "300ms", "--late-grace", "100ms", "--group-commit", "5ms"}

var secondsLadder = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}

// serve starts a server on a port of its own and waits until it is ready.
func serve(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	p := start(t, serveArgs(dir, args...)...)
	p.ready()
	return p
}

func serveArgs(dir string, args ...string) []string {
	return append([]string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dir, "--host-metrics=false"}, args...)
}

func (p *process) ready() {
	p.t.Helper()
	p.url = "http://" + p.wrote(`msg=serving address=(\S+)`)[1]
	eventually(p.t, "readiness", func() error {
		r, err := p.get("/-/ready", nil)
		if err == nil && r.code != 200 {
			err = fmt.Errorf("%d %s", r.code, r.body)
		}
		return err
	})
}

func lookPath(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("no %s on this machine", program)
	}
	return path
}

// dial opens a connection for what no HTTP client would send.
func (p *process) dial() net.Conn {
	p.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(p.t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(p.t, err)
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(limit)))
	p.t.Cleanup(func() { conn.Close() })
	return conn
}
