package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// buildFlags are those that the test itself was built with, as far as they matter: so
// the packages are in the build cache, and the program is checked as the test is.
var buildFlags []string

// Programs are the paths of the programs under test.
type Programs struct {
	Quern, Ingest, Aggregator string

	dir string
}

// Main builds the programs, has the tests of a package run with them, and returns the exit code.
func Main(run func(*Programs) int) int {
	programs, err := build(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer programs.remove()
	return run(programs)
}

func build(ctx context.Context) (*Programs, error) {
	dir, err := os.MkdirTemp("", "quern-integration-")
	if err != nil {
		return nil, err
	}
	p := &Programs{
		Quern: filepath.Join(dir, "quern"), Ingest: filepath.Join(dir, "ingest"), Aggregator: filepath.Join(dir, "aggregator"),
		dir: dir,
	}
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", dir}, buildFlags...), "github.com/quern/quern/cmd/...")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.remove()
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return p, nil
}

func (p *Programs) remove() {
	// What is left in the directory of temporary files, others clean up.
	_ = os.RemoveAll(p.dir)
}
