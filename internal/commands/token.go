package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/terminal"
	"github.com/quern/quern/internal/wire"
)

// CreateToken has a server make a token, and prints it: this is the only time that anybody sees it. The rest goes to
// stderr, so that a script can keep the output.
func CreateToken(ctx context.Context, cfg config.NewToken, stdout, stderr io.Writer) error {
	form := url.Values{"name": {cfg.Name}, "role": cfg.Roles}
	if cfg.Expires > 0 {
		form.Set("expires", metric.FormatSpan(cfg.Expires))
	}
	body, err := ask(ctx, &cfg.Connection, stderr, wire.TokensPath, form)
	if err != nil {
		return stopped(ctx, err, "stopped; `quern token list` says whether the token was made")
	}
	defer body.Close()
	var made wire.NewToken
	if err := answerOf(body, &made); err != nil || made.Secret == "" {
		return fmt.Errorf("the answer is not a Quern response: %w", err)
	}
	until := "for ever"
	if made.Expires != 0 {
		until = "until " + moment(made.Expires)
	}
	fmt.Fprintf(terminal.Plain(stderr), "Token %s (%s) has the roles %s, and is valid %s. Keep it: it is not shown again.\n",
		made.ID, made.Name, strings.Join(made.Roles, ", "), until)
	fmt.Fprintln(terminal.Plain(stdout), made.Secret)
	return nil
}

// ListTokens prints the tokens of a server, without their secrets.
func ListTokens(ctx context.Context, cfg config.Connection, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	resp, err := server.Do(ctx, http.MethodGet, wire.TokensPath, nil)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer resp.Body.Close()
	var all wire.Tokens
	if err := answerOf(resp.Body, &all); err != nil {
		return stopped(ctx, err, "stopped")
	}
	w := tabwriter.NewWriter(terminal.Plain(stdout), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tROLES\tCREATED\tBY\tEXPIRES")
	for _, t := range all.Tokens {
		expires := "never"
		if t.Expires != 0 {
			expires = moment(t.Expires)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Name, strings.Join(t.Roles, ","), moment(t.Created), orNothing(t.Author), expires)
	}
	return w.Flush()
}

// RevokeToken has a server end a token.
func RevokeToken(ctx context.Context, cfg config.RevokeToken, stdout, stderr io.Writer) error {
	body, err := ask(ctx, &cfg.Connection, stderr, wire.RevokeTokenPath, url.Values{"id": {cfg.ID}})
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer body.Close()
	fmt.Fprintln(stdout, "The token is revoked. All processes refuse it within ten seconds.")
	return nil
}

// answerOf reads a whole answer.
func answerOf(body io.Reader, to any) error {
	text, err := client.ReadAll(body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}
