package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

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

func (o *options) annotation() group { return o.group("Annotation") }

// AnnotateFlags and FromAnnotate are of `quern annotate`.
var AnnotateFlags, FromAnnotate = command(func(o *options, a *Annotate) {
	a.Connection.addRows(o)
	parsed(o.annotation(), &a.Start, "at", "now", "`TIME` of a moment, such as 2026-11-21T12:00:00Z, 1795262400 or -6h", parseMoment)
	var from, to metric.Moment
	given(o.annotation(), &from, "from", "", "start `TIME` of a span", parseMoment)
	given(o.annotation(), &to, "to", "", "end `TIME` of a span (default: now)", parseMoment)
	o.annotation().repeated(&a.Tags, "tag", "`TAG`, such as release or team=web; repeat the flag for more")
	o.annotation().text(&a.Selector, "selector", "", "`SELECTOR` of the series that the annotation is about (default: all)")
	o.annotation().text(&a.ID, "id", "", "`ID` that makes a repeat the same annotation (default: a random one)")
	o.check(func(c *cli.Context) error {
		a.Text = c.Args().First()
		switch {
		case c.NArg() > 1 && strings.HasPrefix(c.Args().Get(1), "-"):
			return fmt.Errorf("%s: put flags before the text", c.Args().Get(1))
		case c.NArg() > 1:
			return fmt.Errorf("put the text in quotes: %q is a second argument", c.Args().Get(1))
		case a.Text == "" && len(a.Tags) == 0:
			return errors.New(`give a text: quern annotate --tag release "Release 1.4"`)
		}
		return nil
	})
	o.check(func(c *cli.Context) error {
		switch {
		case !c.IsSet("from") && c.IsSet("to"):
			return fmt.Errorf("--to %s: needs --from", to)
		case c.IsSet("from") && c.IsSet("at"):
			return fmt.Errorf("--at %s: conflicts with --from: a moment has --at, a span --from and --to", c.String("at"))
		case !c.IsSet("from"):
			a.End = a.Start
			return nil
		case !c.IsSet("to"):
			to, _ = metric.ParseMoment("now")
			a.Start, a.End = from, to
			return nil
		}
		a.Start, a.End = from, to
		return o.ordered("from", from, "to", to)
	})
})

// FindAnnotationsFlags and FromFindAnnotations are of `quern annotate list`.
var FindAnnotationsFlags, FromFindAnnotations = command(func(o *options, f *FindAnnotations) {
	f.Connection.addRows(o)
	o.request().timeRange(&f.Start, &f.End, "-7d")
	o.annotation().repeated(&f.Tags, "tag", "`TAG` that the annotations must have; repeat the flag for more, of which they must have all")
	o.annotation().text(&f.Text, "text", "", "part of the text; the case of letters does not matter")
	number(o.annotation(), &f.Limit, "limit", 100, 1, 10_000, "maximum number of annotations to list: the last ones")
	o.check(func(c *cli.Context) error {
		if c.NArg() > 0 {
			return fmt.Errorf("%q: list takes no argument; --text finds a part of the text", c.Args().First())
		}
		return nil
	})
})

// DeleteAnnotationFlags and FromDeleteAnnotation are of `quern annotate delete`.
var DeleteAnnotationFlags, FromDeleteAnnotation = command(func(o *options, d *DeleteAnnotation) {
	d.Connection.addRows(o)
	parsed(o.annotation(), &d.Start, "start", "", "start `TIME` of the annotation, as `quern annotate list` shows it", parseMoment)
	o.argument(&d.ID, "name the annotation as `quern annotate list` shows it: quern annotate delete --start TIME ID")
})

// moment parses a time in the forms that docs/query.md lists.
func parseMoment(text string) (metric.Moment, error) {
	if text == "" {
		return metric.Moment{}, errEmpty
	}
	m, ok := metric.ParseMoment(text)
	const year10000 = 253_402_300_800_000
	if !ok || !m.Ago() && (m.Ms(0) < 0 || m.Ms(0) >= year10000) {
		return metric.Moment{}, errors.New("must be a time such as 2026-11-21, 2026-11-21T12:00:00Z, 1795262400, 1795262400000, now or -6h")
	}
	return m, nil
}

// timeRange adds both ends of a range.
func (g group) timeRange(start, end *metric.Moment, from string) {
	parsed(g, start, "start", from, "start `TIME`, such as 2026-11-21T12:00:00Z, 1795262400 or -6h", parseMoment)
	parsed(g, end, "end", "now", "end `TIME`, in the forms of --start", parseMoment)
	g.check(func(*cli.Context) error { return g.ordered("start", *start, "end", *end) })
}

// ordered returns an error if a range is empty. Two times, or two spans, can be compared here. A time and a span can be
// compared only once now is known.
func (o *options) ordered(startFlag string, start metric.Moment, endFlag string, end metric.Moment) error {
	if len(o.errs) > 0 || start.Ago() != end.Ago() || start.Ms(0) < end.Ms(0) {
		return nil
	}
	return fmt.Errorf("--%s %s: must be before --%s, which is %s", startFlag, start, endFlag, end)
}
