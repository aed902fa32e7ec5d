// Package legacy is the nouns of the schema that Quern's descends from, that of RHQ: its
// tables and what their rows hold. It is what reads such a keyspace and what copies it have in common.
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
	Day
)

// Levels are all of them.
var Levels = []Level{OneHour, SixHours, Day}

// Table is the name of the level's table, by which the index calls it too.
func (l Level) Table() string {
	return [...]string{"one_hour_metrics", "six_hour_metrics", "twenty_four_hour_metrics"}[l]
}

// Width is the time that a row of the level stands for.
func (l Level) Width() time.Duration {
	return [...]time.Duration{time.Hour, 6 * time.Hour, 24 * time.Hour}[l]
}

// The tables beside the roll-ups.
const (
	RawTable   = "raw_metrics"
	IndexTable = "metrics_index"
)

// Tables are all that a keyspace of RHQ's has.
func Tables() []string {
	return []string{RawTable, OneHour.Table(), SixHours.Table(), Day.Table(), IndexTable}
}

// Kind is which value of a roll-up a row holds: the column type, in the order of RHQ's AggregateType.
type Kind int

// The kinds.
const (
	Max Kind = iota
	Min
	Avg
)

// Sample is a row of raw_metrics.
type Sample struct {
	TimeMs int64
	Value  float64
	// Null says that there is no value.
	Null bool
}

// Value is a row of a roll-up table: one of the three that make a roll-up.
type Value struct {
	TimeMs int64
	Kind   Kind
	Value  float64
	// Null says that there is no value.
	Null bool
}

// Waiting is a partition of metrics_index: finer data of schedules, in the slice of the
// level that starts at TimeMs, that has yet to be aggregated into that level.
type Waiting struct {
	Level  Level
	TimeMs int64
}

// Reader reads such a keyspace, page by page.
type Reader interface {
	// Schedules yields the schedules that a table has rows of, in no order.
	Schedules(ctx context.Context, table string) iter.Seq2[int32, error]
	// Samples yields the raw rows of a schedule by time.
	Samples(ctx context.Context, schedule int32) iter.Seq2[Sample, error]
	// Values yields the rows of a schedule's roll-ups by time, then kind.
	Values(ctx context.Context, level Level, schedule int32) iter.Seq2[Value, error]
	// Waiting are the partitions of the index; one of a name that is no level's is left out.
	Waiting(ctx context.Context) ([]Waiting, error)
	// WaitingOf are those of the schedules that an index partition has.
	WaitingOf(ctx context.Context, w Waiting, schedules []int32) ([]int32, error)
}
