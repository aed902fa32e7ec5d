package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// ErrCorrupt marks a chunk, or an id set, that does not decode: it is damaged, cut short, or in a
// format that this version does not know.
var ErrCorrupt = errors.New("chunk is damaged")

// The first byte of every packed value gives its kind and layout. A new layout takes a new number;
// docs/format/chunk.md lists them.
const (
	formatSamples = 0x01
	formatRollups = 0x02
	formatIDs     = 0x03
	// columns.Format is 0x04.
)

// headerSize is the size of the format byte and the CRC-32C of all bytes behind the header.
const headerSize = 1 + 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openChunk reserves the header. sealChunk fills it in when the body is complete.
func openChunk(dst []byte) []byte { return append(dst, make([]byte, headerSize)...) }

func sealChunk(chunk []byte, format byte) {
	chunk[0] = format
	binary.LittleEndian.PutUint32(chunk[1:], crc32.Checksum(chunk[headerSize:], castagnoli))
}

// unseal checks the header and returns the body and the count at its start. The count is at most
// the number of bytes behind it, since every entry of every format takes at least one byte. So a
// damaged count cannot make a decoder allocate much.
func unseal(chunk []byte, format byte) (body []byte, count int, err error) {
	if len(chunk) < headerSize {
		return nil, 0, fmt.Errorf("%w: %d bytes are less than a header", ErrCorrupt, len(chunk))
	}
	if chunk[0] != format {
		return nil, 0, fmt.Errorf("%w: format %#02x where %#02x is expected", ErrCorrupt, chunk[0], format)
	}
	body = chunk[headerSize:]
	if got, want := crc32.Checksum(body, castagnoli), binary.LittleEndian.Uint32(chunk[1:]); got != want {
		return nil, 0, fmt.Errorf("%w: checksum %08x, %08x expected", ErrCorrupt, got, want)
	}
	n, w := binary.Uvarint(body)
	if w <= 0 || n > uint64(len(body)-w) {
		return nil, 0, fmt.Errorf("%w: a count that %d bytes cannot hold", ErrCorrupt, len(body))
	}
	return body[w:], int(n), nil
}

// countIn returns the count of a chunk, without a check of the chunk; 0 if it cannot be right.
func countIn(chunk []byte) int {
	body := chunk[min(headerSize, len(chunk)):]
	n, w := binary.Uvarint(body)
	if w <= 0 || n > uint64(len(body)-w) {
		return 0
	}
	return int(n)
}

// The control byte before each sample:
//
//	bits 7-6  schedule  0 the same, 1 the next id, 2 the difference follows
//	bits 5-4  time      0 as predicted, 1 the difference to the prediction follows
//	bits 3-0  value     0-8 that many low bytes of an XOR, 9-15 a decimal with
//	                    value-9 decimal places
const (
	scheduleSame  = 0 << 6
	scheduleNext  = 1 << 6
	scheduleDelta = 2 << 6
	scheduleMask  = 3 << 6

	timePredicted = 0 << 4
	timeDelta     = 1 << 4
	timeMask      = 3 << 4

	valueDecimal = 9
	valueMask    = 15
)

// maxPlaces is the greatest number of decimal places: 6, as in 0.000001.
const maxPlaces = 6

// slack is the number of bytes that the coders may read or write behind their position, so that
// they can move 8 bytes at a time without a check. A sample takes at most 29 bytes: the control
// byte, two varints of 10 bytes, 8 bytes of value.
const slack = 32

// pow10 has 16 entries so that an index of 4 bits needs no bounds check.
var pow10 = [16]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6}

// lowBytes masks the n low bytes of a word.
var lowBytes = [16]uint64{
	0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1, 1<<40 - 1, 1<<48 - 1, 1<<56 - 1, 1<<64 - 1,
}

// maxDecimal bounds |mantissa| of a decimal: below it, adding and subtracting
// 1.5*2^52 rounds a float64 to the nearest integer.
const maxDecimal = 1 << 51

// asDecimal returns m such that float64(m)/10^places equals v bit by bit. NaN, the infinities and
// -0 are not decimals.
func asDecimal(v float64, places int) (m int64, ok bool) {
	const shift = 3 << 51
	p := pow10[places&15]
	// The conversions keep the compiler from fusing the product into the addition.
	scaled := float64(v * p)
	if !(math.Abs(scaled) < maxDecimal) {
		return 0, false
	}
	rounded := float64(scaled+shift) - shift
	return int64(rounded), math.Float64bits(rounded/p) == math.Float64bits(v)
}

// fewestPlaces returns the decimal of v with the fewest places.
func fewestPlaces(v float64) (m int64, places int, ok bool) {
	for places = 0; places <= maxPlaces; places++ {
		if m, ok = asDecimal(v, places); ok {
			return m, places, true
		}
	}
	return 0, 0, false
}

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// uvarintLen returns the number of bytes of u as a varint.
func uvarintLen(u uint64) int { return (bits.Len64(u|1) + 6) / 7 }

// xorLen returns the number of low bytes that hold all bits of x.
func xorLen(x uint64) int { return (bits.Len64(x) + 7) / 8 }

// AppendSamples appends a chunk of the given samples to dst. The samples MUST be sorted by
// metric.CompareSamples. No two may have the same schedule and time, and none a negative schedule.
// Without samples nothing is appended. DecodeSamples restores every value bit by bit: NaN with its
// payload, the infinities, -0.
//
// A value is stored in the shorter of two forms. One is the low bytes of its XOR with the value
// before it (Pelkonen et al., "Gorilla", VLDB 2015; in whole bytes here, for speed). The other is a
// decimal: the difference of its mantissa to the previous mantissa of the same schedule (Afroozeh
// and Boncz, "ALP", SIGMOD 2023, for the test that a float64 is a decimal). docs/format/chunk.md
// has the bytes.
func AppendSamples(dst []byte, samples []metric.Sample) []byte {
	if len(samples) == 0 {
		return dst
	}
	start := len(dst)
	dst = openChunk(dst)
	dst = binary.AppendUvarint(dst, uint64(len(samples)))
	dst = binary.AppendUvarint(dst, uint64(samples[0].Schedule))
	dst = binary.AppendVarint(dst, samples[0].TimeMs)

	// Encoder and decoder start as if a sample had come before the first: with the schedule id
	// before the first, the first time, and value +0.
	var (
		schedule = samples[0].Schedule - 1
		firstMs  = samples[0].TimeMs // the first time of the schedule
		timeMs   = samples[0].TimeMs
		stepMs   int64  // between the last two samples of one schedule
		last     uint64 // the bits of the previous value
		mantissa int64  // of the last decimal of the schedule, 0 if it had none
		places   int    // of that decimal
	)
	for i := range samples {
		s := &samples[i]
		if cap(dst)-len(dst) < slack {
			// Estimate the rest from the bytes so far, plus one byte a sample.
			perSample := (len(dst) - start) / (i + 1)
			dst = slices.Grow(dst, slack+(len(samples)-i)*(perSample+1))
		}
		at := len(dst)
		b := dst[at : at+slack]
		n := 1
		var control byte

		same := s.Schedule == schedule
		predicted := timeMs + stepMs
		if !same {
			if s.Schedule == schedule+1 {
				control = scheduleNext
			} else {
				control = scheduleDelta
				n += binary.PutUvarint(b[n:], uint64(s.Schedule-schedule))
			}
			schedule = s.Schedule
			predicted, firstMs = firstMs, s.TimeMs
			mantissa = 0
		} else {
			stepMs = s.TimeMs - timeMs
		}
		if s.TimeMs != predicted {
			control |= timeDelta
			n += binary.PutUvarint(b[n:], zigzag(s.TimeMs-predicted))
		}
		timeMs = s.TimeMs

		now := math.Float64bits(s.Value)
		x := now ^ last
		last = now
		k := xorLen(x)
		if k > 0 {
			m, p, ok := int64(0), places, false
			if same {
				// Keeping the schedule's number of places keeps the differences small.
				m, ok = asDecimal(s.Value, p)
			}
			if !ok {
				m, p, ok = fewestPlaces(s.Value)
			}
			if ok {
				base := mantissa
				if p != places {
					base = 0
				}
				u := zigzag(m - base)
				if uvarintLen(u) <= k {
					mantissa, places = m, p
					n += binary.PutUvarint(b[n:], u)
					b[0] = control | byte(valueDecimal+p)
					dst = dst[:at+n]
					continue
				}
			}
		}
		binary.LittleEndian.PutUint64(b[n:], x)
		b[0] = control | byte(k)
		dst = dst[:at+n+k]
	}
	sealChunk(dst[start:], formatSamples)
	return dst
}

// DecodeSamples appends the samples of a chunk of samples or columns to dst, in the order of
// metric.CompareSamples. On error it returns ErrCorrupt and dst unchanged, or a *DamagedColumns and the
// samples of the other columns.
func DecodeSamples(dst []metric.Sample, chunk []byte) ([]metric.Sample, error) {
	if isColumns(chunk) {
		return readColumns(dst, chunk, allIDs)
	}
	return decodeSamples(dst, chunk, 0, math.MaxInt64)
}

// DecodeSamplesIn is DecodeSamples for only the schedules in ids. Of a chunk of columns it reads only
// theirs. Of a chunk of samples it reads no further than the last of them, except for the checksum.
func DecodeSamplesIn(dst []metric.Sample, chunk []byte, ids Range) ([]metric.Sample, error) {
	if isColumns(chunk) {
		return readColumns(dst, chunk, ids)
	}
	if ids.End <= ids.Start {
		_, _, err := unseal(chunk, formatSamples)
		return dst, err
	}
	return decodeSamples(dst, chunk, ids.Start, ids.End-1)
}

// decodeSamples decodes the schedules from lo to hi, inclusive.
func decodeSamples(dst []metric.Sample, chunk []byte, lo, hi metric.ScheduleID) ([]metric.Sample, error) {
	b, count, err := unseal(chunk, formatSamples)
	if err != nil {
		return dst, err
	}
	base, w := binary.Uvarint(b)
	if w <= 0 || base > math.MaxInt64 || count == 0 {
		return dst, corruptSample(0)
	}
	b = b[w:]
	baseMs, w := binary.Varint(b)
	if w <= 0 {
		return dst, corruptSample(0)
	}
	b = b[w:]
	if count > len(b) {
		return dst, corruptSample(0)
	}

	var (
		schedule = metric.ScheduleID(base) - 1
		firstMs  = baseMs
		timeMs   = baseMs
		stepMs   int64
		last     uint64
		mantissa int64
		places   int

		pos, end = 0, len(b)
		tail     [2 * slack]byte
		tailed   bool
	)
	out := slices.Grow(dst, count)
	kept := out[len(out) : len(out)+count]
	n := 0
	for i := range count {
		if end-pos < slack && !tailed {
			// Continue in a copy with zeros behind it, where reading ahead is safe.
			end = copy(tail[:], b[pos:])
			b, pos, tailed = tail[:], 0, true
		}
		if pos >= end {
			return dst, corruptSample(i)
		}
		control := b[pos]
		pos++

		if control&scheduleMask == scheduleSame {
			was := timeMs
			timeMs += stepMs
			if control&timeMask != timePredicted {
				d, w := binary.Uvarint(b[pos:])
				if w <= 0 || control&timeMask != timeDelta {
					return dst, corruptSample(i)
				}
				pos += w
				timeMs += unzigzag(d)
			}
			if timeMs <= was {
				return dst, corruptSample(i)
			}
			stepMs = timeMs - was
		} else {
			was := schedule
			if control&scheduleMask == scheduleNext {
				schedule++
			} else {
				d, w := binary.Uvarint(b[pos:])
				if w <= 0 || control&scheduleMask != scheduleDelta {
					return dst, corruptSample(i)
				}
				pos += w
				schedule += metric.ScheduleID(d)
			}
			if schedule <= was {
				return dst, corruptSample(i)
			}
			timeMs = firstMs
			if control&timeMask != timePredicted {
				d, w := binary.Uvarint(b[pos:])
				if w <= 0 || control&timeMask != timeDelta {
					return dst, corruptSample(i)
				}
				pos += w
				timeMs += unzigzag(d)
			}
			firstMs = timeMs
			mantissa = 0
		}

		word := binary.LittleEndian.Uint64(b[pos:])
		value := control & valueMask
		if value < valueDecimal {
			last ^= word & lowBytes[value]
			pos += int(value)
		} else {
			// A varint of at most 8 bytes is decoded at once: find the byte that ends it, then
			// close the gaps left by the top bit of each byte.
			ends := ^word & 0x8080808080808080
			if ends == 0 {
				return dst, corruptSample(i)
			}
			width := bits.TrailingZeros64(ends) + 1
			pos += width / 8
			word &= ^uint64(0) >> (uint(64-width) & 63) & 0x7f7f7f7f7f7f7f7f
			word = word&0x007f007f007f007f | word&0x7f007f007f007f00>>1
			word = word&0x00003fff00003fff | word&0x3fff00003fff0000>>2
			word = word&0x000000000fffffff | word&0x0fffffff00000000>>4
			p := int(value - valueDecimal)
			if p != places {
				mantissa, places = 0, p
			}
			mantissa += unzigzag(word)
			last = math.Float64bits(float64(mantissa) / pow10[p&15])
		}
		if pos > end {
			return dst, corruptSample(i)
		}
		if schedule < lo {
			continue
		}
		if schedule > hi {
			return out[:len(out)+n], nil
		}
		kept[n] = metric.Sample{Schedule: schedule, TimeMs: timeMs, Value: math.Float64frombits(last)}
		n++
	}
	if pos != end {
		return dst, fmt.Errorf("%w: %d bytes after the last sample", ErrCorrupt, end-pos)
	}
	return out[:len(out)+n], nil
}

func corruptSample(i int) error {
	return fmt.Errorf("%w at sample %d", ErrCorrupt, i)
}
