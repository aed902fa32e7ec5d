package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/wire"
)

// keys writes a certificate for 127.0.0.1 and its key to a directory, and returns a pool that trusts it.
func keys(t testing.TB, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "test"}}, key.Public(), key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

const servesTLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"

// lockedServer makes a server with a web config file whose user is admin, with the password "right".
func lockedServer(t testing.TB, config string) (*server, *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	trusted := keys(t, dir)
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	require.NoError(t, err)
	path := filepath.Join(dir, "web.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config+"basic_auth_users:\n  admin: "+string(hash)+"\n"), 0o600))
	s := testServer(t)
	s.cfg.WebConfig = path
	require.NoError(t, s.openWebConfig())
	return s, trusted
}

// caller sends requests over TLS.
func caller(t *testing.T, trusted *x509.CertPool) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true} //nolint:gosec // what the server offers
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// answered is a response without its body.
type answered struct {
	StatusCode, ProtoMajor int
	Header                 http.Header
}

func call(t *testing.T, client *http.Client, method, url, body string, user ...string) (a answered, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if len(user) > 0 {
		r.SetBasicAuth(user[0], user[1])
	}
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answered{resp.StatusCode, resp.ProtoMajor, resp.Header}, string(all)
}

// TestRolesOfClients: at every endpoint of a locked server, who has the role gets in, and nobody else does.
func TestRolesOfClients(t *testing.T) {
	s := newBoundServer(t)
	tokens := map[string]access.Role{"": 0, "quern_aaaaaaaaaaaaaaaa_" + strings.Repeat("a", 32): 0, "wrong": 0}
	for _, role := range []access.Role{access.Read, access.Write, access.Admin, access.Read | access.Write} {
		tokens[s.token(access.NewToken{Roles: role})] = role
	}
	for _, need := range s.http.Routes() {
		method, path := endpoint(need.Pattern, http.MethodPost, "job")
		if path == "/api/v1/login" {
			continue // answers 401 to what is no login
		}
		if strings.HasPrefix(path, "/debug/") {
			path += "?seconds=1" // for those that take time
		}
		for token, role := range tokens {
			var headers []string
			if token == "" {
				headers = []string{"Authorization", ""}
			}
			code := s.send(token, method, path, "", headers...).Code
			refused := code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusTooManyRequests
			require.Equal(t, !role.Has(need.Role), refused, "%s as %q: %d", need.Pattern, role, code)
		}
	}
}

// TestLocked: who has the password reads, writes and administers, over HTTP/2.
func TestLocked(t *testing.T) {
	s, trusted := lockedServer(t, servesTLS+"http_server_config:\n  headers:\n    Strict-Transport-Security: max-age=60\n")
	addr, _ := running(t, s)
	addr = strings.Replace(addr, "http://", "https://", 1)
	client := caller(t, trusted)
	resp, body := call(t, client, http.MethodPost, addr+"/api/v1/reports", `{"source":"a","measurements":[{"metric":"m","value":1}]}`, "admin", "right")
	require.Equal(t, 200, resp.StatusCode, body)
	require.Equal(t, 2, resp.ProtoMajor)
	require.Equal(t, "max-age=60", resp.Header.Get("Strict-Transport-Security"))
	resp, body = call(t, client, http.MethodGet, addr+"/api/v1/query?query=m", "", "admin", "right")
	require.Equal(t, 200, resp.StatusCode)
	require.Contains(t, body, `"source":"a"`)
	resp, body = call(t, client, http.MethodGet, addr+"/api/v1/tokens", "", "admin", "right")
	require.Equal(t, 200, resp.StatusCode, body)
	resp, _ = call(t, client, http.MethodGet, addr+"/metrics", "")
	require.Equal(t, 401, resp.StatusCode)
	_, body = call(t, client, http.MethodGet, addr+"/metrics", "", "admin", "right")
	require.Contains(t, body, "quern_web_config_last_reload_successful 1")
	require.Contains(t, body, `quern_http_requests_total{code="200",path="/api/v1/query"} 1`)

	plain, body := call(t, http.DefaultClient, http.MethodGet, strings.Replace(addr, "https://", "http://", 1)+"/api/v1/query?query=m", "", "admin", "right")
	require.Equal(t, http.StatusBadRequest, plain.StatusCode, body)
}

// TestRateLimit: what the file limits is limited.
func TestRateLimit(t *testing.T) {
	s, trusted := lockedServer(t, servesTLS+"http_server_config:\n  http2: false\nrate_limit:\n  interval: 1h\n  burst: 1\n")
	addr, _ := running(t, s)
	addr = strings.Replace(addr, "http://", "https://", 1)
	client := caller(t, trusted)
	resp, _ := call(t, client, http.MethodGet, addr+"/-/healthy", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, 1, resp.ProtoMajor)
	resp, _ = call(t, client, http.MethodGet, addr+"/-/healthy", "")
	require.Equal(t, 429, resp.StatusCode)
}

// TestStrangersAreRefused: a process does not start where strangers would get in.
func TestStrangersAreRefused(t *testing.T) {
	everywhere := func(t *testing.T) net.Listener {
		t.Helper()
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return elsewhere{l}
	}
	here, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer here.Close()

	s := testServer(t)
	require.ErrorContains(t, s.run(t.Context(), everywhere(t), nil), "other machines reach this address, and nobody would have to log in")
	s.lines = everywhere(t)
	require.ErrorContains(t, s.run(t.Context(), here, nil), "--graphite-listen")
	s.cfg.Insecure = true
	lock, err := s.lock(here)
	require.NoError(t, err)
	require.Equal(t, access.Open, lock)
	lock, err = s.lock(everywhere(t))
	require.NoError(t, err)
	require.Equal(t, access.Insecure, lock)

	s, _ = lockedServer(t, servesTLS)
	lock, err = s.lock(everywhere(t))
	require.NoError(t, err)
	require.Equal(t, access.Locked, lock)
	lock, err = s.lock(here)
	require.NoError(t, err)
	require.Equal(t, access.Locked, lock)
	s.lines = everywhere(t)
	_, err = s.lock(here)
	require.ErrorContains(t, err, "client_auth_type: RequireAndVerifyClientCert")
	s, _ = lockedServer(t, servesTLS+"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n")
	s.lines = everywhere(t)
	_, err = s.lock(here)
	require.NoError(t, err)
}

// elsewhere is a listener that other machines reach.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9095} }

// TestNamesOfOthers: where strangers are let in, a page whose name was made to lead to the server administers nothing,
// also in a browser on the server's machine.
func TestNamesOfOthers(t *testing.T) {
	for _, allowed := range [][]string{nil, {"quern.example"}} {
		s := testServer(t)
		s.cfg.Insecure, s.cfg.AllowedHosts = true, allowed
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		started, end := make(chan struct{}), make(chan error, 1)
		go func() { end <- s.run(ctx, elsewhere{l}, func(string) { close(started) }) }()
		<-started
		administers := func(host string) int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/debug/pprof/cmdline", nil)
			require.NoError(t, err)
			r.Host = host
			r.Header.Set("Origin", "http://"+host)
			r.Header.Set("Sec-Fetch-Site", "same-origin")
			resp, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return resp.StatusCode
		}
		require.Equal(t, 200, administers("localhost:9095"))
		if allowed == nil {
			require.Equal(t, 403, administers("evil.example:9095"))
		} else {
			require.Equal(t, 421, administers("evil.example:9095"))
			require.Equal(t, 200, administers("quern.example:9095"))
		}
		cancel()
		require.NoError(t, <-end)
	}
}

// TestLinesOverTLS: Graphite's lines come over TLS, from who has a certificate.
func TestLinesOverTLS(t *testing.T) {
	s, trusted := lockedServer(t, servesTLS+"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n")
	dir := filepath.Dir(s.cfg.WebConfig)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.lines = l
	addr, _ := running(t, s)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	settings := &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{pair}} //nolint:gosec // what the server offers

	// Without a certificate nothing is taken: the server ends the connection.
	stranger, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: trusted}) //nolint:gosec,noctx // as above
	if err == nil {
		_, err = stranger.Read(make([]byte, 1))
		require.ErrorContains(t, err, "certificate required")
		_ = stranger.Close()
	}
	conn, err := tls.Dial("tcp", l.Addr().String(), settings) //nolint:noctx // loopback
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "tea.temperature 71.5 %d\n", s.clk.Now().Unix())
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	client := caller(t, trusted)
	client.Transport.(*http.Transport).TLSClientConfig = settings
	for {
		_, body := call(t, client, http.MethodGet, strings.Replace(addr, "http://", "https://", 1)+`/api/v1/export?match[]={__name__=~"tea.*"}`, "", "admin", "right")
		if strings.Contains(body, "71.5") {
			break
		}
		require.NoError(t, t.Context().Err())
	}
}

// TestLogin: a page logs in by cookie, over TLS only for this host, and out again. The audit log has both.
func TestLogin(t *testing.T) {
	s, trusted := lockedServer(t, servesTLS)
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	addr, stop := running(t, s)
	addr = strings.Replace(addr, "http://", "https://", 1)
	client := caller(t, trusted)
	send := func(method, path, body string, headers ...string) (answered, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, addr+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return answered{resp.StatusCode, resp.ProtoMajor, resp.Header}, string(all)
	}
	resp, _ := send("POST", "/api/v1/login", "user=admin&password=wrong")
	require.Equal(t, 401, resp.StatusCode)
	require.Empty(t, resp.Header.Values("Set-Cookie"))
	resp, _ = send("POST", "/api/v1/login?user=admin&password=right", "")
	require.Equal(t, 401, resp.StatusCode, "a password in a URL is not taken")
	resp, _ = send("POST", "/api/v1/login", "user=admin&password=right", "Origin", "https://evil.example")
	require.Equal(t, 403, resp.StatusCode)
	resp, body := send("POST", "/api/v1/login", "user=admin&password=right", "Origin", addr)
	require.Equal(t, 200, resp.StatusCode, body)
	require.Contains(t, body, `"name":"user admin","roles":["admin"]`)
	set := resp.Header.Get("Set-Cookie")
	require.Regexp(t, `^__Host-quern=[^;]+; Path=/; Expires=[^;]+; HttpOnly; Secure; SameSite=Strict$`, set)
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	cookie, _, _ := strings.Cut(set, ";")

	_, body = send("GET", "/api/v1/login", "", "Cookie", cookie)
	require.JSONEq(t, `{"status":"success","name":"user admin","roles":["admin"]}`, body)
	_, body = send("GET", "/api/v1/login", "")
	require.JSONEq(t, `{"status":"success","name":"","roles":[]}`, body, "a stranger is nobody")

	resp, body = send("GET", "/api/v1/query?query=1", "", "Cookie", cookie)
	require.Equal(t, 200, resp.StatusCode, body)
	resp, _ = send("GET", "/api/v1/query?query=1", "", "Cookie", strings.Replace(cookie, "__Host-quern", "quern", 1))
	require.Equal(t, 401, resp.StatusCode, "a name that another host can set")
	resp, body = send("POST", "/api/v1/tokens", "name=web&role=write&expires=90d", "Cookie", cookie)
	require.Equal(t, 403, resp.StatusCode, body)
	resp, body = send("POST", "/api/v1/tokens", "name=web&role=write&expires=90d", "Cookie", cookie, "Origin", addr)
	require.Equal(t, 200, resp.StatusCode, body)
	require.Contains(t, body, `"author":"user admin"`)
	var made wire.NewToken
	require.NoError(t, json.Unmarshal([]byte(body), &made))
	resp, body = send("POST", "/api/v1/reports", `{"source":"a","measurements":[{"metric":"m","value":1}]}`, "Authorization", "Token "+made.Secret, "Content-Type", "application/json")
	require.Equal(t, 200, resp.StatusCode, body)
	for expires, lasts := range map[string]time.Duration{"": 90 * 24 * time.Hour, "&expires=1d": 24 * time.Hour, "&expires=0": 0} {
		resp, body = send("POST", "/api/v1/tokens", "name=lasting&role=read"+expires, "Cookie", cookie, "Origin", addr)
		require.Equal(t, 200, resp.StatusCode, body)
		var lasting wire.NewToken
		require.NoError(t, json.Unmarshal([]byte(body), &lasting))
		if lasts == 0 {
			require.Zero(t, lasting.Expires)
		} else {
			require.Equal(t, lasts.Milliseconds(), lasting.Expires-lasting.Created, expires)
		}
	}
	_, body = send("GET", "/api/v1/tokens", "", "Cookie", cookie)
	require.Contains(t, body, made.ID)
	require.NotContains(t, body, made.Secret)
	for _, bad := range []string{"name=a", "role=read", "name=a&role=root", "name=a&role=read&expires=-1d", "name=a&role=read&expires=x", "name=a&role=write&match[]={}"} {
		resp, body = send("POST", "/api/v1/tokens", bad, "Cookie", cookie, "Origin", addr)
		require.Equal(t, 400, resp.StatusCode, body)
	}
	for _, path := range []string{"/api/v1/tokens", "/api/v1/tokens/revoke"} {
		resp, body = send("POST", path, "name=a&role=read&id=a&password=hunter2", "Cookie", cookie, "Origin", addr)
		require.Equal(t, 400, resp.StatusCode, body)
		require.Contains(t, body, "unknown parameter")
		require.NotContains(t, body, "hunter2")
	}
	resp, body = send("GET", "/api/v1/tokens?p=hunter2", "", "Cookie", cookie)
	require.Equal(t, 400, resp.StatusCode, body)
	require.Contains(t, body, `unknown parameter \"p\"`)
	resp, body = send("POST", "/api/v1/import?p=hunter2", "", "Cookie", cookie, "Origin", addr)
	require.NotEqual(t, 401, resp.StatusCode, body)
	resp, body = send("POST", "/api/v1/tokens/revoke", "id="+made.Secret, "Cookie", cookie, "Origin", addr)
	require.Equal(t, 200, resp.StatusCode, body)
	resp, _ = send("POST", "/api/v1/reports", `[]`, "Authorization", "Token "+made.Secret)
	require.Equal(t, 401, resp.StatusCode)

	resp, _ = send("POST", "/api/v1/logout", "", "Cookie", cookie, "Origin", addr)
	require.Equal(t, 200, resp.StatusCode)
	require.Contains(t, resp.Header.Get("Set-Cookie"), "Max-Age=0")
	resp, _ = send("GET", "/api/v1/query?query=1", "", "Cookie", cookie)
	require.Equal(t, 401, resp.StatusCode)
	stop()

	for _, want := range []string{
		`component=audit who="user admin" from=127.0.0.1 action=login outcome=done`, `action=logout outcome=done`,
		`action="POST /api/v1/tokens" outcome=done code=200`, `form="name=web&role=write&expires=90d"`, `action="POST /api/v1/tokens/revoke"`, `msg="credential refused"`,
	} {
		require.Contains(t, log.String(), want)
	}
	for _, secret := range []string{"right", "hunter2", strings.TrimPrefix(made.Secret, "quern_"+made.ID+"_"), strings.TrimPrefix(cookie, "__Host-quern=")} {
		require.NotContains(t, log.String(), secret)
	}
}

// TestTokenCommands: an administrator makes, lists and revokes tokens by the command line, and programs use them.
func TestTokenCommands(t *testing.T) {
	s, _ := lockedServer(t, servesTLS)
	addr, _ := running(t, s)
	base := strings.Replace(addr, "http://", "https://", 1)
	dir := filepath.Dir(s.cfg.WebConfig)
	settings := func(url string) config.Connection {
		return config.Connection{URL: url, CAFile: filepath.Join(dir, "cert.pem")}
	}
	admin := settings(strings.Replace(base, "https://", "https://admin:right@", 1))

	require.ErrorContains(t, commands.Status(t.Context(), config.Status{Connection: settings(base)}, io.Discard, io.Discard), "needs a login with the role read")
	var out, errs bytes.Buffer
	require.NoError(t, commands.CreateToken(t.Context(), config.NewToken{Connection: admin, Name: "web-1", Roles: []string{"read", "write"}, Expires: time.Hour}, &out, &errs))
	require.Regexp(t, `^quern_\w+\n$`, out.String())
	require.Contains(t, errs.String(), "(web-1) has the roles read, write")
	require.NotContains(t, errs.String(), strings.TrimSpace(out.String()))
	file := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(file, out.Bytes(), 0o600))
	user := settings(base)
	user.TokenFile = file
	require.NoError(t, commands.Status(t.Context(), config.Status{Connection: user}, io.Discard, io.Discard))
	require.ErrorContains(t, commands.ListTokens(t.Context(), user, io.Discard, io.Discard), "needs the role admin, and token web-1")

	var lasting bytes.Buffer
	require.NoError(t, commands.CreateToken(t.Context(), config.NewToken{Connection: admin, Name: "lasting", Roles: []string{"read"}}, io.Discard, &lasting))
	require.Contains(t, lasting.String(), "valid for ever", "what 0 asks for")

	var said bytes.Buffer
	require.NoError(t, commands.CreateToken(t.Context(), config.NewToken{
		Connection: admin, Name: "team", Roles: []string{"read", "write"}, Match: []string{`{team="web"}`, `{team="ops"}`},
		MaxSeries: 1, MaxSamplesPerSecond: 2, MaxQueries: 3,
	}, io.Discard, &said))
	const bound = `only series of {team="web"} or {team="ops"}, at most 1 series, at most 2 samples a second, at most 3 queries at a time`
	require.Contains(t, said.String(), "It is for "+bound+". Keep it")
	var table bytes.Buffer
	require.NoError(t, commands.ListTokens(t.Context(), admin, &table, io.Discard))
	require.Contains(t, table.String(), bound+"\n")
	for want, n := range map[string]config.NewToken{
		"nothing would bind or limit it": {Roles: []string{"admin"}, Match: []string{`{team="web"}`}},
		"at least one matcher":           {Roles: []string{"read"}, Match: []string{`{team!="web"}`}},
		"counts those":                   {Roles: []string{"write"}, MaxSeries: 1},
	} {
		n.Connection, n.Name = admin, "x"
		require.ErrorContains(t, commands.CreateToken(t.Context(), n, io.Discard, io.Discard), want)
	}

	server, err := user.Client(io.Discard)
	require.NoError(t, err)
	sender, err := agent.NewHTTPSender(base, server.HTTP, s.clk)
	require.NoError(t, err)
	batch := batchOf(t, "m", clock.NowMs(s.clk))
	require.NoError(t, sender.Send(t.Context(), batch))

	var list bytes.Buffer
	require.NoError(t, commands.ListTokens(t.Context(), admin, &list, io.Discard))
	id := strings.Split(out.String(), "_")[1]
	require.Regexp(t, id+` +web-1 +read,write +\S+ +user admin +\S+ +-\n`, list.String())
	var sent url.Values
	seen := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm(); sent = r.Form }))
	defer seen.Close()
	whole := strings.TrimSpace(out.String())
	require.NoError(t, commands.RevokeToken(t.Context(), config.RevokeToken{Connection: config.Connection{URL: seen.URL}, ID: whole}, io.Discard, io.Discard))
	require.Equal(t, url.Values{"id": {id}}, sent, "the secret stays here")
	require.NoError(t, commands.RevokeToken(t.Context(), config.RevokeToken{Connection: admin, ID: whole}, io.Discard, io.Discard))
	require.ErrorContains(t, commands.RevokeToken(t.Context(), config.RevokeToken{Connection: admin, ID: "x"}, io.Discard, io.Discard), "there is no token")
	err = sender.Send(t.Context(), batch)
	require.ErrorContains(t, err, "unknown or revoked")
	require.NotErrorIs(t, err, agent.ErrRefused, "another token may come")
	server.HTTP.CloseIdleConnections()
}
