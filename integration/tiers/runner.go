package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tags are those that all tests are built with: assertions of the numbered invariants are compiled in only under this.
const tags = "invariants"

// timeout is the default of goRun.Timeout.
const timeout = "20m"

// runner runs parts.
type runner struct {
	out io.Writer
	env []string
}

// part runs one part, unless something is missing for it.
func (r *runner) part(ctx context.Context, p part, required []need) result {
	res := result{part: p}
	for _, n := range p.Needs {
		if !n.here(ctx) {
			res.missing = append(res.missing, n)
			res.failed = res.failed || slices.ContainsFunc(required, func(m need) bool { return m.name == n.name })
		}
	}
	plain := p.Plain && len(res.missing) == 1 && res.missing[0].name == race.name
	if len(res.missing) > 0 && !plain {
		return res
	}
	fmt.Fprintf(r.out, "--- %s: %s\n", p.Name, p.Shows)
	begin := time.Now()
	for _, t := range p.Runs {
		t.Race = t.Race && !plain
		c, problems := r.run(ctx, t)
		res.count.add(c)
		for _, problem := range problems {
			fmt.Fprintf(r.out, "failed: %s\n", problem)
			res.failed = true
		}
	}
	res.took = time.Since(begin)
	return res
}

// run runs go once, and returns what is wrong.
func (r *runner) run(ctx context.Context, t goRun) (count, []string) {
	args, err := t.arguments(ctx)
	if err != nil {
		return count{}, []string{err.Error()}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = t.Dir
	// Only the race detector needs cgo, and without it everything is as in what is released.
	cgo := "CGO_ENABLED=0"
	if t.Race {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = slices.Concat(r.env, t.Env, []string{cgo})
	cmd.Stderr = r.out
	// go ends no test program, but waits for it. So the whole group gets the interrupt, as it would at a terminal: go, test
	// programs, and what these have started. Only Cassandra is outside: a node ends when its test program does, and
	// testcontainers removes a container.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	defer func() {
		if ctx.Err() != nil && cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // go has ended; mostly nobody is left
		}
	}()
	j := newJudge(r.out, reasons, t.Must)
	if t.Vet {
		cmd.Stdout = r.out
		if err := cmd.Run(); err != nil {
			return count{}, []string{fmt.Sprintf("go vet: %v", err)}
		}
		return count{}, nil
	}
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return count{}, []string{err.Error()}
	}
	err = errors.Join(j.read(events), cmd.Wait())
	problems := j.end()
	if err != nil && len(problems) == 0 {
		problems = []string{fmt.Sprintf("go %s: %v", strings.Join(args, " "), err)}
	}
	return j.count, problems
}

// arguments returns those for go.
func (t goRun) arguments(ctx context.Context) ([]string, error) {
	if t.Vet {
		return []string{"vet", "-tags", tags, "./..."}, nil
	}
	// -count=1, because tests build the programs themselves: go does not see that they depend on them. -vet=off, because
	// all of vet is a part. Without what only debuggers read, a test program is linked in two thirds of the time.
	args := []string{"test", "-json", "-count=1", "-vet=off", "-ldflags=-w", "-tags", tags, "-timeout", cmp.Or(t.Timeout, timeout)}
	if t.Race {
		args = append(args, "-race")
	}
	if t.Short {
		args = append(args, "-short")
	}
	if t.Serial {
		args = append(args, "-p", "1", "-parallel", "1")
	}
	if len(t.Only) > 0 {
		args = append(args, "-run", anyOf(t.Only))
	}
	if len(t.Skip) > 0 {
		args = append(args, "-skip", anyOf(t.Skip))
	}
	packages, err := t.packages(ctx)
	args = append(args, packages...)
	if len(t.Args) > 0 {
		args = append(append(args, "-args"), t.Args...)
	}
	return args, err
}

// packages lists the packages that have tests to run.
func (t goRun) packages(ctx context.Context) ([]string, error) {
	if len(t.Except) == 0 && len(t.Only) == 0 {
		return t.Packages, nil
	}
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{.Dir}}"}, t.Packages...)...)
	list.Dir = t.Dir
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	here, err := filepath.Abs(t.Dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dir := range strings.Fields(string(text)) {
		rel, err := filepath.Rel(here, dir)
		if err != nil {
			return nil, err
		}
		path := "./" + filepath.ToSlash(rel)
		if slices.Contains(t.Except, path) {
			continue
		}
		names, err := testsIn(dir)
		if err != nil {
			return nil, err
		}
		if len(t.Only) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(t.Only, name) }) {
			out = append(out, path)
		}
	}
	if len(out) == 0 { // go would test the current directory
		return nil, fmt.Errorf("no package has the tests: %q without %q, tests %q", t.Packages, t.Except, t.Only)
	}
	return out, nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testsIn returns the names of a package's tests.
func testsIn(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names, nil
}

// anyOf returns an expression for exactly these tests, with all of their subtests.
func anyOf(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }
