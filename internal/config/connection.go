package config

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/access"
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

// addRows adds the rows of a command that asks a server.
func (c *Connection) addRows(o *options) {
	c.rowsTo(o, "url", "http://127.0.0.1:9095", "`URL` of the Quern server")
}

// rowsTo adds the rows of a command that asks what an option names.
func (c *Connection) rowsTo(o *options, name, value, usage string) {
	server := o.server()
	parsed(server, (*string)(&c.Token), "token", "", "token to log in with; other users of this machine see it in the list of processes: better use --token-file or QUERN_TOKEN", func(s string) (string, error) {
		if strings.ContainsAny(s, " \r\n\t") {
			return "", wholeError{errors.New("must not have spaces")}
		}
		return s, nil
	})
	server.text(&c.TokenFile, "token-file", "", "`FILE` that holds the token to log in with; it is read for each request")
	server.text(&c.CAFile, "ca-file", "", "PEM `FILE` of the authorities that may have signed the server's certificate (default: those of this system)")
	server.text(&c.CertFile, "cert-file", "", "PEM `FILE` of the client certificate")
	server.text(&c.KeyFile, "key-file", "", "PEM `FILE` of the client certificate's key")
	server.boolean(&c.SkipVerify, "insecure-skip-verify", false, "accept any server certificate")
	o.configFile()
	parsed(server, &c.URL, name, value, usage, serverURL)
	o.check(func(*cli.Context) error {
		if c.Token != "" && c.TokenFile != "" {
			return fmt.Errorf("--token-file %s: conflicts with --token: give only one of them", c.TokenFile)
		}
		return together("cert-file", c.CertFile, "key-file", c.KeyFile)
	})
}

func serverURL(s string) (string, error) {
	if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("must be like http://127.0.0.1:9095")
	}
	return s, nil
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
	if u, err := url.Parse(c.URL); err == nil && u.Scheme == "http" && !access.Loopback(u.Host) {
		all = append(all, "the token travels unencrypted: use https")
	}
	return all
}
