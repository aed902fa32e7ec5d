package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "example.org/p"

// verdict judges what go test writes.
func verdict(t *testing.T, must []string, lines ...string) (problems []string, printed string, c count) {
	t.Helper()
	var out strings.Builder
	j := newJudge(&out, []string{"no small disk"}, must)
	require.NoError(t, j.read(strings.NewReader(strings.Join(lines, "\n")+"\n")))
	return j.end(), out.String(), j.count
}

func TestWhatIsGreen(t *testing.T) {
	problems, printed, c := verdict(t, []string{"TestA"},
		`{"Action":"start","Package":"example.org/p"}`,
		`{"Action":"run","Package":"example.org/p","Test":"TestA"}`,
		`{"Action":"output","Package":"example.org/p","Test":"TestA","Output":"a secret\n"}`,
		`{"Action":"pass","Package":"example.org/p","Test":"TestA/one","Elapsed":0}`,
		`{"Action":"pass","Package":"example.org/p","Test":"TestA","Elapsed":0}`,
		`{"Action":"output","Package":"example.org/p","Test":"TestB","Output":"    b_test.go:3: no small disk here\n"}`,
		`{"Action":"skip","Package":"example.org/p","Test":"TestB","Elapsed":0}`,
		`{"Action":"pass","Package":"example.org/p","Elapsed":0.5}`,
		`{"Action":"skip","Package":"example.org/without_tests","Elapsed":0}`)
	assert.Empty(t, problems)
	assert.Equal(t, count{passed: 2, skipped: 1}, c)
	assert.Contains(t, printed, module)
	assert.NotContains(t, printed, "secret", "what passes is quiet")
}

func TestWhatAGreenRunHides(t *testing.T) {
	for name, c := range map[string]struct {
		must  []string
		lines []string
		want  string
	}{
		"an unlisted reason": {nil, []string{
			`{"Action":"output","Package":"example.org/p","Test":"TestB","Output":"not today\n"}`,
			`{"Action":"skip","Package":"example.org/p","Test":"TestB"}`,
			`{"Action":"pass","Package":"example.org/p"}`,
		}, "example.org/p TestB left itself out"},
		"no test":                    {nil, []string{`{"Action":"pass","Package":"example.org/p"}`}, "example.org/p: no test ran"},
		"a test that was not run":    {[]string{"TestA"}, []string{`{"Action":"pass","Package":"example.org/p","Test":"TestB"}`}, "TestA has not passed"},
		"a required test that skips": {[]string{"TestA"}, []string{`{"Action":"output","Package":"example.org/p","Test":"TestA","Output":"no small disk\n"}`, `{"Action":"skip","Package":"example.org/p","Test":"TestA"}`}, "TestA has not passed"},
	} {
		t.Run(name, func(t *testing.T) {
			problems, _, _ := verdict(t, c.must, c.lines...)
			require.NotEmpty(t, problems)
			assert.Contains(t, problems[0], c.want)
		})
	}
}

func TestWhatFails(t *testing.T) {
	problems, printed, c := verdict(t, nil,
		`{"Action":"output","Package":"example.org/p","Test":"TestA","Output":"wrong sum\n"}`,
		`{"Action":"fail","Package":"example.org/p","Test":"TestA"}`,
		`{"Action":"output","Package":"example.org/p","Test":"TestHangs","Output":"panic: test timed out\n"}`,
		`{"Action":"fail","Package":"example.org/p"}`,
		`{"ImportPath":"example.org/q","Action":"build-output","Output":"q.go:1: syntax error\n"}`,
		`{"Action":"fail","Package":"example.org/q"}`,
		`go: no such thing`)
	assert.Equal(t, []string{"example.org/p TestA", "example.org/p", "example.org/q"}, problems)
	assert.Equal(t, 1, c.failed)
	for _, text := range []string{"wrong sum", "test timed out", "syntax error", "no such thing"} {
		assert.Contains(t, printed, text)
	}
}

func TestSummary(t *testing.T) {
	p := func(name string) part { return part{Name: name} }
	for _, c := range []struct {
		results []result
		code    int
		lines   []string
	}{
		{[]result{{part: p("unit"), count: count{passed: 3, skipped: 1}}}, 0, []string{"unit         ok", "3 passed, 0 failed, 1 skipped"}},
		{
			[]result{{part: p("unit"), count: count{passed: 3}}, {part: p("page"), missing: []need{chromium}}},
			0,
			[]string{"page         left out: no Chromium", "needs: apt-get install chromium", "passed what ran; 1 of 2 parts were left out", "3 passed, 0 failed, 0 skipped"},
		},
		{[]result{{part: p("page"), missing: []need{chromium}, failed: true}}, 1, []string{"page         FAILED: no Chromium", "0 passed, 1 failed, 0 skipped"}},
		{[]result{{part: p("unit"), count: count{passed: 1, failed: 2}, failed: true}}, 1, []string{"unit         FAILED", "1 passed, 2 failed, 0 skipped"}},
	} {
		var out strings.Builder
		assert.Equal(t, c.code, summarize(&out, c.results))
		for _, line := range c.lines {
			assert.Contains(t, out.String(), line)
		}
	}
}

func TestRequirements(t *testing.T) {
	required, err := requirements("cassandra, chromium")
	require.NoError(t, err)
	assert.Len(t, required, 2)
	_, err = requirements("casandra")
	require.ErrorContains(t, err, `there is no "casandra", only race, cassandra,`)
	none, err := requirements("")
	require.NoError(t, err)
	assert.Empty(t, none)
}

// TestInterrupt: nothing is left of an interrupted run, not even what ignores interrupts, as what a shell has in the
// background does.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\n(echo started; exec sleep 3000) &\nwait\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	from, to, err := os.Pipe()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer to.Close()
		r := runner{out: to, env: os.Environ()}
		_, problems := r.run(ctx, goRun{Vet: true})
		fmt.Fprint(to, problems)
	}()
	lines := bufio.NewReader(from)
	_, err = lines.ReadString('\n')
	require.NoError(t, err)
	cancel()
	rest, err := io.ReadAll(lines) // until nobody is left who could write
	require.NoError(t, err)
	assert.Contains(t, string(rest), "go vet: ")
}

func TestNoPackageHasTheTests(t *testing.T) {
	_, err := goRun{Packages: []string{"."}, Only: []string{"TestMistyped"}}.packages(t.Context())
	require.ErrorContains(t, err, `no package has the tests: ["."] without [], tests ["TestMistyped"]`)
}

// TestNamesExist: a name that is mistyped here, or a test that was renamed, would be left out or run by accident.
func TestNamesExist(t *testing.T) {
	exists := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		names, err := testsIn(path)
		for _, name := range names {
			exists[name] = true
		}
		return err
	}))
	for _, name := range slices.Concat(sweeps, costs, linears, concurrent) {
		assert.Contains(t, exists, name)
	}
	for _, target := range targets {
		for _, p := range target.Parts {
			for _, r := range p.Runs {
				for _, dir := range slices.Concat(r.Packages, r.Except) {
					dir = strings.TrimSuffix(dir, "/...")
					assert.DirExists(t, filepath.Join("../..", r.Dir, dir), "%s %s", target.Name, p.Name)
				}
			}
		}
	}
}
