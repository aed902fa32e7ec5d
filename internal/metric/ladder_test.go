package metric

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const hourMs = 3_600_000

// day is 2026-03-29, on which most of Europe sets its clocks an hour ahead.
var day = time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC).UnixMilli()

func TestDefaultLadder(t *testing.T) {
	l := DefaultLadder()
	assert.Equal(t, "1h,6h,24h", l.String())
	assert.Equal(t, Bucket(3), l.Top())
	assert.Equal(t, []Bucket{0, 1, 2}, l.Ground())
	assert.Equal(t, []Bucket{1, 2, 3}, l.Levels())
	for b, want := range map[Bucket]int64{Raw: 0, 1: hourMs, 2: 6 * hourMs, 3: 24 * hourMs} {
		assert.Equal(t, want, l.WidthMs(b))
	}
}

// The slices of a bucket are as long as the rows of the next one.
func TestSliceAt(t *testing.T) {
	l := DefaultLadder()
	for _, c := range []struct {
		bucket     Bucket
		atMs       int64
		start, end int64
	}{
		{Raw, day, day, day + hourMs},
		{Raw, day + hourMs - 1, day, day + hourMs},
		{Raw, day + hourMs, day + hourMs, day + 2*hourMs},
		{1, day + 5*hourMs, day, day + 6*hourMs},
		{1, day + 6*hourMs, day + 6*hourMs, day + 12*hourMs},
		{2, day + 23*hourMs, day, day + 24*hourMs},
		// Before 1970 slices align downwards too.
		{Raw, -1, -hourMs, 0},
		{Raw, -hourMs, -hourMs, 0},
		{2, -1, -24 * hourMs, 0},
	} {
		assert.Equal(t, Slice{c.start, c.end}, l.SliceAt(c.bucket, c.atMs), "bucket %d at %d", c.bucket, c.atMs)
	}
}

// Slices partition time: each moment lies in exactly one slice, and each slice begins where the one
// before ends, whatever wall clocks do. Coarser slices consist of whole finer ones.
func TestSlicesPartitionTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := DefaultLadder()
	for range 1000 {
		atMs := day + r.Int64N(48*hourMs) - 24*hourMs
		for _, b := range l.Ground() {
			s := l.SliceAt(b, atMs)
			require.True(t, s.Contains(atMs))
			require.Equal(t, l.WidthMs(b+1), s.EndMs-s.StartMs)
			require.Equal(t, s.EndMs, l.SliceAt(b, s.EndMs).StartMs)
			require.Equal(t, s, l.SliceAt(b, s.StartMs))
			require.Equal(t, s, l.SliceAt(b, s.EndMs-1))
			if b > Raw {
				fine := l.SliceAt(b-1, atMs)
				require.LessOrEqual(t, s.StartMs, fine.StartMs)
				require.GreaterOrEqual(t, s.EndMs, fine.EndMs)
			}
		}
	}
}

func TestSliceContains(t *testing.T) {
	s := Slice{100, 200}
	for atMs, want := range map[int64]bool{99: false, 100: true, 199: true, 200: false} {
		assert.Equal(t, want, s.Contains(atMs), "%d", atMs)
	}
	assert.Equal(t, "2026-03-29T00:00:00Z", Slice{day, day + hourMs}.String())
}

func TestParseLadder(t *testing.T) {
	for text, want := range map[string]string{
		"1h,6h,24h":   "1h,6h,24h",
		"60m,1440m":   "1h,24h",
		"5s,30s,2m":   "5s,30s,2m",
		"90s":         "90s",
		"36h,72h":     "36h,72h",
		"1m30s,1h30m": "90s,90m",
		"60s,1h,1d":   "1m,1h,24h",
		"1d,1w":       "24h,168h",
	} {
		l, err := ParseLadder(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, l.String())
		again, err := ParseLadder(l.String())
		require.NoError(t, err)
		assert.True(t, l.Equal(again))
	}
	spaced, err := ParseLadder(" 1h , 6h ")
	require.NoError(t, err)
	assert.Equal(t, "1h,6h", spaced.String())

	for text, reason := range map[string]string{
		"":         "is not a duration",
		"1h,":      "is not a duration",
		"1month":   "is not a duration",
		"1h,90m":   "multiple",
		"6h,1h":    "multiple",
		"1h,1h":    "multiple",
		"500ms":    "whole seconds",
		"1500ms":   "whole seconds",
		"0s":       "at least 1s",
		"-1h":      "at least 1s",
		"1h,-6h":   "at least 1s",
		"1h,6h,7h": "multiple",
	} {
		_, err := ParseLadder(text)
		assert.ErrorContains(t, err, reason, "%q", text)
	}
	_, err = NewLadder()
	assert.Error(t, err)
}

func TestBucketNames(t *testing.T) {
	l := DefaultLadder()
	for b := Raw; b <= l.Top(); b++ {
		got, err := l.Bucket(l.Name(b))
		require.NoError(t, err)
		assert.Equal(t, b, got)
	}
	assert.Equal(t, "level 4", l.Name(l.Top()+1))
	assert.Equal(t, "level -1", l.Name(-1))
	for name, want := range map[string]Bucket{"60m": 1, "1d": 3, "1 d": 3} {
		got, err := l.Bucket(name)
		require.NoError(t, err)
		assert.Equal(t, want, got, name)
	}
	_, err := l.Bucket("2h")
	assert.ErrorContains(t, err, "raw,1h,6h,24h")
}

func TestLaddersDiffer(t *testing.T) {
	a, err := ParseLadder("1h,6h")
	require.NoError(t, err)
	assert.False(t, a.Equal(DefaultLadder()))
	assert.True(t, DefaultLadder().Equal(DefaultLadder()))
}

func TestAlignDown(t *testing.T) {
	for _, c := range []struct{ t, width, want int64 }{
		{0, 10, 0},
		{9, 10, 0},
		{10, 10, 10},
		{-1, 10, -10},
		{-10, 10, -10},
		{-11, 10, -20},
	} {
		require.Equal(t, c.want, AlignDown(c.t, c.width), "%d by %d", c.t, c.width)
	}
}
