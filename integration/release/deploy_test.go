package release

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/quern/quern/integration/process"
)

// instructions returns the last stage of the Containerfile: the arguments of each instruction.
func instructions(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sources, "Containerfile"))
	require.NoError(t, err)
	_, stage, _ := strings.Cut(string(text), "FROM scratch\n")
	out := map[string][]string{}
	for line := range strings.Lines(stage) {
		name, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		out[name] = append(out[name], args)
	}
	return out
}

// TestContainer runs the program as the image would, in a directory with nothing else but that of the data.
func TestContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("chroot takes root, and there is none on this machine")
	}
	image := instructions(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Rename(filepath.Join(unpacked(t), "quern"), filepath.Join(dir, "quern")))
	data := filepath.Join(dir, image["VOLUME"][0])
	require.NoError(t, os.MkdirAll(data, 0o755))
	require.NoError(t, os.Chown(data, 65532, 65532))
	in := func(instruction string, args ...string) *exec.Cmd {
		var words []string
		require.NoError(t, json.Unmarshal([]byte(regexp.MustCompile(`\[.*\]`).FindString(image[instruction][0])), &words))
		cmd := exec.CommandContext(t.Context(), "chroot", append(append([]string{"--userspec=" + image["USER"][0], dir}, words...), args...)...)
		cmd.Env = append(strings.Fields(image["ENV"][0]), "QUERN_LISTEN=127.0.0.1:0")
		return cmd
	}
	cmd := in("ENTRYPOINT", "serve")
	p := process.Start(t, cmd)
	p.Ready()
	_, err := p.Report(t.Context(), []process.Sample{{Source: "kitchen", Metric: "it_tea", Ms: time.Now().UnixMilli(), Value: 71.5}})
	require.NoError(t, err)
	out, err := in("HEALTHCHECK", "--url", p.URL).CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.Stop()
	require.Error(t, in("HEALTHCHECK", "--url", p.URL).Run())
	stored, err := filepath.Glob(filepath.Join(data, "*"))
	require.NoError(t, err)
	assert.NotEmpty(t, stored)
}

// TestCompose: the file is valid by the schema of its specification, and Quern's arguments are Quern's.
func TestCompose(t *testing.T) {
	opts, err := cli.NewProjectOptions([]string{filepath.Join(sources, "deploy/compose.yaml")})
	require.NoError(t, err)
	project, err := opts.LoadProject(t.Context())
	require.NoError(t, err)
	quern := filepath.Join(unpacked(t), "quern")
	for _, name := range []string{"schema", "quern"} {
		run(t, quern, append(project.Services[name].Command, "--help")...)
	}
	assert.FileExists(t, project.Services["grafana"].Volumes[0].Source)
	build := project.Services["schema"].Build
	assert.FileExists(t, filepath.Join(build.Context, build.Dockerfile))
}

// TestKubernetes: each document has only fields that its kind has.
func TestKubernetes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(sources, "deploy/kubernetes.yaml"))
	require.NoError(t, err)
	documents := strings.Split(string(text), "\n---\n")
	require.Len(t, documents, 2)
	var service core.Service
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[0]), &service))
	var set apps.StatefulSet
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &set))
	assert.Equal(t, set.Spec.Template.Labels, service.Spec.Selector)
	assert.Equal(t, set.Spec.Template.Labels, set.Spec.Selector.MatchLabels)
	quern := set.Spec.Template.Spec.Containers[0]
	assert.Equal(t, quern.Ports[0].Name, service.Spec.Ports[0].TargetPort.StrVal)
	assert.Equal(t, []string{quern.VolumeMounts[0].MountPath}, instructions(t)["VOLUME"])
	assert.Equal(t, set.Spec.VolumeClaimTemplates[0].Name, quern.VolumeMounts[0].Name)
	run(t, filepath.Join(unpacked(t), "quern"), append(quern.Args, "--help")...)
}
