// Package process runs Quern's programs as processes for tests and talks to them over HTTP.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Limit is how long to wait for anything before it counts as not happening. A loaded machine under
// the race detector is slow; a test that succeeds does not wait.
const Limit = 10 * time.Minute

// Eventually polls until try succeeds, and fails the test with try's last error.
func Eventually(t testing.TB, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(Limit)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "waited %s for: %s", Limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Await returns nil if do returns within Limit. It is for calls that end only when others do their
// part.
func Await(do func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
		return nil
	case <-time.After(Limit):
		return fmt.Errorf("it has not ended within %s", Limit)
	}
}

// Output holds what a process has written so far.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Process is a running program.
type Process struct {
	Cmd            *exec.Cmd
	Stdout, Stderr Output
	// Ended is closed when the process has ended.
	Ended chan struct{}
	// URL is the process's address; Ready sets it.
	URL string

	t testing.TB
}

// Start starts a program. The program ends with the test at the latest. The test fails if the
// program logs a data race, a panic or a broken invariant.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, Cmd: cmd, Ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.Stdout, &p.Stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "QUERN_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	require.NoError(t, cmd.Start())
	go func() {
		// ProcessState holds the exit code.
		_ = cmd.Wait()
		close(p.Ended)
	}()
	t.Cleanup(func() {
		p.Kill()
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:", "invariant"} {
			if strings.Contains(p.Stderr.String(), bad) {
				t.Errorf("%q in what the program wrote", bad)
			}
		}
		if t.Failed() {
			t.Logf("%s wrote to standard error:\n%s", cmd, tail(p.Stderr.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 4 << 10
	if len(s) > most {
		s = "…" + s[len(s)-most:]
	}
	return s
}

// Context returns the test's context.
func (p *Process) Context() context.Context { return p.t.Context() }

// Signal sends a signal to this process only.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.Cmd.Process.Signal(s))
}

// Kill ends the process as a power cut would, as far as possible for a process.
func (p *Process) Kill() {
	// It may have ended already.
	_ = p.Cmd.Process.Kill()
	<-p.Ended
}

// ExitCode waits for the end of the process and returns its exit code, -1 if a signal ended it.
func (p *Process) ExitCode() int {
	p.t.Helper()
	select {
	case <-p.Ended:
	case <-time.After(Limit):
		require.Fail(p.t, "the program goes on", "%s", p.Cmd)
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Stop ends the process as an operator would.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	require.Equal(p.t, 0, p.ExitCode(), "exit code after SIGTERM")
}

// Wrote waits until the program has logged a match of pattern, and returns the submatches.
func (p *Process) Wrote(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	Eventually(p.t, pattern, func() error {
		if found = re.FindStringSubmatch(p.Stderr.String()); found != nil {
			return nil
		}
		select {
		case <-p.Ended:
			require.Fail(p.t, "the program has ended", "%s: exit code %d, without: %s\n%s",
				p.Cmd, p.Cmd.ProcessState.ExitCode(), pattern, tail(p.Stderr.String()))
		default:
		}
		return errors.New("not written yet")
	})
	return found
}

// Ready waits until the program has logged its address and is ready.
func (p *Process) Ready() {
	p.t.Helper()
	p.URL = "http://" + p.Wrote(`msg=serving address=(\S+)`)[1]
	Eventually(p.t, "readiness", func() error {
		r, err := p.Get("/-/ready", nil)
		if err == nil && r.Code != 200 {
			err = fmt.Errorf("%d %s", r.Code, r.Body)
		}
		return err
	})
}

// Dial opens a connection for bytes that no HTTP client would send.
func (p *Process) Dial() net.Conn {
	p.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(p.t.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
	require.NoError(p.t, err)
	require.NoError(p.t, conn.SetDeadline(time.Now().Add(Limit)))
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
