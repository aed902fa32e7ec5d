package cassandra

import (
	"context"
	"fmt"
	"strconv"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// LeaseIDs implements storage.Registry. If it is in doubt whether a lease took effect, nobody gets
// the ids. It refuses while a series has one of the next ids: two series would share it.
func (s *Store) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	const op = "lease ids"
	if n < 1 {
		return blocks.Range{}, fmt.Errorf("%s: %d: must be at least 1", op, n)
	}
	for {
		next, text, err := s.nextID(ctx)
		if err != nil {
			return blocks.Range{}, named(op, err)
		}
		r := blocks.Range{Start: next, End: next + metric.ScheduleID(n)}
		if err := s.unused(ctx, r); err != nil {
			return blocks.Range{}, named(op, err)
		}
		// If an attempt is refused because an earlier one took effect, nobody gets these ids.
		ok, err := s.session.cas(ctx, swap(settingNextID, text, strconv.FormatInt(int64(r.End), 10)).again())
		if err != nil {
			return blocks.Range{}, named(op, err)
		}
		if ok {
			return r, nil
		} // another process leased some meanwhile
	}
}

// unused refuses the next ids if a series has one of them. Groups that are out of reach are not looked
// at: otherwise no source would get an id while a part of the cluster is away.
func (s *Store) unused(ctx context.Context, r blocks.Range) error {
	groups := r.Cover(s.groupSize)
	return each(ctx, len(groups), maxSpread, func(ctx context.Context, i int) error {
		part := blocks.Range{Start: max(r.Start, groups[i].Start), End: min(r.End, groups[i].End)}
		for sch, err := range s.Schedules(ctx, part) {
			if storage.IsAway(err) && ctx.Err() == nil {
				return nil
			}
			if err != nil {
				return err
			}
			next, _, err := s.nextID(ctx)
			if err != nil || next > sch.ID { // another process has leased them meanwhile
				return err
			}
			return refuse("setting %s says that no id from %d on is in use, but a series has id %d: "+
				"the setting was put back, or restored from a snapshot that is older than that of the series; "+
				"stop all processes, and run `quern schema restored`", settingNextID, next, sch.ID)
		}
		return nil
	})
}

// RaiseIDs raises the next id above all that restored tables have, and returns it. Marks do not count, since they bring no
// data. Fences need no raise: they are times of the clock. No process may use the store.
func (s *Store) RaiseIDs(ctx context.Context) (metric.ScheduleID, error) {
	next, text, err := s.nextID(ctx)
	if err != nil {
		return 0, err
	}
	lists := []string{cqlListSeries, cqlListScheduleBs, cqlListCache, cqlListRaw}
	for _, table := range s.tables[1:] {
		lists = append(lists, fmt.Sprintf(cqlListRollups, table))
	}
	for _, cql := range lists {
		for p, err := range rows[partition](ctx, s.session, manyRows, stmt(cql)) {
			if err != nil {
				return 0, err
			}
			next = max(next, metric.ScheduleID(p.Group)+4096) // no group or block has more
		}
	}
	ok, err := swapSetting(ctx, s.session, settingNextID, text, strconv.FormatInt(int64(next), 10))
	if err == nil && !ok {
		err = errChanged
	}
	return next, err
}
