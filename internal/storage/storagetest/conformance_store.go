package storagetest

import (
	"bytes"
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// storeCases test what a Store has of its own.
var storeCases = []conformanceCase{
	{"LargeBatch", (*suite).largeBatch, nil},
	{"ReceiverOwnsBytes", (*suite).receiverOwnsBytes, nil},
	{"NewestID", (*suite).newestID, []Missing{MissingNewestID}},
	{"EpochsLeaveWhatIsUsed", (*suite).epochsLeaveWhatIsUsed, nil},
	{"ExpireRemovesWhatIsOld", (*suite).expireRemovesWhatIsOld, []Missing{MissingExpire}},
	{"Policy", (*suite).policyIsChanged, nil},
	{"WholeFrom", (*suite).wholeFrom, nil},
	{"WholeFromWhatExpired", (*suite).wholeFromWhatExpired, []Missing{MissingExpire}},
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
			Group: blocks.BlockAt(k.Start, group).Start, SliceMs: at(5), Chunk: storage.Chunk{ID: s.id(), Data: data},
		})
	}
	s.write(b)
	s.reopen()
	for i := range n {
		equal(s, []storage.Chunk{b.Cache[i].Chunk}, s.cacheBlock(b.Cache[i].CacheKey))
	}
	require.Len(s, s.rawChunks(0, n*128, at(5), at(6)), n)
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

func (s *suite) newestID() {
	equal(s, blocks.ID{}, s.store.NewestID(), "of an empty store")
	write := func(ids ...blocks.ID) error {
		for _, id := range ids {
			b := &storage.Batch{Raw: []storage.RawChunk{{SliceMs: at(0), Chunk: storage.Chunk{ID: id, Data: []byte("x")}}}}
			if err := s.store.Write(s.ctx, b); err != nil {
				return err
			}
		}
		return nil
	}
	first, early, late := s.id(), s.id(), s.id()
	require.NoError(s, write(first, late))
	s.reopen()
	require.GreaterOrEqual(s, s.store.NewestID().Compare(late), 0)
	require.NoError(s, write(early)) // as a chunk that failed and is written again
	s.reopen()
	require.GreaterOrEqual(s, s.store.NewestID().Compare(late), 0, "after an earlier id was written")

	var all errgroup.Group
	for range 8 {
		ids := []blocks.ID{s.id(), s.id(), s.id()}
		late = ids[2]
		all.Go(func() error { return write(ids...) })
	}
	require.NoError(s, all.Wait())
	s.reopen()
	require.GreaterOrEqual(s, s.store.NewestID().Compare(late), 0, "after writes at the same time")
}

func (s *suite) policyIsChanged() {
	want := made()
	want.Policy = storage.Policy{
		Grace: 3 * time.Minute, Delay: 3 * time.Minute, AgeCap: 36 * time.Hour, FutureLimit: time.Minute,
		Retention:    storage.Retention{24 * time.Hour, 0, time.Hour, 17},
		SourceLabels: metric.SourceLabels{"rack", "host"},
	}
	equal(s, made(), s.store.Settings())
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
	require.NoError(s, s.store.Expire(s.ctx))
	require.LessOrEqual(s, s.store.WholeFrom(metric.Raw, now()), old, "nothing has been removed")

	s.setRetention(day)
	require.NoError(s, s.store.Expire(s.ctx))
	require.Empty(s, s.rawChunks(0, 1, old, young))
	s.setRetention(30 * day)
	for range 2 {
		whole := s.store.WholeFrom(metric.Raw, now())
		require.Greater(s, whole, old)
		require.LessOrEqual(s, whole, young)
		require.Len(s, s.rawChunks(0, 1, whole, young+1), 1)
		require.NoError(s, s.store.Expire(s.ctx))
		s.reopen()
	}
	s.advance(60 * day)
	equal(s, now()-(30*day).Milliseconds(), s.store.WholeFrom(metric.Raw, now()))
}

// epochsLeaveWhatIsUsed: the blocks of slices that were opened, or whose run has begun, are not cut anew.
func (s *suite) epochsLeaveWhatIsUsed() {
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(30), {Bucket: 1, StartMs: at(36)}}})
	require.NoError(s, s.store.BeginSlice(s.ctx, storage.SliceKey{Bucket: 2, StartMs: at(48)}))
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(20)))
	for _, h := range []int{-1000, 20, 21, 30, 31, 36, 37, 48} {
		require.ErrorIs(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(h), BlockSize: 64}), storage.ErrRefused, "%d", h)
	}
	require.Error(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(49), BlockSize: 0}))
	equal(s, made(), s.store.Settings())
	require.NoError(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(49), BlockSize: 64}))
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(60)}})
	require.NoError(s, s.store.AddEpoch(s.ctx, blocks.Epoch{FromMs: at(49), BlockSize: 64}), "it is there")
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
	require.NoError(s, s.store.BeginSlice(s.ctx, rawSlice(-31*24)))
	begun := func() {
		s.Helper()
		newest, ok, err := s.store.NewestBegun(s.ctx, metric.Raw)
		require.NoError(s, err)
		require.True(s, ok)
		require.Equal(s, at(-31*24), newest, "it stays when the record of the slice is removed")
	}
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(-31*24)))
	s.write(&storage.Batch{Open: []storage.SliceKey{rawSlice(-40 * 24)}}) // it stays, however old, as it is not complete
	require.NoError(s, s.store.CompleteSlice(s.ctx, rawSlice(-29*24)))
	check := func() {
		s.Helper()
		require.Empty(s, s.rawChunks(0, 2*group, at(-1000), at(-7*24-24)))
		require.Len(s, s.rawChunks(0, 2*group, at(0), at(1)), 2)
		equal(s, rows[2:], s.rollups(1, 0, 10, at(-1000*24), at(0)))
		equal(s, rows, s.rollups(2, 0, 10, at(-1000*24), at(0)))
		equal(s, []storage.SliceState{{SliceKey: rawSlice(-40 * 24)}, {SliceKey: rawSlice(-29 * 24), Complete: true}}, s.slices(metric.Raw, at(-1000), at(0)))
		begun()
	}
	for range 2 {
		s.expireAt(at(0))
		check()
	}
	s.reopen()
	check()
	// The exact border: the rows of a day expire together, when the last of them is too old.
	require.Empty(s, s.rawChunks(0, 1, at(-7*24-1), at(-7*24)))
	s.write(&storage.Batch{Raw: raw})
	s.expireAt(at(0) - 1)
	require.Len(s, s.rawChunks(0, 1, at(-7*24-1), at(-7*24)), 1)
}
