package storagetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// annotationCases test storage.Annotations.
var annotationCases = []conformanceCase{
	{"Annotations", (*suite).annotations, nil},
	{"AnnotationsAreReplaced", (*suite).annotationsAreReplaced, nil},
	{"AnnotationsAreDeleted", (*suite).annotationsAreDeleted, nil},
	{"AnnotationsOverlap", (*suite).annotationsOverlap, nil},
	{"AnnotationsInOrder", (*suite).annotationsInOrder, nil},
	{"AnnotationLimits", (*suite).annotationLimits, nil},
	{"AnnotationWriters", (*suite).annotationWriters, nil},
	{"AnnotationsOfLaterWriters", (*suite).annotationsOfLaterWriters, nil},
	{"AnnotationsExpire", (*suite).annotationsExpire, []Missing{MissingTTL, MissingExpire}},
}

// note returns an annotation that begins and ends at these hours.
func note(id string, from, to int) storage.Annotation {
	return storage.Annotation{
		ID: id, StartMs: at(from), EndMs: at(to), Text: "text of " + id, Tags: []string{"release", "team=web"},
		Selector: `up{job="x"}`, Author: "ann", UpdatedMs: at(1),
	}
}

func (s *suite) annotate(as ...storage.Annotation) {
	s.Helper()
	require.NoError(s, s.store.PutAnnotations(s.ctx, as, 0))
}

// notes requires that exactly these annotations overlap a range.
func (s *suite) notes(fromMs, toMs int64, want ...storage.Annotation) {
	s.Helper()
	equal(s, want, all(s, s.store.Annotations(s.ctx, fromMs, toMs)), "from ", fromMs, " to ", toMs)
}

const (
	everFrom = math.MinInt64
	everTo   = math.MaxInt64
)

func (s *suite) annotations() {
	s.notes(everFrom, everTo)
	s.annotate()
	full := note("full", 1, 2)
	bare := storage.Annotation{ID: "b \x00 é", StartMs: at(1), EndMs: at(1)}
	odd := storage.Annotation{
		ID: "odd", StartMs: -5, EndMs: -5, Text: "\x00\n<script>", Tags: []string{"", "a,b", "é"}, Selector: "{", Author: "\t", UpdatedMs: -1,
	}
	s.annotate(full, bare, odd)
	for range 2 {
		s.notes(everFrom, everTo, odd, bare, full)
		s.notes(at(0), at(3), bare, full)
		got := all(s, s.store.Annotations(s.ctx, at(2), at(3)))
		got[0].Tags[0] = "spoilt"
		s.annotate(full, bare, odd)
		s.reopen()
	}
	s.notes(at(3), at(0)) // backwards
	s.notes(everTo, everFrom)
	require.NoError(s, s.store.Expire(s.ctx))
	s.notes(everFrom, everTo, odd, bare, full)
}

// annotationsAreReplaced: ID and StartMs identify an annotation, however long it was and becomes.
func (s *suite) annotationsAreReplaced() {
	const year = 365 * 24
	lengths := []int{0, 1, 24, 25, 29 * 24, 30*24 + 1, year, 5 * year}
	for i, from := range lengths {
		for j, to := range lengths {
			id := fmt.Sprintf("%d-%d", i, j)
			before, after := note(id, 0, from), note(id, 0, to)
			after.Text, after.Tags, after.Selector, after.Author = "new", nil, "", ""
			s.annotate(before)
			s.notes(everFrom, everTo, before)
			s.annotate(after)
			s.notes(everFrom, everTo, after)
			for _, h := range lengths {
				if h <= to {
					s.notes(at(h), at(h), after)
				} else {
					s.notes(at(h), at(h))
				}
			}
			require.NoError(s, s.store.DeleteAnnotations(s.ctx, []storage.AnnotationKey{after.Key()}))
			s.notes(everFrom, everTo)
		}
	}
	// Others with the same id, or the same start, are others. Within a call the last counts.
	a, sameID, sameStart := note("a", 0, 1), note("a", 1, 1), note("b", 0, 1)
	old := a
	old.Text, old.EndMs = "old", at(1000)
	s.annotate(old, sameStart, a, sameID)
	s.notes(everFrom, everTo, a, sameStart, sameID)
	s.notes(at(500), at(500))
}

func (s *suite) annotationsAreDeleted() {
	a, b, long := note("a", 0, 1), note("b", 0, 1), note("a", -1, 100*24)
	s.annotate(a, b, long)
	keyed := func(want ...storage.Annotation) {
		s.Helper()
		keys := []storage.AnnotationKey{b.Key(), {StartMs: at(0)}, {StartMs: at(1), ID: "a"}, {StartMs: at(-1), ID: "a"}, a.Key(), b.Key()}
		equal(s, want, all(s, s.store.AnnotationsAt(s.ctx, keys)))
	}
	keyed(b, long, a, b)
	require.NoError(s, s.store.DeleteAnnotations(s.ctx, nil))
	for range 2 {
		require.NoError(s, s.store.DeleteAnnotations(s.ctx, []storage.AnnotationKey{a.Key(), {StartMs: at(5), EndMs: at(5), ID: "a"}}))
		s.notes(everFrom, everTo, long, b)
		keyed(b, long, b)
		s.reopen()
	}
	// The end in the key is only a hint.
	k := long.Key()
	k.EndMs = k.StartMs
	require.NoError(s, s.store.DeleteAnnotations(s.ctx, []storage.AnnotationKey{k}))
	s.notes(everFrom, everTo, b)
	s.notes(at(90*24), at(90*24))
	s.advance(time.Second)
	s.annotate(a, long)
	s.notes(everFrom, everTo, long, a, b)
	s.notes(at(90*24), at(90*24), long)
}

// annotationsOverlap looks at each edge: of the range, of days, of the spans that are stored apart.
func (s *suite) annotationsOverlap() {
	const day = 24
	var put []storage.Annotation
	for i, length := range []int64{0, 1, dayMs - 1, dayMs, dayMs + 1, 30*dayMs - 1, 30 * dayMs, 30*dayMs + 1, 365*dayMs - 1, 365 * dayMs, 365*dayMs + 1, 3000 * dayMs} {
		for j, startMs := range []int64{at(0), at(0) - 1, at(12), at(-40 * day), at(-31*day) - 1, -1, 0} {
			a := note(fmt.Sprintf("%02d-%d", i, j), 0, 0)
			a.StartMs, a.EndMs = startMs, startMs+length
			put = append(put, a)
		}
	}
	s.annotate(put...)
	slices.SortFunc(put, byTime)
	overlapping := func(fromMs, toMs int64) (want []storage.Annotation) {
		for _, a := range put {
			if a.Overlaps(fromMs, toMs) {
				want = append(want, a)
			}
		}
		return want
	}
	times := map[int64]bool{}
	for _, a := range put {
		for _, edge := range []int64{a.StartMs, a.EndMs} {
			times[edge] = true
		}
	}
	for t := range times {
		for _, d := range []int64{-1, 0, 1} {
			s.notes(t+d, t+d, overlapping(t+d, t+d)...)
		}
		s.notes(t, t+dayMs, overlapping(t, t+dayMs)...)
		s.notes(t-30*dayMs-1, t-1, overlapping(t-30*dayMs-1, t-1)...)
		s.notes(everFrom, t-1, overlapping(everFrom, t-1)...)
		s.notes(t+1, everTo, overlapping(t+1, everTo)...)
	}
	s.notes(everFrom, everTo, put...)
	// A range of many years, with little in it.
	s.notes(at(-40*365*day), at(200*365*day), overlapping(at(-40*365*day), at(200*365*day))...)
}

// annotationsInOrder yields more than a page, of days and of long spans.
func (s *suite) annotationsInOrder() {
	var put []storage.Annotation
	for i := range 1500 {
		a := note(fmt.Sprintf("%04d", (i*7919)%1500), -(i*37)%700, 0)
		a.EndMs = a.StartMs + []int64{0, hourMs, 2 * dayMs, 40 * dayMs, 400 * dayMs}[i%5]
		a.Text = strings.Repeat("x", 400)
		put = append(put, a)
	}
	s.annotate(put...)
	slices.SortFunc(put, byTime)
	s.notes(everFrom, everTo, put...)
	from := at(-100)
	s.notes(from, everTo, slices.DeleteFunc(put, func(a storage.Annotation) bool { return a.EndMs < from })...)
	breakAtOnce(s.T, s.store.Annotations(s.ctx, from, everTo))
}

func (s *suite) annotationLimits() {
	largest := note(strings.Repeat("é", storage.MaxAnnotationID/2), 0, 1)
	largest.StartMs, largest.EndMs = -storage.MaxAnnotationMs, storage.MaxAnnotationMs
	largest.Text, largest.Selector, largest.Author = strings.Repeat("é", storage.MaxAnnotationText/2), strings.Repeat("s", storage.MaxAnnotationSelector), strings.Repeat("a", storage.MaxAnnotationAuthor)
	largest.Tags = nil
	for i := range storage.MaxAnnotationTags {
		largest.Tags = append(largest.Tags, fmt.Sprintf("%0*d", storage.MaxAnnotationTag, i))
	}
	first, last := note("x", 0, 0), note("x", 0, 0)
	first.StartMs, first.EndMs = -storage.MaxAnnotationMs, -storage.MaxAnnotationMs
	last.StartMs, last.EndMs = storage.MaxAnnotationMs, storage.MaxAnnotationMs
	s.annotate(largest, first, last)
	s.notes(everFrom, everTo, first, largest, last)
	s.notes(at(0), at(0), largest)
	require.NoError(s, s.store.DeleteAnnotations(s.ctx, []storage.AnnotationKey{largest.Key(), first.Key(), last.Key()}))
	for name, change := range map[string]func(a *storage.Annotation){
		"no id":             func(a *storage.Annotation) { a.ID = "" },
		"long id":           func(a *storage.Annotation) { a.ID = strings.Repeat("x", storage.MaxAnnotationID+1) },
		"long text":         func(a *storage.Annotation) { a.Text = strings.Repeat("x", storage.MaxAnnotationText+1) },
		"long selector":     func(a *storage.Annotation) { a.Selector = strings.Repeat("x", storage.MaxAnnotationSelector+1) },
		"long author":       func(a *storage.Annotation) { a.Author = strings.Repeat("x", storage.MaxAnnotationAuthor+1) },
		"long tag":          func(a *storage.Annotation) { a.Tags = []string{strings.Repeat("x", storage.MaxAnnotationTag+1)} },
		"many tags":         func(a *storage.Annotation) { a.Tags = append(slices.Clone(largest.Tags), "x") },
		"unsorted tags":     func(a *storage.Annotation) { a.Tags = []string{"b", "a"} },
		"a tag twice":       func(a *storage.Annotation) { a.Tags = []string{"a", "a"} },
		"backwards":         func(a *storage.Annotation) { a.EndMs = a.StartMs - 1 },
		"too early":         func(a *storage.Annotation) { a.StartMs = -storage.MaxAnnotationMs - 1 },
		"too late":          func(a *storage.Annotation) { a.EndMs = storage.MaxAnnotationMs + 1 },
		"id no UTF-8":       func(a *storage.Annotation) { a.ID = "\xff" },
		"text no UTF-8":     func(a *storage.Annotation) { a.Text = "\xff" },
		"tag no UTF-8":      func(a *storage.Annotation) { a.Tags = []string{"\xff"} },
		"selector no UTF-8": func(a *storage.Annotation) { a.Selector = "\xff" },
		"author no UTF-8":   func(a *storage.Annotation) { a.Author = "\xff" },
	} {
		bad := note("bad", 0, 0)
		change(&bad)
		require.ErrorIs(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{note("good", 0, 0), bad}, 0), storage.ErrRefused, name)
	}
	require.ErrorIs(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{note("good", 0, 0)}, -1), storage.ErrRefused)
	s.notes(everFrom, everTo)
}

// annotationWriters: of several writers of an annotation one wins, as a whole, however long each makes it.
func (s *suite) annotationWriters() {
	const ids = 40
	ends := []int{0, 5 * 24, 100 * 24, 1000 * 24}
	var wg sync.WaitGroup
	for w, end := range ends {
		wg.Go(func() {
			for i := range ids {
				a := note(fmt.Sprintf("%02d", i), 0, end)
				a.Text = fmt.Sprint(w)
				assert.NoError(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{a}, 0))
			}
		})
	}
	wg.Wait()
	got := all(s, s.store.Annotations(s.ctx, everFrom, everTo))
	require.Len(s, got, ids)
	for i, a := range got {
		want := note(fmt.Sprintf("%02d", i), 0, 0)
		w := slices.Index(ends, int((a.EndMs-at(0))/hourMs))
		want.EndMs, want.Text = a.EndMs, fmt.Sprint(w)
		equal(s, want, a)
	}
	for _, end := range ends {
		var want []storage.Annotation
		for _, a := range got {
			if a.EndMs >= at(end) {
				want = append(want, a)
			}
		}
		s.notes(at(end), at(end), want...)
	}
}

// annotationsOfLaterWriters: what comes later counts, also when it is of another process whose clock is behind.
func (s *suite) annotationsOfLaterWriters() {
	a, b := note("a", 0, 1), note("b", 0, 3*24)
	s.annotate(a, b)
	s.clk.Jump(-20 * time.Second)
	s.reopen()
	a.Text, a.EndMs = "corrected", at(50*24)
	s.annotate(a)
	s.notes(everFrom, everTo, a, b)
	s.clk.Jump(-2 * time.Second)
	s.reopen()
	require.NoError(s, s.store.DeleteAnnotations(s.ctx, []storage.AnnotationKey{b.Key()}))
	s.notes(everFrom, everTo, a)
	s.notes(at(49*24), at(49*24), a)
}

func (s *suite) annotationsExpire() {
	short, long, ever := note("short", 0, 0), note("long", 0, 100*24), note("ever", 0, 0)
	require.NoError(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{short}, time.Hour))
	require.NoError(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{long}, 2*time.Hour))
	s.annotate(ever)
	s.advance(time.Hour - time.Millisecond)
	require.NoError(s, s.store.Expire(s.ctx))
	s.notes(everFrom, everTo, ever, long, short)
	s.advance(time.Millisecond)
	for range 2 {
		s.notes(everFrom, everTo, ever, long)
		equal(s, []storage.Annotation{long}, all(s, s.store.AnnotationsAt(s.ctx, []storage.AnnotationKey{short.Key(), long.Key()})))
		require.NoError(s, s.store.Expire(s.ctx))
	}
	// A later put has a ttl of its own.
	s.annotate(short)
	require.NoError(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{long}, 3*time.Hour))
	require.NoError(s, s.store.PutAnnotations(s.ctx, []storage.Annotation{ever}, time.Minute))
	s.advance(2 * time.Hour)
	s.reopen()
	require.NoError(s, s.store.Expire(s.ctx))
	s.notes(everFrom, everTo, long, short)
	s.notes(at(99*24), at(99*24), long)
	s.advance(time.Hour)
	require.NoError(s, s.store.Expire(s.ctx))
	s.notes(everFrom, everTo, short)
	s.notes(at(99*24), at(99*24))
	s.clk.Set(s.clk.Now().Add(-2 * time.Hour)) // what is gone is gone
	s.notes(everFrom, everTo, short)
}
