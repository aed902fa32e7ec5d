package program

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExitCode: an error is printed, and what it has of a server's text does not control the terminal.
func TestExitCode(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, exitFailed, exitCode(errors.New("the server says: \x1b[2J"), "quern", &out))
	require.Equal(t, "quern: the server says: \\u001b[2J\n", out.String())
	require.Zero(t, exitCode(nil, "quern", &out))
}
