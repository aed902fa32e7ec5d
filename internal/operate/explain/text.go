package explain

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/quern/quern/internal/metric"
)

// WriteText writes the answer for people to read.
func (a *Answer) WriteText(out io.Writer) error {
	var buf bytes.Buffer
	t := tabwriter.NewWriter(&buf, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "at %s, as seen at %s\n", at(a.Time), at(a.Now))
	for i := range a.Series {
		a.Series[i].write(t)
	}
	if more := a.Matched - len(a.Series); more > 0 {
		fmt.Fprintf(t, "\n%d more series match; --limit shows more\n", more)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := out.Write(buf.Bytes())
	return err
}

func (s *Series) write(t io.Writer) {
	fmt.Fprintf(t, "\n%s\n", s.name())
	if s.Schedule != nil {
		fmt.Fprintf(t, "schedule %d ", *s.Schedule)
	}
	fmt.Fprintf(t, "of source %s\n", s.Source)
	for i := range s.Levels {
		s.Levels[i].write(t)
	}
}

// name returns the series as a selector.
func (s *Series) name() string {
	var ls metric.Labels
	for name, value := range s.Metric {
		ls = append(ls, metric.Label{Name: name, Value: value})
	}
	slices.SortFunc(ls, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
	return ls.String()
}

func (l *Level) write(t io.Writer) {
	row := func(name, text string) { fmt.Fprintf(t, "    %s\t%s\n", name, text) }
	fmt.Fprintf(t, "\n  %s row of %s: %s\n", l.Level, at(l.Slice), l.Why)
	row("next", l.Next)
	row("slice", fmt.Sprintf("%s to %s, %s, ground at %s", at(l.Slice), at(l.SliceEnd), l.State, at(l.RunAt)))
	if l.Place != nil {
		row("block", fields(*l.Place))
	}
	row("input", fields(l.Input))
	if l.Row == nil {
		row("row", "none")
	} else {
		row("row", fields(*l.Row))
	}
	for _, m := range l.Marks {
		row("mark", fields(m))
	}
	if l.MoreMarks > 0 {
		row("mark", fmt.Sprintf("and %d more", l.MoreMarks))
	}
	for _, r := range l.Runs {
		row("run", fields(r))
	}
	for _, e := range l.Errors {
		row("error", fields(e))
	}
}

// times are the fields that hold Unix ms.
var times = map[string]bool{"slice": true, "run_at": true, "due": true, "started": true, "time": true, "expires": true}

// fields lists what a part of the answer has, by the names of its external form.
func fields(part any) string {
	var out []string
	for field, v := range reflect.ValueOf(part).Fields() {
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		if option != "" && v.IsZero() {
			continue
		}
		value := fmt.Sprint(reflect.Indirect(v))
		if times[name] {
			value = at(v.Int())
		}
		out = append(out, strings.ReplaceAll(name, "_", " ")+" "+cmp.Or(value, "-"))
	}
	return strings.Join(out, ", ")
}
