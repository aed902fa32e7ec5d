package api

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Tokens has the endpoints that make, list and revoke tokens.
type Tokens struct{ tokens *access.Tokens }

// NewTokens makes the endpoints.
func NewTokens(tokens *access.Tokens) *Tokens { return &Tokens{tokens} }

// Register implements Registrar.
func (t *Tokens) Register(to *route.Table) {
	to.HandleFunc(access.Admin, route.Refused, "GET "+wire.TokensPath, t.list)
	to.HandleFunc(access.Admin, route.Refused, "POST "+wire.TokensPath, t.create)
	to.HandleFunc(access.Admin, route.Refused, "POST "+wire.RevokeTokenPath, t.revoke)
}

// knows reads the parameters of a request, and refuses those that are not among names. A message has no values: they may
// be secrets.
func knows(w http.ResponseWriter, r *http.Request, names ...string) bool {
	if err := r.ParseForm(); err != nil {
		respond.Error(w, http.StatusBadRequest, "the form cannot be read: it must be application/x-www-form-urlencoded")
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		if !slices.Contains(names, name) {
			accepts := cmp.Or(strings.Join(names, ", "), "none")
			respond.Error(w, http.StatusBadRequest, fmt.Sprintf("unknown parameter %s: %s accepts %s", excerpt.Quoted(name), r.URL.Path, accepts))
			return false
		}
	}
	return true
}

func (t *Tokens) list(w http.ResponseWriter, r *http.Request) {
	if !knows(w, r) {
		return
	}
	all, err := t.tokens.List(r.Context())
	if err != nil {
		fail(w, r, err)
		return
	}
	reply := wire.Tokens{Tokens: []wire.Token{}}
	for i := range all {
		reply.Tokens = append(reply.Tokens, wireToken(&all[i]))
	}
	respond.JSON(w, http.StatusOK, reply)
}

func wireToken(t *access.Token) wire.Token {
	return wire.Token{
		ID: t.ID, Name: t.Name, Roles: t.Roles.Names(), Author: t.Author, Created: t.CreatedMs, Expires: t.ExpiresMs,
		Match: t.Match, MaxSeries: t.Limits.Series, MaxSamplesPerSecond: t.Limits.SamplesPerSecond,
		MaxQueries: t.Limits.Queries,
	}
}

func (t *Tokens) create(w http.ResponseWriter, r *http.Request) {
	if !knows(w, r, "name", "role", "expires", "match[]", "max_series", "max_samples_per_second", "max_queries") {
		return
	}
	var names []string
	for _, list := range r.Form["role"] {
		names = append(names, strings.Split(list, ",")...)
	}
	want := access.NewToken{Name: r.Form.Get("name"), Author: access.FromContext(r.Context()).Name, Match: r.Form["match[]"]}
	var err error
	if want.Roles, err = access.ParseRoles(names); err != nil {
		respond.Error(w, http.StatusBadRequest, err.Error())
		return
	}
	want.Lasts = access.DefaultLasts
	if lasts := r.Form.Get("expires"); lasts != "" {
		if want.Lasts, err = metric.ParseSpan(lasts); err != nil || want.Lasts < 0 {
			respond.Error(w, http.StatusBadRequest, "expires must be a span such as 90d, or 0 for a token that does not expire")
			return
		}
	}
	if len(want.Match) > 0 { // each process will compile them
		if _, err := query.ParseSelectors(r.Context(), want.Match); err != nil {
			respond.Error(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	for name, to := range map[string]*int{
		"max_series": &want.Limits.Series, "max_samples_per_second": &want.Limits.SamplesPerSecond, "max_queries": &want.Limits.Queries,
	} {
		n, err := limit(r, name)
		if err != nil {
			respond.Error(w, http.StatusBadRequest, err.Error())
			return
		}
		*to = int(n)
	}
	token, secret, err := t.tokens.Create(r.Context(), want)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.NewToken{Status: wire.Success, Token: wireToken(token), Secret: secret})
}

// maxLimit is the largest limit of a token: more would be none.
const maxLimit = 1 << 50

// limit parses a limit of a token, 0 for none.
func limit(r *http.Request, name string) (int64, error) {
	text := r.Form.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > maxLimit {
		return 0, fmt.Errorf("%s must be a whole number from 1 to %d, or be left out for no limit", name, int64(maxLimit))
	}
	return n, nil
}

func (t *Tokens) revoke(w http.ResponseWriter, r *http.Request) {
	if !knows(w, r, "id") {
		return
	}
	if err := t.tokens.Revoke(r.Context(), r.Form.Get("id"), access.FromContext(r.Context()).Name); err != nil {
		fail(w, r, err)
		return
	}
	respond.JSON(w, http.StatusOK, wire.Done{Status: wire.Success})
}

// fail answers what access returns. It returns the status code.
func fail(w http.ResponseWriter, r *http.Request, err error) int {
	var refusal *access.Refusal
	var invalid *access.InvalidError
	switch {
	case errors.As(err, &refusal):
		refuse(w, r, refusal)
		return refusal.Code
	case errors.As(err, &invalid):
		respond.Error(w, http.StatusBadRequest, invalid.Message)
		return http.StatusBadRequest
	}
	code, after := respond.Failure(r.Context(), err)
	if after != "" {
		w.Header().Set("Retry-After", after)
	}
	respond.Error(w, code, err.Error())
	return code
}
