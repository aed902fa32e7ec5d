package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/protocol/respond"
)

// audited is how much of a form the audit log repeats.
const audited = 400

// authorize returns what the client of a request is granted, and an error if the route needs more.
func (s *Server) authorize(r *http.Request, to route.Route) (access.Grant, error) {
	grant, err := s.opts.Door.Identify(r)
	if to.Role == access.Anyone {
		// Who is wrong about the password is a stranger here.
		return grant, nil
	}
	switch {
	case err != nil:
		return access.Grant{}, err
	case grant.Roles.Has(to.Role) && grant.Bound != nil && to.Bound == route.Refused:
		return grant, &access.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf(
			"%s is about all series, and %s is bound to %s: use a token that is not bound", r.URL.Path, grant.Name, grant.Bound)}
	case grant.Roles.Has(to.Role):
		return grant, nil
	case grant.Roles == 0 && grant.Name == "":
		return grant, &access.Refusal{Code: http.StatusUnauthorized, Message: fmt.Sprintf(
			"%s needs a login with the role %s: send a token as Authorization: Bearer, or a user and password by Basic authentication", r.URL.Path, needed(to.Role))}
	case grant.Name == "":
		return grant, &access.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf(
			"%s is only for administrators: ask from the server's own machine, at localhost or a name of --allowed-hosts, "+
				"or start the server with --web.config.file and log in", r.URL.Path)}
	}
	return grant, &access.Refusal{Code: http.StatusForbidden, Message: fmt.Sprintf(
		"%s needs the role %s, and %s has only %s", r.URL.Path, needed(to.Role), grant.Name, grant.Roles)}
}

func needed(role access.Role) string { return strings.Join(role.Names(), " and the role ") }

// refuse answers a request that is not authorized.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, to route.Route, grant access.Grant, err error) {
	refusal := &access.Refusal{Code: http.StatusInternalServerError, Message: err.Error()}
	errors.As(err, &refusal)
	refuse(w, r, refusal)
	if grant.Name != "" || to.Role == access.Admin && refusal.Code == http.StatusForbidden {
		s.opts.Audit.Refused(r, grant, to.Pattern, refusal.Code)
	}
}

// refuse answers with a refusal.
func refuse(w http.ResponseWriter, r *http.Request, refusal *access.Refusal) {
	if refusal.Code == http.StatusUnauthorized {
		w.Header().Add("WWW-Authenticate", `Bearer realm="Quern"`)
		// A browser would ask for a password by itself, over the page's own form.
		if !strings.Contains(r.UserAgent(), "Mozilla") {
			w.Header().Add("WWW-Authenticate", `Basic realm="Quern", charset="UTF-8"`)
		}
	}
	if refusal.After > 0 {
		w.Header().Set("Retry-After", respond.Seconds(refusal.After))
	}
	respond.Error(w, refusal.Code, refusal.Message)
}

// audit records what was done at an endpoint for administrators, or for who changes what people keep. sent is the beginning
// of the form, if there is one. whole says that the handler has returned: one that cannot go on cuts its answer off by a
// panic, after its status was sent.
func (s *Server) audit(w http.ResponseWriter, r *http.Request, to route.Route, grant access.Grant, whole bool, sent string) {
	details := []any{"query", r.URL.RawQuery, "form", sent}
	switch to.Role {
	case access.Admin:
	case route.Edits:
		details = []any{"path", r.URL.Path, "query", r.URL.RawQuery}
	default:
		return
	}
	code := http.StatusOK
	if rec, ok := w.(*recorder); ok && rec.code != 0 {
		code = rec.code
	}
	if !whole {
		code = access.CutOff
	}
	s.opts.Audit.Did(r, grant, to.Pattern, code, details...)
}
