package api_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wire"
)

// byHeader grants what a header names.
type byHeader struct{}

func (byHeader) Identify(r *http.Request) (access.Grant, error) {
	switch header := r.Header.Get("Authorization"); header {
	case "":
		return access.Grant{}, nil
	case "anyone": // where nobody has to log in
		return access.Grant{Roles: access.Read | access.Write}, nil
	case "wrong":
		return access.Grant{}, &access.Refusal{Code: 401, Message: "wrong password"}
	case "often":
		return access.Grant{}, &access.Refusal{Code: 429, Message: "too often", After: 1500 * time.Millisecond}
	case "broken":
		return access.Grant{}, fmt.Errorf("broken")
	default:
		roles, err := access.ParseRoles(strings.Split(header, " "))
		return access.Grant{Name: "user u", Roles: roles}, err
	}
}

// locked makes a server with an endpoint of each kind that grants by header, and its audit log.
func locked(t *testing.T) (*api.Server, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	return apitest.Server(t, func(o *api.Options) {
		o.Appender, o.BackFiller = &apitest.BackFiller{}, &apitest.BackFiller{}
		o.Door = byHeader{}
		o.Audit = access.NewAudit(slog.New(slog.NewTextHandler(&log, nil)), clock.NewSimulated(apitest.Now), nil)
		o.Ready = func(context.Context) error { return fmt.Errorf("no node of 10.0.0.1 answers") }
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			show := func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, access.FromContext(r.Context()).Name, r.FormValue("match[]"))
			}
			to.HandleFunc(access.Read, route.Filtered, "/read", show)
			to.HandleFunc(access.Admin, route.Refused, "/admin", show)
			to.HandleFunc(access.Admin, route.Refused, "/broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		})}
	}), &log
}

// TestAuthorize: what a client may do depends on its roles alone.
func TestAuthorize(t *testing.T) {
	s, _ := locked(t)
	for _, c := range []struct {
		method, path string
		codes        map[string]int // by roles
	}{
		{"GET", "/-/healthy", map[string]int{"": 200, "wrong": 200, "often": 200, "write": 200}},
		{"GET", "/", map[string]int{"": 200, "wrong": 200, "read": 200}},
		{"GET", "/read", map[string]int{"": 401, "wrong": 401, "often": 429, "broken": 500, "read": 200, "write": 403, "admin": 200}},
		{"POST", "/read", map[string]int{"": 401, "read": 200, "write": 403, "admin": 200}},
		{"POST", wire.ReportsPath, map[string]int{"": 401, "wrong": 401, "often": 429, "read": 403, "write": 200, "read write": 200, "admin": 200}},
		{"POST", "/write", map[string]int{"": 401, "read": 403}},
		{"POST", "/v1/metrics", map[string]int{"": 401, "read": 403}},
		{"POST", wire.ImportPath, map[string]int{"": 401, "read": 403, "write": 403, "read write": 403, "admin": 200}},
		{"GET", "/admin", map[string]int{"": 401, "read write": 403, "admin": 200}},
		{"DELETE", wire.ReportsPath, map[string]int{"": 405}},
		{"GET", "/nothing", map[string]int{"": 404}},
		{"GET", "//admin", map[string]int{"": 401}},
	} {
		for roles, want := range c.codes {
			headers := []string{"Authorization", roles}
			if roles == "" {
				headers = nil
			}
			body := apitest.OneReport
			if c.path == wire.ImportPath {
				body = erasing
			}
			w := ask(t, s, c.method, "http://127.0.0.1"+c.path, body, headers...)
			require.Equal(t, want, w.Code, "%s %s as %q: %s", c.method, c.path, roles, w.Body)
			switch want {
			case 401:
				require.Equal(t, []string{`Bearer realm="Quern"`, `Basic realm="Quern", charset="UTF-8"`}, w.Header().Values("WWW-Authenticate"))
			case 429:
				require.Equal(t, "2", w.Header().Get("Retry-After"))
			}
		}
	}
	w := ask(t, s, http.MethodGet, "http://127.0.0.1/read", "", "Authorization", "read")
	require.Equal(t, "user u", w.Body.String())
	w = ask(t, s, http.MethodGet, "http://127.0.0.1/read", "", "Authorization", "write")
	require.Contains(t, w.Body.String(), "/read needs the role read, and user u has only write")
	w = ask(t, s, http.MethodGet, "http://127.0.0.1/read", "", "User-Agent", "Mozilla/5.0 (X11)")
	require.Equal(t, http.StatusUnauthorized, w.Code)
	require.Equal(t, []string{`Bearer realm="Quern"`}, w.Header().Values("WWW-Authenticate"), "a browser shows the page's form, not its own")
}

// TestStrangers: who has not logged in learns nothing of the inside.
func TestStrangers(t *testing.T) {
	s, _ := locked(t)
	w := ask(t, s, http.MethodGet, "http://127.0.0.1/-/ready", "")
	require.Equal(t, 503, w.Code)
	require.NotContains(t, w.Body.String(), "10.0.0.1")
	require.Contains(t, ask(t, s, http.MethodGet, "http://127.0.0.1/-/ready", "", "Authorization", "read").Body.String(), "10.0.0.1")
	index := ask(t, s, http.MethodGet, "http://127.0.0.1/", "").Body.String()
	require.Contains(t, index, "/-/healthy")
	require.NotContains(t, index, wire.ReportsPath)
	index = ask(t, s, http.MethodGet, "http://127.0.0.1/", "", "Authorization", "write").Body.String()
	require.Contains(t, index, wire.ReportsPath)
	require.NotContains(t, index, wire.ImportPath)
}

// TestAudit: each administrative request is recorded, by whom, from where, and with its outcome. Texts are escaped
// and bounded.
func TestAudit(t *testing.T) {
	s, log := locked(t)
	ask(t, s, http.MethodGet, "http://127.0.0.1/read", "", "Authorization", "admin")
	ask(t, s, http.MethodGet, "http://127.0.0.1/-/healthy", "", "Authorization", "admin")
	ask(t, s, http.MethodGet, "http://127.0.0.1/admin", "")
	require.Empty(t, log.String())

	for _, c := range []struct {
		path, body, roles string
		want              []string
	}{
		{"/admin?match[]=up%0Alevel=INFO", "", "admin", []string{`who="user u"`, "from=192.0.2.1", "action=/admin", "outcome=done", "code=200", `match[]=up%0Alevel=INFO`}},
		{"/admin", "a=\x1b[2J\n" + strings.Repeat("x", 1<<10), "admin", []string{`form="a=\x1b[2J\n`, "outcome=done"}},
		{wire.ImportPath, erasing, "admin", []string{"POST /api/v1/import", "code=200"}},
		{wire.ImportPath, erasing, "write", []string{"POST /api/v1/import", "outcome=refused", "code=403", "more_since_last=0"}},
	} {
		log.Reset()
		ask(t, s, http.MethodPost, "http://127.0.0.1"+c.path, c.body, "Authorization", c.roles, "Content-Type", "application/x-www-form-urlencoded")
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		require.Less(t, log.Len(), 1<<10)
		for _, want := range c.want {
			require.Contains(t, log.String(), want)
		}
	}
}

// TestAuditOfBrokenOff: a request whose answer breaks off may have changed something, so it is in the log.
func TestAuditOfBrokenOff(t *testing.T) {
	s, log := locked(t)
	require.PanicsWithValue(t, http.ErrAbortHandler, func() {
		ask(t, s, http.MethodPost, "http://127.0.0.1/broken", "a=b", "Authorization", "admin", "Content-Type", "application/x-www-form-urlencoded")
	})
	require.Contains(t, log.String(), "action=/broken")
	require.Contains(t, log.String(), `form="a=b"`)
	require.Contains(t, log.String(), `outcome="cut off" code=0`)
}

// TestRefusalsAreThrottled: who is refused again and again does not fill the log.
func TestRefusalsAreThrottled(t *testing.T) {
	s, log := locked(t)
	for _, who := range []string{"anyone", "read"} {
		log.Reset()
		for range 100 {
			require.Equal(t, 403, ask(t, s, http.MethodGet, "http://127.0.0.1/admin", "", "Authorization", who).Code)
		}
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log)
		require.Contains(t, log.String(), "outcome=refused")
	}
	log.Reset()
	for range 100 {
		require.Equal(t, 200, ask(t, s, http.MethodGet, "http://127.0.0.1/admin", "", "Authorization", "admin").Code)
	}
	require.Equal(t, 100, strings.Count(log.String(), "\n"), "what was done is complete")
}
