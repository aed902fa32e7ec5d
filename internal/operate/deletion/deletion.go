// Package deletion takes samples back. It reads the raw samples of the series that a selector
// names, and has ingest write a tombstone for each, in the same way as a correction. The rest is as
// after a correction: closed slices are marked and ground again.
//
//  1. Acknowledged means durable: when Delete returns nil, the tombstones are durable, and so are
//     marks that lead a run to them.
//  2. Raw decides: rows of slices whose raw samples have expired cannot be computed again and stay.
//     The caller gets a warning that names them.
//  3. A repeat does no harm: samples that are already taken back are not read, so nothing is
//     written for them.
//  4. A sample that arrives after its series was read stays, also if it replaces one that is being
//     taken back. So does one that arrives in the first seconds of a deletion (placeFor).
//  5. Bounded: memory holds one group's samples of one slice, and one batch of tombstones.
package deletion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

const (
	// batchSamples is the number of tombstones written at a time. Reports wait meanwhile.
	batchSamples = 1 << 16
	// placeFor is how long tombstones are written at one place in the order of writes. Beyond cache.Timing.Settled that place
	// would come before samples that have been packed since.
	placeFor = 10 * time.Second
	// logEvery is how often a deletion under way is logged.
	logEvery = 10 * time.Second
)

// Ingest takes samples back; see ingest.Ingest.
type Ingest interface {
	Place(ctx context.Context) (*blocks.Place, error)
	Delete(ctx context.Context, at *blocks.Place, samples []metric.Sample) error
}

// Kept knows the time from which on rows will be computed again; see reaggregate.Reaggregator.
type Kept interface {
	KeptFrom(nowMs int64) int64
}

// Deleter deletes. It is safe for concurrent use.
type Deleter struct{ Parts }

// Parts are what a Deleter works with. All are required.
type Parts struct {
	Querier *query.Querier
	Ingest  Ingest
	Kept    Kept
	Clock   clock.Clock
	// Logger receives each deletion, since nothing else says where the samples went.
	Logger *slog.Logger
}

// New makes a Deleter for what a querier reads.
func New(p Parts) *Deleter {
	return &Deleter{p}
}

// Result is the outcome of a deletion.
type Result struct {
	// Series is the number of series that had samples, Samples the number of samples taken back.
	Series  int
	Samples int64
	// Rows is the number of roll-up rows, of all levels, that the samples were in or were to be in.
	// Existing rows are computed again from what is left, or taken back if nothing is left.
	Rows int64
	// Warnings say what stays in spite of the deletion.
	Warnings []string
}

// Delete takes back the samples in [startMs, endMs), as far as raw is kept, of the series that
// match any of the sets of matchers. After an error some samples are taken back and some are not.
// The error may be a *query.RequestError.
func (d *Deleter) Delete(ctx context.Context, startMs, endMs int64, sets ...[]*labels.Matcher) (Result, error) {
	sels := make([]query.Selector, len(sets))
	for i, set := range sets {
		sels[i] = set
	}
	if err := d.Querier.Index().Unread(); err != nil {
		return Result{}, err // the selectors may match some of these series
	}
	groups, err := d.Querier.Groups(ctx, sels...)
	if err != nil {
		return Result{}, err
	}
	j := &job{Deleter: d, had: make(map[metric.ScheduleID]bool), all: len(groups), logged: limits.NewThrottle(d.Clock, logEvery)}
	j.logged.Pass()
	err = j.run(ctx, groups, startMs, endMs)
	d.Querier.Forget(j.touched)
	if err == nil {
		err = j.stay(ctx, sels, startMs, endMs)
	}
	d.Logger.Info("samples deleted", "selectors", fmt.Sprint(sels), "from_ms", startMs, "to_ms", endMs,
		"series", j.Series, "samples", j.Samples, "rows", j.Rows, "err", err)
	if err != nil {
		return Result{}, err
	}
	j.Warnings = append(j.warn.List(), j.Warnings...)
	return j.Result, nil
}

func (j *job) run(ctx context.Context, groups []query.Group, startMs, endMs int64) error {
	for j.done < len(groups) {
		before, samples := j.done, j.Samples
		err := j.some(ctx, groups[j.done:], startMs, endMs)
		if err == nil || errors.Is(err, blocks.ErrStale) && (j.done > before || j.Samples > samples) {
			continue // what is taken back already is not read again
		}
		return err
	}
	return nil
}

// some takes back samples of the first of the groups at one place in the order of writes, as many as it can in placeFor.
func (j *job) some(ctx context.Context, groups []query.Group, startMs, endMs int64) error {
	began := j.Clock.Elapsed()
	var err error
	if j.at, err = j.Ingest.Place(ctx); err != nil {
		return err
	}
	j.tombstones, j.failed = j.tombstones[:0], nil
	j.read = j.done
	for i, g := range groups {
		if i > 0 && j.Clock.Elapsed()-began >= placeFor {
			break
		}
		if err := j.group(ctx, g, startMs, endMs); err != nil {
			return err
		}
		j.read++
	}
	return j.write(ctx)
}

// stay warns of the rows in [startMs, endMs) that will not be computed again: rows that lie wholly
// before the time from which raw will be whole.
func (j *job) stay(ctx context.Context, sels []query.Selector, startMs, endMs int64) error {
	keptMs := j.Kept.KeptFrom(clock.NowMs(j.Clock))
	l := j.Querier.Ladder()
	for _, level := range l.Levels() {
		width := l.WidthMs(level)
		// Rows have times from 1970 on, and AlignDown of the smallest numbers overflows.
		from, to := metric.AlignDown(max(startMs, 0), width), min(endMs, metric.AlignDown(max(keptMs, 0), width))
		if from >= to {
			continue
		}
		found, err := j.Querier.Rollups(ctx, sels, level, from, to)
		if err != nil {
			return err
		}
		n, first, last := 0, int64(0), int64(0)
		for row, err := range found.All() {
			if err != nil {
				return err
			}
			if n++; n == 1 {
				first, last = row.TimeMs, row.TimeMs
			}
			first, last = min(first, row.TimeMs), max(last, row.TimeMs)
		}
		if n > 0 {
			j.Warnings = append(j.Warnings, fmt.Sprintf(
				"the rows of level %s from %s to %s (%d rows) stay until their own retention ends: the raw samples they were made from have expired",
				l.Name(level), metric.Slice{StartMs: first}, metric.Slice{StartMs: last + width}, n))
		}
	}
	return nil
}

// job is one deletion under way.
type job struct {
	*Deleter
	warn   query.Warnings
	logged *limits.Throttle

	Result
	// at was taken before the tombstones' samples were read: the tombstone for a sample that has been replaced since must not
	// count.
	at         *blocks.Place
	tombstones []metric.Sample
	touched    []metric.ScheduleID        // the ids that had samples
	had        map[metric.ScheduleID]bool // the series that had samples, by their lowest ids
	read       int                        // groups that were read to their end
	done, all  int                        // groups whose tombstones are written, and all groups
	failed     error                      // nothing more is to be written, though samples may still be read
}

func (j *job) group(ctx context.Context, g query.Group, startMs, endMs int64) error {
	l := j.Querier.Ladder()
	// last is the start of the row that the last samples were in, by series and level.
	last := make([]int64, len(g.IDs())*int(l.Top()))
	for i := range last {
		last[i] = math.MinInt64
	}
	had := make([]bool, len(g.IDs()))
	err := g.Pieces(ctx, startMs, endMs, &j.warn, func(i int, samples []metric.Sample) error {
		if !had[i] {
			had[i] = true
			j.had[g.IDs()[i]] = true
			j.Series = len(j.had)
			j.touched = append(j.touched, g.IDs()[i])
		}
		for n, level := range l.Levels() {
			at, width := &last[i*int(l.Top())+n], l.WidthMs(level)
			for k := range samples {
				if row := metric.AlignDown(samples[k].TimeMs, width); row != *at {
					*at = row
					j.Rows++
				}
			}
		}
		for len(samples) > 0 && j.failed == nil {
			n := min(len(samples), batchSamples-len(j.tombstones))
			j.tombstones = append(j.tombstones, samples[:n]...)
			samples = samples[n:]
			if len(j.tombstones) == batchSamples {
				j.failed = j.write(ctx)
			}
		}
		return j.failed
	})
	return err
}

// write makes the batch durable.
func (j *job) write(ctx context.Context) error {
	if err := j.Ingest.Delete(ctx, j.at, j.tombstones); err != nil {
		return err
	}
	j.Samples += int64(len(j.tombstones))
	j.tombstones = j.tombstones[:0]
	j.done = j.read
	if _, ok := j.logged.Pass(); ok {
		j.Logger.Info("deleting", "groups", j.done, "of", j.all, "series", j.Series, "samples", j.Samples)
	}
	return nil
}
