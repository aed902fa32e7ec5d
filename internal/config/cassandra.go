package config

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
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

// cluster reads the flags of a Cassandra cluster.
func (p *parser) cluster() Cluster {
	cl := Cluster{
		Hosts:       p.hosts("cassandra-hosts"),
		Keyspace:    p.required("keyspace"),
		Consistency: p.oneOf("consistency", consistencies...),
		LocalDC:     p.c.String("local-dc"),
		Username:    p.c.String("cassandra-username"),
		Password:    p.password(),
		TLS:         p.c.Bool("cassandra-tls"),
		CA:          p.c.String("cassandra-ca"),
		Cert:        p.c.String("cassandra-cert"),
		Key:         p.c.String("cassandra-key"),
		Timeout:     p.positive("cassandra-timeout"),
		Direct:      p.c.Bool("cassandra-direct"),
	}
	if (cl.Cert == "") != (cl.Key == "") {
		p.fail("cassandra-cert", "must be given together with --cassandra-key")
	}
	return cl
}

// hosts reads a list of hosts, each with or without a port.
func (p *parser) hosts(flag string) []string {
	var out []string
	for host := range strings.SplitSeq(p.required(flag), ",") {
		host = strings.TrimSpace(host)
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = host, "9042"
			if strings.Contains(host, ":") && net.ParseIP(host) == nil {
				name = ""
			}
		}
		if n, err := strconv.ParseUint(port, 10, 16); name == "" || err != nil || n == 0 {
			p.fail(flag, "must be HOST or HOST:PORT, or several of them separated by commas")
			return nil
		}
		out = append(out, host)
	}
	return out
}

func (p *parser) password() Secret {
	file := p.c.String("cassandra-password-file")
	if file == "" {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		p.fail("cassandra-password-file", "%s", err)
	}
	if p.c.String("cassandra-username") == "" {
		p.add(errors.New("--cassandra-username: must not be empty when a password is given"))
	}
	return Secret(strings.TrimRight(string(text), "\r\n"))
}

// replication validates --replication, the replication of a new keyspace.
func (p *parser) replication() string {
	text := p.c.String("replication")
	if text == "" {
		return ""
	}
	for part := range strings.SplitSeq(text, ",") {
		dc, copies, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(strings.TrimSpace(copies)); strings.TrimSpace(dc) == "" || err != nil || n < 1 {
			p.fail("replication", "must be DC=COPIES, such as dc1=3,dc2=3")
			break
		}
	}
	return text
}
