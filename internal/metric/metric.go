// Package metric defines the nouns that every other package uses: series and their labels, schedule
// ids, samples, roll-up values, and the ladder of buckets with its time slices. It imports nothing
// else of Quern.
//
// Times are Unix milliseconds (the suffix Ms), always UTC. Every interval in Quern is half open:
// [start, end).
package metric

import "math"

// ScheduleID identifies one schedule: one metric of one source, a series in Prometheus' terms. Ids
// are dense integers from 0 up. The ids of one source lie close together, so that a report touches
// few blocks.
type ScheduleID int64

// MaxScheduleID is the greatest id of a series: processes keep ids in 32 bits, of which one value is for none. Ids are
// dense, so memory for more would be the least problem.
const MaxScheduleID = math.MaxUint32 - 1

// Sample is one measurement of one schedule.
type Sample struct {
	Schedule ScheduleID
	TimeMs   int64
	Value    float64
}

// tombstone holds the bits of a quiet NaN with a payload of its own. It differs from the NaN that
// arithmetic makes (0x7ff8000000000001 in Go) and from Prometheus' stale marker
// (0x7ff0000000000002).
const tombstone = 0x7ff80000_51554552

// Tombstone returns the value of a sample that takes back another: the earlier sample with the same
// schedule and time. Code that shows samples leaves a tombstone out. Since it is a NaN, code that
// computes leaves it out as it does any NaN.
func Tombstone() float64 { return math.Float64frombits(tombstone) }

// IsTombstone reports whether v is Tombstone.
func IsTombstone(v float64) bool { return math.Float64bits(v) == tombstone }

// staleMarker holds the bits with which Prometheus ends a series.
const staleMarker = 0x7ff0000000000002

// IsMarker reports whether v measures nothing: it is a tombstone, or Prometheus' stale marker.
func IsMarker(v float64) bool { return IsTombstone(v) || math.Float64bits(v) == staleMarker }

// CompareSamples orders samples by schedule, then time. A chunk holds its samples in this order.
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

// Rollup holds the values into which one slice of one schedule is ground.
//
// Only finite samples count: NaN and the infinities stay in the raw data and are left out of every
// field here but NonFinite. The zero Rollup, with Count 0, means "no data". It is stored in three cases
// only: to take back a row whose samples have all been overwritten; with Partial set, to say that there
// may have been samples; with NonFinite set, to say that none was finite.
type Rollup struct {
	// Count is the number of samples.
	Count uint64
	// Sum is the sum of the values, added in time order level by level. So the average of any
	// level, Sum/Count, is exact and not a mean of means.
	Sum float64
	Min float64
	Max float64
	// First and Last are the values of the earliest and the latest sample.
	First float64
	Last  float64
	// FirstMs and LastMs are the times of these samples, 0 without samples.
	FirstMs int64
	LastMs  int64
	// Increase is the growth of a counter over the slice, from its first to its last sample. It is
	// the sum of the steps between neighbouring samples; a step down is a reset and counts as the
	// value after it. A merge of two neighbouring slices adds the step between them.
	Increase float64
	// Sketch is a DDSketch of the values in the encoding of internal/blocks/sketch. It can be merged, and
	// percentiles are computed from it. It is empty only when Count is 0.
	Sketch []byte
	// Partial says that samples may be missing, in this row or in a row that it was computed from:
	// raw chunks were damaged when the row was last ground, or the input expired before the row
	// could be ground.
	Partial bool
	// NonFinite says that the slice also has samples that are left out, NaN or infinite. Markers do not count; see IsMarker.
	NonFinite bool
}

// Avg returns the mean of the values, NaN when there are none.
func (r *Rollup) Avg() float64 { return r.Sum / float64(r.Count) }

// RollupRow is one stored row of a roll-up table: the values of one schedule over
// the slice that starts at TimeMs.
type RollupRow struct {
	Schedule ScheduleID
	TimeMs   int64
	// Damaged says that the row is stored but cannot be decoded. Such a row has no values.
	Damaged bool
	Rollup
}
