package webconfig_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/quern/quern/internal/access/webconfig"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: start.AddDate(-1, 0, 0), NotAfter: start.AddDate(20, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert, key}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue returns a certificate with a key, both as PEM.
func (a authority) issue(t *testing.T, name string, end time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "localhost"},
		NotBefore: start.AddDate(-1, 0, 0), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, private.Public(), a.key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// files are a web config file in a directory, and what it names.
type files struct {
	t   *testing.T
	dir string
}

func (f files) put(name, text string) { f.replace(name, []byte(text)) }

func (f files) replace(name string, text []byte) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, name), text, 0o600))
}

func (f files) path() string { return filepath.Join(f.dir, "web.yaml") }

func (f files) certificate(a authority, name string, end time.Time) {
	f.t.Helper()
	cert, key := a.issue(f.t, name, end)
	f.replace("cert.pem", cert)
	f.replace("key.pem", key)
}

const withTLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"

// hash is a hash of a password, as cheap as bcrypt allows.
func hash(t *testing.T, password string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	return string(h)
}

type world struct {
	files
	clk *clock.Simulated
	log *bytes.Buffer
	reg *prometheus.Registry
}

func newWorld(t *testing.T) world {
	t.Helper()
	return world{files{t, t.TempDir()}, clock.NewSimulated(start), &bytes.Buffer{}, prometheus.NewRegistry()}
}

func (w world) open() (*webconfig.Config, error) {
	return webconfig.Open(w.path(), webconfig.Options{Clock: w.clk, Logger: slog.New(slog.NewTextHandler(w.log, nil)), Metrics: w.reg})
}

func (w world) mustOpen() *webconfig.Config {
	w.t.Helper()
	c, err := w.open()
	require.NoError(w.t, err)
	return c
}

// handshake connects, and returns the state as the client sees it.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	near, far := net.Pipe()
	defer near.Close()
	var serving sync.WaitGroup
	serving.Go(func() {
		defer far.Close()
		over := tls.Server(far, server)
		if over.HandshakeContext(t.Context()) == nil {
			_, _ = over.Write([]byte("x")) // a client learns of a refused certificate only when it reads
		}
	})
	defer serving.Wait()
	over := tls.Client(near, client)
	if err := over.HandshakeContext(t.Context()); err != nil {
		near.Close()
		return tls.ConnectionState{}, err
	}
	_, err := over.Read(make([]byte, 1))
	near.Close()
	return over.ConnectionState(), err
}

func (w world) client(a authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, ServerName: "localhost", Time: w.clk.Now, MinVersion: tls.VersionTLS10} //nolint:gosec // tries what must be refused
}

// TestInvalid: a file that would not protect as it seems to is refused, with what is wrong.
func TestInvalid(t *testing.T) {
	ca := newAuthority(t)
	for name, c := range map[string]struct{ text, want string }{
		"no YAML":            {"\t", "found character that cannot start any token"},
		"unknown key":        {"basic_auth_user:\n  a: b\n", "basic_auth_user"},
		"no hash":            {"basic_auth_users:\n  admin: secret\n", "bcrypt"},
		"no key":             {"tls_server_config:\n  cert_file: cert.pem\n", "key"},
		"another key":        {"tls_server_config:\n  cert_file: cert.pem\n  key_file: other.pem\n", "private key does not match"},
		"missing":            {"tls_server_config:\n  cert_file: nowhere.pem\n  key_file: key.pem\n", "nowhere.pem"},
		"old version":        {withTLS + "  min_version: TLS11\n", "min_version must be TLS12"},
		"versions":           {withTLS + "  min_version: TLS13\n  max_version: TLS12\n", "max_version"},
		"weak cipher":        {withTLS + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]\n", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA is not sound"},
		"no cipher":          {withTLS + "  cipher_suites: [ROT13]\n", "unknown cipher"},
		"no CA":              {withTLS + "  client_auth_type: RequireAndVerifyClientCert\n", "needs client_ca_file"},
		"empty CA":           {withTLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: web.yaml\n", "no certificate among"},
		"CA for nothing":     {withTLS + "  client_ca_file: ca.pem\n", "without a Client Auth Policy"},
		"unknown header":     {"http_server_config:\n  headers:\n    X-Mine: a\n", "can not be configured"},
		"another kind of CA": {withTLS + "  client_auth_type: Sometimes\n", "invalid ClientAuth"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.certificate(ca, "quern.example", start.AddDate(1, 0, 0))
			_, other := ca.issue(t, "other", start.AddDate(1, 0, 0))
			w.replace("other.pem", other)
			w.replace("ca.pem", ca.pem())
			w.put("web.yaml", c.text)
			_, err := w.open()
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "--web.config.file")
		})
	}
	_, err := newWorld(t).open()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestOnlySoundTLS: of all that Go's TLS can do, only what is sound is agreed on.
func TestOnlySoundTLS(t *testing.T) {
	ca, w := newAuthority(t), newWorld(t)
	w.certificate(ca, "quern.example", start.AddDate(1, 0, 0))
	w.put("web.yaml", withTLS)
	server := w.mustOpen().TLS("h2", "http/1.1")
	server.Time = w.clk.Now

	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		client := w.client(ca)
		client.MinVersion, client.MaxVersion = version, version
		_, err := handshake(t, server, client)
		require.ErrorContains(t, err, "protocol version", tls.VersionName(version))
	}
	agreed := 0
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		if !slices.Contains(suite.SupportedVersions, tls.VersionTLS12) {
			continue
		}
		client := w.client(ca)
		client.MaxVersion, client.CipherSuites = tls.VersionTLS12, []uint16{suite.ID}
		state, err := handshake(t, server, client)
		sound := slices.Contains([]string{
			"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
		}, suite.Name)
		require.Equal(t, sound, err == nil, "%s: %v", suite.Name, err)
		if sound {
			agreed++
			require.Equal(t, suite.ID, state.CipherSuite)
		}
	}
	require.Equal(t, 3, agreed)

	client := w.client(ca)
	client.NextProtos = []string{"h2"}
	state, err := handshake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, uint16(tls.VersionTLS13), state.Version)
	require.Equal(t, "h2", state.NegotiatedProtocol)
}

// TestClientCertificates: the CA decides, also after its file has been replaced.
func TestClientCertificates(t *testing.T) {
	ca, other, w := newAuthority(t), newAuthority(t), newWorld(t)
	w.certificate(ca, "quern.example", start.AddDate(1, 0, 0))
	w.replace("ca.pem", ca.pem())
	w.put("web.yaml", withTLS+"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n")
	c := w.mustOpen()
	require.True(t, c.CertificateRequired())
	try := func(by *authority) error {
		server, client := c.TLS(), w.client(ca)
		server.Time = w.clk.Now
		if by != nil {
			cert, err := tls.X509KeyPair(by.issue(t, "agent-1", start.AddDate(1, 0, 0)))
			require.NoError(t, err)
			// Whatever the server asks for.
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		}
		_, err := handshake(t, server, client)
		return err
	}
	require.NoError(t, try(&ca))
	require.Error(t, try(&other))
	require.ErrorContains(t, try(nil), "certificate required")

	// The authority stays, and so does the demand, until a restart ends the connections that were made by them.
	for _, change := range []func(){
		func() { w.replace("ca.pem", other.pem()) },
		func() { w.put("web.yaml", withTLS) },
	} {
		change()
		require.ErrorContains(t, c.Reload(), "without a restart")
		require.NoError(t, try(&ca))
		require.Error(t, try(&other))
		require.ErrorContains(t, try(nil), "certificate required")
	}
}

// TestUsersStay: a reload takes some users away, but not all: certificates would be enough then.
func TestUsersStay(t *testing.T) {
	w := newWorld(t)
	user := func(name string) string { return "  " + name + ": " + hash(t, "right") + "\n" }
	w.put("web.yaml", "basic_auth_users:\n"+user("a")+user("b"))
	c := w.mustOpen()
	w.put("web.yaml", "basic_auth_users:\n"+user("b"))
	require.NoError(t, c.Reload())
	_, stays := c.Fingerprint("a")
	require.False(t, stays)
	for _, text := range []string{"", "basic_auth_users: {}\n"} {
		w.put("web.yaml", text)
		require.ErrorContains(t, c.Reload(), "only a restart can take all users away")
		require.True(t, c.HasUsers())
	}
}

// TestRateLimit: what one client has used up is not missing to others.
func TestRateLimit(t *testing.T) {
	w := newWorld(t)
	w.put("web.yaml", "rate_limit:\n  interval: 1s\n  burst: 2\n")
	c := w.mustOpen()
	clients := limits.NewClients(nil)
	for _, from := range []string{"192.0.2.1:1", "192.0.2.2:1", "[2001:db8::1]:1"} {
		who := clients.ByAddress(from)
		require.True(t, c.Allow(who))
		require.True(t, c.Allow(who))
		require.False(t, c.Allow(who), from)
	}
	require.False(t, c.Allow(clients.ByAddress("[2001:db8::2]:1")), "the same network")
	w.clk.Set(start.Add(time.Second))
	require.True(t, c.Allow(clients.ByAddress("192.0.2.1:2")))
	require.False(t, c.Allow(clients.ByAddress("192.0.2.1:3")))
}

// TestReload: a change is used if all of it can be; otherwise all stays as it was, and the log and a metric say so.
func TestReload(t *testing.T) {
	ca, w := newAuthority(t), newWorld(t)
	w.certificate(ca, "first", start.AddDate(1, 0, 0))
	users := func(password string) string {
		return withTLS + "basic_auth_users:\n  admin: " + hash(t, password) + "\n"
	}
	w.put("web.yaml", users("one"))
	c := w.mustOpen()
	server := c.TLS()
	server.Time = w.clk.Now
	name := func() string {
		state, err := handshake(t, server, w.client(ca))
		require.NoError(t, err)
		return state.PeerCertificates[0].Subject.CommonName
	}
	good := func() float64 { return metric(t, w.reg, "quern_web_config_last_reload_successful") }
	has := func(password string) bool {
		ok, err := c.Check("admin", password)
		require.NoError(t, err)
		return ok
	}
	require.Equal(t, "first", name())
	require.True(t, has("one"))

	w.certificate(ca, "second", start.AddDate(1, 0, 0))
	require.NoError(t, c.Reload())
	require.Equal(t, "second", name())
	w.put("web.yaml", users("two"))
	require.NoError(t, c.Reload())
	require.False(t, has("one"), "also not from what was remembered")
	require.True(t, has("two"))
	require.InDelta(t, 1, good(), 0)

	for what, change := range map[string]func(){
		"half a certificate": func() { w.put("cert.pem", "-----BEGIN CERT") },
		"a key of another":   func() { _, key := ca.issue(t, "x", start.AddDate(1, 0, 0)); w.replace("key.pem", key) },
		"no file":            func() { require.NoError(t, os.Remove(w.path())) },
		"no certificate":     func() { require.NoError(t, os.Remove(filepath.Join(w.dir, "cert.pem"))) },
		"no YAML":            func() { w.put("web.yaml", "\t") },
		"no TLS":             func() { w.put("web.yaml", "basic_auth_users:\n  admin: "+hash(t, "three")+"\n") },
		"http2":              func() { w.put("web.yaml", users("three")+"http_server_config:\n  http2: false\n") },
		"an expired one":     func() { w.certificate(ca, "old", start.Add(-time.Hour)) },
	} {
		t.Run(what, func(t *testing.T) {
			w.log.Reset()
			change()
			require.Error(t, c.Reload())
			require.InDelta(t, 0, good(), 0)
			require.Contains(t, w.log.String(), "the earlier one stays in use")
			w.log.Reset()
			require.ErrorContains(t, c.Reload(), "web.yaml")
			require.Empty(t, w.log.String(), "said once")
			require.Equal(t, "second", name())
			require.True(t, has("two"))
			require.False(t, has("three"))

			w.certificate(ca, "second", start.AddDate(1, 0, 0))
			w.put("web.yaml", users("two"))
			require.NoError(t, c.Reload())
			require.InDelta(t, 1, good(), 0)
		})
	}
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestCertificateEnds: before a certificate ends, and after, the log says so now and then. A new one is used without
// a restart.
func TestCertificateEnds(t *testing.T) {
	ca, w := newAuthority(t), newWorld(t)
	w.certificate(ca, "quern.example", start.Add(30*24*time.Hour))
	w.put("web.yaml", withTLS)
	c := w.mustOpen()
	require.Empty(t, w.log.String())
	require.InDelta(t, float64(start.Add(30*24*time.Hour).Unix()), metric(t, w.reg, "quern_tls_certificate_not_after_timestamp_seconds"), 0)

	logged := func() string {
		defer w.log.Reset()
		require.NoError(t, c.Reload())
		return w.log.String()
	}
	w.clk.Set(start.Add(17 * 24 * time.Hour))
	require.Contains(t, logged(), "expires soon")
	require.Empty(t, logged())
	w.clk.Set(start.Add(18 * 24 * time.Hour))
	require.Contains(t, logged(), "expires soon")
	w.clk.Set(start.Add(31 * 24 * time.Hour))
	require.Contains(t, logged(), "has expired")
	w.clk.Set(start.AddDate(-2, 0, 0))
	require.Contains(t, logged(), "not valid yet")
	w.clk.Set(start.Add(31 * 24 * time.Hour))
	w.certificate(ca, "quern.example", start.AddDate(2, 0, 0))
	require.Contains(t, logged(), "read again")
	require.Empty(t, logged())
	require.InDelta(t, float64(start.AddDate(2, 0, 0).Unix()), metric(t, w.reg, "quern_tls_certificate_not_after_timestamp_seconds"), 0)
}

// TestUsers: only a user with the password is let in, and a changed password is another fingerprint.
func TestUsers(t *testing.T) {
	w := newWorld(t)
	w.put("web.yaml", "basic_auth_users:\n  admin: "+hash(t, "right")+"\n  other: "+hash(t, "right")+"\n")
	c := w.mustOpen()
	require.True(t, c.HasUsers())
	for _, at := range []struct {
		user, password string
		want           bool
	}{
		{"admin", "right", true},
		{"admin", "right", true},
		{"admin", "wrong", false},
		{"admin", "", false},
		{"nobody", "right", false},
		{"nobody", "", false},
		{"", "", false},
		{"other", "right", true},
	} {
		ok, err := c.Check(at.user, at.password)
		require.NoError(t, err)
		require.Equal(t, at.want, ok, at)
		require.Equal(t, at.want, c.Knows(at.user, at.password), "only what is right is remembered: %v", at)
	}
	a, _ := c.Fingerprint("admin")
	b, _ := c.Fingerprint("other")
	require.NotEqual(t, a, b)
	_, ok := c.Fingerprint("nobody")
	require.False(t, ok)

	// As Prometheus' own, an empty file is valid.
	w.reg = prometheus.NewRegistry()
	w.put("web.yaml", "# nothing yet\n")
	c = w.mustOpen()
	require.False(t, c.HasUsers())
	require.Nil(t, c.TLS())
	ok, err := c.Check("admin", "right")
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, 0, testutil.CollectAndCount(w.reg, "quern_tls_certificate_not_after_timestamp_seconds"))
}

// TestGuessesTakeTurns: one password is compared at a time, and few wait. That bounds the guesses of all clients
// together.
func TestGuessesTakeTurns(t *testing.T) {
	w := newWorld(t)
	w.put("web.yaml", "basic_auth_users:\n  admin: "+hash(t, "right")+"\n")
	c := w.mustOpen()
	_, err := c.Check("admin", "right")
	require.NoError(t, err)

	waiting, release := c.HoldTurn()
	var guesses sync.WaitGroup
	for i := range webconfig.MostWaiting {
		guesses.Go(func() {
			ok, err := c.Check("admin", fmt.Sprint(i))
			assert.NoError(t, err)
			assert.False(t, ok)
		})
	}
	require.Eventually(t, func() bool { return waiting() == webconfig.MostWaiting }, time.Minute, time.Millisecond)
	_, err = c.Check("admin", "one more")
	require.ErrorIs(t, err, webconfig.ErrBusy)
	require.True(t, c.Knows("admin", "right"), "who was found right before does not wait")
	release()
	guesses.Wait()
	ok, err := c.Check("admin", "one more")
	require.NoError(t, err)
	require.False(t, ok)
}
