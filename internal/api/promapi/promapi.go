// Package promapi serves Prometheus' HTTP API, so that Prometheus' clients, above all Grafana, can
// query Quern: the same parameters, the same JSON, the same errors
// (prometheus.io/docs/prometheus/latest/querying/api). The engine defines what a query means.
package promapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/deletion"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/excerpt"
)

// compatible is the version of Prometheus whose API this implements. Grafana reads it to decide
// which features to use.
const compatible = "3.16.0"

// maxPoints bounds the points of one series in an answer, as Prometheus does.
const maxPoints = 11_000

// Metadata knows the metadata of metrics.
type Metadata interface {
	// List returns the metadata of a metric, or of all metrics if name is "". A limit above 0
	// bounds the number of metrics.
	List(name string, limit int) []metric.Metadata
}

// Deleter deletes samples.
type Deleter interface {
	// Delete deletes the samples in [startMs, endMs) of the series that match any of the sets.
	Delete(ctx context.Context, startMs, endMs int64, sets ...[]*labels.Matcher) (deletion.Result, error)
}

// Options configure the API. All but Timeout, Deleter and Version are required.
type Options struct {
	Engine    promql.QueryEngine
	Queryable promstorage.Queryable
	Metadata  Metadata
	// Timeout limits a query, including its wait for a turn; 0 means no limit.
	Timeout time.Duration
	// Queries and Deletions limit concurrent reads and deletions. A query holds its turn until its
	// reply has been sent.
	Queries, Deletions *limits.Turns
	// Deleter is nil if the administrative endpoints are turned off.
	Deleter Deleter
	// Querier names the levels that a query was read from, and counts series.
	Querier *query.Querier
	Clock   clock.Clock
	Logger  *slog.Logger
	// Version is the version of this program.
	Version string
}

// API has the endpoints. It implements api.Registrar.
type API struct {
	opts   Options
	parser parser.Parser
}

// New makes the endpoints.
func New(opts Options) *API {
	return &API{opts: opts, parser: parser.NewParser(parser.Options{})}
}

// endpoint is what is answered at a path.
type endpoint struct {
	methods []string
	path    string
	bound   route.Bound
	answer  answerer
	// turns bound how many requests are answered at once, nil for no bound.
	turns *limits.Turns
	// parameters are those that the endpoint knows, nil for all. With timeout among them, an answer has an end.
	parameters []string
}

// Register adds the endpoints to a table.
func (a *API) Register(to *route.Table) {
	get, both, change := []string{http.MethodGet}, []string{http.MethodGet, http.MethodPost}, []string{http.MethodPost, http.MethodPut}
	q := a.opts.Queries
	for _, e := range []endpoint{
		{both, "query", route.Filtered, a.query, q, []string{"query", "time", "timeout", "limit", "lookback_delta", "stats", "levels"}},
		{both, "query_range", route.Filtered, a.queryRange, q, []string{"query", "start", "end", "step", "timeout", "limit", "lookback_delta", "stats", "levels"}},
		{both, "format_query", route.NoData, a.formatQuery, q, []string{"query", "timeout"}},
		{both, "series", route.Filtered, a.series, q, []string{"match[]", "start", "end", "limit", "timeout"}},
		{both, "labels", route.Filtered, a.labelNames, q, []string{"match[]", "start", "end", "limit", "timeout"}},
		{both, "query_exemplars", route.NoData, a.exemplars, q, []string{"query", "start", "end", "timeout"}},
		{get, "label/{name}/values", route.Filtered, a.labelValues, q, []string{"match[]", "start", "end", "limit", "timeout"}},
		{get, "metadata", route.Filtered, a.metadata, q, []string{"metric", "limit", "limit_per_metric", "timeout"}},
		{get, "status/tsdb", route.Filtered, a.tsdb, q, []string{"limit", "timeout"}},
		{get, "status/buildinfo", route.NoData, constant(map[string]string{
			"version": compatible, "revision": "", "branch": "", "buildUser": "", "buildDate": "",
			"goVersion": runtime.Version(), "application": "Quern", "applicationVersion": a.opts.Version,
		}), nil, nil},
		{get, "rules", route.NoData, constant(map[string][]any{"groups": {}}), nil, nil},
		{get, "alerts", route.NoData, constant(map[string][]any{"alerts": {}}), nil, nil},
		{change, "admin/tsdb/delete_series", route.Refused, a.deleteSeries, a.opts.Deletions, []string{"match[]", "start", "end"}},
	} {
		role := access.Read
		if e.bound == route.Refused {
			role = access.Admin
		}
		for _, method := range e.methods {
			to.Handle(role, e.bound, method+" /api/v1/"+e.path, a.handler(e))
		}
	}
}

// deletedHeader reports the result of a deletion, since Prometheus' reply has no body.
const deletedHeader = "Quern-Deleted"

// answer is the content of a reply. Without data, the reply has no body but deletedHeader. close,
// unless nil, releases the resources behind data.
type answer struct {
	data     any
	deleted  string
	warnings annotations.Annotations
	// levels are from where a query was read, nil unless that was asked for.
	levels *query.Levels
	close  func()
	// charged says that data is what the request was charged for.
	charged bool
}

// answerer answers a request. asFailure classifies its error.
type answerer func(r *http.Request) (answer, error)

// begin takes a turn for a request, until end. The timeout covers the wait for it, too; the request's timeout parameter can
// only shorten it.
func (a *API) begin(r *http.Request, e *endpoint) (begun *http.Request, end func(), err error) {
	timeout, timed := a.opts.Timeout, slices.Contains(e.parameters, "timeout")
	if s := r.FormValue("timeout"); timed && s != "" {
		d, err := duration(s)
		if err != nil {
			return r, func() {}, invalid("timeout", err)
		}
		if timeout <= 0 || d < timeout {
			timeout = max(d, 1)
		}
	}
	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if timed && timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	give, err := e.turns.Take(ctx, r.RemoteAddr)
	if err != nil {
		return r, cancel, err
	}
	return r.WithContext(ctx), func() { give(); cancel() }, nil
}

// ignored reads the parameters, and returns those that the endpoint does not know, truncated to fit a header. Prometheus
// ignores such parameters, and clients made for other servers with its API send some. But a misspelt parameter changes the
// answer, so they are named, and refused where data is changed.
func (e *endpoint) ignored(r *http.Request) (out []string, err error) {
	const most, mostBytes = 10, 64
	if err := r.ParseForm(); err != nil {
		return nil, badData("error parsing form values: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		if e.parameters != nil && !slices.Contains(e.parameters, name) && len(out) < most {
			out = append(out, name[:min(len(name), mostBytes)])
		}
	}
	if len(out) > 0 && e.bound == route.Refused {
		return nil, badData("unknown parameter %q: %s accepts %s", out[0], r.URL.Path, strings.Join(e.parameters, ", "))
	}
	return out, nil
}

func constant(v any) answerer {
	return func(*http.Request) (answer, error) { return answer{data: v}, nil }
}

// failure is an error in the API's terms.
type failure struct {
	code int
	kind string // errorType
	err  error
}

func (f *failure) Error() string { return f.err.Error() }

func badData(format string, args ...any) error {
	return &failure{http.StatusBadRequest, "bad_data", fmt.Errorf(format, args...)}
}

func invalid(parameter string, err error) error {
	return badData("invalid parameter %q: %w", parameter, err)
}

// warningHeader holds warnings of replies without a body, and warnings that are not about the data.
const warningHeader = "Quern-Warning"

// statusClientGone is nginx's code for a client that did not wait; Prometheus uses it, too.
const statusClientGone = 499

// asFailure classifies an error. An error that is not a promql.ErrStorage comes from the query
// itself.
func asFailure(err error) *failure {
	var (
		known     *failure
		cancelled promql.ErrQueryCanceled
		timedOut  promql.ErrQueryTimeout
		stored    promql.ErrStorage
		asked     *query.RequestError
	)
	read := errors.As(err, &stored)
	if read {
		err = stored.Err
	}
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &cancelled), errors.Is(err, context.Canceled):
		return &failure{statusClientGone, "canceled", err}
	case errors.Is(err, limits.ErrQueueFull), errors.Is(err, limits.ErrNoRoom):
		return &failure{http.StatusTooManyRequests, "unavailable", err}
	case errors.As(err, &timedOut), errors.Is(err, context.DeadlineExceeded), errors.Is(err, limits.ErrWaited):
		return &failure{http.StatusServiceUnavailable, "timeout", err}
	case !read, errors.As(err, &asked):
		return &failure{http.StatusUnprocessableEntity, "execution", err}
	case storage.IsAway(err):
		return &failure{http.StatusServiceUnavailable, "unavailable", err}
	}
	return &failure{http.StatusInternalServerError, "internal", err}
}

func (a *API) handler(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ans answer
		begun, end := r, func() {}
		letGo := func() {
			if ans.close != nil {
				ans.close()
				ans.close = nil
			}
			end()
		}
		defer func() { letGo() }()
		ignored, err := e.ignored(r)
		if err == nil {
			begun, end, err = a.begin(r, &e)
		}
		if err == nil {
			ans, err = e.answer(begun)
		}
		if err != nil {
			f := asFailure(err)
			if f.code == http.StatusInternalServerError {
				a.opts.Logger.ErrorContext(r.Context(), "query failed", "path", r.URL.Path, "err", err)
			}
			message := encodeFailure(f, ans.warnings)
			letGo()
			respond.LetGo(r)
			replyFailure(w, f.code, message)
			return
		}
		for _, name := range ignored {
			w.Header().Add(warningHeader, fmt.Sprintf("unknown parameter %+q is ignored", name))
		}
		warnings, infos := ans.warnings.AsStrings(r.FormValue("query"), 10, 10)
		if ans.data == nil {
			for _, s := range warnings {
				w.Header().Add(warningHeader, s)
			}
			w.Header().Set(deletedHeader, ans.deleted)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if !ans.charged { // for what was parsed, which is not held any more
			limits.Discharge(r.Context())
		}
		if by, ends := begun.Context().Deadline(); ends {
			_ = http.NewResponseController(w).SetWriteDeadline(by) // a test's ResponseWriter may have no deadlines
		}
		reply(w, ans, a.opts.Querier, warnings, infos)
	})
}

func (a *API) query(r *http.Request) (answer, error) {
	at, err := timeOf(r, "time", a.opts.Clock.Now())
	if err == nil {
		err = evaluable("time", at)
	}
	if err != nil {
		return answer{}, err
	}
	return a.evaluate(r, func(ctx context.Context, opts promql.QueryOpts, expr string) (promql.Query, error) {
		return a.opts.Engine.NewInstantQuery(ctx, a.opts.Queryable, opts, expr, at)
	})
}

func (a *API) queryRange(r *http.Request) (answer, error) {
	start, err := requiredTime(r, "start")
	if err != nil {
		return answer{}, err
	}
	end, err := requiredTime(r, "end")
	if err != nil {
		return answer{}, err
	}
	if err := cmp.Or(evaluable("start", start), evaluable("end", end)); err != nil {
		return answer{}, err
	}
	if end.Before(start) {
		return answer{}, invalid("end", errors.New("end timestamp must not be before start time"))
	}
	step, err := duration(r.FormValue("step"))
	switch {
	case err != nil:
		return answer{}, invalid("step", err)
	case step <= 0:
		return answer{}, invalid("step", errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer"))
	case step < time.Millisecond:
		return answer{}, invalid("step", errors.New("times have millisecond precision: the step must be at least 1ms"))
	case (end.UnixMilli()-start.UnixMilli())/step.Milliseconds() > maxPoints: // a time.Duration holds at most 292 years
		return answer{}, badData("exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)")
	}
	return a.evaluate(r, func(ctx context.Context, opts promql.QueryOpts, expr string) (promql.Query, error) {
		return a.opts.Engine.NewRangeQuery(ctx, a.opts.Queryable, opts, expr, start, end, step)
	})
}

// evaluate is the common part of both kinds of queries.
func (a *API) evaluate(
	r *http.Request, begin func(ctx context.Context, opts promql.QueryOpts, expr string) (promql.Query, error),
) (answer, error) {
	limit, err := limitOf(r, "limit")
	if err != nil {
		return answer{}, err
	}
	expr, err := expressionOf(r)
	if err != nil {
		return answer{}, err
	}
	var lookback time.Duration
	if s := r.FormValue("lookback_delta"); s != "" {
		if lookback, err = duration(s); err != nil {
			return answer{}, badData("error parsing lookback delta duration: %w", err)
		}
	}
	ctx, levels := r.Context(), (*query.Levels)(nil)
	if s := r.FormValue("levels"); s != "" {
		wanted, err := strconv.ParseBool(s)
		if err != nil {
			return answer{}, invalid("levels", errors.New("it must be true or false"))
		}
		if wanted {
			levels = new(query.Levels)
			ctx = query.WithLevels(ctx, levels)
		}
	}
	asked := r.FormValue("stats")
	q, err := begin(ctx, promql.NewPrometheusQueryOpts(asked == "all", lookback, nil), expr)
	if err != nil {
		return answer{}, invalid("query", err)
	}
	ans, err := execute(ctx, q, limit, asked != "")
	ans.levels = levels
	return ans, err
}

// execute runs a query.
func execute(ctx context.Context, q promql.Query, limit int, counted bool) (answer, error) {
	res := q.Exec(ctx)
	ans := answer{warnings: res.Warnings, close: q.Close}
	if res.Err != nil {
		return ans, res.Err
	}
	value := res.Value
	if limit > 0 {
		cut := false
		switch v := value.(type) {
		case promql.Matrix:
			if cut = len(v) > limit; cut {
				value = v[:limit]
			}
		case promql.Vector:
			if cut = len(v) > limit; cut {
				value = v[:limit]
			}
		}
		if cut {
			ans.warnings.Add(errTruncated)
		}
	}
	result := evaluated{value: value}
	if counted {
		result.stats = stats.NewQueryStats(q.Stats())
	}
	ans.data = result
	return ans, nil
}

var errTruncated = errors.New("results truncated due to limit")

// expressionOf returns the request's expression after query.Admit has accepted it. The parser
// checks the syntax.
func expressionOf(r *http.Request) (string, error) {
	text := r.FormValue("query")
	return text, admitted("query", query.Admit(r.Context(), text))
}

// admitted converts an error of query.Admit about a parameter.
func admitted(parameter string, err error) error {
	if bad := (*query.RequestError)(nil); errors.As(err, &bad) {
		return invalid(parameter, bad)
	}
	return err
}

// exemplars answers any valid query with an empty list: there are no exemplars.
func (a *API) exemplars(r *http.Request) (answer, error) {
	if _, _, err := timesOf(r); err != nil {
		return answer{}, err
	}
	text, err := expressionOf(r)
	if err != nil {
		return answer{}, err
	}
	if _, err := a.parser.ParseExpr(text); err != nil {
		return answer{}, invalid("query", err)
	}
	return answer{data: []any{}}, nil
}

func (a *API) formatQuery(r *http.Request) (answer, error) {
	text, err := expressionOf(r)
	if err != nil {
		return answer{}, err
	}
	expr, err := a.parser.ParseExpr(text)
	if err != nil {
		return answer{}, invalid("query", err)
	}
	if deep := query.Depth(expr); deep*deep*len(text) > maxFormatting {
		return answer{}, invalid("query", fmt.Errorf("it nests %d levels deep, too deep to format an expression of its length", deep))
	}
	return answer{data: expr.Pretty(0)}, nil
}

// maxFormatting bounds the square of an expression's depth times its length. Formatting writes the
// text of each node again for each node above it, and that for each node above once more, to see
// whether it fits on a line.
const maxFormatting = 100_000_000

// selection is what the endpoints that list series and labels are asked for.
type selection struct {
	querier promstorage.Querier
	sets    [][]*labels.Matcher
	hints   promstorage.SelectHints
	limit   int
}

// selection parses the parameters. The limit in hints is one higher than requested, to detect
// truncation.
func (a *API) selection(r *http.Request) (s selection, err error) {
	if s.limit, err = limitOf(r, "limit"); err != nil {
		return s, err
	}
	start, end, err := timesOf(r)
	if err != nil {
		return s, err
	}
	s.hints = promstorage.SelectHints{Start: start.UnixMilli(), End: end.UnixMilli(), Func: "series"}
	if s.limit > 0 && s.limit < math.MaxInt {
		s.hints.Limit = s.limit + 1
	}
	if s.sets, err = a.matchers(r); err != nil {
		return s, err
	}
	s.querier, err = a.opts.Queryable.Querier(s.hints.Start, s.hints.End)
	return s, err
}

// matchers parses the selectors.
func (a *API) matchers(r *http.Request) (sets [][]*labels.Matcher, err error) {
	if err := admitted("match[]", query.Admit(r.Context(), r.Form["match[]"]...)); err != nil {
		return nil, err
	}
	for _, m := range r.Form["match[]"] {
		set, err := a.parser.ParseMetricSelector(m)
		if err != nil {
			return nil, invalid("match[]", err)
		}
		if !slices.ContainsFunc(set, func(m *labels.Matcher) bool { return !m.Matches("") }) {
			return nil, invalid("match[]", errors.New("match[] must contain at least one non-empty matcher"))
		}
		sets = append(sets, set)
	}
	return sets, nil
}

var errNoMatch = badData("no match[] parameter provided")

func (a *API) series(r *http.Request) (answer, error) {
	if len(r.Form["match[]"]) == 0 {
		return answer{}, errNoMatch
	}
	s, err := a.selection(r)
	if err != nil {
		return answer{}, err
	}
	q := s.querier
	ans := answer{close: func() { _ = q.Close() }} // s has what was parsed
	var sets []promstorage.SeriesSet
	for _, matchers := range s.sets {
		sets = append(sets, s.querier.Select(r.Context(), true, &s.hints, matchers...))
	}
	all := promstorage.NewMergeSeriesSet(sets, 0, func(same ...promstorage.Series) promstorage.Series { return same[0] })
	found := seriesList{}
	for all.Next() {
		if s.limit > 0 && len(found) == s.limit {
			ans.warnings.Add(errTruncated)
			break
		}
		found = append(found, all.At())
	}
	ans.warnings.Merge(all.Warnings())
	if err := all.Err(); err != nil {
		return ans, promql.ErrStorage{Err: err}
	}
	ans.data = found
	return ans, nil
}

// deleteSeries is the only administrative endpoint of Prometheus here. A deletion needs no
// clean-up, and snapshots are a matter of the store.
func (a *API) deleteSeries(r *http.Request) (answer, error) {
	if a.opts.Deleter == nil {
		return answer{}, &failure{http.StatusForbidden, "forbidden", errors.New("deleting series is turned off: start the server with --enable-admin-api")}
	}
	if len(r.Form["match[]"]) == 0 {
		return answer{}, errNoMatch
	}
	start, end, err := timesOf(r)
	if err != nil {
		return answer{}, err
	}
	sets, err := a.matchers(r)
	if err != nil {
		return answer{}, err
	}
	deleted, err := a.opts.Deleter.Delete(r.Context(), start.UnixMilli(), end.UnixMilli()+1, sets...)
	if err != nil && r.Context().Err() == nil {
		return answer{}, promql.ErrStorage{Err: err}
	}
	ans := answer{deleted: fmt.Sprintf("series=%d, samples=%d, rows=%d", deleted.Series, deleted.Samples, deleted.Rows)}
	for _, w := range deleted.Warnings {
		ans.warnings.Add(errors.New(w))
	}
	return ans, err
}

func (a *API) labelNames(r *http.Request) (answer, error) {
	s, err := a.selection(r)
	if err != nil {
		return answer{}, err
	}
	hints := &promstorage.LabelHints{Limit: s.hints.Limit}
	return s.words(func(matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return s.querier.LabelNames(r.Context(), hints, matchers...)
	})
}

func (a *API) labelValues(r *http.Request) (answer, error) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return answer{}, badData("invalid label name: %q", name)
	}
	s, err := a.selection(r)
	if err != nil {
		return answer{}, err
	}
	hints := &promstorage.LabelHints{Limit: s.hints.Limit}
	return s.words(func(matchers []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return s.querier.LabelValues(r.Context(), name, hints, matchers...)
	})
}

// words merges the results for all selectors, sorted.
func (s *selection) words(find func([]*labels.Matcher) ([]string, annotations.Annotations, error)) (answer, error) {
	ans := answer{close: func() { _ = s.querier.Close() }, charged: true}
	sets := s.sets
	if len(sets) == 0 {
		sets = append(sets, nil)
	}
	var all wordList
	for _, matchers := range sets {
		found, warnings, err := find(matchers)
		ans.warnings.Merge(warnings)
		if err != nil {
			return ans, err
		}
		if len(sets) == 1 {
			all = found
			break
		}
		all = append(all, found...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if s.limit > 0 && len(all) > s.limit {
		all = all[:s.limit]
		ans.warnings.Add(errTruncated)
	}
	ans.data = all
	return ans, nil
}

// suffixes are those of the series whose metadata is that of the name without them.
var suffixes = []string{"_bucket", "_count", "_sum", "_total", "_created", "_info"}

// ofMetrics returns which names of metadata are of series that the request may have, nil if it may have all.
func (a *API) ofMetrics(ctx context.Context) (func(name string) bool, error) {
	if bound.FromContext(ctx) == nil {
		return nil, nil //nolint:nilnil // no function is one that allows all
	}
	names, err := a.opts.Querier.LabelValues(ctx, math.MinInt64, math.MaxInt64, new(query.Warnings), metric.NameLabel)
	if err != nil {
		return nil, promql.ErrStorage{Err: err}
	}
	allowed := func(name string) bool {
		_, found := slices.BinarySearch(names, name)
		return found
	}
	return func(name string) bool {
		return allowed(name) || slices.ContainsFunc(suffixes, func(suffix string) bool { return allowed(name + suffix) })
	}, nil
}

func (a *API) metadata(r *http.Request) (answer, error) {
	limit, err := limitOf(r, "limit")
	if err != nil {
		return answer{}, err
	}
	perMetric, err := limitOf(r, "limit_per_metric")
	if err != nil {
		return answer{}, err
	}
	allowed, err := a.ofMetrics(r.Context())
	if err != nil {
		return answer{}, err
	}
	listed := limit
	if allowed != nil {
		listed = 0 // it bounds what is left
	}
	all := a.opts.Metadata.List(r.FormValue("metric"), listed)
	if allowed != nil {
		all = slices.DeleteFunc(all, func(m metric.Metadata) bool { return !allowed(m.Name) })
	}
	slices.SortStableFunc(all, func(a, b metric.Metadata) int { return strings.Compare(a.Name, b.Name) })
	var out metadataList
	for i := 0; i < len(all); {
		n := 1
		for i+n < len(all) && all[i+n].Name == all[i].Name {
			n++
		}
		group := all[i : i+n]
		if perMetric > 0 {
			group = group[:min(n, perMetric)]
		}
		out = append(out, group)
		i += n
		if limit > 0 && len(out) == limit {
			break
		}
	}
	return answer{data: out}, nil
}

// minTime and maxTime are the range of request times: as far as Unix ms reach in a time.Time, as in
// Prometheus.
var (
	minTime = time.Unix(math.MinInt64/1000+62135596801, 0).UTC()
	maxTime = time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC()
)

// minEvaluable and maxEvaluable are the range of evaluation times: the engine computes with
// nanoseconds in an int64.
var (
	minEvaluable = time.Unix(0, math.MinInt64).UTC()
	maxEvaluable = time.Unix(0, math.MaxInt64).UTC()
)

// evaluable returns an error if the engine cannot evaluate an expression at t.
func evaluable(name string, t time.Time) error {
	if t.Before(minEvaluable) || t.After(maxEvaluable) {
		return invalid(name, fmt.Errorf("expressions can be evaluated from %s to %s only", minEvaluable.Format(time.RFC3339), maxEvaluable.Format(time.RFC3339)))
	}
	return nil
}

func requiredTime(r *http.Request, name string) (time.Time, error) {
	t, err := parseTime(r.FormValue(name))
	if err != nil {
		return t, invalid(name, err)
	}
	return t, nil
}

func timeOf(r *http.Request, name string, otherwise time.Time) (time.Time, error) {
	if r.FormValue(name) == "" {
		return otherwise, nil
	}
	t, err := parseTime(r.FormValue(name))
	if err != nil {
		return t, invalid(name, fmt.Errorf("invalid time value for '%s': %w", name, err))
	}
	return t, nil
}

// timesOf parses the range of endpoints for which it is optional.
func timesOf(r *http.Request) (start, end time.Time, err error) {
	if start, err = timeOf(r, "start", minTime); err != nil {
		return start, end, err
	}
	if end, err = timeOf(r, "end", maxTime); err != nil {
		return start, end, err
	}
	if end.Before(start) {
		return start, end, invalid("end", errors.New("end timestamp must not be before start time"))
	}
	return start, end, nil
}

// parseTime parses seconds since 1970, to the millisecond, RFC 3339, or a date, which Prometheus
// does not accept.
func parseTime(s string) (time.Time, error) {
	if sec, err := strconv.ParseFloat(s, 64); err == nil {
		if ms := math.Round(sec * 1000); math.Abs(ms) <= math.MaxInt64/2 {
			return time.UnixMilli(int64(ms)).UTC(), nil
		}
		return time.Time{}, fmt.Errorf("cannot parse %s to a valid timestamp", excerpt.Quoted(s))
	}
	if t, ok := metric.ParseDate(s); ok {
		return t, nil
	}
	for _, end := range []time.Time{minTime, maxTime} { // time.Parse reads at most four digits of a year
		if s == end.Format(time.RFC3339Nano) {
			return end, nil
		}
	}
	return time.Time{}, fmt.Errorf("cannot parse %s to a valid timestamp", excerpt.Quoted(s))
}

// duration parses seconds, or a span such as 1h30m.
func duration(s string) (time.Duration, error) {
	if sec, err := strconv.ParseFloat(s, 64); err == nil {
		ns := sec * float64(time.Second)
		if !(math.Abs(ns) < 1<<63) { // math.MaxInt64 is 1<<63 as a float64
			return 0, fmt.Errorf("cannot parse %s to a valid duration. It overflows int64", excerpt.Quoted(s))
		}
		return time.Duration(ns), nil
	}
	d, err := model.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s to a valid duration", excerpt.Quoted(s))
	}
	return time.Duration(d), nil
}

// limitOf parses a limit; 0 means no limit.
func limitOf(r *http.Request, name string) (int, error) {
	s := r.FormValue(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err == nil && n < 0 {
		err = errors.New("limit must be non-negative")
	}
	if err != nil {
		return 0, invalid(name, err)
	}
	return n, nil
}
