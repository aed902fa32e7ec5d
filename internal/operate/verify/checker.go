// Package verify computes what roll-ups must be, and compares. It computes every level directly
// from the raw samples, not from the level below, with code that shares nothing with the grinding
// (internal/rollup). It trusts raw (invariant 2), and reads from a server over HTTP like any other
// reader.
package verify

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// Checker compares the rows of roll-ups with samples. All rows of a series must be given first,
// then its samples in order of time. Memory grows with the rows, not with the samples.
type Checker struct {
	ladder  metric.Ladder
	series  map[string]*Series
	samples int
	// bytes is about what the series and rows take, with what is noted of rows that differ.
	bytes int
	// damaged are the raw slices in which some samples cannot be read.
	damaged []metric.Slice
}

// NewChecker makes a checker for the levels of a ladder.
func NewChecker(l metric.Ladder) *Checker {
	return &Checker{ladder: l, series: map[string]*Series{}}
}

// Damaged says that samples in a slice cannot be read. A row there may have been ground from more
// samples than can be read now; such a row is unreadable, not wrong.
func (c *Checker) Damaged(s metric.Slice) { c.damaged = append(c.damaged, s) }

func (c *Checker) readable(s metric.Slice) bool {
	return !slices.ContainsFunc(c.damaged, func(d metric.Slice) bool { return d.StartMs < s.EndMs && s.StartMs < d.EndMs })
}

// Series holds the rows and the state of one series.
type Series struct {
	Labels metric.Labels

	checker *Checker
	rows    map[rowKey]*row
	open    []*row // by level, the row that the last sample was in
	lastMs  int64
	begun   bool
}

type rowKey struct {
	level   metric.Bucket
	startMs int64
}

type row struct {
	rowKey
	got   *Row
	again bool // several rows were read
	must  must
}

// Series finds a series by its labels, or adds it.
func (c *Checker) Series(labels metric.Labels) *Series {
	key := string(labels.AppendKey(nil))
	s := c.series[key]
	if s == nil {
		s = &Series{Labels: labels, checker: c, rows: map[rowKey]*row{}, open: make([]*row, c.ladder.Top()+1)}
		c.series[key] = s
		c.bytes += seriesBytes + 4*len(key)
	}
	return s
}

const (
	// rowBytes is about what a row takes: itself, its entry in a map, and what is noted if it differs.
	rowBytes = 640
	// seriesBytes is about what a series takes beside the text of its labels.
	seriesBytes = 512
)

// add adds a row.
func (s *Series) add(r *row) {
	s.rows[r.rowKey] = r
	s.checker.bytes += rowBytes
}

// Samples is the number of samples given, including those that are not finite.
func (c *Checker) Samples() int { return c.samples }

// Row adds a row that was read.
func (s *Series) Row(level metric.Bucket, startMs int64, r Row) {
	k := rowKey{level, startMs}
	if earlier := s.rows[k]; earlier != nil {
		earlier.again = true
		return
	}
	n := &row{rowKey: k, got: &r}
	n.must.expect(&r)
	s.add(n)
}

// Sample adds the next sample. It returns an error if the sample is not later than the one before:
// a moment has one value.
func (s *Series) Sample(ms int64, v float64) error {
	if s.begun && ms <= s.lastMs {
		return fmt.Errorf("%s: a sample at %d follows one at %d", s.Labels, ms, s.lastMs)
	}
	s.lastMs, s.begun = ms, true
	s.checker.samples++
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	for _, level := range s.checker.ladder.Levels() {
		start := s.checker.ladder.SliceAt(level-1, ms).StartMs
		r := s.open[level]
		if r == nil || r.startMs != start {
			k := rowKey{level, start}
			if r = s.rows[k]; r == nil {
				r = &row{rowKey: k}
				s.add(r)
			}
			s.open[level] = r
		}
		r.must.add(ms, v)
	}
	return nil
}

// Unreadable is a row of more samples than can be read, because some are damaged: the row may be
// right or wrong.
const Unreadable = "unreadable"

// Result is the outcome of comparing one row.
type Result struct {
	Series metric.Labels
	Level  metric.Bucket
	Slice  metric.Slice
	// Kind is empty for a row that is as it must be; else a kind of wire.Difference, or Unreadable.
	Kind string
	// Got is the row that was read, nil for none.
	Got *Row
	// Fields are the fields that are wrong, the count if a row is missing or surplus.
	Fields []wire.DifferenceField
}

// Results compares every row that exists or must exist: by series, level and time. It leaves out
// rows for which skip returns true; a nil skip leaves out none.
func (c *Checker) Results(skip func(level metric.Bucket, s metric.Slice) bool, each func(Result)) {
	for _, key := range slices.Sorted(maps.Keys(c.series)) {
		s := c.series[key]
		rows := slices.SortedFunc(maps.Values(s.rows), func(a, b *row) int {
			return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.startMs, b.startMs))
		})
		for _, r := range rows {
			slice := metric.Slice{StartMs: r.startMs, EndMs: r.startMs + c.ladder.WidthMs(r.level)}
			if skip == nil || !skip(r.level, slice) {
				each(r.compare(s.Labels, slice, c.readable(slice)))
			}
		}
	}
}

func (r *row) compare(labels metric.Labels, slice metric.Slice, readable bool) Result {
	out := Result{Series: labels, Level: r.level, Slice: slice, Got: r.got}
	switch {
	case r.got == nil:
		out.Kind = wire.Missing
		out.Fields = []wire.DifferenceField{{Name: "count", Samples: strconv.FormatUint(r.must.count, 10)}}
	case r.again:
		out.Kind = wire.Doubled
	case !readable && r.got.Count > r.must.count:
		out.Kind = Unreadable
	case r.must.count == 0:
		out.Kind = wire.Surplus
		out.Fields = []wire.DifferenceField{{Name: "count", Row: strconv.FormatUint(r.got.Count, 10)}}
	default:
		out.Fields = r.must.differs(r.got)
		if r.got.Partial && readable {
			out.Fields = append(out.Fields, wire.DifferenceField{Name: "partial", Row: "true", Samples: "false"})
		}
		if len(out.Fields) > 0 {
			out.Kind = wire.Wrong
		}
	}
	return out
}

// Difference is a row that is not as it must be, as the HTTP API says it. The ladder gives the names of the levels.
func (r *Result) Difference(l metric.Ladder) wire.Difference {
	out := wire.Difference{
		Kind: r.Kind, Metric: map[string]string{}, Level: l.Name(r.Level), Start: r.Slice.StartMs, End: r.Slice.EndMs, Fields: r.Fields,
	}
	for _, label := range r.Series {
		out.Metric[label.Name] = label.Value
	}
	return out
}

// Lines describe a difference for people, one thing per line.
func Lines(d wire.Difference) []string {
	if d.Kind == wire.Damaged {
		return []string{"damaged: " + d.Message}
	}
	labels, _ := labelsOf(d.Metric) // of a difference they are valid
	at := fmt.Sprintf("%s %s %s", labels, d.Level, metric.Slice{StartMs: d.Start, EndMs: d.End})
	var out []string
	for _, f := range d.Fields {
		switch d.Kind {
		case wire.Missing:
			out = append(out, fmt.Sprintf("%s missing: there is no row, the samples say %s %s", at, f.Name, f.Samples))
		case wire.Surplus:
			out = append(out, fmt.Sprintf("%s surplus: the row says %s %s, there are no samples", at, f.Name, f.Row))
		default:
			out = append(out, fmt.Sprintf("%s wrong %s: the row says %s, the samples say %s", at, f.Name, f.Row, f.Samples))
		}
	}
	if d.Kind == wire.Doubled {
		out = append(out, at+" doubled: there are several rows")
	}
	return out
}
