package pebble

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// keepHistory is how long Expire keeps completed slices.
const keepHistory = 30 * 24 * time.Hour

// Leases implements storage.Runs.
func (s *Store) Leases(ctx context.Context) ([]storage.Lease, error) {
	var found []storage.Lease
	err := s.do(ctx, "leases", func() error {
		s.fences.mu.RLock()
		defer s.fences.mu.RUnlock()
		for _, shard := range slices.Sorted(maps.Keys(s.fences.leases)) {
			if l := s.fences.leases[shard]; l.Owner != "" {
				found = append(found, l)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Expire implements storage.Store. It removes raw data by whole days and roll-ups by whole periods,
// each when its last row is older than the retention. Each table takes one range tombstone; the
// same batch stores what WholeFrom returns from then on. Expire also removes completed
// slices older than keepHistory, and items that have expired. It goes by the reading that the clock's gate has let pass. While the gate
// refuses the clock it removes nothing.
func (s *Store) Expire(ctx context.Context) error {
	const op = "expire"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	now, err := s.gate.Now()
	if err != nil {
		return nil //nolint:nilerr // ClockRefused says why
	}
	if err := s.expireItems(ctx, now.UnixMilli()); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	batch := s.db.NewBatch()
	expired, err := s.fillExpire(ctx, batch, now.UnixMilli())
	if err != nil {
		return convert(op, closed(batch, err))
	}
	if batch.Empty() {
		return convert(op, batch.Close())
	}
	return s.do(ctx, op, func() error {
		// Set expired before the rows go: a concurrent WholeFrom must not count them as whole.
		s.settingsMu.Lock()
		s.expired = expired
		s.settingsMu.Unlock()
		if err := closed(batch, batch.Commit(lsm.NoSync)); err != nil {
			return err
		}
		// Range deletions free space once they are in a table. On a full disk no other write would
		// ever fill the memtable that holds them, so flush it.
		_, err := s.db.AsyncFlush()
		return err
	})
}

// fillExpire adds the deletes of what has expired to the batch. It returns, by bucket, the time
// below which rows are gone once the batch commits.
func (s *Store) fillExpire(ctx context.Context, batch *lsm.Batch, nowMs int64) (map[string]int64, error) {
	s.settingsMu.Lock()
	retention, expired := s.settings.Policy.Retention, maps.Clone(s.expired)
	s.settingsMu.Unlock()
	table := func(b metric.Bucket, lower, upper []byte, belowMs int64) error {
		found, err := s.expireBelow(batch, lower, upper)
		if before, ok := expired[s.ladder.Name(b)]; found && (!ok || before < belowMs) {
			expired[s.ladder.Name(b)] = belowMs
		}
		return err
	}
	if from := retention.From(metric.Raw, nowMs); from != math.MinInt64 {
		// The last slice that starts in a day may end after it.
		day := metric.AlignDown(from, dayMs)
		for s.ladder.SliceAt(metric.Raw, day-1).EndMs > from {
			day -= dayMs
		}
		if err := table(metric.Raw, []byte{tableRaw}, rawDayKey(day), s.ladder.SliceAt(metric.Raw, day-1).EndMs); err != nil {
			return nil, err
		}
	}
	for _, level := range s.ladder.Levels() {
		if from := retention.From(level, nowMs); from != math.MinInt64 {
			period := metric.AlignDown(from, s.periodMs(level))
			if err := table(level, []byte{tableRollups, byte(level)}, rollupPeriodKey(level, period), period); err != nil {
				return nil, err
			}
		}
	}
	if !batch.Empty() {
		v, err := json.Marshal(expired)
		if err != nil {
			return nil, err
		}
		if err := batch.Set(metaKey(metaExpired), v, nil); err != nil {
			return nil, err
		}
	}
	return expired, s.expireSlices(ctx, batch, nowMs-keepHistory.Milliseconds())
}

// expireBelow deletes [lower, upper) with one range tombstone if it holds any key, and reports
// whether it does. Where a table is damaged, it counts as holding one.
func (s *Store) expireBelow(batch *lsm.Batch, lower, upper []byte) (bool, error) {
	first, err := s.firstKey(lower, upper)
	if err != nil && !lsm.IsCorruptionError(err) || err == nil && first == nil {
		return false, err
	}
	return true, batch.DeleteRange(lower, upper, nil)
}

// expireSlices deletes the completed slices that start before the given time. Open slices stay,
// however old: they still have to be ground. Slices that cannot be read stay too.
func (s *Store) expireSlices(ctx context.Context, batch *lsm.Batch, beforeMs int64) (err error) {
	leave := func([]byte, []byte) bool { return true }
	for b := metric.Raw; b < s.ladder.Top() && err == nil; b++ {
		lower, upper := sliceKey(storage.SliceKey{Bucket: b, StartMs: -1 << 62}, 0), sliceKey(storage.SliceKey{Bucket: b, StartMs: beforeMs}, 0)
		scan(ctx, s, "slices", lower, upper, nil, parseSlice, leave, func(state storage.SliceState, e error) bool {
			if err = e; err == nil && state.Complete {
				for _, kind := range []byte{sliceOpen, sliceBegun, sliceComplete} {
					err = errors.Join(err, batch.Delete(sliceKey(state.SliceKey, kind), nil))
				}
			}
			return err == nil
		})
	}
	return err
}
