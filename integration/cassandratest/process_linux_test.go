package cassandratest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func startTestProcess(t *testing.T, command ...string) (p *process, log string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "of the process")
	require.NoError(t, os.Mkdir(dir, 0o755))
	log = filepath.Join(dir, "log")
	p, err := startProcess(dir, log, command...)
	require.NoError(t, err)
	t.Cleanup(p.kill)
	return p, log
}

func awaitEnd(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		require.Fail(t, "the process goes on")
	}
}

// TestProcessEndsWithItsParent does to the process what the kernel does when the parent ends.
func TestProcessEndsWithItsParent(t *testing.T) {
	p, _ := startTestProcess(t, "sleep", "1000")
	require.NoError(t, p.watch.Close())
	awaitEnd(t, p)
	require.Equal(t, "signal: killed", p.state())
}

// TestFilesEndWithTheParent: what a test that was killed leaves behind takes no memory.
func TestFilesEndWithTheParent(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o644))
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", watched, dir, "sleep", "1000")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, stdin.Close())
	require.ErrorContains(t, cmd.Wait(), "signal: killed")
	require.Eventually(t, func() bool { return !exists(dir) }, time.Minute, poll)
}

// TestDataDir: where memory does not hold the files of all nodes, none are there.
func TestDataDir(t *testing.T) {
	require.Equal(t, os.TempDir(), dataDir(1<<20))
	require.Positive(t, availableMemory())
}

func TestProcessEndsByItself(t *testing.T) {
	p, log := startTestProcess(t, "sh", "-c", "echo written; exit 3")
	awaitEnd(t, p)
	require.Equal(t, "exit status 3", p.state())
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "written\n", string(text))
}

func TestPausedProcessIsKilled(t *testing.T) {
	p, _ := startTestProcess(t, "sleep", "1000")
	require.NoError(t, p.pause())
	p.kill()
	p.kill()
	require.Equal(t, "signal: killed", p.state())
	require.Error(t, p.resume())
}
