package ingest

import (
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// overwritten counts those of the call's samples that are among the overwritten samples of the
// commit. There are hardly ever any.
func (r *resolver) overwritten(reports []Report, rejected []Rejection, lost []metric.Sample) (o Overwritten) {
	if len(lost) == 0 {
		return o
	}
	type lostSample struct {
		id     metric.ScheduleID
		timeMs int64
		bits   uint64
	}
	key := func(s metric.Sample) lostSample { return lostSample{s.Schedule, s.TimeMs, math.Float64bits(s.Value)} }
	left := make(map[lostSample]int, len(lost))
	for _, s := range lost {
		left[key(s)]++
	}
	for i, s := range r.samples {
		if left[key(s)] == 0 {
			continue
		}
		left[key(s)]--
		if o.Samples++; o.Samples == 1 {
			o.TimeMs = s.TimeMs
			o.Series = seriesAt(reports, measurementOf(i, rejected))
		}
	}
	return o
}

// measurementOf returns the index of the measurement of the i-th sample. Rejected measurements have
// no sample.
func measurementOf(i int, rejected []Rejection) int {
	for _, rej := range rejected {
		if rej.Index > i {
			break
		}
		i++
	}
	return i
}

// seriesAt returns the series of the measurement at index, in Prometheus' notation.
func seriesAt(reports []Report, index int) string {
	for _, rep := range reports {
		if index >= len(rep.Measurements) {
			index -= len(rep.Measurements)
			continue
		}
		m := &rep.Measurements[index]
		labels := slices.Clone(m.Labels)
		if !rep.Derived {
			labels = append(labels, metric.Label{Name: metric.SourceLabel, Value: rep.Source})
		}
		return m.Metric + metric.Labels(labels).String()
	}
	return ""
}
