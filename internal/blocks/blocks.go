// Package blocks holds the basis of Quern: the partition block, a range of schedules that is
// written, read, retried, leased and deleted as one. It contains the arithmetic of blocks, the
// epochs of the partition block size (PBS), the ids that order writes, and the chunk codecs. It
// does no I/O.
//
// Samples have two encodings: ingest writes the one of chunk.go; at rest, Packer.Pack (packed.go) takes that or columns,
// whichever is shorter. merge.go decodes both.
package blocks

import (
	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/metric"
)

// Range is the schedules [Start, End).
type Range struct {
	Start metric.ScheduleID
	End   metric.ScheduleID
}

// Contains reports whether id lies in the range.
func (r Range) Contains(id metric.ScheduleID) bool { return r.Start <= id && id < r.End }

// Len returns the number of schedules in the range.
func (r Range) Len() int { return int(r.End - r.Start) }

// BlockAt returns the block of the given size that contains id. The fixed groups of the storage
// partitions are also blocks in this sense.
func BlockAt(id metric.ScheduleID, size int) Range {
	start := id - id%metric.ScheduleID(size)
	return Range{Start: start, End: start + metric.ScheduleID(size)}
}

// Cover returns the blocks of the given size that together cover r, in order: none when r is empty.
func (r Range) Cover(size int) []Range {
	if r.Start >= r.End {
		return nil
	}
	var out []Range
	for start := BlockAt(r.Start, size).Start; start < r.End; start += metric.ScheduleID(size) {
		out = append(out, Range{Start: start, End: start + metric.ScheduleID(size)})
	}
	return out
}

// Starting returns the range that the blocks of the given size cover which start in r.
func (r Range) Starting(size int) Range {
	up := func(id metric.ScheduleID) metric.ScheduleID { return BlockAt(id+metric.ScheduleID(size)-1, size).Start }
	return Range{Start: up(r.Start), End: up(r.End)}
}

// ShardOf returns the shard, out of n, of the block that starts at start. The shard is a hash and
// not a random or round-robin choice, so that writing a mark again writes the same row.
func ShardOf(start metric.ScheduleID, n int) int {
	var b [8]byte
	for i := range b {
		b[i] = byte(start >> (8 * i))
	}
	return int(xxhash.Sum64(b[:]) % uint64(n))
}
