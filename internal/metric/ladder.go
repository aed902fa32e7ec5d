package metric

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/wire/excerpt"
)

// Bucket is a level of the ladder: 0 is raw, 1 the finest roll-up, and so on.
type Bucket int

// Raw is the bucket of the samples themselves.
const Raw Bucket = 0

// Slice is one aligned interval [StartMs, EndMs) of a bucket. A run grinds the content of a slice
// of bucket b into one row per schedule of bucket b+1.
type Slice struct {
	StartMs int64
	EndMs   int64
}

// Contains reports whether tMs lies in the slice.
func (s Slice) Contains(tMs int64) bool { return s.StartMs <= tMs && tMs < s.EndMs }

// String returns the slice's start in RFC 3339, as logs show it.
func (s Slice) String() string {
	return time.UnixMilli(s.StartMs).UTC().Format(time.RFC3339)
}

// Ladder is the sequence of roll-up widths, by default 1h, 6h, 24h. It is immutable; compare
// ladders with Equal.
type Ladder struct {
	widthsMs []int64
}

// DefaultLadder returns the ladder 1h, 6h, 24h.
func DefaultLadder() Ladder {
	l, err := NewLadder(time.Hour, 6*time.Hour, 24*time.Hour)
	if err != nil {
		panic(err)
	}
	return l
}

// NewLadder returns a ladder of the given widths, finest first. Each width must be whole seconds
// and a multiple of the one before.
func NewLadder(widths ...time.Duration) (Ladder, error) {
	if len(widths) == 0 {
		return Ladder{}, errors.New("a ladder needs at least one roll-up width")
	}
	l := Ladder{widthsMs: make([]int64, len(widths))}
	for i, w := range widths {
		if w < time.Second || w%time.Second != 0 {
			return Ladder{}, fmt.Errorf("roll-up width %s: must be whole seconds, at least 1s", w)
		}
		if i > 0 && (w <= widths[i-1] || w%widths[i-1] != 0) {
			return Ladder{}, fmt.Errorf("roll-up width %s: must be a multiple of the one before it, %s",
				FormatWidth(w), FormatWidth(widths[i-1]))
		}
		l.widthsMs[i] = w.Milliseconds()
	}
	return l, nil
}

// ParseLadder parses a ladder from its flag form, such as "1h,6h,24h".
func ParseLadder(s string) (Ladder, error) {
	var widths []time.Duration
	for part := range strings.SplitSeq(s, ",") {
		w, err := ParseSpan(part)
		if err != nil {
			return Ladder{}, fmt.Errorf("roll-ups %q: %w", s, err)
		}
		widths = append(widths, w)
	}
	l, err := NewLadder(widths...)
	if err != nil {
		return Ladder{}, fmt.Errorf("roll-ups %q: %w", s, err)
	}
	return l, nil
}

// String returns the ladder's flag form, which ParseLadder accepts.
func (l Ladder) String() string {
	names := make([]string, len(l.widthsMs))
	for i := range l.widthsMs {
		names[i] = l.Name(Bucket(i + 1))
	}
	return strings.Join(names, ",")
}

// Equal reports whether both ladders have the same widths.
func (l Ladder) Equal(o Ladder) bool { return l.String() == o.String() }

// Top returns the coarsest bucket. It is the only bucket that is not ground further, and so has no
// slices.
func (l Ladder) Top() Bucket { return Bucket(len(l.widthsMs)) }

// Ground returns the buckets whose slices are ground, finest first: raw and every roll-up but the
// top.
func (l Ladder) Ground() []Bucket {
	out := make([]Bucket, l.Top())
	for i := range out {
		out[i] = Bucket(i)
	}
	return out
}

// Levels returns the roll-up buckets, finest first.
func (l Ladder) Levels() []Bucket {
	out := make([]Bucket, l.Top())
	for i := range out {
		out[i] = Bucket(i + 1)
	}
	return out
}

// WidthMs returns the time that one row of bucket b covers; 0 for raw.
func (l Ladder) WidthMs(b Bucket) int64 {
	if b == Raw {
		return 0
	}
	return l.widthsMs[b-1]
}

// SliceAt returns the slice of bucket b that contains tMs. b must be below the top.
func (l Ladder) SliceAt(b Bucket, tMs int64) Slice {
	w := l.widthsMs[b]
	start := AlignDown(tMs, w)
	return Slice{StartMs: start, EndMs: start + w}
}

// Name returns "raw" or the bucket's width, such as "6h". A bucket that the ladder does not have, as a
// damaged record may name one, is "level" and its number.
func (l Ladder) Name(b Bucket) string {
	switch {
	case b == Raw:
		return "raw"
	case b < Raw || b > l.Top():
		return "level " + strconv.Itoa(int(b))
	}
	return FormatWidth(time.Duration(l.widthsMs[b-1]) * time.Millisecond)
}

// Bucket returns the bucket with a name or a width. It accepts any notation of the width: 1d for
// 24h.
func (l Ladder) Bucket(name string) (Bucket, error) {
	if name == l.Name(Raw) {
		return Raw, nil
	}
	if w, err := ParseSpan(name); err == nil {
		for _, b := range l.Levels() {
			if l.WidthMs(b) == w.Milliseconds() && w%time.Millisecond == 0 {
				return b, nil
			}
		}
	}
	return 0, fmt.Errorf("no bucket %s: there are raw,%s", excerpt.Quoted(name), l)
}

// FormatWidth formats a width in its largest whole unit up to hours: 90s, 5m, 24h.
func FormatWidth(w time.Duration) string {
	switch {
	case w%time.Hour == 0:
		return strconv.FormatInt(int64(w/time.Hour), 10) + "h"
	case w%time.Minute == 0:
		return strconv.FormatInt(int64(w/time.Minute), 10) + "m"
	}
	return strconv.FormatInt(int64(w/time.Second), 10) + "s"
}

// AlignDown returns the greatest multiple of width that is not above t. A negative t is aligned
// away from 0, not towards it.
func AlignDown(t, width int64) int64 {
	r := t % width
	if r < 0 {
		r += width
	}
	return t - r
}

// AlignUp returns the first multiple of width that is not before t.
func AlignUp(t, width int64) int64 { return AlignDown(t+width-1, width) }
