package reading

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/quern/quern/internal/api/push"
	"github.com/quern/quern/internal/api/respond"
	"github.com/quern/quern/internal/wire"
)

// StatusProvider knows the state of aggregation.
type StatusProvider interface {
	// AggregationStatus returns the state, all but Unkept. With waiting it also fills
	// Bucket.Waiting, for which it reads every mark.
	AggregationStatus(ctx context.Context, waiting bool) (wire.Status, error)
}

// Aggregation has the endpoint that shows the state of aggregation, for operators.
type Aggregation struct {
	provider StatusProvider
	turns    Turns
	lost     *push.Ledger
	logger   *slog.Logger
}

// NewAggregation makes the endpoint. lost is nil in a process that does not ingest.
func NewAggregation(provider StatusProvider, turns Turns, lost *push.Ledger, logger *slog.Logger) *Aggregation {
	return &Aggregation{provider, turns, lost, logger}
}

// Register implements api.Registrar.
func (h *Aggregation) Register(mux *http.ServeMux) {
	mux.Handle("GET "+wire.StatusPath, h)
}

// ServeHTTP implements http.Handler. The parameter waiting=true adds the waiting slices.
func (h *Aggregation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		respond.Error(w, http.StatusBadRequest, fmt.Sprintf("the parameters cannot be read: %v", err))
		return
	}
	if err := onlyParameters(r, "waiting"); err != nil {
		failureOf(r, err).reply(w, r)
		return
	}
	waiting := false
	if text := r.URL.Query().Get("waiting"); text != "" {
		var err error
		if waiting, err = strconv.ParseBool(text); err != nil {
			respond.Error(w, http.StatusBadRequest, fmt.Sprintf("waiting=%q: must be true or false", text))
			return
		}
	}
	turns := h.turns.Status
	if waiting { // all marks are read, not only those that are overdue
		turns = h.turns.Queries
	}
	r, end, err := begin(w, r, turns, h.turns.QueryTimeout)
	if err != nil {
		failureOf(r, err).reply(w, r)
		return
	}
	defer end()
	reply, err := h.provider.AggregationStatus(r.Context(), waiting)
	if err = tookTooLong(r, err); err != nil {
		f := failureOf(r, err)
		if f.code == http.StatusInternalServerError {
			h.logger.ErrorContext(r.Context(), "cannot read the aggregation status", "err", err)
		}
		end()
		f.reply(w, r)
		return
	}
	if h.lost != nil {
		for _, u := range h.lost.List() {
			reply.Unkept = append(reply.Unkept, wire.Unkept{
				Path: u.Path, Sender: u.Sender, Reason: u.Reason, Count: u.Count, Last: u.LastMs, Message: u.Message,
			})
		}
	}
	respond.JSON(w, http.StatusOK, reply)
}
