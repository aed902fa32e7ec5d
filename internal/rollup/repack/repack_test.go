package repack_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup/repack"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

func hour(n int) int64 { return noon.Add(time.Duration(n) * time.Hour).UnixMilli() }

func span(from, to int) repack.Span { return repack.Span{FromMs: hour(from), ToMs: hour(to)} }

// TestNext: newest first, whole slices only, what has ended since before the rest, and each once.
func TestNext(t *testing.T) {
	l := metric.DefaultLadder()
	within := repack.RangeOf(l, hour(-3)-1, hour(0)+1)
	require.Equal(t, span(-3, 0), within.Span)
	require.Equal(t, span(-2, 0), repack.RangeOf(l, hour(-3)+1, hour(1)-1).Span)
	var got []int64
	done := repack.Span{}
	for {
		left := within.Left(done)
		s, ok := within.Next(done)
		require.Equal(t, left > 0, ok)
		if !ok {
			break
		}
		got = append(got, s.StartMs)
		done = done.With(repack.Span{FromMs: s.StartMs, ToMs: s.EndMs})
		require.Equal(t, left-1, within.Left(done))
	}
	require.Equal(t, []int64{hour(-1), hour(-2), hour(-3)}, got)

	for _, c := range []struct {
		name string
		done repack.Span
		next int
		left int
	}{
		{"two slices have ended since", span(-3, -2), -2, 2},
		{"one has ended since, and older ones are left", span(-2, -1), -1, 2},
		{"all that is done has expired", span(-9, -3), -1, 3},
		{"the clock was ahead, and older ones are left", span(-1, 5), -2, 2},
		{"the clock was so far ahead that nothing is done", span(1, 5), -1, 3},
	} {
		s, ok := within.Next(c.done)
		require.True(t, ok, c.name)
		require.Equal(t, hour(c.next), s.StartMs, c.name)
		require.Equal(t, c.left, within.Left(c.done), c.name)
	}
	_, ok := repack.RangeOf(l, hour(3), hour(0)).Next(repack.Span{})
	require.False(t, ok, "nothing is whole")
}

// TestWith: what is done never claims a slice that is not.
func TestWith(t *testing.T) {
	require.Equal(t, span(-3, 0), span(-3, -1).With(span(-1, 0)))
	require.Equal(t, span(-3, 0), span(-2, 0).With(span(-3, -2)))
	require.Equal(t, span(-3, 0), span(-3, 0).With(span(-2, -1)))
	require.Equal(t, span(-1, 0), span(-3, -2).With(span(-1, 0)), "there is a gap")
	require.Equal(t, span(-5, -4), span(-3, -2).With(span(-5, -4)), "there is a gap")
	require.Equal(t, span(-3, -2), span(-3, -2).With(repack.Span{}))
	require.Equal(t, span(-3, -2), repack.Span{}.With(span(-3, -2)))
}

// TestKeep: workers keep their shards' progress side by side, also when both keep at once. Damaged progress is begun anew.
func TestKeep(t *testing.T) {
	clk := clock.NewSimulated(noon)
	store := storagetest.NewFaulty(storagetest.NewModel(storagetest.TestSettings(), nil, clk))
	read := func() repack.Progress {
		t.Helper()
		p, ok, err := repack.Read(t.Context(), store)
		require.NoError(t, err)
		require.True(t, ok)
		return p
	}
	_, ok, err := repack.Read(t.Context(), store)
	require.NoError(t, err)
	require.False(t, ok)

	keep := func(shard int, s repack.Span) error {
		return repack.Keep(t.Context(), store, map[int]repack.Span{shard: s}, hour(-9), hour(0))
	}
	require.NoError(t, keep(2, span(-2, -1)))
	store.Add(storagetest.Rule{Op: "PutDocument", Times: 1, Before: func() error { return keep(0, span(-3, -1)) }})
	require.NoError(t, keep(2, span(-1, 0)))
	p := read()
	require.Equal(t, span(-2, 0), p.Span(2))
	require.Equal(t, span(-3, -1), p.Span(0))
	require.Equal(t, repack.Span{}, p.Span(1))
	require.Equal(t, repack.Span{}, p.Span(3))
	require.Equal(t, hour(-9), p.OldestMs)

	doc, err := store.Document(t.Context(), storage.DocumentKey{Kind: "repack", ID: "progress"})
	require.NoError(t, err)
	doc.Version, doc.Body = doc.Version+1, []byte("{")
	require.NoError(t, store.PutDocument(t.Context(), doc))
	_, ok, err = repack.Read(t.Context(), store)
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, keep(1, span(-1, 0)))
	p = read()
	require.Equal(t, repack.Span{}, p.Span(2))
	require.Equal(t, span(-1, 0), p.Span(1))

	store.Fail("PutDocument", blocks.Range{}, 1, storage.ErrUnavailable)
	require.ErrorIs(t, keep(1, span(-2, 0)), storage.ErrUnavailable)
}

// TestOldest: what the store has in whole, or, if it keeps raw for ever, the first slice on record less the age cap.
func TestOldest(t *testing.T) {
	clk := clock.NewSimulated(noon)
	store := storagetest.NewModel(storagetest.TestSettings(), nil, clk)
	_, never := repack.RangeOf(metric.DefaultLadder(), oldest(t, store), hour(0)).Next(repack.Span{})
	require.False(t, never)
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: hour(-7)}, {StartMs: hour(0)}}}))
	require.Equal(t, hour(-7)-store.Settings().Policy.AgeCap.Milliseconds(), oldest(t, store))

	store = storagetest.NewModel(storagetest.TestSettings(), storage.Retention{5 * time.Hour}, clk)
	require.Equal(t, hour(-5), oldest(t, store))
}

func oldest(t *testing.T, store storage.Store) int64 {
	t.Helper()
	ms, err := repack.Oldest(t.Context(), store, hour(0))
	require.NoError(t, err)
	return ms
}
