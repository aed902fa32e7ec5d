package commands

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

// CreateToken makes a token, by a server or in a store, and prints it: this is the only time that anybody sees it. The
// rest goes to stderr, so that a script can keep the output.
func CreateToken(ctx context.Context, cfg config.NewToken, stdout, stderr io.Writer) error {
	made, err := newToken(ctx, &cfg, stderr)
	if err != nil {
		return err
	}
	until := "for ever"
	if made.Expires != 0 {
		until = "until " + moment(made.Expires)
	}
	fmt.Fprintf(terminal.Plain(stderr), "Token %s (%s) has the roles %s, and is valid %s. %sKeep it: it is not shown again.\n",
		made.ID, made.Name, strings.Join(made.Roles, ", "), until, bounds(&made.Token))
	fmt.Fprintln(terminal.Plain(stdout), made.Secret)
	return nil
}

// bounds says what binds and limits a token.
func bounds(t *wire.Token) string {
	var all []string
	if len(t.Match) > 0 {
		all = append(all, "only series of "+strings.Join(t.Match, " or "))
	}
	for _, l := range []struct {
		n    int64
		what string
	}{
		{int64(t.MaxSeries), "series"},
		{int64(t.MaxSamplesPerSecond), "samples a second"},
		{int64(t.MaxQueries), "queries at a time"},
	} {
		if l.n > 0 {
			all = append(all, fmt.Sprintf("at most %d %s", l.n, l.what))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "It is for " + strings.Join(all, ", ") + ". "
}

func newToken(ctx context.Context, cfg *config.NewToken, stderr io.Writer) (made wire.NewToken, err error) {
	if !cfg.InStore {
		return madeByServer(ctx, cfg, stderr)
	}
	roles, err := access.ParseRoles(cfg.Roles)
	if err != nil {
		return made, err
	}
	if len(cfg.Match) > 0 { // each process will compile them
		if _, err := query.ParseSelectors(ctx, cfg.Match); err != nil {
			return made, err
		}
	}
	log := cfg.Logger(stderr)
	err = onStore(ctx, cfg.Settings, stderr, func(st storage.Store) error {
		token, secret, err := access.NewTokens(st, clock.System{}, log).Create(ctx, access.NewToken{
			Name: cfg.Name, Roles: roles, Author: "quern token create --in-store", Lasts: cfg.Expires, Match: cfg.Match,
			Limits: access.TokenLimits{
				Series: cfg.MaxSeries, SamplesPerSecond: cfg.MaxSamplesPerSecond, Queries: cfg.MaxQueries,
			},
		})
		if err == nil {
			made = wire.NewToken{Token: wire.Token{
				ID: token.ID, Name: token.Name, Roles: token.Roles.Names(), Created: token.CreatedMs, Expires: token.ExpiresMs, Match: token.Match,
				MaxSeries: cfg.MaxSeries, MaxSamplesPerSecond: cfg.MaxSamplesPerSecond, MaxQueries: cfg.MaxQueries,
			}, Secret: secret}
		}
		return err
	})
	return made, err
}

func madeByServer(ctx context.Context, cfg *config.NewToken, stderr io.Writer) (made wire.NewToken, err error) {
	form := url.Values{"name": {cfg.Name}, "role": cfg.Roles, "match[]": cfg.Match, "expires": {metric.FormatSpan(cfg.Expires)}}
	for name, n := range map[string]int64{
		"max_series": int64(cfg.MaxSeries), "max_samples_per_second": int64(cfg.MaxSamplesPerSecond),
		"max_queries": int64(cfg.MaxQueries),
	} {
		if n > 0 {
			form.Set(name, strconv.FormatInt(n, 10))
		}
	}
	body, err := ask(ctx, &cfg.Connection, stderr, wire.TokensPath, form)
	if err != nil {
		return made, stopped(ctx, err, "stopped; `quern token list` says whether the token was made")
	}
	defer body.Close()
	if _, err := decode(body, &made); err != nil || made.Secret == "" {
		return made, fmt.Errorf("the answer is not a Quern response: %w", err)
	}
	// A server of an earlier version does not know what it was asked for.
	if !slices.Equal(made.Match, cfg.Match) || made.MaxSeries != cfg.MaxSeries || made.MaxSamplesPerSecond != cfg.MaxSamplesPerSecond ||
		made.MaxQueries != cfg.MaxQueries {
		return made, fmt.Errorf("the server has made token %s without what was to bind or limit it: revoke it by `quern token revoke %s`, and update the server", made.ID, made.ID)
	}
	return made, nil
}

// ListTokens prints the tokens of a server, without their secrets.
func ListTokens(ctx context.Context, cfg config.Connection, stdout, stderr io.Writer) error {
	all, _, err := answered[wire.Tokens](ctx, &cfg, stderr, http.MethodGet, wire.TokensPath, nil)
	if err != nil {
		return err
	}
	w := table(stdout, "ID\tNAME\tROLES\tCREATED\tBY\tEXPIRES\tBOUND TO")
	for _, t := range all.Tokens {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Name, strings.Join(t.Roles, ","), moment(t.Created), orNothing(t.Author), momentOr(t.Expires, "never"),
			orNothing(strings.TrimSuffix(strings.TrimPrefix(bounds(&t), "It is for "), ". ")))
	}
	return w.Flush()
}

// RevokeToken has a server end a token. A secret is not sent.
func RevokeToken(ctx context.Context, cfg config.RevokeToken, stdout, stderr io.Writer) error {
	body, err := ask(ctx, &cfg.Connection, stderr, wire.RevokeTokenPath, url.Values{"id": {access.TokenID(cfg.ID)}})
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer body.Close()
	fmt.Fprintln(stdout, "The token is revoked. All processes refuse it within ten seconds.")
	return nil
}
