package reading_test

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/wire"
)

// verifyServer serves six hours of the series cpu, with their rows of 1h, the third of which has a wrong count.
func verifyServer(t *testing.T, set func(*reading.VerifyOptions)) (*api.Server, *storagetest.Faulty) {
	t.Helper()
	clk := clock.NewSimulated(apitest.Now)
	store := storagetest.NewFaulty(apitest.Store(clk))
	w := querytest.NewOn(t, store, clk)
	id, startMs := w.ID(querytest.Named("cpu", metric.Label{Name: "source", Value: "a"})), apitest.Now.UnixMilli()-6*3_600_000
	var samples []metric.Sample
	for i := range int64(60) {
		samples = append(samples, metric.Sample{Schedule: id, TimeMs: startMs + i*360_000, Value: float64(i)})
	}
	w.Put(samples...)
	all := map[metric.ScheduleID][]metric.Sample{id: samples}
	w.Grind(1, startMs, apitest.Now.UnixMilli(), all)
	rollup, ok := querytest.RollupOf(samples[20:30])
	require.True(t, ok)
	rollup.Count = 7
	require.NoError(t, store.WriteRollups(t.Context(), 1, 1, []metric.RollupRow{{Schedule: id, TimeMs: startMs + 2*3_600_000, Rollup: rollup}}))

	status := wire.Status{Levels: []wire.Level{{Level: "raw"}, {Level: "1h", WidthSeconds: 3600}, {Level: "6h", WidthSeconds: 6 * 3600}, {Level: "24h", WidthSeconds: 24 * 3600}}}
	for _, name := range []string{"raw", "1h", "6h"} {
		waiting := []wire.Slice{}
		status.Buckets = append(status.Buckets, wire.Bucket{Bucket: name, Waiting: &waiting})
	}
	return apitest.Server(t, func(o *api.Options) {
		opts := reading.VerifyOptions{Clock: clk, Logger: o.Logger}
		if set != nil {
			set(&opts)
		}
		o.Clock, o.Status = clk, apitest.Status{Reply: status}
		o.Extra = []api.Registrar{
			reading.New(w.Querier, nil, clk, reading.Turns{}), reading.NewVerify(opts), operate(store, w.Index, clk, false, o.Logger),
		}
	}), store
}

// verifies asks for a verification of the six hours.
func verifies(t *testing.T, s http.Handler, more ...string) (code int, lines []wire.Verification, body string) {
	t.Helper()
	form := url.Values{"match[]": {"cpu"}, "start": {"-6h"}}
	for i := 0; i < len(more); i += 2 {
		form[more[i]] = []string{more[i+1]}
	}
	w := apitest.Send(t, s, wire.VerifyPath, strings.NewReader(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	for d := json.NewDecoder(bytes.NewReader(w.Body.Bytes())); d.More() && w.Code == http.StatusOK; {
		var line wire.Verification
		require.NoError(t, d.Decode(&line))
		lines = append(lines, line)
	}
	return w.Code, lines, w.Body.String()
}

// TestVerify: a row that is wrong is found, named and ground again.
func TestVerify(t *testing.T) {
	s, store := verifyServer(t, func(o *reading.VerifyOptions) {
		o.Turns = limits.NewTurns(limits.TurnOptions{N: 1, Clients: limits.NewClients(nil)})
		o.MaxBytes = 4 << 20
	})
	startMs := apitest.Now.UnixMilli() - 6*3_600_000
	wrong := &wire.Difference{
		Kind: wire.Wrong, Metric: map[string]string{"__name__": "cpu", "source": "a"}, Level: "1h", Start: startMs + 2*3_600_000, End: startMs + 3*3_600_000,
		Fields: []wire.DifferenceField{{Name: "count", Row: "7", Samples: "10"}, {Name: "avg", Row: "35", Samples: "24.5"}},
	}
	find := func(lines []wire.Verification) (found []*wire.Difference) {
		for _, l := range lines {
			if l.Difference != nil {
				found = append(found, l.Difference)
			}
		}
		return found
	}

	code, lines, body := verifies(t, s, "level", "1h")
	require.Equal(t, http.StatusOK, code, body)
	found := find(lines)
	require.Len(t, found, 1, body)
	// The average of the row is its sum by its count.
	wrong.Fields[1] = found[0].Fields[1]
	require.Equal(t, wrong, found[0])
	last := lines[len(lines)-1]
	require.Equal(t, wire.Success, last.Status)
	require.Equal(t, []wire.VerifiedLevel{{Level: "1h", Compared: 6, Different: 1}}, last.Verified.Levels)
	require.Nil(t, last.Verified.Repaired)
	require.True(t, slices.ContainsFunc(lines, func(l wire.Verification) bool { return l.Progress != nil && l.Progress.Done == l.Progress.Total }), body)
	require.Empty(t, marksIn(t, store), "nothing changes unless it is asked for")

	code, lines, body = verifies(t, s, "level", "1h", "limit", "0", "repair", "true")
	require.Equal(t, http.StatusOK, code, body)
	require.Empty(t, find(lines))
	repaired := lines[len(lines)-1].Verified.Repaired
	require.NotNil(t, repaired, body)
	require.Equal(t, []int{1, 1}, []int{repaired.Series, repaired.Slices})
	require.Len(t, repaired.Rows, 1)
	require.Equal(t, "1h", repaired.Rows[0].Level)
	marks := marksIn(t, store)
	require.Len(t, marks, 1)
	require.Equal(t, wrong.Start, marks[0].TimeMs)
}

// TestVerifyRefuses: what cannot be done is said before anything is compared.
func TestVerifyRefuses(t *testing.T) {
	s, store := verifyServer(t, nil)
	for _, c := range []struct {
		name, value, want string
		code              int
	}{
		{"level", "2h", "the levels are 1h, 6h, 24h", 400},
		{"match[]", "cpu{", "parse error", 400},
		{"start", "", "start is missing", 400},
		{"end", "-7h", "start must be before end", 400},
		{"limit", "10001", "a whole number up to 10000", 400},
		{"repair", "maybe", "true or false", 400},
		{"take_back", "true", "needs repair=true", 400},
		{"levle", "1h", "unknown parameter", 400},
	} {
		code, _, body := verifies(t, s, c.name, c.value)
		require.Equal(t, c.code, code, "%s: %s", c.name, body)
		require.Contains(t, body, c.want)
	}
	code, _, body := verifies(t, s, "repair", "true", "take_back", "true")
	require.Equal(t, http.StatusForbidden, code, body)
	require.Contains(t, body, "--enable-admin-api")
	require.Empty(t, marksIn(t, store))
}

// TestVerifyIsBounded: what a verification keeps of the rows counts.
func TestVerifyIsBounded(t *testing.T) {
	s, _ := verifyServer(t, func(o *reading.VerifyOptions) { o.MaxBytes = 1 })
	code, _, body := verifies(t, s)
	require.Equal(t, http.StatusBadRequest, code, body)
	require.Contains(t, body, "verify fewer series")
}

// TestVerifyEndsWithItsClient: who goes leaves no work behind, and the turn is free.
func TestVerifyEndsWithItsClient(t *testing.T) {
	turns := limits.NewTurns(limits.TurnOptions{N: 1, Clients: limits.NewClients(nil)})
	s, store := verifyServer(t, func(o *reading.VerifyOptions) { o.Turns = turns })
	ctx, leave := context.WithCancel(t.Context())
	store.Add(storagetest.Rule{Op: "Rollups", Times: 1, Before: func() error {
		leave()
		return nil
	}})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1"+wire.VerifyPath+"?match[]=cpu&start=-300d", http.NoBody)
	s.ServeHTTP(httptest.NewRecorder(), r)
	require.LessOrEqual(t, store.Count("Rollups"), 3, "of three levels in each of 300 days")
	waits, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	give, err := turns.Take(waits, "192.0.2.1:1")
	require.NoError(t, err)
	give()
}
