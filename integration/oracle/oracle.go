// Package oracle records what tests sent to a server and how each sample was answered, and checks
// the server against that: nothing acknowledged is lost, doubled or changed, nothing refused is
// there, and every roll-up matches the samples. internal/operate/verify computes the expected roll-ups.
package oracle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/verify"
	"github.com/quern/quern/internal/wire"
)

// Oracle records what was sent. The zero value is empty and ready. Several senders may use it at
// once, if no two of them send different values for the same time of a series.
type Oracle struct {
	mu     sync.Mutex
	points map[series]map[int64]*moment
	acked  int
	found  Found
}

// Found counts the samples and rows that are wrong, and the slices that are not complete.
type Found struct {
	Lost, Doubled, Wrong, WrongRows, OpenSlices int
}

// Found returns what the last call of Raw or Check found, as far as it got.
func (o *Oracle) Found() Found {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.found
}

type series struct{ source, metric string }

// moment is what is known of one time of one series.
type moment struct {
	// value is the last acknowledged value, if acked.
	value float64
	acked bool
	// tried are values whose fate is unknown: there was no answer, or one that promises nothing.
	// The server may still be working on them when a later value is acknowledged.
	tried []float64
}

func (o *Oracle) note(samples []process.Sample, record func(*moment, float64)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.points == nil {
		o.points = map[series]map[int64]*moment{}
	}
	for _, s := range samples {
		k := series{s.Source, s.Metric}
		if o.points[k] == nil {
			o.points[k] = map[int64]*moment{}
		}
		if o.points[k][s.Ms] == nil {
			o.points[k][s.Ms] = &moment{}
		}
		record(o.points[k][s.Ms], s.Value)
	}
}

// Acknowledged records samples that the server has accepted. Of two values at the same time the
// last counts.
func (o *Oracle) Acknowledged(samples ...process.Sample) {
	o.note(samples, func(m *moment, v float64) {
		if !m.acked {
			o.acked++
		}
		m.value, m.acked = v, true
	})
}

// Refused records samples that the server has rejected, for example as too old.
func (o *Oracle) Refused(samples ...process.Sample) { o.note(samples, func(*moment, float64) {}) }

// Unknown records samples whose fate is unknown.
func (o *Oracle) Unknown(samples ...process.Sample) {
	o.note(samples, func(m *moment, v float64) { m.tried = append(m.tried, v) })
}

// Report sends samples of one source and records what the reply says of each. The error is nil only
// if all were acknowledged.
func (o *Oracle) Report(ctx context.Context, p *process.Process, samples []process.Sample) (process.Reply, error) {
	r, err := p.Report(ctx, samples)
	var reply struct {
		wire.Report
		Accepted *int `json:"accepted"` // nil if the reply does not say
	}
	switch r.Code {
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		o.Refused(samples...)
		return r, err
	case http.StatusOK, http.StatusBadRequest:
	default:
		o.Unknown(samples...)
		return r, err
	}
	bad := json.Unmarshal(r.Body, &reply)
	if bad != nil || reply.Accepted == nil || *reply.Accepted+len(reply.Rejected) != len(samples) {
		o.Unknown(samples...)
		return r, errors.Join(err, bad, fmt.Errorf("the reply does not account for %d samples: %s", len(samples), r.Body))
	}
	rejected := map[int]bool{}
	for _, rejection := range reply.Rejected {
		rejected[rejection.Index] = true
	}
	for i, s := range samples {
		if rejected[i] {
			o.Refused(s)
		} else {
			o.Acknowledged(s)
		}
	}
	return r, err
}

// Len returns the number of samples acknowledged. A sample that was sent twice counts once.
func (o *Oracle) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.acked
}

// Series returns the number of series with acknowledged samples.
func (o *Oracle) Series() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, moments := range o.points {
		for _, m := range moments {
			if m.acked {
				n++
				break
			}
		}
	}
	return n
}

// maxNamed is the maximum number of faults per kind that an error names.
const maxNamed = 10

type faults struct {
	n    int
	errs []error
}

func (f *faults) add(count *int, format string, args ...any) {
	*count++
	if f.n++; f.n <= maxNamed {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

func (f *faults) err() error {
	if f.n > maxNamed {
		f.errs = append(f.errs, fmt.Errorf("… %d in all", f.n))
	}
	return errors.Join(f.errs...)
}

// Raw returns how the raw samples differ from what was sent: lost, changed, never sent, refused or
// doubled.
func (o *Oracle) Raw(p *process.Process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.raw(p, math.MinInt64)
	return err
}

// raw returns the samples to grind. Samples before wholeMs may have expired.
func (o *Oracle) raw(p *process.Process, wholeMs int64) (map[series]map[int64]float64, error) {
	stored, err := p.Export(process.OfTests, o.back())
	if err != nil {
		return nil, err
	}
	o.found = Found{}
	var wrong faults
	got := map[series]map[int64]float64{}
	for _, s := range stored {
		k := series{s.Source, s.Metric}
		if got[k] == nil {
			got[k] = map[int64]float64{}
		}
		if v, twice := got[k][s.Ms]; twice {
			wrong.add(&o.found.Doubled, "doubled: %+v, and before it %v", s, v)
		}
		got[k][s.Ms] = s.Value
		switch m := o.points[k][s.Ms]; {
		case m == nil:
			wrong.add(&o.found.Wrong, "never sent: %+v", s)
		case m.acked && same(m.value, s.Value), slices.ContainsFunc(m.tried, func(v float64) bool { return same(v, s.Value) }):
		case m.acked:
			wrong.add(&o.found.Wrong, "changed: %+v, acknowledged was %v", s, m.value)
		default:
			wrong.add(&o.found.Wrong, "refused, and there: %+v", s)
		}
	}
	for k, moments := range o.points {
		for ms, m := range moments {
			if _, found := got[k][ms]; m.acked && !found && ms >= wholeMs {
				wrong.add(&o.found.Lost, "acknowledged and lost: %+v", process.Sample{Source: k.source, Metric: k.metric, Ms: ms, Value: m.value})
			}
		}
	}
	return got, wrong.err()
}

func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// back returns a span from now back to before all that was sent.
func (o *Oracle) back() time.Duration {
	first := time.Now().UnixMilli()
	for _, moments := range o.points {
		for ms := range moments {
			first = min(first, ms)
		}
	}
	return time.Since(time.UnixMilli(first)) + time.Hour
}

// last returns the end of the last slice with samples.
func (o *Oracle) last(l metric.Ladder) int64 {
	last := int64(0)
	for _, moments := range o.points {
		for ms := range moments {
			last = max(last, ms)
		}
	}
	return l.SliceAt(l.Top()-1, last).EndMs
}

// Check returns how the server differs from having all that was sent, once, with every roll-up of
// it: samples lost, doubled or wrong, slices left open, roll-ups that do not match the samples.
// Samples may be missing if the server says that they may have expired, since a retention was
// lowered for a while. The server must answer queries, and no sender may be active.
func (o *Oracle) Check(p *process.Process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &verify.Client{Client: client.Client{URL: p.URL, HTTP: process.Client}}
	st, err := c.Status(p.Context())
	if err != nil {
		return err
	}
	samples, err := o.raw(p, st.WholeFrom[metric.Raw])
	if err != nil {
		return err
	}
	if end := o.last(st.Ladder); time.Now().UnixMilli() < end {
		return fmt.Errorf("the last slice ends in %d ms", end-time.Now().UnixMilli())
	}
	if open := st.Undone(); len(open) > 0 {
		o.found.OpenSlices = len(open)
		return fmt.Errorf("left open: %s", open)
	}

	check := verify.NewChecker(st.Ladder)
	now := time.Now()
	from, to := now.Add(-o.back()).UnixMilli(), now.Add(time.Hour).UnixMilli()
	for _, level := range st.Ladder.Levels() {
		if err := c.Rollups(p.Context(), []string{process.OfTests}, st.Ladder.Name(level), from, to, func(ls metric.Labels, ms int64, r verify.Row) error {
			check.Series(ls).Row(level, ms, r)
			return nil
		}); err != nil && !errors.Is(err, verify.ErrDamaged) { // a damaged sample counts as missing, or wrong
			return err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(samples), func(a, b series) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.metric, b.metric))
	}) {
		ls, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: k.metric}, metric.Label{Name: metric.SourceLabel, Value: k.source})
		if err != nil {
			return err
		}
		checked := check.Series(ls)
		for _, ms := range slices.Sorted(maps.Keys(samples[k])) {
			if err := checked.Sample(ms, samples[k][ms]); err != nil {
				return err
			}
		}
	}
	var wrong faults
	check.Results(st.Expired, func(r verify.Result) {
		for _, line := range verify.Lines(r.Difference(st.Ladder)) {
			wrong.add(&o.found.WrongRows, "%s", line)
		}
	})
	return wrong.err()
}
