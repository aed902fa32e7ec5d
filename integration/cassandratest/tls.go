package cassandratest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TLSFiles are PEM files, for gocql's SslOptions.
type TLSFiles struct {
	// CA is the authority that the server's certificate is checked against: that certificate itself.
	CA string
	// Cert and Key are the client's.
	Cert, Key string

	// Server has the key and the certificate of the nodes.
	Server string
}

// makeTLS writes into dir a certificate for the nodes at these addresses, and one for a client.
func makeTLS(dir string, addresses []string) (*TLSFiles, error) {
	file := func(name string) string { return filepath.Join(dir, name+".pem") }
	f := &TLSFiles{CA: file("ca"), Server: file("server"), Cert: file("client"), Key: file("client-key")}
	cert, key, err := certify("node", addresses)
	if err != nil {
		return nil, err
	}
	client, clientKey, err := certify("client", nil)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{f.CA: cert, f.Server: append(key, cert...), f.Cert: client, f.Key: clientKey} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// certify returns a certificate that is its own authority, and its key. It is valid for the hours of
// a test.
func certify(name string, addresses []string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), err
}
