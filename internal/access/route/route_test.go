package route_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
)

func nothing(http.ResponseWriter, *http.Request) {}

// TestFind: a request finds the role of the endpoint that answers it.
func TestFind(t *testing.T) {
	table := route.NewTable()
	table.HandleFunc(access.Read, route.Filtered, "GET /things/{name}", nothing)
	table.HandleFunc(access.Admin, route.Refused, "POST /things/{name}", nothing)
	table.HandleFunc(access.Anyone, route.NoData, "/open", nothing)
	for _, c := range []struct {
		method, path string
		found        bool
		role         access.Role
	}{
		{"GET", "/things/a", true, access.Read},
		{"HEAD", "/things/a", true, access.Read},
		{"POST", "/things/a", true, access.Admin},
		{"DELETE", "/things/a", false, 0},
		{"GET", "/things", false, 0},
		{"PUT", "/open", true, access.Anyone},
		{"GET", "//things/a", true, access.Read}, // is redirected to the clean path
	} {
		found, _, ok := table.Find(httptest.NewRequestWithContext(t.Context(), c.method, "http://x"+c.path, nil))
		require.Equal(t, c.found, ok, c)
		require.Equal(t, c.role, found.Role, c)
	}
	require.Equal(t, []route.Route{
		{Pattern: "/open", Role: access.Anyone, Bound: route.NoData},
		{Pattern: "GET /things/{name}", Role: access.Read, Bound: route.Filtered},
		{Pattern: "POST /things/{name}", Role: access.Admin, Bound: route.Refused},
	}, table.Routes())
	table.AllowBody("POST /things/{name}", 7)
	found, _, _ := table.Find(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/things/a", nil))
	require.EqualValues(t, 7, found.BodyBytes)
	require.Panics(t, func() { table.HandleFunc(access.Read, 0, "/silent", nothing) })
	require.Panics(t, func() { table.HandleFunc(access.Write|access.Admin, route.Filtered, "/both", nothing) })
}
