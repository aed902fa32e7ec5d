package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"path"
	"strings"
	"sync"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// A block of a table whose checksum fails takes with it a range of keys. What lies before and
// behind can be read, so that reads go around it: for raw chunks they say in which groups and
// slices some may be missing, and the labels of series lie in two tables.

// aroundFunc hears that the rows of [from, to) cannot be read. False ends the scan.
type aroundFunc func(from, to []byte) bool

// keyWidth is how many bytes of a key the end of a block is looked for in: all of those of most
// keys.
const keyWidth = 96

// beyond is the first key after from, at most upper, that can be read from on; from cannot, and
// err is why. The index of the damaged table says where its blocks end, since each attempt to
// read one costs Pebble a search for the flipped bit.
func (s *Store) beyond(from, upper []byte, err error) []byte {
	info := lsm.ExtractDataCorruptionInfo(err)
	if info == nil {
		return upper
	}
	// The damage ends with its table at the latest.
	end := append(bytes.Clone(info.Bounds.End.Key), 0)
	if bytes.Compare(end, from) <= 0 {
		end = upper
	}
	next, indexErr := s.nextBlock(info.Path, from, end)
	if indexErr != nil {
		next = end
	}
	s.unreadable.add(from, next)
	if bytes.Compare(next, upper) >= 0 {
		return upper
	}
	err = s.iterate(next, upper, func(it *lsm.Iterator) error {
		if !it.First() {
			return it.Error()
		}
		_, err := it.ValueAndErr()
		return err
	})
	if lsm.IsCorruptionError(err) {
		return s.beyond(next, upper, err)
	}
	return next
}

// keyRanges are ranges of keys that could not be read: to try again takes Pebble tenths of a
// second. They hold until the store is opened again.
type keyRanges struct {
	mu  sync.Mutex
	all [][2][]byte
}

// maxKeyRanges bounds what is remembered.
const maxKeyRanges = 1000

func (r *keyRanges) add(from, to []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) < maxKeyRanges {
		r.all = append(r.all, [2][]byte{bytes.Clone(from), bytes.Clone(to)})
	}
}

func (r *keyRanges) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// past is the end of the ranges that a key lies in, nil if it is in none.
func (r *keyRanges) past(k []byte) (to []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for within := true; within; {
		within = false
		for _, known := range r.all {
			if bytes.Compare(known[0], k) <= 0 && bytes.Compare(k, known[1]) < 0 {
				k, to, within = known[1], known[1], true
			}
		}
	}
	return to
}

// firstReadable is the first key of [lower, upper) that can be read, nil if there is none. If
// some before it cannot, lost is where that ends.
func (s *Store) firstReadable(lower, upper []byte) (first, lost []byte, err error) {
	for bytes.Compare(lower, upper) < 0 {
		if to := s.unreadable.past(lower); to != nil {
			lower = least(to, upper)
			lost = lower
			continue
		}
		first, err = s.firstKey(lower, upper)
		if !lsm.IsCorruptionError(err) {
			return first, lost, err
		}
		lower = s.beyond(lower, upper, err)
		lost = lower
	}
	return nil, lost, nil
}

// nextBlock is the least key, at most end, that the table has in a later block than from.
func (s *Store) nextBlock(name string, from, end []byte) (next []byte, err error) {
	f, err := s.disk.base.Open(name)
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(s.disk.closing, readable, s.readerOptions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	number := func(k []byte) *big.Int {
		return new(big.Int).SetBytes(append(bytes.Clone(k), make([]byte, max(0, keyWidth-len(k)))...)[:keyWidth])
	}
	key := func(n *big.Int) []byte { return n.FillBytes(make([]byte, keyWidth)) }
	here, err := r.EstimateDiskUsage(from, from, sstable.ReadEnv{})
	if err != nil {
		return nil, err
	}
	low, high := number(from), number(end)
	for one := big.NewInt(1); new(big.Int).Sub(high, low).Cmp(one) > 0; {
		mid := new(big.Int).Add(high, low)
		mid.Rsh(mid, 1)
		size, err := r.EstimateDiskUsage(from, key(mid), sstable.ReadEnv{})
		if err != nil {
			return nil, err
		}
		if size > here {
			high = mid
		} else {
			low = mid
		}
	}
	if next = key(high); bytes.Compare(next, from) <= 0 || bytes.Compare(next, end) > 0 {
		return end, nil
	}
	return next, nil
}

// lost says once for a while that a range of a table's keys cannot be read.
func (s *Store) lost(what string) {
	if skipped, ok := s.lostSaid.Pass(); ok {
		s.log.Error("stored data cannot be read and is left out", "what", what, "more_since_last", skipped)
	}
	if s.onLost != nil {
		s.onLost(what)
	}
}

// lostChunks stand for the raw chunks of a group's keys [from, to) that cannot be read: one, without
// data, for each slice in which some may have been.
func (s *Store) lostChunks(group metric.ScheduleID, from, to []byte) (chunks []storage.RawChunk) {
	width := s.ladder.WidthMs(metric.Raw + 1)
	day, first := getInt(from[1:]), getInt(from[17:])
	for sliceMs := metric.AlignDown(first, width); bytes.Compare(rawSliceKey(day, group, sliceMs), to) < 0; sliceMs += width {
		chunks = append(chunks, storage.RawChunk{
			Group: group, SliceMs: sliceMs, Chunk: storage.Chunk{ID: blocks.KeyID(sliceMs, uint64(group))},
		})
	}
	return chunks
}

// aroundSchedules yields the schedules with the ids of [from, to) by the other table of them.
func (s *Store) aroundSchedules(ctx context.Context, from, to []byte, yield func(storage.Schedule, error) bool) bool {
	const op = "schedules"
	atLeast := func(k []byte) int64 { // the first id whose key is not before k
		id := getInt(k[1:])
		if bytes.Compare(scheduleKey(metric.ScheduleID(id)), k) < 0 {
			id++
		}
		return id
	}
	first, end := atLeast(from), atLeast(to)
	more := true
	scanAround(ctx, s, op, []byte{tableSeries}, []byte{tableSeries + 1}, nil, parseSeries, func([]byte, []byte) bool {
		s.lost(fmt.Sprintf("labels of some of the schedules %d to %d", first, end-1))
		return true
	}, func(sc storage.Schedule, err error) bool {
		if err == nil && (int64(sc.ID) < first || int64(sc.ID) >= end) {
			return true
		}
		more = yield(sc, err)
		return more
	})
	return more
}

// elsewhere yields the schedules of a source whose keys in its table lie in [from, to), where that cannot be read, by the other
// table. That one does not say of which derived source a series is: it may yield one of another, of the very same
// labels.
func (s *Store) elsewhere(ctx context.Context, source string, from, to []byte, yield func(storage.Schedule) bool) error {
	lost, err := s.lostSeries.list(ctx, s)
	if err != nil {
		return fmt.Errorf("labels of source %q lie in damaged blocks of two tables; restore a backup, or stop the server and save "+
			"what can be read by `quern salvage`: %w", source, err)
	}
	prefix := sourcePrefix(source)
	derived := strings.HasPrefix(source, storage.DerivedSource)
	var key []byte
	for _, sc := range lost {
		if !derived && sc.Labels.Get(metric.SourceLabel) != source {
			continue
		}
		key = sc.Labels.AppendKey(append(key[:0], prefix...))
		if bytes.Compare(from, key) <= 0 && bytes.Compare(key, to) < 0 && !yield(sc) {
			break
		}
	}
	return nil
}

// lostSeries are the series that cannot be read by source, but by id.
type lostSeries struct {
	mu sync.Mutex
	// all is nil when it is not known, and as it was when so many ranges could not be read.
	all    []storage.Schedule
	ranges int
}

// forget has them listed again.
func (l *lostSeries) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

func (l *lostSeries) list(ctx context.Context, s *Store) (all []storage.Schedule, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all != nil && l.ranges == s.unreadable.len() {
		return l.all, nil
	}
	l.all = nil
	const op = "series that cannot be read by source"
	readable := make(map[metric.ScheduleID]struct{})
	scanAround(ctx, s, op, []byte{tableSeries}, []byte{tableSeries + 1}, nil, parseSeries,
		func([]byte, []byte) bool { return true },
		func(sc storage.Schedule, e error) bool {
			readable[sc.ID], err = struct{}{}, e
			return e == nil
		})
	if err != nil {
		return nil, err
	}
	all = []storage.Schedule{}
	scan(ctx, s, op, []byte{tableSchedule}, []byte{tableSchedule + 1}, nil, parseSchedule, func(sc storage.Schedule, e error) bool {
		if _, ok := readable[sc.ID]; e == nil && !ok {
			all = append(all, sc)
		}
		err = e
		return e == nil
	})
	if err != nil {
		return nil, err
	}
	l.all, l.ranges = all, s.unreadable.len()
	return all, nil
}

// plain is an error of Pebble's for people: without what it carries for programs, and with the
// file.
func plain(err error) error {
	if info := lsm.ExtractDataCorruptionInfo(err); info != nil {
		return fmt.Errorf("%s is damaged: %w", path.Base(info.Path), info.Details)
	}
	return err
}
