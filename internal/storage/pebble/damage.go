package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"path"
	"sync"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// When the checksum of a table's block fails, a range of keys is lost. The keys before and after it
// can still be read, so reads skip the range. For raw chunks they report which groups and slices
// may have lost chunks, for roll-ups which schedules and times may have lost rows.

// aroundFunc is called with a range [from, to) whose rows cannot be read. It returns false to end
// the scan.
type aroundFunc func(from, to []byte) bool

// keyWidth is the number of bytes of a key that the search for the end of a block compares. Most
// keys are shorter.
const keyWidth = 96

// beyond returns the first key after from, at most upper, from which reading works again. from
// cannot be read, because of err. beyond takes the end of the damaged block from the table's index:
// each attempt to read a damaged block costs Pebble a search for the flipped bit.
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
	at := cursor{store: s}
	defer at.close()
	_, err = at.rows(next, upper, nil, func([]byte, []byte) bool { return false })
	if lsm.IsCorruptionError(err) {
		return s.beyond(next, upper, err)
	}
	return next
}

// keyRanges remembers ranges of keys that could not be read, since each new attempt costs Pebble
// tenths of a second. The ranges are kept until the store is opened again.
type keyRanges struct {
	mu  sync.Mutex
	all [][2][]byte
}

// maxKeyRanges bounds the number of remembered ranges.
const maxKeyRanges = 1000

func (r *keyRanges) add(from, to []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) < maxKeyRanges {
		r.all = append(r.all, [2][]byte{bytes.Clone(from), bytes.Clone(to)})
	}
}

// past returns the end of the ranges that contain a key, nil if none does.
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

// firstReadable returns the first key of [lower, upper) that can be read, nil if there is none. If
// it skips unreadable keys, lost is the end of the last range skipped.
func (c *cursor) firstReadable(lower, upper []byte) (first, lost []byte, err error) {
	for bytes.Compare(lower, upper) < 0 {
		if to := c.store.unreadable.past(lower); to != nil {
			lower = least(to, upper)
			lost = lower
			continue
		}
		first, err = c.firstKey(lower, upper)
		if !lsm.IsCorruptionError(err) {
			return first, lost, err
		}
		lower = c.store.beyond(lower, upper, err)
		lost = lower
	}
	return nil, lost, nil
}

// nextBlock returns the least key, at most end, that lies in a later block of the table than from.
// It finds the key by bisection, with the table's estimates of disk usage.
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

// lost logs that a range of a table's keys cannot be read, at most once a minute.
func (s *Store) lost(what string) {
	if skipped, ok := s.lostSaid.Pass(); ok {
		s.log.Error("stored data cannot be read and is skipped", "what", what, "more_since_last", skipped)
	}
}

// lostChunks returns placeholders for the raw chunks of a group's keys [from, to), which cannot be
// read: one chunk, without data, for each slice that may have lost some.
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

// maxLostRows bounds the rows of one damaged block that a read reports. A block holds far fewer
// rows. It may be any of more rows if the read begins long before the first row that is stored: then
// the read fails.
const maxLostRows = 1 << 17

// lostRows yields a damaged row for each row that may lie among the keys [from, to), which cannot be
// read, and has a schedule in ids and a time in [fromMs, toMs).
func (s *Store) lostRows(level metric.Bucket, ids blocks.Range, fromMs, toMs int64, from, to []byte, yield func(metric.RollupRow, error) bool) bool {
	width, periodMs := s.ladder.WidthMs(level), s.periodMs(level)
	fromMs, toMs = s.plausible(metric.AlignDown(fromMs+width-1, width), toMs)
	ids.End = min(ids.End, s.leased())
	// A key that bounds a table may be shorter than the key of a row.
	at := func(k []byte, i int) int64 {
		return getInt(append(bytes.Clone(k), make([]byte, rollupKeyBytes)...)[i:])
	}
	period := func(k []byte) int64 { return at(k, 2) }
	schedule := func(k []byte) metric.ScheduleID { return metric.ScheduleID(at(k, 10)) }
	var lost []metric.RollupRow
	var key []byte
	for p := metric.AlignDown(max(period(from), fromMs), periodMs); p <= period(to) && p < toMs; p += periodMs {
		first, last := ids.Start, ids.End-1
		if p == period(from) {
			first = max(first, schedule(from))
		}
		if p == period(to) {
			last = min(last, schedule(to))
		}
		for id := first; id <= last; id++ {
			for t := max(p, fromMs); t < min(p+periodMs, toMs); t += width {
				key = appendRollupKey(key[:0], level, periodMs, id, t)
				if bytes.Compare(key, from) < 0 || bytes.Compare(key, to) >= 0 {
					continue
				}
				if len(lost) == maxLostRows {
					yield(metric.RollupRow{}, damage{fmt.Errorf("roll-ups: some %s rows of schedules %d to %d from %s on cannot be read: ask for a shorter time",
						s.ladder.Name(level), ids.Start, ids.End-1, time.UnixMilli(lost[0].TimeMs).UTC().Format(time.RFC3339))})
					return false
				}
				lost = append(lost, metric.RollupRow{Schedule: id, TimeMs: t, Damaged: true})
			}
		}
	}
	if len(lost) == 0 {
		return true
	}
	begin, end := lost[0].TimeMs, lost[0].TimeMs
	low, high := lost[0].Schedule, lost[0].Schedule
	for i := range lost {
		begin, end = min(begin, lost[i].TimeMs), max(end, lost[i].TimeMs)
		low, high = min(low, lost[i].Schedule), max(high, lost[i].Schedule)
	}
	s.lost(fmt.Sprintf("%s rows of the schedules %d to %d from %s to %s", s.ladder.Name(level), low, high,
		time.UnixMilli(begin).UTC().Format(time.RFC3339), time.UnixMilli(end).UTC().Format(time.RFC3339)))
	for _, row := range lost {
		if !yield(row, nil) {
			return false
		}
	}
	return true
}

// plausible limits [fromMs, toMs) to the times that data may have which cannot be read: from 1970
// to two days ahead of the clock.
func (s *Store) plausible(fromMs, toMs int64) (int64, int64) {
	newest := max(clock.NowMs(s.clk), s.gate.Newest().UnixMilli())
	return max(fromMs, 0), min(toMs, newest+2*dayMs)
}

// plain rewrites an error of Pebble for people: it drops the details for programs, and adds the file
// name and what to do.
func plain(err error) error {
	if info := lsm.ExtractDataCorruptionInfo(err); info != nil {
		return fmt.Errorf("%s is damaged: %w: restore the directory from a backup", path.Base(info.Path), info.Details)
	}
	return err
}
