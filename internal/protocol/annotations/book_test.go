package annotations

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var noon = time.Date(2025, 11, 30, 12, 0, 0, 0, time.UTC)

const hourMs = dayMs / 24

// hour returns the time so many hours after noon.
func hour(n int) int64 { return noon.UnixMilli() + int64(n)*hourMs }

func newBook(keep time.Duration) (*Book, *storagetest.Faulty, *clock.Simulated) {
	clk := clock.NewSimulated(noon)
	store := storagetest.NewFaulty(storagetest.NewModel(storagetest.TestSettings(), nil, clk))
	return New(store, clk, keep), store, clk
}

// note returns an annotation that begins and ends at these hours.
func note(id string, from, to int) Annotation {
	return Annotation{
		ID: id, StartMs: hour(from), EndMs: hour(to), Text: "text of " + id, Tags: []string{"release", "team=web"},
		Selector: `up{job="x"}`, Author: "ann", UpdatedMs: hour(1),
	}
}

func put(t *testing.T, b *Book, all ...Annotation) {
	t.Helper()
	require.NoError(t, b.Put(t.Context(), drafts(all...)))
}

func drafts(all ...Annotation) []Draft {
	out := make([]Draft, len(all))
	for i := range all {
		out[i].Annotation = all[i]
	}
	return out
}

func remove(t *testing.T, b *Book, id string, startMs int64, was bool) {
	t.Helper()
	got, err := b.Delete(t.Context(), id, startMs)
	require.NoError(t, err)
	require.Equal(t, was, got)
}

func collect(t *testing.T, seq iter.Seq2[Annotation, error]) (out []Annotation) {
	t.Helper()
	for a, err := range seq {
		require.NoError(t, err)
		out = append(out, a)
	}
	return out
}

const (
	everFrom = math.MinInt64
	everTo   = math.MaxInt64
)

// has requires that exactly these annotations overlap a range.
func has(t *testing.T, b *Book, fromMs, toMs int64, want ...Annotation) {
	t.Helper()
	require.Equal(t, want, collect(t, b.overlapping(t.Context(), fromMs, toMs)), "from %d to %d", fromMs, toMs)
}

func inOrder(all []Annotation) []Annotation {
	slices.SortFunc(all, func(x, y Annotation) int { return x.position().compare(y.position()) })
	return all
}

func TestBook(t *testing.T) {
	b, _, _ := newBook(0)
	has(t, b, everFrom, everTo)
	put(t, b)
	full, bare := note("full", 1, 2), Annotation{ID: "b \x00 é", StartMs: hour(1), EndMs: hour(1)}
	odd := Annotation{ID: " o", StartMs: -5, EndMs: -5, Text: "\x00\n<script>\u2028", Tags: []string{"", "a,b", "é"}, Selector: "{", Author: "\t", UpdatedMs: -1}
	put(t, b, full, bare, odd)
	has(t, b, everFrom, everTo, odd, bare, full)
	has(t, b, hour(0), hour(3), bare, full)
	has(t, b, hour(3), hour(0)) // backwards
	has(t, b, everTo, everFrom)
	for range 2 {
		remove(t, b, bare.ID, hour(1), true)
		remove(t, b, bare.ID, hour(1), false)
		remove(t, b, bare.ID, hour(2), false)
		remove(t, b, "not\xffvalid", hour(1), false)
		has(t, b, everFrom, everTo, odd, full)
		put(t, b, bare)
	}
	require.Equal(t, []Annotation{bare, full}, collect(t, b.Replaced(t.Context(), drafts(bare, note("full", 2, 2), full))))
	require.Equal(t, []Annotation{bare, full}, collect(t, b.Starting(t.Context(), hour(1), hour(2))))
	require.Empty(t, collect(t, b.Starting(t.Context(), hour(1)+1, hour(2))))
}

// TestReplaced: ID and StartMs identify an annotation, however long it was and becomes.
func TestReplaced(t *testing.T) {
	b, store, _ := newBook(0)
	lengths := []int{0, 1, 24, 25, 1000}
	for i, from := range lengths {
		for j, to := range lengths {
			id := fmt.Sprintf("%d-%d", i, j)
			before, after := note(id, 0, from), note(id, 0, to)
			after.Text, after.Tags, after.Selector, after.Author, after.UpdatedMs = "new", nil, "", "", 0 // as an import has it
			put(t, b, before)
			has(t, b, everFrom, everTo, before)
			put(t, b, after)
			has(t, b, everFrom, everTo, after)
			for _, h := range lengths {
				if h <= to {
					has(t, b, hour(h), hour(h), after)
				} else {
					has(t, b, hour(h), hour(h))
				}
			}
			remove(t, b, id, hour(0), true)
			has(t, b, everFrom, everTo)
		}
	}
	// Others with the same id, or the same start, are others. Within a call the last counts.
	a, sameID, sameStart := note("a", 0, 1), note("a", 1, 1), note("b", 0, 1)
	old := a
	old.Text, old.EndMs = "old", hour(1000)
	put(t, b, old, sameStart, a, sameID)
	has(t, b, everFrom, everTo, a, sameStart, sameID)
	has(t, b, hour(500), hour(500))

	// What is in both places, since a put was broken off, is shown as it was updated last, and is all deleted.
	later := old
	later.UpdatedMs++
	store.Fail("DeleteItems", blocks.Range{}, 1, storage.ErrTimeout)
	require.ErrorIs(t, b.Put(t.Context(), drafts(later)), storage.ErrTimeout)
	has(t, b, hour(0), hour(0), later, sameStart)
	require.Equal(t, []Annotation{later}, collect(t, b.Replaced(t.Context(), drafts(a))))
	put(t, b, later)
	has(t, b, everFrom, everTo, later, sameStart, sameID)
	store.Fail("DeleteItems", blocks.Range{}, 1, storage.ErrTimeout)
	require.Error(t, b.Put(t.Context(), drafts(a)))
	remove(t, b, "a", hour(0), true)
	has(t, b, everFrom, everTo, sameStart, sameID)
}

// TestMoved: an annotation that is moved is at one place, and a later one may lie where it was.
func TestMoved(t *testing.T) {
	b, _, _ := newBook(0)
	a, long := note("a", 0, 1), note("long", 0, 100)
	put(t, b, a, long)
	moved, movedLong, next := note("a", 900, 901), note("long", 900, 901), note("a", 0, 2)
	require.NoError(t, b.Put(t.Context(), []Draft{
		{Annotation: moved, Moved: true, WasMs: hour(0)}, {Annotation: movedLong, Moved: true, WasMs: hour(0)}, {Annotation: next},
	}))
	has(t, b, everFrom, everTo, next, moved, movedLong)
}

// TestOverlap looks at each edge: of the range, of months, and of a day.
func TestOverlap(t *testing.T) {
	b, _, _ := newBook(0)
	const day = 24
	month := time.Date(2025, 12, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	var all []Annotation
	for i, length := range []int64{0, 1, dayMs - 1, dayMs, dayMs + 1, 30 * dayMs, 3000 * dayMs} {
		for j, startMs := range []int64{hour(0), hour(0) - 1, hour(12), month - 1, month, hour(-40 * day), -1, 0} {
			a := note(fmt.Sprintf("%02d-%d", i, j), 0, 0)
			a.StartMs, a.EndMs = startMs, startMs+length
			all = append(all, a)
		}
	}
	put(t, b, all...)
	inOrder(all)
	check := func(fromMs, toMs int64) {
		t.Helper()
		var want []Annotation
		for _, a := range all {
			if a.StartMs <= toMs && a.EndMs >= fromMs {
				want = append(want, a)
			}
		}
		has(t, b, fromMs, toMs, want...)
	}
	for _, a := range all {
		for _, at := range []int64{a.StartMs, a.EndMs} {
			for _, d := range []int64{-1, 0, 1} {
				check(at+d, at+d)
			}
			check(at, at+dayMs)
			check(at-30*dayMs-1, at-1)
			check(everFrom, at-1)
			check(at+1, everTo)
		}
	}
	check(everFrom, everTo)
}

// TestPlaces: a read looks into the months of its time that have annotations, and at those longer than a day.
func TestPlaces(t *testing.T) {
	b, store, _ := newBook(0)
	for month := range 24 {
		put(t, b, note("a", month*31*24, month*31*24), note("long", month*31*24, month*31*24+25))
	}
	first, last := Annotation{ID: "x", StartMs: -farthestMs, EndMs: -farthestMs}, Annotation{ID: "x", StartMs: farthestMs, EndMs: farthestMs}
	put(t, b, first, last)
	read := func(fromMs, toMs int64) (kinds []string) {
		store.Forget()
		require.NotEmpty(t, collect(t, b.overlapping(t.Context(), fromMs, toMs)))
		for _, step := range store.Log() {
			kinds = append(kinds, step.Detail.(string))
		}
		slices.Sort(kinds)
		return kinds
	}
	require.Equal(t, []string{"annotation.302025-11", "annotation.long", "annotation.months"}, read(hour(0), hour(11)))
	require.Equal(t, []string{"annotation.302025-11", "annotation.302025-12", "annotation.long", "annotation.months"}, read(hour(24), hour(31*24)))
	require.Len(t, read(everFrom, everTo), 24+2+2)
	has(t, b, everFrom, -farthestMs, first)
	has(t, b, farthestMs, everTo, last)
	for i, ms := range []int64{-farthestMs, -62135596800001, -1, 0, 1e15, farthestMs} {
		require.Len(t, monthOf(ms), len("302025-11"))
		require.Len(t, startID(ms), 18)
		require.True(t, i == 0 || monthOf(-farthestMs) < monthOf(ms) && startID(ms-1) < startID(ms))
	}
}

// TestInOrder yields more than a page of the store.
func TestInOrder(t *testing.T) {
	b, _, _ := newBook(0)
	var all []Annotation
	for i := range 1500 {
		a := note(fmt.Sprintf("%04d", (i*7919)%1500), -(i*37)%2000, 0)
		a.EndMs = a.StartMs + []int64{0, hourMs, 2 * dayMs, 40 * dayMs, 400 * dayMs}[i%5]
		all = append(all, a)
	}
	put(t, b, all...)
	inOrder(all)
	has(t, b, everFrom, everTo, all...)
	for _, err := range b.overlapping(t.Context(), everFrom, everTo) {
		require.NoError(t, err)
		break
	}
}

// TestLimits: each text, number and time has a bound, and what is within all of them can be stored.
func TestLimits(t *testing.T) {
	b, _, _ := newBook(0)
	largest := note(strings.Repeat("é", maxID/2), 0, 1)
	largest.StartMs, largest.EndMs = -farthestMs, farthestMs
	largest.Text, largest.Selector, largest.Author = strings.Repeat("<", maxText), strings.Repeat("s", maxSelector), strings.Repeat("a", maxAuthor)
	largest.Tags = nil
	for i := range maxTags {
		largest.Tags = append(largest.Tags, fmt.Sprintf("%0*d", maxTag, i))
	}
	require.NoError(t, largest.fault())
	put(t, b, largest)
	has(t, b, hour(0), hour(0), largest)
	for name, change := range map[string]func(a *Annotation){
		"no id":             func(a *Annotation) { a.ID = "" },
		"long id":           func(a *Annotation) { a.ID = strings.Repeat("x", maxID+1) },
		"long text":         func(a *Annotation) { a.Text = strings.Repeat("x", maxText+1) },
		"long selector":     func(a *Annotation) { a.Selector = strings.Repeat("x", maxSelector+1) },
		"long author":       func(a *Annotation) { a.Author = strings.Repeat("x", maxAuthor+1) },
		"long tag":          func(a *Annotation) { a.Tags = []string{strings.Repeat("x", maxTag+1)} },
		"many tags":         func(a *Annotation) { a.Tags = append(slices.Clone(largest.Tags), "x") },
		"backwards":         func(a *Annotation) { a.EndMs = a.StartMs - 1 },
		"too early":         func(a *Annotation) { a.StartMs = -farthestMs - 1 },
		"too late":          func(a *Annotation) { a.EndMs = farthestMs + 1 },
		"id no UTF-8":       func(a *Annotation) { a.ID = "\xff" },
		"text no UTF-8":     func(a *Annotation) { a.Text = "\xff" },
		"tag no UTF-8":      func(a *Annotation) { a.Tags = []string{"\xff"} },
		"selector no UTF-8": func(a *Annotation) { a.Selector = "\xff" },
		"author no UTF-8":   func(a *Annotation) { a.Author = "\xff" },
	} {
		bad := note("bad", 0, 0)
		change(&bad)
		require.Error(t, bad.fault(), name)
		why, err := NewChecks(nil).Check(t.Context(), &bad)
		require.NoError(t, err)
		require.Equal(t, bad.fault().Error(), why)
	}
}

// TestWriters: of several writers of an annotation one wins, as a whole, however long each makes it.
func TestWriters(t *testing.T) {
	b, _, _ := newBook(0)
	const ids = 40
	ends := []int{0, 5 * 24, 1, 1000 * 24}
	var wg sync.WaitGroup
	for w, end := range ends {
		wg.Go(func() {
			for i := range ids {
				a := note(fmt.Sprintf("%02d", i), 0, end)
				a.Text = fmt.Sprint(w)
				assert.NoError(t, b.Put(t.Context(), drafts(a)))
			}
		})
	}
	wg.Wait()
	got := collect(t, b.overlapping(t.Context(), everFrom, everTo))
	require.Len(t, got, ids)
	for i, a := range got {
		want := note(fmt.Sprintf("%02d", i), 0, 0)
		w := slices.Index(ends, int((a.EndMs-hour(0))/hourMs))
		want.EndMs, want.Text = a.EndMs, fmt.Sprint(w)
		require.Equal(t, want, a)
	}
	for _, end := range ends {
		var want []Annotation
		for _, a := range got {
			if a.EndMs >= hour(end) {
				want = append(want, a)
			}
		}
		has(t, b, hour(end), hour(end), want...)
	}
}

// TestKept: an annotation goes when its time is over, and others of its month, put later or for longer, stay found.
func TestKept(t *testing.T) {
	b, store, clk := newBook(0)
	ever, short, long := note("ever", 0, 0), note("short", 0, 0), note("long", 0, 100)
	put(t, b, ever)
	brief := New(store, clk, time.Hour)
	put(t, brief, short, long)
	clk.Set(noon.Add(time.Hour - time.Millisecond))
	has(t, b, everFrom, everTo, ever, long, short)
	clk.Set(noon.Add(time.Hour))
	require.NoError(t, store.Expire(t.Context()))
	has(t, b, everFrom, everTo, ever)
}

// TestUnreadable: an annotation that somebody has written by hand, and that cannot be read, is named. A put or a delete
// replaces it.
func TestUnreadable(t *testing.T) {
	b, store, _ := newBook(0)
	for _, hours := range []int{1, 100} {
		a := note("a", 0, hours)
		key := a.position().near()
		if hours > 24 {
			key = a.position().long()
		}
		spoil := func() {
			put(t, b, a)
			require.NoError(t, store.PutItems(t.Context(), []storage.Item{{ItemKey: key, Value: []byte("{")}}))
		}
		spoil()
		var err error
		for _, err = range b.overlapping(t.Context(), hour(0), hour(0)) {
		}
		require.ErrorIs(t, err, storage.ErrCorrupt)
		require.ErrorContains(t, err, `annotation "a" that starts at 2025-11-30T12:00:00Z, which a put or a delete replaces`)
		require.Empty(t, collect(t, b.Replaced(t.Context(), drafts(a))))
		put(t, b, note("a", 0, 101-hours)) // of the other length
		has(t, b, everFrom, everTo, note("a", 0, 101-hours))
		remove(t, b, "a", hour(0), true)
		spoil()
		remove(t, b, "a", hour(0), true)
		has(t, b, everFrom, everTo)
	}
}

// unsure is a store that does not confirm the clock.
type unsure struct{ *storagetest.Faulty }

func (unsure) Confirms(context.Context, clock.Reading) error { return storage.ErrUnavailable }

// TestClockRefused: nothing is changed by a clock that the store refuses, also what is kept for ever.
func TestClockRefused(t *testing.T) {
	b, store, clk := newBook(0)
	a := note("a", 0, 1)
	put(t, b, a)
	refused := New(unsure{store}, clk, 0)
	require.ErrorIs(t, refused.Put(t.Context(), drafts(note("b", 0, 1))), storage.ErrUnavailable)
	_, err := refused.Delete(t.Context(), "a", hour(0))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	has(t, refused, everFrom, everTo, a)
}
