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
	"strings"
	"time"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Options say what to verify, and how.
type Options struct {
	Client *Client
	// Match selects the series.
	Match string
	// Level is the level whose rows are compared. The default is all.
	Level string
	// Rows whose slices lie within [StartMs, EndMs) are compared.
	StartMs, EndMs int64
	// Limit is how many differences are reported. All are counted.
	Limit int
	// Repair has the slices that differ ground again. TakeBack then also takes back rows without
	// samples.
	Repair, TakeBack bool
	// Tell gets each difference. Progress, which may be nil, gets how far the comparison is.
	Tell     func(wire.Difference)
	Progress func(done, total int)
	// Hold is asked for n bytes more, for rows and for what is noted of them. An error ends the run. The default bounds
	// nothing.
	Hold func(n int) error
}

// Differences is the number of rows that are wrong.
func Differences(v *wire.Verified) int {
	n := 0
	for _, l := range v.Levels {
		n += l.Different
	}
	return n
}

// Run compares. A difference is not an error.
//
// It reads one window of time after the other. A window is as wide as a slice of the coarsest
// level, or several. Run reads the rows, then raw, and the status before and after both. Rows that
// differ are read again. A row counts as different only if it differs twice, is unchanged between
// the two, and has no mark for its slice. So there is no false alarm: a mark is there before the
// sample that it stands for. If a mark was gone when the status was read, the rows read afterwards
// contain what it stood for.
func Run(ctx context.Context, o Options) (*wire.Verified, error) {
	v := verifier{Options: o, series: map[string]struct{}{}, repair: map[string]*toRepair{}, repairLevels: map[metric.Bucket]bool{}}
	var err error
	if v.status, err = o.Client.Status(ctx); err != nil {
		return nil, err
	}
	v.ladder = v.status.Ladder
	if err = v.choose(); err != nil {
		return nil, err
	}
	for _, level := range v.ladder.Levels() {
		v.sum.Levels = append(v.sum.Levels, wire.VerifiedLevel{Level: v.ladder.Name(level)})
	}
	// A window has as many of the coarsest slices as make up an hour. With a ladder of seconds, one
	// slice is little for four requests.
	top := v.ladder.WidthMs(v.ladder.Top())
	top *= max(1, 3_600_000/top)
	v.StartMs = max(v.StartMs, 0) // no sample is earlier
	if from := v.status.WholeFrom[metric.Raw]; from != math.MinInt64 {
		v.StartMs = max(v.StartMs, metric.AlignDown(from, top))
	}
	v.EndMs = min(v.EndMs, v.status.NowMs+1000)
	v.sum.Start, v.sum.End = v.StartMs, v.EndMs
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
			return v.outcome(), fmt.Errorf("repair: %w", err)
		}
	}
	return v.outcome(), nil
}

// choose finds the levels to compare.
func (v *verifier) choose() error {
	var names []string
	for _, level := range v.ladder.Levels() {
		name := v.ladder.Name(level)
		if names = append(names, name); v.Level == "" || v.Level == name {
			v.levels = append(v.levels, level)
		}
	}
	if len(v.levels) == 0 {
		return &client.RefusedError{Message: fmt.Sprintf("there is no level %s: the levels are %s", excerpt.Quoted(v.Level), strings.Join(names, ", "))}
	}
	return nil
}

// outcome returns the summary, of the chosen levels.
func (v *verifier) outcome() *wire.Verified {
	if v.Level != "" {
		i := v.levels[0] - 1
		v.sum.Levels = v.sum.Levels[i : i+1]
	}
	return &v.sum
}

type verifier struct {
	Options
	ladder metric.Ladder
	levels []metric.Bucket // those to compare
	// status is the last one read.
	status *Status
	sum    wire.Verified
	series map[string]struct{}
	// damage and damagedRows are the server's warnings about damaged chunks and rows in the last
	// read.
	damage, damagedRows []string
	reported            int
	repair              map[string]*toRepair
	// repairLevels are the levels that differ.
	repairLevels map[metric.Bucket]bool
	// noted is about how many bytes series and repair take, held how many Hold has granted.
	noted, held int
}

// toRepair is what differs in one series.
type toRepair struct {
	labels metric.Labels
	slices []metric.Slice
}

// suspect names a row that differs, by series, level and time.
type suspect struct {
	series string
	rowKey
}

// attempts bounds how often a row that differs and keeps changing is read.
const attempts = 5

func (v *verifier) window(ctx context.Context, w metric.Slice) error {
	suspects, err := v.look(ctx, w, []string{v.Match}, nil)
	for i := 1; err == nil && len(suspects) > 0 && i < attempts; i++ {
		suspects, err = v.again(ctx, w, suspects)
	}
	for _, r := range suspects {
		v.sum.Levels[r.Level-1].Pending++ // it changed at each look
	}
	return err
}

// look compares the rows of a window, at the first look all, and then those that differed at the look
// before. It returns those that need another look.
func (v *verifier) look(ctx context.Context, w metric.Slice, selectors []string, differed map[suspect]Result) (map[suspect]Result, error) {
	before, first := v.status, differed == nil
	read, after, err := v.read(ctx, selectors, w)
	if err != nil {
		return nil, err
	}
	if first {
		v.note(read)
	}
	next := map[suspect]Result{}
	read.Results(func(level metric.Bucket, s metric.Slice) bool {
		count := &v.sum.Levels[level-1]
		switch {
		case !first:
			return false
		case !slices.Contains(v.levels, level):
			return true
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
		count := &v.sum.Levels[r.Level-1]
		earlier, known := differed[suspectOf(&r)]
		switch {
		case r.Kind == "" || !first && !known:
		case after.Expired(r.Level, r.Slice):
			count.Compared--
			count.Expired++
		case r.Kind == Unreadable:
			count.Compared--
			count.Unreadable++
		case before.Open(r.Level, r.Slice) || after.Open(r.Level, r.Slice) || before.Waits(r.Level, r.Slice) || after.Waits(r.Level, r.Slice):
			count.Pending++
		case known && sameRow(earlier.Got, r.Got):
			count.Different++
			v.different(&r)
		default:
			next[suspectOf(&r)] = r
		}
	})
	return next, nil
}

// note counts what the first look at a window has read, and reports what is damaged.
func (v *verifier) note(read *Checker) {
	for _, warning := range v.damage {
		v.sum.Damaged += countIn(warning)
	}
	for _, warning := range v.damagedRows {
		v.sum.DamagedRows += countIn(warning)
	}
	for _, warning := range slices.Concat(v.damage, v.damagedRows) {
		v.tell(wire.Difference{Kind: wire.Damaged, Message: warning})
	}
	v.sum.Samples += read.Samples()
	for key := range read.series {
		if _, known := v.series[key]; !known {
			v.series[key] = struct{}{}
			v.noted += noteBytes + len(key)
		}
	}
}

func suspectOf(r *Result) suspect {
	return suspect{string(r.Series.AppendKey(nil)), rowKey{r.Level, r.Slice.StartMs}}
}

const (
	// selectorsAtOnce is how many series one request names.
	selectorsAtOnce = 50
	// bytesAtOnce is how long the selectors of one request may be, encoded: a server takes forms of
	// up to 1 MiB.
	bytesAtOnce = 512 << 10
)

// requests splits selectors into one group per request. A selector that is too long gets a request
// of its own.
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

// again looks at suspects once more, and returns those that need another look.
func (v *verifier) again(ctx context.Context, w metric.Slice, suspects map[suspect]Result) (map[suspect]Result, error) {
	named := map[string]string{}
	for k, r := range suspects {
		named[k.series] = selector(r.Series)
	}
	selectors := []string{v.Match}
	if parts := requests(slices.Sorted(maps.Values(named))); len(parts) == 1 {
		selectors = parts[0]
	}
	return v.look(ctx, w, selectors, suspects)
}

func sameRow(a, b *Row) bool {
	// As text, since NaN is not equal to itself.
	return (a == nil) == (b == nil) && (a == nil || fmt.Sprint(*a) == fmt.Sprint(*b))
}

func (v *verifier) tell(d wire.Difference) {
	if v.reported++; v.reported <= v.Limit {
		v.Tell(d)
	}
}

const (
	// noteBytes is about what one entry of what is kept over all windows takes.
	noteBytes = 128
	// holdStep is by how much what is held grows.
	holdStep = 1 << 20
)

// hold asks for what a read and the notes take, in steps.
func (v *verifier) hold(c *Checker) error {
	if v.Hold == nil {
		return nil
	}
	needs := (v.noted + c.bytes + holdStep - 1) / holdStep * holdStep
	if needs <= v.held {
		return nil
	}
	err := v.Hold(needs - v.held)
	if err == nil {
		v.held = needs
	}
	return err
}

// different reports a row that is wrong, and notes it for the repair.
func (v *verifier) different(r *Result) {
	v.tell(r.Difference(v.ladder))
	switch {
	case !v.Repair:
		return
	case v.sum.Repaired == nil:
		v.sum.Repaired = &wire.Repaired{Rows: []wire.RepairedRows{}}
	}
	if r.Kind == wire.Surplus && !v.TakeBack {
		v.sum.Repaired.Surplus++
		return
	}
	key := string(r.Series.AppendKey(nil))
	wrong := v.repair[key]
	if wrong == nil {
		wrong = &toRepair{labels: r.Series}
		v.repair[key] = wrong
		v.noted += seriesBytes + 2*len(key)
	}
	wrong.slices = append(wrong.slices, r.Slice)
	v.repairLevels[r.Level] = true
	v.noted += noteBytes
}

// read reads rows, then samples, then the status.
func (v *verifier) read(ctx context.Context, selectors []string, w metric.Slice) (*Checker, *Status, error) {
	c := NewChecker(v.ladder)
	v.damage, v.damagedRows = nil, nil
	var damaged *damagedError
	for _, level := range v.levels {
		// A row is found by its start. Rows whose slices cross the window's border are left out
		// later, by their slices.
		if err := v.Client.Rollups(ctx, selectors, v.ladder.Name(level), w.StartMs, w.EndMs, func(l metric.Labels, ms int64, r Row) error {
			c.Series(l).Row(level, ms, r)
			return v.hold(c)
		}); errors.As(err, &damaged) {
			v.damagedRows = append(v.damagedRows, damaged.warnings...) // rows that were left out are missing, the others wrong
		} else if err != nil {
			return nil, nil, err
		}
	}
	if err := v.Client.Export(ctx, selectors, w.StartMs, w.EndMs, func(l metric.Labels, ms int64, val float64) error {
		if err := c.Series(l).Sample(ms, val); err != nil {
			return err
		}
		return v.hold(c)
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

// How the server's warnings name a damaged chunk, and how they say that there are more.
var (
	damagedChunk = regexp.MustCompile(`raw chunk \S+ of group \d+ in the slice of (\S+): `)
	moreDamage   = regexp.MustCompile(`^and (\d+) more$`)
)

// damagedIn returns the slice in which, by a warning, data cannot be read: the whole window if the
// warning does not say.
func (v *verifier) damagedIn(warning string, w metric.Slice) metric.Slice {
	if m := damagedChunk.FindStringSubmatch(warning); m != nil {
		if t, err := time.Parse(time.RFC3339, m[1]); err == nil {
			return v.ladder.SliceAt(metric.Raw, t.UnixMilli())
		}
	}
	return w
}

// countIn is the number of chunks or rows that a warning covers.
func countIn(warning string) int {
	if m := moreDamage.FindStringSubmatch(warning); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1
}

// repairAll has everything that differs ground again.
func (v *verifier) repairAll(ctx context.Context) error {
	done := v.sum.Repaired
	bySlice := map[metric.Slice][]string{}
	for _, wrong := range v.repair {
		// Wider slices first: a slice within another is ground with it.
		slices.SortFunc(wrong.slices, func(a, b metric.Slice) int {
			return cmp.Or(cmp.Compare(b.EndMs-b.StartMs, a.EndMs-a.StartMs), cmp.Compare(a.StartMs, b.StartMs))
		})
		var kept []metric.Slice
		for _, s := range wrong.slices {
			if !slices.ContainsFunc(kept, func(k metric.Slice) bool { return k.Contains(s.StartMs) }) {
				kept = append(kept, s)
				bySlice[s] = append(bySlice[s], selector(wrong.labels))
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
	for _, level := range v.levels {
		if !v.repairLevels[level] {
			continue
		}
		// A mark goes into the slice that is current when the level below has been ground.
		at := status.NowMs
		for b := metric.Raw; b < level; b++ {
			at = v.ladder.SliceAt(b, at).EndMs
		}
		done.Rows = append(done.Rows, wire.RepairedRows{Level: v.ladder.Name(level), After: at})
	}
	return nil
}
