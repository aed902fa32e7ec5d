package storagetest

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// callCases test what holds for all calls: contexts, iterators, repeats and concurrency.
var callCases = []conformanceCase{
	{"Cancelled", (*suite).cancelled, nil},
	{"IteratorsBreakEarly", (*suite).iteratorsBreakEarly, nil},
	{"Idempotent", (*suite).idempotent, nil},
}

// operations returns one call of every method that takes a context, by name. The id of the series that is claimed is leased.
func operations(st storage.Store, f storage.Fence, id blocks.ID, leased metric.ScheduleID) map[string]func(ctx context.Context) error {
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
		"Expire":    st.Expire,
		"ClaimSchedules": func(ctx context.Context) error {
			_, err := st.ClaimSchedules(ctx, ClaimsOf("s", []storage.Schedule{{ID: leased, Labels: series("s", "m")}}))
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
		"Marks": func(ctx context.Context) error { return drain(st.Marks(ctx, part, storage.MarkKey{}, 0)) },
		"CacheBlock": func(ctx context.Context) error {
			_, err := st.CacheBlock(ctx, storage.CacheKey{SliceKey: rawSlice(0)})
			return err
		},
		"WriteRollups": func(ctx context.Context) error {
			return st.WriteRollups(ctx, f, 1, []metric.RollupRow{row(1, at(0), 1)})
		},
		"PackRaw": func(ctx context.Context) error {
			parts := []blocks.ID{blocks.KeyID(at(0), 1)} // not that of Write, which may come before or after
			return st.PackRaw(ctx, f, storage.RawChunk{SliceMs: at(0), Chunk: storage.Chunk{ID: blocks.PackedID(parts), Data: []byte("p")}}, parts)
		},
		"DeleteCacheBlock": func(ctx context.Context) error {
			return st.DeleteCacheBlock(ctx, f, storage.CacheKey{SliceKey: rawSlice(9)})
		},
		"DeleteMarks": func(ctx context.Context) error {
			return st.DeleteMarks(ctx, f, storage.IndexPartition{SliceKey: rawSlice(9)}, []storage.Mark{mark})
		},
		"BeginSlice":    func(ctx context.Context) error { return st.BeginSlice(ctx, rawSlice(0)) },
		"NewestBegun":   func(ctx context.Context) error { _, _, err := st.NewestBegun(ctx, metric.Raw); return err },
		"CompleteSlice": func(ctx context.Context) error { return st.CompleteSlice(ctx, rawSlice(0)) },
		"RawChunks":     func(ctx context.Context) error { return drain(st.RawChunks(ctx, everything, at(0), at(1))) },
		"Rollups":       func(ctx context.Context) error { return drain(st.Rollups(ctx, 1, everything, at(0), at(1))) },
		"PutDocument":   func(ctx context.Context) error { return st.PutDocument(ctx, document(1, "x")) },
		"ForgetDocument": func(ctx context.Context) error {
			return st.ForgetDocument(ctx, storage.DocumentKey{Kind: docKey.Kind, ID: "nobody"}, 1)
		},
		"Document": func(ctx context.Context) error {
			if _, err := st.Document(ctx, docKey); !errors.Is(err, storage.ErrNoDocument) {
				return err
			}
			return nil
		},
		"Documents": func(ctx context.Context) error { return drain(st.Documents(ctx, docKey.Kind)) },
		"PutItems":  func(ctx context.Context) error { return st.PutItems(ctx, []storage.Item{item("a", "x")}) },
		"DeleteItems": func(ctx context.Context) error {
			return st.DeleteItems(ctx, []storage.ItemKey{item("b", "").ItemKey})
		},
		"Items":  func(ctx context.Context) error { return drain(st.Items(ctx, itemKind, "", "")) },
		"Leases": func(ctx context.Context) error { _, err := st.Leases(ctx); return err },
	}
}

// lease returns an id that nobody else has.
func (s *suite) lease() metric.ScheduleID {
	s.Helper()
	r, err := s.store.LeaseIDs(s.ctx, 1)
	require.NoError(s, err)
	return r.Start
}

func drain[T any](seq iter.Seq2[T, error]) error {
	_, err := gather(seq)
	return err
}

func (s *suite) cancelled() {
	leased := s.lease()
	f := s.acquire(0, "w").Fence
	ops := operations(s.store, f, s.id(), leased)
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
	for name, op := range operations(s.store, f, s.id(), leased) {
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
	for _, err := range s.store.Marks(ctx, part, storage.MarkKey{}, 0) {
		if last = err; err == nil {
			seen++
		}
		stop()
	}
	require.ErrorIs(s, last, context.Canceled)
	require.Less(s, seen, 3000)
}

func (s *suite) iteratorsBreakEarly() {
	leased := s.lease()
	f := s.acquire(0, "w").Fence
	for range 10 {
		for name, op := range operations(s.store, f, s.id(), leased) {
			require.NoError(s, op(s.ctx), name)
		}
	}
	everything := blocks.Range{End: 1000}
	breakAtOnce(s.T, s.store.Marks(s.ctx, storage.IndexPartition{SliceKey: rawSlice(0)}, storage.MarkKey{}, 0))
	breakAtOnce(s.T, s.store.RawChunks(s.ctx, everything, at(0), at(1)))
	breakAtOnce(s.T, s.store.Rollups(s.ctx, 1, everything, at(0), at(1)))
	breakAtOnce(s.T, s.store.Schedules(s.ctx, everything))
	breakAtOnce(s.T, s.store.SourceSchedules(s.ctx, "s"))
	breakAtOnce(s.T, s.store.Documents(s.ctx, docKey.Kind))
	breakAtOnce(s.T, s.store.Items(s.ctx, itemKind, "", ""))
	// An iterator that still holds something would keep the store from closing.
	s.reopen()
	breakAtOnce(s.T, s.store.Marks(s.ctx, storage.IndexPartition{SliceKey: rawSlice(0)}, storage.MarkKey{}, 0))
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
	leased := s.lease()
	f := s.acquire(0, "w").Fence
	id := s.id()
	run := func() (state []any) {
		for name, op := range operations(s.store, f, id, leased) {
			if name != "LeaseIDs" && name != "AcquireShard" {
				require.NoError(s, op(s.ctx), name)
			}
		}
		return []any{
			s.slices(metric.Raw, at(-100), at(100)),
			s.marks(storage.IndexPartition{SliceKey: rawSlice(0)}),
			s.cacheBlock(storage.CacheKey{SliceKey: rawSlice(0)}),
			s.rawChunks(0, 1000, at(-100), at(100)),
			s.rollups(1, 0, 1000, at(-100), at(100)),
			all(s, s.store.Schedules(s.ctx, blocks.Range{End: 1000})),
			all(s, s.store.Documents(s.ctx, docKey.Kind)), all(s, s.store.Items(s.ctx, itemKind, "", "")),
			s.sourceSchedules("s"), s.store.Settings(),
		}
	}
	once := run()
	equal(s, once, run())
	s.reopen()
	f = s.acquire(0, "w").Fence
	equal(s, once, run())
}
