package reading

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/quern/quern/internal/api/push"
	"github.com/quern/quern/internal/api/respond"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

// StatusProvider knows the state of aggregation.
type StatusProvider interface {
	// AggregationStatus returns the Status. With waiting it also fills BucketStatus.Waiting, for
	// which it reads every mark.
	AggregationStatus(ctx context.Context, waiting bool) (Status, error)
}

// Status is the state of aggregation and its recent history.
type Status struct {
	// ClockDoubt says why nothing expires by the clock; it is empty while the clock is trusted.
	ClockDoubt string
	// Unread names parts of the store that are out of reach, and so are missing below. What is
	// outstanding in slices that cannot be read is not in Buckets.
	Unread []string
	// Levels are all buckets, raw first.
	Levels []LevelStatus
	// Buckets are the buckets that are ground, finest first.
	Buckets []BucketStatus
	// Runs are the latest runs, newest first.
	Runs    []storage.Run
	Workers []storage.Worker
	Shards  []ShardStatus
	// Errors are the latest errors of each component, newest first.
	Errors []storage.ComponentError
}

// ShardStatus is a shard of the index and its owner.
type ShardStatus struct {
	Shard int
	// Worker is the worker that grinds the shard, empty if there is none.
	Worker string
	// Lease is the shard's lease, zero if nobody holds it.
	Lease storage.Lease
}

// LevelStatus is a bucket and its retention; 0 is for ever.
type LevelStatus struct {
	Bucket    metric.Bucket
	Retention time.Duration
	// WholeFromMs is the time from which the bucket is whole; math.MinInt64 means always.
	WholeFromMs int64
}

// BucketStatus is the work that is left for one bucket.
type BucketStatus struct {
	Bucket metric.Bucket
	// Outstanding are the slices that have ended and are not complete, oldest first.
	Outstanding []OutstandingSlice
	// Waiting are the slices with marks that no run has processed, oldest first. The marks of late
	// data lie in the index of another slice, which in most cases has not ended.
	Waiting []OutstandingSlice
	// Lag is the time since the oldest outstanding slice ended, 0 if there is none.
	Lag time.Duration
}

// OutstandingSlice is a slice that has something left to grind.
type OutstandingSlice struct {
	StartMs int64
	Marks   int
}

// Aggregation has the endpoint that shows the state of aggregation, for operators.
type Aggregation struct {
	provider StatusProvider
	ladder   metric.Ladder
	turns    Turns
	lost     *push.Ledger
	logger   *slog.Logger
}

// NewAggregation makes the endpoint; ladder names the buckets. lost is nil in a process that does not
// ingest.
func NewAggregation(provider StatusProvider, ladder metric.Ladder, turns Turns, lost *push.Ledger, logger *slog.Logger) *Aggregation {
	return &Aggregation{provider, ladder, turns, lost, logger}
}

// Register implements api.Registrar.
func (h *Aggregation) Register(mux *http.ServeMux) {
	mux.Handle("GET /api/v1/status/aggregation", h)
}

// ServeHTTP implements http.Handler. The parameter waiting=true adds the waiting slices.
func (h *Aggregation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		respond.Error(w, http.StatusBadRequest, fmt.Sprintf("the parameters cannot be read: %v", err))
		return
	}
	if err := onlyParameters(r, "waiting"); err != nil {
		replyFailure(w, r, err)
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
		replyFailure(w, r, err)
		return
	}
	defer end()
	st, err := h.provider.AggregationStatus(r.Context(), waiting)
	if err = tookTooLong(r, err); err != nil {
		code, retryAfter := respond.Failure(r.Context(), err)
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		if code == http.StatusInternalServerError {
			h.logger.ErrorContext(r.Context(), "cannot read the aggregation status", "err", err)
		}
		respond.Error(w, code, err.Error())
		return
	}
	reply := encodeStatus(h.ladder, st, waiting)
	if h.lost != nil {
		for _, u := range h.lost.List() {
			reply.Unkept = append(reply.Unkept, wire.Unkept{
				Path: u.Path, Sender: u.Sender, Reason: u.Reason, Count: u.Count, Last: u.LastMs, Message: u.Message,
			})
		}
	}
	respond.JSON(w, http.StatusOK, reply)
}

// encodeStatus converts a Status to the external form. Empty lists are encoded as lists, so that
// scripts need no case for null.
func encodeStatus(ladder metric.Ladder, st Status, waiting bool) wire.Status {
	reply := wire.Status{
		ClockDoubt: st.ClockDoubt,
		Unread:     st.Unread,
		Levels:     make([]wire.Level, 0, len(st.Levels)),
		Buckets:    make([]wire.Bucket, 0, len(st.Buckets)),
		Runs:       make([]wire.Run, 0, len(st.Runs)),
		Workers:    make([]wire.Worker, 0, len(st.Workers)),
		Shards:     make([]wire.Shard, 0, len(st.Shards)),
		Errors:     make([]wire.Fault, 0, len(st.Errors)),
	}
	for _, l := range st.Levels {
		out := wire.Level{
			Level: ladder.Name(l.Bucket), RetentionSeconds: l.Retention.Seconds(),
			WidthSeconds: (time.Duration(ladder.WidthMs(l.Bucket)) * time.Millisecond).Seconds(),
		}
		if l.WholeFromMs != math.MinInt64 {
			out.WholeFrom = &l.WholeFromMs
		}
		reply.Levels = append(reply.Levels, out)
	}
	for _, b := range st.Buckets {
		out := wire.Bucket{Bucket: ladder.Name(b.Bucket), Outstanding: encodeSlices(b.Outstanding), LagSeconds: b.Lag.Seconds()}
		if waiting {
			slices := encodeSlices(b.Waiting)
			out.Waiting = &slices
		}
		reply.Buckets = append(reply.Buckets, out)
	}
	for _, r := range st.Runs {
		reply.Runs = append(reply.Runs, wire.Run{
			Bucket: ladder.Name(r.Bucket), Slice: r.StartMs, Worker: r.Worker,
			Started: r.StartedMs, Seconds: r.Duration.Seconds(),
			Blocks: r.Blocks, Schedules: r.Schedules,
			BlockQueries: r.BlockQueries, IndexQueries: r.IndexQueries,
			Late: r.Late, Rescheduled: r.Rescheduled, Dropped: r.Dropped,
			Error: r.Err,
		})
	}
	for _, wk := range st.Workers {
		reply.Workers = append(reply.Workers, wire.Worker{
			ID: wk.ID, Host: wk.Host, Started: wk.StartedMs, Seen: wk.SeenMs, Aggregates: wk.Aggregates,
		})
	}
	for _, sh := range st.Shards {
		reply.Shards = append(reply.Shards, wire.Shard{
			Shard: sh.Shard, Worker: sh.Worker,
			Owner: sh.Lease.Owner, Fence: int64(sh.Lease.Fence), Expires: sh.Lease.ExpiresMs,
		})
	}
	for _, e := range st.Errors {
		out := wire.Fault{
			Component: e.Component, Worker: e.Worker, Time: e.TimeMs,
			Bucket: ladder.Name(e.Bucket), Slice: e.StartMs, Message: e.Message,
		}
		if e.Start >= 0 {
			start := int64(e.Start)
			out.Start = &start
		}
		reply.Errors = append(reply.Errors, out)
	}
	return reply
}

func encodeSlices(of []OutstandingSlice) []wire.Slice {
	out := make([]wire.Slice, 0, len(of))
	for _, o := range of {
		out = append(out, wire.Slice{Slice: o.StartMs, Marks: o.Marks})
	}
	return out
}
