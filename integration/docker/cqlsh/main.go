// Command cqlsh replaces Cassandra's own, which is written in Python. It runs statements and prints
// their results, as far as testcontainers needs it.
//
//	cqlsh [-u name -p password] [-e statements | -f file] [host [port]]
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gocql/gocql"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("cqlsh", flag.ContinueOnError)
	statements := flags.String("e", "", "run these statements")
	file := flags.String("f", "", "run the statements of a file")
	username := flags.String("u", "", "the user's name")
	password := flags.String("p", "", "the user's password")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *file != "" {
		text, err := os.ReadFile(*file)
		if err != nil {
			return err
		}
		*statements = string(text)
	}
	if *statements == "" {
		return errors.New("nothing to run: give -e or -f")
	}

	host, port := "127.0.0.1", "9042"
	if flags.NArg() > 0 {
		host = flags.Arg(0)
	}
	if flags.NArg() > 1 {
		port = flags.Arg(1)
	}
	cluster := gocql.NewCluster(net.JoinHostPort(host, port))
	cluster.DisableInitialHostLookup = true
	cluster.ConnectTimeout, cluster.Timeout = 10*time.Second, time.Minute
	if *username != "" {
		cluster.Authenticator = gocql.PasswordAuthenticator{Username: *username, Password: *password}
	}
	session, err := cluster.CreateSession()
	if err != nil {
		return err
	}
	defer session.Close()
	for _, statement := range split(*statements) {
		if err := show(stdout, session.Query(statement).Iter()); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// tokens matches what may contain a semicolon (strings, names, bodies of functions, comments), a
// semicolon, and anything else. A doubled quote within a string ends one token and begins the next,
// which has the same effect.
var tokens = regexp.MustCompile(`(?s)'[^']*'|"[^"]*"|\$\$.*?\$\$|(?:--|//)[^\n]*|/\*.*?\*/|.`)

// split splits the text at the semicolons between statements, and removes comments.
func split(text string) []string {
	var statements []string
	var statement strings.Builder
	for _, token := range append(tokens.FindAllString(text, -1), ";") {
		switch {
		case strings.HasPrefix(token, "--"), strings.HasPrefix(token, "//"), strings.HasPrefix(token, "/*"):
			statement.WriteByte(' ')
		case token == ";":
			if s := strings.TrimSpace(statement.String()); s != "" {
				statements = append(statements, s)
			}
			statement.Reset()
		default:
			statement.WriteString(token)
		}
	}
	return statements
}

// show prints the result of a statement as a table.
func show(stdout io.Writer, rows *gocql.Iter) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	var names []string
	for _, column := range rows.Columns() {
		names = append(names, column.Name)
	}
	fmt.Fprintln(table, strings.Join(names, "\t"))
	for row := map[string]any{}; rows.MapScan(row); row = map[string]any{} {
		for _, name := range names {
			fmt.Fprintf(table, "%v\t", row[name])
		}
		fmt.Fprintln(table)
	}
	return errors.Join(rows.Close(), table.Flush())
}
