package integration

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/integration/process"
)

// disk is a file system for a server's data.
type disk struct {
	// dir is its path for the test, inside its path for the server.
	dir, inside string
	// enter is the command that runs another command where the disk is mounted; empty if it is
	// mounted here.
	enter []string
	// program replaces the usual program.
	program string
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

// goOn does what an operator does after a full disk: it frees space, and restarts the server if it
// has ended for lack of space. It returns the server when it is ready.
func (d *disk) goOn(t *testing.T, p *process.Process, args ...string) *process.Process {
	t.Helper()
	assert.NoError(t, os.Remove(d.filler()))
	process.Eventually(t, "the server to serve or to end", func() error {
		select {
		case <-p.Ended:
			p = d.serve(t, args...)
			return nil
		default:
		}
		if !strings.Contains(p.Stderr.String(), "msg=serving") {
			return errors.New("it is still starting")
		}
		return nil
	})
	p.Ready()
	return p
}

// serve starts a server on the disk.
func (d *disk) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, d.command(t, args...))
}

// serveAt is serve with a wrong clock. It needs a program that supports one.
func (d *disk) serveAt(t *testing.T, offset time.Duration, args ...string) *process.Process {
	t.Helper()
	cmd := d.command(t, args...)
	cmd.Env = []string{"QUERN_CLOCK_OFFSET=" + offset.String()}
	return process.Start(t, cmd)
}

func (d *disk) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := slices.Concat(d.enter, []string{cmp.Or(d.program, binary)}, serveArgs(filepath.Join(d.inside, "data"), args...))
	return exec.CommandContext(t.Context(), command[0], command[1:]...)
}
