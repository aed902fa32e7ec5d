package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	// What the tester's own shell has set is no part of any test.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "QUERN_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

func quern(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = run(t.Context(), append([]string{"quern"}, args...), &out, &errs)
	assert.Empty(t, errs.String(), "main prints what went wrong, and nothing else does")
	return out.String(), err
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"quern serve --demo", "serve", "agent", "completion"}},
		{[]string{"help"}, []string{"quern serve --demo", "serve", "agent", "completion"}},
		{[]string{"--help"}, []string{"quern serve --demo", "serve", "agent", "completion"}},
		{[]string{"serve", "--help"}, []string{"Examples:", "quern serve --demo", "--rollups", "$QUERN_ROLLUPS", "SIGTERM"}},
		{[]string{"help", "serve"}, []string{"Examples:", "quern serve --demo"}},
		{[]string{"agent", "-h"}, []string{"Examples:", "quern agent --url", "--queue-limit", "$QUERN_QUEUE_LIMIT"}},
		{[]string{"completion", "--help"}, []string{"Examples:", "source <(quern completion bash)", "bash|zsh|fish"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := quern(t, c.args...)
			require.NoError(t, err)
			for _, want := range c.want {
				assert.Contains(t, out, want)
			}
			if strings.Contains(out, "Examples:") {
				assert.NotContains(t, out, "\t   quern", "an example is written with spaces")
			}
		})
	}
}

func TestVersion(t *testing.T) {
	out, err := quern(t, "--version")
	require.NoError(t, err)
	assert.Regexp(t, `^quern version \S+\n$`, out)
}

// TestUsage: each is exit code 2, with a word on what to do.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args    string
		command string
		want    string
	}{
		{"grind", "", `there is no command "grind"`},
		{"help grind", "", `No help topic for 'grind'`},
		{"--bogus", "", `there is no flag --bogus`},
		{"--versio", "", `there is no flag --versio; did you mean --version?`},
		{"serve now", "serve ", `unexpected argument "now"`},
		{"serve demo --listen :9095", "serve ", `unexpected argument "demo"`},
		{"serve --bogus", "serve ", `there is no flag --bogus`},
		{"serve --lisen :9095", "serve ", `there is no flag --lisen; did you mean --listen?`},
		{"serve --zzz", "serve ", `there is no flag --zzz`},
		{"serve --listen", "serve ", `flag needs an argument: -listen`},
		{"serve --block-size many", "serve ", `invalid value "many" for flag -block-size`},
		{"serve --block-size 0", "serve ", `--block-size 0: must be between 1 and 4096`},
		{"serve --config /does/not/exist", "serve ", `--config: open /does/not/exist`},
		{"agent x", "agent ", `unexpected argument "x"`},
		{"agent --url nonsense", "agent ", `--url nonsense: must be like http://127.0.0.1:9095`},
		{"agent --data-dir x", "agent ", `there is no flag --data-dir`},
		{"completion", "completion ", `name one shell: bash, zsh or fish`},
		{"completion tcsh", "completion ", `name one shell: bash, zsh or fish`},
		{"completion bash zsh", "completion ", `name one shell: bash, zsh or fish`},
	} {
		t.Run(c.args, func(t *testing.T) {
			out, err := quern(t, strings.Fields(c.args)...)
			var usage usageError
			require.ErrorAs(t, err, &usage)
			assert.Contains(t, err.Error(), c.want)
			assert.Equal(t, c.command, usage.command, "whose --help is named")
			assert.Empty(t, out)
		})
	}
	t.Run("a variable of the environment", func(t *testing.T) {
		t.Setenv("QUERN_BLOCK_SIZE", "many")
		_, err := quern(t, "serve")
		var usage usageError
		require.ErrorAs(t, err, &usage)
		assert.ErrorContains(t, err, "QUERN_BLOCK_SIZE")
	})
}

// TestFailure: what is no mistake on the command line is no usage error.
func TestFailure(t *testing.T) {
	occupied := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(occupied, nil, 0o600))
	_, err := quern(t, "serve", "--listen", "127.0.0.1:0", "--data-dir", occupied)
	require.ErrorContains(t, err, occupied)
	assert.NotErrorAs(t, err, new(usageError))
}

// complete asks the program as the scripts do. The library looks at os.Args for the
// argument that is completed.
func complete(t *testing.T, args ...string) []string {
	t.Helper()
	args = append(args, "--generate-bash-completion")
	before := os.Args
	os.Args = append([]string{"quern"}, args...)
	defer func() { os.Args = before }()
	out, err := quern(t, args...)
	require.NoError(t, err)
	return strings.Fields(out)
}

func TestCompletion(t *testing.T) {
	assert.Subset(t, complete(t), []string{"serve", "agent", "completion", "help"})
	assert.Subset(t, complete(t, "serve", "-"), []string{"--listen", "--data-dir", "--demo", "--config", "--help"})
	assert.Subset(t, complete(t, "agent", "-"), []string{"--url", "--interval"})
	assert.Equal(t, []string{"--listen", "--late-grace", "--log-level", "--log-format"}, complete(t, "serve", "--l"))
	assert.Equal(t, []string{"--version"}, complete(t, "--ver"))
	assert.Empty(t, complete(t, "serve"), "it takes no arguments")
	assert.Equal(t, []string{"bash", "zsh", "fish"}, complete(t, "completion"))
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := quern(t, "completion", shell)
		require.NoError(t, err)
		assert.Contains(t, script, "--generate-bash-completion")
	}
}

// TestCompletionSyntax has each shell that is there read its script.
func TestCompletionSyntax(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("no %s on this machine", shell)
			}
			script, err := quern(t, "completion", shell)
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), path, "-n", "/dev/stdin")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
