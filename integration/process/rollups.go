package process

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Row is a line of /api/v1/rollups.
type Row struct {
	Metric map[string]string `json:"metric"`
	Level  string            `json:"level"`
	Time   int64             `json:"time"`

	Count    int     `json:"count"`
	Sum      float64 `json:"sum"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	Avg      float64 `json:"avg"`
	First    float64 `json:"first"`
	Last     float64 `json:"last"`
	Increase float64 `json:"increase"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
}

type rowKey struct {
	source, metric string
	ms             int64
}

// groupBy sorts samples into the rows of one width, each by time.
func groupBy(samples []Sample, width time.Duration) map[rowKey][]Sample {
	out := map[rowKey][]Sample{}
	for _, s := range samples {
		k := rowKey{s.Source, s.Metric, s.Ms - s.Ms%width.Milliseconds()}
		out[k] = append(out[k], s)
	}
	for _, group := range out {
		slices.SortFunc(group, func(a, b Sample) int { return cmp.Compare(a.Ms, b.Ms) })
	}
	return out
}

// LevelName is how the program calls a level.
func LevelName(width time.Duration) string {
	if width%time.Hour == 0 {
		return fmt.Sprintf("%dh", width/time.Hour)
	}
	return fmt.Sprintf("%ds", width/time.Second)
}

// Compare says how the stored rows of one level differ from what the samples say.
// Slices that end after before are left out: they may not have been ground.
func (p *Process) Compare(selector string, back time.Duration, samples []Sample, width time.Duration, before time.Time) error {
	query := Within(selector, back)
	query.Set("level", LevelName(width))
	rows, err := Lines[Row](p, "/api/v1/rollups", query)
	if err != nil {
		return err
	}
	complete := func(ms int64) bool { return ms+width.Milliseconds() <= before.UnixMilli() }
	want := groupBy(samples, width)
	for k := range want {
		if !complete(k.ms) {
			delete(want, k)
		}
	}
	for _, r := range rows {
		k := rowKey{r.Metric["source"], r.Metric["__name__"], r.Time}
		if !complete(k.ms) {
			continue
		}
		group := want[k]
		delete(want, k)
		if len(group) == 0 {
			return fmt.Errorf("level %s has a row too many: %+v", LevelName(width), r)
		}
		if err := r.check(group); err != nil {
			return fmt.Errorf("level %s, %+v: %w", LevelName(width), r, err)
		}
	}
	for k := range want {
		return fmt.Errorf("level %s lacks %d of its rows, among them %+v", LevelName(width), len(want), k)
	}
	return nil
}

// check holds a row to its samples, which are in the order of time.
func (r Row) check(group []Sample) error {
	sum, increase := 0.0, 0.0
	var sorted []float64
	for i, s := range group {
		sum += s.Value
		sorted = append(sorted, s.Value)
		if i == 0 {
			continue
		}
		if step := s.Value - group[i-1].Value; step >= 0 {
			increase += step
		} else {
			increase += s.Value // a counter that began again at 0
		}
	}
	slices.Sort(sorted)
	n := len(sorted)
	tolerance := 1e-9
	if eighths(sorted) {
		tolerance = 0
	}
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"count", float64(r.Count), float64(n)},
		{"sum", r.Sum, sum},
		{"min", r.Min, sorted[0]},
		{"max", r.Max, sorted[n-1]},
		{"avg", r.Avg, sum / float64(n)},
		{"first", r.First, group[0].Value},
		{"last", r.Last, group[n-1].Value},
		{"increase", r.Increase, increase},
	} {
		if math.Abs(c.got-c.want) > tolerance*(1+math.Abs(c.want)) {
			return fmt.Errorf("%s is %v, the samples say %v", c.what, c.got, c.want)
		}
	}
	// Percentiles are within 1 % of a value around their rank.
	for _, c := range []struct{ q, got float64 }{{0.5, r.P50}, {0.99, r.P99}} {
		rank := c.q * float64(n-1)
		low, high := sorted[int(math.Floor(rank))], sorted[int(math.Ceil(rank))]
		if c.got < low-0.011*math.Abs(low)-1e-9 || c.got > high+0.011*math.Abs(high)+1e-9 {
			return fmt.Errorf("percentile %v is %v, the samples say %v to %v", c.q, c.got, low, high)
		}
	}
	return nil
}

// eighths says whether values are such that their sums are exact, in whatever order.
func eighths(values []float64) bool {
	for _, v := range values {
		if v*8 != math.Trunc(v*8) || math.Abs(v) > 1<<30 {
			return false
		}
	}
	return true
}

// Exact says what keeps the roll-ups of a ladder from being complete and right for the samples.
func (p *Process) Exact(samples []Sample, ladder []time.Duration) error {
	last := slices.MaxFunc(samples, func(a, b Sample) int { return cmp.Compare(a.Ms, b.Ms) }).Ms
	top := ladder[len(ladder)-1].Milliseconds()
	if end := last - last%top + top; time.Now().UnixMilli() < end {
		return fmt.Errorf("the last slice has not ended")
	}
	st, err := p.Status()
	if err != nil {
		return err
	}
	for _, b := range st.Buckets {
		if len(b.Outstanding) > 0 {
			return fmt.Errorf("outstanding: %+v", st.Buckets)
		}
	}
	for _, width := range ladder {
		if err := p.Compare(OfTests, time.Hour, samples, width, time.Now().Add(time.Hour)); err != nil {
			return err
		}
	}
	return nil
}
