package metric

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseSpan(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "0d": 0,
		"7d": 7 * oneDay, "1y": oneYear, "2w": 14 * oneDay, "1d12h": 36 * time.Hour, "1y1w1d1h1m": oneYear + 8*oneDay + time.Hour + time.Minute,
		"90m": 90 * time.Minute, "300ms": 300 * time.Millisecond, "1.5h": 90 * time.Minute,
		"100y": 100 * oneYear, "-5m": -5 * time.Minute, // callers that need a positive span check it
		" 1d ": oneDay, "7 d": 7 * oneDay, "40 d 6 h": 40*oneDay + 6*time.Hour, "1 d12h": 36 * time.Hour,
		// A span longer than any data may be is as long as possible.
		"1000y": maxSpan, "101y": maxSpan, "1000000h": maxSpan, "-1000000h": -maxSpan, "100y5200w36500d": maxSpan, "100y1s": maxSpan,
		"999999999999999999d": maxSpan,
	} {
		got, err := ParseSpan(in)
		if assert.NoError(t, err, in) {
			assert.Equal(t, want, got, in)
		}
	}
	for _, in := range []string{
		"", " ", "7", "d", "y", "1.5d", "-1d", "1d-12h", "12h1d", "1d1d", "ten days", "7D", "1month", "+1d1", "+1d", "1y-1h",
	} {
		got, err := ParseSpan(in)
		assert.ErrorContains(t, err, "is not a duration such as", "%q gave %s", in, got)
	}
}

func TestFormatSpan(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0": 0, "300ms": 300 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "90s": 90 * time.Second,
		"2m": 2 * time.Minute, "24h": oneDay, "36h": 36 * time.Hour, "90m": 90 * time.Minute, "25h2m": 25*time.Hour + 2*time.Minute,
		"3h0m30s": 3*time.Hour + 30*time.Second, "7d": 7 * oneDay, "1y": oneYear, "5y": 5 * oneYear,
		"40d6h": 40*oneDay + 6*time.Hour,
	} {
		assert.Equal(t, want, FormatSpan(d))
		back, err := ParseSpan(want)
		require.NoError(t, err)
		assert.Equal(t, d, back)
	}
}

func TestSpanText(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0 s": 0, "0 ms": 400 * time.Microsecond, "250 ms": 250 * time.Millisecond, "1 s 500 ms": 1500 * time.Millisecond, "1 min 30 s": 90 * time.Second, "10 min": 10 * time.Minute,
		"24 h": oneDay, "25 h": 25 * time.Hour, "47 h 59 min": 47*time.Hour + 59*time.Minute + 20*time.Second,
		"2 d": 2 * oneDay, "40 d 6 h": 40*oneDay + 6*time.Hour + 20*time.Minute, "4000 d": 4000 * oneDay, "-3 h": -3 * time.Hour,
	} {
		assert.Equal(t, want, SpanText(d))
	}
}

func TestParseDate(t *testing.T) {
	for in, want := range map[string]string{
		"2026-11-22": "2026-11-22T00:00:00Z", "2026-11-22T10:20": "2026-11-22T10:20:00Z", "2026-11-22 10:20:30": "2026-11-22T10:20:30Z",
		"2026-11-22T10:20:30+02:00": "2026-11-22T10:20:30+02:00",
	} {
		got, ok := ParseDate(in)
		require.True(t, ok, in)
		assert.Equal(t, want, got.Format(time.RFC3339), in)
	}
	for _, in := range []string{"", "2026", "22.11.2026", "2026-13-01", "10:20"} {
		_, ok := ParseDate(in)
		assert.False(t, ok, in)
	}
}
