package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// pageBytes is roughly the most that a scan holds at a time.
const pageBytes = 256 << 10

// page holds copies of consecutive rows, and the key to continue from.
type page struct {
	rows  []row
	arena []byte // has room for the rows that come next
	bytes int    // of all rows
	// next is the key to continue from, nil at the end. After an error it is the first key that was
	// not read.
	next []byte
}

// row is a key and a value. The caller may keep them and append to them.
type row struct{ key, value []byte }

// Room for rows is made in steps that double from the least to the most. A row that is larger than largeRow gets room of its own.
const (
	leastArena = 1 << 10
	mostArena  = 64 << 10
	largeRow   = 8 << 10
)

// add copies a row. It does not move the rows before it, of which there may be many large ones.
func (p *page) add(k, v []byte) {
	n := len(k) + len(v)
	p.bytes += n
	into := &p.arena
	switch {
	case n > largeRow:
		into = new([]byte)
		*into = make([]byte, 0, n)
	case n > cap(p.arena)-len(p.arena):
		p.arena = make([]byte, 0, max(n, leastArena, min(mostArena, 2*cap(p.arena))))
	}
	start, mid := len(*into), len(*into)+len(k)
	*into = append(append(*into, k...), v...)
	p.rows = append(p.rows, row{(*into)[start:mid:mid], (*into)[mid : start+n : start+n]})
}

// skipFunc looks at a key before its value is read. It returns nil to take the row, or else a
// greater key to continue from.
type skipFunc func(key []byte) []byte

// rowsFunc calls each with the rows of [lower, upper), from the first one on, until each returns false. It passes over rows as
// skip says, if that is not nil. It returns the key to continue from, nil at the end. With an error, that is the first key that
// was not read.
type rowsFunc func(lower, upper []byte, skip skipFunc, each func(k, v []byte) bool) (next []byte, err error)

// readPage copies the rows of [lower, upper) until they hold limit bytes.
func (s *Store) readPage(lower, upper []byte, limit int, skip skipFunc) (p page, err error) {
	at := cursor{store: s}
	defer at.close()
	p.next, err = at.rows(lower, upper, skip, func(k, v []byte) bool {
		p.add(k, v)
		return p.bytes < limit
	})
	return p, err
}

// pages is a rowsFunc that copies rows page by page. No iterator of Pebble is open while each runs.
func (s *Store) pages(lower, upper []byte, skip skipFunc, each func(k, v []byte) bool) ([]byte, error) {
	p, err := s.readPage(lower, upper, pageBytes, skip)
	for _, r := range p.rows {
		if !each(r.key, r.value) {
			break
		}
	}
	return p.next, err
}

// cursor is an iterator of Pebble for several ranges of keys, one after the other. It is opened when it is needed.
type cursor struct {
	store *Store
	it    *lsm.Iterator
}

// first moves to the first row of [lower, upper), and reports whether there is one.
func (c *cursor) first(lower, upper []byte) (ok bool, err error) {
	if c.it != nil {
		c.it.SetBounds(lower, upper)
	} else if c.it, err = c.store.iterator(lower, upper); err != nil {
		return false, err
	}
	if ok = c.it.First(); !ok {
		err = c.it.Error()
	}
	if err != nil {
		c.close()
	}
	return ok, err
}

// rows is a rowsFunc. It copies nothing: key and value are Pebble's, and valid during the call of each.
func (c *cursor) rows(lower, upper []byte, skip skipFunc, each func(k, v []byte) bool) (next []byte, err error) {
	next = bytes.Clone(lower)
	ok, err := c.first(lower, upper)
	for ok && err == nil {
		k := c.it.Key()
		if skip != nil {
			if to := skip(k); to != nil {
				next = append(next[:0], to...)
				if ok = c.it.SeekGE(to); !ok {
					err = c.it.Error()
				}
				continue
			}
		}
		var v []byte
		if v, err = c.it.ValueAndErr(); err != nil {
			break
		}
		more := each(k, v[:len(v):len(v)])
		next = append(append(next[:0], k...), 0)
		if !more {
			return next, nil
		}
		if ok = c.it.Next(); !ok {
			err = c.it.Error()
		}
	}
	if err != nil {
		c.close()
		return next, err
	}
	return nil, nil
}

// close closes the iterator. An error of it was that of a row before.
func (c *cursor) close() {
	if c.it != nil {
		_ = c.it.Close()
		c.it = nil
		c.store.reads.Done()
	}
}

// scan parses the rows of [lower, upper) and yields them page by page. No iterator of Pebble is
// open while the loop's body runs. If around is not nil, scan skips ranges of keys that cannot be
// read, and calls around for each. scan returns false when the loop has ended early.
func scan[T any](ctx context.Context, s *Store, op string, lower, upper []byte, skip skipFunc,
	parse func(k, v []byte) (T, error), around aroundFunc, yield func(T, error) bool,
) bool {
	return scanRows(ctx, s, op, lower, upper, s.pages, skip, parse, around, yield)
}

// scanRows is scan over what rows reads.
func scanRows[T any](ctx context.Context, s *Store, op string, lower, upper []byte, rows rowsFunc, skip skipFunc,
	parse func(k, v []byte) (T, error), around aroundFunc, yield func(T, error) bool,
) bool {
	var zero T
	more := true
	each := func(k, v []byte) bool {
		row, err := parse(k, v)
		if err != nil {
			more = false
			yield(zero, convert(op, err))
		} else if more = yield(row, nil); more && ctx.Err() != nil {
			more = false
			yield(zero, contextError(ctx, op))
		}
		return more
	}
	for lower != nil && bytes.Compare(lower, upper) < 0 {
		if err := s.begin(ctx, op); err != nil {
			yield(zero, err)
			return false
		}
		if around != nil {
			if to := s.unreadable.past(lower); to != nil {
				to = least(to, upper)
				if !around(lower, to) {
					return false
				}
				lower = to
				continue
			}
		}
		next, damaged := rows(lower, upper, skip, each)
		if !more {
			return false
		}
		if damaged == nil {
			lower = next
			continue
		}
		if around == nil || !lsm.IsCorruptionError(damaged) {
			yield(zero, convert(op, damaged))
			return false
		}
		lower = s.beyond(next, upper, damaged)
		if !around(next, lower) {
			return false
		}
	}
	return true
}

func least(a, b []byte) []byte {
	if bytes.Compare(a, b) < 0 {
		return a
	}
	return b
}

// collect returns the rows of a scan as a slice.
func collect[T any](ctx context.Context, s *Store, op string, lower, upper []byte,
	parse func(k, v []byte) (T, error),
) (out []T, err error) {
	scan(ctx, s, op, lower, upper, nil, parse, nil, func(v T, e error) bool {
		if e != nil {
			out, err = nil, e
			return false
		}
		out = append(out, v)
		return true
	})
	return out, err
}

// eachKey calls do with every key in [lower, upper). Pebble owns the key; it is valid only during
// the call.
func (s *Store) eachKey(lower, upper []byte, do func(key []byte) error) (err error) {
	at := cursor{store: s}
	defer at.close()
	_, unread := at.rows(lower, upper, nil, func(k, _ []byte) bool {
		err = do(k)
		return err == nil
	})
	return cmp.Or(err, unread)
}

// firstKey returns the first key in [lower, upper), nil if there is none.
func (s *Store) firstKey(lower, upper []byte) ([]byte, error) {
	at := cursor{store: s}
	defer at.close()
	return at.firstKey(lower, upper)
}

func (c *cursor) firstKey(lower, upper []byte) ([]byte, error) {
	ok, err := c.first(lower, upper)
	if !ok {
		return nil, err
	}
	return bytes.Clone(c.it.Key()), nil
}

// Slices implements storage.Runs.
func (s *Store) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	const op = "slices"
	if fromMs >= toMs {
		return nil, s.begin(ctx, op)
	}
	var out []storage.SliceState
	states, err := collect(ctx, s, op,
		sliceKey(storage.SliceKey{Bucket: b, StartMs: fromMs}, 0),
		sliceKey(storage.SliceKey{Bucket: b, StartMs: toMs}, 0), parseSlice)
	for _, state := range states {
		if n := len(out); n > 0 && out[n-1].StartMs == state.StartMs {
			out[n-1].Complete = out[n-1].Complete || state.Complete
			out[n-1].Begun = out[n-1].Begun || state.Begun
			continue
		}
		out = append(out, state)
	}
	return out, err
}

func parseSlice(k, _ []byte) (storage.SliceState, error) {
	if len(k) != sliceKeyBytes {
		return storage.SliceState{}, damagedKey("slices", k)
	}
	return storage.SliceState{
		SliceKey: storage.SliceKey{Bucket: metric.Bucket(k[1]), StartMs: getInt(k[2:])},
		Begun:    k[10] == sliceBegun,
		Complete: k[10] == sliceComplete,
	}, nil
}

// NewestBegun implements storage.Runs.
func (s *Store) NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error) {
	const op = "newest begun slice"
	if err := s.begin(ctx, op); err != nil {
		return 0, false, err
	}
	page, err := s.readPage(begunKey(b), after(begunKey(b)), 1, nil)
	if err != nil || len(page.rows) == 0 {
		return 0, false, convert(op, err)
	}
	startMs, ok, err = parseBegun(page.rows[0].value)
	return startMs, ok, convert(op, err)
}

// parseBegun decodes the value of begunKey; nil means that there is none.
func parseBegun(v []byte) (startMs int64, ok bool, err error) {
	if v == nil {
		return 0, false, nil
	}
	if len(v) != 8 {
		return 0, false, fmt.Errorf("%w: the newest begun slice has %d bytes", storage.ErrCorrupt, len(v))
	}
	return getInt(v), true, nil
}

// Marks implements storage.Runs.
func (s *Store) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, _ int) iter.Seq2[storage.Mark, error] {
	return func(yield func(storage.Mark, error) bool) {
		partition := indexPartitionKey(p)
		lower := partition
		if from != (storage.MarkKey{}) {
			lower = indexKey(partition, &storage.Mark{Start: from.Start, TimeMs: from.TimeMs, ID: from.ID})
		}
		scan(ctx, s, "marks", lower, after(partition), nil, func(k, v []byte) (storage.Mark, error) {
			m, err := parseIndexKey(k)
			if err != nil {
				return m, err
			}
			if parseMark(v, &m) != nil {
				m = storage.DamagedMark(m.Key())
			}
			return m, nil
		}, nil, yield)
	}
}

// CacheBlock implements storage.Runs.
func (s *Store) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	const op = "cache block"
	if err := s.begin(ctx, op); err != nil {
		return nil, err
	}
	block := cacheBlockKey(k)
	p, err := s.readPage(block, after(block), storage.MaxCacheBytes, nil)
	if err == nil && p.next != nil {
		err = storage.ErrTooLarge
	}
	if err != nil {
		return nil, convert(op, err)
	}
	if len(p.rows) == 0 {
		return nil, nil
	}
	out := make([]storage.Chunk, len(p.rows))
	for i, r := range p.rows {
		if len(r.key) != cacheKeyBytes {
			return nil, convert(op, damagedKey("metrics_cache", r.key))
		}
		out[i] = storage.Chunk{ID: blocks.ID(r.key[len(block):]), Data: r.value}
	}
	return out, nil
}

// RawChunks implements storage.Reader. A day is a partition, so each group is read from one day
// after another.
func (s *Store) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	const op = "raw chunks"
	return func(yield func(storage.RawChunk, error) bool) {
		if err := s.begin(ctx, op); err != nil || ids.Start >= ids.End || fromMs >= toMs {
			if err != nil {
				yield(storage.RawChunk{}, err)
			}
			return
		}
		fromMs, toMs := clampTimes(fromMs, toMs)
		at := cursor{store: s}
		defer at.close()
		days, err := s.rawDays(&at, fromMs, toMs)
		if err != nil {
			yield(storage.RawChunk{}, convert(op, err))
			return
		}
		parse := func(k, v []byte) (storage.RawChunk, error) {
			c, err := parseRawKey(k)
			c.Data = v
			return c, err
		}
		from := blocks.BlockAt(ids.Start, s.groupSize).Start
		for {
			group, ok, err := s.nextGroup(&at, days, from, ids.End)
			if err != nil {
				yield(storage.RawChunk{}, convert(op, err))
				return
			}
			if !ok {
				return
			}
			for _, day := range days {
				lower := rawSliceKey(day, group, max(fromMs, day))
				upper := rawSliceKey(day, group, min(toMs, day+dayMs))
				around := func(from, to []byte) bool {
					chunks := s.lostChunks(group, from, to)
					s.lost(fmt.Sprintf("raw chunks of the schedules %d to %d in the slices from %s to %s", group, group+metric.ScheduleID(s.groupSize)-1,
						metric.Slice{StartMs: chunks[0].SliceMs}, metric.Slice{StartMs: chunks[len(chunks)-1].SliceMs}))
					for _, c := range chunks {
						if !yield(c, nil) {
							return false
						}
					}
					return true
				}
				if !scanRows(ctx, s, op, lower, upper, at.rows, nil, parse, around, yield) {
					return
				}
			}
			from = blocks.BlockAt(group, s.groupSize).End
		}
	}
}

// rawDays returns the days that overlap [fromMs, toMs) and have raw chunks, or may have some that
// cannot be read.
func (s *Store) rawDays(at *cursor, fromMs, toMs int64) ([]int64, error) {
	var days []int64
	lower, upper := rawDayKey(fromMs), appendInt([]byte{tableRaw}, toMs)
	for bytes.Compare(lower, upper) < 0 {
		k, lost, err := at.firstReadable(lower, upper)
		if err != nil {
			return days, err
		}
		if lost != nil {
			// Days with unreadable keys may also have chunks that can be read.
			from, to := s.plausible(getInt(lower[1:]), getInt(lost[1:])+1)
			if k != nil {
				to = min(to, getInt(k[1:]))
			}
			for day := metric.AlignDown(from, dayMs); day < to; day += dayMs {
				days = append(days, day)
			}
		}
		if k == nil {
			return days, nil
		}
		days = append(days, getInt(k[1:]))
		lower = rawDayKey(getInt(k[1:]) + dayMs)
	}
	return days, nil
}

// nextGroup returns the first group in [from, end) that has chunks on one of the days.
func (s *Store) nextGroup(at *cursor, days []int64, from, end metric.ScheduleID) (next metric.ScheduleID, ok bool, err error) {
	for _, day := range days {
		lower := appendInt(appendInt([]byte{tableRaw}, day), int64(from))
		upper := appendInt(appendInt([]byte{tableRaw}, day), int64(end))
		k, lost, err := at.firstReadable(lower, upper)
		if lost != nil && err == nil && from < s.leased() {
			next, ok, end = from, true, from // an unreadable key may belong to from
			continue
		}
		if err != nil {
			return 0, false, err
		}
		if k == nil {
			continue
		}
		c, err := parseRawKey(k)
		if err != nil {
			return 0, false, err
		}
		next, ok, end = c.Group, true, c.Group
	}
	return next, ok, nil
}

// Rollups implements storage.Reader. Rows come by period, then schedule, then time. Within a period
// it seeks past the rows outside the time range. Rows that may lie in a damaged block of a table
// come as damaged rows.
func (s *Store) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	const op = "roll-ups"
	return func(yield func(metric.RollupRow, error) bool) {
		err := s.begin(ctx, op)
		if err == nil {
			if e := s.checkLevel(level); e != nil {
				err = fmt.Errorf("%s: %w", op, e)
			}
		}
		if err != nil {
			yield(metric.RollupRow{}, err)
			return
		}
		if ids.Start >= ids.End || fromMs >= toMs {
			return
		}
		fromMs, toMs := clampTimes(fromMs, toMs)
		periodMs := s.periodMs(level)
		parse := func(k, v []byte) (row metric.RollupRow, err error) {
			if _, row.Schedule, row.TimeMs, err = parseRollupKey(k); err != nil {
				return row, err
			}
			if row.Rollup, err = parseRollup(v, row.TimeMs); errors.Is(err, storage.ErrCorrupt) {
				row.Damaged, err = true, nil
			}
			return row, err
		}
		// The bounds are tight: a damaged block with rows of other schedules must not be read.
		lower := appendRollupKey(nil, level, periodMs, ids.Start, fromMs)
		upper := appendInt(rollupPeriodKey(level, metric.AlignDown(toMs-1, periodMs)), int64(ids.End))
		around := func(from, to []byte) bool {
			return s.lostRows(level, ids, fromMs, toMs, from, to, yield)
		}
		scan(ctx, s, op, lower, upper, rollupSkip(level, periodMs, ids, fromMs, toMs), parse, around, yield)
	}
}

// rollupSkip returns a skipFunc that leads a scan over periods to the rows with schedules in ids
// and times in [fromMs, toMs). For every other row it returns the next key that may be such a row.
func rollupSkip(level metric.Bucket, periodMs int64, ids blocks.Range, fromMs, toMs int64) skipFunc {
	var to []byte
	return func(k []byte) []byte {
		period, id, tMs, err := parseRollupKey(k)
		if err != nil {
			return nil // parse returns the error
		}
		seek := func(period int64, id metric.ScheduleID) []byte {
			to = appendInt(append(to[:0], tableRollups, byte(level)), period)
			to = appendInt(appendInt(to, int64(id)), max(fromMs, period))
			return to
		}
		switch {
		case id < ids.Start:
			return seek(period, ids.Start)
		case id >= ids.End:
			return seek(period+periodMs, ids.Start)
		case tMs < fromMs:
			return seek(period, id)
		case tMs >= toMs:
			return seek(period, id+1)
		}
		return nil
	}
}
