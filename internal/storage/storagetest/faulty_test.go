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

func openModel(_ *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
	m := NewModel(s, r, clk)
	return m, func() storage.Store { return m.Reopen() }
}

// A wrapper without hooks changes nothing.
func TestFaultyConformance(t *testing.T) {
	Run(t, func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		m := NewModel(s, r, clk)
		return NewFaulty(m, nil), func() storage.Store { return NewFaulty(m.Reopen(), nil) }
	})
}

func newFaultyModel() *Faulty {
	return NewFaulty(NewModel(TestSettings(), nil, clock.NewSimulated(day0)), nil)
}

func TestFaultyFails(t *testing.T) {
	f := newFaultyModel()
	boom := errors.New("boom")
	f.Before(FailOn("WriteRollups", 2, boom))
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
	require.Equal(t, 6, f.Count())
	require.Equal(t, Call{"WriteRollups", rows}, f.Calls()[0])

	// An error behind the operation: it took effect.
	rows[0].Sum = 5
	f.After(FailOn("WriteRollups", 1, storage.ErrTimeout))
	require.ErrorIs(t, f.WriteRollups(t.Context(), 0, 1, rows), storage.ErrTimeout)
	require.Equal(t, rows, read())
}

func TestFaultyFailsWithinAnIterator(t *testing.T) {
	f := newFaultyModel()
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	b := &storage.Batch{}
	for i := range 5 {
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: part, Mark: storage.Mark{Start: metric.ScheduleID(i)}})
	}
	require.NoError(t, f.Write(t.Context(), b))
	f.Before(func(op string, detail any) error {
		if m, ok := detail.(storage.Mark); ok && op == "Marks.next" && m.Start == 3 {
			return storage.ErrTimeout
		}
		return nil
	})
	marks, err := gather(f.Marks(t.Context(), part))
	require.ErrorIs(t, err, storage.ErrTimeout)
	require.Len(t, marks, 3)
}

func TestFaultyCrashes(t *testing.T) {
	for _, done := range []bool{false, true} {
		f := newFaultyModel()
		f.CrashAt(3, done, "Heartbeat")
		var ok int
		for i := range 5 {
			_, err := f.LeasedIDs(t.Context())
			require.Equal(t, i >= 3, err != nil)
			if f.Heartbeat(t.Context(), storage.Worker{ID: string(rune('a' + i))}, time.Hour) == nil {
				ok++
			}
		}
		require.Equal(t, 2, ok)
		workers, err := f.inner.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, map[bool]int{false: 2, true: 3}[done])
	}
}

func TestHistoryOfModels(t *testing.T) {
	for seed := range uint64(3) {
		History{Seed: seed, Steps: 500}.Run(t, openModel, openModel)
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
