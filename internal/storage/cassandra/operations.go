package cassandra

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlWriteRun    = `INSERT INTO runs (bucket, started, time_slice, worker, duration_ns, blocks, schedules, block_queries, index_queries, late, rescheduled, dropped, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	cqlReadRuns    = `SELECT bucket, started, time_slice, worker, duration_ns, blocks, schedules, block_queries, index_queries, late, rescheduled, dropped, error FROM runs WHERE bucket = ? LIMIT ?`
	cqlWriteError  = `INSERT INTO errors (component, time, worker, bucket, time_slice, start_schedule_id, message) VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	cqlReadErrors  = `SELECT component, time, worker, bucket, time_slice, start_schedule_id, message FROM errors PER PARTITION LIMIT 10`
	cqlWriteWorker = `INSERT INTO workers (ring, id, host, started, seen, aggregates) VALUES (0, ?, ?, ?, ?, ?) USING TTL ?`
	cqlReadWorkers = `SELECT id, host, started, seen, aggregates FROM workers WHERE ring = 0`
)

const (
	keepRun   = 30 * day
	keepError = 7 * day
)

type runRow struct {
	Bucket       int    `db:"bucket"`
	StartedMs    int64  `db:"started"`
	SliceMs      int64  `db:"time_slice"`
	Worker       string `db:"worker"`
	DurationNs   int64  `db:"duration_ns"`
	Blocks       int    `db:"blocks"`
	Schedules    int    `db:"schedules"`
	BlockQueries int    `db:"block_queries"`
	IndexQueries int    `db:"index_queries"`
	Late         int    `db:"late"`
	Rescheduled  int    `db:"rescheduled"`
	Dropped      int    `db:"dropped"`
	Err          string `db:"error"`
}

// RecordRun implements storage.Operations.
func (s *Store) RecordRun(ctx context.Context, r storage.Run) error {
	return named("record run", s.writeOne(ctx, 0, stmt(cqlWriteRun,
		int(r.Bucket), r.StartedMs, r.StartMs, r.Worker, int64(r.Duration), r.Blocks, r.Schedules,
		r.BlockQueries, r.IndexQueries, r.Late, r.Rescheduled, r.Dropped, r.Err, ttl(keepRun))))
}

// RecentRuns implements storage.Operations.
func (s *Store) RecentRuns(ctx context.Context, limit int) ([]storage.Run, error) {
	if limit < 1 || ctx.Err() != nil {
		return nil, convert(ctx, ctx.Err())
	}
	var out []storage.Run
	for _, b := range s.ladder.Ground() {
		found, err := all[runRow](ctx, s.session, stmt(cqlReadRuns, int(b), limit))
		if err != nil {
			return nil, named("recent runs", err)
		}
		for _, r := range found {
			out = append(out, storage.Run{
				SliceKey: storage.SliceKey{Bucket: metric.Bucket(r.Bucket), StartMs: r.SliceMs},
				Worker:   r.Worker, StartedMs: r.StartedMs, Duration: time.Duration(r.DurationNs),
				Blocks: r.Blocks, Schedules: r.Schedules, BlockQueries: r.BlockQueries, IndexQueries: r.IndexQueries,
				Late: r.Late, Rescheduled: r.Rescheduled, Dropped: r.Dropped, Err: r.Err,
			})
		}
	}
	slices.SortStableFunc(out, func(a, b storage.Run) int { return cmp.Compare(b.StartedMs, a.StartedMs) })
	return out[:min(limit, len(out))], nil
}

type errorRow struct {
	Component string `db:"component"`
	TimeMs    int64  `db:"time"`
	Worker    string `db:"worker"`
	Bucket    int    `db:"bucket"`
	SliceMs   int64  `db:"time_slice"`
	Start     int64  `db:"start_schedule_id"`
	Message   string `db:"message"`
}

// RecordError implements storage.Operations. Of two errors of one worker at the same block in the
// same millisecond, the later one is kept.
func (s *Store) RecordError(ctx context.Context, e storage.ComponentError) error {
	return named("record error", s.writeOne(ctx, 0, stmt(cqlWriteError,
		e.Component, e.TimeMs, e.Worker, int(e.Bucket), e.StartMs, int64(e.Start), e.Message, ttl(keepError))))
}

// RecentErrors implements storage.Operations.
func (s *Store) RecentErrors(ctx context.Context) ([]storage.ComponentError, error) {
	found, err := all[errorRow](ctx, s.session, stmt(cqlReadErrors))
	if err != nil {
		return nil, named("recent errors", err)
	}
	var out []storage.ComponentError
	for _, r := range found {
		out = append(out, storage.ComponentError{
			Component: r.Component, Worker: r.Worker, TimeMs: r.TimeMs,
			SliceKey: storage.SliceKey{Bucket: metric.Bucket(r.Bucket), StartMs: r.SliceMs},
			Start:    metric.ScheduleID(r.Start), Message: r.Message,
		})
	}
	slices.SortStableFunc(out, func(a, b storage.ComponentError) int { return cmp.Compare(b.TimeMs, a.TimeMs) })
	return out, nil
}

type workerRow struct {
	ID         string `db:"id"`
	Host       string `db:"host"`
	StartedMs  int64  `db:"started"`
	SeenMs     *int64 `db:"seen"`
	Aggregates bool   `db:"aggregates"`
}

// Heartbeat implements storage.Operations.
func (s *Store) Heartbeat(ctx context.Context, w storage.Worker, d time.Duration) error {
	if err := s.CheckFit(ctx); err != nil {
		return err
	}
	return named("heartbeat", s.writeOne(ctx, 0, stmt(cqlWriteWorker,
		w.ID, w.Host, w.StartedMs, w.SeenMs, w.Aggregates, ttl(d))))
}

// Workers implements storage.Operations.
func (s *Store) Workers(ctx context.Context) ([]storage.Worker, error) {
	found, err := all[workerRow](ctx, s.session, stmt(cqlReadWorkers))
	if err != nil {
		return nil, named("workers", err)
	}
	var out []storage.Worker
	for _, r := range found {
		if r.SeenMs == nil {
			// A heartbeat that was sent twice, for lack of an answer, has two expiry times. Between
			// them a read that meets both finds only the key: at equal write timestamps the expired
			// cell wins in each column.
			continue
		}
		out = append(out, storage.Worker{ID: r.ID, Host: r.Host, StartedMs: r.StartedMs, SeenMs: *r.SeenMs, Aggregates: r.Aggregates})
	}
	return out, nil
}
