package config

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// Verify holds the validated options of `quern verify`.
type Verify struct {
	Connection
	Match      string
	Level      string
	Start, End metric.Moment
	Limit      int
	Repair     bool
	TakeBack   bool
	JSON       bool
}

const catVerify = "Verifying"

// VerifyFlags returns the flags of `quern verify`.
func VerifyFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catVerify, "match", `{__name__!=""}`, "`SELECTOR` of the series, as in queries"),
		str(catVerify, "level", "", "compare the rows of one `LEVEL` only, such as 1h"),
		str(catVerify, "start", "-2d", "start `TIME`, such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catVerify, "end", "now", "end `TIME`, in the forms of --start"),
		integer(catVerify, "limit", 100, "maximum number of differences to list; all are counted"),
		boolean(catVerify, "repair", false, "have slices that differ ground again"),
		takeBackFlag(catVerify),
		boolean(catVerify, "json", false, "print the differences and the outcome as lines of JSON, as the server's /api/v1/verify answers them"),
	}...)
}

// FromVerify reads the flags of `quern verify`. The error names all mistakes at once.
func FromVerify(c *cli.Context) (Verify, error) {
	return read(c, func(p *parser, v *Verify) {
		v.Connection = p.connection()
		v.Match = p.required("match")
		v.Level = p.c.String("level")
		v.Start, v.End = p.rangeOf("start", "end")
		v.Limit = p.within("limit", 0, 1<<30)
		v.Repair, v.TakeBack, v.JSON = p.c.Bool("repair"), p.c.Bool("take-back"), p.c.Bool("json")
		if v.TakeBack && !v.Repair {
			p.fail("take-back", "needs --repair")
		}
	})
}

// rangeOf reads both ends of a range.
func (p *parser) rangeOf(start, end string) (from, to metric.Moment) {
	from, to = p.moment(start), p.moment(end)
	// Two times, or two spans, can be compared here. A time and a span can be compared only once
	// now is known.
	if len(p.errs) == 0 && from.Ago() == to.Ago() && from.Ms(0) >= to.Ms(0) {
		p.fail(start, "must be before --%s, which is %s", end, p.c.String(end))
	}
	return from, to
}

// moment reads a time in the forms that docs/query.md lists.
func (p *parser) moment(flag string) metric.Moment {
	m, ok := metric.ParseMoment(p.c.String(flag))
	const year10000 = 253_402_300_800_000
	if !ok || !m.Ago() && (m.Ms(0) < 0 || m.Ms(0) >= year10000) {
		p.fail(flag, "must be a time such as 2026-11-21, 2026-11-21T12:00:00Z, 1795262400, 1795262400000, now or -6h")
	}
	return m
}
