package cassandratest

import (
	"crypto"
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

	"software.sslmate.com/src/go-pkcs12"
)

// storePassword opens the certificate stores; Java requires a password.
const storePassword = "quern-test"

// TLSFiles are PEM files, for gocql's SslOptions.
type TLSFiles struct {
	// CA is the authority that the server's certificate is checked against.
	CA string
	// Cert and Key are the client's.
	Cert, Key string

	keystore, truststore string // PKCS 12, for the server
}

// nodeTLS is the TLS part of a node's configuration.
type nodeTLS struct {
	Keystore, Truststore, Password string
	RequireClientAuth              bool
}

func (f *TLSFiles) forNode(t TLS) *nodeTLS {
	if f == nil {
		return nil
	}
	return &nodeTLS{
		Keystore: f.keystore, Truststore: f.truststore, Password: storePassword,
		RequireClientAuth: t == TLSMutual,
	}
}

// authority issues certificates that are valid for the hours of a test.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// makeTLS writes an authority and its certificates into dir: one for the nodes at these addresses,
// and one for a client.
func makeTLS(dir string, addresses []string) (*TLSFiles, error) {
	f := &TLSFiles{
		CA:         filepath.Join(dir, "ca.pem"),
		Cert:       filepath.Join(dir, "client.pem"),
		Key:        filepath.Join(dir, "client-key.pem"),
		keystore:   filepath.Join(dir, "server.p12"),
		truststore: filepath.Join(dir, "clients.p12"),
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, address := range addresses {
		ips = append(ips, net.ParseIP(address))
	}
	server, serverKey, err := ca.issue("node", x509.ExtKeyUsageServerAuth, ips)
	if err != nil {
		return nil, err
	}
	client, clientKey, err := ca.issue("client", x509.ExtKeyUsageClientAuth, nil)
	if err != nil {
		return nil, err
	}
	clientKeyDER, err := x509.MarshalPKCS8PrivateKey(clientKey)
	if err != nil {
		return nil, err
	}
	keystore, err := pkcs12.Modern.Encode(serverKey, server, []*x509.Certificate{ca.cert}, storePassword)
	if err != nil {
		return nil, err
	}
	truststore, err := pkcs12.Modern.EncodeTrustStore([]*x509.Certificate{ca.cert}, storePassword)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{
		f.CA:         pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}),
		f.Cert:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: client.Raw}),
		f.Key:        pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: clientKeyDER}),
		f.keystore:   keystore,
		f.truststore: truststore,
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate("Quern test authority", 1)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

func (a *authority) issue(name string, usage x509.ExtKeyUsage, ips []net.IP) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := certificate(name, int64(2+usage))
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	template.IPAddresses = ips
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

func certificate(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
	}
}
