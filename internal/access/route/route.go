// Package route is the table of all endpoints, each with the role that it needs, and with what it is for clients whose
// token is bound to some series.
package route

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/quern/quern/internal/access"
)

// Route is one endpoint.
type Route struct {
	// Pattern is that of http.ServeMux, such as "POST /api/v1/reports".
	Pattern string
	// Role is what a client must have to use the endpoint: a single one, Edits, or access.Anyone.
	Role access.Role
	// Bound is what the endpoint is for a client whose token is bound to some series.
	Bound Bound
	// BodyBytes is the size of the largest body, 0 for the server's default.
	BodyBytes int64
}

// Edits are the roles that a client needs who changes what people keep, such as dashboards. It is logged who did.
const Edits = access.Read | access.Write

// Bound says what an endpoint is for a client whose token is bound to some series. Every endpoint says it.
type Bound int

const (
	// Filtered endpoints tell of the client's series only, or take only these. What finds series and what takes samples
	// enforces it, see package bound.
	Filtered Bound = iota + 1
	// NoData endpoints tell nothing of what is stored.
	NoData
	// Refused endpoints tell of all series, or change them.
	Refused
)

// String implements fmt.Stringer.
func (b Bound) String() string {
	return map[Bound]string{Filtered: "filtered", NoData: "no data", Refused: "refused"}[b]
}

// Table routes requests to endpoints. There is no other way to register an endpoint, so none lacks a role, or what it is for
// bound clients.
type Table struct {
	mux       *http.ServeMux
	byPattern map[string]Route
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{mux: http.NewServeMux(), byPattern: make(map[string]Route)} }

// Handle registers an endpoint for clients that have a role; see Route. bound is what it is for those that are bound to
// some series.
func (t *Table) Handle(role access.Role, bound Bound, pattern string, h http.Handler) {
	switch role {
	case access.Anyone, access.Read, access.Write, Edits, access.Admin:
	default:
		panic(fmt.Sprintf("route %s needs other roles than a route may: %s", pattern, role))
	}
	if bound.String() == "" {
		panic(fmt.Sprintf("route %s does not say what it is for bound clients", pattern))
	}
	t.mux.Handle(pattern, h)
	t.byPattern[pattern] = Route{Pattern: pattern, Role: role, Bound: bound}
}

// HandleFunc is Handle for a function.
func (t *Table) HandleFunc(role access.Role, bound Bound, pattern string, h http.HandlerFunc) {
	t.Handle(role, bound, pattern, h)
}

// AllowBody lets an endpoint that is registered take bodies of up to so many bytes.
func (t *Table) AllowBody(pattern string, bytes int64) {
	r := t.byPattern[pattern]
	r.BodyBytes = bytes
	t.byPattern[pattern] = r
}

// Find returns the route of a request. If there is none, ok is false, and the handler answers why.
func (t *Table) Find(r *http.Request) (route Route, h http.Handler, ok bool) {
	h, pattern := t.mux.Handler(r)
	route, ok = t.byPattern[pattern]
	return route, h, ok
}

// ServeHTTP implements http.Handler. It checks no role: the server does that before, and a program that asks
// itself needs none.
func (t *Table) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.mux.ServeHTTP(w, r) }

// Routes returns all routes by pattern.
func (t *Table) Routes() []Route {
	var all []Route
	for _, pattern := range slices.Sorted(maps.Keys(t.byPattern)) {
		all = append(all, t.byPattern[pattern])
	}
	return all
}
