package reading_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// operateServer serves an empty store with one series, cpu, at apitest.Now.
func operateServer(t *testing.T) (string, *storagetest.Faulty) {
	return operateServerWith(t, false)
}

func operateServerWith(t *testing.T, takeBack bool) (string, *storagetest.Faulty) {
	clk := clock.NewSimulated(apitest.Now)
	store := storagetest.NewFaulty(apitest.Store(clk))
	index := query.NewIndex()
	index.Add([]storage.Schedule{{ID: 1, Labels: metric.Labels{{Name: "__name__", Value: "cpu"}, {Name: "source", Value: "a<b"}}}})
	return apitest.Listen(t, apitest.Server(t, func(o *api.Options) {
		o.Clock, o.Extra = clk, []api.Registrar{operate(store, index, clk, takeBack, o.Logger)}
	})), store
}

// operate returns the endpoints for operators of a store.
func operate(store storage.Store, index *query.Index, clk clock.Clock, takeBack bool, logger *slog.Logger) *reading.Operate {
	c := cache.New(store, clk, 1, cache.DefaultTiming())
	r := recovery.New(store, c, clk, recovery.Options{})
	return reading.NewOperate(reading.OperateOptions{
		Explainer:    explain.New(explain.Parts{Store: store, Index: index, Cache: c, Recovery: r, Clock: clk}, 1_000_000),
		Reaggregator: reaggregate.New(reaggregate.Parts{Store: store, Index: index, Cache: c, Clock: clk, Logger: logger}),
		TakeBack:     takeBack, Clock: clk,
	})
}

func request(t *testing.T, method, target, body string) (code int, text string, header http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return apitest.Do(t, req)
}

func marksIn(t *testing.T, st storage.Store) (out []storage.Mark) {
	t.Helper()
	for m, err := range st.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: apitest.Now.UnixMilli()}}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		out = append(out, m)
	}
	return out
}

func TestReaggregate(t *testing.T) {
	server, store := operateServer(t)
	form := url.Values{"match[]": {"cpu"}, "start": {"-3h"}, "end": {"-1h"}}.Encode()
	for _, c := range []struct{ target, body string }{{"?" + form, ""}, {"", form}} {
		code, body, header := request(t, http.MethodPost, server+"/api/v1/reaggregate"+c.target, c.body)
		require.Equal(t, http.StatusOK, code, body)
		require.Equal(t, "application/x-ndjson", header.Get("Content-Type"))
		lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
		require.Len(t, lines, 2)
		require.JSONEq(t, `{"done":2,"total":2,"blocks":2,"skipped":0}`, lines[0])
		require.JSONEq(t, `{"status":"success","done":2,"total":2,"blocks":2,"skipped":0,"series":1,
			"slices":{"marked":2,"not_closed":0,"expired":0},"rows":[
			{"level":"1h","by":1763730120000},{"level":"6h","by":1763748120000},{"level":"24h","by":1763769720000}]}`, lines[1])
	}
	require.Len(t, marksIn(t, store), 2, "asked twice is marked once")
}

// TestTakeBackIsForAdmins: rows that are taken back may be all that is left, so strangers cannot.
func TestTakeBackIsForAdmins(t *testing.T) {
	server, store := operateServer(t)
	ask := func(server, takeBack string) (int, string) {
		form := url.Values{"match[]": {"cpu"}, "start": {"-3h"}, "end": {"-1h"}, "take_back": {takeBack}}
		code, body, _ := request(t, http.MethodPost, server+"/api/v1/reaggregate", form.Encode())
		return code, body
	}
	code, body := ask(server, "true")
	require.Equal(t, http.StatusForbidden, code, body)
	require.Contains(t, body, "--enable-admin-api")
	require.Empty(t, marksIn(t, store))
	code, body = ask(server, "false")
	require.Equal(t, http.StatusOK, code, body)
	for _, m := range marksIn(t, store) {
		require.Equal(t, storage.MarkLate, m.Kind)
	}

	server, store = operateServerWith(t, true)
	code, body = ask(server, "true")
	require.Equal(t, http.StatusOK, code, body)
	require.Len(t, marksIn(t, store), 2)
	for _, m := range marksIn(t, store) {
		require.Equal(t, storage.MarkTakeBack, m.Kind)
	}
}

// GET, which anything may do without being asked, changes nothing.
func TestReaggregateIsForPost(t *testing.T) {
	server, store := operateServer(t)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
		code, _, header := request(t, method, server+"/api/v1/reaggregate?match[]=cpu&start=-2h", "")
		require.Equal(t, http.StatusMethodNotAllowed, code, method)
		require.Equal(t, http.MethodPost, header.Get("Allow"))
	}
	require.Empty(t, marksIn(t, store))
}

func TestOperateRefuses(t *testing.T) {
	server, store := operateServer(t)
	for _, c := range []struct{ path, params, want string }{
		{"reaggregate", "", "no series are selected"},
		{"reaggregate", "match[]=cpu{&start=-1h", `selector \"cpu{\"`},
		{"reaggregate", "match[]=cpu", "start is missing"},
		{"reaggregate", "match[]=cpu&start=yesterday", `start=\"yesterday\": must be a time`},
		{"reaggregate", "match[]=cpu&start=-1h&end=soon", `end=\"soon\": must be a time`},
		{"reaggregate", "match[]=cpu&start=now&end=-1h", "start must be before end"},
		{"reaggregate", "match[]=cpu&start=2030-01-01T00:00:00Z&end=2030-01-02T00:00:00Z", "not in the future"},
		{"reaggregate", "match[]=cpu&start=-99999999999", "ask for less time or fewer series"},
		{"explain", "", "no series are selected"},
		{"explain", "match[]=cpu&time=noon", `time=\"noon\": must be a time`},
		{"explain", "match[]=cpu&time=999999999999999", "years 1 to 9999"},
		{"explain", "match[]=cpu&limit=all", `limit=\"all\": must be a whole number`},
		{"explain", "match[]=cpu&limit=0", "must be a whole number from 1 to 100"},
	} {
		code, body, _ := request(t, http.MethodPost, server+"/api/v1/"+c.path, strings.ReplaceAll(c.params, "{", "%7B"))
		require.Equal(t, http.StatusBadRequest, code, c.params)
		require.Contains(t, body, c.want)
	}
	require.Empty(t, marksIn(t, store))
}

func TestOperateWhileTheStoreIsAway(t *testing.T) {
	for path, op := range map[string]string{"reaggregate?start=-3h&": "Write", "explain?": "Marks"} {
		server, store := operateServer(t)
		require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: apitest.Now.UnixMilli()}}}))
		store.Add(storagetest.Rule{Op: op, Times: -1, Before: func() error { return storage.ErrUnavailable }})
		code, body, header := request(t, http.MethodPost, server+"/api/v1/"+path+"match[]=cpu", "")
		require.Equal(t, http.StatusServiceUnavailable, code, body)
		require.Equal(t, respond.RetryAway, header.Get("Retry-After"))
	}
}

// A reply that breaks off does not look complete.
func TestReaggregateBreaksOff(t *testing.T) {
	server, store := operateServer(t)
	writes := 0
	store.Add(storagetest.Rule{Op: "Write", Times: -1, Before: func() error {
		if writes++; writes > 1 {
			return storage.ErrUnavailable
		}
		return nil
	}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server+"/api/v1/reaggregate?match[]=cpu&start=-2001h&end=-1h", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	require.Len(t, lines, 2)
	require.JSONEq(t, `{"done":1000,"total":2000,"blocks":1000,"skipped":0}`, lines[0])
	require.Contains(t, lines[1], `"status":"error"`)
	http.DefaultClient.CloseIdleConnections()
}

func TestExplain(t *testing.T) {
	server, _ := operateServer(t)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		code, body, header := request(t, method, server+"/api/v1/explain?match[]=cpu&time="+apitest.Now.Add(-time.Hour).Format(time.RFC3339), "")
		require.Equal(t, http.StatusOK, code, body)
		require.Equal(t, "application/json", header.Get("Content-Type"))
		var answer struct {
			Time, Now int64
			Matched   int
			Series    []struct {
				Metric map[string]string
				Levels []map[string]any
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		require.Equal(t, apitest.Now.UnixMilli(), answer.Now)
		require.Equal(t, apitest.Now.Add(-time.Hour).UnixMilli(), answer.Time)
		require.Equal(t, 1, answer.Matched)
		require.Equal(t, "a<b", answer.Series[0].Metric["source"])
		require.Len(t, answer.Series[0].Levels, 3)
		var keys []string
		for k := range answer.Series[0].Levels[0] {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		// This is the external form: names may be added, never removed.
		require.Equal(t, []string{
			"block", "block_end", "errors", "input", "level", "marks", "next", "run_at", "runs", "shard", "slice", "slice_end", "state",
			"verdict", "why", "worker",
		}, keys)
		require.Equal(t, "no_samples", answer.Series[0].Levels[0]["verdict"])
	}
	_, body, _ := request(t, http.MethodGet, server+"/api/v1/explain?match[]=mem", "")
	require.JSONEq(t, `{"time":1763726400000,"now":1763726400000,"matched":0,"series":[]}`, body)
}
