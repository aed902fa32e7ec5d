package reading

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// StatusProvider knows the state of aggregation.
type StatusProvider interface {
	// AggregationStatus returns the state, all but Unkept. With waiting it also fills
	// Bucket.Waiting, for which it reads every mark.
	AggregationStatus(ctx context.Context, waiting bool) (wire.Status, error)
	// Slices returns the slices of each bucket that overlap [fromMs, toMs). It reads every mark.
	Slices(ctx context.Context, fromMs, toMs int64) (wire.Slices, error)
}

// Aggregation has the endpoints that show the state of aggregation, for operators.
type Aggregation struct {
	provider StatusProvider
	clock    clock.Clock
	turns    Turns
	lost     *push.Ledger
	logger   *slog.Logger
}

// NewAggregation makes the endpoints; clk defines "now" in requests. lost is nil in a process that does not ingest.
func NewAggregation(provider StatusProvider, clk clock.Clock, turns Turns, lost *push.Ledger, logger *slog.Logger) *Aggregation {
	return &Aggregation{provider, clk, turns, lost, logger}
}

// Register implements api.Registrar.
func (h *Aggregation) Register(to *route.Table) {
	to.Handle(access.Read, route.Refused, "GET "+wire.StatusPath, h.turns.document(h.logger, h.status, "waiting"))
	to.Handle(access.Read, route.Refused, "GET "+wire.SlicesPath, h.turns.document(h.logger, h.slices, "start", "end"))
}

// asked is a document that a request asks for: what to read, in which turn.
type asked struct {
	turns *limits.Turns
	read  func(ctx context.Context) (any, error)
}

// document answers a request by one JSON document. ask understands the request; its error is a *query.RequestError.
func (t Turns) document(logger *slog.Logger, ask func(r *http.Request) (asked, error), parameters ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			respond.Error(w, http.StatusBadRequest, fmt.Sprintf("the parameters cannot be read: %v", err))
			return
		}
		err := onlyParameters(r, parameters...)
		var what asked
		if err == nil {
			what, err = ask(r)
		}
		if err != nil {
			failureOf(r, err).reply(w, r)
			return
		}
		r, end, err := begin(w, r, what.turns, t.QueryTimeout)
		if err != nil {
			failureOf(r, err).reply(w, r)
			return
		}
		defer end()
		reply, err := what.read(r.Context())
		if err = tookTooLong(r, err); err != nil {
			f := failureOf(r, err)
			if f.code == http.StatusInternalServerError {
				logger.ErrorContext(r.Context(), "cannot answer", "path", r.URL.Path, "err", err)
			}
			end()
			f.reply(w, r)
			return
		}
		respond.JSON(w, http.StatusOK, reply)
	})
}

// status has the parameter waiting, which adds the waiting slices.
func (h *Aggregation) status(r *http.Request) (asked, error) {
	waiting, err := flag(r, "waiting")
	if err != nil {
		return asked{}, err
	}
	turns := h.turns.Status
	if waiting { // all marks are read, not only those that are overdue
		turns = h.turns.Queries
	}
	return asked{turns, func(ctx context.Context) (any, error) {
		reply, err := h.provider.AggregationStatus(ctx, waiting)
		if err == nil && h.lost != nil {
			for _, u := range h.lost.List() {
				reply.Unkept = append(reply.Unkept, wire.Unkept{
					Path: u.Path, Sender: u.Sender, Reason: u.Reason, Count: u.Count, Last: u.LastMs, Message: u.Message,
				})
			}
		}
		return reply, err
	}}, nil
}

// slices has the parameters start and end.
func (h *Aggregation) slices(r *http.Request) (asked, error) {
	nowMs := clock.NowMs(h.clock)
	endMs, err := parseTime(r.Form, "end", nowMs, nowMs)
	if err != nil {
		return asked{}, err
	}
	startMs, err := parseTime(r.Form, "start", nowMs, endMs-(24*time.Hour).Milliseconds())
	if err == nil {
		err = query.CheckRange(startMs, endMs)
	}
	return asked{h.turns.Queries, func(ctx context.Context) (any, error) {
		return h.provider.Slices(ctx, startMs, endMs)
	}}, err
}
