package storagetest

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// runsCases test storage.Runs.
var runsCases = []conformanceCase{
	{"CacheBlockTooLarge", (*suite).cacheBlockTooLarge, nil},
	{"PackRawIsExact", (*suite).packRawIsExact, nil},
	{"PackedAgain", (*suite).packedAgain, nil},
	{"PackedAtOnce", (*suite).packedAtOnce, nil},
	{"MarksAreOrderedOverPages", (*suite).marksAreOrderedOverPages, nil},
	{"MarksFromAKey", (*suite).marksFromAKey, nil},
	{"MarksDeletedWhileRead", (*suite).marksDeletedWhileRead, nil},
	{"NewestBegunIsKept", (*suite).newestBegunIsKept, nil},
	{"LeaseRenewed", (*suite).leaseRenewed, nil},
	{"LeaseExpires", (*suite).leaseExpires, []Missing{MissingTTL}},
	{"FenceIncreases", (*suite).fenceIncreases, nil},
	{"HigherFenceWins", (*suite).higherFenceWins, nil},
	{"OneShardsFenceSparesOthers", (*suite).oneShardsFenceSparesOthers, nil},
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

// rawChunk writes a raw chunk.
func (s *suite) rawChunk(group metric.ScheduleID, sliceMs int64, data string) storage.RawChunk {
	s.Helper()
	c := storage.RawChunk{Group: group, SliceMs: sliceMs, Chunk: s.chunk(data)}
	s.write(&storage.Batch{Raw: []storage.RawChunk{c}})
	return c
}

// packed returns a chunk that replaces others.
func packed(data string, parts ...storage.RawChunk) (storage.RawChunk, []blocks.ID) {
	var ids []blocks.ID
	for _, c := range parts {
		ids = append(ids, c.ID)
	}
	c := parts[0]
	c.Chunk = storage.Chunk{ID: blocks.PackedID(ids), Data: []byte(data)}
	return c, ids
}

// packRawIsExact: exactly the named chunks are gone, also if others have ids between theirs, and the new one stands where
// the last of them stood.
func (s *suite) packRawIsExact() {
	a, between, b := s.rawChunk(0, at(6), "a"), s.rawChunk(0, at(6), "between"), s.rawChunk(0, at(6), "b")
	later := s.rawChunk(0, at(6), "later")
	var others []storage.RawChunk
	for _, c := range []storage.RawChunk{a, b} {
		for _, o := range []storage.RawChunk{{Group: group, SliceMs: at(6)}, {SliceMs: at(5)}, {SliceMs: at(7)}, {SliceMs: at(30)}} {
			o.Chunk = storage.Chunk{ID: c.ID, Data: []byte("other")}
			others = append(others, o)
		}
	}
	s.write(&storage.Batch{Raw: others})
	whole, ids := packed("of a and b", a, b)
	f := s.acquire(0, "w").Fence
	check := func() {
		s.Helper()
		equal(s, []storage.RawChunk{between, whole, later}, s.rawChunks(0, group, at(6), at(7)))
		n := 0
		for _, span := range [][2]int{{5, 6}, {7, 8}, {30, 31}} {
			n += len(s.rawChunks(0, group, at(span[0]), at(span[1])))
		}
		require.Equal(s, len(others), n+len(s.rawChunks(group, 2*group, at(5), at(31))))
	}
	for range 2 {
		require.NoError(s, s.store.PackRaw(s.ctx, f, whole, ids))
		check()
	}
	s.reopen()
	check()
}

// packedAgain: a packed chunk is packed with what came later. A worker that was paused, and packs what it read before, hides
// nothing and brings nothing else back.
func (s *suite) packedAgain() {
	a, b := s.rawChunk(0, at(6), "a"), s.rawChunk(0, at(6), "b")
	first, ids := packed("of a and b", a, b)
	l1 := s.acquire(0, "a")
	require.NoError(s, s.store.PackRaw(s.ctx, l1.Fence, first, ids))
	late := s.rawChunk(0, at(6), "late")
	require.NoError(s, s.store.ReleaseShard(s.ctx, 0, "a"))
	s.advance(time.Second)
	l2 := s.acquire(0, "b")
	second, all := packed("of all", first, late)
	require.NoError(s, s.store.PackRaw(s.ctx, l2.Fence, second, all))
	if err := s.store.PackRaw(s.ctx, l1.Fence, first, ids); err != nil {
		require.ErrorIs(s, err, storage.ErrFenced)
	}
	got := s.rawChunks(0, group, at(6), at(7))
	equal(s, second, got[len(got)-1])
	for _, c := range got[:len(got)-1] {
		equal(s, first, c)
	}
}

// packedAtOnce: two workers pack chunks of one group and slice under one fence, none of them the other's. Writers have made ids of
// both within one millisecond, with the same count. Neither worker deletes what the other has packed.
func (s *suite) packedAtOnce() {
	var sets [][]storage.RawChunk
	for hour := range 16 {
		low, high := blocks.NewIDs(1), blocks.NewIDs(2)
		var first, second []storage.RawChunk
		for minute := range 6 {
			chunk := func(writer *blocks.IDs) storage.RawChunk {
				id := writer.Next(at(hour) + int64(minute)*60_000)
				return storage.RawChunk{SliceMs: at(hour), Chunk: storage.Chunk{ID: id, Data: []byte("x")}}
			}
			if minute < 3 {
				first = append(first, chunk(low))
			}
			if minute >= 2 {
				second = append(second, chunk(high))
			}
		}
		s.write(&storage.Batch{Raw: slices.Concat(first, second)})
		sets = append(sets, first, second)
	}
	s.advance(time.Second)
	f := s.acquire(0, "w").Fence
	var wg sync.WaitGroup
	errs := make([]error, len(sets))
	var want []storage.RawChunk
	for i, chunks := range sets {
		next, ids := packed("packed", chunks...)
		want = append(want, next)
		wg.Go(func() { errs[i] = s.store.PackRaw(s.ctx, f, next, ids) })
	}
	wg.Wait()
	require.NoError(s, errors.Join(errs...))
	equal(s, want, s.rawChunks(0, group, at(0), at(16)))
}

// placed puts marks into a partition.
func placed(p storage.IndexPartition, marks []storage.Mark) []storage.PlacedMark {
	out := make([]storage.PlacedMark, len(marks))
	for i, m := range marks {
		out[i] = storage.PlacedMark{Partition: p, Mark: m}
	}
	return out
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
		s.write(&storage.Batch{Marks: placed(part, batch)})
	}
	equal(s, want, s.marks(part))
	s.reopen()
	equal(s, want, s.marks(part))
	// Deleting them leaves a range of deleted keys, also in front of a mark that is left.
	f := s.acquire(1, "w").Fence
	require.NoError(s, s.store.DeleteMarks(s.ctx, f, part, want[:n-1]))
	equal(s, want[n-1:], s.marks(part))
}

func (s *suite) marksFromAKey() {
	part := storage.IndexPartition{SliceKey: rawSlice(4), Shard: 1}
	var marks []storage.Mark
	for i := range 12 {
		marks = append(marks, storage.Mark{Start: metric.ScheduleID(i / 4 * 128), TimeMs: at(i / 2 % 2), ID: s.id()})
	}
	look := func(from storage.MarkKey, want ...storage.Mark) {
		s.Helper()
		equal(s, want, all(s, s.store.Marks(s.ctx, part, from, 0)))
		for m, err := range s.store.Marks(s.ctx, part, from, 1) {
			require.NoError(s, err)
			require.Equal(s, want[0], m)
			break
		}
	}
	look(storage.MarkKey{})
	b := &storage.Batch{Marks: placed(part, marks)}
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
	for m, err := range s.store.Marks(s.ctx, part, storage.MarkKey{}, 0) {
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

func (s *suite) newestBegunIsKept() {
	newest := func(b metric.Bucket, want ...int64) {
		s.Helper()
		startMs, ok, err := s.store.NewestBegun(s.ctx, b)
		require.NoError(s, err)
		require.Equal(s, len(want) > 0, ok)
		if ok {
			require.Equal(s, want[0], startMs)
		}
	}
	begin := func(b metric.Bucket, startMs int64) {
		s.Helper()
		require.NoError(s, s.store.BeginSlice(s.ctx, storage.SliceKey{Bucket: b, StartMs: startMs}))
	}
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(5)}})
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(4)))
	newest(metric.Raw)
	// Buckets do not mix, and no order of the beginnings takes it back, nor does a time before 1970 or one far ahead.
	for _, startMs := range []int64{-at(1), 0, at(-9), at(3), at(2)} {
		begin(1, startMs)
	}
	newest(metric.Raw)
	newest(1, at(3))
	newest(2)
	begin(2, -at(1))
	newest(2, -at(1))
	for range 2 {
		begin(metric.Raw, at(24*365*200))
		begin(metric.Raw, at(7))
	}
	newest(metric.Raw, at(24*365*200))
	newest(1, at(3))
	s.reopen()
	newest(metric.Raw, at(24*365*200))
	newest(1, at(3))
	newest(2, -at(1))
	equal(s, []storage.SliceState{{SliceKey: rawSlice(4), Complete: true}, {SliceKey: rawSlice(5)}, {SliceKey: rawSlice(7), Begun: true}},
		s.slices(metric.Raw, at(0), at(24)), "it is no slice")
	states, err := s.store.Slices(s.ctx, 2, math.MinInt64, math.MaxInt64)
	require.NoError(s, err)
	equal(s, []storage.SliceState{{SliceKey: storage.SliceKey{Bucket: 2, StartMs: -at(1)}, Begun: true}}, states)
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
		Count: 1, Sum: v, Min: v, Max: v, First: v, Last: v, FirstMs: tMs + int64(v), LastMs: tMs + 2*int64(v), Sketch: []byte{byte(v)},
		Partial: int(v)%4 > 1, NonFinite: int(v)%8 > 3,
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
