package client_test

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/client"
)

// server answers with the header Authorization, or redirects to another server.
func server(t *testing.T, to string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func put(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func ask(t *testing.T, base string, a client.Access) (string, error) {
	t.Helper()
	with, err := a.HTTP(base)
	if err != nil {
		return "", err
	}
	t.Cleanup(with.CloseIdleConnections)
	resp, err := (&client.Client{URL: base, HTTP: with}).Do(t.Context(), http.MethodPost, "/", url.Values{"a": {"b"}})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text), nil
}

// TestAccess: the token goes to the server whose URL was given, whose certificate is trusted, and to no other.
func TestAccess(t *testing.T) {
	s := server(t, "")
	ca := put(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	got, err := ask(t, s.URL, client.Access{Token: "quern_a_b", CAFile: ca})
	require.NoError(t, err)
	require.Equal(t, "Bearer quern_a_b", got)
	got, err = ask(t, s.URL, client.Access{SkipVerify: true})
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = ask(t, s.URL, client.Access{Token: "quern_a_b"})
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))

	file := put(t, "token", "first\n")
	a := client.Access{TokenFile: file, CAFile: ca}
	got, err = ask(t, s.URL, a)
	require.NoError(t, err)
	require.Equal(t, "Bearer first", got)
	with, err := a.HTTP(s.URL)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	resp, err := (&client.Client{URL: s.URL, HTTP: with}).Do(t.Context(), http.MethodGet, "/", nil)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "Bearer second", string(text), "without a restart")
	with.CloseIdleConnections()

	elsewhere := server(t, s.URL)
	got, err = ask(t, elsewhere.URL, client.Access{Token: "quern_a_b", CAFile: ca})
	require.NoError(t, err)
	require.Empty(t, got, "the server that one is redirected to learns no token")
}

func TestInvalidAccess(t *testing.T) {
	for want, a := range map[string]client.Access{
		"--ca-file: open":          {CAFile: "nowhere"},
		"no certificate in PEM":    {CAFile: put(t, "ca.pem", "x")},
		"--cert-file: open":        {CertFile: "nowhere", KeyFile: "nowhere"},
		"--token-file: open":       {TokenFile: "nowhere"},
		"it must have one line":    {TokenFile: put(t, "token", "\n")},
		"one line, with the token": {TokenFile: put(t, "token", "a\nb\n")},
	} {
		_, err := a.HTTP("https://127.0.0.1:1")
		require.ErrorContains(t, err, want)
	}
	with, err := (&client.Access{}).HTTP("http://127.0.0.1:1")
	require.NoError(t, err)
	require.Equal(t, http.DefaultClient, with)
}
