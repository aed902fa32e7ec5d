package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// catTransfer is the category of the flags for exports and imports.
const catTransfer = "Transfer"

// Export holds the validated options of `quern export`.
type Export struct {
	URL        string
	Match      []string
	Start, End Moment
	Part       time.Duration
	// Output is empty for standard output.
	Output    string
	Overwrite bool
}

// Import holds the validated options of `quern import`.
type Import struct {
	URL    string
	Files  []string
	Rate   int
	GiveUp time.Duration
}

// ExportFlags returns the flags of `quern export`.
func ExportFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		urlFlag(),
		matchFlag(),
		str(catRequest, "start", "-7d", "from when on: a `TIME` such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catRequest, "end", "now", "until when: a `TIME`, as for --start"),
		str(catTransfer, "output", "-", "`FILE` that is written, compressed if it is called .gz or .zst; - is standard output"),
		span(catTransfer, "part", day, "range of time that is asked for at once: what is lost when it is stopped"),
		boolean(catTransfer, "overwrite", false, "begin anew, whatever FILE has"),
	}
}

// ImportFlags returns the flags of `quern import`.
func ImportFlags() []cli.Flag {
	return []cli.Flag{
		configFlag(),
		str(catServer, "url", "http://127.0.0.1:9095", "`URL` of the Quern server that takes the samples"),
		integer(catTransfer, "rate", 0, "samples sent in a second; 0 is no limit"),
		span(catTransfer, "give-up", 10*time.Minute, "how long a server that is busy or away is waited for"),
	}
}

// FromExport reads the flags of `quern export`. The error names all mistakes at once.
func FromExport(c *cli.Context) (Export, error) {
	return read(c, func(p *parser, e *Export) {
		e.URL = p.url()
		if e.Match = p.c.StringSlice("match"); len(e.Match) == 0 {
			e.Match = []string{`{__name__!=""}`}
		}
		e.Start, e.End = p.rangeOf("start", "end")
		e.Part = p.interval("part")
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
		i.URL, i.Files = p.url(), p.c.Args().Slice()
		i.Rate = p.within("rate", 0, 1<<40)
		i.GiveUp = p.notNegative("give-up")
		switch {
		case len(i.Files) == 0:
			p.add(errors.New("name the files to import, or - for standard input"))
		case len(i.Files) > 1 && slices.Contains(i.Files, "-"):
			p.add(errors.New("-: standard input is imported alone"))
		}
		for _, f := range i.Files {
			if f == "" || strings.HasPrefix(f, "-") && f != "-" {
				p.add(fmt.Errorf("%q is no file's name: flags come before the files, and ./ before a name that begins with -", f))
			}
		}
	})
}
