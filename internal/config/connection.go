package config

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/client"
)

// Connection holds how a command reaches a server, and shows who it is.
type Connection struct {
	URL                       string
	Token                     Secret
	TokenFile                 string
	CAFile, CertFile, KeyFile string
	SkipVerify                bool
}

// connectionFlags returns the flags of Connection, without the URL.
func connectionFlags() []cli.Flag {
	return []cli.Flag{
		str(catServer, "token", "", "token to log in with; other users of this machine see it in the list of processes: better use --token-file or QUERN_TOKEN"),
		str(catServer, "token-file", "", "`FILE` that holds the token to log in with; it is read for each request"),
		str(catServer, "ca-file", "", "PEM `FILE` of the authorities that may have signed the server's certificate (default: those of this system)"),
		str(catServer, "cert-file", "", "PEM `FILE` of the client certificate"),
		str(catServer, "key-file", "", "PEM `FILE` of the client certificate's key"),
		boolean(catServer, "insecure-skip-verify", false, "accept any server certificate"),
	}
}

func (p *parser) connection() Connection {
	c := Connection{
		URL: p.url(), Token: Secret(p.c.String("token")), TokenFile: p.c.String("token-file"), CAFile: p.c.String("ca-file"),
		CertFile: p.c.String("cert-file"), KeyFile: p.c.String("key-file"), SkipVerify: p.c.Bool("insecure-skip-verify"),
	}
	if c.Token != "" && c.TokenFile != "" {
		p.fail("token-file", "conflicts with --token: give only one of them")
	}
	if strings.ContainsAny(string(c.Token), " \r\n\t") {
		p.add(fmt.Errorf("--token: must not have spaces"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		p.fail("cert-file", "must be given together with --key-file")
	}
	return c
}

// Client returns a client of the server. It warns where others may learn the token.
func (c *Connection) Client(stderr io.Writer) (client.Client, error) {
	for _, w := range c.warnings(os.Args) {
		fmt.Fprintln(stderr, "warning: "+w)
	}
	access := client.Access{
		Token: string(c.Token), TokenFile: c.TokenFile, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, SkipVerify: c.SkipVerify,
	}
	with, err := access.HTTP(c.URL)
	return client.Client{URL: c.URL, HTTP: with}, err
}

// warnings returns how others may learn the token.
func (c *Connection) warnings(args []string) (all []string) {
	if c.Token == "" && c.TokenFile == "" {
		return nil
	}
	if c.Token != "" && slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, string(c.Token)) }) {
		all = append(all, "other users of this machine see the token in the list of processes: use --token-file or QUERN_TOKEN")
	}
	if u, err := url.Parse(c.URL); err == nil && u.Scheme == "http" && !local(u.Host) {
		all = append(all, "the token travels unencrypted: use https")
	}
	return all
}

// local returns whether a host of a URL is this machine.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}
