package cassandra

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/schema"
)

const (
	cqlListRaw = `SELECT DISTINCT start_schedule_id, day AS period FROM raw_metrics`
	cqlReadRaw = `SELECT time_slice, chunk_id, data FROM raw_metrics WHERE start_schedule_id = ? AND day = ? AND time_slice >= ? AND time_slice < ?`
)

type rawRow struct {
	SliceMs int64      `db:"time_slice"`
	ID      gocql.UUID `db:"chunk_id"`
	Data    []byte     `db:"data"`
}

// RawChunks implements storage.Reader.
func (s *Store) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		parts, err := s.partitions(ctx, listing{cqlList: cqlListRaw, groupSize: s.groupSize, periodMs: dayMs}, ids, fromMs, toMs)
		if err == nil {
			err = convert(ctx, ctx.Err())
		}
		if err != nil {
			yield(storage.RawChunk{}, named("raw chunks", err))
			return
		}
		for page, err := range spread(ctx, parts, 0, func(ctx context.Context, p partition) iter.Seq2[rawPage, error] {
			return s.rawPages(ctx, p, fromMs, toMs)
		}) {
			if err != nil {
				yield(storage.RawChunk{}, named("raw chunks", err))
				return
			}
			for _, r := range page.rows {
				if !yield(storage.RawChunk{
					Group: metric.ScheduleID(page.Group), SliceMs: r.SliceMs,
					Chunk: storage.Chunk{ID: blocks.ID(r.ID), Data: r.Data},
				}, nil) {
					return
				}
			}
		}
	}
}

// rawPage is a page of raw chunks of one partition.
type rawPage struct {
	partition

	rows []rawRow
}

const (
	// firstRows are enough for the packed chunks of a day.
	firstRows = 32
	// pageBytes is about what a page of raw chunks has. A chunk has from 200 bytes, of a flush, to 8 MB, so no number of rows is right
	// for all: each page costs a server as much as hundreds of small chunks, and readAhead pages are in memory at once.
	pageBytes = 1 << 20
)

// rawPages reads the raw chunks of a partition. The first page has few rows; those after it have as many as the rows before them lead to
// expect in pageBytes.
func (s *Store) rawPages(ctx context.Context, p partition, fromMs, toMs int64) iter.Seq2[rawPage, error] {
	return func(yield func(rawPage, error) bool) {
		limit := min(firstRows, rowsIn(pageBytes, s.rawBytes.Load()))
		for rows, err := range paged[rawRow](ctx, s.session, func() int { return limit }, stmt(cqlReadRaw, p.Group, p.PeriodMs, fromMs, toMs)) {
			if len(rows) > 0 {
				each := int64(0)
				for i := range rows {
					each += int64(len(rows[i].Data))
				}
				each /= int64(len(rows))
				s.rawBytes.Store(max(each, s.rawBytes.Load()))
				limit = rowsIn(pageBytes, each)
			}
			if !yield(rawPage{p, rows}, err) || err != nil {
				return
			}
		}
	}
}

// rowsIn returns how many rows of so many bytes are in a page.
func rowsIn(page, each int64) int { return int(max(1, min(manyRows, page/max(1, each)))) }

// The statements of the roll-up tables. %s stands for the name of the table.
const (
	cqlListRollups  = `SELECT DISTINCT start_schedule_id, period FROM %s`
	cqlWriteRollup  = `INSERT INTO %s (start_schedule_id, period, schedule_id, time, count, sum, min, max, first, last, first_time, last_time, increase, sketch, partial, non_finite) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	cqlReadRollups  = `SELECT schedule_id, time, count, sum, min, max, first, last, first_time, last_time, increase, sketch, partial, non_finite FROM %s WHERE start_schedule_id = ? AND period = ? AND schedule_id `
	cqlOneSchedule  = cqlReadRollups + `= ? AND time >= ? AND time < ?`
	cqlManySchedule = cqlReadRollups + `>= ? AND schedule_id < ? AND time >= ? AND time < ? ALLOW FILTERING` // within one partition
)

// periodRows is how many rows of a schedule lie in one partition of a roll-up table.
const periodRows = 128

func tableOf(l metric.Ladder, b metric.Bucket) string {
	if b == metric.Raw {
		return ""
	}
	return schema.TableOf(l.Name(b))
}

func (s *Store) on(level metric.Bucket, cql string) string {
	return strings.Replace(cql, "%s", s.tables[level], 1)
}

func (s *Store) checkLevel(level metric.Bucket) error {
	if level <= metric.Raw || level > s.ladder.Top() {
		return fmt.Errorf("bucket %d is not a roll-up of %s", level, s.ladder)
	}
	return nil
}

func (s *Store) periodMs(level metric.Bucket) int64 { return periodRows * s.ladder.WidthMs(level) }

// WriteRollups implements storage.Runs.
func (s *Store) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	const op = "write roll-ups"
	if err := s.checkLevel(level); err != nil {
		return named(op, err)
	}
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	cql := s.on(level, cqlWriteRollup)
	keep := ttl(s.policy().Retention.Duration(level))
	byPartition := make(map[partition][]statement)
	for i := range rows {
		r := &rows[i]
		p := partition{int64(blocks.BlockAt(r.Schedule, s.groupSize).Start), metric.AlignDown(r.TimeMs, s.periodMs(level))}
		// Copied: the caller reuses its memory, and a beaten attempt may still be ending.
		sketch := append([]byte{}, r.Sketch...)
		byPartition[p] = append(byPartition[p], stmt(cql, p.Group, p.PeriodMs, int64(r.Schedule), r.TimeMs,
			int64(r.Count), r.Sum, r.Min, r.Max, r.First, r.Last, r.FirstMs, r.LastMs, r.Increase, sketch, r.Partial, r.NonFinite, keep))
	}
	var batches [][]statement
	for _, stmts := range byPartition {
		batches = append(batches, cut(stmts)...)
	}
	tsUs, err := s.timestamp(ctx, f)
	if err != nil {
		return named(op, err)
	}
	return named(op, each(ctx, len(batches), maxSpread, func(ctx context.Context, i int) error {
		return s.session.exec(ctx, tsUs, batches[i]...)
	}))
}

type rollupRow struct {
	Schedule  int64   `db:"schedule_id"`
	TimeMs    int64   `db:"time"`
	Count     int64   `db:"count"`
	Sum       float64 `db:"sum"`
	Min       float64 `db:"min"`
	Max       float64 `db:"max"`
	First     float64 `db:"first"`
	Last      float64 `db:"last"`
	FirstMs   int64   `db:"first_time"`
	LastMs    int64   `db:"last_time"`
	Increase  float64 `db:"increase"`
	Sketch    []byte  `db:"sketch"`
	Partial   bool    `db:"partial"`
	NonFinite bool    `db:"non_finite"`
}

func (r *rollupRow) row() metric.RollupRow {
	row := metric.RollupRow{Schedule: metric.ScheduleID(r.Schedule), TimeMs: r.TimeMs, Rollup: metric.Rollup{
		Count: uint64(r.Count), Sum: r.Sum, Min: r.Min, Max: r.Max, First: r.First, Last: r.Last,
		FirstMs: r.FirstMs, LastMs: r.LastMs, Increase: r.Increase, Partial: r.Partial, NonFinite: r.NonFinite,
	}}
	if len(r.Sketch) > 0 {
		row.Sketch = r.Sketch
	}
	return row
}

// Rollups implements storage.Reader. A schedule's rows of one period lie side by side. For several
// schedules the servers filter the rows by time.
func (s *Store) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	const op = "roll-ups"
	return func(yield func(metric.RollupRow, error) bool) {
		err := s.checkLevel(level)
		var parts []partition
		if err == nil {
			parts, err = s.partitions(ctx, listing{
				cqlList: s.on(level, cqlListRollups), groupSize: s.groupSize, periodMs: s.periodMs(level),
			}, ids, fromMs, toMs)
		}
		if err == nil {
			err = convert(ctx, ctx.Err())
		}
		if err != nil {
			yield(metric.RollupRow{}, named(op, err))
			return
		}
		read := func(p partition) statement {
			return stmt(s.on(level, cqlManySchedule), p.Group, p.PeriodMs, int64(ids.Start), int64(ids.End), fromMs, toMs)
		}
		if ids.Len() == 1 {
			read = func(p partition) statement {
				return stmt(s.on(level, cqlOneSchedule), p.Group, p.PeriodMs, int64(ids.Start), fromMs, toMs)
			}
		}
		for r, err := range spread(ctx, parts, aheadRows, func(ctx context.Context, p partition) iter.Seq2[rollupRow, error] {
			return rows[rollupRow](ctx, s.session, manyRows, read(p))
		}) {
			if err != nil {
				yield(metric.RollupRow{}, named(op, err))
				return
			}
			if !yield(r.row(), nil) {
				return
			}
		}
	}
}
