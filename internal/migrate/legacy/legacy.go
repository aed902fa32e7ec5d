// Package legacy reads a keyspace of RHQ, from whose schema Quern's descends. Only the migration and its command use it.
package legacy

import (
	"context"
	"iter"
	"time"
)

// Level is a table of roll-ups.
type Level int

// The roll-ups, finest first.
const (
	OneHour Level = iota
	SixHours
	day
)

// Levels lists all levels.
var Levels = []Level{OneHour, SixHours, day}

// Table returns the name of the level's table.
func (l Level) Table() string {
	return [...]string{"one_hour_metrics", "six_hour_metrics", "twenty_four_hour_metrics"}[l]
}

// Width returns the time span of a row of the level.
func (l Level) Width() time.Duration {
	return [...]time.Duration{time.Hour, 6 * time.Hour, 24 * time.Hour}[l]
}

// The tables besides the roll-ups.
const (
	RawTable   = "raw_metrics"
	IndexTable = "metrics_index"
)

// Tables returns the names of all tables of an RHQ keyspace.
func Tables() []string {
	return []string{RawTable, OneHour.Table(), SixHours.Table(), day.Table(), IndexTable}
}

// Kind says which value of a roll-up a row holds: the column type, in the order of RHQ's
// AggregateType.
type Kind int

// The kinds.
const (
	Max Kind = iota
	Min
	Avg
)

// Sample is a row of raw_metrics. Value is nil if it has none.
type Sample struct {
	TimeMs int64    `db:"time"`
	Value  *float64 `db:"value"`
}

// Value is a row of a roll-up table, nil as in Sample. Three of them make a roll-up.
type Value struct {
	TimeMs int64    `db:"time"`
	Kind   Kind     `db:"type"`
	Value  *float64 `db:"value"`
}

// Reader reads an RHQ keyspace, page by page.
type Reader interface {
	// Schedules yields the schedules with rows in a table, in no order.
	Schedules(ctx context.Context, table string) iter.Seq2[int32, error]
	// Samples yields the raw rows of a schedule by time.
	Samples(ctx context.Context, schedule int32) iter.Seq2[Sample, error]
	// Values yields the rows of a schedule's roll-ups by time, then kind.
	Values(ctx context.Context, level Level, schedule int32) iter.Seq2[Value, error]
}
