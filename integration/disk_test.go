package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/integration/process"
)

// disk is a file system for a server's data.
type disk struct {
	// dir is where the test sees it, inside where the server does.
	dir, inside string
	// enter is the command that runs another one where it is mounted; none if that is here.
	enter []string
}

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

// goOn is what an operator does whose server's disk was full: there is room again, and a server that has ended for want
// of it is started again. It returns the server when it is ready.
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

// serve starts a server on it.
func (d *disk) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	command := slices.Concat(d.enter, []string{binary}, serveArgs(filepath.Join(d.inside, "data"), args...))
	return process.Start(t, exec.CommandContext(t.Context(), command[0], command[1:]...))
}
