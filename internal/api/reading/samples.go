// Package reading has the endpoints that answer from the store: samples, roll-ups, the state of
// aggregation, and what operators ask about rows.
package reading

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/backup"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Endpoints are those that read samples and roll-ups. Every successful reply is streamed NDJSON;
// docs/query.md describes its lines.
type Endpoints struct {
	querier     *query.Querier
	annotations *annotations.Book
	clock       clock.Clock
	turns       Turns
}

// Turns limit concurrent reads. A request holds a turn until its reply has been sent.
type Turns struct {
	// Queries have answers of bounded size; Exports run as long as there is data.
	Queries, Exports *limits.Turns
	// Status are those at a status without what waits, which can be seen while all queries are busy.
	Status *limits.Turns
	// QueryTimeout is how long a query or a status may take, its wait for a turn included; 0 is for ever.
	QueryTimeout time.Duration
	// Logger receives what is behind a 500. The default discards it.
	Logger *slog.Logger
}

func (t Turns) query(answer answerer, parameters ...string) http.Handler {
	return t.answering(t.Queries, t.QueryTimeout, answer, parameters...)
}

func (t Turns) status(answer answerer, parameters ...string) http.Handler {
	return t.answering(t.Status, t.QueryTimeout, answer, parameters...)
}

func (t Turns) export(answer answerer, parameters ...string) http.Handler {
	return t.answering(t.Exports, 0, answer, parameters...)
}

// New makes the endpoints on a querier; clk defines "now" in requests. Exports have annotations, if they are not nil.
func New(querier *query.Querier, annotations *annotations.Book, clk clock.Clock, turns Turns) *Endpoints {
	return &Endpoints{querier: querier, annotations: annotations, clock: clk, turns: turns}
}

// Register implements api.Registrar.
func (h *Endpoints) Register(to *route.Table) {
	to.Handle(access.Read, route.Filtered, wire.ExportPath, h.turns.export(h.export, "match[]", "start", "end", "exact", "annotations"))
	to.Handle(access.Read, route.Filtered, wire.RollupsPath, h.turns.export(h.rollups, "match[]", "start", "end", "level"))
	to.Handle(access.Read, route.Filtered, "/api/v1/points", h.turns.query(h.points, "match[]", "start", "end", "buckets"))
	to.Handle(access.Read, route.Filtered, "/api/v1/latest", h.turns.query(h.latest, "match[]", "lookback"))
	to.Handle(access.Read, route.Filtered, "/api/v1/summary", h.turns.query(h.summary, "match[]", "start", "end"))
	to.Handle(access.Read, route.Filtered, "/api/v1/baseline", h.turns.query(h.baseline, "match[]", "start", "end"))
}

// answerer writes the answer to a request as lines to out. Its error may occur before or while it
// writes lines.
type answerer func(out *lines, r *http.Request) error

// document answers with one JSON document.
func document(read func(r *http.Request) (any, error)) answerer {
	return func(out *lines, r *http.Request) error {
		reply, err := read(r)
		if err != nil {
			return err
		}
		out.to.Header().Set("Content-Type", "application/json")
		return out.document(reply)
	}
}

// answering wraps an answerer with what all endpoints share. GET and POST are equivalent. A POST
// may have its parameters in its body, as a form, since selectors can exceed the length of a URL.
// Each request takes one of the turns and ends after the timeout, unless that is 0.
//
// Unknown parameters are refused: a misspelt parameter would silently change the answer.
func (t Turns) answering(turns *limits.Turns, timeout time.Duration, answer answerer, parameters ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodPost:
		default:
			w.Header().Set("Allow", "GET, HEAD, POST")
			respond.Error(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s accepts GET and POST, not %s", r.URL.Path, r.Method))
			return
		}
		if err := r.ParseForm(); err != nil {
			respond.Error(w, http.StatusBadRequest, fmt.Sprintf("the parameters cannot be read: %v", err))
			return
		}
		if err := onlyParameters(r, parameters...); err != nil {
			failureOf(r, err).reply(w, r)
			return
		}
		r, end, err := begin(w, r, turns, timeout)
		if err != nil {
			failureOf(r, err).reply(w, r)
			return
		}
		defer end()
		out := newLines(w)
		err = tookTooLong(r, answer(out, r))
		switch {
		case err == nil:
			err = out.finish()
		case !out.sent:
			f := failureOf(r, err)
			if f.code == http.StatusInternalServerError && t.Logger != nil {
				t.Logger.ErrorContext(r.Context(), "cannot answer", "path", r.URL.Path, "err", err)
			}
			// Discard the unsent lines; the reply becomes an error.
			out = nil
			end()
			f.reply(w, r)
			return
		default:
			message := excerpt.Message(err.Error())
			end()
			respond.LetGo(r)
			out.error(message)
		}
		if err != nil {
			// Part of the reply has been sent. A clean end would make half an answer look complete,
			// so cut the connection.
			panic(http.ErrAbortHandler)
		}
	})
}

// begin takes a turn for a request, until end, within the timeout unless that is 0. Then the reply
// must end with it, or soon after.
func begin(w http.ResponseWriter, r *http.Request, turns *limits.Turns, timeout time.Duration) (limited *http.Request, end func(), err error) {
	cancel := func() {}
	if timeout > 0 {
		var ctx context.Context
		ctx, cancel = context.WithTimeoutCause(r.Context(), timeout, respond.ErrTooLong)
		r = r.WithContext(ctx)
	}
	give, err := turns.Take(r.Context(), r.RemoteAddr)
	if err != nil {
		cancel()
		return r, nil, err
	}
	if by, limited := r.Context().Deadline(); limited {
		_ = http.NewResponseController(w).SetWriteDeadline(by) // a test's ResponseWriter may have no deadlines
	}
	return r, func() { give(); cancel() }, nil
}

// tookTooLong replaces err by respond.ErrTooLong if the timeout set by begin has expired.
func tookTooLong(r *http.Request, err error) error {
	if err != nil && errors.Is(context.Cause(r.Context()), respond.ErrTooLong) {
		return respond.ErrTooLong
	}
	return err
}

// onlyParameters refuses parameters that the endpoint does not know.
func onlyParameters(r *http.Request, names ...string) error {
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		if !slices.Contains(names, name) {
			return &query.RequestError{Message: fmt.Sprintf("unknown parameter %s: %s accepts %s", excerpt.Quoted(name), r.URL.Path, strings.Join(names, ", "))}
		}
	}
	return nil
}

// failure is a reply to a request that fails.
type failure struct {
	code                int
	retryAfter, message string
}

// failureOf returns the reply for an error. What the request holds may be let go of before the reply is
// sent.
func failureOf(r *http.Request, err error) failure {
	f := failure{message: excerpt.Message(err.Error())}
	bad, forbidden := (*query.RequestError)(nil), (*forbiddenError)(nil)
	switch {
	case errors.As(err, &bad):
		f.code, f.message = http.StatusBadRequest, excerpt.Message(bad.Message)
	case errors.As(err, &forbidden):
		f.code, f.message = http.StatusForbidden, forbidden.message
	case errors.Is(err, backup.ErrRunning):
		f.code = http.StatusConflict
	default:
		f.code, f.retryAfter = respond.Failure(r.Context(), err)
	}
	return f
}

func (f failure) reply(w http.ResponseWriter, r *http.Request) {
	respond.LetGo(r)
	if f.retryAfter != "" {
		w.Header().Set("Retry-After", f.retryAfter)
	}
	respond.Error(w, f.code, f.message)
}

// forbiddenError is about what a flag has turned off.
type forbiddenError struct{ message string }

// Error implements error.
func (e *forbiddenError) Error() string { return e.message }

// stream writes a line for each value of a result.
func stream[T any](out *lines, res *query.Result[T], line func(out *lines, v *T)) error {
	for v, err := range res.All() {
		if err != nil {
			return err
		}
		line(out, &v)
		if err := out.end(); err != nil {
			return err
		}
	}
	out.warn(res.Warnings())
	return nil
}

func (h *Endpoints) export(out *lines, r *http.Request) error {
	req, err := h.request(r, time.Hour)
	if err != nil {
		return err
	}
	if out.exact, err = flag(r, "exact"); err != nil {
		return err
	}
	annotated, err := flag(r, "annotations")
	if err != nil {
		return err
	}
	if bound.FromContext(r.Context()) != nil {
		annotated = false // an annotation may tell of any series
	}
	res, err := h.querier.Export(r.Context(), req.selectors, req.startMs, req.endMs)
	if err != nil {
		return err
	}
	if err := stream(out, res, writeSamples); err != nil || !annotated || h.annotations == nil {
		return err
	}
	for a, err := range h.annotations.Starting(r.Context(), req.startMs, req.endMs) {
		if err != nil {
			return err
		}
		line, err := json.Marshal(wire.AnnotationLine{Annotation: annotations.Wire(&a)})
		if err != nil {
			return err
		}
		out.Raw(line)
		if err := out.end(); err != nil {
			return err
		}
	}
	return nil
}

func (h *Endpoints) rollups(out *lines, r *http.Request) error {
	req, err := h.request(r, 24*time.Hour)
	if err != nil {
		return err
	}
	level, err := h.querier.Level(r.Form.Get("level"))
	if err != nil {
		return err
	}
	res, err := h.querier.Rollups(r.Context(), req.selectors, level, req.startMs, req.endMs)
	if err != nil {
		return err
	}
	name := h.querier.Ladder().Name(level)
	return stream(out, res, func(out *lines, row *query.Row) { writeRow(out, name, row) })
}

func (h *Endpoints) points(out *lines, r *http.Request) error {
	req, err := h.request(r, time.Hour)
	if err != nil {
		return err
	}
	rng := query.Range{StartMs: req.startMs, EndMs: req.endMs, N: 60}
	if s := r.Form.Get("buckets"); s != "" {
		if rng.N, err = strconv.Atoi(s); err != nil {
			return badParameter("buckets", s, "a whole number")
		}
	}
	res, err := h.querier.Points(r.Context(), req.selectors, rng)
	if err != nil {
		return err
	}
	return stream(out, res, func(out *lines, s *query.SeriesPoints) { writePoints(out, rng, s) })
}

func (h *Endpoints) latest(out *lines, r *http.Request) error {
	selectors, err := query.ParseSelectors(r.Context(), r.Form["match[]"])
	if err != nil {
		return err
	}
	lookback := query.MaxLookback
	if s := r.Form.Get("lookback"); s != "" {
		if lookback, err = metric.ParseSpan(s); err != nil {
			return badParameter("lookback", s, "a duration such as 6h or 2d")
		}
	}
	res, err := h.querier.Latest(r.Context(), selectors, lookback)
	if err != nil {
		return err
	}
	return stream(out, res, writeLatest)
}

func (h *Endpoints) summary(out *lines, r *http.Request) error {
	req, err := h.request(r, time.Hour)
	if err != nil {
		return err
	}
	res, err := h.querier.Summary(r.Context(), req.selectors, req.startMs, req.endMs)
	if err != nil {
		return err
	}
	return stream(out, res, writeSummary)
}

func (h *Endpoints) baseline(out *lines, r *http.Request) error {
	req, err := h.request(r, 7*24*time.Hour)
	if err != nil {
		return err
	}
	res, err := h.querier.Baseline(r.Context(), req.selectors, req.startMs, req.endMs)
	if err != nil {
		return err
	}
	return stream(out, res, writeBaseline)
}

// rangeRequest holds the parameters that most endpoints share.
type rangeRequest struct {
	selectors []query.Selector
	startMs   int64
	endMs     int64
}

// request parses the parameters match[], start and end. The default of end is now; the default of
// start is end less back.
func (h *Endpoints) request(r *http.Request, back time.Duration) (rangeRequest, error) {
	var req rangeRequest
	var err error
	if req.selectors, err = query.ParseSelectors(r.Context(), r.Form["match[]"]); err != nil {
		return req, err
	}
	nowMs := clock.NowMs(h.clock)
	if req.endMs, err = parseTime(r.Form, "end", nowMs, nowMs); err != nil {
		return req, err
	}
	req.startMs, err = parseTime(r.Form, "start", nowMs, req.endMs-back.Milliseconds())
	return req, err
}

// parseTime parses a time in any form listed in docs/query.md.
func parseTime(form url.Values, name string, nowMs, absentMs int64) (int64, error) {
	s := form.Get(name)
	if s == "" {
		return absentMs, nil
	}
	m, ok := metric.ParseMoment(s)
	if !ok {
		// In a URL, an unescaped + of a time zone has become a space.
		m, ok = metric.ParseMoment(strings.Replace(s, " ", "+", 1))
	}
	if ok {
		return m.Ms(nowMs), nil
	}
	return 0, badParameter(name, s, "a time such as 2025-11-21, 2025-11-21T12:00:00Z, 1763726400, 1763726400000 or -6h")
}

func badParameter(name, value, want string) error {
	return &query.RequestError{Message: fmt.Sprintf("%s=%s: must be %s", name, excerpt.Quoted(value), want)}
}

// flag parses a parameter that is true or false, which it is without a value.
func flag(r *http.Request, name string) (bool, error) {
	s := r.Form.Get(name)
	if s == "" {
		return false, nil
	}
	set, err := strconv.ParseBool(s)
	if err != nil {
		return false, badParameter(name, s, "true or false")
	}
	return set, nil
}
