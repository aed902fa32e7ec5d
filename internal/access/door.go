package access

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

// Lock says whom a server lets in.
type Lock int

// The locks.
const (
	// Open lets all clients do everything. It is for a server that only its own machine reaches.
	Open Lock = iota
	// Insecure lets all clients read and write. Only those on the server's machine may administer; see FromThisMachine.
	Insecure
	// Locked lets in who shows a credential.
	Locked
)

// Users are people with passwords. They are administrators.
type Users interface {
	// Knows returns whether a user's password was found right before, without taking any time.
	Knows(user, password string) bool
	// Check returns whether a user has a password, and takes as long for a user who does not exist. An error means
	// that it cannot tell now.
	Check(user, password string) (bool, error)
	// HasUsers returns whether there is any user.
	HasUsers() bool
	// Fingerprint changes with a user's password. ok is false if there is no such user.
	Fingerprint(user string) (mark string, ok bool)
}

// Options configure a Door.
type Options struct {
	// Lock says whom the server lets in. The default is everybody.
	Lock Lock
	// Clock times attempts. Required.
	Clock clock.Clock
	// Hosts are the server's names beside localhost, for Insecure.
	Hosts Hosts
	// Clients tells clients apart. Required.
	Clients *limits.Clients
	// Audit receives what fails. Required.
	Audit *Audit
	// Users and Tokens are required for Locked, and ignored otherwise.
	Users  Users
	Tokens *Tokens
}

// Door tells who sends a request.
//
// It limits how often one address may guess passwords, or one user or token log in. There is no limit for a name: whoever
// fails for it, from a few addresses, would keep its owner out. What bounds the guesses of all addresses together is that
// Users compare one password at a time.
type Door struct {
	opts    Options
	guesses limits.Meters[origin] // at passwords
	logins  limits.Meters[string] // with success, by user and token: each stores a session, and writes a line of the audit log
}

// NewDoor returns a door.
func NewDoor(opts Options) *Door { return &Door{opts: opts} }

// origin is an address that guesses: a client, or by name what stands for many.
type origin struct {
	client limits.Client
	name   string
}

// wait returns how long a meter allows nothing; 0 is not at all.
func (d *Door) wait(meter *rate.Limiter) time.Duration {
	return time.Duration(max(0, 1-meter.TokensAt(steady(d.opts.Clock))) / float64(meter.Limit()) * float64(time.Second))
}

// steady is a time for limiters, on which it has no effect that the clock is set.
func steady(clk clock.Clock) time.Time { return time.Unix(0, 0).Add(clk.Elapsed()) }

// Refusal is why a request is not served, with the status code to answer.
type Refusal struct {
	Code    int
	Message string
	// After is when it makes sense to try again, 0 for never.
	After time.Duration
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

func unauthorized(format string, args ...any) *Refusal {
	return &Refusal{Code: http.StatusUnauthorized, Message: fmt.Sprintf(format, args...)}
}

// Identify returns what the client of a request may do. A client that shows nothing gets a grant without roles. One
// that shows a credential that is not valid gets a *Refusal.
func (d *Door) Identify(r *http.Request) (Grant, error) {
	switch d.opts.Lock {
	case Open:
		return Grant{Roles: Admin}, nil
	case Insecure:
		if FromThisMachine(r, d.opts.Hosts) {
			return Grant{Roles: Admin}, nil
		}
		return Grant{Roles: Read | Write}, nil
	}
	if header := r.Header.Get("Authorization"); header != "" {
		return d.credential(r, header)
	}
	if cookie, err := r.Cookie(cookieName(r)); err == nil {
		return d.session(r, cookie.Value)
	}
	if cert := certificate(r); cert != "" && !d.opts.Users.HasUsers() {
		return Grant{Name: "certificate " + cert, Roles: Read | Write}, nil
	}
	return Grant{}, nil
}

// credential judges the header Authorization.
func (d *Door) credential(r *http.Request, header string) (Grant, error) {
	scheme, text, _ := strings.Cut(header, " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"), strings.EqualFold(scheme, "Token"): // the latter from clients of InfluxDB
		return d.token(r, strings.TrimSpace(text))
	case !strings.EqualFold(scheme, "Basic"):
		return Grant{}, unauthorized("the header Authorization is of a kind that this server does not know: send Bearer or Basic")
	}
	user, password, ok := r.BasicAuth()
	switch {
	case !ok:
		return Grant{}, unauthorized("the header Authorization is malformed")
	case isToken(password):
		return d.token(r, password)
	}
	return d.password(r, user, password)
}

// token judges a token.
func (d *Door) token(r *http.Request, text string) (Grant, error) {
	token, err := d.opts.Tokens.Verify(r.Context(), text)
	if err != nil {
		id, _, _ := split(text)
		d.opts.Audit.Failed(r, "token "+id, err.Error())
		return Grant{}, err
	}
	return token.grant(), nil
}

func (t *Token) grant() Grant {
	return Grant{
		Name: fmt.Sprintf("token %s (%s)", t.Name, t.ID), Roles: t.Roles,
		Token: t.ID, Bound: t.bound, Rate: t.rate, Turns: t.Limits.Queries,
	}
}

// session judges a cookie. Only the server's own pages may change anything by it: a browser sends it on behalf of
// others that share the host's name, too.
func (d *Door) session(r *http.Request, cookie string) (Grant, error) {
	sent, err := d.opts.Tokens.session(r.Context(), cookie)
	if err != nil {
		return Grant{}, err
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !ownPage(r) {
		return Grant{}, &Refusal{Code: http.StatusForbidden, Message: "a login by cookie is only for the pages of this server"}
	}
	return d.holder(r, sent.login)
}

// holder returns what a session is granted: what began it is granted now.
func (d *Door) holder(r *http.Request, by *login) (Grant, error) {
	if by.Token != "" {
		token, err := d.opts.Tokens.ByID(r.Context(), by.Token)
		if err != nil {
			return Grant{}, err
		}
		return token.grant(), nil
	}
	if mark, ok := d.opts.Users.Fingerprint(by.User); !ok || mark != by.Mark {
		return Grant{}, errNoSession
	}
	return Grant{Name: "user " + by.User, Roles: Admin}, nil
}

// Login begins a session of a user with a password, or of a token as the password. It returns what is granted, and
// the cookie.
func (d *Door) Login(r *http.Request, user, password string) (Grant, *http.Cookie, error) {
	if d.opts.Lock != Locked {
		return Grant{}, nil, &Refusal{Code: http.StatusBadRequest, Message: "nobody needs to log in here"}
	}
	grant, with, err := d.begin(r, user, password)
	if err != nil {
		return Grant{}, nil, err
	}
	// Of the sessions that one may begin while one lasts, the store has room for those of many.
	logins := d.logins.Get(with.User+"\n"+with.Token, time.Minute, 100)
	if wait := d.wait(logins); wait > 0 {
		return Grant{}, nil, &Refusal{
			Code: http.StatusTooManyRequests, After: wait, Message: fmt.Sprintf("too many logins: wait %s", wait.Round(time.Second)),
		}
	}
	logins.AllowN(steady(d.opts.Clock), 1)
	token, text, err := d.opts.Tokens.create(r.Context(), body{Login: &with}, sessionLasts)
	if err != nil {
		return Grant{}, nil, err
	}
	return grant, cookie(r, text, time.UnixMilli(token.ExpiresMs).UTC()), nil
}

// begin judges who logs in. Nobody guesses a token, so that there is no limit for them.
func (d *Door) begin(r *http.Request, user, password string) (Grant, login, error) {
	if isToken(password) {
		grant, err := d.token(r, password)
		return grant, login{Token: grant.Token}, err
	}
	grant, err := d.password(r, user, password)
	mark, _ := d.opts.Users.Fingerprint(user)
	return grant, login{User: user, Mark: mark}, err
}

// Logout ends the session of a request. It returns what was granted, and the cookie that replaces the session's, whatever
// the error.
func (d *Door) Logout(r *http.Request) (Grant, *http.Cookie, error) {
	gone := cookie(r, "", time.Unix(1, 0))
	gone.MaxAge = -1
	sent, err := r.Cookie(cookieName(r))
	if err != nil || d.opts.Lock != Locked {
		return Grant{}, gone, nil //nolint:nilerr // without a session there is nothing to end
	}
	ended, err := d.opts.Tokens.session(r.Context(), sent.Value)
	switch {
	case errors.Is(err, errNoSession):
		return Grant{}, gone, nil
	case err != nil: // nobody knows whether it is a session
		return Grant{}, gone, err
	}
	grant, _ := d.holder(r, ended.login)
	if err := d.opts.Tokens.Revoke(r.Context(), ended.ID, grant.Name); err != nil {
		return grant, gone, fmt.Errorf("the login has ended here only: %w", err)
	}
	return grant, gone, nil
}

// password judges a user's password.
func (d *Door) password(r *http.Request, user, password string) (Grant, error) {
	guesses := d.guessMeter(r)
	if err := d.mayTry(r, guesses, user); err != nil {
		return Grant{}, err
	}
	admin := Grant{Name: "user " + user, Roles: Admin}
	if d.opts.Users.Knows(user, password) { // counted for no moment, however many come at once
		return admin, nil
	}
	succeeded := d.take(guesses)
	right, err := d.opts.Users.Check(user, password)
	switch {
	case err != nil:
		succeeded() // nothing was learned
		return Grant{}, &Refusal{Code: http.StatusTooManyRequests, Message: err.Error(), After: time.Second}
	case !right:
		d.opts.Audit.Failed(r, user, "wrong user or password")
		return Grant{}, unauthorized("wrong user or password")
	}
	succeeded()
	return admin, nil
}

// mayTry returns an error while an address has failed too often.
func (d *Door) mayTry(r *http.Request, guesses *rate.Limiter, name string) error {
	wait := d.wait(guesses)
	if wait == 0 {
		return nil
	}
	d.opts.Audit.Failed(r, name, "too many failed logins")
	return &Refusal{
		Code: http.StatusTooManyRequests, After: wait,
		Message: fmt.Sprintf("too many failed logins: wait %s", wait.Round(time.Second)),
	}
}

// take counts a guess, so that those at the same time are counted too. It returns what takes that back if it was right.
func (d *Door) take(guesses *rate.Limiter) (succeeded func()) {
	now := steady(d.opts.Clock)
	taken := guesses.ReserveN(now, 1)
	return func() { taken.CancelAt(now) }
}

// guessMeter returns the meter of an address. One that stands for many clients has that of many.
func (d *Door) guessMeter(r *http.Request) *rate.Limiter {
	if client := d.opts.Clients.ByAddress(r.RemoteAddr); client != (limits.Client{}) {
		return d.guesses.Get(origin{client: client}, 6*time.Second, 10)
	}
	return d.guesses.Get(origin{name: host(r)}, time.Second, 100)
}

// certificate returns the name in the client's certificate, "" if the client has shown none that a CA of the web
// config has signed.
func certificate(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return ""
	}
	return r.TLS.VerifiedChains[0][0].Subject.String()
}
