package config

import (
	"errors"

	"github.com/urfave/cli/v2"
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

// StatusFlags returns the flags of `quern status`.
func StatusFlags() []cli.Flag {
	return append(connectionFlags(), configFlag(), urlFlag(), jsonFlag())
}

// FromStatus reads the flags of `quern status`.
func FromStatus(c *cli.Context) (Status, error) {
	return read(c, func(p *parser, s *Status) { s.Connection, s.JSON = p.connection(), c.Bool("json") })
}

func jsonFlag() cli.Flag {
	return boolean(catRequest, "json", false, "print the server's answer unchanged, as JSON")
}

func urlFlag() cli.Flag {
	return str(catServer, "url", "http://127.0.0.1:9095", "`URL` of the Quern server to ask")
}

func matchFlag() cli.Flag {
	return &cli.StringSliceFlag{
		Name: "match", Category: catRequest, EnvVars: env("match"),
		Usage: "`SELECTOR` of series, as in Prometheus; repeat the flag to add the series that match another selector",
	}
}

// ReaggregateFlags returns the flags of `quern reaggregate`.
func ReaggregateFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		matchFlag(),
		str(catRequest, "start", "", "start `TIME`: 2025-11-21T12:00:00Z, Unix seconds or ms, or a span back from now such as -6h"),
		str(catRequest, "end", "now", "end `TIME`, not included"),
		takeBackFlag(catRequest),
	}...)
}

func takeBackFlag(category string) cli.Flag {
	return boolean(category, "take-back", false, "take back the rows of series without raw samples in the range; the server must run with --enable-admin-api")
}

// ExplainFlags returns the flags of `quern explain`.
func ExplainFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		matchFlag(),
		str(catRequest, "time", "now", "`TIME` within the rows to explain: 2025-11-21T12:00:00Z, Unix seconds or ms, or a span back from now such as -6h"),
		integer(catRequest, "limit", 10, "maximum number of matching series to explain"),
		jsonFlag(),
	}...)
}

// FromReaggregate reads the flags of `quern reaggregate`. The error names all mistakes at once.
func FromReaggregate(c *cli.Context) (Reaggregate, error) {
	return read(c, func(p *parser, r *Reaggregate) {
		r.Connection, r.Match = p.connection(), p.match()
		r.Start, r.End = p.required("start"), p.required("end")
		r.TakeBack = c.Bool("take-back")
	})
}

// FromExplain reads the flags of `quern explain`. The error names all mistakes at once.
func FromExplain(c *cli.Context) (Explain, error) {
	return read(c, func(p *parser, x *Explain) {
		x.Connection, x.Match = p.connection(), p.match()
		x.Time = p.required("time")
		x.Limit = p.within("limit", 1, 100)
		x.JSON = c.Bool("json")
	})
}

func (p *parser) match() []string {
	all := p.c.StringSlice("match")
	if len(all) == 0 {
		p.add(errors.New(`--match: name the series, such as --match 'cpu{source="web-1"}'`))
	}
	return all
}
