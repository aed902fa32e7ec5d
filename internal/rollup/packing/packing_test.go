package packing_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup/packing"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

func hour(n int) int64 { return noon.Add(time.Duration(n) * time.Hour).UnixMilli() }

func span(from, to int) packing.Span { return packing.Span{FromMs: hour(from), ToMs: hour(to)} }

// TestNext: the newest slice first, then the oldest, whole slices only, and each once.
func TestNext(t *testing.T) {
	l := metric.DefaultLadder()
	within := packing.RangeOf(l, hour(-4)-1, hour(0)+1)
	require.Equal(t, span(-4, 0), within.Span)
	require.Equal(t, span(-2, 0), packing.RangeOf(l, hour(-3)+1, hour(1)-1).Span)
	var got []int64
	var done packing.Done
	for {
		left := within.Left(done)
		s, ok := within.Next(done)
		require.Equal(t, left > 0, ok)
		if !ok {
			break
		}
		got = append(got, s.StartMs)
		done = done.With(packing.Span{FromMs: s.StartMs, ToMs: s.EndMs})
		require.Equal(t, left-1, within.Left(done))
	}
	require.Equal(t, []int64{hour(-1), hour(-4), hour(-3), hour(-2)}, got)
	require.Equal(t, packing.Done{span(-4, 0)}, done)
	for _, c := range []struct {
		name string
		done packing.Done
		next int
		left int
	}{
		{"one has ended since", packing.Done{span(-4, -1)}, -1, 1},
		{"two have ended since", packing.Done{span(-4, -2)}, -1, 2},
		{"late data has come", packing.Done{span(-4, -3), span(-2, 0)}, -3, 1},
		{"all that is done has expired", packing.Done{span(-9, -4)}, -1, 4},
		{"the clock was ahead, and older ones are left", packing.Done{span(-1, 5)}, -4, 3},
		{"the clock was so far ahead that nothing is done", packing.Done{span(1, 5)}, -1, 4},
	} {
		s, ok := within.Next(c.done)
		require.True(t, ok, c.name)
		require.Equal(t, hour(c.next), s.StartMs, c.name)
		require.Equal(t, c.left, within.Left(c.done), c.name)
	}
	_, ok := packing.RangeOf(l, hour(3), hour(0)).Next(nil)
	require.False(t, ok, "nothing is whole")
}

// TestDone compares spans with a set of hours.
func TestDone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var done packing.Done
	var set [20]bool
	for range 2000 {
		from := rng.IntN(19)
		to := from + 1 + rng.IntN(19-from)
		with := rng.IntN(2) == 0
		if with {
			done = done.With(span(from, to))
		} else {
			done = done.Without(span(from, to))
		}
		for n := from; n < to; n++ {
			set[n] = with
		}
		var want packing.Done
		for n := 0; n < len(set); n++ {
			if from := n; set[n] {
				for set[n] {
					n++
				}
				want = append(want, span(from, n))
			}
		}
		require.Equal(t, want, done)
	}
}

// TestKeep: workers keep their shards' progress side by side, also when both keep at once. Damaged progress is begun anew.
func TestKeep(t *testing.T) {
	clk := clock.NewSimulated(noon)
	store := storagetest.NewFaulty(storagetest.NewModel(storagetest.TestSettings(), nil, clk))
	read := func() packing.Progress {
		t.Helper()
		p, ok, err := packing.Read(t.Context(), store)
		require.NoError(t, err)
		require.True(t, ok)
		return p
	}
	_, ok, err := packing.Read(t.Context(), store)
	require.NoError(t, err)
	require.False(t, ok)

	keep := func(shard int, s packing.Span) error {
		return packing.Keep(t.Context(), store, map[int]packing.Done{shard: {s}}, hour(-9), hour(0))
	}
	require.NoError(t, keep(2, span(-2, -1)))
	store.Add(storagetest.Rule{Op: "PutDocument", Times: 1, Before: func() error { return keep(0, span(-3, -1)) }})
	require.NoError(t, keep(2, span(-2, 0)))
	p := read()
	require.Equal(t, packing.Done{span(-2, 0)}, p.Shard(2))
	require.Equal(t, packing.Done{span(-3, -1)}, p.Shard(0))
	require.Empty(t, p.Shard(1))
	require.Empty(t, p.Shard(3))
	require.Equal(t, hour(-9), p.OldestMs)

	doc, err := store.Document(t.Context(), storage.DocumentKey{Kind: "packing", ID: "progress"})
	require.NoError(t, err)
	doc.Version, doc.Body = doc.Version+1, []byte("{")
	require.NoError(t, store.PutDocument(t.Context(), doc))
	_, ok, err = packing.Read(t.Context(), store)
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, keep(1, span(-1, 0)))
	p = read()
	require.Empty(t, p.Shard(2))
	require.Equal(t, packing.Done{span(-1, 0)}, p.Shard(1))

	store.Fail("PutDocument", blocks.Range{}, 1, storage.ErrUnavailable)
	require.ErrorIs(t, keep(1, span(-2, 0)), storage.ErrUnavailable)
}

// TestOldest: what the store has in whole, or, if it keeps raw for ever, the first slice on record less the age cap.
func TestOldest(t *testing.T) {
	clk := clock.NewSimulated(noon)
	store := storagetest.NewModel(storagetest.TestSettings(), nil, clk)
	_, never := packing.RangeOf(metric.DefaultLadder(), oldest(t, store), hour(0)).Next(nil)
	require.False(t, never)
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: hour(-7)}, {StartMs: hour(0)}}}))
	require.Equal(t, hour(-7)-store.Settings().Policy.AgeCap.Milliseconds(), oldest(t, store))

	store = storagetest.NewModel(storagetest.TestSettings(), storage.Retention{5 * time.Hour}, clk)
	require.Equal(t, hour(-5), oldest(t, store))
}

func oldest(t *testing.T, store storage.Store) int64 {
	t.Helper()
	ms, err := packing.Oldest(t.Context(), store, hour(0))
	require.NoError(t, err)
	return ms
}
