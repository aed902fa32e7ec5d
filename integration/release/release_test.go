// Package release tests what `make release` builds, and the files for containers and clusters.
package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sources = "../.."

// The versions of the tests: one that is released, and one before it.
const (
	version = "9.8.7"
	before  = "9.8.6"
)

var work string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if work, err = os.MkdirTemp("", "quern-release-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(work) //nolint:errcheck // the system cleans up temporary files
		return m.Run()
	}())
}

// build runs `make release` in a copy of the sources, and returns the directory with what it has built.
func build(name, version string) (dist string, err error) {
	dir := filepath.Join(work, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(context.Background(), "bash", "-euo", "pipefail", "-c", `tar -C "$1" --exclude=./bin --exclude=./dist --exclude=node_modules -c . | tar -C "$2" --no-same-owner -x
		make -C "$2" release VERSION="$3" PLATFORMS="$4"`, "build", sources, dir, version, "linux/"+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make release: %w\n%s", err, out)
	}
	return filepath.Join(dir, "dist"), nil
}

var (
	released  = sync.OnceValues(func() (string, error) { return build("a", version) })
	preceding = sync.OnceValues(func() (string, error) { return build("before", before) })
)

// only returns the file of a release that matches a pattern.
func only(t *testing.T, release func() (string, error), pattern string) string {
	t.Helper()
	dist, err := release()
	require.NoError(t, err)
	found, err := filepath.Glob(filepath.Join(dist, pattern))
	require.NoError(t, err)
	require.Len(t, found, 1, pattern)
	return found[0]
}

// run runs a program to its end, and returns what it wrote.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

// unpacked returns a directory with the files of the archive.
func unpacked(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "tar", "-C", dir, "--strip-components=1", "-xf", only(t, released, "*.tar.gz"))
	return dir
}

// TestSameBytes builds a release again, in another directory with another umask.
func TestSameBytes(t *testing.T) {
	sums := func(dist string) map[string]string {
		files, err := filepath.Glob(filepath.Join(dist, "*"))
		require.NoError(t, err)
		out := map[string]string{}
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			out[filepath.Base(f)] = fmt.Sprintf("%x", sha256.Sum256(text))
		}
		return out
	}
	a, err := released()
	require.NoError(t, err)
	t.Setenv("BASH_ENV", filepath.Join(work, "umask"))
	require.NoError(t, os.WriteFile(os.Getenv("BASH_ENV"), []byte("umask 077\n"), 0o600))
	b, err := build("another-directory", version)
	require.NoError(t, err)
	want := sums(a)
	require.Len(t, want, 5, "an archive, a deb, an rpm, a list of parts, and the checksums")
	assert.Equal(t, want, sums(b))

	text, err := os.ReadFile(filepath.Join(a, "SHA256SUMS"))
	require.NoError(t, err)
	delete(want, "SHA256SUMS")
	assert.Len(t, strings.Split(strings.TrimSpace(string(text)), "\n"), len(want))
	for name, sum := range want {
		assert.Contains(t, string(text), sum+"  "+name+"\n")
	}
}

// TestArchive: the programs are static, and know from what they were built.
func TestArchive(t *testing.T) {
	dir := unpacked(t)
	commit := strings.Fields(run(t, "git", "-C", sources, "log", "-1", "--format=%H"))[0]
	for _, name := range []string{"quern", "quern-agent", "ingest", "aggregator"} {
		path := filepath.Join(dir, name)
		f, err := elf.Open(path)
		require.NoError(t, err)
		for _, p := range f.Progs {
			assert.NotEqual(t, elf.PT_INTERP, p.Type, "%s is static", name)
		}
		require.NoError(t, f.Close())
		assert.Contains(t, run(t, path, "--version"), fmt.Sprintf("%s version %s (commit %s of 2", name, version, commit))
	}
	text, err := os.ReadFile(only(t, released, "*.cdx.json"))
	require.NoError(t, err)
	var parts struct {
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal(text, &parts))
	assert.Equal(t, "v"+version, parts.Metadata.Component.Version)
	var names []string
	for _, c := range parts.Components {
		names = append(names, c.Name)
	}
	assert.Subset(t, names, []string{"std", "github.com/cockroachdb/pebble/v2"})
}

// TestUnit: systemd understands the whole unit, and takes from the process what it need not have.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze on this machine")
	}
	text, err := os.ReadFile(filepath.Join(sources, "deploy/package/quern.service"))
	require.NoError(t, err)
	program := filepath.Join(unpacked(t), "quern")
	require.Contains(t, string(text), "ExecStart=/usr/bin/quern ")
	unit := filepath.Join(t.TempDir(), "quern.service")
	require.NoError(t, os.WriteFile(unit, bytes.Replace(text, []byte("/usr/bin/quern"), []byte(program), 1), 0o600))
	assert.Empty(t, run(t, "systemd-analyze", "verify", "--man=no", unit))
	run(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
}
