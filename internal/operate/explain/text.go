package explain

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
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
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "    %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(t, "\n  %s row of %s: %s\n", l.Level, at(l.Slice), l.Why)
	row("next", "%s", l.Next)
	row("slice", "%s to %s, %s, ground at %s", at(l.Slice), at(l.SliceEnd), l.State, at(l.RunAt))
	if l.Place != nil {
		row("block", "%s", l.Place.text())
	}
	row("input", "%s", l.Input.text())
	switch {
	case l.Row == nil:
		row("row", "none")
	default:
		sum := "out of range"
		if l.Row.Sum != nil {
			sum = strconv.FormatFloat(*l.Row.Sum, 'g', -1, 64)
		}
		partial := ""
		if l.Row.Partial {
			partial = ", partial"
		}
		row("row", "count %d, sum %s, min %v, max %v%s%s", l.Row.Count, sum, l.Row.Min, l.Row.Max, partial, expires(l.Row.Expires))
	}
	for _, m := range l.Marks {
		what := ""
		switch {
		case m.Schedules == nil:
		case *m.Schedules == 0:
			what = ", the whole block"
		default:
			what = fmt.Sprintf(", %d schedules", *m.Schedules)
		}
		text := fmt.Sprintf("%s%s, in the slice of %s, run at %s, due since %s", m.Kind, what, at(m.Slice), at(m.RunAt), at(m.Due))
		if m.Chunks != nil && *m.Chunks > 0 {
			text += fmt.Sprintf(", %d chunks in the cache", *m.Chunks)
		}
		if m.Attempt > 0 {
			text += fmt.Sprintf(", failed %d times: %s", m.Attempt, m.LastError)
		}
		row("mark", "%s", text)
	}
	if l.MoreMarks > 0 {
		row("mark", "and %d more", l.MoreMarks)
	}
	for _, r := range l.Runs {
		text := fmt.Sprintf("%s by %s, %.3f s, %d blocks, %d put off, %d marks dropped", at(r.Started), r.Worker, r.Seconds, r.Blocks, r.Rescheduled, r.Dropped)
		if r.Error != "" {
			text += ": " + r.Error
		}
		row("run", "%s", text)
	}
	for _, e := range l.Errors {
		row("error", "%s in the run of %s: %s", at(e.Time), at(e.Slice), e.Message)
	}
}

func (p *Place) text() string {
	worker := p.Worker
	if worker == "" {
		worker = "nobody's"
	}
	if p.LeaseOwner != "" {
		worker += ", held by " + p.LeaseOwner
	}
	return fmt.Sprintf("%d to %d, shard %d, worker %s", p.Block, p.BlockEnd-1, p.Shard, worker)
}

func (i *Input) text() string {
	var text string
	if i.Rows > 0 || i.Bucket != "raw" {
		text = fmt.Sprintf("%d %s rows of %d samples", i.Rows, i.Bucket, i.Samples)
	} else {
		in := ""
		if i.Chunks > 0 || i.Samples == 0 {
			in = fmt.Sprintf(" in %d chunks", i.Chunks)
		}
		text = fmt.Sprintf("%d raw samples%s, %d finite, %d not", i.Samples, in, i.Finite, i.NotFinite)
	}
	if i.Damaged > 0 {
		text += fmt.Sprintf(", %d damaged", i.Damaged)
	}
	return text + expires(i.Expires)
}

func expires(ms int64) string {
	if ms == 0 {
		return ""
	}
	return ", expires from " + at(ms) + " on"
}
