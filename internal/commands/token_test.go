package commands_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// TestFirstToken: a token that was made in the store lets its holder in once a server serves it. While one does, and
// where there is no store, the command says what is wrong.
func TestFirstToken(t *testing.T) {
	dir := t.TempDir()
	cfg := config.NewToken{
		InStore: true, Settings: config.Settings{Store: config.Pebble, DataDir: dir, Log: config.Log{LogFormat: "text"}},
		Name: "first", Roles: []string{"admin"}, Expires: time.Hour,
	}
	create := func(cfg config.NewToken) (secret, message string, err error) {
		var out, errs bytes.Buffer
		err = commands.CreateToken(t.Context(), cfg, &out, &errs)
		return strings.TrimSpace(out.String()), errs.String(), err
	}
	_, _, err := create(cfg)
	require.ErrorContains(t, err, "no store")

	ladder, err := metric.ParseLadder("1h,6h,24h")
	require.NoError(t, err)
	open := func() *pebble.Store {
		st, err := pebble.Open(dir, pebble.Options{Clock: clock.System{}, Settings: storage.Settings{Ladder: ladder}})
		require.NoError(t, err)
		return st
	}
	st := open()
	_, _, err = create(cfg)
	require.ErrorIs(t, err, storage.ErrConflict)
	require.ErrorContains(t, err, "another process")
	require.NoError(t, st.Close())

	secret, message, err := create(cfg)
	require.NoError(t, err)
	require.Contains(t, message, "(first) has the roles admin, and is valid until")
	bound := cfg
	bound.Name, bound.Roles, bound.Match, bound.MaxSeries = "web", []string{"write"}, []string{`{team="web"}`}, 7
	second, message, err := create(bound)
	require.NoError(t, err)
	require.Contains(t, message, `It is for only series of {team="web"}, at most 7 series.`)
	for want, change := range map[string]func(*config.NewToken){
		"is not a role": func(n *config.NewToken) { n.Roles = []string{"root"} },
		"selector":      func(n *config.NewToken) { n.Match = []string{`{team=`} },
		"nothing would": func(n *config.NewToken) { n.Match, n.Roles = []string{`{team="web"}`}, []string{"admin"} },
	} {
		wrong := cfg
		change(&wrong)
		_, _, err := create(wrong)
		require.ErrorContains(t, err, want)
	}

	st = open()
	defer func() { require.NoError(t, st.Close()) }()
	tokens := access.NewTokens(st, clock.System{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	verified := func(ctx context.Context, text string) *access.Token {
		token, err := tokens.Verify(ctx, text)
		require.NoError(t, err)
		return token
	}
	require.Equal(t, access.Admin, verified(t.Context(), secret).Roles)
	require.Equal(t, bound.Match, verified(t.Context(), second).Match)
	require.Equal(t, access.TokenLimits{Series: 7}, verified(t.Context(), second).Limits)
	all, err := tokens.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
}
