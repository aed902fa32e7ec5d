package acceptance

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/storage"
)

const day = 24 * time.Hour

// lateRetention keeps raw for a shorter time than the queries here ask for, so that they read rows.
var lateRetention = storage.Retention{7 * day, 90 * day, 365 * day, 5 * 365 * day}

// backFill reports points of any age, as an import does.
func (s *System) backFill(points []Point) {
	s.t.Helper()
	s.Advance(time.Millisecond)
	rep := ingest.Report{Source: source}
	for _, p := range points {
		rep.Measurements = append(rep.Measurements, ingest.Measurement{Metric: p.Series, TimeMs: p.TimeMs, Value: p.Value})
	}
	res, err := s.engine.Ingest.BackFill(s.t.Context(), []ingest.Report{rep})
	require.NoError(s.t, err)
	require.Empty(s.t, res.Rejected)
	for _, p := range points {
		s.Oracle.Acknowledged(p)
		s.first = min(s.first, s.cfg.Ladder.SliceAt(s.cfg.Ladder.Top()-1, p.TimeMs).StartMs)
	}
}

// reader returns a querier that knows of late data through the given tracker.
func (s *System) reader(known *late.Tracker) *query.Querier {
	s.t.Helper()
	index := query.NewIndex()
	require.NoError(s.t, index.Refresh(s.t.Context(), s.inspect()))
	return query.New(query.Parts{
		Store: s.Store, Index: index, Settings: s.inspect().Settings(), WholeFrom: s.inspect().WholeFrom, Clock: s.Clock,
	}, query.Options{Late: known})
}

// evaluate evaluates an expression through the API, and returns the value of its only series, NaN
// for none, and the warnings.
func (s *System) evaluate(q *query.Querier, expr string, at time.Time) (value float64, warnings []string) {
	s.t.Helper()
	engine, queryable := promquery.New(q, promquery.Options{})
	mux := route.NewTable()
	promapi.New(promapi.Options{
		Engine: engine, Queryable: queryable, Clock: s.Clock, Logger: slog.New(slog.DiscardHandler),
	}).Register(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "/api/v1/query?"+url.Values{
		"query": {expr}, "time": {at.Format(time.RFC3339)},
	}.Encode(), http.NoBody))
	require.Equal(s.t, http.StatusOK, w.Code, w.Body)
	var reply struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
		Warnings []string `json:"warnings"`
	}
	require.NoError(s.t, json.Unmarshal(w.Body.Bytes(), &reply))
	require.Len(s.t, reply.Data.Result, 1, w.Body)
	v, err := strconv.ParseFloat(reply.Data.Result[0].Value[1].(string), 64)
	require.NoError(s.t, err)
	return v, reply.Warnings
}

// testLateReads imports history beside rows that are already ground. Every answer must be right at
// once, at each step of the grinding, and at the end from rows alone.
func testLateReads(t *testing.T, b Backend) {
	s := Start(t, b, Config{Retention: lateRetention})
	// Half a day of live samples, one a minute, then ground.
	counter := 0.0
	points := func(from, to time.Time, step time.Duration) (out []Point) {
		for at := from; at.Before(to); at = at.Add(step) {
			out = append(out, Point{"x", at.UnixMilli(), counter})
			counter++
		}
		return out
	}
	begin := s.Clock.Now()
	end := begin.Add(12 * time.Hour)
	history := points(begin.Add(-6*day), begin, 20*time.Minute)
	for from := begin; from.Before(end); from = from.Add(time.Hour) {
		s.SetClock(from.Add(59 * time.Minute))
		s.MustReport(points(from, from.Add(time.Hour), 5*time.Minute)...)
		s.SetClock(from.Add(time.Hour + s.cfg.Timing.Delay))
		s.MustRun()
	}
	s.SetClock(end.Add(20 * time.Minute))
	s.MustRun()
	reader := s.reader(s.engine.Late)
	v, _ := s.evaluate(reader, "increase(x[8d])", end)
	require.InDelta(t, 12*12-1, v, 1e-9, "the live half day")

	s.backFill(history)
	all := float64(len(history) + 12*12)
	another := func() *query.Querier {
		return s.reader(late.New(s.Store, s.Clock, late.Options{Outstanding: s.engine.Recovery.Outstanding, Shared: true}))
	}
	others := another()
	selector := []query.Selector{selectorOf(t, "x")}
	check := func(q *query.Querier) {
		t.Helper()
		v, warnings := s.evaluate(q, "increase(x[8d])", end)
		require.InDelta(t, all-1, v, 1e-9)
		require.Empty(t, warnings)
		v, warnings = s.evaluate(q, "count_over_time(x[8d])", end)
		require.InDelta(t, all, v, 1e-9)
		require.Empty(t, warnings)

		// All of it in six buckets of a day, and in four of 36 hours, which only rows of 1h and 6h
		// fit.
		fromMs, toMs := begin.Add(-6*day).UnixMilli(), end.Add(-12*time.Hour).UnixMilli()
		for _, n := range []int{6, 4} {
			r, err := q.Points(t.Context(), selector, query.Range{StartMs: fromMs, EndMs: toMs, N: n})
			require.NoError(t, err)
			count := uint64(0)
			for p, err := range r.All() {
				require.NoError(t, err)
				for _, cell := range p.Points {
					count += cell.Count
				}
			}
			require.EqualValues(t, len(history), count)
			require.Empty(t, r.Warnings())
		}
		sum, err := q.Summary(t.Context(), selector, fromMs, end.UnixMilli())
		require.NoError(t, err)
		found := 0
		for one, err := range sum.All() {
			require.NoError(t, err)
			found++
			require.EqualValues(t, all, one.Count)
		}
		require.Equal(t, 1, found)
		require.Empty(t, sum.Warnings())
	}
	check(reader)
	check(others) // its first look

	// Queries for stored rows get a warning that they are incomplete.
	rows, err := reader.Rollups(t.Context(), selector, 2, begin.Add(-2*day).UnixMilli(), begin.UnixMilli())
	require.NoError(t, err)
	for _, err := range rows.All() { // the warnings are complete only after the last row
		require.NoError(t, err)
	}
	require.Equal(t, []string{"incomplete: samples from " + begin.Add(-2*day).Format(time.RFC3339) + " to " +
		begin.Format(time.RFC3339) + " are not yet ground into the 6h rows"}, rows.Warnings())

	// The other process sees a correction of ground samples too, once it looks again.
	s.backFill([]Point{{"x", begin.Add(7*time.Hour + 31*time.Second).UnixMilli(), 0}})
	corrected := func(q *query.Querier) {
		t.Helper()
		v, warnings := s.evaluate(q, "count_over_time(x[8d])", end)
		require.InDelta(t, all+1, v, 1e-9)
		require.Empty(t, warnings)
	}
	corrected(reader)
	s.Advance(6 * time.Second)
	corrected(others)

	// Level by level, with a restart in between.
	for i := range 100 {
		if i == 1 {
			s.Restart()
			reader, others = s.reader(s.engine.Late), another()
		}
		s.MustRun()
		corrected(reader)
		s.Advance(6 * time.Second)
		corrected(others)
		if !s.toNextDue() {
			break
		}
	}
	require.Empty(t, s.Leftovers())
	s.Store.Forget()
	corrected(reader)
	require.Zero(t, s.Store.Count("RawChunks"), "all is ground")
	s.MustCheck(Raw)
}

// testLateReadsExpired has late data whose raw samples expire before they are ground. Answers say
// that they are incomplete until nothing is outstanding.
func testLateReadsExpired(t *testing.T, b Backend) {
	keep := storage.Retention{2 * day, 90 * day, 365 * day, 5 * 365 * day}
	s := Start(t, b, Config{Retention: keep})
	from := s.Clock.Now().Add(-2*day + 40*time.Minute).Truncate(time.Hour)
	s.backFill([]Point{{"x", from.Add(50 * time.Minute).UnixMilli(), 1}, {"x", from.Add(2 * time.Hour).UnixMilli(), 2}})
	q := s.reader(s.engine.Late)
	warned := func() []string {
		t.Helper()
		r, err := q.Summary(t.Context(), []query.Selector{selectorOf(t, "x")}, from.UnixMilli(), from.Add(3*time.Hour).UnixMilli())
		require.NoError(t, err)
		for _, err := range r.All() {
			require.NoError(t, err)
		}
		return r.Warnings()
	}
	want := []string{"incomplete: samples from " + from.Format(time.RFC3339) + " to " + from.Add(time.Hour).Format(time.RFC3339) +
		" are not yet ground into the 1h rows"}
	require.Equal(t, want, warned())
	_, warnings := s.evaluate(q, "count_over_time(x[3d])", s.Clock.Now())
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], want[0])

	s.Settle()
	require.Empty(t, warned())
}

func selectorOf(t *testing.T, name string) query.Selector {
	t.Helper()
	sels, err := query.ParseSelectors(t.Context(), []string{name})
	require.NoError(t, err)
	return sels[0]
}
