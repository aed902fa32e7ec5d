package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// root is a Debian in a directory.
type root struct {
	*testing.T
	dir string
}

// debian makes a minimal Debian of this machine's release, from the mirror that this machine installs from. It has rpm
// besides. What stands for systemctl records how it is called, and says that every unit is enabled.
func debian(t *testing.T) root {
	t.Helper()
	if _, err := exec.LookPath("debootstrap"); err != nil || os.Geteuid() != 0 {
		t.Skip("there is no debootstrap, or no root, on this machine")
	}
	r := root{t, filepath.Join(t.TempDir(), "root")}
	run(t, "bash", "-euo", "pipefail", "-c", `. /etc/os-release
		targets() { apt-get indextargets --format "$1" 'Created-By: Packages' "Codename: $VERSION_CODENAME"; }
		mirror="$(targets '$(SITE)' | sed -n 1p)"
		debootstrap --variant=minbase --include=rpm "$VERSION_CODENAME" "$1" "$mirror"`, "debian", r.dir)
	require.NoError(t, os.MkdirAll(r.path("/run/systemd/system"), 0o755))
	require.NoError(t, os.WriteFile(r.path("/usr/bin/systemctl"), []byte("#!/bin/sh\necho \"$@\" >>/run/systemctl\n"), 0o755))
	return r
}

func (r root) path(name string) string { return filepath.Join(r.dir, name) }

// run runs a program in it as root.
func (r root) run(args ...string) string {
	r.Helper()
	return run(r.T, "chroot", append([]string{r.dir}, args...)...)
}

// install installs a package of a release with args, which end before the file.
func (r root) install(release func() (string, error), pattern string, args ...string) {
	r.Helper()
	text, err := os.ReadFile(only(r.T, release, pattern))
	require.NoError(r, err)
	name := "/tmp/quern" + filepath.Ext(pattern)
	require.NoError(r, os.WriteFile(r.path(name), text, 0o644))
	r.run(append(args, name)...)
}

// asked returns the calls of systemctl since it was last called.
func (r root) asked() []string {
	r.Helper()
	text, err := os.ReadFile(r.path("/run/systemctl"))
	require.NoError(r, err)
	require.NoError(r, os.Remove(r.path("/run/systemctl")))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

var started = regexp.MustCompile(`(?m)^ExecStart=(.*)$`)

// serve starts the server as the unit does, on a free port.
func (r root) serve() *process.Process {
	r.Helper()
	unit, err := os.ReadFile(r.path("/usr/lib/systemd/system/quern.service"))
	require.NoError(r, err)
	args := append([]string{"--userspec=quern:quern", r.dir}, strings.Fields(started.FindStringSubmatch(string(unit))[1])...)
	cmd := exec.CommandContext(r.Context(), "chroot", args...)
	cmd.Env = []string{"QUERN_LISTEN=127.0.0.1:0", "QUERN_HOST_METRICS=false"}
	p := process.Start(r, cmd)
	p.Ready()
	return p
}

func TestPackages(t *testing.T) {
	r := debian(t)
	apt := []string{"apt-get", "-y"}

	r.install(preceding, "*.deb", append(apt, "install")...)
	assert.Equal(t, []string{"daemon-reload", "enable quern.service", "try-restart quern.service", "--quiet is-enabled quern.service", "start quern.service"}, r.asked())
	assert.Contains(t, r.run("quern", "--version"), "quern version "+before+" (")
	assert.Contains(t, r.run("sh", "-c", "zcat /usr/share/man/man1/quern.1.gz"), "\n.SH COMMANDS\n")
	r.run("bash", "-c", ". /usr/share/bash-completion/completions/quern && complete -p quern")
	data, err := os.Stat(r.path("/var/lib/quern"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), data.Mode().Perm())
	assert.NotZero(t, data.Sys().(*syscall.Stat_t).Uid, "it belongs to the user quern")

	sample := process.Sample{Source: "kitchen", Metric: "it_tea", Ms: time.Now().UnixMilli(), Value: 71.5}
	p := r.serve()
	_, err = p.Report(t.Context(), []process.Sample{sample})
	require.NoError(t, err)
	r.run("quern", "healthy", "--url", p.URL)
	p.Stop()
	out, err := exec.CommandContext(t.Context(), "chroot", r.dir, "quern", "healthy", "--url", p.URL).CombinedOutput()
	require.ErrorContains(t, err, "exit status 1")
	assert.Regexp(t, `^quern: the server is unavailable: .*\n$`, string(out))

	settings := r.path("/etc/quern/quern.yaml")
	text, err := os.ReadFile(settings)
	require.NoError(t, err)
	changed := strings.Replace(string(text), "#max-series: 0", "max-series: 1000", 1)
	require.NotEqual(t, string(text), changed)
	require.NoError(t, os.WriteFile(settings, []byte(changed), 0o644))

	r.install(released, "*.deb", append(apt, "install")...)
	assert.Equal(t, []string{"daemon-reload", "daemon-reload", "try-restart quern.service", "--quiet is-enabled quern.service", "start quern.service"}, r.asked())
	assert.Contains(t, r.run("quern", "--version"), "quern version "+version+" (")
	text, err = os.ReadFile(settings)
	require.NoError(t, err)
	assert.Equal(t, changed, string(text))
	p = r.serve()
	got, err := p.Export(process.OfTests, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, []process.Sample{sample}, got)
	p.Stop()

	r.run(append(apt, "remove", "quern")...)
	assert.Equal(t, []string{"stop quern.service", "daemon-reload"}, r.asked())
	assert.NoFileExists(t, r.path("/usr/bin/quern"))
	assert.FileExists(t, settings)
	stored, err := filepath.Glob(r.path("/var/lib/quern/*"))
	require.NoError(t, err)
	assert.NotEmpty(t, stored)

	r.run(append(apt, "purge", "quern")...)
	assert.NoDirExists(t, r.path("/var/lib/quern"))
	assert.NoDirExists(t, r.path("/etc/quern"))
	r.asked()

	t.Run("rpm", func(t *testing.T) {
		r.T = t
		r.install(preceding, "*.rpm", "rpm", "--install", "--nodeps")
		assert.NotContains(t, r.asked(), "enable quern.service")
		r.install(released, "*.rpm", "rpm", "--upgrade", "--nodeps")
		assert.Contains(t, r.asked(), "try-restart quern.service")
		assert.Contains(t, r.run("rpm", "-qR", "quern"), "shadow-utils")
		p := r.serve()
		p.Stop()
		r.run("rpm", "--erase", "quern")
		assert.Equal(t, []string{"disable --now quern.service", "daemon-reload"}, r.asked())
		assert.DirExists(t, r.path("/var/lib/quern"), "rpm does not purge")
	})
}
