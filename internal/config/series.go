package config

import "github.com/urfave/cli/v2"

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

// TopSeriesFlags returns the flags of `quern series top`.
func TopSeriesFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		&cli.StringSliceFlag{
			Name: "match", Category: catRequest, EnvVars: env("match"),
			Usage: "`SELECTOR` of the series to count; repeat the flag to add those that match another selector (default: all series)",
		},
		str(catRequest, "by", "", "only list to print: `metric`, label, value or source (default: all)"),
		str(catRequest, "label", "", "`NAME` of the label whose values are listed (default: all labels)"),
		integer(catRequest, "limit", 10, "number of entries of each list"),
		integer(catRequest, "days", 0, "number of days (UTC), today included, for which to count the series that are new and those that have vanished"),
		jsonFlag(),
	}...)
}

// FromTopSeries reads the flags of `quern series top`. The error names all mistakes at once.
func FromTopSeries(c *cli.Context) (TopSeries, error) {
	return read(c, func(p *parser, t *TopSeries) {
		t.Connection, t.Match = p.connection(), c.StringSlice("match")
		if c.String("by") != "" {
			t.By = p.oneOf("by", "metric", "label", "value", "source")
		}
		t.Label = c.String("label")
		t.Limit, t.Days = p.within("limit", 1, 10_000), p.within("days", 0, 31)
		t.JSON = c.Bool("json")
	})
}
