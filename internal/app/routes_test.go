package app

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoutes: testdata/routes names each endpoint of a server with all that can be turned on, the role that it needs, and
// what it is for clients whose tokens are bound to some series. A new endpoint begins with its row.
func TestRoutes(t *testing.T) {
	rows := func(s *server) (all string) {
		for _, r := range s.http.Routes() {
			all += fmt.Sprintf("%s | %s | %s\n", r.Pattern, r.Role, r.Bound)
		}
		return all
	}
	want, err := os.ReadFile("testdata/routes")
	require.NoError(t, err)
	s := testServer(t)
	s.cfg.EnableAdminAPI = true
	running(t, s)
	require.Equal(t, string(want), rows(s))

	// What an endpoint needs does not depend on the flags that turn it off.
	closed := testServer(t)
	running(t, closed)
	for row := range strings.Lines(rows(closed)) {
		require.Contains(t, string(want), row)
	}
}

// endpoint returns the method of a route's pattern, or another if it takes any, and the path with a name.
func endpoint(pattern, another, name string) (method, path string) {
	method, path, found := strings.Cut(pattern, " ")
	if !found {
		method, path = another, pattern
	}
	return method, strings.NewReplacer("{$}", "", "{name}", name).Replace(path)
}
