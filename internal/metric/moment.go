package metric

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Moment is a time as people give it: a time, or a span that counts back from now.
type Moment struct {
	atMs int64
	back time.Duration
	// ago says that the moment is back before now.
	ago  bool
	text string
}

const (
	// minMs separates seconds from milliseconds: in seconds it is in the year 5138, in milliseconds
	// in 1973.
	minMs = 1e11
	// maxNumber keeps numbers within int64.
	maxNumber = 1e17
)

// ParseMoment parses a time in any form listed in docs/query.md: now, a span before now such as
// -6h, a number of seconds or milliseconds since 1970, or a date as ParseDate accepts it.
func ParseMoment(s string) (Moment, bool) {
	if s == "now" {
		return Moment{ago: true, text: s}, true
	}
	if back, ok := strings.CutPrefix(s, "-"); ok {
		if d, err := ParseSpan(back); err == nil && d >= 0 {
			return Moment{back: d, ago: true, text: s}, true
		}
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(v) < maxNumber {
		if math.Abs(v) < minMs {
			v *= 1000
		}
		return Moment{atMs: int64(math.Round(v)), text: s}, true
	}
	if t, ok := ParseDate(s); ok {
		return Moment{atMs: t.UnixMilli(), text: s}, true
	}
	return Moment{}, false
}

// String returns the moment as it was given.
func (m Moment) String() string { return m.text }

// Ms returns the moment in Unix ms, as of now.
func (m Moment) Ms(nowMs int64) int64 {
	if m.ago {
		return nowMs - m.back.Milliseconds()
	}
	return m.atMs
}

// Ago returns whether the moment depends on when it is asked for.
func (m Moment) Ago() bool { return m.ago }
