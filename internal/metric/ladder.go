package metric

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bucket is a level of the cascade: 0 is raw, 1 the finest roll-up, and so on up
// the ladder.
type Bucket int

// Raw is the bucket of the samples themselves.
const Raw Bucket = 0

// Slice is one aligned interval [StartMs, EndMs) of a bucket. What a slice of
// bucket b holds is ground into one row per schedule of bucket b+1.
type Slice struct {
	StartMs int64
	EndMs   int64
}

// Contains says whether tMs lies in the slice.
func (s Slice) Contains(tMs int64) bool { return s.StartMs <= tMs && tMs < s.EndMs }

// String is the slice's start in RFC 3339, as logs show it.
func (s Slice) String() string {
	return time.UnixMilli(s.StartMs).UTC().Format(time.RFC3339)
}

// Ladder is the sequence of roll-up widths, by default 1h, 6h, 24h. It is
// immutable and comparable with Equal.
type Ladder struct {
	widthsMs []int64
}

// DefaultLadder is 1h, 6h, 24h.
func DefaultLadder() Ladder {
	l, err := NewLadder(time.Hour, 6*time.Hour, 24*time.Hour)
	if err != nil {
		panic(err)
	}
	return l
}

// NewLadder makes a ladder of the given widths, finest first. Each must be whole
// seconds and a multiple of the one before.
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

// ParseLadder reads a ladder from its flag form, such as "1h,6h,24h".
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

// String is the ladder's flag form; ParseLadder reads it back.
func (l Ladder) String() string {
	names := make([]string, len(l.widthsMs))
	for i := range l.widthsMs {
		names[i] = l.Name(Bucket(i + 1))
	}
	return strings.Join(names, ",")
}

// Equal says whether both ladders have the same widths.
func (l Ladder) Equal(o Ladder) bool { return l.String() == o.String() }

// Top is the coarsest bucket. It is the only one that is never ground further and
// so has no slices.
func (l Ladder) Top() Bucket { return Bucket(len(l.widthsMs)) }

// Ground are the buckets whose slices are ground, finest first: raw and every
// roll-up but the top.
func (l Ladder) Ground() []Bucket {
	out := make([]Bucket, l.Top())
	for i := range out {
		out[i] = Bucket(i)
	}
	return out
}

// Levels are the roll-up buckets, finest first.
func (l Ladder) Levels() []Bucket {
	out := make([]Bucket, l.Top())
	for i := range out {
		out[i] = Bucket(i + 1)
	}
	return out
}

// WidthMs is the time that one row of bucket b stands for; 0 for raw.
func (l Ladder) WidthMs(b Bucket) int64 {
	if b == Raw {
		return 0
	}
	return l.widthsMs[b-1]
}

// SliceAt is the slice of bucket b that tMs falls in. b must be below the top.
func (l Ladder) SliceAt(b Bucket, tMs int64) Slice {
	w := l.widthsMs[b]
	start := AlignDown(tMs, w)
	return Slice{StartMs: start, EndMs: start + w}
}

// Name is "raw" or the bucket's width, such as "6h".
func (l Ladder) Name(b Bucket) string {
	if b == Raw {
		return "raw"
	}
	return FormatWidth(time.Duration(l.widthsMs[b-1]) * time.Millisecond)
}

// Bucket finds a bucket by its name, or by its width in other words: 24h is also 1d.
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
	return 0, fmt.Errorf("no bucket %q: there are raw,%s", name, l)
}

// FormatWidth prints a width in its largest whole unit up to hours: 90s, 5m, 24h.
func FormatWidth(w time.Duration) string {
	switch {
	case w%time.Hour == 0:
		return strconv.FormatInt(int64(w/time.Hour), 10) + "h"
	case w%time.Minute == 0:
		return strconv.FormatInt(int64(w/time.Minute), 10) + "m"
	}
	return strconv.FormatInt(int64(w/time.Second), 10) + "s"
}

// AlignDown is the greatest multiple of width that is not above t; before 1970 it lies
// further from it, not nearer.
func AlignDown(t, width int64) int64 {
	r := t % width
	if r < 0 {
		r += width
	}
	return t - r
}
