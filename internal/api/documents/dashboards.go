package documents

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Dashboards has the endpoints for dashboards.
type Dashboards struct{ Library *dashboard.Library }

// Register implements api.Registrar.
func (d Dashboards) Register(to *route.Table) {
	collection{
		path: wire.DashboardsPath, maxBytes: dashboard.MaxBytes, list: d.list, remove: d.Library.Delete,
		get: func(ctx context.Context, id string, version int64) (any, int, error) {
			s, err := d.Library.Get(ctx, id, version)
			return wire.Dashboard{
				ID: s.ID, Version: s.Version, Updated: s.UpdatedMs, Author: s.Author, Origin: s.Origin, Problem: s.Problem, Dashboard: s.Body,
			}, len(s.Body), err
		},
		put: func(ctx context.Context, id string, base int64, text []byte, author string) (int64, error) {
			sent, err := dashboard.Decode(text)
			if err != nil {
				return 0, err
			}
			return d.Library.Put(ctx, id, base, sent, author)
		},
	}.register(to)
	to.Handle(access.Read, route.Refused, "GET "+wire.DashboardsPath+"/{id}/versions", endpoint(d.versions))
}

func (d Dashboards) list(r *http.Request, all url.Values) (any, error) {
	deleted := false
	if text := all.Get("deleted"); text != "" {
		var err error
		if deleted, err = strconv.ParseBool(text); err != nil {
			return nil, &badRequestError{"deleted must be true or false, and not " + excerpt.Quoted(text)}
		}
	}
	heads, err := d.Library.List(r.Context(), deleted)
	return wireHeads(heads), err
}

func (d Dashboards) versions(r *http.Request, _ url.Values) (any, error) {
	heads, err := d.Library.Versions(r.Context(), r.PathValue("id"))
	out := wireHeads(heads)
	for i := range out {
		out[i].ID = ""
	}
	return out, err
}

func wireHeads(heads []dashboard.Head) []wire.DashboardHead {
	out := make([]wire.DashboardHead, len(heads))
	for i, h := range heads {
		out[i] = wire.DashboardHead{
			ID: h.ID, Title: h.Title, Version: h.Version, Updated: h.UpdatedMs, Author: h.Author, Origin: h.Origin, Bytes: h.Bytes,
			Deleted: h.Deleted, Problem: h.Problem,
		}
	}
	return out
}
