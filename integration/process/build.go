package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// The flags and tags that the test itself was built with, as far as they matter. So the packages
// are in the build cache, and the program is checked as the test is.
var buildFlags, buildTags []string

// Programs holds the paths of the programs under test.
type Programs struct {
	Quern, Ingest, Aggregator string

	dir    string
	others *Programs // set once they are built
	faulty func() (*Programs, error)
}

// Faulty returns the programs built with the tag faults. Environment variables then make requests
// to Cassandra fail and the clock be wrong: see internal/storage/cassandra and internal/clock.
func (p *Programs) Faulty() (*Programs, error) { return p.faulty() }

// Main builds the programs, runs the tests of a package with them, and returns the exit code.
func Main(run func(*Programs) int) int {
	programs, err := build(context.Background(), buildTags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer programs.remove()
	return run(programs)
}

func build(ctx context.Context, tags []string) (*Programs, error) {
	dir, err := os.MkdirTemp("", "quern-integration-")
	if err != nil {
		return nil, err
	}
	p := &Programs{
		Quern: filepath.Join(dir, "quern"), Ingest: filepath.Join(dir, "ingest"), Aggregator: filepath.Join(dir, "aggregator"),
		dir: dir,
	}
	// Each package links the programs anew. Without what only debuggers read, that takes half as long.
	args := slices.Concat([]string{"build", "-ldflags=-w", "-o", dir}, buildFlags)
	if len(tags) > 0 {
		args = append(args, "-tags="+strings.Join(tags, ","))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/quern/quern/cmd/...")...)
	// Tests of another module know Quern's, but not what its programs are built from.
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f={{.Dir}}", "github.com/quern/quern").Output()
	if err != nil {
		p.remove()
		return nil, fmt.Errorf("where Quern's module is: %w", err)
	}
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.remove()
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	// Built on demand, since most tests do not need them.
	p.faulty = sync.OnceValues(func() (*Programs, error) {
		others, err := build(ctx, append(slices.Clone(tags), "faults"))
		p.others = others
		return others, err
	})
	return p, nil
}

func (p *Programs) remove() {
	// The system cleans up what is left in the directory of temporary files.
	_ = os.RemoveAll(p.dir)
	if p.others != nil {
		p.others.remove()
	}
}
