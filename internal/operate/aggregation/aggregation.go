// Package aggregation tells operators the state of aggregation: what is outstanding, how far each
// bucket is, who grinds, and what went wrong. It reads the store and changes nothing.
package aggregation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/rollup/packing"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

const (
	shownRuns   = 50
	shownUnread = 20
)

// Reader reads the state of aggregation. It is safe for concurrent use.
type Reader struct {
	store    storage.Store
	ladder   metric.Ladder
	recovery *recovery.Recovery
	clk      clock.Clock
}

// New makes a Reader.
func New(store storage.Store, r *recovery.Recovery, clk clock.Clock) *Reader {
	return &Reader{store: store, ladder: store.Settings().Ladder, recovery: r, clk: clk}
}

// gated is a store that refuses to go by a clock that is wrong.
type gated interface {
	ClockRefused() error
}

// AggregationStatus returns the state as operators see it. With waiting it also fills
// Bucket.Waiting, for which it reads every mark. If a part of the store is out of reach, or a run
// or an error is damaged, the status does without it, and names it in Unread. Workers and leases, which everybody needs, must be in
// reach. Empty lists are lists, so that scripts need no case for null.
func (r *Reader) AggregationStatus(ctx context.Context, waiting bool) (wire.Status, error) {
	s := state{Reader: r}
	s.Levels = r.levels()
	if d, ok := r.store.(gated); ok {
		if err := d.ClockRefused(); err != nil {
			s.ClockDoubt = err.Error()
		}
	}
	if err := s.readWorkers(ctx); err != nil {
		return s.Status, err
	}
	if err := s.readHistory(ctx); err != nil {
		return s.Status, err
	}
	if err := s.readPacking(ctx); err != nil {
		return s.Status, err
	}
	return s.Status, s.readBuckets(ctx, waiting)
}

// state is a status that is being read.
type state struct {
	*Reader
	wire.Status
}

// without returns err, unless it means that what is out of reach, which is then among the unread.
func (s *state) without(ctx context.Context, what string, err error) error {
	if !storage.IsAway(err) || ctx.Err() != nil {
		return err
	}
	s.unread(what, err)
	return nil
}

// withoutSome is without for a list that has what can be read of damaged records.
func (s *state) withoutSome(ctx context.Context, what string, err error) error {
	if errors.Is(err, storage.ErrCorrupt) {
		s.unread(what, err)
		return nil
	}
	return s.without(ctx, what, err)
}

func (s *state) unread(what string, err error) {
	if len(s.Unread) < shownUnread {
		s.Unread = append(s.Unread, what+": "+err.Error())
	}
}

// records returns the last runs and errors, newest first. known says whether the runs could be read.
func (s *state) records(ctx context.Context, most int) (runs []storage.Run, faults []storage.ComponentError, known bool, err error) {
	runs, rerr := storage.RecentRuns(ctx, s.store, most)
	faults, ferr := storage.RecentErrors(ctx, s.store)
	return runs, faults, rerr == nil, errors.Join(s.withoutSome(ctx, "the last runs", rerr), s.withoutSome(ctx, "the last errors", ferr))
}

// levels returns all buckets, raw first.
func (r *Reader) levels() []wire.Level {
	retention, out := r.store.Settings().Policy.Retention, []wire.Level{}
	for b := metric.Raw; b <= r.ladder.Top(); b++ {
		l := wire.Level{
			Level: r.ladder.Name(b), RetentionSeconds: retention.Duration(b).Seconds(),
			WidthSeconds: (time.Duration(r.ladder.WidthMs(b)) * time.Millisecond).Seconds(),
		}
		if whole := r.store.WholeFrom(b, clock.NowMs(r.clk)); whole != math.MinInt64 {
			l.WholeFrom = &whole
		}
		out = append(out, l)
	}
	return out
}

// readWorkers fills in the workers, and the shards with their owners.
func (s *state) readWorkers(ctx context.Context) error {
	workers, err := storage.Workers(ctx, s.store)
	leases, lerr := s.store.Leases(ctx)
	if err := errors.Join(err, lerr); err != nil {
		return err
	}
	s.Workers = mapped(workers, func(w storage.Worker) wire.Worker {
		return wire.Worker{ID: w.ID, Host: w.Host, Started: w.StartedMs, Seen: w.SeenMs, Aggregates: w.Aggregates}
	})
	for shard, worker := range shards.Assign(workers, s.store.Settings().IndexPartitions) {
		s.Shards = append(s.Shards, wire.Shard{Shard: shard, Worker: worker})
	}
	for _, l := range leases {
		sh := &s.Shards[l.Shard]
		sh.Owner, sh.Fence, sh.Expires = l.Owner, int64(l.Fence), l.ExpiresMs
	}
	return nil
}

// readHistory fills in the last runs and errors, newest first.
func (s *state) readHistory(ctx context.Context) error {
	runs, faults, _, err := s.records(ctx, shownRuns)
	s.Runs, s.Errors = mapped(runs, s.run), mapped(faults, s.fault)
	return err
}

// readPacking fills in which slices of raw have been packed.
func (s *state) readPacking(ctx context.Context) error {
	p, ok, err := packing.Read(ctx, s.store)
	if err != nil || !ok {
		return s.without(ctx, "the progress of packing", err)
	}
	now, settings := clock.NowMs(s.clk), s.store.Settings()
	within := packing.RangeOf(s.ladder, max(p.OldestMs, s.store.WholeFrom(metric.Raw, now)), now-settings.Policy.Delay.Milliseconds())
	s.Packing = &wire.Packing{Slices: within.Slices()}
	for shard := range settings.IndexPartitions {
		s.Packing.Left = max(s.Packing.Left, within.Left(p.Shard(shard)))
	}
	return nil
}

func (r *Reader) run(u storage.Run) wire.Run {
	return wire.Run{
		Bucket: r.ladder.Name(u.Bucket), Slice: u.StartMs, Worker: u.Worker, Started: u.StartedMs, Seconds: u.Duration.Seconds(),
		Blocks: u.Blocks, Schedules: u.Schedules, BlockQueries: u.BlockQueries, IndexQueries: u.IndexQueries,
		Late: u.Late, Rescheduled: u.Rescheduled, Dropped: u.Dropped, Error: u.Err,
	}
}

func (r *Reader) fault(e storage.ComponentError) wire.Fault {
	out := wire.Fault{
		Component: e.Component, Worker: e.Worker, Time: e.TimeMs, Bucket: r.ladder.Name(e.Bucket), Slice: e.StartMs, Message: e.Message,
	}
	if start := int64(e.Start); start >= 0 {
		out.Start = &start
	}
	return out
}

// readBuckets fills in the work that is left for the buckets that are ground, finest first. Work
// moves from one slice to a later one or to a coarser bucket, and leaves its old place last. So this
// order does not miss work under way. What is outstanding in slices that cannot be read is missing.
func (s *state) readBuckets(ctx context.Context, waiting bool) error {
	outstanding, err := s.readOutstanding(ctx)
	if err != nil {
		return err
	}
	nowMs := clock.NowMs(s.clk)
	for _, b := range s.ladder.Ground() {
		bucket, err := s.bucket(ctx, b, outstanding[b], nowMs, waiting)
		if err != nil {
			return err
		}
		s.Buckets = append(s.Buckets, bucket)
	}
	return nil
}

// readOutstanding returns the slices that are outstanding, by bucket, without those that cannot be read.
func (s *state) readOutstanding(ctx context.Context) (map[metric.Bucket][]storage.SliceKey, error) {
	outstanding, err := s.recovery.Outstanding(ctx)
	var unread storage.UnreadError
	if err != nil && !errors.As(err, &unread) {
		return nil, err
	}
	for _, u := range unread {
		if err := s.without(ctx, "what is outstanding", u.Err); err != nil {
			return nil, err
		}
	}
	out := make(map[metric.Bucket][]storage.SliceKey)
	for _, k := range outstanding {
		out[k.Bucket] = append(out[k.Bucket], k)
	}
	return out, nil
}

// bucket returns the work that is left in the outstanding slices of bucket b, oldest first. The
// marks of late data lie in the index of another slice, which in most cases has not ended: it is
// read only for what waits.
func (s *state) bucket(ctx context.Context, b metric.Bucket, outstanding []storage.SliceKey, nowMs int64, waiting bool) (wire.Bucket, error) {
	out := wire.Bucket{Bucket: s.ladder.Name(b), Outstanding: []wire.Slice{}}
	stood := map[int64]int{} // the number of marks, by the slice that they are of
	for _, k := range outstanding {
		slice := s.ladder.SliceAt(b, k.StartMs)
		lateMs := nowMs - slice.EndMs
		if lateMs < 0 && !waiting {
			continue
		}
		n, err := s.countMarks(ctx, k, func(startMs int64) { stood[startMs]++ })
		if err != nil {
			return out, err
		}
		if lateMs >= 0 {
			out.Outstanding = append(out.Outstanding, wire.Slice{Slice: k.StartMs, Marks: n})
			out.LagSeconds = max(out.LagSeconds, (time.Duration(lateMs) * time.Millisecond).Seconds())
		}
	}
	if waiting {
		starts := mapped(slices.Sorted(maps.Keys(stood)), func(startMs int64) wire.Slice {
			return wire.Slice{Slice: startMs, Marks: stood[startMs]}
		})
		out.Waiting = &starts
	}
	return out, nil
}

// countMarks counts the marks in the index of a slice that are in reach, and calls each with the start of the slice that a mark
// is of.
func (s *state) countMarks(ctx context.Context, k storage.SliceKey, each func(startMs int64)) (n int, err error) {
	var away error
	for shard := range s.store.Settings().IndexPartitions {
		for m, err := range s.store.Marks(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}, storage.MarkKey{}, 0) {
			if storage.IsAway(err) && ctx.Err() == nil {
				away = err
				break
			}
			if err != nil {
				return 0, err
			}
			each(s.ladder.SliceAt(k.Bucket, m.TimeMs).StartMs)
			n++
		}
	}
	return n, s.without(ctx, fmt.Sprintf("marks of %s slice %s", s.ladder.Name(k.Bucket), s.ladder.SliceAt(k.Bucket, k.StartMs)), away)
}

// mapped returns f of each element, as a list that is never nil.
func mapped[From, To any](from []From, f func(From) To) []To {
	out := make([]To, 0, len(from))
	for _, v := range from {
		out = append(out, f(v))
	}
	return out
}
