package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// catTransfer is the category of the flags for exports and imports.
const catTransfer = "Transfer"

// Export holds the validated options of `quern export`.
type Export struct {
	Connection
	Match       []string
	Start, End  metric.Moment
	Part        time.Duration
	Annotations bool
	// Output is empty for standard output.
	Output    string
	Overwrite bool
}

// Import holds the validated options of `quern import`.
type Import struct {
	Connection
	Files  []string
	Rate   int
	GiveUp time.Duration
}

// ExportFlags returns the flags of `quern export`.
func ExportFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		matchFlag(),
		str(catRequest, "start", "-7d", "start `TIME`, such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catRequest, "end", "now", "end `TIME`, in the forms of --start"),
		boolean(catTransfer, "annotations", true, "export the annotations of the time range, too"),
		str(catTransfer, "output", "-", "`FILE` to write, compressed if its name ends in .gz or .zst; - is standard output"),
		span(catTransfer, "part", day, "time range of one request; a stopped export loses at most one of them"),
		boolean(catTransfer, "overwrite", false, "start over, even if FILE exists"),
	}...)
}

// ImportFlags returns the flags of `quern import`.
func ImportFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		str(catServer, "url", "http://127.0.0.1:9095", "`URL` of the Quern server to send samples to"),
		integer(catTransfer, "rate", 0, "maximum number of samples sent per second; 0 is no limit"),
		span(catTransfer, "give-up", 10*time.Minute, "maximum time to wait for a server that is busy or unavailable"),
	}...)
}

// FromExport reads the flags of `quern export`. The error names all mistakes at once.
func FromExport(c *cli.Context) (Export, error) {
	return read(c, func(p *parser, e *Export) {
		e.Connection = p.connection()
		if e.Match = p.c.StringSlice("match"); len(e.Match) == 0 {
			e.Match = []string{`{__name__!=""}`}
		}
		e.Start, e.End = p.rangeOf("start", "end")
		e.Part = p.interval("part")
		e.Annotations = p.c.Bool("annotations")
		if e.Output = p.required("output"); e.Output == "-" {
			e.Output = ""
		}
		e.Overwrite = p.c.Bool("overwrite")
		if e.Overwrite && e.Output == "" {
			p.add(errors.New("--overwrite: needs --output FILE"))
		}
	})
}

// FromImport reads the flags of `quern import`. The error names all mistakes at once.
func FromImport(c *cli.Context) (Import, error) {
	return read(c, func(p *parser, i *Import) {
		i.Connection, i.Files = p.connection(), p.c.Args().Slice()
		i.Rate = p.within("rate", 0, 1<<40)
		i.GiveUp = p.notNegative("give-up")
		switch {
		case len(i.Files) == 0:
			p.add(errors.New("name the files to import, or - for standard input"))
		case len(i.Files) > 1 && slices.Contains(i.Files, "-"):
			p.add(errors.New("-: standard input cannot be combined with files"))
		}
		for _, f := range i.Files {
			if f == "" || strings.HasPrefix(f, "-") && f != "-" {
				p.add(fmt.Errorf("%q is not a file name: put flags before the files, and ./ before a file name that begins with -", f))
			}
		}
	})
}
