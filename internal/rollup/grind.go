package rollup

import (
	"errors"
	"fmt"
	"math"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
)

// Grinder computes one roll-up from the data of one schedule in one slice. It computes and nothing
// else: the same input gives the same output, bit by bit. A Grinder is scratch memory for one
// goroutine. The zero value is ready.
//
// The sketches of the returned roll-ups lie in the Grinder's memory. They are valid until Reset, so
// that a block can be ground and written as a whole.
type Grinder struct {
	sketch   sketch.Sketch
	tried    sketch.Sketch
	sketches []byte
}

// Reset invalidates the sketches of all roll-ups returned so far.
func (g *Grinder) Reset() { g.sketches = g.sketches[:0] }

// Samples grinds samples, which MUST be of one schedule and ascend in time. It returns false if no
// sample is finite; then at most NonFinite is set. metric.Rollup describes the fields. A sum beyond the range of float64 is an
// infinity, as in IEEE 754.
func (g *Grinder) Samples(samples []metric.Sample) (metric.Rollup, bool) {
	g.sketch.Reset()
	var r metric.Rollup
	nonFinite, last := false, 0
	for i := range samples {
		v := samples[i].Value
		if !(math.Abs(v) <= math.MaxFloat64) { // NaN or an infinity
			nonFinite = nonFinite || !metric.IsMarker(v)
			continue
		}
		g.sketch.Add(v)
		last = i
		if r.Count == 0 {
			r = metric.Rollup{Count: 1, Sum: v, Min: v, Max: v, First: v, Last: v, FirstMs: samples[i].TimeMs}
			continue
		}
		r.Count++
		r.Sum += v
		r.Min = min(r.Min, v)
		r.Max = max(r.Max, v)
		r.Increase += step(r.Last, v)
		r.Last = v
	}
	r.NonFinite = nonFinite
	if r.Count == 0 {
		return r, false
	}
	r.LastMs, r.Sketch = samples[last].TimeMs, g.keepSketch()
	return r, true
}

// Rollups merges finer rows, which MUST be of one schedule and ascend in time. It returns false if
// no row has samples. The result is partial or has NonFinite set if one of the rows is or has, even a row
// without samples. The error is sketch.ErrCorrupt and names the rows whose sketches are damaged. The result
// then is partial too: its numbers include those rows, its sketch does not.
func (g *Grinder) Rollups(rows []metric.RollupRow) (metric.Rollup, bool, error) {
	var r metric.Rollup
	partial, nonFinite := false, false
	for i := range rows {
		row := &rows[i]
		partial = partial || row.Partial
		nonFinite = nonFinite || row.NonFinite
		if row.Count == 0 {
			continue
		}
		if r.Count == 0 {
			r = row.Rollup
			continue
		}
		r.Count += row.Count
		r.Sum += row.Sum
		r.Min = min(r.Min, row.Min)
		r.Max = max(r.Max, row.Max)
		r.Increase += step(r.Last, row.First) + row.Increase
		r.Last, r.LastMs = row.Last, row.LastMs
	}
	if r.Count == 0 {
		return metric.Rollup{Partial: partial, NonFinite: nonFinite}, false, nil
	}
	err := g.merge(rows)
	r.Sketch, r.Partial, r.NonFinite = g.keepSketch(), partial || err != nil, nonFinite
	return r, true, err
}

// merge merges the sketches of all rows into g.sketch. It skips damaged sketches; the error names
// them.
func (g *Grinder) merge(rows []metric.RollupRow) error {
	g.sketch.Reset()
	for i := range rows {
		if rows[i].Count > 0 && g.sketch.Merge(rows[i].Sketch) != nil {
			return g.mergeWhole(rows)
		}
	}
	return nil
}

// mergeWhole tries each sketch in scratch memory first, since Merge adds a damaged sketch up to the
// damage.
func (g *Grinder) mergeWhole(rows []metric.RollupRow) error {
	g.sketch.Reset()
	var damaged error
	for i := range rows {
		row := &rows[i]
		if row.Count == 0 {
			continue
		}
		g.tried.Reset()
		err := g.tried.Merge(row.Sketch)
		if err == nil {
			err = g.sketch.Merge(row.Sketch)
		}
		if err != nil {
			damaged = errors.Join(damaged, fmt.Errorf("schedule %d at %d: %w", row.Schedule, row.TimeMs, err))
		}
	}
	return damaged
}

// step returns the growth of a counter from one sample to the next. A counter that went down was
// reset in between and has grown from 0.
func step(from, to float64) float64 {
	if to < from {
		return to
	}
	return to - from
}

func (g *Grinder) keepSketch() []byte {
	start := len(g.sketches)
	g.sketches = g.sketch.AppendEncoded(g.sketches)
	return g.sketches[start:len(g.sketches):len(g.sketches)]
}
