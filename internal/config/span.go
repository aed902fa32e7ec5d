package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// ParseSpan reads a duration that may also be in days (d), weeks (w) and years (y,
// 365 days), such as 7d, 1d12h or 90m.
func ParseSpan(s string) (time.Duration, error) {
	units := []struct {
		suffix string
		span   time.Duration
	}{{"y", year}, {"w", 7 * day}, {"d", day}}
	bad := fmt.Errorf("%q is no duration such as 90m, 24h, 7d or 1y", s)
	text := strings.TrimSpace(s)
	if text == "0" {
		return 0, nil
	}
	rest := text
	var total time.Duration
	for _, u := range units {
		number, after, ok := strings.Cut(rest, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || n > int(100*year/u.span) {
			return 0, bad
		}
		total += time.Duration(n) * u.span
		rest = after
	}
	if rest != text && rest == "" {
		return checkSpan(total, bad)
	}
	d, err := time.ParseDuration(rest)
	if err != nil || rest != text && d < 0 {
		return 0, bad
	}
	return checkSpan(total+d, bad)
}

// checkSpan keeps spans within what can be added to a time without an overflow: the
// sum of terms that are small enough each may be too large, or have wrapped.
func checkSpan(d time.Duration, bad error) (time.Duration, error) {
	if d < -100*year || d > 100*year {
		return 0, bad
	}
	return d, nil
}

// FormatSpan prints a duration in the units that ParseSpan reads, whole units only.
func FormatSpan(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%year == 0:
		return strconv.Itoa(int(d/year)) + "y"
	case d%day == 0 && d > day:
		return strconv.Itoa(int(d/day)) + "d"
	case d%time.Second == 0 && (d%time.Hour == 0 || d < 2*time.Hour):
		return metric.FormatWidth(d)
	}
	if whole, ok := strings.CutSuffix(d.String(), "m0s"); ok {
		return whole + "m"
	}
	return d.String()
}
