package pebble

import (
	"encoding/binary"
	"fmt"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// The first byte of a key names its table; docs/format/pebble.md has all of them
// byte for byte. They are letters so that a hex dump can be read.
const (
	tableCache     = 'c'
	tableDocuments = 'o'
	tableItems     = 't'
	tableExpiry    = 'x' // of items
	tableIndex     = 'i'
	tableMeta      = 'm'
	tableRaw       = 'r'
	tableRollups   = 'u'
	tableSchedule  = 'b' // schedules_by_block
	tableSeries    = 's' // schedules
	tableSlices    = 'l'
)

// The keys of tableMeta.
const (
	metaBegun    = "begun" // followed by the byte of a bucket
	metaClock    = "clock"
	metaExpired  = "expired"
	metaFence    = "fence"
	metaIdentity = "identity"
	metaNewestID = "newest_id"
	metaNextID   = "next_id"
	metaSettings = "settings"
)

const (
	// dayMs is the length of a partition of raw_metrics, in ms.
	dayMs = int64(24 * 60 * 60 * 1000)
	// periodRows is the length of a partition of a roll-up table, in rows of one schedule: 5⅓ days
	// of 1h rows. To read a year of 1h rows of one schedule then takes 69 seeks, and a level
	// expires in steps of a few percent of the usual retention.
	periodRows = 128

	idBytes = len(blocks.ID{})
)

// appendInt appends x so that the bytes order as the numbers do, also negative ones.
func appendInt(k []byte, x int64) []byte {
	return binary.BigEndian.AppendUint64(k, uint64(x)^1<<63)
}

func getInt(k []byte) int64 { return int64(binary.BigEndian.Uint64(k) ^ 1<<63) }

func appendString(k []byte, s string) []byte {
	k = binary.BigEndian.AppendUint32(k, uint32(len(s)))
	return append(k, s...)
}

// after returns the smallest key above all keys that start with prefix. No prefix in use is all
// 0xff: the table byte is a letter.
func after(prefix []byte) []byte {
	k := append([]byte(nil), prefix...)
	for i := len(k) - 1; ; i-- {
		k[i]++
		if k[i] != 0 {
			return k[:i+1]
		}
	}
}

func metaKey(name string) []byte { return append([]byte{tableMeta}, name...) }

func begunKey(b metric.Bucket) []byte { return append(metaKey(metaBegun), byte(b)) }

// raw: day, group, slice, chunk id. The day comes first so that expiry is one range.
func rawDayKey(sliceMs int64) []byte {
	return appendInt([]byte{tableRaw}, metric.AlignDown(sliceMs, dayMs))
}

func rawSliceKey(day int64, group metric.ScheduleID, sliceMs int64) []byte {
	k := make([]byte, 0, rawKeyBytes)
	k = appendInt(append(k, tableRaw), day)
	return appendInt(appendInt(k, int64(group)), sliceMs)
}

const rawKeyBytes = 1 + 8 + 8 + 8 + idBytes

func rawKey(c *storage.RawChunk) []byte {
	return append(rawSliceKey(metric.AlignDown(c.SliceMs, dayMs), c.Group, c.SliceMs), c.ID[:]...)
}

func parseRawKey(k []byte) (c storage.RawChunk, err error) {
	if len(k) != rawKeyBytes {
		return c, damagedKey("raw_metrics", k)
	}
	c.Group = metric.ScheduleID(getInt(k[9:]))
	c.SliceMs = getInt(k[17:])
	c.ID = blocks.ID(k[25:])
	return c, nil
}

// cache: bucket, slice, start, chunk id.
const cacheKeyBytes = 1 + 1 + 8 + 8 + idBytes

func cacheBlockKey(c storage.CacheKey) []byte {
	k := make([]byte, 0, cacheKeyBytes)
	k = append(k, tableCache, byte(c.Bucket))
	return appendInt(appendInt(k, c.StartMs), int64(c.Start))
}

// index: bucket, slice, shard, start, time, mark id.
const (
	indexPartitionBytes = 1 + 1 + 8 + 4
	indexKeyBytes       = indexPartitionBytes + 8 + 8 + idBytes
)

func indexPartitionKey(p storage.IndexPartition) []byte {
	k := make([]byte, 0, indexKeyBytes)
	k = append(k, tableIndex, byte(p.Bucket))
	return binary.BigEndian.AppendUint32(appendInt(k, p.StartMs), uint32(p.Shard))
}

func indexKey(partition []byte, m *storage.Mark) []byte {
	k := make([]byte, 0, indexKeyBytes)
	k = append(k, partition...)
	return append(appendInt(appendInt(k, int64(m.Start)), m.TimeMs), m.ID[:]...)
}

func parseIndexKey(k []byte) (m storage.Mark, err error) {
	if len(k) != indexKeyBytes {
		return m, damagedKey("metrics_cache_index", k)
	}
	k = k[indexPartitionBytes:]
	m.Start = metric.ScheduleID(getInt(k))
	m.TimeMs = getInt(k[8:])
	m.ID = blocks.ID(k[16:])
	return m, nil
}

// slices: bucket, slice, state. Opening a slice, beginning its run and completing it each write the
// key of their own state. So no operation reads before it writes, and none undoes another.
const (
	sliceOpen     = 0
	sliceComplete = 1
	sliceBegun    = 2
	sliceKeyBytes = 1 + 1 + 8 + 1
)

func sliceKey(s storage.SliceKey, state byte) []byte {
	k := make([]byte, 0, sliceKeyBytes)
	return append(appendInt(append(k, tableSlices, byte(s.Bucket)), s.StartMs), state)
}

// rollups: level, period, schedule, time.
const rollupKeyBytes = 1 + 1 + 8 + 8 + 8

func rollupPeriodKey(level metric.Bucket, period int64) []byte {
	k := make([]byte, 0, rollupKeyBytes)
	return appendInt(append(k, tableRollups, byte(level)), period)
}

// appendRollupKey appends the key of a row; periodMs is the length of a period.
func appendRollupKey(k []byte, level metric.Bucket, periodMs int64, id metric.ScheduleID, tMs int64) []byte {
	k = appendInt(append(k, tableRollups, byte(level)), metric.AlignDown(tMs, periodMs))
	return appendInt(appendInt(k, int64(id)), tMs)
}

func parseRollupKey(k []byte) (period int64, id metric.ScheduleID, tMs int64, err error) {
	if len(k) != rollupKeyBytes {
		return 0, 0, 0, damagedKey("roll-ups", k)
	}
	return getInt(k[2:]), metric.ScheduleID(getInt(k[10:])), getInt(k[18:]), nil
}

// series: source, series key; schedule: id.
func sourcePrefix(source string) []byte { return appendString([]byte{tableSeries}, source) }

func scheduleKey(id metric.ScheduleID) []byte {
	return appendInt([]byte{tableSchedule}, int64(id))
}

// clampTimes limits a range to ±2^62, so that the start and end of a partition can be computed
// without overflow.
func clampTimes(fromMs, toMs int64) (int64, int64) {
	const far = 1 << 62
	return max(fromMs, -far), min(toMs, far)
}

func damagedKey(table string, k []byte) error {
	return fmt.Errorf("%w: key %x of %s has %d bytes", storage.ErrCorrupt, k, table, len(k))
}
