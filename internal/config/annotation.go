package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

const catAnnotation = "Annotation"

// Annotate holds the options of `quern annotate`. The server validates text, tags and selector.
type Annotate struct {
	Connection
	ID, Text, Selector string
	Tags               []string
	Start, End         metric.Moment
}

// FindAnnotations holds the options of `quern annotate list`.
type FindAnnotations struct {
	Connection
	Start, End metric.Moment
	Tags       []string
	Text       string
	Limit      int
}

// DeleteAnnotation holds the options of `quern annotate delete`.
type DeleteAnnotation struct {
	Connection
	ID    string
	Start metric.Moment
}

func tagFlag(usage string) cli.Flag {
	return &cli.StringSliceFlag{Name: "tag", Category: catAnnotation, EnvVars: env("tag"), Usage: usage}
}

// AnnotateFlags returns the flags of `quern annotate`.
func AnnotateFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catAnnotation, "at", "now", "`TIME` of a moment, such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catAnnotation, "from", "", "start `TIME` of a span"),
		str(catAnnotation, "to", "", "end `TIME` of a span (default: now)"),
		tagFlag("`TAG`, such as release or team=web; repeat the flag for more"),
		str(catAnnotation, "selector", "", "`SELECTOR` of the series that the annotation is about (default: all)"),
		str(catAnnotation, "id", "", "`ID` that makes a repeat the same annotation (default: a random one)"),
	}...)
}

// FindAnnotationsFlags returns the flags of `quern annotate list`.
func FindAnnotationsFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catAnnotation, "start", "-7d", "start `TIME`, such as 2026-11-21T12:00:00Z, 1795262400 or -6h"),
		str(catAnnotation, "end", "now", "end `TIME`, in the forms of --start"),
		tagFlag("`TAG` that the annotations must have; repeat the flag for more, of which they must have all"),
		str(catAnnotation, "text", "", "part of the text; the case of letters does not matter"),
		integer(catAnnotation, "limit", 100, "maximum number of annotations to list: the last ones"),
	}...)
}

// DeleteAnnotationFlags returns the flags of `quern annotate delete`.
func DeleteAnnotationFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catAnnotation, "start", "", "start `TIME` of the annotation, as `quern annotate list` shows it"),
	}...)
}

// FromAnnotate reads the flags and the argument of `quern annotate`.
func FromAnnotate(c *cli.Context) (Annotate, error) {
	return read(c, func(p *parser, a *Annotate) {
		a.Connection = p.connection()
		a.Tags, a.Selector, a.ID = c.StringSlice("tag"), c.String("selector"), c.String("id")
		a.Text = c.Args().First()
		switch {
		case c.NArg() > 1 && strings.HasPrefix(c.Args().Get(1), "-"):
			p.add(fmt.Errorf("%s: put flags before the text", c.Args().Get(1)))
		case c.NArg() > 1:
			p.add(fmt.Errorf("put the text in quotes: %q is a second argument", c.Args().Get(1)))
		case a.Text == "" && len(a.Tags) == 0:
			p.add(errors.New(`give a text: quern annotate --tag release "Release 1.4"`))
		}
		switch {
		case c.String("from") == "" && c.String("to") != "":
			p.fail("to", "needs --from")
		case c.String("from") != "" && c.IsSet("at"):
			p.fail("at", "conflicts with --from: a moment has --at, a span --from and --to")
		case c.String("from") == "":
			a.Start = p.moment("at")
			a.End = a.Start
		case c.String("to") == "":
			a.Start = p.moment("from")
			a.End, _ = metric.ParseMoment("now")
		default:
			a.Start, a.End = p.rangeOf("from", "to")
		}
	})
}

// FromFindAnnotations reads the flags of `quern annotate list`.
func FromFindAnnotations(c *cli.Context) (FindAnnotations, error) {
	return read(c, func(p *parser, f *FindAnnotations) {
		f.Connection = p.connection()
		f.Start, f.End = p.rangeOf("start", "end")
		f.Tags, f.Text, f.Limit = c.StringSlice("tag"), c.String("text"), p.within("limit", 1, 10_000)
		if c.NArg() > 0 {
			p.add(fmt.Errorf("%q: list takes no argument; --text finds a part of the text", c.Args().First()))
		}
	})
}

// FromDeleteAnnotation reads the flags and the argument of `quern annotate delete`.
func FromDeleteAnnotation(c *cli.Context) (DeleteAnnotation, error) {
	return read(c, func(p *parser, d *DeleteAnnotation) {
		d.Connection = p.connection()
		if d.ID = c.Args().First(); c.NArg() != 1 || d.ID == "" {
			p.add(errors.New("name the annotation as `quern annotate list` shows it: quern annotate delete --start TIME ID"))
		} else if p.required("start") != "" {
			d.Start = p.moment("start")
		}
	})
}
