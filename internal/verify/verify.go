package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Options are what is verified, and how.
type Options struct {
	Client *Client
	// Match selects the series.
	Match string
	// Rows whose slices lie within [StartMs, EndMs) are compared.
	StartMs, EndMs int64
	// Limit is how many differences are told. All are counted.
	Limit int
	// Repair has the slices that differ ground again, and TakeBack then the rows taken back that have no samples.
	Repair, TakeBack bool
	// Tell takes a line for each difference; Progress, which may be nil, how far it is.
	Tell     func(line string)
	Progress func(done, total int)
}

// Level is what came out for one level, in rows.
type Level struct {
	Name string
	// Compared are those held to their samples, Different those of them that are wrong.
	Compared, Different int
	// Pending are those that differ while something that lies in their slice is still to be ground.
	Pending int
	// NotGround are those of slices that are not over or whose run has not ended, and Expired
	// those whose samples, or which themselves, are or may be gone. Neither is compared.
	NotGround, Expired int
	// Unreadable are those of more samples than can be read, where raw chunks are damaged. They are not compared.
	Unreadable int
}

// Summary is what came out.
type Summary struct {
	// StartMs and EndMs are what was looked at: without what has expired or is not over.
	StartMs, EndMs  int64
	Series, Samples int
	Levels          []Level
	// Damaged is the number of raw chunks that cannot be read, DamagedRows that of rows that cannot, or whose sketches cannot.
	// These rows are compared, and differ.
	Damaged, DamagedRows int
	// Repaired is what was asked for, nil without Repair and when nothing differs.
	Repaired *Repaired
}

// Differences are the rows that are wrong.
func (s *Summary) Differences() int {
	n := 0
	for _, l := range s.Levels {
		n += l.Different
	}
	return n
}

// Repaired is what is ground again.
type Repaired struct {
	Series, Slices int
	// Surplus are rows without samples, which are left as they are without TakeBack, and Ahead those that what a run writes does
	// not replace, as they carry a later time.
	Surplus, Ahead int
	// AheadFirst is the first of them, and why.
	AheadFirst string
	// RightMs is, by level, finest first, the end of the slice whose run makes rows right; 0 where none differs.
	RightMs []int64
}

// Run compares. The error is not about differences.
//
// A window of time is read after the other, each as wide as a slice of the coarsest level, or some. Raw is
// read after the rows, and the status before and after both. What differs is read again, and counts as
// different only when it is found twice, in the same row unchanged, and no mark stands
// for its slice. That leaves no false alarm: a mark is there before the sample that it
// stands for, and what a mark that was seen no more stood for is in the rows read after.
func Run(ctx context.Context, o Options) (*Summary, error) {
	v := verifier{Options: o, series: map[string]struct{}{}, repair: map[string]*toRepair{}}
	var err error
	if v.status, err = o.Client.Status(ctx); err != nil {
		return nil, err
	}
	v.ladder = v.status.Ladder
	for _, level := range v.ladder.Levels() {
		v.sum.Levels = append(v.sum.Levels, Level{Name: v.ladder.Name(level)})
	}
	// As many of the coarsest slices as make up an hour: of a ladder of seconds one is little for four requests.
	top := v.ladder.WidthMs(v.ladder.Top())
	top *= max(1, 3_600_000/top)
	if from := v.status.WholeFrom[metric.Raw]; from != math.MinInt64 {
		v.StartMs = max(v.StartMs, metric.AlignDown(from, top))
	}
	v.EndMs = min(v.EndMs, v.status.NowMs+1000)
	v.sum.StartMs, v.sum.EndMs = v.StartMs, v.EndMs
	first := metric.AlignDown(v.StartMs, top)
	total := int(max(0, v.EndMs-first+top-1) / top)
	for i := range total {
		start := first + int64(i)*top
		if err := v.window(ctx, metric.Slice{StartMs: max(start, v.StartMs), EndMs: min(start+top, v.EndMs)}); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(i+1, total)
		}
	}
	v.sum.Series = len(v.series)
	if o.Repair && len(v.repair) > 0 {
		if err := v.repairAll(ctx); err != nil {
			return &v.sum, fmt.Errorf("repair: %w", err)
		}
	}
	return &v.sum, nil
}

type verifier struct {
	Options
	ladder metric.Ladder
	// status is the last one read.
	status *Status
	sum    Summary
	series map[string]struct{}
	// damage is what the server said of damaged chunks, and damagedRows of damaged rows, in the last read.
	damage, damagedRows []string
	told                int
	// asked counts the rows that the server was asked about.
	asked  int
	repair map[string]*toRepair
}

// toRepair is what of a series differs.
type toRepair struct {
	labels metric.Labels
	slices []metric.Slice
	levels map[metric.Bucket]bool
}

// suspect is a row that differs; known by series, level and time.
type suspect struct {
	series string
	rowKey
}

// attempts bounds how often a row that differs and keeps changing is looked at.
const attempts = 5

func (v *verifier) window(ctx context.Context, w metric.Slice) error {
	before := v.status
	read, after, err := v.read(ctx, []string{v.Match}, w)
	if err != nil {
		return err
	}
	for _, warning := range v.damage {
		v.sum.Damaged += countIn(warning)
		v.tell("damaged: " + warning)
	}
	for _, warning := range v.damagedRows {
		v.sum.DamagedRows += countIn(warning)
		v.tell("damaged: " + warning)
	}
	v.sum.Samples += read.Samples()
	for key := range read.series {
		v.series[key] = struct{}{}
	}
	suspects := map[suspect]Result{}
	read.Results(func(level metric.Bucket, s metric.Slice) bool {
		count := &v.sum.Levels[level-1]
		switch {
		case s.StartMs < w.StartMs || s.EndMs > w.EndMs && s.EndMs <= before.NowMs:
			return true // not asked for
		case after.Expired(level, s):
			count.Expired++
			return true
		case before.Open(level, s) || after.Open(level, s):
			count.NotGround++
			return true
		}
		count.Compared++
		return false
	}, func(r Result) {
		switch {
		case r.Kind == "":
		case r.Kind == Unreadable:
			v.sum.Levels[r.Level-1].unreadable()
		case before.Waits(r.Level, r.Slice) || after.Waits(r.Level, r.Slice):
			v.sum.Levels[r.Level-1].Pending++
		default:
			suspects[suspectOf(&r)] = r
		}
	})
	for i := 1; len(suspects) > 0 && i < attempts; i++ {
		if suspects, err = v.again(ctx, w, suspects); err != nil {
			return err
		}
	}
	for _, r := range suspects {
		v.sum.Levels[r.Level-1].Pending++ // it changes each time it is looked at
	}
	return nil
}

func suspectOf(r *Result) suspect {
	return suspect{string(r.Series.AppendKey(nil)), rowKey{r.Level, r.Slice.StartMs}}
}

const (
	// selectorsAtOnce is how many series are named in a request.
	selectorsAtOnce = 50
	// bytesAtOnce is how long they may be together, encoded: a server takes forms of up to 1 MiB.
	bytesAtOnce = 512 << 10
)

// requests splits selectors into those that are named in one request each. One that is too long by itself is alone.
func requests(selectors []string) (out [][]string) {
	first, size := 0, 0
	for i, s := range selectors {
		n := len("match%5B%5D=&") + len(url.QueryEscape(s))
		if i > first && (i-first == selectorsAtOnce || size+n > bytesAtOnce) {
			out = append(out, selectors[first:i])
			first, size = i, 0
		}
		size += n
	}
	return append(out, selectors[first:])
}

// again looks at suspects once more, and returns those that it is to be done for yet again.
func (v *verifier) again(ctx context.Context, w metric.Slice, suspects map[suspect]Result) (map[suspect]Result, error) {
	named := map[string]string{}
	for k, r := range suspects {
		named[k.series] = Selector(r.Series)
	}
	selectors := []string{v.Match}
	if parts := requests(slices.Sorted(maps.Values(named))); len(parts) == 1 {
		selectors = parts[0]
	}
	before := v.status
	read, after, err := v.read(ctx, selectors, w)
	if err != nil {
		return nil, err
	}
	unsure := map[suspect]Result{}
	var failed error
	read.Results(nil, func(r Result) {
		was, ok := suspects[suspectOf(&r)]
		count := &v.sum.Levels[r.Level-1]
		switch {
		case !ok || r.Kind == "":
		case after.Expired(r.Level, r.Slice):
			count.Compared--
			count.Expired++
		case r.Kind == Unreadable:
			count.unreadable()
		case before.Open(r.Level, r.Slice) || after.Open(r.Level, r.Slice) || before.Waits(r.Level, r.Slice) || after.Waits(r.Level, r.Slice):
			count.Pending++
		case sameRow(was.Got, r.Got):
			count.Different++
			failed = cmp.Or(failed, v.different(ctx, &r))
		default:
			unsure[suspectOf(&r)] = r
		}
	})
	return unsure, failed
}

func sameRow(a, b *Row) bool {
	// As text, since NaN is not equal to itself.
	return (a == nil) == (b == nil) && (a == nil || fmt.Sprint(*a) == fmt.Sprint(*b))
}

func (v *verifier) tell(line string) {
	if v.told++; v.told <= v.Limit {
		v.Tell(line)
	}
}

func (l *Level) unreadable() {
	l.Compared--
	l.Unreadable++
}

// maxAsked bounds the rows about which the server is asked whether they can be repaired at all.
const maxAsked = 1000

// different tells of a row that is wrong, and notes it.
func (v *verifier) different(ctx context.Context, r *Result) error {
	for _, line := range r.Lines(v.ladder) {
		v.tell(line)
	}
	switch {
	case !v.Repair:
		return nil
	case v.sum.Repaired == nil:
		v.sum.Repaired = &Repaired{RightMs: make([]int64, v.ladder.Top())}
	}
	if r.Kind == Surplus && !v.TakeBack {
		v.sum.Repaired.Surplus++
		return nil
	}
	if v.asked++; v.asked <= maxAsked {
		why, err := v.Client.Ahead(ctx, r.Series, v.ladder.Name(r.Level), r.Slice.StartMs)
		if err != nil {
			return err
		}
		if why != "" {
			done := v.sum.Repaired
			done.Ahead++
			done.AheadFirst = cmp.Or(done.AheadFirst, fmt.Sprintf("%s %s %s: %s", r.Series, v.ladder.Name(r.Level), r.Slice, why))
			return nil
		}
	}
	key := string(r.Series.AppendKey(nil))
	of := v.repair[key]
	if of == nil {
		of = &toRepair{labels: r.Series, levels: map[metric.Bucket]bool{}}
		v.repair[key] = of
	}
	of.slices = append(of.slices, r.Slice)
	of.levels[r.Level] = true
	return nil
}

// read reads rows, then samples, then the status.
func (v *verifier) read(ctx context.Context, selectors []string, w metric.Slice) (*Checker, *Status, error) {
	c := NewChecker(v.ladder)
	v.damage, v.damagedRows = nil, nil
	var damaged *damagedError
	for _, level := range v.ladder.Levels() {
		// A row lies in its slice wherever the window begins: rows at its border are left out by their slices.
		if err := v.Client.Rollups(ctx, selectors, v.ladder.Name(level), w.StartMs, w.EndMs, func(l metric.Labels, ms int64, r Row) error {
			c.Series(l).Row(level, ms, r)
			return nil
		}); errors.As(err, &damaged) {
			v.damagedRows = append(v.damagedRows, damaged.warnings...) // those that are left out are missing, the others wrong
		} else if err != nil {
			return nil, nil, err
		}
	}
	if err := v.Client.Export(ctx, selectors, w.StartMs, w.EndMs, func(l metric.Labels, ms int64, val float64) error {
		return c.Series(l).Sample(ms, val)
	}); errors.As(err, &damaged) {
		v.damage = damaged.warnings
		for _, warning := range damaged.warnings {
			c.Damaged(v.damagedIn(warning, w))
		}
	} else if err != nil {
		return nil, nil, err
	}
	status, err := v.Client.Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	if !status.Ladder.Equal(v.ladder) {
		return nil, nil, errors.New("the server's roll-ups changed meanwhile")
	}
	v.status = status
	return c, status, nil
}

// How the server's warnings name a damaged chunk, and say that there are more than they name.
var (
	damagedChunk = regexp.MustCompile(`raw chunk \S+ of group \d+ in the slice of (\S+): `)
	moreDamage   = regexp.MustCompile(`^and (\d+) more$`)
)

// damagedIn is the slice in which a warning says that something cannot be read: all of the window if it does not say.
func (v *verifier) damagedIn(warning string, w metric.Slice) metric.Slice {
	if m := damagedChunk.FindStringSubmatch(warning); m != nil {
		if t, err := time.Parse(time.RFC3339, m[1]); err == nil {
			return v.ladder.SliceAt(metric.Raw, t.UnixMilli())
		}
	}
	return w
}

// countIn is the number of chunks or rows that a warning is about.
func countIn(warning string) int {
	if m := moreDamage.FindStringSubmatch(warning); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1
}

// repairAll has all that differs ground again.
func (v *verifier) repairAll(ctx context.Context) error {
	done := v.sum.Repaired
	bySlice := map[metric.Slice][]string{}
	for _, of := range v.repair {
		// Wider ones first: what lies within another is ground with it.
		slices.SortFunc(of.slices, func(a, b metric.Slice) int {
			return cmp.Or(cmp.Compare(b.EndMs-b.StartMs, a.EndMs-a.StartMs), cmp.Compare(a.StartMs, b.StartMs))
		})
		var kept []metric.Slice
		for _, s := range of.slices {
			if !slices.ContainsFunc(kept, func(k metric.Slice) bool { return k.Contains(s.StartMs) }) {
				kept = append(kept, s)
				bySlice[s] = append(bySlice[s], Selector(of.labels))
			}
		}
		done.Series++
	}
	for _, s := range slices.SortedFunc(maps.Keys(bySlice), func(a, b metric.Slice) int {
		return cmp.Or(cmp.Compare(a.StartMs, b.StartMs), cmp.Compare(a.EndMs, b.EndMs))
	}) {
		selectors := bySlice[s]
		slices.Sort(selectors)
		for _, part := range requests(selectors) {
			if err := v.Client.Reaggregate(ctx, part, s.StartMs, s.EndMs, v.TakeBack); err != nil {
				return fmt.Errorf("slice %s of %s: %w", s, part[0], err)
			}
		}
		done.Slices++
	}
	status, err := v.Client.Status(ctx)
	if err != nil {
		return err
	}
	for _, of := range v.repair {
		for level := range of.levels {
			// A mark goes into the slice that is current when what lies below has been ground.
			at := status.NowMs
			for b := metric.Raw; b < level; b++ {
				at = v.ladder.SliceAt(b, at).EndMs
			}
			done.RightMs[level-1] = at
		}
	}
	return nil
}
