package documents

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/documents/shelf"
	"github.com/quern/quern/internal/wire"
)

// Groups has the endpoints for groups of metrics.
type Groups struct{ Shelf *shelf.Shelf }

// Register implements api.Registrar.
func (g Groups) Register(to *route.Table) {
	collection{
		path: wire.GroupsPath, maxBytes: group.MaxBytes, list: g.list,
		get: func(ctx context.Context, id string, _ int64) (any, int, error) {
			d, err := g.Shelf.Get(ctx, id, 0)
			return wire.Group{ID: d.ID, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author, Group: d.Body}, len(d.Body), err
		},
		put: func(ctx context.Context, id string, base int64, text []byte, author string) (int64, error) {
			name, body, err := group.Decode(text)
			if err != nil {
				return 0, err
			}
			return g.Shelf.Put(ctx, shelf.Change{ID: id, Base: base, Author: author}, name, body)
		},
		remove: func(ctx context.Context, id string, base int64, author string) (int64, error) {
			return g.Shelf.Delete(ctx, shelf.Change{ID: id, Base: base, Author: author})
		},
	}.register(to)
}

// list returns the groups by name.
func (g Groups) list(r *http.Request, _ url.Values) (any, error) {
	out := []wire.GroupHead{}
	for d, err := range g.Shelf.List(r.Context()) {
		if err != nil {
			return nil, err
		}
		head := wire.GroupHead{ID: d.ID, Name: d.Title, Version: d.Version, Updated: d.UpdatedMs, Author: d.Author}
		if !d.Deleted {
			out = append(out, head)
		}
	}
	slices.SortFunc(out, func(a, b wire.GroupHead) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}
