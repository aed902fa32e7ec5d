package acceptance

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
)

// Oracle knows what was reported and acknowledged, and computes from that alone what each row of
// each level must be. It computes every level from the samples themselves, not from the level
// below, and shares no code with the grinding.
type Oracle struct {
	ladder metric.Ladder
	points map[string]map[int64]*moment
}

// moment is what is known of one time of one schedule.
type moment struct {
	// value is the last acknowledged value, if any.
	value float64
	acked bool
	// tried are the values sent since, whose fate is unknown: the reply was an error.
	tried []float64
}

// newOracle returns an empty oracle.
func newOracle(l metric.Ladder) *Oracle {
	return &Oracle{ladder: l, points: map[string]map[int64]*moment{}}
}

func (o *Oracle) at(p Point) *moment {
	if o.points[p.Series] == nil {
		o.points[p.Series] = map[int64]*moment{}
	}
	k := o.points[p.Series][p.TimeMs]
	if k == nil {
		k = &moment{}
		o.points[p.Series][p.TimeMs] = k
	}
	return k
}

// Acknowledged records a point that was accepted. The last one at a time counts.
func (o *Oracle) Acknowledged(p Point) { *o.at(p) = moment{value: p.Value, acked: true} }

// Tried records a point whose reply was an error: it may be stored or not.
func (o *Oracle) Tried(p Point) {
	k := o.at(p)
	k.tried = append(k.tried, p.Value)
}

// expected is a row as it must be. values are sorted.
type expected struct {
	count                  int
	sum, increase          float64
	min, max, first, last  float64
	firstMs, lastMs        int64
	sumScale, increasScale float64
	values                 []float64
}

// expect computes a row from samples in time order, nil if none is finite.
func expect(samples []metric.Sample) *expected {
	var e expected
	for _, s := range samples {
		v := s.Value
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		if e.count == 0 {
			e.first, e.min, e.max, e.firstMs = v, v, v, s.TimeMs
		} else {
			grown := v - e.last
			if v < e.last {
				grown = v // the counter was reset and has grown from 0
			}
			e.increase += grown
			e.increasScale += math.Abs(grown)
		}
		e.count++
		e.sum += v
		e.sumScale += math.Abs(v)
		e.min, e.max = math.Min(e.min, v), math.Max(e.max, v)
		e.last, e.lastMs = v, s.TimeMs
		e.values = append(e.values, v)
	}
	if e.count == 0 {
		return nil
	}
	slices.Sort(e.values)
	return &e
}

// differs returns how a row differs from the expected one, or "".
func (e *expected) differs(row *metric.RollupRow) string {
	switch {
	case e == nil && row == nil:
		return ""
	case e == nil:
		return fmt.Sprintf("is there (%+v), and there are no samples", row.Rollup)
	case row == nil:
		return fmt.Sprintf("is missing; it must have %d samples, sum %v", e.count, e.sum)
	}
	var wrong []string
	exact := func(what string, got, want float64) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s %v, must be %v", what, got, want))
		}
	}
	near := func(what string, got, want, scale float64) {
		if !(math.Abs(got-want) <= 1e-9*scale) {
			wrong = append(wrong, fmt.Sprintf("%s %v, must be %v", what, got, want))
		}
	}
	if row.Partial {
		wrong = append(wrong, "partial")
	}
	exact("count", float64(row.Count), float64(e.count))
	exact("min", row.Min, e.min)
	exact("max", row.Max, e.max)
	exact("first", row.First, e.first)
	exact("last", row.Last, e.last)
	exact("time of first", float64(row.FirstMs), float64(e.firstMs))
	exact("time of last", float64(row.LastMs), float64(e.lastMs))
	// Relative to the size of the summands, since they may cancel out.
	near("sum", row.Sum, e.sum, e.sumScale)
	near("increase", row.Increase, e.increase, e.increasScale)
	if len(wrong) == 0 {
		var sk sketch.Sketch
		if err := sk.Merge(row.Sketch); err != nil {
			return err.Error()
		}
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			got, err := sk.Quantile(q, row.Min, row.Max)
			if err != nil {
				return err.Error()
			}
			rank := q * float64(len(e.values)-1)
			low, high, weight := e.values[int(math.Floor(rank))], e.values[int(math.Ceil(rank))], rank-math.Floor(rank)
			off := (math.Abs(low)*(1-weight) + math.Abs(high)*weight) * (sketch.RelativeAccuracy + 1e-9)
			near(fmt.Sprintf("quantile %v", q), got, low*(1-weight)+high*weight, off*1e9)
		}
	}
	return strings.Join(wrong, "; ")
}

// samples returns a series' samples in time order: the acknowledged ones, and the same with the raw
// table's values for points whose fate is unknown. doubt has the times of the latter.
func (o *Oracle) samples(series string, raw map[int64]float64) (acked, truth []metric.Sample, doubt map[int64]bool) {
	doubt = map[int64]bool{}
	for _, ms := range slices.Sorted(maps.Keys(o.points[series])) {
		k := o.points[series][ms]
		if k.acked {
			acked = append(acked, metric.Sample{TimeMs: ms, Value: k.value})
		}
		if len(k.tried) == 0 {
			truth = append(truth, metric.Sample{TimeMs: ms, Value: k.value})
			continue
		}
		doubt[ms] = true
		if v, ok := raw[ms]; ok {
			truth = append(truth, metric.Sample{TimeMs: ms, Value: v})
		}
	}
	return acked, truth, doubt
}

func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// Strictness says what Check expects of a row whose slice has samples that were stored without
// being acknowledged.
type Strictness int

const (
	// Acknowledged: the row may include them or not.
	Acknowledged Strictness = iota
	// Raw: the row must include them, since raw is the truth (invariant 2).
	Raw
)

// Check compares the tables with the oracle and returns the differences.
//
// The raw table must hold every acknowledged sample (invariant 1). A row of any level must equal
// its samples (2), unless a mark that a run will read covers the row or something below it. So a
// wrong row without such a mark also shows a lost mark (3).
func (s *System) Check(strict Strictness) []string {
	var problems []string
	ids := s.IDs()
	raw := map[metric.ScheduleID]map[int64]float64{}
	for _, sm := range s.RawSamples() {
		if raw[sm.Schedule] == nil {
			raw[sm.Schedule] = map[int64]float64{}
		}
		raw[sm.Schedule][sm.TimeMs] = sm.Value
	}
	for _, series := range slices.Sorted(maps.Keys(s.Oracle.points)) {
		id, ok := ids[series]
		for ms, k := range s.Oracle.points[series] {
			v, stored := raw[id][ms]
			switch {
			case k.acked && (!ok || !stored):
				problems = append(problems, fmt.Sprintf("%s at %s: acknowledged, and not in the raw table", series, s.clockOf(ms)))
			case stored && !(k.acked && same(v, k.value)) && !slices.ContainsFunc(k.tried, func(x float64) bool { return same(x, v) }):
				problems = append(problems, fmt.Sprintf("%s at %s: raw has %v, must be %v", series, s.clockOf(ms), v, k.value))
			}
		}
	}
	for name, id := range ids {
		for ms, v := range raw[id] {
			if s.Oracle.points[name][ms] == nil {
				problems = append(problems, fmt.Sprintf("%s at %s: raw has %v, which nobody reported as taken", name, s.clockOf(ms), v))
			}
		}
	}

	outstanding := s.outstanding()
	rows := map[rowKey]*metric.RollupRow{}
	for _, level := range s.cfg.Ladder.Levels() {
		for _, r := range s.storedRows(level) {
			switch {
			case r.Count > 0:
				rows[rowKey{level, r.Schedule, r.TimeMs}] = &r
			case r.Partial:
				problems = append(problems, fmt.Sprintf("%s row of schedule %d at %s: says that samples may be missing",
					s.cfg.Ladder.Name(level), r.Schedule, s.clockOf(r.TimeMs)))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		problems = append(problems, s.checkRows(name, ids[name], raw[ids[name]], rows, outstanding, strict)...)
	}
	for k := range rows {
		problems = append(problems, fmt.Sprintf("%s row of schedule %d at %s: there are no samples", s.cfg.Ladder.Name(k.level), k.id, s.clockOf(k.timeMs)))
	}
	return problems
}

type rowKey struct {
	level  metric.Bucket
	id     metric.ScheduleID
	timeMs int64
}

// checkRows compares the rows of one schedule, all levels, with its samples. It removes from rows
// those that are accounted for.
func (s *System) checkRows(
	name string, id metric.ScheduleID, raw map[int64]float64,
	rows map[rowKey]*metric.RollupRow, outstanding outstanding, strict Strictness,
) []string {
	var problems []string
	l := s.cfg.Ladder
	acked, truth, doubt := s.Oracle.samples(name, raw)
	for _, level := range l.Levels() {
		starts := map[int64]bool{}
		for _, sm := range slices.Concat(acked, truth) {
			starts[l.SliceAt(level-1, sm.TimeMs).StartMs] = true
		}
		for _, start := range slices.Sorted(maps.Keys(starts)) {
			row := rows[rowKey{level, id, start}]
			delete(rows, rowKey{level, id, start})
			slice := l.SliceAt(level-1, start)
			if outstanding.covers(level, id, slice) {
				continue
			}
			wrong := expect(within(truth, slice)).differs(row)
			unsure := slices.ContainsFunc(slices.Collect(maps.Keys(doubt)), slice.Contains)
			if wrong != "" && unsure && strict == Acknowledged && expect(within(acked, slice)).differs(row) == "" {
				// The row lacks the unacknowledged samples. So must the rows above it.
				truth = slices.DeleteFunc(truth, func(sm metric.Sample) bool { return slice.Contains(sm.TimeMs) })
				truth = append(truth, within(acked, slice)...)
				slices.SortFunc(truth, metric.CompareSamples)
				continue
			}
			if wrong != "" {
				problems = append(problems, fmt.Sprintf("%s row of %s at %s: %s", l.Name(level), name, s.clockOf(start), wrong))
			}
		}
	}
	return problems
}

func within(samples []metric.Sample, slice metric.Slice) []metric.Sample {
	var out []metric.Sample
	for _, sm := range samples {
		if slice.Contains(sm.TimeMs) {
			out = append(out, sm)
		}
	}
	return out
}

// MustCheck fails the test if Check finds a difference.
func (s *System) MustCheck(strict Strictness) {
	s.t.Helper()
	require.Empty(s.t, s.Check(strict), "at %s", s.Clock.Now())
}

// Leftovers returns marks and cache blocks that no run will look at again, and work that is
// outstanding although its slice is long over. Nothing may be left when everything is ground.
func (s *System) Leftovers() []string {
	var out []string
	outstanding := s.outstanding()
	for _, b := range s.cfg.Ladder.Ground() {
		open := map[int64]bool{}
		for _, st := range s.Slices(b) {
			slice := s.cfg.Ladder.SliceAt(b, st.StartMs)
			open[st.StartMs] = !st.Complete
			if !st.Complete && s.cfg.Timing.Due(slice, s.Clock.Now().UnixMilli()) {
				out = append(out, fmt.Sprintf("%s slice %s is open", s.cfg.Ladder.Name(b), s.clockOf(st.StartMs)))
			}
		}
		for _, m := range s.Marks(b) {
			if m.Complete {
				out = append(out, fmt.Sprintf("%s mark in complete slice %s: block %d of %s, %s",
					s.cfg.Ladder.Name(b), s.clockOf(m.Slice.StartMs), m.Start, s.clockOf(m.TimeMs), m.Kind))
			}
		}
		for _, c := range s.CacheBlocks(b) {
			if !open[c.StartMs] && !outstanding.blocks[blockOf{b, c.StartMs, c.Start}] {
				out = append(out, fmt.Sprintf("%s cache block %d of complete slice %s", s.cfg.Ladder.Name(b), c.Start, s.clockOf(c.StartMs)))
			}
		}
	}
	return out
}

// outstanding is what marks in open slices cover.
type outstanding struct {
	marks  []outstandingMark
	blocks map[blockOf]bool
}

type blockOf struct {
	bucket metric.Bucket
	timeMs int64
	start  metric.ScheduleID
}

type outstandingMark struct {
	bucket    metric.Bucket
	slice     metric.Slice
	from, to  metric.ScheduleID
	schedules []metric.ScheduleID
}

func (s *System) outstanding() outstanding {
	out := outstanding{blocks: map[blockOf]bool{}}
	epochs := s.inspect().Settings().Epochs
	for _, b := range s.cfg.Ladder.Ground() {
		for _, m := range s.Marks(b) {
			if m.Complete {
				continue // no run looks there again
			}
			out.blocks[blockOf{b, m.TimeMs, m.Start}] = true
			out.marks = append(out.marks, outstandingMark{
				bucket: b, slice: s.cfg.Ladder.SliceAt(b, m.TimeMs),
				from: m.Start, to: m.Start + metric.ScheduleID(epochs.SizeAt(m.TimeMs)), schedules: m.Schedules,
			})
		}
	}
	return out
}

// covers reports whether the row of a level may still change: a mark of some bucket below it covers
// part of its slice.
func (o outstanding) covers(level metric.Bucket, id metric.ScheduleID, slice metric.Slice) bool {
	for _, m := range o.marks {
		if m.bucket < level && m.from <= id && id < m.to &&
			m.slice.StartMs < slice.EndMs && slice.StartMs < m.slice.EndMs &&
			(len(m.schedules) == 0 || slices.Contains(m.schedules, id)) {
			return true
		}
	}
	return false
}

// clockOf formats a time as the scripts do: the hour of the first day, with the number of days
// before or after it.
func (s *System) clockOf(ms int64) string {
	day := s.cfg.Start.Truncate(24 * time.Hour)
	t := time.UnixMilli(ms).UTC()
	days := int(t.Truncate(24*time.Hour).Sub(day) / (24 * time.Hour))
	prefix := ""
	if days != 0 {
		prefix = fmt.Sprintf("%+dd/", days)
	}
	layout := "15:04"
	if t.Second() != 0 || t.Nanosecond() != 0 {
		layout = "15:04:05.999"
	}
	return prefix + t.Format(layout)
}

// Clone returns a copy of the oracle.
func (o *Oracle) Clone() *Oracle {
	c := newOracle(o.ladder)
	for series, moments := range o.points {
		c.points[series] = map[int64]*moment{}
		for ms, m := range moments {
			c.points[series][ms] = &moment{value: m.value, acked: m.acked, tried: slices.Clone(m.tried)}
		}
	}
	return c
}
