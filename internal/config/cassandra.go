package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// Cluster says which Cassandra cluster to connect to, and how.
type Cluster struct {
	Hosts       []string
	Keyspace    string
	Consistency string
	LocalDC     string

	Username string
	Password Secret

	TLS           bool
	CA, Cert, Key string // files
	Timeout       time.Duration
	Direct        bool // connects only to Hosts
}

// Secret is a text that is never printed.
type Secret string

// String implements fmt.Stringer.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(secret)"
}

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return s.String() }

// MarshalText implements encoding.TextMarshaler, which JSON and logs use.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// consistencies are the CQL levels that are valid for both reads and writes.
var consistencies = []string{"ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM", "EACH_QUORUM"}

// addRows adds the rows of a Cassandra cluster.
func (cl *Cluster) addRows(o *options) {
	store := o.store()
	parsed(store, &cl.Hosts, "cassandra-hosts", "127.0.0.1:9042", "`HOST:PORT,…` of the first nodes to contact; the others are found through them", parseHosts)
	store.required(&cl.Keyspace, "keyspace", "quern", "keyspace that holds the tables")
	store.oneOf(&cl.Consistency, "consistency", "LOCAL_QUORUM", "how many copies must answer a read or a write: "+strings.Join(consistencies, ", "), consistencies...)
	store.text(&cl.LocalDC, "local-dc", "", "data centre to read from and write to (default: the cluster's only one)")
	store.text(&cl.Username, "cassandra-username", "", "Cassandra user to log in as")
	parsed(store, &cl.Password, "cassandra-password-file", "", "`FILE` that holds the Cassandra user's password", secretIn)
	store.boolean(&cl.TLS, "cassandra-tls", false, "encrypt connections; implied by --cassandra-ca, --cassandra-cert and --cassandra-key")
	store.text(&cl.CA, "cassandra-ca", "", "PEM `FILE` of trusted certificate authorities (default: those of this system)")
	store.text(&cl.Cert, "cassandra-cert", "", "PEM `FILE` of the client certificate")
	store.text(&cl.Key, "cassandra-key", "", "PEM `FILE` of the client certificate's key")
	store.span(&cl.Timeout, "cassandra-timeout", 5*time.Second, positive, "maximum time to wait for the answer to one request")
	store.boolean(&cl.Direct, "cassandra-direct", false, "connect only to the named hosts, for example through published ports")
	o.check(func(c *cli.Context) error {
		if cl.Username == "" && c.String("cassandra-password-file") != "" {
			return errors.New("--cassandra-username: must not be empty when a password is given")
		}
		return nil
	})
	o.check(func(*cli.Context) error { return together("cassandra-cert", cl.Cert, "cassandra-key", cl.Key) })
}

// together returns an error if one of a certificate and its key is missing.
func together(certFlag, cert, keyFlag, key string) error {
	if (cert == "") == (key == "") {
		return nil
	}
	return fmt.Errorf("--%s %s: must be given together with --%s", certFlag, cert, keyFlag)
}

// hosts parses a list of hosts, each with or without a port.
func parseHosts(text string) (out []string, err error) {
	if text == "" {
		return nil, errEmpty
	}
	for host := range strings.SplitSeq(text, ",") {
		host = strings.TrimSpace(host)
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = host, "9042"
			if strings.Contains(host, ":") && net.ParseIP(host) == nil {
				name = ""
			}
		}
		if n, err := strconv.ParseUint(port, 10, 16); name == "" || err != nil || n == 0 {
			return nil, errors.New("must be HOST or HOST:PORT, or several of them separated by commas")
		}
		out = append(out, host)
	}
	return out, nil
}

// secretIn reads the secret in a file, "" for no file.
func secretIn(file string) (Secret, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	return Secret(strings.TrimRight(string(text), "\r\n")), err
}
