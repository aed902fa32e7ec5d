package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
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

// The types below are the external form; scripts rely on the names. Times are in Unix ms.

type statusReply struct {
	// ClockDoubt is absent while the clock is trusted.
	ClockDoubt string `json:"clock_doubt,omitempty"`

	Levels  []levelReply  `json:"levels"`
	Buckets []bucketReply `json:"buckets"`
	Runs    []runReply    `json:"runs"`
	Workers []workerReply `json:"workers"`
	Shards  []shardReply  `json:"shards"`
	Errors  []faultReply  `json:"errors"`
	// Unkept is what senders lose without learning of it, absent in a process that does not ingest.
	Unkept []unkeptReply `json:"unkept,omitempty"`
}

type unkeptReply struct {
	Path    string `json:"path"`
	Sender  string `json:"sender"`
	Reason  string `json:"reason"`
	Count   int64  `json:"count"` // since this process started
	Last    int64  `json:"last"`
	Message string `json:"message"`
}

type levelReply struct {
	Level string `json:"level"`
	// WidthSeconds is the time that a row covers, 0 for raw.
	WidthSeconds float64 `json:"width_seconds"`
	// RetentionSeconds is how long rows are kept, 0 for ever.
	RetentionSeconds float64 `json:"retention_seconds"`
	// WholeFrom is the time from which all rows exist: earlier rows may have expired. It is absent
	// if rows never expire.
	WholeFrom *int64 `json:"whole_from,omitempty"`
}

type bucketReply struct {
	Bucket      string       `json:"bucket"`
	Outstanding []sliceReply `json:"outstanding"`
	// Waiting is absent unless requested.
	Waiting    *[]sliceReply `json:"waiting,omitempty"`
	LagSeconds float64       `json:"lag_seconds"`
}

type sliceReply struct {
	Slice int64 `json:"slice"`
	Marks int   `json:"marks"`
}

type runReply struct {
	Bucket       string  `json:"bucket"`
	Slice        int64   `json:"slice"`
	Worker       string  `json:"worker"`
	Started      int64   `json:"started"`
	Seconds      float64 `json:"seconds"`
	Blocks       int     `json:"blocks"`
	Schedules    int     `json:"schedules"`
	BlockQueries int     `json:"block_queries"`
	IndexQueries int     `json:"index_queries"`
	Late         int     `json:"late"`
	Rescheduled  int     `json:"rescheduled"`
	Dropped      int     `json:"dropped"`
	Error        string  `json:"error,omitempty"`
}

type workerReply struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	Started int64  `json:"started"`
	Seen    int64  `json:"seen"`
	// Aggregates means that the worker takes a share of the shards.
	Aggregates bool `json:"aggregates"`
}

type shardReply struct {
	Shard  int    `json:"shard"`
	Worker string `json:"worker"` // the worker whose share it is
	// The lease, absent if nobody holds it.
	Owner   string `json:"owner,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	Expires int64  `json:"expires,omitempty"`
}

type faultReply struct {
	Component string `json:"component"`
	Worker    string `json:"worker"`
	Time      int64  `json:"time"`
	Bucket    string `json:"bucket"`
	Slice     int64  `json:"slice"`
	// Start is the block's first schedule id, absent if the error concerns no block.
	Start   *int64 `json:"start,omitempty"`
	Message string `json:"message"`
}

// aggregation serves GET /api/v1/status/aggregation. The parameter waiting=true adds the waiting
// slices.
func (s *Server) aggregation(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		replyError(w, http.StatusBadRequest, fmt.Sprintf("the parameters cannot be read: %v", err))
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
			replyError(w, http.StatusBadRequest, fmt.Sprintf("waiting=%q: must be true or false", text))
			return
		}
	}
	turns := s.opts.Turns.Status
	if waiting { // all marks are read, not only those that are overdue
		turns = s.opts.Turns.Queries
	}
	r, end, err := begin(w, r, turns, s.opts.Turns.QueryTimeout)
	if err != nil {
		replyFailure(w, r, err)
		return
	}
	defer end()
	st, err := s.opts.Status.AggregationStatus(r.Context(), waiting)
	if err = tookTooLong(r, err); err != nil {
		code, retryAfter := failure(r.Context(), err)
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		if code == http.StatusInternalServerError {
			s.opts.Logger.ErrorContext(r.Context(), "the aggregation status could not be read", "error", err)
		}
		replyError(w, code, err.Error())
		return
	}
	reply := encodeStatus(s.opts.Ladder, st, waiting)
	if s.unkept != nil {
		for _, u := range s.unkept.list() {
			reply.Unkept = append(reply.Unkept, unkeptReply{
				Path: u.Path, Sender: u.Sender, Reason: u.Reason, Count: u.Count, Last: u.LastMs, Message: u.Message,
			})
		}
	}
	replyJSON(w, http.StatusOK, reply)
}

// encodeStatus converts a Status to the external form. Empty lists are encoded as lists, so that
// scripts need no case for null.
func encodeStatus(ladder metric.Ladder, st Status, waiting bool) statusReply {
	name := func(b metric.Bucket) string {
		if b < metric.Raw || b > ladder.Top() {
			// From a store with another ladder; an odd name is better than a panic.
			return fmt.Sprintf("bucket-%d", int(b))
		}
		return ladder.Name(b)
	}
	reply := statusReply{
		ClockDoubt: st.ClockDoubt,
		Levels:     make([]levelReply, 0, len(st.Levels)),
		Buckets:    make([]bucketReply, 0, len(st.Buckets)),
		Runs:       make([]runReply, 0, len(st.Runs)),
		Workers:    make([]workerReply, 0, len(st.Workers)),
		Shards:     make([]shardReply, 0, len(st.Shards)),
		Errors:     make([]faultReply, 0, len(st.Errors)),
	}
	for _, l := range st.Levels {
		out := levelReply{
			Level: name(l.Bucket), RetentionSeconds: l.Retention.Seconds(),
			WidthSeconds: (time.Duration(ladder.WidthMs(l.Bucket)) * time.Millisecond).Seconds(),
		}
		if l.WholeFromMs != math.MinInt64 {
			out.WholeFrom = &l.WholeFromMs
		}
		reply.Levels = append(reply.Levels, out)
	}
	for _, b := range st.Buckets {
		out := bucketReply{Bucket: name(b.Bucket), Outstanding: encodeSlices(b.Outstanding), LagSeconds: b.Lag.Seconds()}
		if waiting {
			slices := encodeSlices(b.Waiting)
			out.Waiting = &slices
		}
		reply.Buckets = append(reply.Buckets, out)
	}
	for _, r := range st.Runs {
		reply.Runs = append(reply.Runs, runReply{
			Bucket: name(r.Bucket), Slice: r.StartMs, Worker: r.Worker,
			Started: r.StartedMs, Seconds: r.Duration.Seconds(),
			Blocks: r.Blocks, Schedules: r.Schedules,
			BlockQueries: r.BlockQueries, IndexQueries: r.IndexQueries,
			Late: r.Late, Rescheduled: r.Rescheduled, Dropped: r.Dropped,
			Error: r.Err,
		})
	}
	for _, wk := range st.Workers {
		reply.Workers = append(reply.Workers, workerReply{
			ID: wk.ID, Host: wk.Host, Started: wk.StartedMs, Seen: wk.SeenMs, Aggregates: wk.Aggregates,
		})
	}
	for _, sh := range st.Shards {
		reply.Shards = append(reply.Shards, shardReply{
			Shard: sh.Shard, Worker: sh.Worker,
			Owner: sh.Lease.Owner, Fence: int64(sh.Lease.Fence), Expires: sh.Lease.ExpiresMs,
		})
	}
	for _, e := range st.Errors {
		out := faultReply{
			Component: e.Component, Worker: e.Worker, Time: e.TimeMs,
			Bucket: name(e.Bucket), Slice: e.StartMs, Message: e.Message,
		}
		if e.Start >= 0 {
			start := int64(e.Start)
			out.Start = &start
		}
		reply.Errors = append(reply.Errors, out)
	}
	return reply
}

func encodeSlices(of []OutstandingSlice) []sliceReply {
	out := make([]sliceReply, 0, len(of))
	for _, o := range of {
		out = append(out, sliceReply{Slice: o.StartMs, Marks: o.Marks})
	}
	return out
}
