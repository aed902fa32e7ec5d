package client

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Access says how a client shows who it is, and whom it trusts.
type Access struct {
	// Token is sent as Authorization: Bearer. TokenFile holds one, and is read for each request, so that it can be
	// replaced.
	Token, TokenFile string
	// CAFile has the authorities that may have signed the server's certificate. The default is those of the system.
	CAFile string
	// CertFile and KeyFile are the client's certificate.
	CertFile, KeyFile string
	// SkipVerify takes any certificate of the server.
	SkipVerify bool
}

// HTTP returns an HTTP client for the server at a URL. It shows the token to that server only, wherever it is
// redirected to.
func (a *Access) HTTP(base string) (*http.Client, error) {
	server, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if *a == (Access{}) {
		return http.DefaultClient, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: a.SkipVerify} //nolint:gosec // the user asks for it
	if a.CAFile != "" {
		text, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		if conf.RootCAs = x509.NewCertPool(); !conf.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca-file %s: there is no certificate in PEM", a.CAFile)
		}
	}
	if a.CertFile != "" {
		// Read for each connection, so that a new one can take the place of one that expires.
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
			return &cert, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("--cert-file: %w", err)
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	if _, err := a.token(); err != nil {
		return nil, err
	}
	to := http.DefaultTransport.(*http.Transport).Clone()
	to.TLSClientConfig = conf
	return &http.Client{Transport: &bearer{access: a, scheme: server.Scheme, host: server.Host, next: to}}, nil
}

// token returns the token to send, "" for none.
func (a *Access) token() (string, error) {
	if a.TokenFile == "" {
		return a.Token, nil
	}
	text, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("--token-file %s: it must have one line, with the token", a.TokenFile)
	}
	return token, nil
}

// bearer adds the token to the requests to one server.
type bearer struct {
	access       *Access
	scheme, host string
	next         *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != b.scheme || r.URL.Host != b.host {
		return b.next.RoundTrip(r)
	}
	token, err := b.access.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return b.next.RoundTrip(r)
}

// CloseIdleConnections lets http.Client close them.
func (b *bearer) CloseIdleConnections() { b.next.CloseIdleConnections() }
