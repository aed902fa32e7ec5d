package cassandratest

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"software.sslmate.com/src/go-pkcs12"
)

// TestCertificates: both ends check each other's certificate.
func TestCertificates(t *testing.T) {
	files, err := makeTLS(t.TempDir(), []string{"127.1.2.3", "127.1.2.4"})
	require.NoError(t, err)

	store, err := os.ReadFile(files.keystore)
	require.NoError(t, err)
	key, cert, _, err := pkcs12.DecodeChain(store, storePassword)
	require.NoError(t, err)
	store, err = os.ReadFile(files.truststore)
	require.NoError(t, err)
	trusted, err := pkcs12.DecodeTrustStore(store, storePassword)
	require.NoError(t, err)
	clients := x509.NewCertPool()
	for _, c := range trusted {
		clients.AddCert(c)
	}

	ca, err := os.ReadFile(files.CA)
	require.NoError(t, err)
	servers := x509.NewCertPool()
	require.True(t, servers.AppendCertsFromPEM(ca))
	client, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	require.NoError(t, err)

	here, there := net.Pipe()
	var group errgroup.Group
	group.Go(func() error {
		return tls.Server(there, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    clients,
		}).HandshakeContext(t.Context())
	})
	group.Go(func() error {
		return tls.Client(here, &tls.Config{
			Certificates: []tls.Certificate{client},
			RootCAs:      servers,
			ServerName:   "127.1.2.4",
		}).HandshakeContext(t.Context())
	})
	require.NoError(t, group.Wait())
}
