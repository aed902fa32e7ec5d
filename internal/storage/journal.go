package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/metric"
)

// The journal is what operators see of the processes and of their work. It is kept in items, as JSON.

// The kinds of the journal's items. A store that belongs to one process has no item of KindWorker when it is opened:
// the process of each heartbeat has ended.
const (
	KindRun    = "run"
	KindError  = "error"
	KindWorker = "worker"
)

const (
	keepRun   = 30 * 24 * time.Hour
	keepError = 7 * 24 * time.Hour
	// keptErrors is how many errors of each component are kept of each process, and shown of all together.
	keptErrors = 10
)

// Worker is the last heartbeat of a process.
type Worker struct {
	ID        string `json:"id"`
	Host      string `json:"host"`
	StartedMs int64  `json:"started_ms"`
	SeenMs    int64  `json:"seen_ms"`
	// Aggregates says that the worker takes a share of the shards.
	Aggregates bool `json:"aggregates"`
}

// Run is the record of one run of one slice.
type Run struct {
	SliceKey
	Worker    string        `json:"worker"`
	StartedMs int64         `json:"started_ms"`
	Duration  time.Duration `json:"duration_ns"`
	// Blocks is the number of blocks ground, Schedules the number of roll-up rows written.
	Blocks    int `json:"blocks"`
	Schedules int `json:"schedules"`
	// BlockQueries counts the reads of cache blocks, and of raw or roll-up blocks where the cache
	// could not serve. IndexQueries counts the paged reads of index partitions.
	BlockQueries int `json:"block_queries"`
	IndexQueries int `json:"index_queries"`
	// Late counts the schedules recomputed for late data, Rescheduled the blocks put off to a later
	// slice, Dropped the marks dropped because their input has expired.
	Late        int `json:"late"`
	Rescheduled int `json:"rescheduled"`
	Dropped     int `json:"dropped"`
	// Err says why the run was aborted. It is empty when the slice was completed.
	Err string `json:"error,omitempty"`
}

// ComponentError is an error of a component of a process.
type ComponentError struct {
	Component string `json:"component"`
	Worker    string `json:"worker"`
	TimeMs    int64  `json:"time_ms"`
	// Bucket, StartMs and Start say where the error happened. Start is -1 when no block is
	// concerned.
	SliceKey
	Start   metric.ScheduleID `json:"start"`
	Message string            `json:"message"`
}

// Heartbeat records that a worker is alive, for ttl.
func Heartbeat(ctx context.Context, st Items, w Worker, ttl time.Duration) error {
	return record(ctx, st, KindWorker, w.ID, w, ttl)
}

// Workers returns the workers that are alive, by id. A heartbeat that cannot be read is left out: a worker that is alive
// soon writes the next one in its place.
func Workers(ctx context.Context, st Items) ([]Worker, error) {
	out, err := records[Worker](ctx, st, KindWorker, math.MaxInt)
	if errors.Is(err, ErrCorrupt) {
		err = nil
	}
	return out, err
}

// RecordRun records a run. Its id begins with a number that falls with time, so that the newest run is the first.
func RecordRun(ctx context.Context, st Items, r Run) error {
	id := fmt.Sprintf("%017d/%d/%d/%s", 1<<53-r.StartedMs, r.Bucket, r.StartMs, r.Worker)
	return record(ctx, st, KindRun, id, r, keepRun)
}

// RecentRuns returns the last runs, newest first. With ErrCorrupt it returns those that can be read.
func RecentRuns(ctx context.Context, st Items, limit int) ([]Run, error) {
	return records[Run](ctx, st, KindRun, limit)
}

// ErrorLog records the errors of one component of one process. An error replaces the one that is keptErrors older, so
// that no storm of errors fills the store.
type ErrorLog struct {
	store             Items
	component, worker string
	recorded          atomic.Uint64
}

// NewErrorLog returns the log of a component. No earlier process had the worker's name.
func NewErrorLog(st Items, component, worker string) *ErrorLog {
	return &ErrorLog{store: st, component: component, worker: worker}
}

// Record records an error of the component and the worker.
func (l *ErrorLog) Record(ctx context.Context, e ComponentError) error {
	e.Component, e.Worker = l.component, l.worker
	place := l.recorded.Add(1) % keptErrors
	return record(ctx, l.store, KindError, l.component+"/"+l.worker+"/"+strconv.FormatUint(place, 10), e, keepError)
}

// RecentErrors returns the last errors of each component, newest first. With ErrCorrupt it returns those that can be read.
func RecentErrors(ctx context.Context, st Items) ([]ComponentError, error) {
	found, err := records[ComponentError](ctx, st, KindError, math.MaxInt)
	slices.SortStableFunc(found, func(a, b ComponentError) int { return cmp.Compare(b.TimeMs, a.TimeMs) })
	left := make(map[string]int)
	return slices.DeleteFunc(found, func(e ComponentError) bool {
		left[e.Component]++
		return left[e.Component] > keptErrors
	}), err
}

func record(ctx context.Context, st Items, kind, id string, v any, ttl time.Duration) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return st.PutItems(ctx, []Item{{ItemKey: ItemKey{Kind: kind, ID: id}, Value: value, TTL: ttl, Protects: true}})
}

// records returns the records of a kind by id, the first most of them. With ErrCorrupt it returns those that can be read.
func records[T any](ctx context.Context, st Items, kind string, most int) (out []T, damaged error) {
	for item, err := range st.Items(ctx, kind, "", "") {
		var v T
		if err == nil {
			if cause := json.Unmarshal(item.Value, &v); cause != nil {
				err = fmt.Errorf("item %q of the kind %s: %w: %w", item.ID, kind, ErrCorrupt, cause)
			}
		}
		switch {
		case errors.Is(err, ErrCorrupt):
			damaged = cmp.Or(damaged, err)
		case err != nil:
			return nil, err
		case len(out) >= most:
			return out, damaged
		default:
			out = append(out, v)
		}
	}
	return out, damaged
}
