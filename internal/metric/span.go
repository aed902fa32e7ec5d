package metric

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	oneDay  = 24 * time.Hour
	oneYear = 365 * oneDay
)

// maxSpan is the longest span that ParseSpan returns. It can be added to any plausible time without
// overflow.
const maxSpan = 100 * oneYear

// ParseSpan parses a duration that may also use days (d), weeks (w) and years (y, 365 days), such
// as 7d, 1d12h or 90m. It allows spaces, as in "40 d 6 h". A longer span than maxSpan gives
// maxSpan: 1000y means as long as possible.
func ParseSpan(s string) (time.Duration, error) {
	bad := fmt.Errorf("%s is not a duration such as 90m, 24h, 7d or 1y", excerpt.Quoted(s))
	text := strings.ReplaceAll(strings.TrimSpace(s), " ", "")
	if text == "0" {
		return 0, nil
	}
	rest, total := text, time.Duration(0)
	for _, u := range []struct {
		suffix string
		span   time.Duration
	}{{"y", oneYear}, {"w", 7 * oneDay}, {"d", oneDay}} {
		number, after, ok := strings.Cut(rest, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 62)
		if err != nil || strings.HasPrefix(number, "+") {
			return 0, bad
		}
		total = min(total+time.Duration(min(n, uint64(maxSpan/u.span)))*u.span, maxSpan)
		rest = after
	}
	if rest != text && rest == "" {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil || rest != text && d < 0 {
		return 0, bad
	}
	return max(min(total+min(d, maxSpan), maxSpan), -maxSpan), nil
}

// FormatSpan formats a duration as flags show it, in the units that ParseSpan accepts: whole units
// only, such as 36h or 40d6h.
func FormatSpan(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%oneYear == 0:
		return strconv.Itoa(int(d/oneYear)) + "y"
	case d%oneDay == 0 && d > oneDay:
		return strconv.Itoa(int(d/oneDay)) + "d"
	case d > 2*oneDay:
		return strconv.Itoa(int(d/oneDay)) + "d" + FormatSpan(d%oneDay)
	case d%time.Second == 0 && (d%time.Hour == 0 || d < 2*time.Hour):
		return FormatWidth(d)
	}
	if whole, ok := strings.CutSuffix(d.String(), "m0s"); ok {
		return whole + "m"
	}
	return d.String()
}

// SpanText formats a duration for people, in its largest unit and, unless that part is zero, the
// next smaller one: "40 d 6 h", "25 h", "1 min 30 s", "250 ms". It rounds to the smaller unit.
func SpanText(d time.Duration) string {
	if d < 0 {
		return "-" + SpanText(-d)
	}
	if d == 0 {
		return "0 s"
	}
	units := []struct {
		name string
		span time.Duration
		from time.Duration // the least duration that is printed in this unit
	}{
		{"d", oneDay, 2 * oneDay},
		{"h", time.Hour, time.Hour},
		{"min", time.Minute, time.Minute},
		{"s", time.Second, time.Second},
		{"ms", time.Millisecond, 0},
	}
	for i, u := range units {
		if d < u.from {
			continue
		}
		if i == len(units)-1 {
			return strconv.FormatInt(d.Round(u.span).Milliseconds(), 10) + " ms"
		}
		next := units[i+1]
		d = d.Round(next.span)
		text := strconv.FormatInt(int64(d/u.span), 10) + " " + u.name
		if rest := d % u.span; rest > 0 {
			text += " " + strconv.FormatInt(int64(rest/next.span), 10) + " " + next.name
		}
		return text
	}
	panic("unreachable: the last unit begins at 0")
}

// ParseDate parses a date, or a date and a time, as people write them: RFC 3339, the same without a
// time zone, which means UTC, or only a date, which means the start of that day.
func ParseDate(s string) (time.Time, bool) {
	for _, form := range []string{time.RFC3339Nano, "2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05"} {
		if t, err := time.Parse(form, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
