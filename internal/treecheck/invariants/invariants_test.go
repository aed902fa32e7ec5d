package invariants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/treecheck/invariants"
)

func TestCheckPanicsOnlyWhenOn(t *testing.T) {
	require.NotPanics(t, func() { invariants.Check(true, "fine") })
	broken := func() { invariants.Check(false, "block %d", 7) }
	if invariants.Enabled {
		require.PanicsWithValue(t, "invariant broken: block 7", broken)
	} else {
		require.NotPanics(t, broken)
	}
}
