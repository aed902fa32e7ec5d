package legacy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

const (
	// %s stands for the name of the table.
	cqlSchedules = `SELECT DISTINCT schedule_id FROM %s`

	cqlSamples = `SELECT time, value FROM %s WHERE schedule_id = ?`
	cqlValues  = `SELECT time, type, value FROM %s WHERE schedule_id = ?`
	cqlIndex   = `SELECT schedule_id FROM %s WHERE bucket = ? AND time = ?`
)

// Rows per page. A copy of a block holds one page of samples for each schedule.
const (
	manyRows   = 5000
	sampleRows = 1000
)

// Keyspace reads a keyspace of RHQ's.
type Keyspace struct {
	session *cassandra.Session
	name    string
}

var _ Reader = (*Keyspace)(nil)

// Open connects to the keyspace in opts. It refuses a keyspace whose tables are not RHQ's.
func Open(ctx context.Context, opts cassandra.Options) (*Keyspace, error) {
	s, err := cassandra.Connect(ctx, opts)
	if err != nil {
		return nil, err
	}
	k := &Keyspace{session: s, name: opts.Keyspace}
	if err := k.check(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return k, nil
}

// check selects RHQ's columns, since some of Quern's own tables have the same names.
func (k *Keyspace) check(ctx context.Context) error {
	err := cmp.Or(
		readable[Sample](ctx, k, RawTable, cqlSamples, int32(0)),
		readable[scheduleRow](ctx, k, IndexTable, cqlIndex, "", int64(0)),
	)
	for _, level := range Levels {
		err = cmp.Or(err, readable[Value](ctx, k, level.Table(), cqlValues, int32(0)))
	}
	if errors.Is(err, storage.ErrRefused) {
		return fmt.Errorf("keyspace %q lacks the tables of RHQ (%s): check --from-keyspace and --from-hosts (%w)",
			k.name, strings.Join(Tables(), ", "), err)
	}
	return err
}

// in puts the name of the table into a statement.
func (k *Keyspace) in(table, cql string) string {
	return strings.Replace(cql, "%s", fmt.Sprintf("%q.%s", k.name, table), 1)
}

// rows yields what a query of a table finds. Errors name the table.
func rows[R any](ctx context.Context, k *Keyspace, pageRows int, table, cql string, args ...any) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		for r, err := range cassandra.Select[R](ctx, k.session, pageRows, k.in(table, cql), args...) {
			if err != nil && !errors.Is(err, context.Canceled) {
				err = fmt.Errorf("%s: %w", table, err)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// readable returns an error unless a table has the columns of a query.
func readable[R any](ctx context.Context, k *Keyspace, table, cql string, args ...any) error {
	for _, err := range rows[R](ctx, k, 1, table, cql+" LIMIT 1", args...) {
		return err
	}
	return nil
}

// Close closes the connections.
func (k *Keyspace) Close() { k.session.Close() }

type scheduleRow struct {
	ID int32 `db:"schedule_id"`
}

// Schedules implements Reader.
func (k *Keyspace) Schedules(ctx context.Context, table string) iter.Seq2[int32, error] {
	return func(yield func(int32, error) bool) {
		for r, err := range rows[scheduleRow](ctx, k, manyRows, table, cqlSchedules) {
			if !yield(r.ID, err) {
				return
			}
		}
	}
}

// Samples implements Reader.
func (k *Keyspace) Samples(ctx context.Context, schedule int32) iter.Seq2[Sample, error] {
	return rows[Sample](ctx, k, sampleRows, RawTable, cqlSamples, schedule)
}

// Values implements Reader.
func (k *Keyspace) Values(ctx context.Context, level Level, schedule int32) iter.Seq2[Value, error] {
	return rows[Value](ctx, k, manyRows, level.Table(), cqlValues, schedule)
}

// Drop drops the five tables, one after the other.
func (k *Keyspace) Drop(ctx context.Context) error {
	for _, table := range Tables() {
		if err := k.session.Exec(ctx, k.in(table, "DROP TABLE IF EXISTS %s")); err != nil {
			return fmt.Errorf("drop table %s of keyspace %s: %w", table, k.name, err)
		}
	}
	return nil
}
