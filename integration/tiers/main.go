// Command tiers runs the tests: all of one target, part by part, as `make test` and `make test-…` do.
//
// Tier one is what every change must pass: minutes, with the same answer every time. Tier two is everything that takes
// longer, in targets that are run by name. targets.go holds what runs where; CONTRIBUTING.md says when to run which.
//
// A part that lacks something, such as Chromium, is left out, and the last lines say what installs it.
// QUERN_REQUIRE=race,cassandra,chromium makes each of these missing a failure. What runs may leave nothing out by
// itself: a test that skips for a reason that is not listed, a package in which no test runs, and a test that has to
// pass and did not are failures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: bin/tiers TARGET

Runs the tests of one target, from the root of the repository. Targets:

`

func main() {
	// The tests are in a process group of their own, so what ends a program at a terminal has to be passed on.
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	code, err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiers:", err)
	}
	os.Exit(code)
}

// run returns the exit code: 0 if all that ran has passed, 1 if something failed, 2 for bad usage.
func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		fmt.Fprint(out, usage)
		for _, t := range targets {
			fmt.Fprintf(out, "  %-10s %s\n", t.Name, t.Shows)
		}
		return 2, nil
	}
	i := slices.IndexFunc(targets, func(t target) bool { return t.Name == args[0] })
	if i < 0 {
		return 2, fmt.Errorf("no target %q: tiers without arguments lists them", args[0])
	}
	required, err := requirements(os.Getenv(envRequire))
	if err != nil {
		return 2, err
	}
	// Packages find the programs that another has built here, so that each variant is linked once.
	built, err := os.MkdirTemp("", "quern-tests-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(built) //nolint:errcheck // the system cleans up what is left
	r := runner{out: out, env: append(os.Environ(), "QUERN_TEST_BUILT="+built)}
	var results []result
	for _, p := range targets[i].Parts {
		if err := ctx.Err(); err != nil {
			return 1, errors.New("interrupted")
		}
		results = append(results, r.part(ctx, p, required))
	}
	return summarize(out, results), nil
}

// result is how a part ended.
type result struct {
	part    part
	took    time.Duration
	count   count
	failed  bool
	missing []need // what it was left out for; a part that QUERN_REQUIRE asks for has failed too
}

// summarize prints a line for each part, what would install the missing, and the counts, and returns the exit code.
func summarize(out io.Writer, results []result) int {
	var all count
	var missing []need
	failed, left := 0, 0
	fmt.Fprintln(out)
	for _, r := range results {
		all.add(r.count)
		state := "ok"
		switch {
		case r.failed:
			failed++
			state = "FAILED"
		case len(r.missing) > 0:
			left++
			state = "left out"
		}
		if len(r.missing) > 0 {
			var what []string
			for _, n := range r.missing {
				what = append(what, n.lacks)
				if !slices.ContainsFunc(missing, func(m need) bool { return m.name == n.name }) {
					missing = append(missing, n)
				}
			}
			fmt.Fprintf(out, "%-12s %s: %s", r.part.Name, state, strings.Join(what, ", "))
			if r.took > 0 {
				fmt.Fprintf(out, "; %d tests ran without", r.count.passed)
			}
			fmt.Fprintln(out)
			continue
		}
		fmt.Fprintf(out, "%-12s %-8s %4.0f s", r.part.Name, state, r.took.Seconds())
		if r.count.passed > 0 {
			fmt.Fprintf(out, "   %d tests", r.count.passed)
		}
		fmt.Fprintln(out)
	}
	var packages []string
	for _, n := range missing {
		packages = append(packages, n.packages...)
	}
	if len(packages) > 0 {
		slices.Sort(packages)
		fmt.Fprintf(out, "what was left out needs: apt-get install %s\n", strings.Join(slices.Compact(packages), " "))
	}
	if failed == 0 && left > 0 {
		fmt.Fprintf(out, "passed what ran; %d of %d parts were left out\n", left, len(results))
	}
	// A part can fail without a failed test: vet, a package that does not build, something required that is missing.
	if failed > 0 && all.failed == 0 {
		all.failed = failed
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped)
	if failed > 0 {
		return 1
	}
	return 0
}
