package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// KeepIDs implements storage.Registry. Leases are synced and so never lost: there is nothing to do.
func (s *Store) KeepIDs(ctx context.Context, _ blocks.Range) error { return ctx.Err() }

// Doubts implements storage.Registry.
func (s *Store) Doubts() int64 { return 0 }

// LeaseIDs implements storage.Registry. The lease is synced: ids become visible outside before the
// next synced write.
func (s *Store) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	const op = "lease ids"
	if n < 1 {
		return blocks.Range{}, fmt.Errorf("%s: %d ids: must be at least 1", op, n)
	}
	var r blocks.Range
	err := s.do(ctx, op, func() error {
		s.registryMu.Lock()
		defer s.registryMu.Unlock()
		leased := blocks.Range{Start: s.leased(), End: s.leased() + metric.ScheduleID(n)}
		if err := s.putCounter(metaNextID, int64(leased.End)); err != nil {
			return err
		}
		s.nextID.Store(int64(leased.End))
		r = leased
		return nil
	})
	if err != nil {
		return blocks.Range{}, err
	}
	return r, nil
}

// leased returns the end of the ids that have been leased.
func (s *Store) leased() metric.ScheduleID { return metric.ScheduleID(s.nextID.Load()) }

// LeasedIDs implements storage.Registry.
func (s *Store) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	if err := s.begin(ctx, "leased ids"); err != nil {
		return blocks.Range{}, err
	}
	return blocks.Range{End: s.leased()}, nil
}

// ClaimSchedules implements storage.Registry. It is not synced: the samples with these ids follow
// in the same log, so if they are there, the claim is too. If a crash loses the claim, its samples
// were never acknowledged.
func (s *Store) ClaimSchedules(ctx context.Context, source string, want []storage.Schedule) ([]metric.ScheduleID, error) {
	const op = "claim schedules"
	prefix := sourcePrefix(source)
	keys := make([][]byte, len(want))
	size := 0
	for i := range want {
		keys[i] = want[i].Labels.AppendKey(prefix[:len(prefix):len(prefix)])
		size += 2 * (rowOverhead + len(keys[i])) // in each of two tables
	}
	if err := s.disk.admit(size); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	wanted := make([]metric.ScheduleID, len(want))
	for i := range want {
		wanted[i] = want[i].ID
	}
	var ids []metric.ScheduleID
	err := s.do(ctx, op, func() error {
		s.registryMu.Lock()
		defer s.registryMu.Unlock()
		claimed, err := s.claim(ctx, source, len(prefix), keys, wanted)
		ids = claimed
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

func (s *Store) claim(ctx context.Context, source string, prefix int, keys [][]byte, wanted []metric.ScheduleID) ([]metric.ScheduleID, error) {
	batch := s.db.NewBatch()
	ids := make([]metric.ScheduleID, len(keys))
	fresh := map[string]metric.ScheduleID{} // the caller may name one series twice
	for i, key := range keys {
		id, ok := fresh[string(key)]
		if ok {
			ids[i] = id
			continue
		}
		id, ok, err := s.idOf(ctx, source, key)
		if err != nil {
			return nil, closed(batch, err)
		}
		if ok {
			ids[i] = id
			continue
		}
		ids[i] = wanted[i]
		fresh[string(key)] = wanted[i]
		if err := batch.Set(key, binary.BigEndian.AppendUint64(nil, uint64(wanted[i])), nil); err != nil {
			return nil, closed(batch, err)
		}
		if err := batch.Set(scheduleKey(wanted[i]), key[prefix:], nil); err != nil {
			return nil, closed(batch, err)
		}
	}
	if batch.Empty() {
		return ids, batch.Close()
	}
	err := closed(batch, batch.Commit(lsm.NoSync))
	for key := range fresh {
		if s.unreadable.past([]byte(key)) != nil { // the new row cannot be read either
			s.lostSeries.forget()
			break
		}
	}
	return ids, err
}

// idOf returns the id of a source's series by its key. ok is false if the series has none.
func (s *Store) idOf(ctx context.Context, source string, key []byte) (id metric.ScheduleID, ok bool, err error) {
	next := append(bytes.Clone(key), 0)
	if s.unreadable.past(key) == nil {
		v, err := s.get(key)
		if v != nil && err == nil {
			id, err = parseID(v)
			return id, true, err
		}
		if !lsm.IsCorruptionError(err) {
			return 0, false, err
		}
		s.beyond(key, next, err)
	}
	err = s.elsewhere(ctx, source, key, next, func(sc storage.Schedule) bool {
		id, ok = sc.ID, true
		return false
	})
	return id, ok, err
}

func parseID(v []byte) (metric.ScheduleID, error) {
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: schedule id of %d bytes", storage.ErrCorrupt, len(v))
	}
	return metric.ScheduleID(binary.BigEndian.Uint64(v)), nil
}

func parseLabels(key []byte) (metric.Labels, error) {
	labels, err := metric.ParseLabels(key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return labels, nil
}

// SourceSchedules implements storage.Registry.
func (s *Store) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		prefix := sourcePrefix(source)
		scanAround(ctx, s, "schedules of a source", prefix, after(prefix), nil, func(k, v []byte) (storage.Schedule, error) {
			id, err := parseID(v)
			if err != nil {
				return storage.Schedule{}, err
			}
			labels, err := parseLabels(k[len(prefix):])
			return storage.Schedule{ID: id, Labels: labels}, err
		}, func(from, to []byte) bool {
			more := true
			err := s.elsewhere(ctx, source, from, to, func(sc storage.Schedule) bool {
				more = yield(sc, nil)
				return more
			})
			if err != nil {
				more = false
				yield(storage.Schedule{}, err)
			}
			return more
		}, yield)
	}
}

// Schedules implements storage.Registry.
func (s *Store) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		if ids.Start >= ids.End {
			return
		}
		scanAround(ctx, s, "schedules", scheduleKey(ids.Start), scheduleKey(ids.End), nil, parseSchedule, func(from, to []byte) bool { return s.aroundSchedules(ctx, from, to, yield) }, yield)
	}
}

// parseSchedule decodes a row of schedules_by_block.
func parseSchedule(k, v []byte) (storage.Schedule, error) {
	if len(k) != 9 {
		return storage.Schedule{}, damagedKey("schedules_by_block", k)
	}
	labels, err := parseLabels(v)
	return storage.Schedule{ID: metric.ScheduleID(getInt(k[1:])), Labels: labels}, err
}

// parseSeries decodes a row of schedules, whatever its source.
func parseSeries(k, v []byte) (storage.Schedule, error) {
	const head = 1 + 4
	if len(k) < head || len(k)-head < int(binary.BigEndian.Uint32(k[1:])) {
		return storage.Schedule{}, damagedKey("schedules", k)
	}
	id, err := parseID(v)
	if err != nil {
		return storage.Schedule{}, err
	}
	labels, err := parseLabels(k[head+int(binary.BigEndian.Uint32(k[1:])):])
	return storage.Schedule{ID: id, Labels: labels}, err
}
