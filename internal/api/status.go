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

// StatusProvider knows how far aggregation is.
type StatusProvider interface {
	// AggregationStatus is Status; with waiting its BucketStatus have Waiting, for which every mark is read.
	AggregationStatus(ctx context.Context, waiting bool) (Status, error)
}

// Status is how far aggregation is, and what was done last.
type Status struct {
	// ClockDoubt is why nothing expires by the clock, empty while it is believed.
	ClockDoubt string
	// Levels are all buckets, raw first.
	Levels []LevelStatus
	// Buckets are those that are ground, finest first.
	Buckets []BucketStatus
	// Runs are the last ones, newest first.
	Runs    []storage.Run
	Workers []storage.Worker
	Shards  []ShardStatus
	// Errors are the last of each component, newest first.
	Errors []storage.ComponentError
}

// ShardStatus is a shard of the index, and whose it is.
type ShardStatus struct {
	Shard int
	// Worker is who grinds it, empty while nobody does.
	Worker string
	// Lease is its lease, which is zero while nobody holds it.
	Lease storage.Lease
}

// LevelStatus is a bucket, and how long its rows are kept; 0 is for ever.
type LevelStatus struct {
	Bucket    metric.Bucket
	Retention time.Duration
	// WholeFromMs is from when on it is whole; math.MinInt64 is always.
	WholeFromMs int64
}

// BucketStatus is what one bucket still has to be ground.
type BucketStatus struct {
	Bucket metric.Bucket
	// Outstanding are the slices that are over and not complete, oldest first.
	Outstanding []OutstandingSlice
	// Waiting are the slices that marks stand for which no run has dealt with, oldest first. Those
	// of late data lie in another slice's index, mostly in that of one which is not over.
	Waiting []OutstandingSlice
	// Lag is the time since the oldest outstanding slice ended, 0 when there is none.
	Lag time.Duration
}

// OutstandingSlice is a slice of which something is to be ground.
type OutstandingSlice struct {
	StartMs int64
	Marks   int
}

// What follows is the outside form: scripts rely on the names. Times are Unix ms.

type statusReply struct {
	// ClockDoubt is absent while the clock is believed.
	ClockDoubt string `json:"clock_doubt,omitempty"`

	Levels  []levelReply  `json:"levels"`
	Buckets []bucketReply `json:"buckets"`
	Runs    []runReply    `json:"runs"`
	Workers []workerReply `json:"workers"`
	Shards  []shardReply  `json:"shards"`
	Errors  []faultReply  `json:"errors"`
	// Unkept is what senders lose without being told, absent in a process that takes nothing.
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
	// WidthSeconds is the time that a row stands for, 0 for raw.
	WidthSeconds float64 `json:"width_seconds"`
	// RetentionSeconds is how long rows are kept, 0 for ever.
	RetentionSeconds float64 `json:"retention_seconds"`
	// WholeFrom is from when on all rows are there: earlier ones may have expired. It is absent where none have, nor will.
	WholeFrom *int64 `json:"whole_from,omitempty"`
}

type bucketReply struct {
	Bucket      string       `json:"bucket"`
	Outstanding []sliceReply `json:"outstanding"`
	// Waiting is absent unless it is asked for.
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
	// Aggregates says that it takes a share of the shards.
	Aggregates bool `json:"aggregates"`
}

type shardReply struct {
	Shard  int    `json:"shard"`
	Worker string `json:"worker"` // whose share it is
	// The lease, absent while nobody holds it.
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
	// Start is the block's first schedule id, absent when no block is concerned.
	Start   *int64 `json:"start,omitempty"`
	Message string `json:"message"`
}

// aggregation serves GET /api/v1/status/aggregation, with what waits if the parameter waiting is true.
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

// encodeStatus makes the outside form. Empty lists are lists, so that scripts need no
// case for null.
func encodeStatus(ladder metric.Ladder, st Status, waiting bool) statusReply {
	name := func(b metric.Bucket) string {
		if b < metric.Raw || b > ladder.Top() {
			// Left by a store whose ladder was another; better odd than a panic.
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
