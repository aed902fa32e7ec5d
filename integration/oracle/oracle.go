// Package oracle keeps what tests sent to a server and how each sample was answered, and holds
// the server to that: nothing acknowledged is lost, doubled or changed, nothing refused is there,
// and every roll-up is what the samples say. What roll-ups must be internal/verify computes.
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
	"github.com/quern/quern/internal/verify"
)

// Oracle knows what was sent. The zero value knows of nothing, and is ready; it may be used by several
// senders at once, if no two of them send different values for one moment of a series.
type Oracle struct {
	mu     sync.Mutex
	points map[series]map[int64]*moment
	acked  int
	found  Found
}

// Found is how many samples and rows were not as they must be, and slices not complete.
type Found struct {
	Lost, Doubled, Wrong, WrongRows, OpenSlices int
}

// Found is what the last Raw or Check found, as far as it came.
func (o *Oracle) Found() Found {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.found
}

type series struct{ source, metric string }

// moment is what is known of one time of one series.
type moment struct {
	// value is the last one acknowledged, if acked.
	value float64
	acked bool
	// tried are values whose fate nobody knows: there was no answer, or one that promises
	// nothing. The server may still be at it when a later value is acknowledged.
	tried []float64
}

func (o *Oracle) note(samples []process.Sample, as func(*moment, float64)) {
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
		as(o.points[k][s.Ms], s.Value)
	}
}

// Acknowledged notes samples that the server said it has. Of two values of a moment the last counts.
func (o *Oracle) Acknowledged(samples ...process.Sample) {
	o.note(samples, func(m *moment, v float64) {
		if !m.acked {
			o.acked++
		}
		m.value, m.acked = v, true
	})
}

// Refused notes samples that the server said it has not taken, as too old say.
func (o *Oracle) Refused(samples ...process.Sample) { o.note(samples, func(*moment, float64) {}) }

// Unknown notes samples of which nobody knows whether they are there.
func (o *Oracle) Unknown(samples ...process.Sample) {
	o.note(samples, func(m *moment, v float64) { m.tried = append(m.tried, v) })
}

// Report sends samples of one source and notes what the reply says of each. The error is
// nil when all were acknowledged.
func (o *Oracle) Report(ctx context.Context, p *process.Process, samples []process.Sample) (process.Reply, error) {
	r, err := p.Report(ctx, samples)
	var said struct {
		Accepted *int `json:"accepted"`
		Rejected []struct {
			Index int `json:"index"`
		} `json:"rejected"`
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
	bad := json.Unmarshal(r.Body, &said)
	if bad != nil || said.Accepted == nil || *said.Accepted+len(said.Rejected) != len(samples) {
		o.Unknown(samples...)
		return r, errors.Join(err, bad, fmt.Errorf("the reply does not account for %d samples: %s", len(samples), r.Body))
	}
	rejected := map[int]bool{}
	for _, of := range said.Rejected {
		rejected[of.Index] = true
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

// Len is the number of samples acknowledged, one sent again not counted.
func (o *Oracle) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.acked
}

// Series is the number of series of which something was acknowledged.
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

// told bounds how many faults of a kind an error names.
const told = 10

type faults struct {
	n    int
	errs []error
}

func (f *faults) add(count *int, format string, args ...any) {
	*count++
	if f.n++; f.n <= told {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

func (f *faults) err() error {
	if f.n > told {
		f.errs = append(f.errs, fmt.Errorf("… %d in all", f.n))
	}
	return errors.Join(f.errs...)
}

// Raw says how the raw samples differ from what was sent: lost, changed, never sent, refused or doubled.
func (o *Oracle) Raw(p *process.Process) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.raw(p, math.MinInt64)
	return err
}

// raw returns the samples as they are to be ground. Those before a time may have expired.
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
			if _, there := got[k][ms]; m.acked && !there && ms >= wholeMs {
				wrong.add(&o.found.Lost, "acknowledged and lost: %+v", process.Sample{Source: k.source, Metric: k.metric, Ms: ms, Value: m.value})
			}
		}
	}
	return got, wrong.err()
}

func same(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

// back is a time before all that was sent.
func (o *Oracle) back() time.Duration {
	first := time.Now().UnixMilli()
	for _, moments := range o.points {
		for ms := range moments {
			first = min(first, ms)
		}
	}
	return time.Since(time.UnixMilli(first)) + time.Hour
}

// last is when the last slice ends that has something in it.
func (o *Oracle) last(l metric.Ladder) int64 {
	last := int64(0)
	for _, moments := range o.points {
		for ms := range moments {
			last = max(last, ms)
		}
	}
	return l.SliceAt(l.Top()-1, last).EndMs
}

// Check says what keeps a server from having all that was sent, once, and every roll-up of it:
// samples lost, doubled or wrong, slices left open, roll-ups that are not what the
// samples say. What the server says may have expired, by a retention that was lowered for a while, it does not have to have. The server must be one that answers queries, and nobody may be sending.
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
		}); err != nil && !errors.Is(err, verify.ErrDamaged) { // what is damaged is missing, or wrong
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
		of := check.Series(ls)
		for _, ms := range slices.Sorted(maps.Keys(samples[k])) {
			if err := of.Sample(ms, samples[k][ms]); err != nil {
				return err
			}
		}
	}
	var wrong faults
	check.Results(st.Expired, func(r verify.Result) {
		for _, line := range r.Lines(st.Ladder) {
			wrong.add(&o.found.WrongRows, "%s", line)
		}
	})
	return wrong.err()
}
