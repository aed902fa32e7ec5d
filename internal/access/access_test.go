package access_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
)

func TestRoles(t *testing.T) {
	for _, c := range []struct {
		has, need access.Role
		want      bool
	}{
		{0, access.Anyone, true},
		{0, access.Read, false},
		{0, access.Write, false},
		{0, access.Admin, false},
		{access.Read, access.Read, true},
		{access.Read, access.Write, false},
		{access.Write, access.Read, false},
		{access.Read | access.Write, access.Write, true},
		{access.Read | access.Write, access.Admin, false},
		{access.Admin, access.Read, true},
		{access.Admin, access.Write, true},
		{access.Admin, access.Admin, true},
	} {
		require.Equal(t, c.want, c.has.Has(c.need), c)
	}
	r, err := access.ParseRoles([]string{"write", "read", "write"})
	require.NoError(t, err)
	require.Equal(t, access.Read|access.Write, r)
	require.Equal(t, []string{"read", "write"}, r.Names())
	require.Equal(t, "anyone", access.Anyone.String())
	_, err = access.ParseRoles([]string{"read", "root"})
	require.EqualError(t, err, `"root" is not a role: there are read, write and admin`)
}

// TestFromContext: nothing is granted to a request that nobody has admitted.
func TestFromContext(t *testing.T) {
	require.Zero(t, access.FromContext(t.Context()))
	g := access.Grant{Name: "eve", Roles: access.Read}
	require.Equal(t, g, access.FromContext(access.WithGrant(t.Context(), g)))
}
