package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

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

// claimRow is a series that is being registered.
type claimRow struct {
	key    []byte            // of its row in the table schedules
	labels int               // where the labels begin in key
	id     metric.ScheduleID // the one that it is to get, then the one that it has
}

// ClaimSchedules implements storage.Registry. It is not synced: the samples with these ids follow
// in the same log, so if they are there, the claim is too. If a crash loses the claim, its samples
// were never acknowledged. All new series of a call are one batch.
func (s *Store) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	const op = "claim schedules"
	rows := make([]claimRow, len(want))
	size := 0
	var keys []byte // of all rows
	for i := range want {
		w := &want[i]
		from := len(keys)
		keys = append(keys, tableSeries)
		keys = appendString(keys, w.Source)
		rows[i] = claimRow{labels: len(keys) - from, id: w.ID}
		keys = w.Labels.AppendKey(keys)
		rows[i].key = keys[from:len(keys):len(keys)] // it stays where it is when keys grows
		size += 2 * (rowOverhead + len(rows[i].key)) // in each of two tables
	}
	if err := s.disk.admit(size); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	var ids []metric.ScheduleID
	err := s.do(ctx, op, func() error {
		s.registryMu.Lock()
		defer s.registryMu.Unlock()
		claimed, err := s.claim(rows, size)
		ids = claimed
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// claim decides the ids of the rows, and returns them.
func (s *Store) claim(rows []claimRow, size int) ([]metric.ScheduleID, error) {
	inOrder := make([]*claimRow, len(rows))
	for i := range rows {
		inOrder[i] = &rows[i]
	}
	slices.SortStableFunc(inOrder, func(a, b *claimRow) int { return bytes.Compare(a.key, b.key) })
	fresh, err := s.lookUp(inOrder)
	if err != nil {
		return nil, err
	}
	ids := make([]metric.ScheduleID, len(rows))
	for i := range rows {
		ids[i] = rows[i].id
	}
	if len(fresh) == 0 {
		return ids, nil
	}
	batch := s.db.NewBatchWithSize(size)
	var id [8]byte
	for _, r := range fresh {
		binary.BigEndian.PutUint64(id[:], uint64(r.id))
		if err := batch.Set(r.key, id[:], nil); err != nil {
			return nil, closed(batch, err)
		}
	}
	for _, r := range fresh {
		if err := batch.Set(scheduleKey(r.id), r.key[r.labels:], nil); err != nil {
			return nil, closed(batch, err)
		}
	}
	return ids, closed(batch, batch.Commit(lsm.NoSync))
}

// lookUp gives each row the id that the store has for it, and returns those that the store does not
// have. The rows are sorted by key. A row twice gets the first one's id.
//
// It goes through the table once, from row to row. So the first row of a new source says of all
// others that they are not there either.
func (s *Store) lookUp(rows []*claimRow) (fresh []*claimRow, err error) {
	if len(rows) == 0 {
		return nil, nil
	}
	upper := append(bytes.Clone(rows[len(rows)-1].key), 0)
	it, err := s.db.NewIter(&lsm.IterOptions{LowerBound: rows[0].key, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := it.Close(); err == nil {
			err = closeErr
		}
	}()
	found := it.First()
	for i, r := range rows {
		if i > 0 && bytes.Equal(r.key, rows[i-1].key) {
			r.id = rows[i-1].id
			continue
		}
		if found && bytes.Compare(it.Key(), r.key) < 0 {
			found = it.SeekGE(r.key)
		}
		switch id, ok, err := idAt(it, found, r.key); {
		case err != nil:
			return nil, err
		case ok:
			r.id = id
		default:
			fresh = append(fresh, r)
		}
	}
	return fresh, nil
}

// idAt returns the id in the row at which an iterator is; there is false if it is at none. ok is
// false if the row has another key.
func idAt(it *lsm.Iterator, found bool, key []byte) (id metric.ScheduleID, ok bool, err error) {
	if err := it.Error(); err != nil {
		return 0, false, err
	}
	if !found || !bytes.Equal(it.Key(), key) {
		return 0, false, nil
	}
	v, err := it.ValueAndErr()
	if err == nil {
		id, err = parseID(v)
	}
	return id, err == nil, err
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
		scan(ctx, s, "schedules of a source", prefix, after(prefix), nil, func(k, v []byte) (storage.Schedule, error) {
			id, err := parseID(v)
			if err != nil {
				return storage.Schedule{}, err
			}
			labels, err := parseLabels(k[len(prefix):])
			return storage.Schedule{ID: id, Labels: labels}, err
		}, nil, yield)
	}
}

// Schedules implements storage.Registry.
func (s *Store) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	return func(yield func(storage.Schedule, error) bool) {
		if ids.Start >= ids.End {
			return
		}
		scan(ctx, s, "schedules", scheduleKey(ids.Start), scheduleKey(ids.End), nil, parseSchedule, nil, yield)
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
