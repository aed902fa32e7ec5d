package config

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// Verify holds the validated options of `quern verify`.
type Verify struct {
	URL        string
	Match      string
	Start, End Moment
	Limit      int
	Repair     bool
	TakeBack   bool
}

// Moment is a time, or a span that counts back from now.
type Moment struct {
	at   time.Time
	back time.Duration
	text string
}

// String returns the moment as it was given.
func (m Moment) String() string { return m.text }

// Ms returns the moment in Unix ms, as of now.
func (m Moment) Ms(now time.Time) int64 {
	if m.at.IsZero() {
		return now.Add(-m.back).UnixMilli()
	}
	return m.at.UnixMilli()
}

const catVerify = "Verifying"

// VerifyFlags returns the flags of `quern verify`.
func VerifyFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catVerify, "match", `{__name__!=""}`, "`SELECTOR` of the series, as in queries"),
		str(catVerify, "start", "-2d", "from when on: a `TIME` such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catVerify, "end", "now", "until when: a `TIME`, as for --start"),
		integer(catVerify, "limit", 100, "differences that are listed; all are counted"),
		boolean(catVerify, "repair", false, "have the slices that differ ground again"),
		takeBackFlag(catVerify),
	}
}

// FromVerify reads the flags of `quern verify`. The error names all mistakes at once.
func FromVerify(c *cli.Context) (Verify, error) {
	return read(c, func(p *parser, v *Verify) {
		v.URL = p.url()
		v.Match = p.required("match")
		v.Start, v.End = p.rangeOf("start", "end")
		v.Limit = p.within("limit", 0, 1<<30)
		v.Repair, v.TakeBack = p.c.Bool("repair"), p.c.Bool("take-back")
		if v.TakeBack && !v.Repair {
			p.fail("take-back", "is for --repair, which is not given")
		}
	})
}

// rangeOf reads both ends of a range.
func (p *parser) rangeOf(start, end string) (from, to Moment) {
	from, to = p.moment(start), p.moment(end)
	// Two times, or two spans, can be compared here. A time and a span can be compared only once
	// now is known.
	if zero := (time.Time{}); len(p.errs) == 0 && from.at.IsZero() == to.at.IsZero() && from.Ms(zero) >= to.Ms(zero) {
		p.fail(start, "must be before --%s, which is %s", end, p.c.String(end))
	}
	return from, to
}

// moment reads a time in the forms that docs/query.md lists.
func (p *parser) moment(flag string) Moment {
	text := p.c.String(flag)
	if text == "now" {
		return Moment{text: text}
	}
	if back, ok := strings.CutPrefix(text, "-"); ok {
		if d, err := metric.ParseSpan(back); err == nil && d >= 0 {
			return Moment{back: d, text: text}
		}
	}
	// Numbers from 1e11 on are milliseconds.
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 0 && n < 1e14 {
		if n < 1e11 {
			n *= 1000
		}
		return Moment{at: time.UnixMilli(int64(math.Round(n))), text: text}
	}
	t, ok := metric.ParseDate(text)
	if !ok || t.Year() < 1970 {
		p.fail(flag, "must be a time such as 2026-11-21, 2026-11-21T12:00:00Z, 1795262400, 1795262400000, now or -6h")
	}
	return Moment{at: t, text: text}
}
