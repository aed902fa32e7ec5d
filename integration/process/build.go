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

// Build builds the programs, for all tests of a package; Remove removes them.
func Build(ctx context.Context) (*Programs, error) {
	dir, err := os.MkdirTemp("", "quern-integration-")
	if err != nil {
		return nil, err
	}
	p := &Programs{
		Quern: filepath.Join(dir, "quern"), Ingest: filepath.Join(dir, "ingest"), Aggregator: filepath.Join(dir, "aggregator"),
		dir: dir,
	}
	build := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", dir}, buildFlags...), "github.com/quern/quern/cmd/...")...)
	if out, err := build.CombinedOutput(); err != nil {
		p.Remove()
		return nil, fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return p, nil
}

// Remove removes what Build has made.
func (p *Programs) Remove() {
	// What is left in the directory of temporary files, others clean up.
	_ = os.RemoveAll(p.dir)
}
