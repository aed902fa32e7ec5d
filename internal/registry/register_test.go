package registry_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

func newcomers(s *registry.Source, ls []metric.Labels) *registry.Newcomers {
	return &registry.Newcomers{Source: s, Series: ls}
}

// TestSourcesRegisterTogether: the new series of many sources are claimed at once, and told of at once. The ids of each
// source lie together.
func TestSourcesRegisterTogether(t *testing.T) {
	store := newFakeStore()
	var noted [][]storage.Schedule
	r := registry.New(store, registry.Options{OnNew: func(s []storage.Schedule) { noted = append(noted, s) }})
	known := source(t, r, "web-50")
	require.Equal(t, idRange(0, 2), register(t, known, series(t, "cpu", 0, 1)))
	store.claims, noted = 0, nil

	var all []*registry.Newcomers
	for i := range 100 {
		all = append(all, newcomers(source(t, r, fmt.Sprintf("web-%d", i)), series(t, "cpu", 0, 1, 2, 1)))
	}
	slices.Reverse(all)
	require.NoError(t, r.Register(t.Context(), all))
	require.Equal(t, 1, store.claims)
	require.Len(t, noted, 1)
	require.Len(t, noted[0], 100*3-2)
	for _, g := range all {
		require.Nil(t, g.Refused)
		require.Equal(t, g.IDs[1], g.IDs[3])
		require.Equal(t, g.IDs[0]+1, g.IDs[1])
		if g.Source != known {
			require.Equal(t, g.IDs[0]+2, g.IDs[2])
		}
		for i, ls := range g.Series {
			id, ok := g.Source.Lookup(ls.AppendKey(nil))
			require.True(t, ok)
			require.Equal(t, id, g.IDs[i])
		}
	}
}

// TestRegistrationsDoNotWaitForEachOther: two that have the same sources in other orders both end.
func TestRegistrationsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, enter := newFakeStore(), make(chan struct{})
		store.onClaim = func([]storage.Claim) error {
			<-enter
			return nil
		}
		r := registry.New(store, registry.Options{})
		x, y, z := source(t, r, "x"), source(t, r, "y"), source(t, r, "z")
		register := func(all ...*registry.Newcomers) { require.NoError(t, r.Register(t.Context(), all)) }
		var wg sync.WaitGroup
		// The second has x's turn and the third z's, if each begins with its first, while the first has y's.
		wg.Go(func() { register(newcomers(y, series(t, "m", 0))) })
		synctest.Wait()
		wg.Go(func() {
			register(newcomers(x, series(t, "m", 0)), newcomers(y, series(t, "m", 1)), newcomers(z, series(t, "m", 0)))
		})
		synctest.Wait()
		wg.Go(func() {
			register(newcomers(z, series(t, "m", 1)), newcomers(y, series(t, "m", 2)), newcomers(x, series(t, "m", 1)))
		})
		synctest.Wait()
		close(enter)
		wg.Wait()
	})
}

// TestLimitsOfEachSource: of sources that register together each has its own limit, and what is refused of one is not
// refused of another. The limit of the store holds for all.
func TestLimitsOfEachSource(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{MaxSeries: 8, MaxSeriesPerSource: 4})
	a := newcomers(source(t, r, "a"), series(t, "cpu", seq(0, 6)...))
	b := newcomers(source(t, r, "b"), series(t, "cpu", 0, 1))
	c := newcomers(source(t, r, "c"), series(t, "cpu", 0, 1, 2))
	require.NoError(t, r.Register(t.Context(), []*registry.Newcomers{a, b, c}))
	require.Equal(t, &registry.LimitError{Source: "a", Max: 4, Refused: 2}, a.Refused)
	require.Nil(t, b.Refused)
	require.Equal(t, &registry.LimitError{Max: 8, Refused: 1}, c.Refused)
	require.Equal(t, append(idRange(0, 4), registry.NoID, registry.NoID), a.IDs)
	require.Equal(t, idRange(4, 2), b.IDs)
	require.Equal(t, append(idRange(6, 2), registry.NoID), c.IDs)
}

// TestLimitsChange: limits that are set while there are series already hold from then on, as those that were set before.
func TestLimitsChange(t *testing.T) {
	r := registry.New(newFakeStore(), registry.Options{})
	refused := func(n *registry.Newcomers) *registry.LimitError {
		require.NoError(t, r.Register(t.Context(), []*registry.Newcomers{n}))
		return n.Refused
	}
	a, b := source(t, r, "a"), source(t, r, "b")
	require.Nil(t, refused(newcomers(a, series(t, "cpu", 0, 1, 2))))
	r.SetLimits(4, 0)
	require.Equal(t, &registry.LimitError{Max: 4, Refused: 1}, refused(newcomers(b, series(t, "cpu", 0, 1))))
	r.SetLimits(0, 3)
	require.Equal(t, &registry.LimitError{Source: "a", Max: 3, Refused: 1}, refused(newcomers(a, series(t, "cpu", 3))))
	require.Nil(t, refused(newcomers(b, series(t, "cpu", 1, 2))))
	r.SetLimits(7, 0)
	require.Equal(t, 7, r.MaxSeries())
	require.Equal(t, &registry.LimitError{Max: 7, Refused: 1}, refused(newcomers(a, series(t, "cpu", 3, 4))))
}

// TestSourcesFailTogether: a claim that fails leaves no series behind, and the next attempts use up no ids.
func TestSourcesFailTogether(t *testing.T) {
	for name, took := range map[string]bool{"nothing was stored": false, "all was stored": true} {
		t.Run(name, func(t *testing.T) {
			store := newFakeStore()
			noted := 0
			r := registry.New(store, registry.Options{MaxSeries: 6, OnNew: func(s []storage.Schedule) { noted += len(s) }})
			all := []*registry.Newcomers{
				newcomers(source(t, r, "a"), series(t, "cpu", 0, 1, 2)), newcomers(source(t, r, "b"), series(t, "cpu", 0, 1, 2)),
			}
			fail := func() error { return storage.ErrTimeout }
			if store.onClaim = func([]storage.Claim) error { return fail() }; took {
				store.onClaim, store.afterward = nil, fail
			}
			for range 10 {
				require.ErrorIs(t, r.Register(t.Context(), all), storage.ErrTimeout)
			}
			require.Zero(t, noted)
			require.Zero(t, all[0].Source.Len()+all[1].Source.Len())
			store.onClaim, store.afterward = nil, nil
			require.NoError(t, r.Register(t.Context(), all))
			require.Equal(t, idRange(0, 3), all[0].IDs)
			require.Equal(t, idRange(3, 3), all[1].IDs)
			require.Nil(t, all[1].Refused, "what failed was counted once")
			require.Equal(t, 6, noted)
			require.Equal(t, 1, store.leases)
		})
	}
}
