package app

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/accesstest"
	"github.com/quern/quern/internal/storage"
)

// rows name each endpoint with the role that it needs. A new endpoint begins with its row.
var rows = map[string]access.Role{
	"GET /{$}":         access.Anyone,
	"GET /-/healthy":   access.Anyone,
	"GET /-/ready":     access.Anyone,
	"GET /health":      access.Anyone,
	"GET /ping":        access.Anyone,
	"GET /influx/ping": access.Anyone,

	// The page itself says nothing about what is stored.
	"GET /assets/":           access.Anyone,
	"GET /explore":           access.Anyone,
	"GET /explore/":          access.Anyone,
	"GET /grinding":          access.Anyone,
	"GET /grinding/":         access.Anyone,
	"GET /metrics-explorer":  access.Anyone,
	"GET /metrics-explorer/": access.Anyone,
	"GET /dashboards":        access.Anyone,
	"GET /dashboards/":       access.Anyone,
	"GET /send":              access.Anyone,
	"GET /send/":             access.Anyone,

	"POST /api/v1/login":  access.Anyone,
	"POST /api/v1/logout": access.Anyone,

	"GET /metrics":                    access.Read,
	"GET /api/v1/query":               access.Read,
	"POST /api/v1/query":              access.Read,
	"GET /api/v1/query_range":         access.Read,
	"POST /api/v1/query_range":        access.Read,
	"GET /api/v1/query_exemplars":     access.Read,
	"POST /api/v1/query_exemplars":    access.Read,
	"GET /api/v1/format_query":        access.Read,
	"POST /api/v1/format_query":       access.Read,
	"GET /api/v1/series":              access.Read,
	"POST /api/v1/series":             access.Read,
	"GET /api/v1/labels":              access.Read,
	"POST /api/v1/labels":             access.Read,
	"GET /api/v1/label/{name}/values": access.Read,
	"GET /api/v1/metadata":            access.Read,
	"GET /api/v1/rules":               access.Read,
	"GET /api/v1/alerts":              access.Read,
	"GET /api/v1/status/buildinfo":    access.Read,
	"GET /api/v1/status/aggregation":  access.Read,
	"GET /api/v1/status/slices":       access.Read,
	"GET /api/v1/status/tsdb":         access.Read,
	"GET /api/v1/cardinality":         access.Read,
	"POST /api/v1/cardinality":        access.Read,
	"GET /api/v1/sources":             access.Read,
	"/api/v1/export":                  access.Read,
	"/api/v1/rollups":                 access.Read,
	"/api/v1/points":                  access.Read,
	"/api/v1/latest":                  access.Read,
	"/api/v1/summary":                 access.Read,
	"/api/v1/baseline":                access.Read,
	"/api/v1/explain":                 access.Read,

	"GET /api/v1/dashboards":               access.Read,
	"GET /api/v1/dashboards/{id}":          access.Read,
	"GET /api/v1/dashboards/{id}/versions": access.Read,
	"POST /api/v1/dashboards/convert":      access.Read,
	"PUT /api/v1/dashboards/{id}":          access.Write,
	"DELETE /api/v1/dashboards/{id}":       access.Write,

	"POST /api/v1/reports":         access.Write,
	"POST /api/v1/write":           access.Write,
	"POST /write":                  access.Write,
	"POST /influx/write":           access.Write,
	"POST /api/v2/write":           access.Write,
	"/query":                       access.Write, // clients of InfluxDB create their database before they write
	"/influx/query":                access.Write,
	"POST /v1/metrics":             access.Write,
	"POST /api/v1/otlp/v1/metrics": access.Write,
	"POST /api/v1/push/collectd":   access.Write,

	"GET /api/v1/tokens":                    access.Admin,
	"POST /api/v1/tokens":                   access.Admin,
	"POST /api/v1/tokens/revoke":            access.Admin,
	"POST /api/v1/import":                   access.Admin,
	"POST /api/v1/reaggregate":              access.Admin,
	"POST /api/v1/clock/confirm":            access.Admin,
	"POST /api/v1/admin/tsdb/delete_series": access.Admin,
	"PUT /api/v1/admin/tsdb/delete_series":  access.Admin,
	"GET /debug/pprof/":                     access.Admin,
	"GET /debug/pprof/cmdline":              access.Admin,
	"GET /debug/pprof/profile":              access.Admin,
	"GET /debug/pprof/symbol":               access.Admin,
	"GET /debug/pprof/trace":                access.Admin,
}

// TestRoutes: every endpoint of a server with all that can be turned on has its row, and every row its endpoint.
func TestRoutes(t *testing.T) {
	s := testServer(t)
	s.keepDocuments(accesstest.NewMemory())
	s.cfg.Pprof, s.cfg.EnableAdminAPI = true, true
	ctx, cancel := context.WithCancel(t.Context())
	_, end := serving(ctx, t, s)
	got := make(map[string]access.Role)
	for _, r := range s.http.Routes() {
		got[r.Pattern] = r.Role
	}
	require.Equal(t, rows, got)
	cancel()
	require.NoError(t, <-end)

	// What an endpoint needs does not depend on the flags that turn it off.
	closed := testServer(t)
	closed.cfg.EnableImport, closed.cfg.EnableReaggregate = false, false
	ctx, cancel = context.WithCancel(t.Context())
	_, end = serving(ctx, t, closed)
	for _, r := range closed.http.Routes() {
		require.Equal(t, rows[r.Pattern], r.Role, r.Pattern)
		require.Contains(t, rows, r.Pattern)
	}
	cancel()
	require.NoError(t, <-end)
}

// withDocuments is a store whose documents are kept elsewhere.
type withDocuments struct {
	store
	docs *accesstest.Memory
}

func (s withDocuments) Document(ctx context.Context, key storage.DocumentKey, version int64) (storage.Document, error) {
	return s.docs.Document(ctx, key, version)
}

func (s withDocuments) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return s.docs.Documents(ctx, kind)
}

func (s withDocuments) PutDocument(ctx context.Context, d storage.Document, keep int) error {
	return s.docs.PutDocument(ctx, d, keep)
}

// keepDocuments makes the server's store keep documents.
func (s *server) keepDocuments(docs *accesstest.Memory) {
	open := s.open
	s.open = func(ctx context.Context, onFatal func(error)) (store, error) {
		st, err := open(ctx, onFatal)
		return withDocuments{st, docs}, err
	}
}
