package registry_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// ids returns all ids that the store has given to series, and requires that no two series share
// one.
func (f *fakeStore) ids(t *testing.T) map[metric.ScheduleID]string {
	t.Helper()
	out := map[metric.ScheduleID]string{}
	for source, all := range f.bySource {
		for key, sch := range all {
			require.NotContains(t, out, sch.ID, "two series share an id")
			out[sch.ID] = source + key
		}
	}
	return out
}

// labelled returns options for a registry beside something that knows the labels of all series.
func labelled(opts registry.Options) registry.Options {
	known := make(map[metric.ScheduleID]metric.Labels)
	opts.OnNew = func(all []storage.Schedule) {
		for _, s := range all {
			known[s.ID] = s.Labels
		}
	}
	opts.Labels = func(id metric.ScheduleID) metric.Labels { return known[id] }
	return opts
}

// Series of a source that the store has forgotten are claimed again before the source is used,
// under the same ids. The next lease lies above these ids.
func TestForgottenSeriesAreClaimedAgain(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, labelled(registry.Options{LeaseSize: 8}))
	for i, name := range []string{"a", "b"} {
		require.Equal(t, idRange(3*i, 3), register(t, source(t, r, name), series(t, "m", 0, 1, 2)))
	}
	was := f.ids(t)
	loads := f.loads
	f.forget()
	source(t, r, "a")
	source(t, r, "b")
	require.Equal(t, was, f.ids(t))
	require.Equal(t, loads+2, f.loads)
	source(t, r, "a")
	require.Equal(t, loads+2, f.loads, "once")

	other := registry.New(f, registry.Options{LeaseSize: 8})
	register(t, source(t, other, "c"), series(t, "m", seq(0, 8)...))
	register(t, source(t, r, "d"), series(t, "m", 0, 1))
	require.Len(t, f.ids(t), 16)
}

// Where nobody knows their labels, series that the store has forgotten are claimed when they report again, under the same
// ids. Until then no other series gets these.
func TestForgottenSeriesReportAgain(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8})
	require.Equal(t, idRange(0, 3), register(t, source(t, r, "a"), series(t, "m", 0, 1, 2)))
	f.forget()
	require.Equal(t, idRange(2, 1), register(t, source(t, r, "a"), series(t, "m", 2)))
	require.Equal(t, idRange(3, 2), register(t, source(t, r, "a"), series(t, "new", 0, 1)))
	f.doubts++ // nothing more is forgotten
	require.Equal(t, idRange(5, 3), register(t, source(t, r, "b"), series(t, "m", 0, 1, 2)))

	// A claim that fails keeps the id.
	boom := errors.New("boom")
	f.onClaim = func([]storage.Claim) error { return boom }
	_, err := source(t, r, "a").Register(t.Context(), series(t, "m", 1))
	require.ErrorIs(t, err, boom)
	f.onClaim = nil
	require.Equal(t, idRange(1, 1), register(t, source(t, r, "a"), series(t, "m", 1)))

	// Another process has claimed it meanwhile. Samples lie under the old id, so no other series gets it.
	other := registry.New(f, registry.Options{LeaseSize: 8})
	ids := register(t, source(t, other, "a"), series(t, "m", 0))
	require.Equal(t, ids, register(t, source(t, r, "a"), series(t, "m", 0)))
	register(t, source(t, r, "c"), series(t, "m", seq(0, 20)...))
	require.NotContains(t, f.ids(t), metric.ScheduleID(0))
}

// An id may have the labels of another series: of one that has got it since.
func TestForgottenSeriesWithOtherLabels(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8, Labels: func(metric.ScheduleID) metric.Labels { return series(t, "other", 0)[0] }})
	register(t, source(t, r, "a"), series(t, "m", 0))
	f.forget()
	source(t, r, "a")
	require.Empty(t, f.ids(t))
	require.Equal(t, idRange(0, 1), register(t, source(t, r, "a"), series(t, "m", 0)))
}

// If others have got the ids since, the series get new ids, and the rest of the lease is given up.
func TestForgottenIDsOfOthers(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8})
	a := source(t, r, "a")
	register(t, a, series(t, "m", 0, 1, 2))
	f.forget()
	other := registry.New(f, registry.Options{LeaseSize: 8})
	require.Equal(t, idRange(0, 5), register(t, source(t, other, "b"), series(t, "m", seq(0, 5)...)))
	f.onKeep = func(blocks.Range) error { return fmt.Errorf("x: %w", storage.ErrConflict) }

	require.Equal(t, idRange(8, 3), register(t, source(t, r, "a"), series(t, "m", 0, 1, 2)))
	require.Equal(t, idRange(11, 2), register(t, source(t, r, "c"), series(t, "m", 0, 1)))
	require.Len(t, f.ids(t), 10)
	// This also holds if no earlier source is used.
	f.forget()
	register(t, source(t, r, "e"), series(t, "m", 0))
	require.Len(t, f.ids(t), 1)
}

// While it is unknown what the store has forgotten, no id is handed out.
func TestForgottenAndAway(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8})
	register(t, source(t, r, "a"), series(t, "m", 0))
	f.forget()
	boom := errors.New("boom")
	f.onKeep = func(blocks.Range) error { return boom }
	_, err := r.Source(t.Context(), "a", false)
	require.ErrorIs(t, err, boom)
	s, err := r.Source(t.Context(), "new", false)
	require.NoError(t, err)
	_, err = s.Register(t.Context(), series(t, "m", 0))
	require.ErrorIs(t, err, boom)
	f.onKeep = nil
	require.Equal(t, idRange(0, 1), register(t, source(t, r, "a"), series(t, "m", 0)))
}

// If nothing is forgotten, nothing is claimed.
func TestNothingForgotten(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8})
	register(t, source(t, r, "a"), series(t, "m", 0, 1))
	f.doubts++
	f.onClaim = func([]storage.Claim) error { return errors.New("claimed") }
	require.Equal(t, idRange(0, 2), register(t, source(t, r, "a"), series(t, "m", 0, 1)))
}

// Free ids may span leases. If another process has got one of the leases since, the free ids of
// that lease are given up, wherever it lies among them, and no others.
func TestForgottenLeaseBetweenOthers(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{LeaseSize: 8})
	other := registry.New(f, registry.Options{LeaseSize: 32})
	require.Equal(t, idRange(0, 1), register(t, source(t, other, "first"), series(t, "m", 0)))
	require.Equal(t, idRange(32, 1), register(t, source(t, r, "a"), series(t, "m", 0)))
	// Ids come back when another process has claimed the series with its own. Then 33 to 63 are
	// free, of the leases from 32, 40 and 48 on.
	for i, n := range []int{8, 16} {
		name := fmt.Sprint("x", i)
		mine := source(t, r, name)
		register(t, source(t, other, name), series(t, "m", seq(0, n)...))
		register(t, mine, series(t, "m", seq(0, n)...))
	}
	require.Equal(t, 4, f.leases)

	f.forget()
	f.onKeep = func(l blocks.Range) error {
		if l.Contains(40) {
			return fmt.Errorf("x: %w", storage.ErrConflict)
		}
		return nil
	}
	require.Equal(t, idRange(33, 7), register(t, source(t, r, "y"), series(t, "m", seq(0, 7)...)))
	require.Equal(t, idRange(48, 16), register(t, source(t, r, "z"), series(t, "m", seq(0, 16)...)))
}
