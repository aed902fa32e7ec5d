package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

// catalogServer takes reports with a real engine, and says what there is.
type catalogServer struct {
	*testing.T
	*api.Server
	clk    *clock.Simulated
	engine *engine.Engine
	index  *query.Index
}

func newCatalogServer(t *testing.T, series registry.Options, turns reading.Turns) *catalogServer {
	s := &catalogServer{T: t, clk: clock.NewSimulated(apitest.Now), index: query.NewIndex()}
	st := apitest.Store(s.clk)
	// Of an earlier process.
	src, err := registry.New(st, registry.Options{}).Source(t.Context(), "old-1", false)
	require.NoError(t, err)
	_, err = src.Register(t.Context(), []metric.Labels{{{Name: metric.NameLabel, Value: "up"}}})
	require.NoError(t, err)
	require.NoError(t, s.index.Refresh(t.Context(), st))
	s.index.CountNew(s.clk)

	seen := query.NewSightings(false)
	reader := query.New(query.Parts{Store: st, Index: s.index, Settings: st.Settings(), WholeFrom: st.WholeFrom, Clock: s.clk}, query.Options{Sightings: seen})
	s.engine = engine.New(engine.Options{Store: st, Clock: s.clk})
	series.OnNew = s.index.Add
	s.engine.Start(t.Context(), series, ingest.Options{OnSamples: seen.Saw})
	t.Cleanup(func() { require.NoError(t, s.engine.Close()) })
	s.Server = apitest.Server(t, func(o *api.Options) {
		o.Clock, o.Appender, o.Turns = s.clk, s.engine.Ingest, turns
		o.Sources = metric.SourceLabels{"host"}
		o.Extra = []api.Registrar{reading.NewCatalog(reading.CatalogOptions{
			Querier: reader, Registry: s.engine.Registry, Labels: o.Sources, SinceMs: apitest.Now.UnixMilli(), Turns: turns,
		})}
	})
	return s
}

func (s *catalogServer) report(source string, metrics ...string) {
	s.Helper()
	var all []string
	for _, m := range metrics {
		all = append(all, fmt.Sprintf(`{"metric":%q,"value":1}`, m))
	}
	w := apitest.Post(s.T, s, strings.NewReader(fmt.Sprintf(`{"source":%q,"measurements":[%s]}`, source, strings.Join(all, ","))))
	require.Equal(s, 200, w.Code, w.Body)
}

func get[T any](s *catalogServer, path string, params ...string) (v T) {
	s.Helper()
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Add(params[i], params[i+1])
	}
	w := apitest.Get(s.T, s, http.MethodGet, path+"?"+form.Encode())
	require.Equal(s, 200, w.Code, w.Body)
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	require.NoError(s, dec.Decode(&v))
	return v
}

// TestSources: a source has what this process has taken of it, and those that have not reported are there too.
func TestSources(t *testing.T) {
	s := newCatalogServer(t, registry.Options{}, reading.Turns{})
	began := apitest.Now.UnixMilli()
	s.report("web-1", "cpu", "mem", "cpu")
	s.clk.Set(apitest.Now.Add(time.Minute))
	s.report("web-2", "cpu")
	s.report("web-2", "cpu")
	w := apitest.Send(t, s, "/write", strings.NewReader("disk,host=db-1,path=/ used=1,free=2\ndisk,host=db-1,path=/x used=1\n"))
	require.Equal(t, 204, w.Code, w.Body)
	later := began + time.Minute.Milliseconds()
	// 16 bytes a sample, and the names and values of its labels with two bytes for the length of each.
	key := func(pairs ...string) (n int64) {
		var ls metric.Labels
		for i := 0; i < len(pairs); i += 2 {
			ls = append(ls, metric.Label{Name: pairs[i], Value: pairs[i+1]})
		}
		return 16 + int64(len(ls.AppendKey(nil)))
	}
	disk := func(name, path string) int64 { return key(metric.NameLabel, name, "host", "db-1", "path", path) }
	web1 := wire.Source{Name: "web-1", Series: 2, Last: &began, Samples: 3, Bytes: 3 * key(metric.NameLabel, "cpu")}
	web2 := wire.Source{Name: "web-2", Series: 1, Last: &later, Samples: 2, Bytes: 2 * key(metric.NameLabel, "cpu")}
	db1 := wire.Source{Name: "db-1", Derived: true, Series: 3, Last: &later, Samples: 3, Bytes: disk("disk_used", "/") + disk("disk_free", "/") + disk("disk_used", "/x")}
	old := wire.Source{Name: "old-1", Series: 1}
	for sort, want := range map[string][]wire.Source{
		"": {db1, web1, web2, old}, "samples": {db1, web1, web2, old}, "bytes": {db1, web1, web2, old}, "series": {db1, web1, old, web2},
		"last": {db1, web2, web1, old}, "silent": {old, web1, db1, web2}, "name": {db1, old, web1, web2},
	} {
		require.Equal(t, wire.Sources{Since: began, Total: 4, Sources: want}, get[wire.Sources](s, wire.SourcesPath, "sort", sort), sort)
		require.Equal(t, wire.Sources{Since: began, Total: 4, Sources: want[:1]}, get[wire.Sources](s, wire.SourcesPath, "sort", sort, "limit", "1"), sort)
	}

	one := func(params ...string) wire.Sources {
		t.Helper()
		return get[wire.Sources](s, wire.SourcesPath, params...)
	}
	require.Equal(t, wire.Sources{
		Since: began, Total: 1, Sources: []wire.Source{web1}, Metrics: []wire.NameSeries{{Name: "cpu", Series: 1}, {Name: "mem", Series: 1}},
	}, one("source", "web-1"))
	require.Equal(t, wire.Sources{
		Since: began, Total: 1, Sources: []wire.Source{db1}, Metrics: []wire.NameSeries{{Name: "disk_used", Series: 2}},
	}, one("source", "db-1", "derived", "true", "limit", "1"))
	require.Equal(t, wire.Sources{
		Since: began, Total: 1, Sources: []wire.Source{old}, Metrics: []wire.NameSeries{{Name: "up", Series: 1}},
	}, one("source", "old-1"))
	for _, none := range [][]string{{"source", "db-1"}, {"source", "web-1", "derived", "true"}, {"source", "web"}, {"source", ""}} {
		require.Equal(t, wire.Sources{Since: began, Sources: []wire.Source{}}, one(none...))
	}

	// What is rejected does not count, and neither does a series that is over the limit.
	s = newCatalogServer(t, registry.Options{MaxSeriesPerSource: 2}, reading.Turns{})
	body := fmt.Sprintf(`{"source":"web-1","measurements":[{"metric":"a","value":1},{"metric":"b","value":1},{"metric":"c","value":1},{"metric":"a","value":1,"time":5},
		{"metric":"","value":1},{"metric":"a","value":2,"time":%d}]}`, began-1)
	w = apitest.Post(t, s, strings.NewReader(body))
	require.Equal(t, 200, w.Code)
	require.Equal(t, 3, apitest.DecodeReply(t, w).Accepted)
	web1 = wire.Source{Name: "web-1", Series: 2, Last: &began, Samples: 3, Bytes: 3 * key(metric.NameLabel, "a")}
	require.Equal(t, []wire.Source{web1, old}, get[wire.Sources](s, wire.SourcesPath).Sources)
}

// TestSourcesOfOneName: a source that has not reported since the start is listed beside a derived one of its name that has.
func TestSourcesOfOneName(t *testing.T) {
	s := newCatalogServer(t, registry.Options{}, reading.Turns{})
	w := apitest.Send(t, s, "/write", strings.NewReader("up,host=old-1 value=1\n"))
	require.Equal(t, 204, w.Code, w.Body)
	got := get[wire.Sources](s, wire.SourcesPath, "sort", "name")
	require.Equal(t, 2, got.Total)
	require.Equal(t, wire.Source{Name: "old-1", Series: 1}, got.Sources[0])
	require.Equal(t, "old-1", got.Sources[1].Name)
	require.True(t, got.Sources[1].Derived)
}

// TestForgottenSources: the counts of sources that are dropped from memory are, and that is said.
func TestForgottenSources(t *testing.T) {
	s := newCatalogServer(t, registry.Options{MaxSources: 2}, reading.Turns{})
	for i := range 6 {
		s.report(fmt.Sprint("web-", i), "cpu", "mem")
	}
	got := get[wire.Sources](s, wire.SourcesPath, "sort", "name", "limit", "50")
	require.Equal(t, 7, got.Total)
	require.Positive(t, got.Forgotten)
	counted := 0
	for i, source := range got.Sources {
		require.Equal(t, slices.Concat([]string{"old-1"}, []string{"web-0", "web-1", "web-2", "web-3", "web-4", "web-5"})[i], source.Name)
		require.Equal(t, source.Samples > 0, source.Last != nil)
		if source.Name != "old-1" {
			require.Equal(t, 2, source.Series)
		}
		if source.Samples > 0 {
			counted++
		}
	}
	require.Equal(t, 6-got.Forgotten, counted)
}

// TestCardinalityOfSeries: the numbers by metric, label, value, source and day.
func TestCardinalityOfSeries(t *testing.T) {
	s := newCatalogServer(t, registry.Options{}, reading.Turns{})
	today := apitest.Now.Truncate(24 * time.Hour).UnixMilli()
	s.report("web-1", "cpu", "mem")
	s.report("web-2", "cpu")
	s.clk.Set(apitest.Now.Add(24 * time.Hour))
	s.report("web-2", "cpu", "disk")
	got := get[wire.Cardinality](s, wire.CardinalityPath, "days", "2")
	for i := range got.Labels {
		require.Positive(t, got.Labels[i].Bytes)
		got.Labels[i].Bytes = 0
	}
	require.Equal(t, wire.Cardinality{
		Series: 5, LabelNames: 2, LabelPairs: 7,
		Metrics: []wire.NameSeries{{Name: "cpu", Series: 2}, {Name: "disk", Series: 1}, {Name: "mem", Series: 1}, {Name: "up", Series: 1}},
		Labels:  []wire.LabelSeries{{Name: "__name__", Values: 4, Series: 5}, {Name: "source", Values: 3, Series: 5}},
		Values: []wire.ValueSeries{
			{Label: "__name__", Value: "cpu", Series: 2},
			{Label: "source", Value: "web-1", Series: 2},
			{Label: "source", Value: "web-2", Series: 2},
			{Label: "__name__", Value: "disk", Series: 1},
			{Label: "__name__", Value: "mem", Series: 1},
			{Label: "__name__", Value: "up", Series: 1},
			{Label: "source", Value: "old-1", Series: 1},
		},
		Sources:  []wire.NameSeries{{Name: "web-1", Series: 2}, {Name: "web-2", Series: 2}, {Name: "old-1", Series: 1}},
		Days:     []wire.DaySeries{{Start: today, Last: 2, Met: 3}, {Start: today + 86_400_000, Last: 2, Met: 1}},
		MetSince: apitest.Now.UnixMilli(),
	}, got)

	got = get[wire.Cardinality](s, wire.CardinalityPath, "match[]", `{source="web-2"}`, "match[]", "up", "label", "source", "limit", "1")
	require.Equal(t, 3, got.Series)
	require.Equal(t, []wire.ValueSeries{{Label: "source", Value: "web-2", Series: 2}}, got.Values)
	require.Len(t, got.Metrics, 1)
	require.Nil(t, got.Days)
	require.Zero(t, got.MetSince)
	// Selectors may be as long as a form, from this server's pages and from those that may read.
	w := apitest.Send(t, s, wire.CardinalityPath, strings.NewReader(url.Values{"match[]": {`{source="web-2"}`}}.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), `{"series":2,`)
	require.Equal(t, 405, apitest.Get(t, s, "POST", wire.SourcesPath).Code)
}

// TestCatalogRequests: bad parameters are named, and each request takes a turn, has an end and is charged.
func TestCatalogRequests(t *testing.T) {
	turns := limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil)})
	s := newCatalogServer(t, registry.Options{}, reading.Turns{Queries: turns, QueryTimeout: time.Minute})
	for target, want := range map[string]string{
		wire.CardinalityPath + "?limit=0": "limit=", wire.CardinalityPath + "?limit=10001": "from 1 to 10000", wire.CardinalityPath + "?days=32": "from 1 to 31",
		wire.CardinalityPath + "?match[]=%7B": "selector", wire.CardinalityPath + "?metric=x": "unknown parameter", wire.CardinalityPath + "?match[]=%7B%7D": "require a value",
		wire.SourcesPath + "?sort=size": "sort=", wire.SourcesPath + "?derived=perhaps": "derived=", wire.SourcesPath + "?limit=x": "limit=",
	} {
		w := apitest.Get(t, s, http.MethodGet, target)
		require.Equal(t, 400, w.Code, target)
		require.Contains(t, w.Body.String(), want, target)
	}
	give, err := turns.Take(t.Context(), "")
	require.NoError(t, err)
	busy := newCatalogServer(t, registry.Options{}, reading.Turns{Queries: turns, QueryTimeout: time.Millisecond})
	targets := []string{wire.CardinalityPath, wire.SourcesPath, wire.SourcesPath + "?source=old-1"}
	for _, target := range targets {
		require.Equal(t, 503, apitest.Get(t, busy, http.MethodGet, target).Code, target)
	}
	give()
	small := newCatalogServer(t, registry.Options{}, reading.Turns{})
	small.Server = apitest.Server(t, func(o *api.Options) {
		o.Forms = apitest.Share(100)
		o.Extra = []api.Registrar{reading.NewCatalog(reading.CatalogOptions{
			Querier:  query.New(query.Parts{Index: small.index, Settings: storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 8}, Clock: small.clk}, query.Options{}),
			Registry: small.engine.Registry,
		})}
	})
	for _, target := range targets {
		require.Equal(t, 200, apitest.Get(t, s, http.MethodGet, target).Code, target)
		require.Equal(t, 429, apitest.Get(t, small, http.MethodGet, target).Code, target)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		r, err := http.NewRequestWithContext(gone, http.MethodGet, "http://localhost"+target, http.NoBody)
		require.NoError(t, err)
		require.Equal(t, 499, answered(s, r), target)
	}
}

// answered returns the code of the answer to a request.
func answered(h http.Handler, r *http.Request) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}
