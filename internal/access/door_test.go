package access_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/accesstest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// users have the password "right". Once it was checked, it is known.
type users struct {
	names  []string
	checks int
	known  map[string]bool
	err    error
	mark   string
}

func (u *users) HasUsers() bool { return len(u.names) > 0 }

func (u *users) Fingerprint(user string) (string, bool) {
	return u.mark + user, slices.Contains(u.names, user)
}

func (u *users) Knows(user, password string) bool { return u.known[user] && password == "right" }

func (u *users) Check(user, password string) (bool, error) {
	u.checks++
	if u.err != nil {
		return false, u.err
	}
	for _, n := range u.names {
		if n == user && password == "right" {
			u.known[user] = true
			return true, nil
		}
	}
	return false, nil
}

type entrance struct {
	*access.Door
	t     *testing.T
	clk   *clock.Simulated
	users *users
	log   *bytes.Buffer
	docs  *accesstest.Memory

	metrics *prometheus.Registry

	tokens *access.Tokens
}

func newEntrance(t *testing.T, lock access.Lock) *entrance {
	t.Helper()
	return newEntranceOver(t, lock, accesstest.NewMemory())
}

// newEntranceOver makes a process over a store.
func newEntranceOver(t *testing.T, lock access.Lock, docs *accesstest.Memory) *entrance {
	t.Helper()
	e := &entrance{docs: docs, t: t, clk: clock.NewSimulated(start), users: &users{names: []string{"admin"}, known: make(map[string]bool)}, log: &bytes.Buffer{}, metrics: prometheus.NewRegistry()}
	e.tokens = access.NewTokens(docs, e.clk, slog.New(slog.NewTextHandler(e.log, nil)))
	e.Door = access.NewDoor(access.Options{
		Tokens: e.tokens, Hosts: access.Hosts{"Quern.example"},
		Lock: lock, Clock: e.clk, Clients: limits.NewClients(limits.Loopback()), Users: e.users,
		Audit: access.NewAudit(slog.New(slog.NewTextHandler(e.log, nil)), e.clk, e.metrics),
	})
	return e
}

func (e *entrance) request(from string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(e.t.Context(), http.MethodGet, "/api/v1/query", nil)
	r.RemoteAddr = from
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// login returns the status code that a user's password leads to.
func (e *entrance) login(from, user, password string) int {
	e.t.Helper()
	r := e.request(from)
	r.SetBasicAuth(user, password)
	g, err := e.Identify(r)
	var refusal *access.Refusal
	if errors.As(err, &refusal) {
		require.Zero(e.t, g)
		return refusal.Code
	}
	require.NoError(e.t, err)
	require.Equal(e.t, access.Grant{Name: "user " + user, Roles: access.Admin}, g)
	return http.StatusOK
}

const (
	local   = "127.0.0.1:4711"
	far     = "192.0.2.1:4711"
	farther = "192.0.2.2:4711"
)

// TestLocks: who shows nothing may do what the lock says, by where the request comes from.
func TestLocks(t *testing.T) {
	for _, c := range []struct {
		lock    access.Lock
		from    string
		headers []string
		want    access.Role
	}{
		{access.Open, local, nil, access.Admin},
		{access.Insecure, local, nil, access.Admin},
		{access.Insecure, far, nil, access.Read | access.Write},
		{access.Insecure, local, []string{"X-Forwarded-For", "192.0.2.1"}, access.Read | access.Write},
		{access.Insecure, far, []string{"Authorization", "Basic YTpi"}, access.Read | access.Write},
		{access.Locked, local, nil, 0},
		{access.Locked, far, nil, 0},
	} {
		r := newEntrance(t, c.lock).request(c.from, c.headers...)
		r.Host = "localhost:9095"
		g, err := newEntrance(t, c.lock).Identify(r)
		require.NoError(t, err)
		require.Equal(t, access.Grant{Roles: c.want}, g, c)
	}
}

// TestNamesOfOthers: a page of somebody else, in a browser on the server's machine, whose name was made to lead to the
// server, administers nothing. Programs there do, by a name or an address of the server's own.
func TestNamesOfOthers(t *testing.T) {
	const at = "192.0.2.1"
	listens := &net.TCPAddr{IP: net.ParseIP(at), Port: 9095}
	for host, known := range map[string]bool{
		"localhost:9095": true, "LOCALHOST.": true, "quern.localhost": true, "127.0.0.1:9095": true, "127.0.0.2": true, "[::1]:9095": true,
		at: true, at + ":9095": true, "[::ffff:" + at + "]:9095": true, "quern.example:9095": true,
		"": false, "evil.example:9095": false, "localhost.evil.example": false, at + ".evil.example": false, "quern.example.evil.example": false,
		"192.0.2.2:9095": false, "[2001:db8::1]:9095": false, "0.0.0.0:9095": false,
	} {
		for _, from := range []string{local, "[::1]:4711", at + ":4711"} {
			r := newEntrance(t, access.Insecure).request(from)
			r.Host = host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, listens))
			g, err := newEntrance(t, access.Insecure).Identify(r)
			require.NoError(t, err)
			want := access.Read | access.Write
			if known {
				want = access.Admin
			}
			require.Equal(t, access.Grant{Roles: want}, g, "%q from %s", host, from)
		}
	}
}

func TestPasswords(t *testing.T) {
	e := newEntrance(t, access.Locked)
	require.Equal(t, 200, e.login(far, "admin", "right"))
	require.Equal(t, 200, e.login(far, "admin", "right"))
	require.Equal(t, 1, e.users.checks, "a known password is not checked again")
	require.Equal(t, 401, e.login(far, "admin", "wrong"))
	require.Equal(t, 401, e.login(far, "nobody", "right"))
	require.Equal(t, 3, e.users.checks, "that of nobody is checked too, which takes as long")
	for _, header := range []string{"Basic", "Basic ?", "Basic YQ==", "Digest a=b", "x", " "} {
		_, err := e.Identify(e.request(far, "Authorization", header))
		var refusal *access.Refusal
		require.ErrorAs(t, err, &refusal, header)
		require.Equal(t, 401, refusal.Code)
	}
	require.Equal(t, 3, e.users.checks)
	e.users.err = errors.New("busy")
	for range 50 {
		require.Equal(t, 429, e.login(far, "admin", "other"), "not counted as failed")
	}
	e.users.err = nil
	require.Equal(t, 200, e.login(far, "admin", "right"))
}

// TestGuessing: an address that fails too often must wait, and learns nothing meanwhile, not even from what is known.
func TestGuessing(t *testing.T) {
	e := newEntrance(t, access.Locked)
	require.Equal(t, 200, e.login(far, "admin", "right"))
	for i := range 10 {
		require.Equal(t, 401, e.login(far, "admin", fmt.Sprint(i)))
	}
	checks := e.users.checks
	require.Equal(t, 429, e.login(far, "admin", "10"))
	require.Equal(t, 429, e.login(far, "admin", "right"), "the right one is answered like a wrong one")
	require.Equal(t, 429, e.login(far, "other", "right"))
	require.Equal(t, checks, e.users.checks)
	require.Equal(t, 200, e.login(farther, "admin", "right"))

	// Waiting gives back one attempt at a time. A clock that is set has no effect.
	e.clk.Set(start.Add(6 * time.Second))
	require.Equal(t, 401, e.login(far, "admin", "11"))
	require.Equal(t, 429, e.login(far, "admin", "right"))
	e.clk.Jump(24 * time.Hour)
	require.Equal(t, 429, e.login(far, "admin", "right"))
	e.clk.Set(e.clk.Now().Add(time.Minute))
	require.Equal(t, 200, e.login(far, "admin", "right"))

	r := e.request(far)
	r.SetBasicAuth("admin", "wrong")
	for range 10 {
		_, _ = e.Identify(r)
	}
	_, err := e.Identify(r)
	var refusal *access.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Positive(t, refusal.After)
	require.LessOrEqual(t, refusal.After, 6*time.Second)
}

// TestGuessingFromMany: whoever guesses the password of a user, from whatever addresses, does not keep the user out. Each
// of the addresses is limited.
func TestGuessingFromMany(t *testing.T) {
	e := newEntrance(t, access.Locked)
	guesses := 0
	for second := range 600 {
		e.clk.Set(start.Add(time.Duration(second) * time.Second))
		for i := range 3 {
			if e.login(fmt.Sprintf("198.51.100.%d:1", i), "admin", "wrong") == 401 {
				guesses++
			}
		}
		e.users.known = make(map[string]bool) // as if the user came for the first time
		require.Equal(t, 200, e.login(fmt.Sprintf("203.0.113.%d:1", second%200), "admin", "right"), second)
	}
	require.Equal(t, 3*(10+599/6), guesses)
}

// TestAuditOfFailures: the log names who failed, escaped and bounded, and at most one line a second for an address.
func TestAuditOfFailures(t *testing.T) {
	e := newEntrance(t, access.Locked)
	for range 5 {
		e.login(far, "eve\nlevel=INFO msg=fine\x1b[2J"+strings.Repeat("x", 1<<10), "secret-guess")
	}
	e.login(farther, "admin", "secret-guess")
	text := e.log.String()
	require.Equal(t, 2, strings.Count(text, "\n"), text)
	require.Contains(t, text, `eve\nlevel=INFO msg=fine\x1b[2J`)
	require.Contains(t, text, "from=192.0.2.1")
	require.NotContains(t, text, "secret-guess")
	require.Less(t, len(text), 2<<10)
	e.clk.Set(start.Add(time.Second))
	e.login(far, "eve", "secret-guess")
	require.Contains(t, e.log.String(), "more_since_last=4")
}

// TestAuditIsBounded: however much strangers are refused, from however many addresses, the log has few lines. What is
// left out is counted, and hides nothing of those who have shown who they are.
func TestAuditIsBounded(t *testing.T) {
	e := newEntrance(t, access.Locked)
	audit := access.NewAudit(slog.New(slog.NewTextHandler(e.log, nil)), e.clk, prometheus.NewRegistry())
	for i := range 1000 {
		audit.Refused(e.request(fmt.Sprintf("198.51.%d.%d:1", i>>8, i&255)), access.Grant{}, "POST /x", 403)
		audit.Failed(e.request(fmt.Sprintf("[2001:db8::%x]:1", i)), "admin", "wrong")
	}
	require.LessOrEqual(t, strings.Count(e.log.String(), "\n"), 20)
	e.log.Reset()
	for range 5 {
		audit.Refused(e.request(far), access.Grant{Name: "token a"}, "POST /x", 403)
	}
	audit.Refused(e.request(far), access.Grant{Name: "token b"}, "POST /x", 403)
	require.Equal(t, 2, strings.Count(e.log.String(), "\n"), e.log)
	e.log.Reset()
	e.clk.Set(start.Add(time.Second))
	audit.Refused(e.request(farther), access.Grant{Name: "token a"}, "POST /x", 403)
	require.Contains(t, e.log.String(), `who="token a" from=192.0.2.2 action="POST /x" outcome=refused code=403 more_since_last=4`)

	for range 6 {
		e.login(far, "admin", "wrong")
	}
	require.NoError(t, testutil.GatherAndCompare(e.metrics, strings.NewReader(`
# HELP quern_audit_left_out_total Refused requests and credentials without a line in the audit log, which has one a second for a client.
# TYPE quern_audit_left_out_total counter
quern_audit_left_out_total 5
`)))
}
