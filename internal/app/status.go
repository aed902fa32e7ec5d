package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// status reports how far aggregation is.
type status struct {
	*process
	clk clock.Clock
}

const (
	shownRuns   = 50
	shownUnread = 20
)

// AggregationStatus implements reading.StatusProvider.
func (s status) AggregationStatus(ctx context.Context, waiting bool) (reading.Status, error) {
	var out reading.Status
	// reached returns err, unless a part of the store is out of reach: the status then does without
	// it, and says so. Without workers and leases, which everybody needs, there is no status.
	reached := func(what string, err error) error {
		if !storage.IsAway(err) || ctx.Err() != nil {
			return err
		}
		if len(out.Unread) < shownUnread {
			out.Unread = append(out.Unread, what+": "+err.Error())
		}
		return nil
	}
	var errs [4]error
	out.Workers, errs[0] = s.Store.Workers(ctx)
	leases, err := s.Store.Leases(ctx)
	errs[1] = err
	out.Runs, err = s.Store.RecentRuns(ctx, shownRuns)
	errs[2] = reached("the last runs", err)
	out.Errors, err = s.Store.RecentErrors(ctx)
	errs[3] = reached("the last errors", err)
	if err := errors.Join(errs[:]...); err != nil {
		return out, err
	}
	for shard, worker := range shards.Assign(out.Workers, s.Store.Settings().IndexPartitions) {
		out.Shards = append(out.Shards, reading.ShardStatus{Shard: shard, Worker: worker})
	}
	for _, l := range leases {
		out.Shards[l.Shard].Lease = l
	}
	if keeper, ok := s.Store.(clockKeeper); ok {
		if err := keeper.ClockDoubt(); err != nil {
			out.ClockDoubt = err.Error()
		}
	}
	ladder := s.Store.Settings().Ladder
	for b := metric.Raw; b <= ladder.Top(); b++ {
		out.Levels = append(out.Levels, reading.LevelStatus{
			Bucket: b, Retention: s.policy.Retention.Of(b), WholeFromMs: s.Store.WholeFrom(b, clock.NowMs(s.clk)),
		})
	}
	outstanding, err := s.Recovery.Outstanding(ctx)
	var unread *storage.GapsError
	if err != nil && !errors.As(err, &unread) {
		return out, err
	}
	if unread != nil {
		for _, g := range unread.Gaps {
			if err := reached(fmt.Sprintf("the slices of %s %s", ladder.Name(g.Bucket), g), g.Err); err != nil {
				return out, err
			}
		}
	}
	now := clock.NowMs(s.clk)
	// Finest bucket first, and within each the oldest slice first. Work moves from one slice to a
	// later one or to a coarser bucket, and leaves its old place last. So this order does not miss
	// work under way.
	for _, b := range ladder.Ground() {
		bs := reading.BucketStatus{Bucket: b}
		stood := map[int64]int{}
		for _, k := range outstanding {
			late := now - ladder.SliceAt(b, k.StartMs).EndMs
			if k.Bucket != b || late < 0 && !waiting {
				continue
			}
			n, err := s.countMarks(ctx, k, func(m *storage.Mark) { stood[ladder.SliceAt(b, m.TimeMs).StartMs]++ })
			if err := reached(fmt.Sprintf("marks of %s slice %s", ladder.Name(b), ladder.SliceAt(b, k.StartMs)), err); err != nil {
				return out, err
			}
			if late >= 0 {
				bs.Outstanding = append(bs.Outstanding, reading.OutstandingSlice{StartMs: k.StartMs, Marks: n})
				bs.Lag = max(bs.Lag, time.Duration(late)*time.Millisecond)
			}
		}
		if waiting {
			for _, start := range slices.Sorted(maps.Keys(stood)) {
				bs.Waiting = append(bs.Waiting, reading.OutstandingSlice{StartMs: start, Marks: stood[start]})
			}
		}
		out.Buckets = append(out.Buckets, bs)
	}
	return out, nil
}

// countMarks counts the marks in the index of a slice. With an error that storage.IsAway, it has
// counted those in reach.
func (s status) countMarks(ctx context.Context, k storage.SliceKey, each func(*storage.Mark)) (n int, away error) {
	for shard := range s.Store.Settings().IndexPartitions {
		for m, err := range s.Store.Marks(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}) {
			if storage.IsAway(err) && ctx.Err() == nil {
				away = err
				break
			}
			if err != nil {
				return 0, err
			}
			each(&m)
			n++
		}
	}
	return n, away
}
