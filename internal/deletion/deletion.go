// Package deletion takes samples back: it reads the raw samples of the series that a selector names, and has ingest write
// a tombstone for each, as it would a correction. What follows is what follows a correction: slices that are closed are
// marked and ground again.
//
//  1. Acknowledged means durable: when Delete returns nil, the tombstones are, and marks that lead a run to them.
//  2. Raw decides: rows of slices whose raw samples have expired cannot be computed again and stay; the caller is told.
//  3. To ask again does no harm: what is taken back already is not read, so nothing is written for it.
//  4. Bounded: one group's samples of one slice are in memory, and one batch of tombstones.
package deletion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/throttle"
)

const (
	// batchSamples are written at a time: half of what ends a group commit's window, so that reports fit in beside them.
	batchSamples = 1 << 16
	// busyWait is how long to wait where ingest's queue is full.
	busyWait = 100 * time.Millisecond
	// sayEvery is how often a deletion under way is logged.
	sayEvery = 10 * time.Second
)

// Ingest takes samples back; see ingest.Ingest.
type Ingest interface {
	Delete(ctx context.Context, samples []metric.Sample) error
}

// Kept knows from when on rows will be computed again; see reaggregate.Reaggregator.
type Kept interface {
	KeptFrom(nowMs int64) int64
}

// Deleter deletes. It is safe for concurrent use.
type Deleter struct {
	q      *query.Querier
	ingest Ingest
	kept   Kept
	clk    clock.Clock
	log    *slog.Logger
}

// New makes one for what a querier reads. The log hears of each deletion, since nothing else will say where the samples went.
func New(q *query.Querier, in Ingest, kept Kept, clk clock.Clock, log *slog.Logger) *Deleter {
	return &Deleter{q: q, ingest: in, kept: kept, clk: clk, log: log}
}

// Delete takes back the samples in [startMs, endMs), as far as raw is kept, of the series that match any of the sets of
// matchers. Warnings say what stays all the same. After an error some are taken back and some are not; it may be a
// *query.RequestError.
func (d *Deleter) Delete(ctx context.Context, startMs, endMs int64, sets ...[]*labels.Matcher) (warnings []string, err error) {
	sels := make([]query.Selector, len(sets))
	for i, set := range sets {
		sels[i] = set
	}
	groups, err := d.q.Groups(sels...)
	if err != nil {
		return nil, err
	}
	j := &job{Deleter: d, all: len(groups), said: throttle.New(d.clk, sayEvery)}
	j.said.Pass()
	defer func() {
		d.log.Info("samples deleted", "selectors", fmt.Sprint(sels), "from_ms", startMs, "to_ms", endMs,
			"series", j.series, "samples", j.samples, "err", err)
	}()
	for _, g := range groups {
		if err := j.group(ctx, g, startMs, endMs); err != nil {
			return nil, err
		}
	}
	if err := j.write(ctx); err != nil {
		return nil, err
	}
	warnings = j.warn.List()
	if from := d.kept.KeptFrom(clock.NowMs(d.clk)); startMs < from {
		stay, err := d.rows(ctx, sels, startMs, endMs, from)
		if err != nil {
			return nil, err
		}
		if stay {
			warnings = append(warnings, fmt.Sprintf(
				"roll-up rows of the time before %s stay until their own retention ends: the raw samples that they were made of have expired",
				time.UnixMilli(from).UTC().Format(time.RFC3339)))
		}
	}
	return warnings, nil
}

// rows says whether there are rows of any level in [startMs, endMs) that will not be computed again: those of which nothing
// lies at keptMs or later.
func (d *Deleter) rows(ctx context.Context, sels []query.Selector, startMs, endMs, keptMs int64) (bool, error) {
	l := d.q.Ladder()
	for _, level := range l.Levels() {
		width := l.WidthMs(level)
		from, to := metric.AlignDown(max(startMs, 0), width), min(endMs, metric.AlignDown(keptMs, width))
		if from >= to {
			continue
		}
		found, err := d.q.Rollups(ctx, sels, level, from, to)
		if err != nil {
			return false, err
		}
		for _, err := range found.All() {
			return err == nil, err
		}
	}
	return false, nil
}

// job is one deletion under way.
type job struct {
	*Deleter
	warn query.Warnings
	said *throttle.Throttle

	tombstones []metric.Sample
	done, all  int // groups
	series     int
	samples    int64
	failed     error // no more is to be written, though some may still be read
}

func (j *job) group(ctx context.Context, g query.Group, startMs, endMs int64) error {
	had := make([]bool, len(g.IDs()))
	err := g.Samples(ctx, startMs, endMs, &j.warn, func(i int, samples []metric.Sample) error {
		if !had[i] {
			had[i] = true
			j.series++
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
	j.done++
	return err
}

// write has the batch made durable. A queue that is full it waits for: who deletes should not have to try.
func (j *job) write(ctx context.Context) error {
	for {
		err := j.ingest.Delete(ctx, j.tombstones)
		if err == nil {
			break
		}
		if !errors.Is(err, ingest.ErrBusy) {
			return err
		}
		select {
		case <-j.clk.After(busyWait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	j.samples += int64(len(j.tombstones))
	j.tombstones = j.tombstones[:0]
	if _, ok := j.said.Pass(); ok {
		j.log.Info("deleting", "groups", j.done, "of", j.all, "series", j.series, "samples", j.samples)
	}
	return nil
}
