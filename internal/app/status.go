package app

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// status reports how far aggregation is.
type status struct {
	*engine
	clk clock.Clock
}

const shownRuns = 50

// AggregationStatus implements api.StatusProvider.
func (s status) AggregationStatus(ctx context.Context, waiting bool) (api.Status, error) {
	var out api.Status
	var errs [4]error
	out.Runs, errs[0] = s.store.RecentRuns(ctx, shownRuns)
	out.Workers, errs[1] = s.store.Workers(ctx)
	leases, err := s.store.Leases(ctx)
	errs[2] = err
	out.Errors, errs[3] = s.store.RecentErrors(ctx)
	if err := errors.Join(errs[:]...); err != nil {
		return out, err
	}
	for shard, worker := range shards.Assign(out.Workers, s.store.Settings().IndexPartitions) {
		out.Shards = append(out.Shards, api.ShardStatus{Shard: shard, Worker: worker})
	}
	for _, l := range leases {
		out.Shards[l.Shard].Lease = l
	}
	if keeper, ok := s.store.(clockKeeper); ok {
		if err := keeper.ClockDoubt(); err != nil {
			out.ClockDoubt = err.Error()
		}
	}
	ladder := s.store.Settings().Ladder
	for b := metric.Raw; b <= ladder.Top(); b++ {
		out.Levels = append(out.Levels, api.LevelStatus{
			Bucket: b, Retention: s.policy.Retention.Of(b), WholeFromMs: s.store.WholeFrom(b, clock.NowMs(s.clk)),
		})
	}
	outstanding, err := s.recovery.Outstanding(ctx)
	if err != nil {
		return out, err
	}
	now := clock.NowMs(s.clk)
	// Finest bucket first, and within each the oldest slice first. Work moves from one slice to a
	// later one or to a coarser bucket, and leaves its old place last. So this order does not miss
	// work under way.
	for _, b := range ladder.Ground() {
		bs := api.BucketStatus{Bucket: b}
		stood := map[int64]int{}
		for _, k := range outstanding {
			late := now - ladder.SliceAt(b, k.StartMs).EndMs
			if k.Bucket != b || late < 0 && !waiting {
				continue
			}
			n, err := s.countMarks(ctx, k, func(m *storage.Mark) { stood[ladder.SliceAt(b, m.TimeMs).StartMs]++ })
			if err != nil {
				return out, err
			}
			if late >= 0 {
				bs.Outstanding = append(bs.Outstanding, api.OutstandingSlice{StartMs: k.StartMs, Marks: n})
				bs.Lag = max(bs.Lag, time.Duration(late)*time.Millisecond)
			}
		}
		if waiting {
			for _, start := range slices.Sorted(maps.Keys(stood)) {
				bs.Waiting = append(bs.Waiting, api.OutstandingSlice{StartMs: start, Marks: stood[start]})
			}
		}
		out.Buckets = append(out.Buckets, bs)
	}
	return out, nil
}

func (s status) countMarks(ctx context.Context, k storage.SliceKey, each func(*storage.Mark)) (int, error) {
	n := 0
	for shard := range s.store.Settings().IndexPartitions {
		for m, err := range s.store.Marks(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}) {
			if err != nil {
				return 0, err
			}
			each(&m)
			n++
		}
	}
	return n, nil
}
