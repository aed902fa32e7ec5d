package reading

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/protocol/push"
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
}

// NewAggregation makes the endpoints; clk defines "now" in requests. lost is nil in a process that does not ingest.
func NewAggregation(provider StatusProvider, clk clock.Clock, turns Turns, lost *push.Ledger) *Aggregation {
	return &Aggregation{provider, clk, turns, lost}
}

// Register implements api.Registrar.
func (h *Aggregation) Register(to *route.Table) {
	brief, whole := h.turns.status(document(h.status), "waiting"), h.turns.query(document(h.status), "waiting")
	to.HandleFunc(access.Read, route.Refused, "GET "+wire.StatusPath, func(w http.ResponseWriter, r *http.Request) {
		if waiting, _ := strconv.ParseBool(r.FormValue("waiting")); waiting { // all marks are read, not only those that are overdue
			whole.ServeHTTP(w, r)
			return
		}
		brief.ServeHTTP(w, r)
	})
	to.Handle(access.Read, route.Refused, "GET "+wire.SlicesPath, h.turns.query(document(h.slices), "start", "end"))
}

// status has the parameter waiting, which adds the waiting slices.
func (h *Aggregation) status(r *http.Request) (any, error) {
	waiting, err := flag(r, "waiting")
	if err != nil {
		return nil, err
	}
	reply, err := h.provider.AggregationStatus(r.Context(), waiting)
	if err == nil && h.lost != nil {
		for _, u := range h.lost.List() {
			reply.Unkept = append(reply.Unkept, wire.Unkept{
				Path: u.Path, Sender: u.Sender, Reason: u.Reason, Count: u.Count, Last: u.LastMs, Message: u.Message,
			})
		}
	}
	return reply, err
}

// slices has the parameters start and end.
func (h *Aggregation) slices(r *http.Request) (any, error) {
	nowMs := clock.NowMs(h.clock)
	endMs, err := parseTime(r.Form, "end", nowMs, nowMs)
	if err != nil {
		return nil, err
	}
	startMs, err := parseTime(r.Form, "start", nowMs, endMs-(24*time.Hour).Milliseconds())
	if err == nil {
		err = query.CheckRange(startMs, endMs)
	}
	if err != nil {
		return nil, err
	}
	return h.provider.Slices(r.Context(), startMs, endMs)
}
