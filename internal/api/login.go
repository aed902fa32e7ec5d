package api

import (
	"cmp"
	"net/http"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

// Login has the endpoints by which a page logs people in and out.
type Login struct {
	door  *access.Door
	audit *access.Audit
}

// NewLogin makes the endpoints.
func NewLogin(door *access.Door, audit *access.Audit) *Login { return &Login{door, audit} }

// Register implements Registrar. Everybody may try to log in.
func (l *Login) Register(to *route.Table) {
	to.HandleFunc(access.Anyone, route.NoData, "GET /api/v1/login", who)
	to.HandleFunc(access.Anyone, route.NoData, "POST /api/v1/login", l.login)
	to.HandleFunc(access.Anyone, route.NoData, "POST /api/v1/logout", l.logout)
}

// who says as whom a client is known here, and what it may do: nothing for a stranger on a locked server.
func who(w http.ResponseWriter, r *http.Request) {
	grant := access.FromContext(r.Context())
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.Who{Status: wire.Success, Name: grant.Name, Roles: append([]string{}, grant.Roles.Names()...)})
}

// login takes a user and a password, or a token, and sets the cookie of a new session.
func (l *Login) login(w http.ResponseWriter, r *http.Request) {
	// Not from the URL, which logs and histories keep.
	password := cmp.Or(r.PostFormValue("password"), r.PostFormValue("token"))
	grant, cookie, err := l.door.Login(r, r.PostFormValue("user"), password)
	if err != nil {
		fail(w, r, err)
		return
	}
	l.audit.Did(r, grant, "login", http.StatusOK)
	http.SetCookie(w, cookie)
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.Login{Status: wire.Success, Name: grant.Name, Roles: grant.Roles.Names(), Expires: cookie.Expires.UnixMilli()})
}

// logout ends the session, so that its cookie is of no use to whoever has it.
func (l *Login) logout(w http.ResponseWriter, r *http.Request) {
	grant, gone, err := l.door.Logout(r)
	http.SetCookie(w, gone) // the browser forgets the session, also if the store does not learn that it has ended
	code := http.StatusOK
	if err != nil {
		code = fail(w, r, err)
	} else {
		respond.JSON(w, code, wire.Done{Status: wire.Success})
	}
	if grant.Name != "" {
		l.audit.Did(r, grant, "logout", code)
	}
}
