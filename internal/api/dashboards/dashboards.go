// Package dashboards has the endpoints for dashboards: listing, reading, storing and deleting them, and converting those
// of Grafana.
package dashboards

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/api/respond"
	"github.com/quern/quern/internal/api/route"
	"github.com/quern/quern/internal/dashboard"
	"github.com/quern/quern/internal/excerpt"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

const (
	// decodedFactor is how many times the memory of a body is taken by what is made of it: the copies of its parts, the
	// dashboard, and its JSON. bodyBytes is what the smallest takes.
	decodedFactor = 8
	bodyBytes     = 64 << 10
	// convertedBytes is what the smallest takes that is converted: many small panels, one at a time, and the notes.
	convertedBytes = 1 << 20
	// sentFactor is how many times the memory of a stored dashboard its answer takes.
	sentFactor = 3
)

// Handler has the endpoints.
type Handler struct {
	library *dashboard.Library
	turns   *admission.Turns
}

// New makes the endpoints. Each conversion takes one of the turns.
func New(library *dashboard.Library, turns *admission.Turns) *Handler {
	return &Handler{library, turns}
}

// Register implements api.Registrar.
func (h *Handler) Register(to *route.Table) {
	const (
		one     = wire.DashboardsPath + "/{id}"
		convert = "POST " + wire.ConvertPath
	)
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.DashboardsPath, h.list)
	to.HandleFunc(access.Read, route.Refused, "GET "+one, h.get)
	to.HandleFunc(access.Read, route.Refused, "GET "+one+"/versions", h.versions)
	to.HandleFunc(access.Write, route.Refused, "PUT "+one, h.put)
	to.HandleFunc(access.Write, route.Refused, "DELETE "+one, h.remove)
	to.HandleFunc(access.Read, route.NoData, convert, h.convert)
	to.AllowBody("PUT "+one, dashboard.MaxBytes)
	to.AllowBody(convert, dashboard.MaxGrafanaBytes)
}

// badRequestError says what is wrong with a request, apart from its dashboard.
type badRequestError struct{ message string }

func (e *badRequestError) Error() string { return e.message }

// parameters returns those of the URL. The body is no form, whatever its Content-Type says.
func parameters(r *http.Request) (url.Values, error) {
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &badRequestError{"the parameters of the URL cannot be read: " + excerpt.Message(err.Error())}
	}
	return all, nil
}

// number returns a parameter that is a number of a version.
func number(all url.Values, name string, least int64) (n int64, there bool, err error) {
	text := all.Get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < least {
		return 0, true, &badRequestError{fmt.Sprintf("%s must be the number of a version, and not %s", name, excerpt.Quoted(text))}
	}
	return n, true, nil
}

// base returns the version that a change was made from.
func base(r *http.Request) (int64, error) {
	all, err := parameters(r)
	if err != nil {
		return 0, err
	}
	n, there, err := number(all, "base", 0)
	if err == nil && !there {
		err = &badRequestError{"say with base=N which version was changed, 0 for a new dashboard: then nobody's change is lost"}
	}
	return n, err
}

func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	all, err := parameters(r)
	deleted := false
	if text := all.Get("deleted"); err == nil && text != "" {
		if deleted, err = strconv.ParseBool(text); err != nil {
			err = &badRequestError{"deleted must be true or false, and not " + excerpt.Quoted(text)}
		}
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	heads, err := h.library.List(r.Context(), deleted)
	if err != nil {
		fail(w, r, err)
		return
	}
	out := make([]wire.DashboardHead, len(heads))
	for i, head := range heads {
		out[i] = wireHead(head)
	}
	answer(w, out)
}

func wireHead(h dashboard.Head) wire.DashboardHead {
	return wire.DashboardHead{
		ID: h.ID, Title: h.Title, Version: h.Version, Updated: h.UpdatedMs, Author: h.Author, Origin: h.Origin, Bytes: h.Bytes,
		Deleted: h.Deleted, Problem: h.Problem,
	}
}

func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	all, err := parameters(r)
	var version int64
	if err == nil {
		version, _, err = number(all, "version", 1)
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	d, err := h.library.Get(r.Context(), r.PathValue("id"), version)
	if err == nil {
		err = admission.Charge(r.Context(), int64(sentFactor*len(d.Body)))
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, wire.Dashboard{
		ID: d.ID, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author, Origin: d.Origin, Problem: d.Problem, Dashboard: d.Body,
	})
}

func (h *Handler) versions(w http.ResponseWriter, r *http.Request) {
	heads, err := h.library.Versions(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	out := make([]wire.DashboardHead, len(heads))
	for i, head := range heads {
		out[i] = wireHead(head)
		out[i].ID = ""
	}
	answer(w, out)
}

// body reads the body, and charges what will be made of it: least for the smallest.
func body(r *http.Request, least int64) ([]byte, error) {
	// The server has read and charged the body itself.
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return text, admission.Charge(r.Context(), least+int64(decodedFactor*len(text)))
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) {
	from, err := base(r)
	if err != nil {
		fail(w, r, err)
		return
	}
	text, err := body(r, bodyBytes)
	if err != nil {
		fail(w, r, err)
		return
	}
	d, err := dashboard.Decode(text)
	if err != nil {
		fail(w, r, err)
		return
	}
	id := r.PathValue("id")
	version, err := h.library.Put(r.Context(), id, from, d, access.FromContext(r.Context()).Name)
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, wire.DashboardVersion{ID: id, Version: version})
}

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) {
	from, err := base(r)
	if err != nil {
		fail(w, r, err)
		return
	}
	version, err := h.library.Delete(r.Context(), r.PathValue("id"), from, access.FromContext(r.Context()).Name)
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, wire.DashboardVersion{Version: version})
}

func (h *Handler) convert(w http.ResponseWriter, r *http.Request) {
	give, err := h.turns.Take(r.Context(), r.RemoteAddr)
	if err != nil {
		fail(w, r, err)
		return
	}
	defer give()
	text, err := body(r, convertedBytes)
	if err != nil {
		fail(w, r, err)
		return
	}
	d, notes, err := dashboard.Convert(text)
	if err != nil {
		fail(w, r, err)
		return
	}
	made, err := d.Encode()
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, wire.ConvertedDashboard{Dashboard: made, Notes: notes})
}

func answer[T any](w http.ResponseWriter, data T) {
	w.Header().Set("Cache-Control", "no-store")
	respond.JSON(w, http.StatusOK, wire.Data[T]{Status: wire.Success, Data: data})
}

// fail answers an error.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	reply := wire.Error{Status: wire.Failure, Error: excerpt.Message(err.Error())}
	var (
		invalid  *dashboard.InvalidError
		bad      *badRequestError
		missing  *dashboard.MissingError
		fixed    *dashboard.FixedError
		conflict *storage.ConflictError
	)
	code, after := 0, ""
	switch {
	case errors.As(err, &invalid), errors.As(err, &bad), errors.Is(err, storage.ErrRefused):
		code, reply.ErrorType = http.StatusBadRequest, wire.BadData
	case errors.Is(err, storage.ErrTooLarge):
		code, reply.ErrorType = http.StatusRequestEntityTooLarge, wire.BadData
	case errors.As(err, &missing):
		code, reply.ErrorType = http.StatusNotFound, wire.NotFound
	case errors.As(err, &fixed):
		code, reply.ErrorType = http.StatusForbidden, wire.Forbidden
	case errors.As(err, &conflict):
		code, reply.ErrorType, reply.Newest = http.StatusConflict, wire.Conflict, &conflict.Newest
	default:
		code, after = respond.Failure(r.Context(), err)
		reply.ErrorType = wire.Internal
		if after != "" {
			w.Header().Set("Retry-After", after)
			reply.ErrorType = wire.Unavailable
		}
	}
	respond.LetGo(r)
	respond.JSON(w, code, reply)
}
