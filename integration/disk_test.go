package integration

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

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

// serve starts a server on it.
func (d *disk) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	command := slices.Concat(d.enter, []string{binary}, serveArgs(filepath.Join(d.inside, "data"), args...))
	return process.Start(t, exec.CommandContext(t.Context(), command[0], command[1:]...))
}
