// Package dashboards has the endpoints for dashboards: listing, reading, storing and deleting them.
package dashboards

import (
	"net/http"
	"strconv"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/documents"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Handler has the endpoints.
type Handler struct {
	library *dashboard.Library
}

// New makes the endpoints.
func New(library *dashboard.Library) *Handler { return &Handler{library} }

// Register implements api.Registrar.
func (h *Handler) Register(to *route.Table) {
	const one = wire.DashboardsPath + "/{id}"
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.DashboardsPath, h.list)
	to.HandleFunc(access.Read, route.Refused, "GET "+one, h.get)
	to.HandleFunc(access.Read, route.Refused, "GET "+one+"/versions", h.versions)
	to.HandleFunc(route.Edits, route.Refused, "PUT "+one, h.put)
	to.HandleFunc(route.Edits, route.Refused, "DELETE "+one, h.remove)
	to.AllowBody("PUT "+one, dashboard.MaxBytes)
}

func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	all, err := documents.Parameters(r)
	deleted := false
	if text := all.Get("deleted"); err == nil && text != "" {
		if deleted, err = strconv.ParseBool(text); err != nil {
			err = &documents.BadRequestError{Message: "deleted must be true or false, and not " + excerpt.Quoted(text)}
		}
	}
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	heads, err := h.library.List(r.Context(), deleted)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	out := make([]wire.DashboardHead, len(heads))
	for i, head := range heads {
		out[i] = wireHead(head)
	}
	documents.Answer(w, out)
}

func wireHead(h dashboard.Head) wire.DashboardHead {
	return wire.DashboardHead{
		ID: h.ID, Title: h.Title, Version: h.Version, Updated: h.UpdatedMs, Author: h.Author, Origin: h.Origin, Bytes: h.Bytes,
		Deleted: h.Deleted, Problem: h.Problem,
	}
}

func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	all, err := documents.Parameters(r)
	var version int64
	if err == nil {
		version, _, err = documents.Number(all, "version", 1)
	}
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	d, err := h.library.Get(r.Context(), r.PathValue("id"), version)
	if err == nil {
		err = documents.Charge(r, len(d.Body))
	}
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	documents.Answer(w, wire.Dashboard{
		ID: d.ID, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author, Origin: d.Origin, Problem: d.Problem, Dashboard: d.Body,
	})
}

func (h *Handler) versions(w http.ResponseWriter, r *http.Request) {
	heads, err := h.library.Versions(r.Context(), r.PathValue("id"))
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	out := make([]wire.DashboardHead, len(heads))
	for i, head := range heads {
		out[i] = wireHead(head)
		out[i].ID = ""
	}
	documents.Answer(w, out)
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) {
	from, err := documents.Base(r)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	text, err := documents.Body(r)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	d, err := dashboard.Decode(text)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	id := r.PathValue("id")
	version, err := h.library.Put(r.Context(), id, from, d, access.FromContext(r.Context()).Name)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	documents.Answer(w, wire.DashboardVersion{ID: id, Version: version})
}

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) {
	from, err := documents.Base(r)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	version, err := h.library.Delete(r.Context(), r.PathValue("id"), from, access.FromContext(r.Context()).Name)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	documents.Answer(w, wire.DashboardVersion{Version: version})
}
