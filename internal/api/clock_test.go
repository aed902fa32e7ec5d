package api_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/wire"
)

// Confirming the clock can make rows expire. By default only clients on the server's machine may do
// it.
func TestConfirmClock(t *testing.T) {
	asked := 0
	confirm := func(context.Context) error {
		asked++
		return nil
	}
	for _, c := range []struct {
		name    string
		anyone  bool
		method  string
		peer    string
		host    string // localhost if empty
		headers http.Header
		confirm func(context.Context) error
		want    int
		says    string
	}{
		{name: "from this machine", peer: "127.0.0.1:4711", confirm: confirm, want: 200},
		{name: "by IPv6", peer: "[::1]:4711", confirm: confirm, want: 200},
		{name: "by a mapped address", peer: "[::ffff:127.0.0.1]:4711", confirm: confirm, want: 200},
		{name: "by the address that the server listens on", peer: "192.0.2.1:4711", confirm: confirm, want: 200},
		{name: "from another", peer: "192.0.2.2:4711", confirm: confirm, want: 403, says: "start the server with --enable-admin-api"},
		{name: "from another that may", anyone: true, peer: "192.0.2.2:4711", confirm: confirm, want: 200},
		{
			name: "through a proxy", peer: "127.0.0.1:4711", headers: http.Header{"X-Forwarded-For": {"192.0.2.2"}},
			confirm: confirm, want: 403, says: "on the server's own machine",
		},
		{name: "from nobody that can be told", peer: "@", confirm: confirm, want: 403},
		{
			name: "from a page", peer: "127.0.0.1:4711", headers: http.Header{"Origin": {"http://evil.example"}},
			confirm: confirm, want: 403, says: "a web page of another origin",
		},
		{name: "at a name of the server", peer: "127.0.0.1:4711", host: "quern.example:9095", confirm: confirm, want: 200},
		{
			name: "from a page whose name leads here", peer: "127.0.0.1:4711", host: "evil.example:9095",
			confirm: confirm, want: 403, says: "at localhost or a name of --allowed-hosts",
		},
		{name: "by GET", method: http.MethodGet, peer: "127.0.0.1:4711", confirm: confirm, want: 405},
		{name: "over Cassandra", anyone: true, peer: "127.0.0.1:4711", want: 400, says: "nothing to confirm"},
		{
			name: "written down nowhere", peer: "127.0.0.1:4711",
			confirm: func(context.Context) error { return errors.New("no space left") }, want: 503, says: "no space left",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := apitest.Server(t, func(o *api.Options) {
				o.Extra = []api.Registrar{api.NewConfirmClock(c.confirm, c.anyone, access.Hosts{"quern.example"})}
			})
			method := c.method
			if method == "" {
				method = http.MethodPost
			}
			listens := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9095}
			r := httptest.NewRequestWithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, listens), method, wire.ConfirmClockPath, http.NoBody)
			r.RemoteAddr, r.Host = c.peer, cmp.Or(c.host, "localhost:9095")
			for name, values := range c.headers {
				r.Header[name] = values
			}
			asked = 0
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, c.want, w.Code, w.Body)
			require.Contains(t, w.Body.String(), c.says)
			require.Equal(t, c.want == http.StatusOK, asked == 1)
		})
	}
}
