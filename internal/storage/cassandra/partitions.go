package cassandra

import (
	"context"
	"iter"
	"math"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

const dayMs = int64(24 * 60 * 60 * 1000)

// partition is a partition of a table of samples or rows: a group of schedules in a stretch of
// time.
type partition struct {
	Group    int64 `db:"start_schedule_id"`
	PeriodMs int64 `db:"period"`
}

// maxNamed is how many partitions are asked for by name. For a range that spans more, such as all
// ids or all times, the existing partitions are listed first.
const maxNamed = 16 << 10

// listing is a table whose partitions are read in ranges.
type listing struct {
	// cqlList selects the distinct keys of all partitions of the table.
	cqlList string
	// groupSize and periodMs are what one partition spans.
	groupSize int
	periodMs  int64
}

// partitions returns the partitions of the table that may hold ids and times, by group, then
// period.
func (s *Store) partitions(ctx context.Context, l listing, ids blocks.Range, fromMs, toMs int64) ([]partition, error) {
	if ids.Start >= ids.End || fromMs >= toMs {
		return nil, nil
	}
	firstGroup := int64(blocks.BlockAt(ids.Start, l.groupSize).Start)
	firstPeriod := metric.AlignDown(clampMs(fromMs), l.periodMs)
	toMs = clampMs(toMs)
	groups := (int64(ids.End)-1-firstGroup)/int64(l.groupSize) + 1
	periods := (toMs - firstPeriod + l.periodMs - 1) / l.periodMs
	var out []partition
	if float64(groups)*float64(periods) <= maxNamed {
		for g := range groups {
			for p := range periods {
				out = append(out, partition{firstGroup + g*int64(l.groupSize), firstPeriod + p*l.periodMs})
			}
		}
		return out, nil
	}
	for p, err := range rows[partition](ctx, s.session, manyRows, stmt(l.cqlList)) {
		if err != nil {
			return nil, err
		}
		if firstGroup <= p.Group && p.Group < int64(ids.End) && firstPeriod <= p.PeriodMs && p.PeriodMs < toMs {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b partition) int {
		if a.Group != b.Group {
			return int(a.Group - b.Group)
		}
		return int(a.PeriodMs - b.PeriodMs)
	})
	return out, nil
}

// clampMs bounds a time so that a period can be added to it without overflow.
func clampMs(t int64) int64 { return max(math.MinInt64/4, min(t, math.MaxInt64/4)) }

const (
	// readAhead is how many partitions are read at once.
	readAhead = 16
	// aheadRows is how many small rows of each partition are kept until its turn.
	aheadRows = 64
)

// spread yields what read yields for each key, in the order of keys. It reads up to readAhead keys
// at once, and keeps what was read of each until its turn: one, and up to ahead more. No goroutine is left when the loop ends.
func spread[K, T any](ctx context.Context, keys []K, ahead int, read func(context.Context, K) iter.Seq2[T, error]) iter.Seq2[T, error] {
	if len(keys) == 1 {
		return read(ctx, keys[0])
	}
	return func(yield func(T, error) bool) {
		type item struct {
			row T
			err error
		}
		ctx, cancel := context.WithCancel(ctx)
		queues := make([]chan item, 0, len(keys))
		start := func() {
			key, queue := keys[len(queues)], make(chan item, ahead)
			queues = append(queues, queue)
			go func() {
				defer close(queue)
				for row, err := range read(ctx, key) {
					select {
					case queue <- item{row, err}:
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		done := 0
		defer func() {
			cancel()
			for _, q := range queues[done:] {
				for range q { // until its reader has ended
				}
			}
		}()
		for len(queues) < min(readAhead, len(keys)) {
			start()
		}
		for i := range keys {
			for it := range queues[i] {
				if !yield(it.row, it.err) || it.err != nil {
					return
				}
			}
			if err := ctx.Err(); err != nil {
				var zero T
				yield(zero, convert(ctx, err))
				return
			}
			queues[i], done = nil, i+1 // free what has been read
			if len(queues) < len(keys) {
				start()
			}
		}
	}
}
