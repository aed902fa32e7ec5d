// Package programtest runs Quern's programs within tests.
package programtest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
)

// Main runs a package's tests without the QUERN_ variables of the tester's shell.
func Main(m *testing.M) int {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "QUERN_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	return m.Run()
}

// Run runs a program with arguments and returns what it wrote to standard output.
func Run(t *testing.T, app *cli.App, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = program.Run(t.Context(), app, append([]string{app.Name}, args...), &out, &errs)
	assert.Empty(t, errs.String(), "main prints what went wrong, and nothing else does")
	return out.String(), err
}

// Refused asserts that a program rejects arguments, which are separated by spaces, as a usage error
// of command: exit code 2, with a hint on what to do.
func Refused(t *testing.T, app *cli.App, args, command, want string) {
	t.Helper()
	out, err := Run(t, app, strings.Fields(args)...)
	var usage program.UsageError
	require.ErrorAs(t, err, &usage)
	assert.ErrorContains(t, err, want)
	assert.Equal(t, command, usage.Command, "whose --help is named")
	assert.Empty(t, out)
}
