package promquery

import (
	"context"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// samples reads the points of selectors over raw samples in [mint, maxt].
type samples struct {
	mint, maxt int64
	windows    bool // without the samples that say that a series has ended, since windows do not have them
	alone      bool // the selector has one group
	recycles   bool // as of the loader
	warn       *query.Warnings
}

// read is a reader.
func (s *samples) read(ctx context.Context, g query.Group, hold func(n int) error) ([]points, error) {
	if s.alone && len(g.IDs()) <= fewSeries {
		if borders := g.Borders(s.mint, s.maxt+1); len(borders) > 2 {
			return s.readStretches(ctx, g, borders, hold)
		}
	}
	return s.readGroup(ctx, g, s.mint, s.maxt+1, hold)
}

// fewSeries is the number of series up to which a group that is alone is read in stretches of time. Of more, there would be
// much to put together.
const fewSeries = 8

// readStretches is readGroup by two goroutines. Each takes the next stretch, so that little is left to wait for if the
// processors are busy.
func (s *samples) readStretches(ctx context.Context, g query.Group, borders []int64, hold func(n int) error) ([]points, error) {
	stretches := make([][]points, len(borders)-1)
	var taken atomic.Int64
	readers, ctx := errgroup.WithContext(ctx)
	read := func() error {
		for {
			i := taken.Add(1) - 1
			if i >= int64(len(stretches)) {
				return nil
			}
			var err error
			if stretches[i], err = s.readGroup(ctx, g, borders[i], borders[i+1], hold); err != nil {
				return err
			}
		}
	}
	for range 2 {
		readers.Go(read)
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	out := stretches[0]
	for _, later := range stretches[1:] {
		for i, more := range later {
			room := cap(out[i])
			out[i] = append(out[i], more...)
			if err := hold(cap(out[i]) - room - cap(more)); err != nil {
				return nil, err
			}
		}
		if s.recycles {
			recycle(later)
		}
	}
	return out, nil
}

// readGroup reads what the series of a group have in [fromMs, toMs).
func (s *samples) readGroup(ctx context.Context, g query.Group, fromMs, toMs int64, hold func(n int) error) ([]points, error) {
	out := make([]points, len(g.IDs()))
	roomMs := toMs - 1
	if fromMs == s.mint { // what follows is appended
		roomMs = s.maxt
	}
	err := g.Samples(ctx, fromMs, toMs, s.warn, hold, func(i int, samples []metric.Sample) error {
		p := out[i]
		if cap(p) == 0 && s.recycles {
			p = recycled(len(samples) + int(min(s.rest(samples, roomMs), maxRecycled)))
		}
		if more := len(samples) - (cap(p) - len(p)); more > 0 {
			p = slices.Grow(p, s.room(len(p), samples, roomMs))
		}
		if err := hold(cap(p) - cap(out[i])); err != nil {
			return err
		}
		into := p[len(p):][:len(samples)]
		n := 0
		for k := range samples {
			v := samples[k].Value
			into[n] = promql.FPoint{T: samples[k].TimeMs, F: v}
			if !s.windows || !value.IsStaleNaN(v) {
				n++
			}
		}
		p = p[:len(p)+n]
		out[i] = p
		return nil
	})
	return out, err
}

// room returns how many points to make room for, where a series has n and gets more: also for those that follow at the same
// rate, up to as many as it has and some, so that most series grow once.
func (s *samples) room(n int, more []metric.Sample, toMs int64) int {
	const some = 4096
	return len(more) + int(min(s.rest(more, toMs), float64(n+some)))
}

// rest returns how many points would follow at the same rate, up to a time.
func (s *samples) rest(more []metric.Sample, toMs int64) float64 {
	first, last := more[0].TimeMs, more[len(more)-1].TimeMs
	return max(0, float64(toMs-last)*float64(len(more)-1)/float64(max(last-first, 1)))
}

const (
	sampleBytes = query.SampleBytes
	spanBytes   = int(unsafe.Sizeof(query.Span{}))
)

// samplesIn converts bytes to the number of samples of the same size, which is the unit of the
// query's limit.
func samplesIn(bytes int) int { return (bytes + sampleBytes - 1) / sampleBytes }
