// Package breaks holds no code: its test breaks each invariant of docs/architecture.md on purpose,
// in several ways, and checks that a test catches each break. So it finds breaks that would go
// unnoticed.
//
// A break is a line or two within a function. `go test -overlay` builds a copy of the file that has
// the function with and without the break: the tree stays unchanged. A break is small enough for a
// reader to agree that it breaks the invariant. A test of a nearby package catches it within seconds.
//
// If an entry of the list is out of date, because its line has changed, the test says so. Then
// change the entry, or remove it and give the reason.
package breaks

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// brk is one deliberate break.
type brk struct {
	name string
	// invariant is its number in docs/architecture.md.
	invariant int
	// file contains old exactly once; the break replaces old by new, within one function.
	file     string
	old, new string
	// test of package pkg must fail with the break, and pass without it. It may be a subtest, such
	// as "TestModel/Straggler".
	pkg, test string
}

const root = "../.."

// pattern returns the -run pattern for exactly one test.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	return strings.Join(parts, "/")
}

// limit is far above the duration of any of the tests. A break that makes a test hang does not
// count as caught.
const limit = "2m"

// run runs the tests of a package that match pattern, whole or with a break, from the directory of
// build, and returns their output.
func run(t *testing.T, dir, pkg, pattern, broken string) (out string, passed bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, filepath.Base(pkg)+".test"),
		"-test.paniconexit0", "-test.v", "-test.timeout="+limit, "-test.run="+pattern)
	cmd.Dir = filepath.Join(root, pkg)
	cmd.Env = append(os.Environ(), envBreak+"="+broken)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return string(b), err == nil
}

// ended reports whether a test ended with the given word, PASS or FAIL.
func ended(out, word, test string) bool {
	return regexp.MustCompile(`(?m)^ *--- ` + word + `: ` + regexp.QuoteMeta(test) + ` \(`).MatchString(out)
}

// TestBreaks: each break is caught by an assertion of the named test, or by one of
// internal/treecheck/invariants.
func TestBreaks(t *testing.T) {
	dir := build(t)
	byPackage := map[string][]int{}
	for i, b := range list {
		byPackage[b.pkg] = append(byPackage[b.pkg], i)
	}
	for pkg, breaks := range byPackage {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			ok := t.Run("unbroken", func(t *testing.T) {
				var patterns []string
				for _, i := range breaks {
					patterns = append(patterns, pattern(list[i].test))
				}
				out, passed := run(t, dir, pkg, strings.Join(patterns, "|"), "")
				require.True(t, passed, "%s", out)
				for _, i := range breaks {
					require.True(t, ended(out, "PASS", list[i].test), "there is no test %s:\n%s", list[i].test, out)
				}
			})
			if !ok {
				return
			}
			for _, i := range breaks {
				t.Run(list[i].name, func(t *testing.T) {
					t.Parallel()
					out, passed := run(t, dir, pkg, pattern(list[i].test), strconv.Itoa(i))
					require.False(t, passed, "nothing notices it")
					require.NoError(t, caught(out, list[i].test), "%s", out)
				})
			}
		})
	}
}

// caught returns why a failed test has not caught the break. A failed assertion may leave
// goroutines behind, and testing/synctest then panics.
func caught(out, test string) error {
	before, _, panics := strings.Cut(out, "panic: ")
	switch {
	case strings.Contains(out, "panic: test timed out"):
		return errors.New("the test hangs")
	case strings.Contains(out, "panic: invariant broken: "):
		return nil
	case panics && !strings.Contains(before, "Error Trace:"):
		return errors.New("the test panics, and no assertion fails")
	case !panics && !ended(out, "FAIL", test):
		return errors.New("the test has not failed, and has perhaps not been built")
	}
	return nil
}

// TestEveryInvariantIsBroken: every invariant has several entries.
func TestEveryInvariantIsBroken(t *testing.T) {
	count := map[int]int{}
	for _, b := range list {
		count[b.invariant]++
	}
	for invariant := 1; invariant <= 7; invariant++ {
		require.Greater(t, count[invariant], 2, "invariant %d", invariant)
	}
}
