// Package breaks holds no code: its test breaks each invariant of docs/architecture.md on purpose,
// in several ways, and checks that a test catches each break. So it finds breaks that would go
// unnoticed.
//
// A break is a line or two of source, replaced in a copy that `go test -overlay` builds instead of
// the file: the tree stays unchanged. A break is small enough for a reader to agree that it breaks
// the invariant. A test of a nearby package catches it within seconds. Breaks of the protocol that
// show only in some order of several workers' steps are in integration/explore (mutants_test.go),
// between a worker and its store, and are not repeated here.
//
// If an entry of the list is out of date, because its line has changed, the test says so. Then
// change the entry, or remove it and give the reason.
package breaks

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// brk is one deliberate break.
type brk struct {
	name string
	// invariant is its number in docs/architecture.md.
	invariant int
	// file contains old exactly once; the break replaces old by new.
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

// run runs the tests of a package that match pattern, with more arguments, and returns their
// output.
func run(t *testing.T, pkg, pattern string, args ...string) (out string, passed bool) {
	t.Helper()
	args = append([]string{"test", "-count=1", "-vet=off", "-v", "-tags=invariants", "-timeout=" + limit, "-run=" + pattern}, args...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+pkg)...)
	cmd.Dir = root
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
// internal/invariants.
func TestBreaks(t *testing.T) {
	byPackage := map[string][]brk{}
	for _, b := range list {
		byPackage[b.pkg] = append(byPackage[b.pkg], b)
	}
	for pkg, breaks := range byPackage {
		t.Run(pkg, func(t *testing.T) {
			t.Parallel()
			ok := t.Run("unbroken", func(t *testing.T) {
				var patterns []string
				for _, b := range breaks {
					patterns = append(patterns, pattern(b.test))
				}
				out, passed := run(t, pkg, strings.Join(patterns, "|"))
				require.True(t, passed, "%s", out)
				for _, b := range breaks {
					require.True(t, ended(out, "PASS", b.test), "there is no test %s:\n%s", b.test, out)
				}
			})
			if !ok {
				return
			}
			for _, b := range breaks {
				t.Run(b.name, func(t *testing.T) {
					out, passed := run(t, pkg, pattern(b.test), "-overlay="+b.overlay(t))
					require.False(t, passed, "nothing notices it")
					require.NoError(t, caught(out, b.test), "%s", out)
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

// overlay writes the broken copy of the file. It returns the name of the overlay file that makes
// the go command build the copy.
func (b *brk) overlay(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(root, b.file))
	require.NoError(t, err)
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(source), b.old), "the break is out of date: %s has this not once:\n%s", b.file, b.old)

	dir := t.TempDir()
	broken := filepath.Join(dir, filepath.Base(file))
	require.NoError(t, os.WriteFile(broken, []byte(strings.Replace(string(source), b.old, b.new, 1)), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: broken}})
	require.NoError(t, err)
	name := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(name, overlay, 0o600))
	return name
}

var rewrite = flag.Bool("rewrite", false, "rewrite the list of docs/reliability.md")

// TestPage compares the list in docs/reliability.md with this one. Every invariant has several
// entries.
func TestPage(t *testing.T) {
	const name = root + "/docs/reliability.md"
	const begin, end = "<!-- The list of integration/breaks. -->\n", "<!-- The list ends. -->\n"
	table := "| invariant | break | caught by |\n| --- | --- | --- |\n"
	count := map[int]int{}
	for _, b := range list {
		count[b.invariant]++
		table += fmt.Sprintf("| %d | %s | `%s` %s |\n", b.invariant, b.name, b.pkg, b.test)
	}
	for invariant := 1; invariant <= 7; invariant++ {
		require.Greater(t, count[invariant], 2, "invariant %d", invariant)
	}

	page, err := os.ReadFile(name)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if want := before + begin + table + end + after; *rewrite {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	} else {
		require.Equal(t, want, string(page), "go test ./integration/breaks -run TestPage -rewrite puts it right")
	}
}
