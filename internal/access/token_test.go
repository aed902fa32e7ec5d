package access_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/storage"
)

func (e *entrance) create(n access.NewToken) (*access.Token, string) {
	e.t.Helper()
	token, text, err := e.tokens.Create(e.t.Context(), n)
	require.NoError(e.t, err)
	return token, text
}

// by returns the grant of an Authorization, and the code and message of a refusal.
func (e *entrance) by(header string) (access.Grant, int, string) {
	e.t.Helper()
	g, err := e.Identify(e.request(far, "Authorization", header))
	if err == nil {
		return g, 200, ""
	}
	var refusal *access.Refusal
	require.ErrorAs(e.t, err, &refusal)
	require.Zero(e.t, g)
	return g, refusal.Code, refusal.Message
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func TestToken(t *testing.T) {
	e := newEntrance(t, access.Locked)
	token, text := e.create(access.NewToken{Name: "web-1", Roles: access.Write, Author: "user admin", Lasts: time.Hour})
	require.Regexp(t, `^quern_[a-z2-7]{16}_[a-z2-7]{32}$`, text)
	want := access.Grant{Name: "token web-1 (" + token.ID + ")", Roles: access.Write, Token: token.ID}
	for _, header := range []string{"Bearer " + text, "bearer  " + text, "Token " + text, basic("anybody", text), basic("", text)} {
		g, code, message := e.by(header)
		require.Equal(t, 200, code, message)
		require.Equal(t, want, g, header)
	}
	_, other := e.create(access.NewToken{Name: "other", Roles: access.Read})
	for name, wrong := range map[string]string{
		"another secret":     text[:len(text)-1] + string("ab"[(text[len(text)-1]-'a'+1)%2]),
		"secret of another":  text[:strings.LastIndex(text, "_")] + other[strings.LastIndex(other, "_"):],
		"no secret":          text[:strings.LastIndex(text, "_")+1],
		"half a secret":      text[:len(text)-16],
		"only an id":         text[:strings.LastIndex(text, "_")],
		"unknown id":         "quern_aaaaaaaaaaaaaaaa_" + text[len(text)-32:],
		"id of another kind": "quern_../session/state_x",
		"no token":           "secret",
		"nothing":            "",
		"long":               text + strings.Repeat("a", 1<<10),
		"the hash":           "quern_" + token.ID + "_" + fmt.Sprintf("%x", e.docs.Stored[storage.DocumentKey{Kind: "token", ID: token.ID}].Body),
	} {
		_, code, _ := e.by("Bearer " + wrong)
		require.Equal(t, 401, code, name)
	}
	// Neither the store nor the log has the secret.
	secret := text[strings.LastIndex(text, "_")+1:]
	for _, doc := range e.docs.Stored {
		require.NotContains(t, string(doc.Body), secret)
	}
	require.NotContains(t, e.log.String(), secret)
	require.NotContains(t, e.log.String(), secret[:16])

	e.clk.Set(start.Add(time.Hour - time.Millisecond))
	_, code, _ := e.by("Bearer " + text)
	require.Equal(t, 200, code)
	e.clk.Set(start.Add(time.Hour))
	_, code, message := e.by("Bearer " + text)
	require.Equal(t, 401, code)
	require.Contains(t, message, `the token "web-1" expired at 2026-11-21T13:00:00Z; it is 2026-11-21T13:00:00Z by the server's clock`)
}

// TestTokenOfAnotherProcess: a token is known elsewhere at its first use, and revoked there after a refresh.
func TestTokenOfAnotherProcess(t *testing.T) {
	e := newEntrance(t, access.Locked)
	other := newEntranceOver(t, access.Locked, e.docs)
	require.NoError(t, other.tokens.Refresh(t.Context()))
	token, text := e.create(access.NewToken{Name: "a", Roles: access.Read})
	_, code, _ := other.by("Bearer " + text)
	require.Equal(t, 200, code)

	require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, "user admin"))
	_, code, _ = e.by("Bearer " + text)
	require.Equal(t, 401, code, "at once")
	require.NoError(t, other.tokens.Refresh(t.Context()))
	_, code, message := other.by("Bearer " + text)
	require.Equal(t, 401, code)
	_, _, unknown := other.by("Bearer quern_aaaaaaaaaaaaaaaa_" + text[len(text)-32:])
	require.Equal(t, unknown, message, "whether it ever existed is not said")

	require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, "user admin"), "again")
	var invalid *access.InvalidError
	require.ErrorAs(t, e.tokens.Revoke(t.Context(), "aaaaaaaaaaaaaaaa", ""), &invalid)
	all, err := e.tokens.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

// TestRevokedWhileRead: what is read before a revocation, and arrives after it, does not bring the token back.
func TestRevokedWhileRead(t *testing.T) {
	made := newEntrance(t, access.Locked)
	token, text := made.create(access.NewToken{Name: "a", Roles: access.Read})
	e := newEntranceOver(t, access.Locked, made.docs)
	e.docs.After = func() { require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, "user admin")) }
	require.NoError(t, e.tokens.Refresh(t.Context()))
	_, code, _ := e.by("Bearer " + text)
	require.Equal(t, 401, code)
}

// TestTokensWhileTheStoreIsAway: known tokens go on, and unknown ones are not called wrong.
func TestTokensWhileTheStoreIsAway(t *testing.T) {
	e := newEntrance(t, access.Locked)
	_, text := e.create(access.NewToken{Name: "a", Roles: access.Read})
	e.docs.Err = errors.New("away")
	require.Error(t, e.tokens.Refresh(t.Context()))
	_, code, _ := e.by("Bearer " + text)
	require.Equal(t, 200, code)
	_, code, message := e.by("Bearer quern_aaaaaaaaaaaaaaaa_" + text[len(text)-32:])
	require.Equal(t, 503, code)
	require.NotContains(t, message, "away")

	// A process that starts meanwhile knows none yet.
	late := newEntranceOver(t, access.Locked, e.docs)
	_, code, _ = late.by("Bearer " + text)
	require.Equal(t, 503, code)
	e.docs.Err = nil
	_, code, _ = late.by("Bearer " + text)
	require.Equal(t, 200, code)
}

// TestUnknownTokensAskTheStoreSeldom: whoever invents tokens does not load the store.
func TestUnknownTokensAskTheStoreSeldom(t *testing.T) {
	e := newEntrance(t, access.Locked)
	_, known := e.create(access.NewToken{Name: "a", Roles: access.Read})
	before, codes := e.docs.Reads, map[int]int{}
	invented := func(i int) int {
		_, code, _ := e.by(fmt.Sprintf("Bearer quern_aaaaaaaaaaaa%c%c%c%c_%032d", 'a'+i%26, 'a'+i/26%26, 'a', 'a', i))
		return code
	}
	for i := range 200 {
		codes[invented(i)]++
	}
	require.Equal(t, map[int]int{401: 10, 429: 190}, codes)
	require.Equal(t, 10, e.docs.Reads-before)
	_, code, _ := e.by("Bearer " + known)
	require.Equal(t, 200, code)
	e.clk.Set(start.Add(time.Second))
	require.Equal(t, 401, invented(300))
}

// TestTokensThatCannotBeUsed: what this version does not understand, or cannot read, lets nobody in, and is named.
func TestTokensThatCannotBeUsed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*storage.Document)
		says   string
	}{
		"bound by what this version cannot parse": {func(d *storage.Document) {
			d.Body = []byte(strings.Replace(string(d.Body), "}", `,"match":["{team~~\"a\"}"]}`, 1))
		}, "bound as this version does not enforce"},
		"bound to nothing": {func(d *storage.Document) {
			d.Body = []byte(strings.Replace(string(d.Body), "}", `,"match":["{team=\"\"}"]}`, 1))
		}, "bound as this version does not enforce"},
		"an administrator that is bound": {func(d *storage.Document) {
			d.Body = []byte(strings.Replace(strings.Replace(string(d.Body), "}", `,"match":["{team=\"a\"}"]}`, 1), `"read"`, `"admin"`, 1))
		}, "bound as this version does not enforce"},
		"with limits":  {func(d *storage.Document) { d.Body = []byte(strings.Replace(string(d.Body), "}", `,"limits":{}}`, 1)) }, "a later version"},
		"another role": {func(d *storage.Document) { d.Body = []byte(strings.Replace(string(d.Body), `"read"`, `"root"`, 1)) }, "a later version"},
		"no JSON":      {func(d *storage.Document) { d.Body = []byte("{") }, "a later version"},
		"no hash":      {func(d *storage.Document) { d.Body = []byte(`{"name":"a","roles":["admin"],"sha256":""}`) }, "a later version"},
	} {
		t.Run(name, func(t *testing.T) {
			made := newEntrance(t, access.Locked)
			token, text := made.create(access.NewToken{Name: "a", Roles: access.Read})
			made.docs.Change(storage.DocumentKey{Kind: "token", ID: token.ID}, c.change)
			e := newEntranceOver(t, access.Locked, made.docs)
			require.NoError(t, e.tokens.Refresh(t.Context()))
			_, code, _ := e.by("Bearer " + text)
			require.Equal(t, 401, code)
			require.Contains(t, e.log.String(), c.says)
			all, err := e.tokens.List(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
			require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, "user admin"))
			all, err = e.tokens.List(t.Context())
			require.NoError(t, err)
			require.Empty(t, all)
		})
	}
}

func TestInvalidTokens(t *testing.T) {
	e := newEntrance(t, access.Locked)
	for want, n := range map[string]access.NewToken{
		"needs a name":         {Roles: access.Read},
		"1 to 64 bytes":        {Name: strings.Repeat("a", 65), Roles: access.Read},
		"printable":            {Name: "a\nb", Roles: access.Read},
		"needs a role":         {Name: "a"},
		"expired":              {Name: "a", Roles: access.Read, Lasts: -1},
		"nothing would bind":   {Name: "a", Roles: access.Admin | access.Read, Match: []string{`{team="a"}`}},
		"or limit it":          {Name: "a", Roles: access.Admin, Limits: access.TokenLimits{Queries: 1}},
		"must require a value": {Name: "a", Roles: access.Write, Match: []string{`{team="a"}`, `{team!="b"}`}},
		"unexpected":           {Name: "a", Roles: access.Write, Match: []string{`{team="a"`}},
		"at most 8 selectors":  {Name: "a", Roles: access.Write, Match: slices.Repeat([]string{`{team="a"}`}, 9)},
		"counts those":         {Name: "a", Roles: access.Write, Limits: access.TokenLimits{Series: 1}},
		"with the role write":  {Name: "a", Roles: access.Read, Limits: access.TokenLimits{SamplesPerSecond: 1}},
		"with the role read":   {Name: "a", Roles: access.Write, Limits: access.TokenLimits{Queries: 1}},
		"must be positive":     {Name: "a", Roles: access.Read, Limits: access.TokenLimits{Queries: -1}},
	} {
		_, _, err := e.tokens.Create(t.Context(), n)
		var invalid *access.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.ErrorContains(t, err, want)
	}
	require.Empty(t, e.docs.Stored)
	e.docs.Err = errors.New("away")
	_, _, err := e.tokens.Create(t.Context(), access.NewToken{Name: "a", Roles: access.Read})
	require.ErrorIs(t, err, e.docs.Err)
}

// login begins a session, and returns its cookie.
func (e *entrance) begin(user, password string) *http.Cookie {
	e.t.Helper()
	_, cookie, err := e.Login(e.request(far), user, password)
	require.NoError(e.t, err)
	return cookie
}

// with returns the grant of a request with a cookie, and the code of a refusal.
func (e *entrance) with(c *http.Cookie, method string, headers ...string) (access.Grant, int) {
	e.t.Helper()
	r := e.request(far, headers...)
	r.Method = method
	r.AddCookie(c)
	g, err := e.Identify(r)
	var refusal *access.Refusal
	if errors.As(err, &refusal) {
		require.Zero(e.t, g)
		return g, refusal.Code
	}
	require.NoError(e.t, err)
	return g, 200
}

// TestSessions: a login by cookie lasts for a while, and ends when it is ended, here and elsewhere.
func TestSessions(t *testing.T) {
	e := newEntrance(t, access.Locked)
	cookie := e.begin("admin", "right")
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	require.Equal(t, "/", cookie.Path)
	require.Empty(t, cookie.Domain)
	require.Equal(t, start.Add(12*time.Hour), cookie.Expires)
	g, code := e.with(cookie, http.MethodGet)
	require.Equal(t, 200, code)
	require.Equal(t, access.Grant{Name: "user admin", Roles: access.Admin}, g)

	other := newEntranceOver(t, access.Locked, e.docs)
	_, code = other.with(cookie, http.MethodGet)
	require.Equal(t, 200, code, "at once")

	// Each login is another session, and none takes the id of a client.
	again := e.begin("admin", "right")
	require.NotEqual(t, cookie.Value, again.Value)
	r := e.request(far)
	r.AddCookie(&http.Cookie{Name: "quern", Value: "chosen-by-somebody"})
	_, fixed, err := e.Login(r, "admin", "right")
	require.NoError(t, err)
	require.NotContains(t, fixed.Value, "chosen")

	// A session that was ended is of no use to who has kept its cookie.
	r = e.request(far)
	r.AddCookie(cookie)
	_, gone, err := e.Logout(r)
	require.NoError(t, err)
	require.Negative(t, gone.MaxAge)
	require.Empty(t, gone.Value)
	_, code = e.with(cookie, http.MethodGet)
	require.Equal(t, 401, code)
	require.NoError(t, other.tokens.Refresh(t.Context()))
	_, code = other.with(cookie, http.MethodGet)
	require.Equal(t, 401, code)
	_, code = e.with(again, http.MethodGet)
	require.Equal(t, 200, code)
	_, _, err = e.Logout(r)
	require.NoError(t, err, "again")

	// It is no token, nor is a token a session.
	_, code, _ = e.by("Bearer " + again.Value)
	require.Equal(t, 401, code)
	all, err := e.tokens.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	_, text := e.create(access.NewToken{Name: "a", Roles: access.Read})
	_, code = e.with(&http.Cookie{Name: "quern", Value: text}, http.MethodGet)
	require.Equal(t, 401, code)

	e.clk.Set(start.Add(12*time.Hour - time.Millisecond))
	_, code = e.with(again, http.MethodGet)
	require.Equal(t, 200, code)
	e.clk.Set(start.Add(12 * time.Hour))
	_, code = e.with(again, http.MethodGet)
	require.Equal(t, 401, code)

	// What has ended leaves nothing behind.
	e.clk.Set(start.Add(13 * time.Hour))
	other.clk.Set(start.Add(13 * time.Hour))
	for _, at := range []*entrance{e, other, e} {
		require.NoError(t, at.tokens.Refresh(t.Context()))
		require.Len(t, e.docs.Stored, 1, "the token")
	}
}

// TestSessionsWhileTheStoreIsAway: a process that does not know a cookie neither calls it wrong nor says that it has ended it.
func TestSessionsWhileTheStoreIsAway(t *testing.T) {
	e := newEntrance(t, access.Locked)
	cookie := e.begin("admin", "right")
	other := newEntranceOver(t, access.Locked, e.docs)
	e.docs.Err = errors.New("away")
	_, code := e.with(cookie, http.MethodGet)
	require.Equal(t, 200, code)
	_, code = other.with(cookie, http.MethodGet)
	require.Equal(t, 503, code)
	var refusal *access.Refusal
	require.ErrorAs(t, other.logout(cookie), &refusal)
	require.Equal(t, 503, refusal.Code)
}

// TestSessionsEndWithTheirReason: with the token, the user, or the password that began it.
func TestSessionsEndWithTheirReason(t *testing.T) {
	e := newEntrance(t, access.Locked)
	token, text := e.create(access.NewToken{Name: "a", Roles: access.Read, Lasts: time.Hour})
	byToken, byUser := e.begin("", text), e.begin("admin", "right")
	g, _ := e.with(byToken, http.MethodGet)
	require.Equal(t, access.Read, g.Roles)
	e.clk.Set(start.Add(time.Hour))
	_, code := e.with(byToken, http.MethodGet)
	require.Equal(t, 401, code, "the token has expired")
	e.clk.Set(start)
	require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, ""))
	_, code = e.with(byToken, http.MethodGet)
	require.Equal(t, 401, code)

	e.users.mark = "another password"
	_, code = e.with(byUser, http.MethodGet)
	require.Equal(t, 401, code)
	e.users.mark, e.users.names = "", nil
	_, code = e.with(byUser, http.MethodGet)
	require.Equal(t, 401, code)
}

// TestCookiesAreForOwnPages: a browser sends the cookie for pages that share the host's name, too. Those change nothing.
func TestCookiesAreForOwnPages(t *testing.T) {
	e := newEntrance(t, access.Locked)
	cookie := e.begin("admin", "right")
	for _, c := range []struct {
		method  string
		headers []string
		want    int
	}{
		{http.MethodGet, nil, 200},
		{http.MethodHead, nil, 200},
		{http.MethodPost, nil, 403},
		{http.MethodDelete, nil, 403},
		{http.MethodPost, []string{"Origin", "http://example.com"}, 200},
		{http.MethodPost, []string{"Origin", "http://example.com", "Sec-Fetch-Site", "same-origin"}, 200},
		{http.MethodPost, []string{"Origin", "http://example.com:8080"}, 403},
		{http.MethodPost, []string{"Origin", "http://example.com", "Sec-Fetch-Site", "same-site"}, 403},
		{http.MethodPost, []string{"Sec-Fetch-Site", "none"}, 403},
		{http.MethodPost, []string{"Origin", "null"}, 403},
		{http.MethodPost, []string{"Origin", "http://evil.example"}, 403},
	} {
		_, code := e.with(cookie, c.method, c.headers...)
		require.Equal(t, c.want, code, c)
	}
}

// TestThousandLogins: who logs in again and again stores little. Each logout still ends its session.
func TestThousandLogins(t *testing.T) {
	e := newEntrance(t, access.Locked)
	_, text := e.create(access.NewToken{Name: "a", Roles: access.Read})
	_, other := e.create(access.NewToken{Name: "b", Roles: access.Read})
	codes := make(map[int]int)
	for range 1000 {
		_, cookie, err := e.Login(e.request(far), "", text)
		var refusal *access.Refusal
		if errors.As(err, &refusal) {
			require.LessOrEqual(t, refusal.After, time.Minute)
			codes[refusal.Code]++
			continue
		}
		codes[200]++
		require.NoError(t, e.logout(cookie))
	}
	require.Equal(t, map[int]int{200: 100, 429: 900}, codes)
	e.begin("", other)
	// What fails does not count, and after a while there is one more.
	e.clk.Set(start.Add(time.Minute))
	_, _, err := e.Login(e.request(far), "", text[:len(text)-1]+"1")
	require.ErrorContains(t, err, "not valid")
	e.begin("", text)
}

// TestGuessingAtLogin: passwords may be guessed as often there as elsewhere.
func TestGuessingAtLogin(t *testing.T) {
	e := newEntrance(t, access.Locked)
	_, text := e.create(access.NewToken{Name: "a", Roles: access.Read})
	code := func(user, password string) int {
		_, c, err := e.Login(e.request(far), user, password)
		var refusal *access.Refusal
		if errors.As(err, &refusal) {
			require.Nil(t, c)
			return refusal.Code
		}
		require.NoError(t, err)
		return 200
	}
	for range 10 {
		require.Equal(t, 401, code("admin", "wrong"))
		require.Equal(t, 401, code("", text[:len(text)-1]+"1"))
	}
	require.Equal(t, 429, code("admin", "right"))
	require.Equal(t, 200, code("", text), "nobody guesses a token")

	open := newEntrance(t, access.Open)
	_, _, err := open.Login(open.request(local), "admin", "right")
	require.ErrorContains(t, err, "nobody needs to log in here")
}

// errFull is the error of a disk without room.
var errFull = fmt.Errorf("disk full: %w", storage.ErrUnavailable)

// logout ends the session of a cookie, which the browser must forget in any case.
func (e *entrance) logout(c *http.Cookie) error {
	e.t.Helper()
	r := e.request(far)
	r.AddCookie(c)
	_, gone, err := e.Logout(r)
	require.Negative(e.t, gone.MaxAge)
	require.Empty(e.t, gone.Value)
	return err
}

// TestStoreThatCannotBeWritten: a token that is revoked, and a session that is ended, are refused here at once. Others
// learn of it when the store can be written.
func TestStoreThatCannotBeWritten(t *testing.T) {
	e := newEntrance(t, access.Locked)
	token, text := e.create(access.NewToken{Name: "a", Roles: access.Admin})
	_, otherText := e.create(access.NewToken{Name: "b", Roles: access.Read})
	byUser, byToken, stays := e.begin("admin", "right"), e.begin("", text), e.begin("admin", "right")
	other := newEntranceOver(t, access.Locked, e.docs)
	refresh := func(at *entrance) error { return at.tokens.Refresh(t.Context()) }
	require.NoError(t, refresh(other))

	e.docs.Refuse = func(storage.Document) error { return errFull }
	err := e.tokens.Revoke(t.Context(), text, "user admin")
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "other processes, and this one after a restart, accept it")
	require.ErrorContains(t, err, "tried again every 3s")
	require.NotContains(t, err.Error(), text)
	err = e.logout(byUser)
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "the login has ended here only")
	require.ErrorContains(t, err, "tried again every 3s")
	require.NoError(t, e.logout(byUser), "it has ended already")
	answers := func(at *entrance, token, session int) {
		t.Helper()
		_, code, _ := at.by("Bearer " + text)
		require.Equal(t, token, code)
		_, code = at.with(byToken, http.MethodGet)
		require.Equal(t, token, code, "what the token began")
		_, code = at.with(byUser, http.MethodGet)
		require.Equal(t, session, code)
		_, code = at.with(stays, http.MethodGet)
		require.Equal(t, 200, code)
		_, code, _ = at.by("Bearer " + otherText)
		require.Equal(t, 200, code)
	}
	for range 2 {
		answers(e, 401, 401)
		require.ErrorIs(t, refresh(e), errFull, "it is still tried")
	}
	answers(other, 200, 200)

	e.docs.Refuse = func(d storage.Document) error {
		if d.Protects {
			return nil // a full disk has room for it
		}
		return errFull
	}
	_, _, err = e.tokens.Create(t.Context(), access.NewToken{Name: "c", Roles: access.Read})
	require.ErrorIs(t, err, errFull)
	e.begin("admin", "right")
	require.NoError(t, refresh(e))
	require.NoError(t, refresh(other))
	answers(e, 401, 401)
	answers(other, 401, 401)
	e.docs.Refuse = func(storage.Document) error { return errFull }
	require.NoError(t, refresh(e), "nothing is left to write")
	list, err := e.tokens.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, token.ID, strings.Split(text, "_")[1])

	var invalid *access.InvalidError
	require.ErrorAs(t, e.tokens.Revoke(t.Context(), "nobody", ""), &invalid)
	require.NoError(t, refresh(e), "what there is none of is not tried again")
}

// TestRevokedTokensGo: a revoked token gives its place to another. A process that has missed that it was revoked does not
// accept it either.
func TestRevokedTokensGo(t *testing.T) {
	e := newEntrance(t, access.Locked)
	token, text := e.create(access.NewToken{Name: "first", Roles: access.Read})
	unaware := newEntranceOver(t, access.Locked, e.docs)
	require.NoError(t, unaware.tokens.Refresh(t.Context()))
	require.NoError(t, e.tokens.Revoke(t.Context(), token.ID, "user admin"))
	for i := range access.MaxTokens - 2 {
		key := storage.DocumentKey{Kind: "token", ID: fmt.Sprint("other-", i)}
		e.docs.Stored[key] = storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: key, Version: 1}, Body: []byte("{")}
	}
	_, lasting := e.create(access.NewToken{Name: "lasting", Roles: access.Read})
	_, made := e.create(access.NewToken{Name: "another", Roles: access.Read})
	require.NotContains(t, e.docs.Stored, storage.DocumentKey{Kind: "token", ID: token.ID})
	require.Len(t, e.docs.Stored, access.MaxTokens)
	_, _, err := e.tokens.Create(t.Context(), access.NewToken{Name: "more", Roles: access.Read})
	var invalid *access.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "takes no more")

	_, code, _ := unaware.by("Bearer " + text)
	require.Equal(t, 200, code, "as long as it hears nothing of the store")
	for _, at := range []*entrance{e, unaware} {
		require.NoError(t, at.tokens.Refresh(t.Context()))
		for sent, want := range map[string]int{text: 401, lasting: 200, made: 200} {
			_, code, _ := at.by("Bearer " + sent)
			require.Equal(t, want, code)
		}
	}
}
