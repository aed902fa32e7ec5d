package cassandratest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSharedClasses: Java takes the archive of classes for the command line of a node. Otherwise it
// would say nothing, and start slowly.
func TestSharedClasses(t *testing.T) {
	s := Shared(t)
	if s.Way() != WayJVM {
		t.Skip("where the server is no process of ours")
	}
	node := s.cluster.Node(0)
	require.FileExists(t, node.config.Classes)
	insist := func(args ...string) ([]byte, error) {
		return exec.CommandContext(t.Context(), node.java, append([]string{
			"-Xshare:on",
			"@" + filepath.Join(node.config.Dir, javaArgsName),
			"@" + filepath.Join(node.config.Dir, pathsArgsName),
		}, args...)...).CombinedOutput()
	}
	out, err := insist("-version")
	require.NoError(t, err, "%s", out)
	_, err = insist("-cp", t.TempDir(), "-version")
	require.Error(t, err, "the archive of other classes")
}
