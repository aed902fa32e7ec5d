// Package groups has the endpoints for groups of metrics.
package groups

import (
	"net/http"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/documents"
	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/wire"
)

// Handler has the endpoints.
type Handler struct{ library *group.Library }

// New makes the endpoints.
func New(library *group.Library) *Handler { return &Handler{library} }

// Register implements api.Registrar.
func (h *Handler) Register(to *route.Table) {
	const one = wire.GroupsPath + "/{id}"
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.GroupsPath, h.list)
	to.HandleFunc(access.Read, route.Refused, "GET "+one, h.get)
	to.HandleFunc(route.Edits, route.Refused, "PUT "+one, h.put)
	to.HandleFunc(route.Edits, route.Refused, "DELETE "+one, h.remove)
	to.AllowBody("PUT "+one, group.MaxBytes)
}

func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	heads, err := h.library.List(r.Context())
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	out := make([]wire.GroupHead, len(heads))
	for i, d := range heads {
		out[i] = wire.GroupHead{ID: d.ID, Name: d.Title, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author}
		if d.Damaged {
			out[i].Name, out[i].Problem = d.ID, "this version is damaged in the store: save another one"
		}
	}
	documents.Answer(w, out)
}

func (h *Handler) get(w http.ResponseWriter, r *http.Request) {
	d, err := h.library.Get(r.Context(), r.PathValue("id"))
	if err == nil {
		err = documents.Charge(r, len(d.Body))
	}
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	documents.Answer(w, wire.Group{ID: d.ID, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author, Group: d.Body})
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) {
	g, base, err := read(r)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	h.changed(w, r)(h.library.Put(r.Context(), r.PathValue("id"), base, g, access.FromContext(r.Context()).Name))
}

// read returns the group that a request sends, and the version that it was made from.
func read(r *http.Request) (g *group.Group, base int64, err error) {
	if base, err = documents.Base(r); err != nil {
		return nil, 0, err
	}
	text, err := documents.Body(r)
	if err != nil {
		return nil, 0, err
	}
	g, err = group.Decode(text)
	return g, base, err
}

func (h *Handler) remove(w http.ResponseWriter, r *http.Request) {
	base, err := documents.Base(r)
	if err != nil {
		documents.Fail(w, r, err)
		return
	}
	h.changed(w, r)(h.library.Delete(r.Context(), r.PathValue("id"), base, access.FromContext(r.Context()).Name))
}

// changed returns what answers a change, by the version that it has made.
func (h *Handler) changed(w http.ResponseWriter, r *http.Request) func(int64, error) {
	return func(version int64, err error) {
		if err != nil {
			documents.Fail(w, r, err)
			return
		}
		documents.Answer(w, wire.GroupVersion{ID: r.PathValue("id"), Version: version})
	}
}
