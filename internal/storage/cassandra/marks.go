package cassandra

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlReadMarks  = `SELECT start_schedule_id, time, mark_id, kind, chunks, schedule_ids, due, attempt, last_error FROM metrics_cache_index WHERE bucket = ? AND time_slice = ? AND partition = ? AND (start_schedule_id, time, mark_id) >= (?, ?, ?) AND (start_schedule_id, time) < (?, ?)`
	cqlDeleteMark = `DELETE FROM metrics_cache_index WHERE bucket = ? AND time_slice = ? AND partition = ? AND start_schedule_id = ? AND time = ? AND mark_id = ?`
)

type markRow struct {
	Start     int64      `db:"start_schedule_id"`
	TimeMs    int64      `db:"time"`
	ID        gocql.UUID `db:"mark_id"`
	Kind      int        `db:"kind"`
	Chunks    int        `db:"chunks"`
	Schedules []byte     `db:"schedule_ids"`
	DueMs     int64      `db:"due"`
	Attempt   int        `db:"attempt"`
	LastError string     `db:"last_error"`
}

func (r *markRow) key() storage.MarkKey {
	return storage.MarkKey{Start: metric.ScheduleID(r.Start), TimeMs: r.TimeMs, ID: blocks.ID(r.ID)}
}

func (r *markRow) mark() storage.Mark {
	m := storage.Mark{
		Start: metric.ScheduleID(r.Start), TimeMs: r.TimeMs, ID: blocks.ID(r.ID),
		Kind: storage.MarkKind(r.Kind), Chunks: r.Chunks,
		DueMs: r.DueMs, Attempt: r.Attempt, LastError: r.LastError,
	}
	var err error
	if len(r.Schedules) > 0 {
		m.Schedules, err = blocks.DecodeIDs(r.Schedules)
	}
	if err != nil || r.Kind < 0 || r.Kind > int(storage.MarkTakeBack) {
		return storage.DamagedMark(m.Key())
	}
	return m
}

// Marks implements storage.Runs.
func (s *Store) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	in, pageRows := allMarks, manyRows
	if from != (storage.MarkKey{}) {
		in.from = from
	}
	if most > 0 {
		pageRows = min(most, manyRows) // the server stops there
	}
	return func(yield func(storage.Mark, error) bool) {
		for r, err := range s.markRows(ctx, p, in, pageRows) {
			if err == nil {
				err = convert(ctx, ctx.Err())
			}
			if err != nil {
				yield(storage.Mark{}, named("marks", err))
				return
			}
			if !yield(r.mark(), nil) {
				return
			}
		}
	}
}

// markSpan is a range of mark keys: from key from up to the first key of block end at time endMs,
// exclusive. If endMs is not math.MinInt64, the span lies in one block: from.Start == end.
type markSpan struct {
	from  storage.MarkKey
	end   metric.ScheduleID
	endMs int64
}

// allMarks is the span from the least possible key to the greatest.
var allMarks = markSpan{storage.MarkKey{Start: math.MinInt64, TimeMs: math.MinInt64}, math.MaxInt64, math.MinInt64}

// cut returns where to split a span in two: between two blocks, or between two times of its only
// block. It first tries the bounds of what should exist: blocks in [0, leased), times in [0,
// untilMs). ok is false if there is nothing to split.
func (sp *markSpan) cut(leased metric.ScheduleID, untilMs int64) (start metric.ScheduleID, ms int64, ok bool) {
	from, end := sp.from.Start, sp.end
	switch {
	case from < 0 && end > 0:
		return 0, math.MinInt64, true
	case from < leased && leased < end:
		return leased, math.MinInt64, true
	case from >= 0 && end-from >= 2:
		return from + (end-from)/2, math.MinInt64, true
	}
	fromMs, endMs := sp.from.TimeMs, sp.endMs
	if sp.end > from {
		endMs = math.MaxInt64
	}
	switch {
	case fromMs < 0 && endMs > 0:
		return from, 0, true
	case fromMs < untilMs && untilMs < endMs:
		return from, untilMs, true
	case endMs-fromMs >= 2:
		return from, fromMs + (endMs-fromMs)/2, true
	}
	return 0, 0, false
}

// markRows yields the rows of a span of an index partition in order. A run leaves a tombstone for
// each mark that it has ground, and a server gives up a read that meets too many
// (tombstone_failure_threshold). Then markRows splits the span in two and reads each part, which it
// may split again. So no number of tombstones makes the index unreadable.
func (s *Store) markRows(ctx context.Context, p storage.IndexPartition, in markSpan, pageRows int) iter.Seq2[markRow, error] {
	return func(yield func(markRow, error) bool) {
		var ids blocks.Range // read when the first span is split
		todo := []markSpan{in}
		for len(todo) > 0 {
			sp := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			last, read := sp.from, false
			for r, err := range rows[markRow](ctx, s.session, pageRows, stmt(cqlReadMarks, int(p.Bucket), p.StartMs, p.Shard,
				int64(sp.from.Start), sp.from.TimeMs, gocql.UUID(sp.from.ID), int64(sp.end), sp.endMs)) {
				if err == nil {
					last, read = r.key(), true
					if !yield(r, nil) {
						return
					}
					continue
				}
				if !manyTombstones(err) {
					yield(markRow{}, err)
					return
				}
				if ids.End == 0 {
					var lerr error
					if ids, lerr = s.LeasedIDs(ctx); lerr != nil {
						yield(markRow{}, errors.Join(err, lerr))
						return
					}
				}
				if read {
					sp.from = after(last)
				}
				start, ms, ok := sp.cut(ids.End, p.StartMs+1)
				if !ok {
					yield(markRow{}, err)
					return
				}
				todo = append(todo,
					markSpan{storage.MarkKey{Start: start, TimeMs: ms}, sp.end, sp.endMs},
					markSpan{sp.from, start, ms})
				break
			}
		}
	}
}

// after is the key right after k.
func after(k storage.MarkKey) storage.MarkKey {
	for i := len(k.ID) - 1; i >= 0; i-- {
		if k.ID[i]++; k.ID[i] != 0 {
			break
		}
	}
	return k
}

// manyTombstones says whether a server gave up a read because it met too many tombstones. The
// protocol has no code for it, only a message.
func manyTombstones(err error) bool {
	var frame gocql.RequestError
	return errors.As(err, &frame) && frame.Code() == gocql.ErrCodeReadFailure && strings.Contains(strings.ToLower(frame.Message()), "tombstone")
}

// DeleteMarks implements storage.Runs.
func (s *Store) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	const op = "delete marks"
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	stmts := make([]statement, len(marks))
	for i := range marks {
		m := &marks[i]
		stmts[i] = stmt(cqlDeleteMark, int(p.Bucket), p.StartMs, p.Shard, int64(m.Start), m.TimeMs, gocql.UUID(m.ID))
	}
	batches := cut(stmts)
	tsUs, err := s.timestamp(ctx, f)
	if err != nil {
		return named(op, err)
	}
	return named(op, each(ctx, len(batches), maxSpread, func(ctx context.Context, i int) error {
		return s.session.exec(ctx, tsUs, batches[i]...)
	}))
}
