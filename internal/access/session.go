package access

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// sessionLasts is how long a login lasts, whatever is done with it.
const sessionLasts = 12 * time.Hour

// login is what began the session of a page, whose cookie is a token. The token has no roles: what began it, a user or
// another token, is looked up each time. So a session ends with the token, or the password, that began it.
type login struct {
	User  string `json:"user,omitempty"`
	Mark  string `json:"mark,omitempty"` // of the user's password
	Token string `json:"token,omitempty"`
}

var errNoSession = unauthorized("the login has ended: log in again")

// session returns the token that a cookie is, or a *Refusal.
func (t *Tokens) session(ctx context.Context, cookie string) (*Token, error) {
	token, err := t.verify(ctx, cookie)
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Code != http.StatusUnauthorized:
		return nil, err
	case err != nil, token.login == nil:
		return nil, errNoSession
	}
	return token, nil
}

// cookieName returns the name of the cookie. Over TLS browsers take it only from this host, and send it only there.
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-quern"
	}
	return "quern"
}

func cookie(r *http.Request, value string, ends time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", Expires: ends,
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}

// ownPage returns whether a browser says that a page of this server itself sends the request.
func ownPage(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && origin.Host != "" && origin.Host == r.Host
}
