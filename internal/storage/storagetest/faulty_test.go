package storagetest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// A wrapper without rules changes nothing.
func TestFaultyConformance(t *testing.T) {
	Run(t, func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		m := NewModel(s, r, clk)
		return NewFaulty(m), func() storage.Store { return NewFaulty(m.Reopen()) }
	})
}

func newFaultyModel() *Faulty {
	return NewFaulty(NewModel(TestSettings(), nil, clock.NewSimulated(day0)))
}

func TestFaultyFails(t *testing.T) {
	f := newFaultyModel()
	boom := errors.New("boom")
	f.Fail("WriteRollups", blocks.Range{}, 2, boom)
	rows := []metric.RollupRow{row(1, at(0), 1)}
	read := func() []metric.RollupRow {
		return all(t, f.Rollups(t.Context(), 1, blocks.Range{End: 10}, at(0), at(1)))
	}
	for range 2 {
		require.ErrorIs(t, f.WriteRollups(t.Context(), 0, 1, rows), boom)
		require.Empty(t, read())
	}
	require.NoError(t, f.WriteRollups(t.Context(), 0, 1, rows))
	require.Equal(t, rows, read())
	require.Equal(t, 3, f.Count("WriteRollups"))
	require.Len(t, f.Log(), 6)
	require.Equal(t, Step{Op: "WriteRollups", Detail: rows}, f.Log()[0])

	// The operation took effect, and then failed.
	rows[0].Sum = 5
	f.Add(Rule{Op: "WriteRollups", Times: 1, After: func() error { return storage.ErrTimeout }})
	require.ErrorIs(t, f.WriteRollups(t.Context(), 0, 1, rows), storage.ErrTimeout)
	require.Equal(t, rows, read())
}

// What comes with an error of gaps is passed on, as a store returns it.
func TestFaultyPassesOnGaps(t *testing.T) {
	days := NewDays(NewModel(TestSettings(), nil, clock.NewSimulated(day0)), day0.UnixMilli())
	f := NewFaulty(days)
	next := rawSlice(0)
	next.StartMs += modelDayMs
	require.NoError(t, f.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{rawSlice(0), next}}))
	days.Away(DayAt(next), storage.ErrUnavailable)
	states, err := f.Slices(t.Context(), metric.Raw, at(0), next.StartMs+modelDayMs)
	var gaps *storage.GapsError
	require.ErrorAs(t, err, &gaps)
	require.Len(t, gaps.Gaps, 1)
	require.Len(t, states, 1)
	require.Equal(t, at(0), states[0].StartMs)
}

// A write that landed on one copy has its marks, but no chunks until they surface.
func TestFaultyLands(t *testing.T) {
	f := newFaultyModel()
	f.Land(1, storage.ErrTimeout)
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	b := &storage.Batch{
		Marks: []storage.PlacedMark{{Partition: part}},
		Raw:   []storage.RawChunk{{SliceMs: at(0), Chunk: storage.Chunk{Data: []byte("a")}}},
		Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: rawSlice(0)}, Chunk: storage.Chunk{Data: []byte("a")}}},
	}
	raw := func() []storage.RawChunk {
		return all(t, Kept(f.RawChunks(t.Context(), blocks.Range{End: 10}, at(0), at(1))))
	}
	require.ErrorIs(t, f.Write(t.Context(), b), storage.ErrTimeout)
	require.Len(t, all(t, f.Marks(t.Context(), part)), 1)
	require.Empty(t, raw())
	require.Equal(t, 1, f.Landed())
	require.NoError(t, f.Surface(t.Context()))
	require.Equal(t, b.Raw, raw())
	require.Zero(t, f.Landed())
	cached, err := f.CacheBlock(t.Context(), b.Cache[0].CacheKey)
	require.NoError(t, err)
	require.Empty(t, cached)
	require.NoError(t, f.Write(t.Context(), b))
	require.Equal(t, b.Raw, raw())
}

func TestFaultyFailsWithinAnIterator(t *testing.T) {
	f := newFaultyModel()
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	b := &storage.Batch{}
	for i := range 5 {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: storage.Mark{Start: metric.ScheduleID(i)}})
	}
	require.NoError(t, f.Write(t.Context(), b))
	f.Fail("Marks.next", blocks.Range{Start: 3, End: 4}, 1, storage.ErrTimeout)
	marks, err := gather(f.Marks(t.Context(), part))
	require.ErrorIs(t, err, storage.ErrTimeout)
	require.Len(t, marks, 3)
}

func TestFaultyCrashes(t *testing.T) {
	for _, done := range []bool{false, true} {
		f := newFaultyModel()
		n := 0
		third := func() error {
			if n++; n < 3 {
				return nil
			}
			f.CrashAt(1) // the next step is none any more
			return ErrCrashed
		}
		rule := Rule{Op: "Heartbeat", Times: -1, Before: third}
		if done {
			rule.Before, rule.After = nil, third
		}
		f.Add(rule)
		var ok int
		for i := range 5 {
			_, err := f.LeasedIDs(t.Context())
			require.Equal(t, i >= 3, err != nil)
			if f.Heartbeat(t.Context(), storage.Worker{ID: string(rune('a' + i))}, time.Hour) == nil {
				ok++
			}
		}
		require.Equal(t, 2, ok)
		workers, err := f.Store.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, map[bool]int{false: 2, true: 3}[done])
	}
}

// A rule may select steps of a kind: those of ingest or of a run, and those about a block.
func TestFaultyPicks(t *testing.T) {
	f := newFaultyModel()
	boom := errors.New("boom")
	fail := func() error { return boom }
	f.Add(Rule{Op: "Write", Unfenced: true, Times: 1, Before: fail})
	f.Add(Rule{Op: "Write", Fenced: true, Block: blocks.Range{Start: 4, End: 8}, Times: -1, Before: fail})
	write := func(fence storage.Fence, start metric.ScheduleID) error {
		return f.Write(t.Context(), &storage.Batch{Fence: fence, Marks: []storage.PlacedMark{{Mark: storage.Mark{Start: start}}}})
	}
	require.NoError(t, write(1, 0))
	require.ErrorIs(t, write(1, 4), boom)
	require.ErrorIs(t, write(0, 0), boom)
	require.NoError(t, write(0, 4), "once only")
	require.ErrorIs(t, write(1, 7), boom)
	f.Heal()
	require.NoError(t, write(1, 4))
}

// A torn write is one step per row, and a crash between steps leaves the first rows.
func TestFaultyTears(t *testing.T) {
	f := newFaultyModel()
	f.Tear(true)
	f.CrashAt(3)
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	err := f.Write(t.Context(), &storage.Batch{
		Open:  []storage.SliceKey{rawSlice(0)},
		Marks: []storage.PlacedMark{{Partition: part, Mark: storage.Mark{Start: 1}}, {Partition: part, Mark: storage.Mark{Start: 2}}},
	})
	require.ErrorIs(t, err, ErrCrashed)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.True(t, f.Crashed())
	require.Equal(t, 2, f.Count("Write"))
	require.Equal(t, []storage.Mark{{Start: 1}}, all(t, f.Store.Marks(t.Context(), part)))
	f.CrashAt(-1)
	require.Len(t, all(t, f.Marks(t.Context(), part)), 1)
}

func TestHistoryOfModels(t *testing.T) {
	for seed := range uint64(3) {
		History{Seed: seed, Steps: 500}.Run(t, OpenModel, OpenModel)
	}
}

// differing is a store with one bug, which a history must find.
type differing struct{ *Model }

func (d differing) Settings() storage.Settings {
	s := d.Model.Settings()
	s.GroupSize++
	return s
}

func TestErrorKind(t *testing.T) {
	require.NoError(t, errorKind(nil))
	require.Equal(t, storage.ErrFenced, errorKind(errors.Join(errors.New("x"), storage.ErrFenced)))
	require.EqualError(t, errorKind(errors.New("x")), "another error")
	require.NotEmpty(t, diffOf(TestSettings(), differing{NewModel(TestSettings(), nil, clock.System{})}.Settings()))
}
