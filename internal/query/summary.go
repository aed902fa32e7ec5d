package query

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
)

// Summary aggregates the finite samples of one series over a range. The percentiles are those of
// quantile_over_time, within 1 % of the samples that they lie between.
type Summary struct {
	ID     metric.ScheduleID
	Labels metric.Labels
	Point
	P50 float64
	P90 float64
	P99 float64
}

// summaryIDs bounds the series of a group, which are summarized at a time: each has a sketch of up to
// 150 kB.
const summaryIDs = 128

// Summary aggregates each series over [startMs, endMs). It reads the inner part from the coarsest
// rows available, and both ends from finer rows and samples. It leaves out series without samples
// in the range. The returned error may be a *RequestError.
func (q *Querier) Summary(ctx context.Context, sels []Selector, startMs, endMs int64) (*Result[Summary], error) {
	if err := CheckRange(startMs, endMs); err != nil {
		return nil, err
	}
	r := new(Result[Summary])
	groups, err := q.groups(ctx, sels, summaryIDs, &r.warnings)
	if err != nil {
		return nil, err
	}
	levels := q.ladder.Levels()
	slices.Reverse(levels)
	p, err := q.planner(ctx, startMs, endMs, levels, nil, &r.warnings)
	if err != nil {
		return nil, err
	}
	r.all = inOrder(ctx, q, groups, func(ctx context.Context, g Group) ([]Summary, error) {
		return q.groupSummary(ctx, g, p.For(g).parts, &r.warnings)
	})
	return r, nil
}

func (q *Querier) groupSummary(ctx context.Context, g Group, parts []part, warn *Warnings) ([]Summary, error) {
	points := make([]Point, len(g.ids))
	sketches := make([]sketch.Sketch, len(g.ids))
	damaged := make([]bool, len(g.ids))
	err := q.read(ctx, g, parts, warn, nil, q.rows, func(i int, samples []metric.Sample) error {
		for _, s := range samples {
			if finite(s.Value) {
				points[i].add(s.Value)
				sketches[i].Add(s.Value)
			}
		}
		return nil
	}, func(level metric.Bucket, row groupRow) error {
		points[row.i].merge(&row.Rollup)
		if err := sketches[row.i].Merge(row.Sketch); err != nil {
			damaged[row.i] = true
			warn.Add("%s of %s: percentiles are missing: %v", q.rowName(level, row.TimeMs), q.index.Labels(row.Schedule), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []Summary
	for i, id := range g.ids {
		if points[i].Count == 0 {
			continue
		}
		s := Summary{ID: id, Labels: q.index.Labels(id), Point: points[i], P50: math.NaN(), P90: math.NaN(), P99: math.NaN()}
		if !damaged[i] {
			var off error
			if s.P50, s.P90, s.P99, off = percentiles(&sketches[i], s.Min, s.Max); off != nil {
				warn.Add("percentiles of %s: %v", s.Labels, off)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// Baseline says what is usual for a series: the aggregate of its finest roll-up rows, and their
// number.
type Baseline struct {
	ID     metric.ScheduleID
	Labels metric.Labels
	Point
	Rows int
}

// Baseline reads the baseline from the rows of the finest level that start in [startMs, endMs). It
// leaves out series without rows. A warning names rows that lack late samples. The returned error
// may be a *RequestError.
func (q *Querier) Baseline(ctx context.Context, sels []Selector, startMs, endMs int64) (*Result[Baseline], error) {
	if err := CheckRange(startMs, endMs); err != nil {
		return nil, err
	}
	r := new(Result[Baseline])
	groups, err := q.groups(ctx, sels, math.MaxInt, &r.warnings)
	if err != nil {
		return nil, err
	}
	startMs, endMs = q.kept(ctx, 1, startMs, endMs)
	late, err := q.lateRows(ctx, 1, startMs, endMs, &r.warnings)
	if err != nil {
		return nil, err
	}
	r.all = inOrder(ctx, q, groups, func(ctx context.Context, g Group) ([]Baseline, error) {
		if startMs >= endMs {
			return nil, nil
		}
		late(g)
		all := make([]Baseline, len(g.ids))
		for row, err := range q.rows(ctx, g, 1, startMs, endMs, &r.warnings) {
			if err != nil {
				return nil, err
			}
			all[row.i].merge(&row.Rollup)
			all[row.i].Rows++
		}
		var out []Baseline
		for i, id := range g.ids {
			if b := all[i]; b.Rows > 0 {
				b.ID, b.Labels = id, q.index.Labels(id)
				out = append(out, b)
			}
		}
		return out, nil
	})
	return r, nil
}

// Latest is the latest raw sample of one series, finite or not.
type Latest struct {
	ID     metric.ScheduleID
	Labels metric.Labels
	metric.Sample
}

// MaxLookback is the longest lookback of Latest.
const MaxLookback = 7 * 24 * time.Hour

// Latest finds the latest raw sample of each series. Lookback limits its age, as do MaxLookback and
// raw's retention. It reads the last hour first, which serves all series that still report, and
// looks further back only for the others. It leaves out series without a sample. The returned error
// may be a *RequestError.
func (q *Querier) Latest(ctx context.Context, sels []Selector, lookback time.Duration) (*Result[Latest], error) {
	if lookback <= 0 {
		return nil, badRequest("lookback must be more than 0")
	}
	r := new(Result[Latest])
	groups, err := q.groups(ctx, sels, math.MaxInt, &r.warnings)
	if err != nil {
		return nil, err
	}
	lookback = min(lookback, MaxLookback)
	nowMs := q.nowMs()
	r.all = inOrder(ctx, q, groups, func(ctx context.Context, g Group) ([]Latest, error) {
		found := make([]*metric.Sample, len(g.ids))
		toMs := q.untilMs(ctx, math.MaxInt64)
		for _, back := range []time.Duration{time.Hour, 24 * time.Hour, MaxLookback} {
			fromMs := q.sinceMs(metric.Raw, nowMs-min(back, lookback).Milliseconds())
			if err := q.latestIn(ctx, g, found, fromMs, toMs, &r.warnings); err != nil {
				return nil, err
			}
			if toMs = fromMs; back >= lookback {
				break
			}
		}
		var out []Latest
		for i, s := range found {
			if s != nil {
				out = append(out, Latest{ID: g.ids[i], Labels: q.index.Labels(g.ids[i]), Sample: *s})
			}
		}
		return out, nil
	})
	return r, nil
}

// latestIn fills the empty places of found with the latest samples in [fromMs, toMs).
func (q *Querier) latestIn(ctx context.Context, g Group, found []*metric.Sample, fromMs, toMs int64, warn *Warnings) error {
	empty := Group{q: q}
	var places []int
	for i, s := range found {
		if s == nil {
			empty.ids, places = append(empty.ids, g.ids[i]), append(places, i)
		}
	}
	if len(places) == 0 || fromMs >= toMs {
		return nil
	}
	return q.samples(ctx, empty, fromMs, toMs, warn, nil, func(i int, samples []metric.Sample) error {
		// Slices come in order, so that the last one is the latest.
		last := samples[len(samples)-1]
		found[places[i]] = &last
		return nil
	})
}

// percentiles reads the percentiles of a sketch of values between the extremes lowest and highest. off is
// sketch.ErrCollapsed if one of them is not within 1 %.
func percentiles(sk *sketch.Sketch, lowest, highest float64) (p50, p90, p99 float64, off error) {
	at := func(q float64) float64 {
		v, err := sk.Quantile(q, lowest, highest)
		off = cmp.Or(off, err)
		return v
	}
	p50, p90, p99 = at(0.5), at(0.9), at(0.99)
	return p50, p90, p99, off
}
