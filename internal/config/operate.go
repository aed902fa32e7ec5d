package config

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// Reaggregate holds the options of `quern reaggregate`. The server validates series and times.
type Reaggregate struct {
	Connection
	Match      []string
	Start, End string
	TakeBack   bool
}

// Explain holds the options of `quern explain`.
type Explain struct {
	Connection
	Match []string
	Time  string
	Limit int
	JSON  bool
}

// Status holds the options of `quern status`.
type Status struct {
	Connection
	JSON bool
}

// TopSeries holds the options of `quern series top`. The server validates the selectors, and has the same bounds of limit and days.
type TopSeries struct {
	Connection
	// Match is empty for all series.
	Match []string
	// By is the list to print; empty means all lists.
	By string
	// Label is the label whose values are listed; empty means all labels.
	Label       string
	Limit, Days int
	JSON        bool
}

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

// StatusFlags and FromStatus are of `quern status`.
var StatusFlags, FromStatus = command(func(o *options, s *Status) {
	s.addRows(o)
	o.json(&s.JSON)
})

// HealthyFlags and FromHealthy are of `quern healthy`.
var HealthyFlags, FromHealthy = command(func(o *options, c *Connection) { c.addRows(o) })

// ReaggregateFlags and FromReaggregate are of `quern reaggregate`.
var ReaggregateFlags, FromReaggregate = command(func(o *options, r *Reaggregate) {
	r.addRows(o)
	o.match(&r.Match)
	o.named(&r.Match)
	o.request().required(&r.Start, "start", "", "start `TIME`: 2025-11-21T12:00:00Z, Unix seconds or ms, or a span back from now such as -6h")
	o.request().required(&r.End, "end", "now", "end `TIME`, not included")
	o.takeBack(&r.TakeBack)
})

// ExplainFlags and FromExplain are of `quern explain`.
var ExplainFlags, FromExplain = command(func(o *options, x *Explain) {
	x.addRows(o)
	o.match(&x.Match)
	o.named(&x.Match)
	o.request().required(&x.Time, "time", "now", "`TIME` within the rows to explain: 2025-11-21T12:00:00Z, Unix seconds or ms, or a span back from now such as -6h")
	number(o.request(), &x.Limit, "limit", 10, 1, 100, "maximum number of matching series to explain")
	o.json(&x.JSON)
})

// TopSeriesFlags and FromTopSeries are of `quern series top`.
var TopSeriesFlags, FromTopSeries = command(func(o *options, t *TopSeries) {
	t.addRows(o)
	o.request().repeated(&t.Match, "match", "`SELECTOR` of the series to count; repeat the flag to add those that match another selector (default: all series)")
	parsed(o.request(), &t.By, "by", "", "only list to print: `metric`, label, value or source (default: all)", func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		return oneOf(s, "metric", "label", "value", "source")
	})
	o.request().text(&t.Label, "label", "", "`NAME` of the label whose values are listed (default: all labels)")
	number(o.request(), &t.Limit, "limit", 10, 1, 10_000, "number of entries of each list")
	number(o.request(), &t.Days, "days", 0, 0, 31, "number of days (UTC), today included, for which to count the series that are new and those that have vanished")
	o.json(&t.JSON)
})

// VerifyFlags and FromVerify are of `quern verify`.
var VerifyFlags, FromVerify = command(func(o *options, v *Verify) {
	v.addRows(o)
	o.request().required(&v.Match, "match", `{__name__!=""}`, "`SELECTOR` of the series, as in queries")
	o.request().text(&v.Level, "level", "", "compare the rows of one `LEVEL` only, such as 1h")
	o.request().timeRange(&v.Start, &v.End, "-2d")
	number(o.request(), &v.Limit, "limit", 100, 0, 1<<30, "maximum number of differences to list; all are counted")
	o.request().boolean(&v.Repair, "repair", false, "have slices that differ ground again")
	o.takeBack(&v.TakeBack)
	o.request().boolean(&v.JSON, "json", false, "print the differences and the outcome as lines of JSON, as the server's /api/v1/verify answers them")
	o.check(func(*cli.Context) error {
		if v.TakeBack && !v.Repair {
			return fmt.Errorf("--take-back: needs --repair")
		}
		return nil
	})
})

func (o *options) json(to *bool) {
	o.request().boolean(to, "json", false, "print the server's answer unchanged, as JSON")
}

func (o *options) takeBack(to *bool) {
	o.request().boolean(to, "take-back", false, "take back the rows of series without raw samples in the range; the server must run with --enable-admin-api")
}

func (o *options) match(to *[]string) {
	o.request().repeated(to, "match", "`SELECTOR` of series, as in Prometheus; repeat the flag to add the series that match another selector")
}

// named returns an error if no series are named.
func (o *options) named(match *[]string) {
	o.check(func(*cli.Context) error {
		if len(*match) == 0 {
			return errors.New(`--match: name the series, such as --match 'cpu{source="web-1"}'`)
		}
		return nil
	})
}
