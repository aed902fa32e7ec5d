package app

import (
	"context"
	"io"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/accesstest"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/storage"
)

// row is what an endpoint needs, and what it is for clients whose tokens are bound to some series.
type row struct {
	role  access.Role
	bound route.Bound
}

// rows name each endpoint. A new endpoint begins with its row.
var rows = map[string]row{
	"GET /{$}":         {access.Anyone, route.NoData},
	"GET /-/healthy":   {access.Anyone, route.NoData},
	"GET /-/ready":     {access.Anyone, route.NoData},
	"GET /health":      {access.Anyone, route.NoData},
	"GET /ping":        {access.Anyone, route.NoData},
	"GET /influx/ping": {access.Anyone, route.NoData},

	// The page itself says nothing about what is stored.
	"GET /assets/":           {access.Anyone, route.NoData},
	"GET /explore":           {access.Anyone, route.NoData},
	"GET /explore/":          {access.Anyone, route.NoData},
	"GET /grinding":          {access.Anyone, route.NoData},
	"GET /grinding/":         {access.Anyone, route.NoData},
	"GET /metrics-explorer":  {access.Anyone, route.NoData},
	"GET /metrics-explorer/": {access.Anyone, route.NoData},
	"GET /dashboards":        {access.Anyone, route.NoData},
	"GET /dashboards/":       {access.Anyone, route.NoData},
	"GET /send":              {access.Anyone, route.NoData},
	"GET /send/":             {access.Anyone, route.NoData},

	"GET /api/v1/login":   {access.Anyone, route.NoData},
	"POST /api/v1/login":  {access.Anyone, route.NoData},
	"POST /api/v1/logout": {access.Anyone, route.NoData},

	"GET /metrics":                    {access.Read, route.Refused},
	"GET /api/v1/query":               {access.Read, route.Filtered},
	"POST /api/v1/query":              {access.Read, route.Filtered},
	"GET /api/v1/query_range":         {access.Read, route.Filtered},
	"POST /api/v1/query_range":        {access.Read, route.Filtered},
	"GET /api/v1/query_exemplars":     {access.Read, route.NoData},
	"POST /api/v1/query_exemplars":    {access.Read, route.NoData},
	"GET /api/v1/format_query":        {access.Read, route.NoData},
	"POST /api/v1/format_query":       {access.Read, route.NoData},
	"GET /api/v1/series":              {access.Read, route.Filtered},
	"POST /api/v1/series":             {access.Read, route.Filtered},
	"GET /api/v1/labels":              {access.Read, route.Filtered},
	"POST /api/v1/labels":             {access.Read, route.Filtered},
	"GET /api/v1/label/{name}/values": {access.Read, route.Filtered},
	"GET /api/v1/metadata":            {access.Read, route.Filtered},
	"GET /api/v1/rules":               {access.Read, route.NoData},
	"GET /api/v1/alerts":              {access.Read, route.NoData},
	"GET /api/v1/status/buildinfo":    {access.Read, route.NoData},
	"GET /api/v1/status/aggregation":  {access.Read, route.Refused},
	"GET /api/v1/status/slices":       {access.Read, route.Refused},
	"GET /api/v1/status/tsdb":         {access.Read, route.Filtered},
	"GET /api/v1/cardinality":         {access.Read, route.Filtered},
	"POST /api/v1/cardinality":        {access.Read, route.Filtered},
	"GET /api/v1/sources":             {access.Read, route.Filtered},
	"/api/v1/export":                  {access.Read, route.Filtered},
	"/api/v1/rollups":                 {access.Read, route.Filtered},
	"/api/v1/points":                  {access.Read, route.Filtered},
	"/api/v1/latest":                  {access.Read, route.Filtered},
	"/api/v1/summary":                 {access.Read, route.Filtered},
	"/api/v1/baseline":                {access.Read, route.Filtered},
	"/api/v1/explain":                 {access.Read, route.Filtered},

	"GET /api/v1/annotations":              {access.Read, route.Refused},
	"GET /api/v1/dashboards":               {access.Read, route.Refused},
	"GET /api/v1/dashboards/{id}":          {access.Read, route.Refused},
	"GET /api/v1/dashboards/{id}/versions": {access.Read, route.Refused},
	"GET /api/v1/groups":                   {access.Read, route.Refused},
	"GET /api/v1/groups/{id}":              {access.Read, route.Refused},

	"POST /api/v1/annotations":              {access.Write, route.Refused},
	"DELETE /api/v1/annotations":            {route.Edits, route.Refused},
	"POST /api/v1/annotations/alertmanager": {access.Write, route.Refused},
	"PUT /api/v1/dashboards/{id}":           {route.Edits, route.Refused},
	"DELETE /api/v1/dashboards/{id}":        {route.Edits, route.Refused},
	"PUT /api/v1/groups/{id}":               {route.Edits, route.Refused},
	"DELETE /api/v1/groups/{id}":            {route.Edits, route.Refused},

	"POST /api/v1/reports":         {access.Write, route.Filtered},
	"POST /api/v1/write":           {access.Write, route.Filtered},
	"POST /write":                  {access.Write, route.Filtered},
	"POST /influx/write":           {access.Write, route.Filtered},
	"POST /api/v2/write":           {access.Write, route.Filtered},
	"/query":                       {access.Write, route.NoData}, // clients of InfluxDB create their database before they write
	"/influx/query":                {access.Write, route.NoData},
	"POST /v1/metrics":             {access.Write, route.Filtered},
	"POST /api/v1/otlp/v1/metrics": {access.Write, route.Filtered},
	"POST /api/v1/push/collectd":   {access.Write, route.Filtered},

	"GET /api/v1/tokens":                    {access.Admin, route.Refused},
	"POST /api/v1/tokens":                   {access.Admin, route.Refused},
	"POST /api/v1/tokens/revoke":            {access.Admin, route.Refused},
	"POST /api/v1/import":                   {access.Admin, route.Refused},
	"POST /api/v1/reaggregate":              {access.Admin, route.Refused},
	"POST /api/v1/verify":                   {access.Admin, route.Refused},
	"POST /api/v1/admin/tsdb/delete_series": {access.Admin, route.Refused},
	"PUT /api/v1/admin/tsdb/delete_series":  {access.Admin, route.Refused},
	"GET /debug/pprof/":                     {access.Admin, route.Refused},
	"GET /debug/pprof/cmdline":              {access.Admin, route.Refused},
	"GET /debug/pprof/profile":              {access.Admin, route.Refused},
	"GET /debug/pprof/symbol":               {access.Admin, route.Refused},
	"GET /debug/pprof/trace":                {access.Admin, route.Refused},
}

// TestRoutes: every endpoint of a server with all that can be turned on has its row, and every row its endpoint.
func TestRoutes(t *testing.T) {
	s := testServer(t)
	s.keepDocuments(accesstest.NewMemory())
	s.cfg.EnableAdminAPI = true
	ctx, cancel := context.WithCancel(t.Context())
	_, end := serving(ctx, t, s)
	got := make(map[string]row)
	for _, r := range s.http.Routes() {
		got[r.Pattern] = row{r.Role, r.Bound}
	}
	require.Equal(t, rows, got)
	cancel()
	require.NoError(t, <-end)

	// What an endpoint needs does not depend on the flags that turn it off.
	closed := testServer(t)
	ctx, cancel = context.WithCancel(t.Context())
	_, end = serving(ctx, t, closed)
	for _, r := range closed.http.Routes() {
		require.Contains(t, rows, r.Pattern)
		require.Equal(t, row{r.Role, r.Bound}, rows[r.Pattern], r.Pattern)
	}
	cancel()
	require.NoError(t, <-end)
}

// TestAnswersOfRoutes: the answers of all endpoints go through the same door, which compresses those that are long.
func TestAnswersOfRoutes(t *testing.T) {
	s := testServer(t)
	s.keepDocuments(accesstest.NewMemory())
	s.cfg.EnableAdminAPI = true
	ctx, cancel := context.WithCancel(t.Context())
	addr, end := serving(ctx, t, s)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	compressed := make(map[string]int)
	for _, pattern := range slices.Sorted(maps.Keys(rows)) {
		method, path, found := strings.Cut(pattern, " ")
		if !found {
			method, path = http.MethodGet, pattern
		}
		if path == "/debug/pprof/profile" || path == "/debug/pprof/trace" {
			continue // these last as long as they are asked to
		}
		path = strings.NewReplacer("{$}", "", "{id}", "quern", "{name}", "source").Replace(path)
		for _, coding := range []string{"gzip", "zstd"} {
			r, err := http.NewRequestWithContext(ctx, method, addr+path, http.NoBody)
			require.NoError(t, err)
			r.Header.Set("Accept-Encoding", coding)
			resp, err := client.Do(r)
			require.NoError(t, err, pattern)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err, pattern)
			require.NoError(t, resp.Body.Close())
			require.NotEqual(t, http.StatusInternalServerError, resp.StatusCode, "%s: %s", pattern, body)
			if resp.StatusCode == http.StatusNoContent {
				continue
			}
			require.Contains(t, resp.Header.Values("Vary"), "Accept-Encoding", pattern)
			switch got := resp.Header.Get("Content-Encoding"); got {
			case "":
				require.Less(t, len(body), 1<<10, pattern)
			default:
				require.Equal(t, coding, got, pattern)
				compressed[pattern]++
			}
		}
	}
	client.CloseIdleConnections()
	cancel()
	require.NoError(t, <-end)
	for _, pattern := range []string{"GET /{$}", "GET /metrics", "GET /api/v1/dashboards/{id}"} {
		require.Equal(t, 2, compressed[pattern], pattern)
	}
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

func (s withDocuments) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	return s.docs.ForgetDocument(ctx, key, version)
}

// keepDocuments makes the server's store keep documents.
func (s *server) keepDocuments(docs *accesstest.Memory) {
	open := s.open
	s.open = func(ctx context.Context, onFatal func(error)) (store, error) {
		st, err := open(ctx, onFatal)
		return withDocuments{st, docs}, err
	}
}
