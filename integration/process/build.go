package process

import (
	"context"
	"errors"
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

// envBuilt names a directory in which packages of tests find the programs that another has built.
// `make test` makes it for one run, so that each variant of the programs is linked once.
const envBuilt = "QUERN_TEST_BUILT"

// Programs holds the paths of the programs under test.
type Programs struct {
	Quern, Ingest, Aggregator string

	dir    string    // the directory to remove, if others do not use it
	others *Programs // set once they are built
	faulty func() (*Programs, error)
}

// Faulty returns the programs built with the tag faults. Environment variables then make requests
// to Cassandra fail and the clock be wrong: see internal/storage/cassandra and internal/clock.
func (p *Programs) Faulty() (*Programs, error) { return p.faulty() }

// Tests are the tests of a package that take the programs.
type Tests struct {
	M   interface{ Run() int } // *testing.M, or what runs it
	Use func(*Programs)        // gets the programs before the tests run
}

// Run builds the programs, runs the tests, removes the programs and returns the exit code.
func (t Tests) Run() int {
	programs, err := build(context.Background(), buildTags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer programs.remove()
	t.Use(programs)
	return t.M.Run()
}

func build(ctx context.Context, tags []string) (*Programs, error) {
	shared := os.Getenv(envBuilt)
	dir := filepath.Join(shared, strings.Join(slices.Concat([]string{"programs"}, buildFlags, tags), "-"))
	if _, err := os.Stat(dir); shared == "" || err != nil {
		made, err := os.MkdirTemp(shared, "quern-integration-")
		if err != nil {
			return nil, err
		}
		if err := buildInto(ctx, made, tags); err != nil {
			return nil, errors.Join(err, os.RemoveAll(made))
		}
		// The directory gets its name when it is complete. If another package was faster, this one
		// keeps its own.
		if shared == "" || os.Rename(made, dir) != nil {
			dir = made
		}
	}
	p := &Programs{
		Quern: filepath.Join(dir, "quern"), Ingest: filepath.Join(dir, "ingest"), Aggregator: filepath.Join(dir, "aggregator"),
	}
	if shared == "" {
		p.dir = dir
	}
	// Built on demand, since most tests do not need them.
	p.faulty = sync.OnceValues(func() (*Programs, error) {
		others, err := build(ctx, append(slices.Clone(tags), "faults"))
		p.others = others
		return others, err
	})
	return p, nil
}

func buildInto(ctx context.Context, dir string, tags []string) error {
	// Each build links the programs anew. Without what only debuggers read, that takes half as long.
	args := slices.Concat([]string{"build", "-ldflags=-w", "-o", dir}, buildFlags)
	if len(tags) > 0 {
		args = append(args, "-tags="+strings.Join(tags, ","))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/quern/quern/cmd/...")...)
	// Tests of another module know Quern's, but not what its programs are built from.
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f={{.Dir}}", "github.com/quern/quern").Output()
	if err != nil {
		return fmt.Errorf("where Quern's module is: %w", err)
	}
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

func (p *Programs) remove() {
	// The system cleans up what is left in the directory of temporary files.
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
	if p.others != nil {
		p.others.remove()
	}
}
