// Package metric holds the nouns that every other package speaks of: series and
// their labels, schedule ids, samples, roll-up values, and the ladder of buckets
// with its time slices. It is a leaf: it imports nothing else of Quern.
//
// Times are Unix milliseconds (the suffix Ms), always UTC. Every interval in
// Quern is half open: [start, end).
package metric

import "math"

// ScheduleID names one schedule: one metric of one source, a series in
// Prometheus' terms. Ids are dense integers from 0 up, and the ids of one source
// lie close together, so that a report touches few blocks.
type ScheduleID int64

// Sample is one measurement of one schedule.
type Sample struct {
	Schedule ScheduleID
	TimeMs   int64
	Value    float64
}

// tombstone are the bits of a quiet NaN with a payload of its own: neither the NaN that arithmetic makes
// (0x7ff8000000000001 in Go) nor Prometheus' stale marker (0x7ff0000000000002).
const tombstone = 0x7ff80000_51554552

// Tombstone is the value of a sample that takes back another: the one of the same schedule and time that was
// written before. Whoever shows samples leaves it out. It is a NaN, so that whoever computes leaves it out as any other.
func Tombstone() float64 { return math.Float64frombits(tombstone) }

// IsTombstone says whether v is Tombstone.
func IsTombstone(v float64) bool { return math.Float64bits(v) == tombstone }

// CompareSamples orders samples by schedule, then time: the order in which a
// chunk holds them.
func CompareSamples(a, b Sample) int {
	switch {
	case a.Schedule < b.Schedule:
		return -1
	case a.Schedule > b.Schedule:
		return 1
	case a.TimeMs < b.TimeMs:
		return -1
	case a.TimeMs > b.TimeMs:
		return 1
	}
	return 0
}

// Rollup is what one slice of one schedule is ground into.
//
// Only finite samples count: NaN and the infinities stay in the raw data and are
// left out of every field here. The zero Rollup, with Count 0, stands for "no
// data"; it is stored only to take back a row whose samples have all been overwritten, or, partial, to say
// that there may have been some.
type Rollup struct {
	// Count is the number of samples.
	Count uint64
	// Sum is the sum of the values, added up in time order level by level, so that
	// the average of any level, Sum/Count, is the exact one and no mean of means.
	Sum float64
	Min float64
	Max float64
	// First and Last are the earliest and the latest value by time.
	First float64
	Last  float64
	// Increase is the growth of a counter over the slice, from its first to its
	// last sample: the sum of the steps between neighbouring samples, where a step
	// down is a reset and counts as the value after it. Merging two neighbouring
	// slices adds the step between them.
	Increase float64
	// Sketch is a DDSketch of the values in the encoding of internal/sketch,
	// mergeable, from which percentiles are read. Empty only when Count is 0.
	Sketch []byte
	// Partial says that samples may be missing: of the row, or of one that it is made of, raw chunks were damaged when it
	// was last ground, or the input has expired before it could be.
	Partial bool
}

// Avg is the mean of the values, NaN when there are none.
func (r *Rollup) Avg() float64 { return r.Sum / float64(r.Count) }

// RollupRow is one stored row of a roll-up table: the values of one schedule over
// the slice that starts at TimeMs.
type RollupRow struct {
	Schedule ScheduleID
	TimeMs   int64
	// Damaged says that a row is stored and cannot be read. It has no values then.
	Damaged bool
	Rollup
}
