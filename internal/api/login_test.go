package api_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/accesstest"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage"
)

// entrance has the endpoints of logins and tokens of a locked server.
type entrance struct {
	*testing.T
	table *route.Table
	docs  *accesstest.Memory
	log   bytes.Buffer
	token string // of an administrator
}

func newEntrance(t *testing.T) *entrance {
	t.Helper()
	e := &entrance{T: t, table: route.NewTable(), docs: accesstest.NewMemory()}
	clk := clock.NewSimulated(apitest.Now)
	tokens := access.NewTokens(e.docs, clk, slog.New(slog.DiscardHandler))
	audit := access.NewAudit(slog.New(slog.NewTextHandler(&e.log, nil)), clk, nil)
	door := access.NewDoor(access.Options{
		Lock: access.Locked, Clock: clk, Clients: limits.NewClients(nil), Audit: audit, Tokens: tokens,
	})
	api.NewLogin(door, audit).Register(e.table)
	api.NewTokens(tokens).Register(e.table)
	e.table.HandleFunc(access.Anyone, route.NoData, "POST /granted", func(w http.ResponseWriter, r *http.Request) {
		r.Method = http.MethodGet
		if g, err := door.Identify(r); err != nil || g.Roles == 0 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	var err error
	_, e.token, err = tokens.Create(t.Context(), access.NewToken{Name: "a", Roles: access.Admin})
	require.NoError(t, err)
	return e
}

// post sends a form, by the cookie of a login unless it is nil. It returns the cookie that the answer sets.
func (e *entrance) post(path, form string, by *http.Cookie) (*httptest.ResponseRecorder, *http.Cookie) {
	e.Helper()
	r := httptest.NewRequestWithContext(e.Context(), http.MethodPost, path, strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if by != nil {
		r.AddCookie(by)
	}
	w := httptest.NewRecorder()
	e.table.ServeHTTP(w, r)
	set, _ := http.ParseSetCookie(w.Header().Get("Set-Cookie"))
	return w, set
}

// refuses requires that a cookie is worth nothing.
func (e *entrance) refuses(c *http.Cookie) {
	e.Helper()
	w, _ := e.post("/granted", "", c)
	require.Equal(e, 401, w.Code)
}

func (e *entrance) login() *http.Cookie {
	e.Helper()
	w, c := e.post("/api/v1/login", "token="+e.token, nil)
	require.Equal(e, 200, w.Code, w.Body)
	w, _ = e.post("/granted", "", c)
	require.Equal(e, 200, w.Code)
	return c
}

// TestLogoutOnAFullDisk: the cookie goes, the session is of no use here, and the answer says what others do. So it is for
// a token that is revoked.
func TestLogoutOnAFullDisk(t *testing.T) {
	e := newEntrance(t)
	first, second := e.login(), e.login()
	e.docs.Refuse = func(storage.Document) error { return fmt.Errorf("disk full: %w", storage.ErrUnavailable) }
	w, gone := e.post("/api/v1/logout", "", first)
	require.Equal(t, 503, w.Code)
	require.Equal(t, "5", w.Header().Get("Retry-After"))
	require.Contains(t, w.Body.String(), "other processes, and this one after a restart, accept it")
	require.Negative(t, gone.MaxAge)
	e.refuses(first)
	require.Contains(t, e.log.String(), "action=logout outcome=failed code=503")

	w, _ = e.post("/api/v1/tokens/revoke", "id="+e.token, nil)
	require.Equal(t, 503, w.Code)
	require.Contains(t, w.Body.String(), "this process refuses the token")
	e.refuses(second)
}

// TestLoginsAreLimited: beyond the rate there is no line in the audit log.
func TestLoginsAreLimited(t *testing.T) {
	e := newEntrance(t)
	for range 100 {
		e.login()
	}
	w, set := e.post("/api/v1/login", "token="+e.token, nil)
	require.Equal(t, 429, w.Code)
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	require.Nil(t, set)
	require.Equal(t, 100, strings.Count(e.log.String(), "\n"))
}
