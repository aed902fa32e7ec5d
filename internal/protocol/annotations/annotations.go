// Package annotations keeps annotations, remarks about a time beside the series. It has the endpoints that find, take and
// delete them, and the one that takes the notifications of Alertmanager.
package annotations

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// foundBack is how far before its end a search begins, if it does not say.
const foundBack = 7 * 24 * time.Hour

// Options configure the endpoints.
type Options struct {
	Book *Book
	In   *push.Intake
	// Audit records what is replaced, moved and deleted.
	Audit *access.Audit
	// Turns limit concurrent searches; nil is no limit. Timeout is how long a search may take, its wait for a turn
	// included; 0 is for ever.
	Turns   *limits.Turns
	Timeout time.Duration
}

type handler struct {
	book    *Book
	in      *push.Intake
	audit   *access.Audit
	turns   *limits.Turns
	timeout time.Duration
}

// Register adds the endpoints. take adds those that read and limit their bodies themselves.
func Register(opts Options, to *route.Table, take func(h http.Handler, paths ...string)) {
	h := &handler{opts.Book, opts.In, opts.Audit, opts.Turns, opts.Timeout}
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.AnnotationsPath, h.find)
	to.HandleFunc(route.Edits, route.Refused, "DELETE "+wire.AnnotationsPath, h.remove)
	take(http.HandlerFunc(h.put), wire.AnnotationsPath)
	take(http.HandlerFunc(h.alert), wire.AlertsPath)
}

// invalidError is about the parameters of a request.
type invalidError struct{ message string }

// Error implements error.
func (e *invalidError) Error() string { return e.message }

func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, excerpt.Args(args)...)}
}

// fail answers a request that fails.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	code, message := http.StatusBadRequest, err.Error()
	if wrong := (*invalidError)(nil); !errors.As(err, &wrong) {
		after := ""
		if code, after = respond.Failure(r.Context(), err); after != "" {
			w.Header().Set("Retry-After", after)
		}
	}
	respond.LetGo(r)
	respond.Error(w, code, message)
}

// find answers with annotations.
func (h *handler) find(w http.ResponseWriter, r *http.Request) {
	found, err := h.search(r)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	// Errors of the writer stay with it: the client has gone.
	_, _ = out.WriteString(`{"annotations":[`)
	for i := range found.Annotations {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_ = enc.Encode(Wire(&found.Annotations[i]))
	}
	_, _ = fmt.Fprintf(out, `],"more":%t`, found.More)
	if found.More {
		_, _ = out.WriteString(`,"before":`)
		_ = enc.Encode(formatPosition(&found.Annotations[0]))
	}
	_, _ = out.WriteString("}\n")
	_ = out.Flush()
}

func (h *handler) search(r *http.Request) (Found, error) {
	q, err := h.query(r)
	if err != nil {
		return Found{}, err
	}
	ctx := r.Context()
	if h.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.timeout, respond.ErrTooLong)
		defer cancel()
	}
	give, err := h.turns.Take(ctx, r.RemoteAddr)
	if err != nil {
		return Found{}, err
	}
	defer give()
	found, err := h.book.Find(ctx, q)
	if err != nil && errors.Is(context.Cause(ctx), respond.ErrTooLong) {
		err = respond.ErrTooLong
	}
	return found, err
}

// query reads the parameters of a search.
func (h *handler) query(r *http.Request) (q Query, err error) {
	if err := parameters(r, "start", "end", "tag", "text", "limit", "before"); err != nil {
		return q, err
	}
	q = Query{Tags: r.Form["tag"], Text: r.Form.Get("text"), Limit: defaultLimit}
	nowMs := h.book.NowMs()
	if q.ToMs, err = timeOf(r, "end", nowMs, nowMs); err != nil {
		return q, err
	}
	if q.FromMs, err = timeOf(r, "start", nowMs, q.ToMs-foundBack.Milliseconds()); err != nil {
		return q, err
	}
	if q.FromMs > q.ToMs {
		return q, invalid("start=%s: must not be after the end", r.Form.Get("start"))
	}
	if s := r.Form.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > maxLimit {
			return q, invalid("limit=%s: must be a whole number from 1 to %d", s, maxLimit)
		}
	}
	if s := r.Form.Get("before"); s != "" {
		if q.Before, err = parsePosition(s); err != nil {
			return q, err
		}
	}
	return q, nil
}

func formatPosition(a *Annotation) string {
	return strconv.FormatInt(a.StartMs, 10) + " " + a.ID
}

func parsePosition(s string) (*Position, error) {
	start, id, _ := strings.Cut(s, " ")
	ms, err := strconv.ParseInt(start, 10, 64)
	if err != nil || id == "" {
		return nil, invalid("before=%s: must be the member before of an answer", s)
	}
	return &Position{StartMs: ms, ID: id}, nil
}

// remove deletes an
func (h *handler) remove(w http.ResponseWriter, r *http.Request) {
	if err := parameters(r, "id", "start"); err != nil {
		fail(w, r, err)
		return
	}
	id := r.Form.Get("id")
	startMs, err := timeOf(r, "start", h.book.NowMs(), -1)
	if err == nil && (id == "" || r.Form.Get("start") == "") {
		err = invalid("give the id and the start of the annotation, as a search has them")
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	found, err := h.book.Delete(r.Context(), id, startMs)
	switch {
	case err != nil:
		fail(w, r, err)
	case !found:
		respond.NotFound(w, fmt.Sprintf("there is no annotation %s that starts at %s",
			excerpt.Quoted(id), time.UnixMilli(startMs).UTC().Format(time.RFC3339Nano)))
	default:
		respond.JSON(w, http.StatusOK, wire.Done{Status: wire.Success})
	}
}

// parameters reads the parameters of the URL, and refuses unknown ones: a misspelt one would change the answer.
func parameters(r *http.Request, names ...string) error {
	if err := r.ParseForm(); err != nil {
		return invalid("the parameters cannot be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Form)) {
		if !slices.Contains(names, name) {
			return invalid("unknown parameter %s: %s accepts %s", name, r.URL.Path, strings.Join(names, ", "))
		}
	}
	return nil
}

func timeOf(r *http.Request, name string, nowMs, absentMs int64) (int64, error) {
	s := r.Form.Get(name)
	if s == "" {
		return absentMs, nil
	}
	m, ok := metric.ParseMoment(s)
	if !ok {
		// In a URL, an unescaped + of a time zone has become a space.
		m, ok = metric.ParseMoment(strings.Replace(s, " ", "+", 1))
	}
	if !ok {
		return 0, invalid("%s=%s: must be %s", name, s, timeForms)
	}
	return m.Ms(nowMs), nil
}

// Wire returns an annotation as answers have it.
func Wire(a *Annotation) wire.Annotation {
	tags := a.Tags
	if tags == nil {
		tags = []string{}
	}
	return wire.Annotation{
		ID: a.ID, Start: a.StartMs, End: a.EndMs, Text: a.Text, Tags: tags, Selector: a.Selector, Author: a.Author, Updated: a.UpdatedMs,
	}
}
