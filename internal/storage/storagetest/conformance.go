package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// OpenFunc makes an empty store for one test, and a function that closes and reopens it, as a
// restart of the process would. The OpenFunc's own cleanup closes the store.
type OpenFunc func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (st storage.Store, reopen func() storage.Store)

// Missing names something that a backend does not do, by its own documented choice.
type Missing int

const (
	// MissingExpire says that rows expire by the database's TTL, and Expire does nothing.
	MissingExpire Missing = iota
	// MissingTTL says that workers and leases expire by the database's clock, not by the test's.
	MissingTTL
	// MissingNewestID says that there are several writers, and only their clocks order what they
	// write.
	MissingNewestID
)

// day0 is midnight of the day on which the suite runs.
var day0 = time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC)

const (
	hourMs  = int64(time.Hour / time.Millisecond)
	dayMs   = 24 * hourMs
	group   = 256
	shards  = 4
	nothing = metric.ScheduleID(-1)
)

// TestSettings are small settings that use every feature: three roll-ups, several shards, groups of
// more than one block.
func TestSettings() storage.Settings {
	return storage.Settings{
		Ladder:          metric.DefaultLadder(),
		GroupSize:       group,
		IndexPartitions: shards,
		Epochs:          blocks.Epochs{{BlockSize: 128}},
	}
}

// Run checks a backend against the package comment and the doc comments of storage. Its tests are
// independent: each opens its own store.
func Run(t *testing.T, open OpenFunc, missing ...Missing) {
	t.Helper()
	for _, tc := range []struct {
		name  string
		test  func(s *suite)
		needs []Missing
	}{
		{"BatchIsReadBack", (*suite).batchIsReadBack, nil},
		{"EmptyBatch", (*suite).emptyBatch, nil},
		{"LargeBatch", (*suite).largeBatch, nil},
		{"ChunksAreOrdered", (*suite).chunksAreOrdered, nil},
		{"ReceiverOwnsBytes", (*suite).receiverOwnsBytes, nil},
		{"CacheBlockTooLarge", (*suite).cacheBlockTooLarge, nil},
		{"CacheBlockDeleteIsExact", (*suite).cacheBlockDeleteIsExact, nil},
		{"MarkFields", (*suite).markFields, nil},
		{"MarksAreOrderedOverPages", (*suite).marksAreOrderedOverPages, nil},
		{"FirstMark", (*suite).firstMark, nil},
		{"MarkDeleteIsExact", (*suite).markDeleteIsExact, nil},
		{"MarksDeletedWhileRead", (*suite).marksDeletedWhileRead, nil},
		{"SlicesOpenAndComplete", (*suite).slicesOpenAndComplete, nil},
		{"LeaseConflictAndRelease", (*suite).leaseConflictAndRelease, nil},
		{"LeaseRenewed", (*suite).leaseRenewed, nil},
		{"LeaseExpires", (*suite).leaseExpires, []Missing{MissingTTL}},
		{"FenceIncreases", (*suite).fenceIncreases, nil},
		{"HigherFenceWins", (*suite).higherFenceWins, nil},
		{"OneShardsFenceSparesOthers", (*suite).oneShardsFenceSparesOthers, nil},
		{"LeaseIDs", (*suite).leaseIDs, nil},
		{"ClaimSchedules", (*suite).claimSchedules, nil},
		{"ClaimRace", (*suite).claimRace, nil},
		{"SchedulesByRange", (*suite).schedulesByRange, nil},
		{"RawChunksByRange", (*suite).rawChunksByRange, nil},
		{"RawChunksOfManyGroups", (*suite).rawChunksOfManyGroups, nil},
		{"RollupsByRange", (*suite).rollupsByRange, nil},
		{"RollupsAreReplaced", (*suite).rollupsAreReplaced, nil},
		{"RollupValues", (*suite).rollupValues, nil},
		{"Settings", (*suite).settingsAreRecorded, nil},
		{"NewestID", (*suite).newestID, []Missing{MissingNewestID}},
		{"Epochs", (*suite).epochsAreAdded, nil},
		{"ExpireKeepsWhatIsYoung", (*suite).expireKeepsWhatIsYoung, nil},
		{"ExpireRemovesWhatIsOld", (*suite).expireRemovesWhatIsOld, []Missing{MissingExpire}},
		{"Policy", (*suite).policyIsChanged, nil},
		{"WholeFrom", (*suite).wholeFrom, nil},
		{"WholeFromWhatExpired", (*suite).wholeFromWhatExpired, []Missing{MissingExpire}},
		{"Metadata", (*suite).metadata, nil},
		{"Runs", (*suite).runs, nil},
		{"Errors", (*suite).errors, nil},
		{"Workers", (*suite).workers, nil},
		{"WorkersExpire", (*suite).workersExpire, []Missing{MissingTTL}},
		{"Cancelled", (*suite).cancelled, nil},
		{"IteratorsBreakEarly", (*suite).iteratorsBreakEarly, nil},
		{"Idempotent", (*suite).idempotent, nil},
		{"Concurrent", (*suite).concurrent, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, m := range tc.needs {
				if slices.Contains(missing, m) {
					t.Skipf("the backend leaves this to its database")
				}
			}
			s := newSuite(t, open)
			tc.test(s)
		})
	}
}

type suite struct {
	*testing.T
	ctx    context.Context
	clk    *clock.Simulated
	store  storage.Store
	reopen func()
	ids    *blocks.IDs
}

func newSuite(t *testing.T, open OpenFunc) *suite {
	t.Helper()
	s := &suite{T: t, ctx: t.Context(), clk: clock.NewSimulated(day0.Add(12 * time.Hour)), ids: blocks.NewIDs(7)}
	st, reopen := open(t, TestSettings(), made().Policy.Retention, s.clk)
	s.store = st
	s.reopen = func() {
		s.advance(time.Second) // a restart takes time, and clocks order writes before and after it
		s.store = reopen()
	}
	return s
}

// made returns the settings of the suite's stores.
func made() storage.Settings {
	s := TestSettings()
	s.Policy.Retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 0}
	return s
}

func at(hours int) int64 { return day0.UnixMilli() + int64(hours)*hourMs }

func rawSlice(hours int) storage.SliceKey {
	return storage.SliceKey{Bucket: metric.Raw, StartMs: at(hours)}
}

func (s *suite) id() blocks.ID { return s.ids.Next(s.clk.Now().UnixMilli()) }

func (s *suite) chunk(data string) storage.Chunk {
	return storage.Chunk{ID: s.id(), Data: []byte(data)}
}

// advance moves the clock on.
func (s *suite) advance(d time.Duration) { s.clk.Set(s.clk.Now().Add(d)) }

func (s *suite) write(b *storage.Batch) {
	s.Helper()
	require.NoError(s, s.store.Write(s.ctx, b))
}

func (s *suite) acquire(shard int, owner string) storage.Lease {
	s.Helper()
	l, err := s.store.AcquireShard(s.ctx, shard, owner, time.Hour)
	require.NoError(s, err)
	return l
}

// equal compares two values; an empty slice equals nil.
func equal(t testing.TB, want, got any, msg ...any) {
	t.Helper()
	if diff := diffOf(want, got); diff != "" {
		t.Fatalf("%s\n-want +got\n%s", fmt.Sprint(msg...), diff)
	}
}

func diffOf(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return "" // cmp takes a hundred times as long
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateNaNs(),
		cmp.Comparer(func(a, b metric.Ladder) bool { return a.Equal(b) }))
}

// all collects a sequence and requires that it has no error (see gather for rule 7).
func all[T any](t testing.TB, seq iter.Seq2[T, error]) []T {
	t.Helper()
	out, err := gather(seq)
	require.NoError(t, err)
	return out
}

// gather collects a sequence up to its error. By rule 7 an error is the last pair.
func gather[T any](seq iter.Seq2[T, error]) (out []T, err error) {
	for v, e := range seq {
		if err != nil {
			return out, fmt.Errorf("the sequence went on after its error %w", err)
		}
		if err = e; err == nil {
			out = append(out, v)
		}
	}
	return out, err
}

func (s *suite) marks(p storage.IndexPartition) []storage.Mark {
	s.Helper()
	return all(s, s.store.Marks(s.ctx, p))
}

func (s *suite) cacheBlock(k storage.CacheKey) []storage.Chunk {
	s.Helper()
	out, err := s.store.CacheBlock(s.ctx, k)
	require.NoError(s, err)
	return out
}

func (s *suite) slices(b metric.Bucket, fromMs, toMs int64) []storage.SliceState {
	s.Helper()
	out, err := s.store.Slices(s.ctx, b, fromMs, toMs)
	require.NoError(s, err)
	return out
}

func (s *suite) rawChunks(from, to metric.ScheduleID, fromMs, toMs int64) []storage.RawChunk {
	s.Helper()
	return all(s, s.store.RawChunks(s.ctx, blocks.Range{Start: from, End: to}, fromMs, toMs))
}

// rollups returns rows sorted by schedule: the contract promises order by time only.
func (s *suite) rollups(level metric.Bucket, from, to metric.ScheduleID, fromMs, toMs int64) []metric.RollupRow {
	s.Helper()
	rows := all(s, s.store.Rollups(s.ctx, level, blocks.Range{Start: from, End: to}, fromMs, toMs))
	last := map[metric.ScheduleID]int64{}
	for _, r := range rows {
		prev, seen := last[r.Schedule]
		require.False(s, seen && prev >= r.TimeMs, "schedule %d: time %d after %d", r.Schedule, r.TimeMs, prev)
		last[r.Schedule] = r.TimeMs
	}
	slices.SortFunc(rows, compareRows)
	return rows
}

func (s *suite) batchIsReadBack() {
	part := storage.IndexPartition{SliceKey: rawSlice(11), Shard: 2}
	key := storage.CacheKey{SliceKey: rawSlice(11), Start: 128}
	mark := storage.Mark{Start: 128, TimeMs: at(11), ID: s.id(), DueMs: at(12)}
	raw := storage.RawChunk{Group: 0, SliceMs: at(11), Chunk: s.chunk("raw")}
	cached := storage.CacheChunk{CacheKey: key, Chunk: s.chunk("cache")}
	s.write(&storage.Batch{
		Open:  []storage.SliceKey{rawSlice(11)},
		Marks: []storage.PlacedMark{{Partition: part, Mark: mark}},
		Raw:   []storage.RawChunk{raw},
		Cache: []storage.CacheChunk{cached},
	})
	check := func() {
		s.Helper()
		equal(s, []storage.SliceState{{SliceKey: rawSlice(11)}}, s.slices(metric.Raw, at(0), at(24)))
		equal(s, []storage.Mark{mark}, s.marks(part))
		equal(s, []storage.RawChunk{raw}, s.rawChunks(128, 256, at(11), at(12)))
		equal(s, []storage.Chunk{cached.Chunk}, s.cacheBlock(key))
	}
	check()
	s.reopen()
	check()
}

func (s *suite) emptyBatch() {
	s.write(&storage.Batch{})
	f := s.acquire(0, "w").Fence
	s.write(&storage.Batch{Fence: f})
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, nil))
	require.NoError(s, s.store.DeleteMarks(s.ctx, f, storage.IndexPartition{SliceKey: rawSlice(1)}, nil))
	require.Empty(s, s.slices(metric.Raw, 0, at(1000)))
}

// largeBatch writes more than a memtable or a Cassandra batch holds at once.
func (s *suite) largeBatch() {
	const n = 3000
	b := &storage.Batch{}
	for i := range n {
		k := storage.CacheKey{SliceKey: rawSlice(5), Start: metric.ScheduleID(i * 128)}
		data := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 700)
		b.Cache = append(b.Cache, storage.CacheChunk{CacheKey: k, Chunk: storage.Chunk{ID: s.id(), Data: data}})
		b.Raw = append(b.Raw, storage.RawChunk{
			Group: blocks.Of(k.Start, group).Start, SliceMs: at(5), Chunk: storage.Chunk{ID: s.id(), Data: data},
		})
	}
	s.write(b)
	s.reopen()
	for i := range n {
		equal(s, []storage.Chunk{b.Cache[i].Chunk}, s.cacheBlock(b.Cache[i].CacheKey))
	}
	require.Len(s, s.rawChunks(0, n*128, at(5), at(6)), n)
}

func (s *suite) chunksAreOrdered() {
	key := storage.CacheKey{SliceKey: rawSlice(3), Start: 0}
	var want []storage.Chunk
	for i := range 20 {
		want = append(want, s.chunk(strconv.Itoa(i)))
	}
	for _, i := range []int{7, 3, 19, 0, 1, 2, 4, 5, 6, 18, 17, 16, 8, 9, 10, 11, 12, 13, 14, 15} {
		s.write(&storage.Batch{
			Raw:   []storage.RawChunk{{Group: 0, SliceMs: at(3), Chunk: want[i]}},
			Cache: []storage.CacheChunk{{CacheKey: key, Chunk: want[i]}},
		})
	}
	equal(s, want, s.cacheBlock(key))
	var got []storage.Chunk
	for _, c := range s.rawChunks(0, 1, at(3), at(4)) {
		got = append(got, c.Chunk)
	}
	equal(s, want, got)
}

// receiverOwnsBytes: what was written may change afterwards, and so may what was read.
func (s *suite) receiverOwnsBytes() {
	key := storage.CacheKey{SliceKey: rawSlice(3), Start: 0}
	data := []byte("before")
	id := s.id()
	s.write(&storage.Batch{
		Raw:   []storage.RawChunk{{Group: 0, SliceMs: at(3), Chunk: storage.Chunk{ID: id, Data: data}}},
		Cache: []storage.CacheChunk{{CacheKey: key, Chunk: storage.Chunk{ID: id, Data: data}}},
	})
	copy(data, "after!")
	for range 2 {
		chunks := s.cacheBlock(key)
		require.Equal(s, "before", string(chunks[0].Data))
		copy(chunks[0].Data, "spoilt")
		_ = append(chunks[0].Data, "more"...)
		raws := s.rawChunks(0, 1, at(3), at(4))
		require.Equal(s, "before", string(raws[0].Data))
		copy(raws[0].Data, "spoilt")
	}
}

func (s *suite) cacheBlockTooLarge() {
	k := storage.CacheKey{SliceKey: storage.SliceKey{StartMs: at(6)}, Start: 256}
	data := strings.Repeat("x", 1<<20)
	for range storage.MaxCacheBytes>>20 - 1 {
		s.write(&storage.Batch{Cache: []storage.CacheChunk{{CacheKey: k, Chunk: s.chunk(data)}}})
	}
	require.Len(s, s.cacheBlock(k), storage.MaxCacheBytes>>20-1)
	for range 2 {
		s.write(&storage.Batch{Cache: []storage.CacheChunk{{CacheKey: k, Chunk: s.chunk(data)}}})
	}
	_, err := s.store.CacheBlock(s.ctx, k)
	require.ErrorIs(s, err, storage.ErrTooLarge)
	require.NoError(s, s.store.DeleteCacheBlock(s.ctx, s.acquire(0, "w").Fence, k))
	require.Empty(s, s.cacheBlock(k))
}

func (s *suite) cacheBlockDeleteIsExact() {
	base := storage.CacheKey{SliceKey: storage.SliceKey{Bucket: 1, StartMs: at(6)}, Start: 256}
	neighbours := []storage.CacheKey{
		{SliceKey: base.SliceKey, Start: 128},
		{SliceKey: base.SliceKey, Start: 257},
		{SliceKey: base.SliceKey, Start: 384},
		{SliceKey: storage.SliceKey{Bucket: 1, StartMs: at(0)}, Start: 256},
		{SliceKey: storage.SliceKey{Bucket: 1, StartMs: at(12)}, Start: 256},
		{SliceKey: storage.SliceKey{Bucket: 0, StartMs: at(6)}, Start: 256},
		{SliceKey: storage.SliceKey{Bucket: 2, StartMs: at(6)}, Start: 256},
	}
	b := &storage.Batch{}
	for _, k := range append(neighbours, base) {
		for range 3 {
			b.Cache = append(b.Cache, storage.CacheChunk{CacheKey: k, Chunk: s.chunk("x")})
		}
	}
	s.write(b)
	f := s.acquire(0, "w").Fence
	require.NoError(s, s.store.DeleteCacheBlock(s.ctx, f, base))
	check := func() {
		s.Helper()
		require.Empty(s, s.cacheBlock(base))
		for _, k := range neighbours {
			require.Len(s, s.cacheBlock(k), 3, "%v", k)
		}
	}
	check()
	s.reopen()
	check()
	// A chunk that arrives after the delete stays.
	late := storage.CacheChunk{CacheKey: base, Chunk: s.chunk("after")}
	s.write(&storage.Batch{Cache: []storage.CacheChunk{late}})
	equal(s, []storage.Chunk{late.Chunk}, s.cacheBlock(base))
}

func (s *suite) markFields() {
	part := storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: 2, StartMs: at(0)}, Shard: 3}
	want := []storage.Mark{
		{Start: 0, TimeMs: at(0), ID: s.id()},
		{Start: 128, TimeMs: at(-30), ID: s.id(), Kind: storage.MarkLate, Schedules: []metric.ScheduleID{128}, DueMs: at(5)},
		{
			Start: 256, TimeMs: at(1), ID: s.id(), Kind: storage.MarkRetry, DueMs: at(2),
			Attempt: 300, LastError: "it failed: \x00 ünïcode",
		},
		{
			Start: 384, TimeMs: -at(1), ID: s.id(), Kind: storage.MarkFresh, Chunks: 360, DueMs: -1,
			Schedules: []metric.ScheduleID{384, 385, 400, 511}, Attempt: 1,
		},
	}
	b := &storage.Batch{}
	for _, m := range want {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m})
	}
	s.write(b)
	equal(s, want, s.marks(part))
	s.reopen()
	equal(s, want, s.marks(part))
	// A second write of the same key replaces what is not in the key.
	want[2].Attempt, want[2].LastError = 301, "again"
	s.write(&storage.Batch{Marks: []storage.PlacedMark{{Partition: part, Mark: want[2]}}})
	equal(s, want, s.marks(part))
}

func (s *suite) marksAreOrderedOverPages() {
	part := storage.IndexPartition{SliceKey: rawSlice(4), Shard: 1}
	const n = 12_000
	want := make([]storage.Mark, n)
	for i := range want {
		// Three marks of each block: two of one time, one of a later time.
		want[i] = storage.Mark{Start: metric.ScheduleID(i / 3 * 128), TimeMs: at(i % 3 / 2), ID: s.id(), DueMs: at(i)}
	}
	for _, batch := range [][]storage.Mark{want[n/2:], want[:n/3], want[n/3 : n/2]} {
		b := &storage.Batch{}
		for _, m := range batch {
			b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m})
		}
		s.write(b)
	}
	equal(s, want, s.marks(part))
	s.reopen()
	equal(s, want, s.marks(part))
	// Deleting them leaves a range of deleted keys, also in front of a mark that is left.
	f := s.acquire(1, "w").Fence
	require.NoError(s, s.store.DeleteMarks(s.ctx, f, part, want[:n-1]))
	equal(s, want[n-1:], s.marks(part))
}

func (s *suite) firstMark() {
	part := storage.IndexPartition{SliceKey: rawSlice(4), Shard: 1}
	var marks []storage.Mark
	for i := range 12 {
		marks = append(marks, storage.Mark{Start: metric.ScheduleID(i / 4 * 128), TimeMs: at(i / 2 % 2), ID: s.id()})
	}
	look := func(from storage.MarkKey, want ...storage.Mark) {
		s.Helper()
		k, ok, err := s.store.FirstMark(s.ctx, part, from)
		require.NoError(s, err)
		require.Equal(s, len(want) > 0, ok)
		if ok {
			require.Equal(s, want[0].Key(), k)
		}
	}
	look(storage.MarkKey{})
	b := &storage.Batch{}
	for _, m := range marks {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m})
	}
	other := part
	other.Shard = 2
	b.Marks = append(b.Marks, storage.PlacedMark{Partition: other, Mark: storage.Mark{Start: 1000, TimeMs: at(0), ID: s.id()}})
	s.write(b)
	look(storage.MarkKey{}, marks...)
	for i := range marks {
		look(marks[i].Key(), marks[i:]...)
	}
	look(storage.MarkKey{Start: 128}, marks[4:]...)
	look(storage.MarkKey{Start: 128, TimeMs: at(1)}, marks[6:]...)
	look(storage.MarkKey{Start: 129}, marks[8:]...)
	look(storage.MarkKey{Start: 257})
	f := s.acquire(1, "w").Fence
	for i := range marks {
		require.NoError(s, s.store.DeleteMarks(s.ctx, f, part, marks[i:i+1]))
		look(storage.MarkKey{}, marks[i+1:]...)
		look(marks[i].Key(), marks[i+1:]...)
	}
}

func (s *suite) markDeleteIsExact() {
	part := storage.IndexPartition{SliceKey: rawSlice(4), Shard: 1}
	low, mid, high := s.id(), s.id(), s.id()
	doomed := storage.Mark{Start: 128, TimeMs: at(4), ID: mid}
	others := []storage.Mark{
		{Start: 127, TimeMs: at(4), ID: mid},
		{Start: 128, TimeMs: at(3), ID: mid},
		{Start: 128, TimeMs: at(4), ID: low},
		{Start: 128, TimeMs: at(4), ID: high},
		{Start: 128, TimeMs: at(5), ID: mid},
		{Start: 129, TimeMs: at(4), ID: mid},
	}
	parts := []storage.IndexPartition{
		part,
		{SliceKey: part.SliceKey, Shard: 0},
		{SliceKey: part.SliceKey, Shard: 2},
		{SliceKey: rawSlice(3), Shard: 1},
		{SliceKey: rawSlice(5), Shard: 1},
		{SliceKey: storage.SliceKey{Bucket: 1, StartMs: at(4)}, Shard: 1},
	}
	b := &storage.Batch{}
	for _, p := range parts {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: p, Mark: doomed})
	}
	for _, m := range others {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m})
	}
	s.write(b)
	f := s.acquire(1, "w").Fence
	// Only the key counts, and a mark that does not exist is no error.
	byKey := doomed
	byKey.Attempt, byKey.LastError = 9, "other"
	gone := storage.Mark{Start: 999, TimeMs: at(4), ID: s.id()}
	require.NoError(s, s.store.DeleteMarks(s.ctx, f, part, []storage.Mark{byKey, gone}))
	check := func() {
		s.Helper()
		equal(s, others, s.marks(part))
		for _, p := range parts[1:] {
			equal(s, []storage.Mark{doomed}, s.marks(p), p)
		}
	}
	check()
	s.reopen()
	check()
}

// marksDeletedWhileRead does what a run does: it deletes the marks that it has read, while ingest
// adds marks.
func (s *suite) marksDeletedWhileRead() {
	part := storage.IndexPartition{SliceKey: rawSlice(4), Shard: 1}
	const n = 5000
	b := &storage.Batch{}
	for i := range n {
		m := storage.Mark{Start: metric.ScheduleID(i * 128), TimeMs: at(4), ID: s.id()}
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m})
	}
	s.write(b)
	f := s.acquire(1, "w").Fence
	// Behind the reader: this mark is for the next run.
	added := storage.Mark{Start: 0, TimeMs: at(3), ID: s.id(), Kind: storage.MarkLate}
	read := 0
	for m, err := range s.store.Marks(s.ctx, part) {
		require.NoError(s, err)
		require.Equal(s, b.Marks[read].Mark, m)
		read++
		require.NoError(s, s.store.DeleteMarks(s.ctx, f, part, []storage.Mark{m}))
		if read == n/2 {
			s.write(&storage.Batch{Marks: []storage.PlacedMark{{Partition: part, Mark: added}}})
		}
	}
	require.Equal(s, n, read)
	equal(s, []storage.Mark{added}, s.marks(part))
}

func (s *suite) slicesOpenAndComplete() {
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(5), rawSlice(3), rawSlice(4), {Bucket: 1, StartMs: at(0)}}})
	f := s.acquire(0, "w").Fence
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(4)))
	want := []storage.SliceState{
		{SliceKey: rawSlice(3)},
		{SliceKey: rawSlice(4), Complete: true},
		{SliceKey: rawSlice(5)},
	}
	equal(s, want, s.slices(metric.Raw, at(0), at(24)))
	equal(s, want[:2], s.slices(metric.Raw, at(3), at(5)), "[from, to)")
	equal(s, []storage.SliceState{}, s.slices(metric.Raw, at(6), at(24)))
	equal(s, []storage.SliceState{}, s.slices(metric.Raw, at(4), at(4)))
	equal(s, []storage.SliceState{{SliceKey: storage.SliceKey{Bucket: 1, StartMs: at(0)}}}, s.slices(1, at(-24), at(24)))
	equal(s, []storage.SliceState{}, s.slices(2, at(-24), at(24)))

	// A slice that is opened again, with or without a fence, stays complete.
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(4)}})
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(4)}, Fence: f})
	equal(s, want, s.slices(metric.Raw, at(0), at(24)))
	s.reopen()
	equal(s, want, s.slices(metric.Raw, at(0), at(24)))

	// Slices of many days, and a completed slice that was never opened.
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(-480)))
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(-24)}})
	want = append([]storage.SliceState{{SliceKey: rawSlice(-480), Complete: true}, {SliceKey: rawSlice(-24)}}, want...)
	equal(s, want, s.slices(metric.Raw, at(-500), at(24)))
}

func (s *suite) leaseConflictAndRelease() {
	l := s.acquire(1, "a")
	require.Equal(s, 1, l.Shard)
	require.Equal(s, "a", l.Owner)
	require.Positive(s, l.Fence)
	_, err := s.store.AcquireShard(s.ctx, 1, "b", time.Hour)
	require.ErrorIs(s, err, storage.ErrConflict)
	renewed := s.acquire(1, "a")
	require.Greater(s, renewed.Fence, l.Fence)
	s.acquire(2, "b")

	held := func() map[int]string {
		leases, err := s.store.Leases(s.ctx)
		require.NoError(s, err)
		out := map[int]string{}
		for _, l := range leases {
			if l.Owner != "" {
				out[l.Shard] = l.Owner
			}
		}
		return out
	}
	require.Equal(s, map[int]string{1: "a", 2: "b"}, held())
	require.NoError(s, s.store.ReleaseShard(s.ctx, 1, "b"), "not held by b")
	require.Equal(s, map[int]string{1: "a", 2: "b"}, held())
	require.NoError(s, s.store.ReleaseShard(s.ctx, 1, "a"))
	require.NoError(s, s.store.ReleaseShard(s.ctx, 1, "a"))
	require.NoError(s, s.store.ReleaseShard(s.ctx, 3, "a"), "never held")
	require.Equal(s, map[int]string{2: "b"}, held())
	require.Greater(s, s.acquire(1, "b").Fence, renewed.Fence)
}

// leaseRenewed: the fence stays, and nobody else's lease is touched.
func (s *suite) leaseRenewed() {
	l := s.acquire(1, "a")
	require.NoError(s, s.store.RenewShard(s.ctx, l, 2*time.Hour))
	leases, err := s.store.Leases(s.ctx)
	require.NoError(s, err)
	require.Len(s, leases, 1)
	require.Equal(s, l.Fence, leases[0].Fence)
	require.Equal(s, s.clk.Now().Add(2*time.Hour).UnixMilli(), leases[0].ExpiresMs)
	require.NoError(s, s.store.WriteRollups(s.ctx, l.Fence, 1, []metric.RollupRow{row(1, at(0), 1)}), "the fence is as good as before")

	again := s.acquire(1, "a")
	require.ErrorIs(s, s.store.RenewShard(s.ctx, l, time.Hour), storage.ErrConflict, "taken anew, by a process of the same name")
	require.NoError(s, s.store.ReleaseShard(s.ctx, 1, "a"))
	require.ErrorIs(s, s.store.RenewShard(s.ctx, again, time.Hour), storage.ErrConflict, "given back")
	other := s.acquire(1, "b")
	require.ErrorIs(s, s.store.RenewShard(s.ctx, again, time.Hour), storage.ErrConflict, "another's")
	require.NoError(s, s.store.RenewShard(s.ctx, other, time.Hour))
	require.ErrorIs(s, s.store.RenewShard(s.ctx, storage.Lease{Shard: 2, Owner: "a", Fence: 1}, time.Hour), storage.ErrConflict, "never held")
}

func (s *suite) leaseExpires() {
	l, err := s.store.AcquireShard(s.ctx, 1, "a", 30*time.Second)
	require.NoError(s, err)
	require.Equal(s, s.clk.Now().Add(30*time.Second).UnixMilli(), l.ExpiresMs)
	s.advance(30*time.Second - time.Millisecond)
	_, err = s.store.AcquireShard(s.ctx, 1, "b", time.Hour)
	require.ErrorIs(s, err, storage.ErrConflict)
	s.advance(time.Millisecond)
	require.Greater(s, s.acquire(1, "b").Fence, l.Fence)
	_, err = s.store.AcquireShard(s.ctx, 1, "a", time.Hour)
	require.ErrorIs(s, err, storage.ErrConflict)

	l, err = s.store.AcquireShard(s.ctx, 2, "a", time.Minute)
	require.NoError(s, err)
	s.advance(30 * time.Second)
	require.NoError(s, s.store.RenewShard(s.ctx, l, time.Minute))
	s.advance(time.Minute - time.Millisecond)
	_, err = s.store.AcquireShard(s.ctx, 2, "b", time.Hour)
	require.ErrorIs(s, err, storage.ErrConflict, "a minute from the renewal")
	s.advance(time.Millisecond)
	require.ErrorIs(s, s.store.RenewShard(s.ctx, l, time.Minute), storage.ErrConflict, "it has ended")
}

func (s *suite) fenceIncreases() {
	first := s.acquire(0, "w")
	last := first
	for range 3 {
		l := s.acquire(0, "w")
		require.Greater(s, l.Fence, last.Fence)
		last = l
	}
	s.reopen()
	l := s.acquire(0, "w")
	require.Greater(s, l.Fence, last.Fence, "after a restart")
	last = l
	// The clock steps back an hour: the fence does not.
	s.advance(-time.Hour)
	l = s.acquire(0, "w")
	require.Greater(s, l.Fence, last.Fence, "after the clock stepped back")
	s.reopen()
	require.Greater(s, s.acquire(0, "w").Fence, l.Fence)
}

// row is a roll-up row in which every value is derived from v.
func row(id metric.ScheduleID, tMs int64, v float64) metric.RollupRow {
	return metric.RollupRow{Schedule: id, TimeMs: tMs, Rollup: metric.Rollup{
		Count: 1, Sum: v, Min: v, Max: v, First: v, Last: v, Sketch: []byte{byte(v)}, Partial: int(v)%4 > 1,
	}}
}

// higherFenceWins checks rule 4: the lower fence gets ErrFenced, or the row of the higher is read.
func (s *suite) higherFenceWins() {
	l1 := s.acquire(0, "a")
	s.advance(2 * time.Hour)
	// If leases end by the database's clock, the paused worker's lease has not ended.
	require.NoError(s, s.store.ReleaseShard(s.ctx, 0, "a"))
	l2 := s.acquire(0, "b")
	newer, older := row(1, at(0), 2), row(1, at(0), 1)
	part := storage.IndexPartition{SliceKey: rawSlice(0), Shard: 0}
	key := storage.CacheKey{SliceKey: rawSlice(0)}
	mark := storage.Mark{Start: 0, TimeMs: at(0), ID: s.id(), DueMs: 2}
	chunk := s.chunk("newer")
	require.NoError(s, s.store.WriteRollups(s.ctx, l2.Fence, 1, []metric.RollupRow{newer}))
	s.write(&storage.Batch{
		Fence: l2.Fence, Marks: []storage.PlacedMark{{Partition: part, Mark: mark}},
		Cache: []storage.CacheChunk{{CacheKey: key, Chunk: chunk}},
	})
	// The paused worker wakes up.
	stale := mark
	stale.DueMs = 1
	for name, op := range map[string]func() error{
		"roll-ups": func() error {
			return s.store.WriteRollups(s.ctx, l1.Fence, 1, []metric.RollupRow{older})
		},
		"batch": func() error {
			return s.store.Write(s.ctx, &storage.Batch{
				Fence: l1.Fence, Marks: []storage.PlacedMark{{Partition: part, Mark: stale}},
				Cache: []storage.CacheChunk{{CacheKey: key, Chunk: storage.Chunk{ID: chunk.ID, Data: []byte("older")}}},
			})
		},
		"delete marks": func() error { return s.store.DeleteMarks(s.ctx, l1.Fence, part, []storage.Mark{mark}) },
		"delete cache": func() error { return s.store.DeleteCacheBlock(s.ctx, l1.Fence, key) },
	} {
		if err := op(); err != nil {
			require.ErrorIs(s, err, storage.ErrFenced, name)
		}
	}
	check := func() {
		s.Helper()
		equal(s, []metric.RollupRow{newer}, s.rollups(1, 0, 10, at(0), at(1)))
		equal(s, []storage.Mark{mark}, s.marks(part))
		equal(s, []storage.Chunk{chunk}, s.cacheBlock(key))
	}
	check()
	s.reopen()
	check()
	// The fence of a process that is gone must not win either.
	l3 := s.acquire(0, "b")
	newest := row(1, at(0), 3)
	require.NoError(s, s.store.WriteRollups(s.ctx, l3.Fence, 1, []metric.RollupRow{newest}))
	if err := s.store.WriteRollups(s.ctx, l2.Fence, 1, []metric.RollupRow{older}); err != nil {
		require.ErrorIs(s, err, storage.ErrFenced)
	}
	equal(s, []metric.RollupRow{newest}, s.rollups(1, 0, 10, at(0), at(1)))
}

func (s *suite) oneShardsFenceSparesOthers() {
	l0 := s.acquire(0, "a")
	s.acquire(1, "b")
	s.acquire(2, "a")
	want := []metric.RollupRow{row(5, at(0), 1)}
	require.NoError(s, s.store.WriteRollups(s.ctx, l0.Fence, 1, want))
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
	_, err := s.store.AcquireShard(s.ctx, shards, "a", time.Hour)
	require.Error(s, err, "no such shard")
	_, err = s.store.AcquireShard(s.ctx, -1, "a", time.Hour)
	require.Error(s, err, "no such shard")
}

func (s *suite) leaseIDs() {
	var mu sync.Mutex
	given := map[metric.ScheduleID]bool{}
	take := func(n int) {
		r, err := s.store.LeaseIDs(s.ctx, n)
		assert.NoError(s, err)
		assert.Equal(s, n, r.Len())
		assert.GreaterOrEqual(s, r.Start, metric.ScheduleID(0))
		mu.Lock()
		defer mu.Unlock()
		for id := r.Start; id < r.End; id++ {
			assert.False(s, given[id], "%d was given out twice", id)
			given[id] = true
		}
	}
	for range 2 {
		take(1)
		take(1000)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for n := range 10 {
					take(n + 1)
				}
			})
		}
		wg.Wait()
		all, err := s.store.LeasedIDs(s.ctx)
		require.NoError(s, err)
		require.Equal(s, metric.ScheduleID(0), all.Start)
		for id := range given {
			require.True(s, all.Contains(id))
		}
		s.reopen()
		again, err := s.store.LeasedIDs(s.ctx)
		require.NoError(s, err)
		require.Equal(s, all, again)
	}
	_, err := s.store.LeaseIDs(s.ctx, 0)
	require.Error(s, err)
}

// series returns a series of a source.
func series(source, name string, more ...string) metric.Labels {
	ls := []metric.Label{{Name: metric.NameLabel, Value: name}, {Name: metric.SourceLabel, Value: source}}
	for i := 0; i < len(more); i += 2 {
		ls = append(ls, metric.Label{Name: more[i], Value: more[i+1]})
	}
	out, err := metric.NewLabels(ls...)
	if err != nil {
		panic(err)
	}
	return out
}

func (s *suite) sourceSchedules(source string) []storage.Schedule {
	s.Helper()
	out := all(s, s.store.SourceSchedules(s.ctx, source))
	slices.SortFunc(out, compareSchedules)
	return out
}

func compareSchedules(a, b storage.Schedule) int { return int(a.ID - b.ID) }

func (s *suite) claimSchedules() {
	r, err := s.store.LeaseIDs(s.ctx, 20)
	require.NoError(s, err)
	first := []storage.Schedule{
		{ID: r.Start, Labels: series("web-1", "cpu", "core", "0")},
		{ID: r.Start + 1, Labels: series("web-1", "cpu", "core", "1")},
	}
	ids, err := s.store.ClaimSchedules(s.ctx, "web-1", first)
	require.NoError(s, err)
	require.Equal(s, []metric.ScheduleID{r.Start, r.Start + 1}, ids)
	// Known series keep their ids, in the order asked. A new series between them gets its own id,
	// also when it is wanted twice.
	ids, err = s.store.ClaimSchedules(s.ctx, "web-1", []storage.Schedule{
		{ID: r.Start + 2, Labels: first[1].Labels},
		{ID: r.Start + 3, Labels: series("web-1", "mem")},
		{ID: r.Start + 4, Labels: first[0].Labels},
		{ID: r.Start + 5, Labels: series("web-1", "mem")},
	})
	require.NoError(s, err)
	require.Equal(s, []metric.ScheduleID{r.Start + 1, r.Start + 3, r.Start, r.Start + 3}, ids)
	// Sources whose names begin alike are different.
	ids, err = s.store.ClaimSchedules(s.ctx, "web-10", []storage.Schedule{{ID: r.Start + 6, Labels: series("web-10", "cpu")}})
	require.NoError(s, err)
	require.Equal(s, []metric.ScheduleID{r.Start + 6}, ids)
	ids, err = s.store.ClaimSchedules(s.ctx, "web-1", nil)
	require.NoError(s, err)
	require.Empty(s, ids)

	want := append(slices.Clone(first), storage.Schedule{ID: r.Start + 3, Labels: series("web-1", "mem")})
	check := func() {
		s.Helper()
		equal(s, want, s.sourceSchedules("web-1"))
		equal(s, []storage.Schedule{{ID: r.Start + 6, Labels: series("web-10", "cpu")}}, s.sourceSchedules("web-10"))
		require.Empty(s, s.sourceSchedules("web"))
		require.Len(s, all(s, s.store.Schedules(s.ctx, r)), 4)
	}
	check()
	s.reopen()
	check()
}

// claimRace: several processes meet the same new series, and each brings its own ids.
func (s *suite) claimRace() {
	const writers, n = 6, 40
	results := make([][]metric.ScheduleID, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r, err := s.store.LeaseIDs(s.ctx, n)
			assert.NoError(s, err)
			want := make([]storage.Schedule, n)
			for i := range want {
				want[i] = storage.Schedule{ID: r.Start + metric.ScheduleID(i), Labels: series("db", "m"+strconv.Itoa(i))}
			}
			results[w], err = s.store.ClaimSchedules(s.ctx, "db", want)
			assert.NoError(s, err)
		})
	}
	wg.Wait()
	for w := range writers {
		require.Equal(s, results[0], results[w])
	}
	got := s.sourceSchedules("db")
	require.Len(s, got, n)
	leased, err := s.store.LeasedIDs(s.ctx)
	require.NoError(s, err)
	byID := all(s, s.store.Schedules(s.ctx, leased))
	equal(s, got, byID)
}

func (s *suite) schedulesByRange() {
	const n = 3000
	r, err := s.store.LeaseIDs(s.ctx, n)
	require.NoError(s, err)
	var want []storage.Schedule
	for from := 0; from < n; from += 100 {
		source := "s" + strconv.Itoa(from)
		var claim []storage.Schedule
		for i := from; i < from+100; i++ {
			claim = append(claim, storage.Schedule{
				ID:     r.Start + metric.ScheduleID(i),
				Labels: series(source, "m"+strconv.Itoa(i), "long", string(bytes.Repeat([]byte("x"), 200))),
			})
		}
		_, err := s.store.ClaimSchedules(s.ctx, source, claim)
		require.NoError(s, err)
		want = append(want, claim...)
	}
	equal(s, want, all(s, s.store.Schedules(s.ctx, r)))
	equal(s, want[130:1270], all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.Start + 130, End: r.Start + 1270})))
	require.Empty(s, all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.End, End: r.End + 1000})))
	require.Empty(s, all(s, s.store.Schedules(s.ctx, blocks.Range{Start: r.Start + 5, End: r.Start + 5})))
}

func (s *suite) rawChunksByRange() {
	// Three groups, slices on both sides of two midnights, one before 1970.
	hours := []int{-25, -24, -1, 0, 1, 23, 24, 49}
	b := &storage.Batch{}
	var want []storage.RawChunk
	for _, g := range []metric.ScheduleID{0, group, 3 * group} {
		for _, h := range hours {
			for range 2 {
				want = append(want, storage.RawChunk{Group: g, SliceMs: at(h), Chunk: s.chunk(fmt.Sprint(g, h))})
			}
		}
	}
	for i := range want {
		b.Raw = append(b.Raw, want[(i*7)%len(want)])
	}
	s.write(b)
	filter := func(from, to metric.ScheduleID, fromMs, toMs int64) (out []storage.RawChunk) {
		for _, c := range want {
			if from < to && from < c.Group+group && c.Group < to && fromMs <= c.SliceMs && c.SliceMs < toMs {
				out = append(out, c)
			}
		}
		return out
	}
	check := func() {
		s.Helper()
		for _, ids := range []blocks.Range{
			{Start: 0, End: 4 * group},
			{Start: 0, End: 1},
			{Start: group - 1, End: group},
			{Start: group - 1, End: group + 1},
			{Start: group + 5, End: group + 6},
			{Start: 2 * group, End: 3 * group},
			{Start: 2*group + 1, End: 3*group + 1},
			{Start: 0, End: 1 << 40},
			{Start: 5, End: 5},
		} {
			for _, span := range [][2]int{{-48, 72}, {0, 24}, {-1, 1}, {0, 1}, {-24, 0}, {23, 25}, {2, 23}, {5, 5}} {
				equal(s, filter(ids.Start, ids.End, at(span[0]), at(span[1])),
					s.rawChunks(ids.Start, ids.End, at(span[0]), at(span[1])), ids, span)
			}
			// A range that begins within a slice leaves the slice out.
			equal(s, filter(ids.Start, ids.End, at(0)+1, at(24)+1), s.rawChunks(ids.Start, ids.End, at(0)+1, at(24)+1))
		}
	}
	check()
	s.reopen()
	check()
}

func (s *suite) rawChunksOfManyGroups() {
	const n = 500
	data := bytes.Repeat([]byte("0123456789"), 100)
	b := &storage.Batch{}
	for g := range n {
		b.Raw = append(b.Raw,
			storage.RawChunk{Group: metric.ScheduleID(g * group), SliceMs: at(-1), Chunk: storage.Chunk{ID: s.id(), Data: data}},
			storage.RawChunk{Group: metric.ScheduleID(g * group), SliceMs: at(0), Chunk: storage.Chunk{ID: s.id(), Data: data}})
	}
	s.write(b)
	equal(s, b.Raw, s.rawChunks(0, n*group, at(-24), at(24)))
}

func (s *suite) rollupsByRange() {
	f := s.acquire(0, "w").Fence
	// 20 days of 1h rows cross the borders of any reasonable partition.
	var want []metric.RollupRow
	for _, id := range []metric.ScheduleID{0, 1, 127, 128, group, 5 * group} {
		for h := -240; h < 240; h++ {
			want = append(want, row(id, at(h), float64(h)))
		}
	}
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, want))
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 2, []metric.RollupRow{row(1, at(0), 7)}))
	filter := func(ids blocks.Range, fromMs, toMs int64) (out []metric.RollupRow) {
		for _, r := range want {
			if ids.Contains(r.Schedule) && fromMs <= r.TimeMs && r.TimeMs < toMs {
				out = append(out, r)
			}
		}
		return out
	}
	check := func() {
		s.Helper()
		for _, ids := range []blocks.Range{
			{Start: 0, End: 1 << 40},
			{Start: 1, End: 2},
			{Start: 2, End: 127},
			{Start: 127, End: 129},
			{Start: 0, End: 128},
			{Start: 5 * group, End: 6 * group},
			{Start: 6 * group, End: 7 * group},
			{Start: 3, End: 3},
		} {
			for _, span := range [][2]int{{-240, 240}, {0, 1}, {-100, 100}, {-1000, -239}, {239, 1000}, {3, 3}} {
				equal(s, filter(ids, at(span[0]), at(span[1])), s.rollups(1, ids.Start, ids.End, at(span[0]), at(span[1])), ids, span)
			}
		}
		equal(s, []metric.RollupRow{row(1, at(0), 7)}, s.rollups(2, 0, 1000, at(-1000), at(1000)))
		require.Empty(s, s.rollups(3, 0, 1000, at(-1000), at(1000)))
	}
	check()
	s.reopen()
	check()
}

func (s *suite) rollupsAreReplaced() {
	f := s.acquire(0, "w").Fence
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(1, at(0), 1), row(2, at(0), 1)}))
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(1, at(0), 2)}))
	written, err := s.store.RowFence(s.ctx, 1, 1, at(0))
	require.NoError(s, err)
	require.Contains(s, []storage.Fence{0, f}, written)
	written, err = s.store.RowFence(s.ctx, 1, 3, at(0))
	require.NoError(s, err)
	require.Zero(s, written)
	want := []metric.RollupRow{row(1, at(0), 2), row(2, at(0), 1)}
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
	s.advance(time.Minute)
	f = s.acquire(0, "w").Fence
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(2, at(0), 3)}))
	s.reopen()
	want[1] = row(2, at(0), 3)
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
	s.advance(time.Minute)
	f = s.acquire(0, "w").Fence
	require.True(s, want[1].Partial)
	want[1] = row(2, at(0), 4)
	require.False(s, want[1].Partial, "it was ground again, from all of its samples")
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, want[1:]))
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
}

func (s *suite) rollupValues() {
	f := s.acquire(0, "w").Fence
	rows := []metric.RollupRow{
		{Schedule: 1, TimeMs: at(0), Rollup: metric.Rollup{Count: 1 << 40, Sum: -1.5, Min: -3, Max: 1e300, First: 4, Last: 5, Increase: 6, Sketch: bytes.Repeat([]byte{0xff, 0}, 5000)}},
		{Schedule: 1, TimeMs: at(1), Rollup: metric.Rollup{Count: 1, Sum: 5e-324}},
		{Schedule: 1, TimeMs: at(-1_000_000), Rollup: metric.Rollup{Count: 2, Increase: 0.1}},
		{Schedule: 2, TimeMs: at(0), Rollup: metric.Rollup{Partial: true}}, // no samples are left, but there may have been some
	}
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 3, rows))
	slices.SortFunc(rows, compareRows)
	equal(s, rows, s.rollups(3, 0, 10, at(-2_000_000), at(2)))
	require.Error(s, s.store.WriteRollups(s.ctx, f, 0, rows), "raw is no roll-up")
	require.Error(s, s.store.WriteRollups(s.ctx, f, 4, rows), "no such level")
}

func (s *suite) newestID() {
	equal(s, blocks.ID{}, s.store.NewestID(), "of an empty store")
	early, late := s.id(), s.id()
	for _, id := range []blocks.ID{early, late} {
		s.write(&storage.Batch{Raw: []storage.RawChunk{{SliceMs: at(0), Chunk: storage.Chunk{ID: id, Data: []byte("x")}}}})
	}
	s.reopen()
	require.GreaterOrEqual(s, s.store.NewestID().Compare(late), 0)
}

func (s *suite) settingsAreRecorded() {
	equal(s, made(), s.store.Settings())
	s.store.Settings().Epochs[0].BlockSize = 1
	equal(s, made(), s.store.Settings(), "the receiver may change what it got")
	s.reopen()
	equal(s, made(), s.store.Settings())
}

func (s *suite) policyIsChanged() {
	want := made()
	want.Policy = storage.Policy{
		Grace: 3 * time.Minute, Delay: 3 * time.Minute, AgeCap: 36 * time.Hour, FutureLimit: time.Minute,
		Retention: storage.Retention{24 * time.Hour, 0, time.Hour, 17},
	}
	for range 2 {
		require.NoError(s, s.store.SetPolicy(s.ctx, want.Policy), "idempotent")
		equal(s, want, s.store.Settings())
	}
	s.reopen()
	equal(s, want, s.store.Settings(), "what the store is opened with is for a new one")
	require.NoError(s, s.store.SetPolicy(s.ctx, made().Policy))
	equal(s, made(), s.store.Settings())
}

// setRetention changes the retention of raw, a day after the last change.
func (s *suite) setRetention(raw time.Duration) {
	s.advance(24 * time.Hour)
	p := s.store.Settings().Policy
	p.Retention = slices.Clone(p.Retention)
	p.Retention[metric.Raw] = raw
	require.NoError(s, s.store.SetPolicy(s.ctx, p))
}

// wholeFrom: what may have expired does not count as whole, in whichever way rows expire.
func (s *suite) wholeFrom() {
	const day = 24 * time.Hour
	whole := func(b metric.Bucket) time.Time {
		return time.UnixMilli(s.store.WholeFrom(b, s.clk.Now().UnixMilli())).UTC()
	}
	now := s.clk.Now()
	equal(s, now.Add(-7*day), whole(metric.Raw))
	equal(s, now.Add(-90*day), whole(1))
	equal(s, int64(math.MinInt64), s.store.WholeFrom(3, now.UnixMilli()), "kept for ever")
	equal(s, at(100)-(7*day).Milliseconds(), s.store.WholeFrom(metric.Raw, at(100)), "at whatever time")

	s.setRetention(2 * day)
	equal(s, s.clk.Now().Add(-2*day), whole(metric.Raw), "no more than what is kept")
	s.setRetention(30 * day)
	raised := s.clk.Now()
	for range 2 {
		require.False(s, whole(metric.Raw).Before(raised.Add(-30*day)), "not before what is kept")
		require.False(s, whole(metric.Raw).After(raised.Add(-2*day)), "what was there is there")
		s.reopen()
	}
	equal(s, s.clk.Now().Add(-90*day), whole(1), "of other buckets nothing changes")
	// If rows expire by the TTL they were written with, earlier rows have expired by now, and rows
	// written since have not.
	s.advance(10 * day)
	require.False(s, whole(metric.Raw).After(raised))
	s.advance(100 * day)
	equal(s, s.clk.Now().Add(-30*day), whole(metric.Raw))
}

// wholeFromWhatExpired: what Expire has removed is no longer whole, even if the retention is raised
// afterwards.
func (s *suite) wholeFromWhatExpired() {
	const day = 24 * time.Hour
	old, young := at(-5*24), at(0)
	s.write(&storage.Batch{Raw: []storage.RawChunk{{SliceMs: old, Chunk: s.chunk("old")}, {SliceMs: young, Chunk: s.chunk("young")}}})
	now := func() int64 { return s.clk.Now().UnixMilli() }
	require.NoError(s, s.store.Expire(s.ctx, now()))
	require.LessOrEqual(s, s.store.WholeFrom(metric.Raw, now()), old, "nothing has been removed")

	s.setRetention(day)
	require.NoError(s, s.store.Expire(s.ctx, now()))
	require.Empty(s, s.rawChunks(0, 1, old, young))
	s.setRetention(30 * day)
	for range 2 {
		whole := s.store.WholeFrom(metric.Raw, now())
		require.Greater(s, whole, old)
		require.LessOrEqual(s, whole, young)
		require.Len(s, s.rawChunks(0, 1, whole, young+1), 1)
		require.NoError(s, s.store.Expire(s.ctx, now()))
		s.reopen()
	}
	s.advance(60 * day)
	equal(s, now()-(30*day).Milliseconds(), s.store.WholeFrom(metric.Raw, now()))
}

func (s *suite) epochsAreAdded() {
	first := blocks.Epoch{FromMs: at(24), BlockSize: 64}
	require.NoError(s, s.store.AddEpoch(s.ctx, first))
	require.NoError(s, s.store.AddEpoch(s.ctx, first), "idempotent")
	want := made()
	want.Epochs = append(want.Epochs, first)
	equal(s, want, s.store.Settings())
	require.ErrorIs(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(24), BlockSize: 32}), storage.ErrConflict)
	require.ErrorIs(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(23), BlockSize: 32}), storage.ErrConflict)
	require.Error(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(30), BlockSize: 0}))
	equal(s, want, s.store.Settings())
	s.reopen()
	equal(s, want, s.store.Settings())
	second := blocks.Epoch{FromMs: at(48), BlockSize: 256}
	require.NoError(s, s.store.AddEpoch(s.ctx, second))
	want.Epochs = append(want.Epochs, second)
	equal(s, want, s.store.Settings())
}

func (s *suite) expireKeepsWhatIsYoung() {
	// Raw is kept for 7 days, 1h rows for 90, 6h rows for a year, 24h rows for ever.
	f := s.acquire(0, "w").Fence
	border := at(-7 * 24)
	s.write(&storage.Batch{
		Open: []storage.SliceKey{rawSlice(-24 * 1000), rawSlice(0)},
		Raw:  []storage.RawChunk{{SliceMs: border, Chunk: s.chunk("young")}, {SliceMs: at(0), Chunk: s.chunk("new")}},
	})
	young := row(1, at(-90*24), 1)
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{young}))
	eternal := row(1, at(-24*10_000), 1)
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 3, []metric.RollupRow{eternal}))
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(0)))
	require.NoError(s, s.store.Expire(s.ctx, at(0)))
	require.Len(s, s.rawChunks(0, 1, border, at(1)), 2)
	equal(s, []metric.RollupRow{young}, s.rollups(1, 0, 10, young.TimeMs, at(1)))
	equal(s, []metric.RollupRow{eternal}, s.rollups(3, 0, 10, eternal.TimeMs, at(1)))
	equal(s, []storage.SliceState{{SliceKey: rawSlice(-24 * 1000)}, {SliceKey: rawSlice(0), Complete: true}},
		s.slices(metric.Raw, at(-24*2000), at(1)), "open slices stay, however old")
}

func (s *suite) expireRemovesWhatIsOld() {
	f := s.acquire(0, "w").Fence
	// Rows that are older than the retention by a partition must be removed.
	var raw []storage.RawChunk
	for _, h := range []int{-7*24 - 49, -7*24 - 25, -7*24 - 1, 0} {
		raw = append(raw, storage.RawChunk{SliceMs: at(h), Chunk: s.chunk("x")}, storage.RawChunk{Group: group, SliceMs: at(h), Chunk: s.chunk("y")})
	}
	s.write(&storage.Batch{Raw: raw})
	rows := []metric.RollupRow{row(1, at(-200*24), 1), row(1, at(-100*24), 1), row(1, at(-80*24), 1)}
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, rows))
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 2, rows))
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(-31*24)))
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(-29*24)))
	require.NoError(s, s.store.RecordRun(s.ctx, storage.Run{SliceKey: rawSlice(-31 * 24), StartedMs: at(-31 * 24)}))
	require.NoError(s, s.store.RecordRun(s.ctx, storage.Run{SliceKey: rawSlice(-29 * 24), StartedMs: at(-29 * 24)}))
	check := func() {
		s.Helper()
		require.Empty(s, s.rawChunks(0, 2*group, at(-1000), at(-7*24-24)))
		require.Len(s, s.rawChunks(0, 2*group, at(0), at(1)), 2)
		equal(s, rows[2:], s.rollups(1, 0, 10, at(-1000*24), at(0)))
		equal(s, rows, s.rollups(2, 0, 10, at(-1000*24), at(0)))
		equal(s, []storage.SliceState{{SliceKey: rawSlice(-29 * 24), Complete: true}}, s.slices(metric.Raw, at(-1000), at(0)))
		runs, err := s.store.RecentRuns(s.ctx, 10)
		require.NoError(s, err)
		require.Len(s, runs, 1)
	}
	for range 2 {
		require.NoError(s, s.store.Expire(s.ctx, at(0)))
		check()
	}
	s.reopen()
	check()
	// The exact border: the rows of a day expire together, when the last of them is too old.
	require.Empty(s, s.rawChunks(0, 1, at(-7*24-1), at(-7*24)))
	s.write(&storage.Batch{Raw: raw})
	require.NoError(s, s.store.Expire(s.ctx, at(0)-1))
	require.Len(s, s.rawChunks(0, 1, at(-7*24-1), at(-7*24)), 1)
}

func (s *suite) metadata() {
	check := func(want ...metric.Metadata) {
		s.Helper()
		got, err := gather(s.store.Metadata(s.ctx))
		require.NoError(s, err)
		equal(s, want, got)
	}
	check()
	require.NoError(s, s.store.PutMetadata(s.ctx, nil))
	check()
	full := metric.Metadata{Name: "http_seconds", Type: metric.TypeHistogram, Help: "Time to answer.\n\x00 Zeit für eine Antwort ⏱", Unit: "seconds"}
	bare := metric.Metadata{Name: "http.näme with space"}
	require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{full, bare}))
	check(bare, full)
	s.reopen()
	check(bare, full)
	// The last write wins, also within a call, and a field that is left out is cleared.
	full.Type, full.Unit = metric.TypeStateset, ""
	require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{{Name: full.Name, Help: "no longer"}, full}))
	for range 2 {
		check(bare, full)
		require.NoError(s, s.store.PutMetadata(s.ctx, []metric.Metadata{full}), "idempotent")
	}
	// A name that is a prefix of another, and more names than a page or a batch holds.
	var many []metric.Metadata
	for i := range 2500 {
		many = append(many, metric.Metadata{Name: fmt.Sprintf("http_seconds_%04d", i), Type: metric.Type(i % 8), Help: strconv.Itoa(i) + string(make([]byte, 900))})
	}
	require.NoError(s, s.store.PutMetadata(s.ctx, many))
	check(append([]metric.Metadata{bare, full}, many...)...)
	require.NoError(s, s.store.Expire(s.ctx, at(1000*24)))
	s.reopen()
	check(append([]metric.Metadata{bare, full}, many...)...)
	breakAtOnce(s.T, s.store.Metadata(s.ctx))
}

func (s *suite) runs() {
	var want []storage.Run
	for i := range 30 {
		r := storage.Run{
			SliceKey: storage.SliceKey{Bucket: metric.Bucket(i % 3), StartMs: at(i)}, Worker: "w", StartedMs: at(i) + 1,
			Duration: time.Duration(i) * time.Second, Blocks: i, Schedules: i * 128, BlockQueries: i + 1,
			IndexQueries: 16, Late: 1, Rescheduled: 2, Dropped: 3, Err: fmt.Sprint("e", i),
		}
		require.NoError(s, s.store.RecordRun(s.ctx, r))
		want = append([]storage.Run{r}, want...)
	}
	check := func() {
		s.Helper()
		got, err := s.store.RecentRuns(s.ctx, 1000)
		require.NoError(s, err)
		equal(s, want, got)
		got, err = s.store.RecentRuns(s.ctx, 7)
		require.NoError(s, err)
		equal(s, want[:7], got)
		got, err = s.store.RecentRuns(s.ctx, 0)
		require.NoError(s, err)
		require.Empty(s, got)
	}
	check()
	require.NoError(s, s.store.RecordRun(s.ctx, want[3]), "idempotent")
	check()
	s.reopen()
	check()
}

func (s *suite) errors() {
	var want []storage.ComponentError
	for i := range 25 {
		for _, component := range []string{"aggregator", "ingest"} {
			e := storage.ComponentError{
				Component: component, Worker: "w", TimeMs: at(0) + int64(2*i), SliceKey: rawSlice(i), Start: nothing,
				Message: fmt.Sprint("failed ", i),
			}
			if component == "ingest" {
				e.TimeMs++
				e.Start = 128
			}
			require.NoError(s, s.store.RecordError(s.ctx, e))
			if i >= 15 {
				want = append([]storage.ComponentError{e}, want...)
			}
		}
	}
	check := func() {
		s.Helper()
		got, err := s.store.RecentErrors(s.ctx)
		require.NoError(s, err)
		equal(s, want, got)
	}
	check()
	require.NoError(s, s.store.RecordError(s.ctx, want[0]), "idempotent")
	check()
	s.reopen()
	check()
}

func (s *suite) workers() {
	for _, w := range []storage.Worker{
		{ID: "b", Host: "h1", StartedMs: 1, SeenMs: 2},
		{ID: "a", Host: "h2", StartedMs: 3, SeenMs: 4, Aggregates: true},
		{ID: "b", Host: "h1", StartedMs: 1, SeenMs: 5},
	} {
		require.NoError(s, s.store.Heartbeat(s.ctx, w, time.Hour))
	}
	check := func() {
		s.Helper()
		got, err := s.store.Workers(s.ctx)
		require.NoError(s, err)
		slices.SortFunc(got, func(a, b storage.Worker) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
		equal(s, []storage.Worker{{ID: "a", Host: "h2", StartedMs: 3, SeenMs: 4, Aggregates: true}, {ID: "b", Host: "h1", StartedMs: 1, SeenMs: 5}}, got)
	}
	check()
}

func (s *suite) workersExpire() {
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "short"}, time.Minute))
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "long"}, time.Hour))
	live := func() (ids []string) {
		got, err := s.store.Workers(s.ctx)
		require.NoError(s, err)
		for _, w := range got {
			ids = append(ids, w.ID)
		}
		slices.Sort(ids)
		return ids
	}
	s.advance(time.Minute - time.Millisecond)
	require.Equal(s, []string{"long", "short"}, live())
	s.advance(time.Millisecond)
	require.Equal(s, []string{"long"}, live())
	require.NoError(s, s.store.Expire(s.ctx, s.clk.Now().UnixMilli()))
	require.Equal(s, []string{"long"}, live())
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "short"}, time.Minute))
	require.Equal(s, []string{"long", "short"}, live())
}

// operations returns one call of every method that takes a context, by name.
func operations(st storage.Store, f storage.Fence, id blocks.ID) map[string]func(ctx context.Context) error {
	everything := blocks.Range{End: 1000}
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	mark := storage.Mark{TimeMs: at(0), ID: id}
	return map[string]func(ctx context.Context) error{
		"Write": func(ctx context.Context) error {
			return st.Write(ctx, &storage.Batch{
				Open:  []storage.SliceKey{rawSlice(0)},
				Marks: []storage.PlacedMark{{Partition: part, Mark: mark}},
				Raw:   []storage.RawChunk{{SliceMs: at(0), Chunk: storage.Chunk{ID: id, Data: []byte("x")}}},
				Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: rawSlice(0)}, Chunk: storage.Chunk{ID: id, Data: []byte("x")}}},
			})
		},
		"AddEpoch": func(ctx context.Context) error {
			return st.AddEpoch(ctx, blocks.Epoch{FromMs: at(1000), BlockSize: 64})
		},
		"CheckFit":  st.CheckFit,
		"SetPolicy": func(ctx context.Context) error { return st.SetPolicy(ctx, made().Policy) },
		"Expire":    func(ctx context.Context) error { return st.Expire(ctx, at(0)) },
		"ClaimSchedules": func(ctx context.Context) error {
			_, err := st.ClaimSchedules(ctx, "s", []storage.Schedule{{ID: 1, Labels: series("s", "m")}})
			return err
		},
		"SourceSchedules": func(ctx context.Context) error { return drain(st.SourceSchedules(ctx, "s")) },
		"Schedules":       func(ctx context.Context) error { return drain(st.Schedules(ctx, everything)) },
		"LeasedIDs":       func(ctx context.Context) error { _, err := st.LeasedIDs(ctx); return err },
		"LeaseIDs":        func(ctx context.Context) error { _, err := st.LeaseIDs(ctx, 1); return err },
		"AcquireShard": func(ctx context.Context) error {
			_, err := st.AcquireShard(ctx, 3, "w", time.Hour)
			return err
		},
		"RenewShard": func(ctx context.Context) error {
			return st.RenewShard(ctx, storage.Lease{Owner: "w", Fence: f}, time.Hour)
		},
		"ReleaseShard": func(ctx context.Context) error { return st.ReleaseShard(ctx, 3, "w") },
		"Slices": func(ctx context.Context) error {
			_, err := st.Slices(ctx, metric.Raw, at(0), at(1))
			return err
		},
		"Marks": func(ctx context.Context) error { return drain(st.Marks(ctx, part)) },
		"FirstMark": func(ctx context.Context) error {
			_, _, err := st.FirstMark(ctx, part, storage.MarkKey{})
			return err
		},
		"CacheBlock": func(ctx context.Context) error {
			_, err := st.CacheBlock(ctx, storage.CacheKey{SliceKey: rawSlice(0)})
			return err
		},
		"WriteRollups": func(ctx context.Context) error {
			return st.WriteRollups(ctx, f, 1, []metric.RollupRow{row(1, at(0), 1)})
		},
		"DeleteCacheBlock": func(ctx context.Context) error {
			return st.DeleteCacheBlock(ctx, f, storage.CacheKey{SliceKey: rawSlice(9)})
		},
		"DeleteMarks": func(ctx context.Context) error {
			return st.DeleteMarks(ctx, f, storage.IndexPartition{SliceKey: rawSlice(9)}, []storage.Mark{mark})
		},
		"CompleteSlice": func(ctx context.Context) error { return st.CompleteSlice(ctx, rawSlice(0)) },
		"RawChunks":     func(ctx context.Context) error { return drain(st.RawChunks(ctx, everything, at(0), at(1))) },
		"Rollups":       func(ctx context.Context) error { return drain(st.Rollups(ctx, 1, everything, at(0), at(1))) },
		"PutMetadata":   func(ctx context.Context) error { return st.PutMetadata(ctx, []metric.Metadata{{Name: "m"}}) },
		"Metadata":      func(ctx context.Context) error { return drain(st.Metadata(ctx)) },
		"RecordRun":     func(ctx context.Context) error { return st.RecordRun(ctx, storage.Run{StartedMs: at(0)}) },
		"RecentRuns":    func(ctx context.Context) error { _, err := st.RecentRuns(ctx, 10); return err },
		"RecordError": func(ctx context.Context) error {
			return st.RecordError(ctx, storage.ComponentError{Component: "c", TimeMs: at(0)})
		},
		"RecentErrors": func(ctx context.Context) error { _, err := st.RecentErrors(ctx); return err },
		"Heartbeat": func(ctx context.Context) error {
			return st.Heartbeat(ctx, storage.Worker{ID: "w"}, time.Hour)
		},
		"Workers":  func(ctx context.Context) error { _, err := st.Workers(ctx); return err },
		"RowFence": func(ctx context.Context) error { _, err := st.RowFence(ctx, 1, 1, at(0)); return err },
		"Leases":   func(ctx context.Context) error { _, err := st.Leases(ctx); return err },
	}
}

func drain[T any](seq iter.Seq2[T, error]) error {
	_, err := gather(seq)
	return err
}

func (s *suite) cancelled() {
	f := s.acquire(0, "w").Fence
	ops := operations(s.store, f, s.id())
	cancelled, cancel := context.WithCancel(s.ctx)
	cancel()
	for name, op := range ops {
		require.ErrorIs(s, op(cancelled), context.Canceled, name)
	}
	late, cancelLate := context.WithDeadline(s.ctx, time.Unix(0, 0))
	defer cancelLate()
	for name, op := range ops {
		err := op(late)
		require.True(s, errors.Is(err, storage.ErrTimeout) || errors.Is(err, context.DeadlineExceeded), "%s: %v", name, err)
	}
	// None of these calls took effect, or the effect does no harm; the store still works.
	for name, op := range operations(s.store, f, s.id()) {
		require.NoError(s, op(s.ctx), name)
	}
	// Cancelled in the middle of an iteration.
	part := storage.IndexPartition{SliceKey: rawSlice(20)}
	b := &storage.Batch{}
	for range 3000 {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: storage.Mark{ID: s.id(), LastError: string(make([]byte, 1000))}})
	}
	s.write(b)
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	seen := 0
	var last error
	for _, err := range s.store.Marks(ctx, part) {
		if last = err; err == nil {
			seen++
		}
		stop()
	}
	require.ErrorIs(s, last, context.Canceled)
	require.Less(s, seen, 3000)
}

func (s *suite) iteratorsBreakEarly() {
	f := s.acquire(0, "w").Fence
	for range 10 {
		for name, op := range operations(s.store, f, s.id()) {
			require.NoError(s, op(s.ctx), name)
		}
	}
	everything := blocks.Range{End: 1000}
	breakAtOnce(s.T, s.store.Marks(s.ctx, storage.IndexPartition{SliceKey: rawSlice(0)}))
	breakAtOnce(s.T, s.store.RawChunks(s.ctx, everything, at(0), at(1)))
	breakAtOnce(s.T, s.store.Rollups(s.ctx, 1, everything, at(0), at(1)))
	breakAtOnce(s.T, s.store.Schedules(s.ctx, everything))
	breakAtOnce(s.T, s.store.SourceSchedules(s.ctx, "s"))
	// An iterator that still holds something would keep the store from closing.
	s.reopen()
	breakAtOnce(s.T, s.store.Marks(s.ctx, storage.IndexPartition{SliceKey: rawSlice(0)}))
}

func breakAtOnce[T any](t *testing.T, seq iter.Seq2[T, error]) {
	t.Helper()
	for range 2 { // a sequence may be ranged over again
		n := 0
		for _, err := range seq {
			require.NoError(t, err)
			n++
			break
		}
		require.Equal(t, 1, n)
	}
}

// idempotent checks rule 6: everything done twice is the same as everything done once.
func (s *suite) idempotent() {
	f := s.acquire(0, "w").Fence
	id := s.id()
	run := func() (state []any) {
		for name, op := range operations(s.store, f, id) {
			if name != "LeaseIDs" && name != "AcquireShard" {
				require.NoError(s, op(s.ctx), name)
			}
		}
		runs, err := s.store.RecentRuns(s.ctx, 100)
		require.NoError(s, err)
		errs, err := s.store.RecentErrors(s.ctx)
		require.NoError(s, err)
		return []any{
			s.slices(metric.Raw, at(-100), at(100)),
			s.marks(storage.IndexPartition{SliceKey: rawSlice(0)}),
			s.cacheBlock(storage.CacheKey{SliceKey: rawSlice(0)}),
			s.rawChunks(0, 1000, at(-100), at(100)),
			s.rollups(1, 0, 1000, at(-100), at(100)),
			all(s, s.store.Schedules(s.ctx, blocks.Range{End: 1000})),
			s.sourceSchedules("s"), runs, errs, s.store.Settings(),
		}
	}
	once := run()
	equal(s, once, run())
	s.reopen()
	f = s.acquire(0, "w").Fence
	equal(s, once, run())
}

// concurrent runs ingest and a run at the same time, for the race detector.
func (s *suite) concurrent() {
	part := storage.IndexPartition{SliceKey: rawSlice(2)}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				start := metric.ScheduleID((w*50 + i) * 128)
				err := s.store.Write(s.ctx, &storage.Batch{
					Open:  []storage.SliceKey{rawSlice(2)},
					Marks: []storage.PlacedMark{{Partition: part, Mark: storage.Mark{Start: start, TimeMs: at(2), ID: s.id()}}},
					Raw:   []storage.RawChunk{{Group: blocks.Of(start, group).Start, SliceMs: at(2), Chunk: s.chunk("x")}},
					Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: rawSlice(2), Start: start}, Chunk: s.chunk("x")}},
				})
				if err != nil {
					s.Errorf("write: %v", err)
				}
			}
		})
	}
	ground := map[metric.ScheduleID]bool{}
	// pass is a run. It takes the lease anew, so that its fence covers what was written before.
	pass := func() error {
		l, err := s.store.AcquireShard(s.ctx, 0, "w", time.Hour)
		if err != nil {
			return err
		}
		for m, err := range s.store.Marks(s.ctx, part) {
			var done bool
			if err == nil {
				done, err = s.grind(l.Fence, part, m)
			}
			if err != nil {
				return err
			}
			if done {
				ground[m.Start] = true
			}
		}
		return nil
	}
	wg.Go(func() {
		for len(ground) < 200 && !s.Failed() {
			if err := pass(); err != nil {
				s.Errorf("run: %v", err)
			}
		}
	})
	wg.Wait()
	require.NoError(s, pass())
	require.Len(s, ground, 200)
	require.Empty(s, s.marks(part))
	require.Len(s, s.rawChunks(0, 1<<40, at(2), at(3)), 200)
	require.Len(s, s.rollups(1, 0, 1<<40, at(2), at(3)), 200)
}

// grind grinds a block if its chunk is there already: marks come before chunks.
func (s *suite) grind(f storage.Fence, p storage.IndexPartition, m storage.Mark) (done bool, err error) {
	raw := 0
	for _, err := range s.store.RawChunks(s.ctx, blocks.Range{Start: m.Start, End: m.Start + 1}, p.StartMs, p.StartMs+1) {
		if err != nil {
			return false, err
		}
		raw++
	}
	if raw == 0 {
		return false, nil
	}
	key := storage.CacheKey{SliceKey: p.SliceKey, Start: m.Start}
	return true, errors.Join(
		s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(m.Start, at(2), 1)}),
		s.store.DeleteCacheBlock(s.ctx, f, key),
		s.store.DeleteMarks(s.ctx, f, p, []storage.Mark{m}),
	)
}
