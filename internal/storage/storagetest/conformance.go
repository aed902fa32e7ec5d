package storagetest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// conformanceCase is one test of the suite. It is skipped where something that it needs is missing.
type conformanceCase struct {
	name  string
	test  func(s *suite)
	needs []Missing
}

// Run checks a backend against the package comment and the doc comments of storage. Its tests are
// independent: each opens its own store. A history compares what the backend stores with the model. The others test what a
// history does not reach: calls at the same time, cancelled calls, pages, time, and fences that are superseded.
func Run(t *testing.T, open OpenFunc, missing ...Missing) {
	t.Helper()
	for _, tc := range slices.Concat(storeCases, registryCases, runsCases, readerCases, documentCases, itemCases, callCases) {
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
	t.Run("History", func(t *testing.T) {
		h := History{Steps: 200, NoExpire: slices.Contains(missing, MissingExpire), ManyWriters: slices.Contains(missing, MissingNewestID)}
		h.Run(t, OpenModel, open)
	})
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

// expireAt sets the clock and expires rows.
func (s *suite) expireAt(ms int64) {
	s.Helper()
	s.clk.Set(time.UnixMilli(ms))
	require.NoError(s, s.store.Expire(s.ctx))
}

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

// Kept yields copies of raw chunks, which callers may keep.
func Kept(chunks iter.Seq2[storage.RawChunk, error]) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		for c, err := range chunks {
			c.Data = bytes.Clone(c.Data)
			if !yield(c, err) {
				return
			}
		}
	}
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
	return all(s, s.store.Marks(s.ctx, p, storage.MarkKey{}, 0))
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
	return all(s, Kept(s.store.RawChunks(s.ctx, blocks.Range{Start: from, End: to}, fromMs, toMs)))
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
