package cassandra

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/legacy"
)

const (
	// %s stands for the name of the table.
	cqlLegacySchedules = `SELECT DISTINCT schedule_id FROM %s`

	cqlLegacySamples   = `SELECT time, value FROM %s WHERE schedule_id = ?`
	cqlLegacyValues    = `SELECT time, type, value FROM %s WHERE schedule_id = ?`
	cqlLegacyWaiting   = `SELECT DISTINCT bucket, time FROM %s`
	cqlLegacyWaitingOf = `SELECT schedule_id FROM %s WHERE bucket = ? AND time = ? AND schedule_id IN ?`
)

// Legacy reads a keyspace of RHQ's. Its servers may be older than those that Quern's own tables
// need.
type Legacy struct {
	session  *driver
	keyspace string
}

var _ legacy.Reader = (*Legacy)(nil)

// OpenLegacy connects to the keyspace in opts. It refuses a keyspace whose tables are not RHQ's.
func OpenLegacy(ctx context.Context, opts Options) (*Legacy, error) {
	opts.ensureDefaults()
	opts.Timeout = max(opts.Timeout, ddlTimeout) // Drop needs it, and nobody waits for a copy
	config, err := clusterConfig(&opts)
	if err != nil {
		return nil, err
	}
	config.ProtoVersion = 0 // the newest that the servers know
	// The session has no keyspace: for a missing keyspace gocql reports that no server answers.
	balance := gocql.RoundRobinHostPolicy()
	if opts.LocalDC != "" {
		balance = localOnly{gocql.DCAwareRoundRobinPolicy(opts.LocalDC)}
	}
	config.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(balance)
	s, err := createSession(ctx, &opts, config)
	if err != nil {
		return nil, err
	}
	l := &Legacy{session: s, keyspace: opts.Keyspace}
	if err := l.check(ctx, &opts); err != nil {
		s.close()
		return nil, err
	}
	return l, nil
}

// check selects RHQ's columns, since some of Quern's own tables have the same names.
func (l *Legacy) check(ctx context.Context, o *Options) error {
	_, err := all[legacyRawRow](ctx, l.session, stmt(l.in(legacy.RawTable, cqlLegacySamples)+" LIMIT 1", int32(0)))
	if err == nil {
		_, err = all[legacySchedule](ctx, l.session, stmt(l.in(legacy.IndexTable, cqlLegacyWaitingOf), "", int64(0), []int32{0}))
	}
	for _, level := range legacy.Levels {
		if err == nil {
			_, err = all[legacyRow](ctx, l.session, stmt(l.in(level.Table(), cqlLegacyValues)+" LIMIT 1", int32(0)))
		}
	}
	if isMissingTable(err) {
		return fmt.Errorf("%w (%w)", noLegacy(o), err)
	}
	return err
}

func noLegacy(o *Options) error {
	return refuse("keyspace %q lacks the tables of RHQ (%s): check --from-keyspace and --from-hosts",
		o.Keyspace, strings.Join(legacy.Tables(), ", "))
}

// in puts the name of the table into a statement.
func (l *Legacy) in(table, cql string) string {
	return strings.Replace(cql, "%s", fmt.Sprintf("%q.%s", l.keyspace, table), 1)
}

// Close closes the connections.
func (l *Legacy) Close() { l.session.close() }

type legacySchedule struct {
	ID int32 `db:"schedule_id"`
}

// Schedules implements legacy.Reader.
func (l *Legacy) Schedules(ctx context.Context, table string) iter.Seq2[int32, error] {
	if !slices.Contains(legacy.Tables(), table) {
		return failed[int32](fmt.Errorf("%q is not a table of RHQ", table))
	}
	return func(yield func(int32, error) bool) {
		for r, err := range rows[legacySchedule](ctx, l.session, manyRows, stmt(l.in(table, cqlLegacySchedules))) {
			if !yield(r.ID, named("schedules of "+table, err)) || err != nil {
				return
			}
		}
	}
}

type legacyRow struct {
	TimeMs int64    `db:"time"`
	Kind   int      `db:"type"`
	Value  *float64 `db:"value"`
}

type legacyRawRow struct {
	TimeMs int64    `db:"time"`
	Value  *float64 `db:"value"`
}

// legacyPage is how many rows are read at a time. A copy of a block holds one page for each
// schedule.
const legacyPage = 1000

// Samples implements legacy.Reader.
func (l *Legacy) Samples(ctx context.Context, schedule int32) iter.Seq2[legacy.Sample, error] {
	return func(yield func(legacy.Sample, error) bool) {
		for r, err := range rows[legacyRawRow](ctx, l.session, legacyPage, stmt(l.in(legacy.RawTable, cqlLegacySamples), schedule)) {
			s := legacy.Sample{TimeMs: r.TimeMs, Null: r.Value == nil}
			if r.Value != nil {
				s.Value = *r.Value
			}
			if !yield(s, named(legacy.RawTable, err)) || err != nil {
				return
			}
		}
	}
}

// Values implements legacy.Reader.
func (l *Legacy) Values(ctx context.Context, level legacy.Level, schedule int32) iter.Seq2[legacy.Value, error] {
	return func(yield func(legacy.Value, error) bool) {
		for r, err := range rows[legacyRow](ctx, l.session, manyRows, stmt(l.in(level.Table(), cqlLegacyValues), schedule)) {
			v := legacy.Value{TimeMs: r.TimeMs, Kind: legacy.Kind(r.Kind), Null: r.Value == nil}
			if r.Value != nil {
				v.Value = *r.Value
			}
			if !yield(v, named(level.Table(), err)) || err != nil {
				return
			}
		}
	}
}

// Waiting implements legacy.Reader.
func (l *Legacy) Waiting(ctx context.Context) ([]legacy.Waiting, error) {
	type key struct {
		Bucket string `db:"bucket"`
		TimeMs int64  `db:"time"`
	}
	found, err := all[key](ctx, l.session, stmt(l.in(legacy.IndexTable, cqlLegacyWaiting)))
	if err != nil {
		return nil, named(legacy.IndexTable, err)
	}
	var out []legacy.Waiting
	for _, k := range found {
		for _, level := range legacy.Levels {
			if level.Table() == k.Bucket {
				out = append(out, legacy.Waiting{Level: level, TimeMs: k.TimeMs})
			}
		}
	}
	return out, nil
}

// WaitingOf implements legacy.Reader.
func (l *Legacy) WaitingOf(ctx context.Context, w legacy.Waiting, schedules []int32) ([]int32, error) {
	found, err := all[legacySchedule](ctx, l.session, stmt(l.in(legacy.IndexTable, cqlLegacyWaitingOf), w.Level.Table(), w.TimeMs, schedules))
	if err != nil {
		return nil, named(legacy.IndexTable, err)
	}
	out := make([]int32, len(found))
	for i, r := range found {
		out[i] = r.ID
	}
	return out, nil
}

// Drop drops the five tables, one after the other.
func (l *Legacy) Drop(ctx context.Context) error {
	for _, table := range legacy.Tables() {
		if err := ddl(ctx, l.session, l.in(table, "DROP TABLE IF EXISTS %s")); err != nil {
			return fmt.Errorf("drop table %s of keyspace %s: %w", table, l.keyspace, err)
		}
	}
	return nil
}
