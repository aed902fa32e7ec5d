// Package columns packs the samples of many series into one chunk in which each series is a column of its own.
//
// # The way of a sample
//
// A chunk holds the samples of one block over some time, mostly one slice. Three things make it small, and one series of it
// fast to read:
//
//  1. Series that report together share their times: a timeline is a column that many series refer to.
//  2. The values of a series become integers: decimals, multiples of a divisor, or ordered bit patterns (see numbers). Each
//     integer is predicted from those before it (see prediction), and what it differs by, the residual, is centred and
//     shifted. So residuals of all kinds of series have about the same few symbols.
//  3. So a few tables of frequencies, which the streams of a chunk share, code the residuals within some percent of their
//     entropy (see table). A stream needs no table of its own and has 5 to 10 bytes besides its residuals.
//
// A directory in the head says where each stream begins. Head and streams have checksums of their own, so damage in a
// stream costs only its series, and a reader of one series checks only what it reads.
//
// docs/format/columns.md describes every byte.
package columns

import (
	"errors"
	"hash/crc32"

	"github.com/quern/quern/internal/metric"
)

// ErrCorrupt means that a chunk, or the columns of one series in it, cannot be decoded.
var ErrCorrupt = errors.New("columns are damaged")

// Format is the first byte of a chunk.
const Format = 0x04

// The limits of a chunk.
const (
	MaxSeries  = 1 << 12
	MaxSamples = 1 << 26 // of all series together
)

// maxColumns is the number of columns of a chunk: at most a timeline for each series.
const maxColumns = 2 * MaxSeries

// Series is a column to write. It has at least one sample. Times ascend, and are Unix ms; each has its value.
type Series struct {
	Schedule metric.ScheduleID
	Times    []int64
	Values   []float64
}

// headerSize is that of the format byte and the checksum of the head.
const headerSize = 1 + checksumSize

const checksumSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// profile is what a reader must know of a stream before its first byte. Many streams of a chunk share one.
type profile struct {
	form   form
	order  order
	places uint8
	table  uint8
	shift  uint8
	flags  flags
}

type flags uint8

const (
	withSlope      flags = 1 << iota
	withUnit             // numbers.unit is not 1
	withExceptions       // numbers.exceptions is not empty
	part                 // the series has some samples of its timeline in a row, not all
	still                // all residuals are 0
	allFlags       = 1<<iota - 1
)

const (
	profileSize = 3
	maxTables   = 4
	maxShift    = 60
)

// pack returns the bytes of a profile.
func (p profile) pack() [profileSize]byte {
	return [profileSize]byte{
		byte(p.form) | byte(p.order)<<2 | p.places<<4,
		p.shift | p.table<<6,
		byte(p.flags),
	}
}

// unpack reads the bytes of a profile.
func unpack(b [profileSize]byte, tables int) (p profile, ok bool) {
	p = profile{
		form: form(b[0] & 3), order: order(b[0] >> 2 & 3), places: b[0] >> 4,
		shift: b[1] & 63, table: b[1] >> 6,
		flags: flags(b[2]),
	}
	return p, p.form <= pattern && p.shift <= maxShift && p.flags <= allFlags && (p.flags&still != 0 || int(p.table) < tables)
}

// lanes is the number of states that code so many residuals: two in turn are faster to decode, and take 9 bits more.
func lanes(residuals int) int {
	if residuals < 96 {
		return 1
	}
	return 2
}

// wellKnown are values that have no integer and are written as one byte: stale markers, NaN, the infinities, -0, and the
// tombstone. The byte 255 stands before any other bits.
var wellKnown = [...]uint64{0x7ff0000000000002, 0x7ff8000000000001, 0x7ff0000000000000, 0xfff0000000000000, 1 << 63, 0x7ff8000051554552}

const otherBits = 255
