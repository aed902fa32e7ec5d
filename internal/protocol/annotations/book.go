package annotations

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

const (
	// defaultLimit and maxLimit are numbers of annotations that Find returns at most.
	defaultLimit = 1000
	maxLimit     = 10_000
	// maxFound bounds the bytes of the annotations that Find returns.
	maxFound = 8 << 20
)

// Book has the annotations of a store: remarks about a time, beside the series. Its methods may be called concurrently.
type Book struct {
	store storage.Annotations
	clock clock.Clock
	keep  time.Duration
}

// New returns the annotations of a store. A put keeps an annotation for keep; 0 is for ever.
func New(store storage.Annotations, clk clock.Clock, keep time.Duration) *Book {
	return &Book{store: store, clock: clk, keep: keep}
}

// NowMs returns the time that counts as now, in Unix ms.
func (b *Book) NowMs() int64 { return clock.NowMs(b.clock) }

// Draft is an annotation as somebody gives it.
type Draft struct {
	storage.Annotation
	// Moved means that the annotation was at WasMs before, from where it is deleted once it is stored.
	Moved bool
	WasMs int64
}

// Complete fills in what the author need not give: an id, the author and the time of the update.
func (b *Book) Complete(d *Draft, author string) {
	if d.ID == "" {
		d.ID = strings.ToLower(rand.Text()[:16])
	}
	d.Author, d.UpdatedMs = author, b.NowMs()
}

// Checks checks the annotations of one request, or of one batch of it.
type Checks struct {
	turn      func(context.Context) (give func(), err error)
	selectors query.SelectorChecks
}

// NewChecks returns the checks of one request. All selectors together may take what one request may have parsed; see
// query.Admit. turn waits for a turn at heavy work: it is taken for each regular expression.
func NewChecks(turn func(context.Context) (give func(), err error)) *Checks {
	return &Checks{turn: turn}
}

// Check puts the tags of an annotation in order, and returns why it cannot be stored, "" if it can. After an error
// nobody knows: there is no room or no turn, or ctx is done.
func (c *Checks) Check(ctx context.Context, a *storage.Annotation) (why string, err error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	slices.Sort(a.Tags)
	a.Tags = slices.Compact(a.Tags)
	switch err := a.Check(); {
	case err != nil:
		return err.Error(), nil
	case a.Text == "" && len(a.Tags) == 0:
		return "it has neither a text nor a tag", nil
	case len(a.Tags) > 0 && a.Tags[0] == "":
		return "a tag is empty", nil
	case a.Selector == "":
		return "", nil
	}
	if strings.Contains(a.Selector, "~") {
		give, err := c.turn(ctx)
		if err != nil {
			return "", err
		}
		defer give()
	}
	err = c.selectors.Check(ctx, a.Selector)
	if wrong := (*query.RequestError)(nil); errors.As(err, &wrong) {
		return "the selector: " + err.Error(), nil
	}
	return "", err
}

// Moves returns whether the draft takes the annotation away from where it was.
func (d *Draft) Moves() bool { return d.Moved && d.WasMs != d.StartMs }

// Repeats returns whether the draft is what is stored already, but for the time of the update.
func (d *Draft) Repeats(old *storage.Annotation) bool {
	return d.EndMs == old.EndMs && d.Text == old.Text && d.Selector == old.Selector && d.Author == old.Author && slices.Equal(d.Tags, old.Tags)
}

// Put stores drafts that are complete, as if one after the other: a later one may lie where an earlier one was moved
// from. They are durable when Put returns nil. One with the ID and StartMs of another replaces it. After an error some
// may be stored; it may be repeated.
func (b *Book) Put(ctx context.Context, drafts []Draft) error {
	all := make([]storage.Annotation, len(drafts))
	left := make(map[storage.AnnotationKey]bool)
	for i := range drafts {
		d := &drafts[i]
		all[i] = d.Annotation
		delete(left, storage.AnnotationKey{ID: d.ID, StartMs: d.StartMs, EndMs: d.StartMs})
		if d.Moves() {
			left[storage.AnnotationKey{ID: d.ID, StartMs: d.WasMs, EndMs: d.WasMs}] = true
		}
	}
	if err := b.store.PutAnnotations(ctx, all, b.keep); err != nil || len(left) == 0 {
		return err
	}
	return b.store.DeleteAnnotations(ctx, slices.Collect(maps.Keys(left))) // afterwards: better twice than not at all
}

// Delete deletes the annotation with an id that starts at startMs. It returns whether there was one.
func (b *Book) Delete(ctx context.Context, id string, startMs int64) (bool, error) {
	keys := []storage.AnnotationKey{{ID: id, StartMs: startMs, EndMs: startMs}}
	found := false
	for a, err := range b.store.AnnotationsAt(ctx, keys) {
		if err != nil {
			return false, err
		}
		keys[0], found = a.Key(), true
	}
	// One that cannot be read is deleted, too.
	return found, b.store.DeleteAnnotations(ctx, keys)
}

// Replaced yields what drafts that are complete would replace, in their order.
func (b *Book) Replaced(ctx context.Context, drafts []Draft) iter.Seq2[storage.Annotation, error] {
	keys := make([]storage.AnnotationKey, len(drafts))
	for i := range drafts {
		keys[i] = drafts[i].Key()
	}
	return b.store.AnnotationsAt(ctx, keys)
}

// Starting yields all annotations that start in [fromMs, toMs), by StartMs, then ID.
func (b *Book) Starting(ctx context.Context, fromMs, toMs int64) iter.Seq2[storage.Annotation, error] {
	return func(yield func(storage.Annotation, error) bool) {
		for a, err := range b.store.Annotations(ctx, fromMs, toMs-1) {
			if err == nil && a.StartMs < fromMs {
				continue
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// Query says which annotations to find.
type Query struct {
	// FromMs and ToMs bound the time, both included: an annotation that overlaps it is found.
	FromMs, ToMs int64
	// Tags are all on the annotation.
	Tags []string
	// Text is a part of the annotation's text; the case of letters does not matter.
	Text string
	// Limit is the number of annotations to return at most: the last ones. It is at most maxLimit.
	Limit int
	// Before, unless nil, leaves out the annotation at this position, and all behind it.
	Before *Position
}

// Position is a place in the order of annotations.
type Position struct {
	StartMs int64
	ID      string
}

// Found is the answer to a Query.
type Found struct {
	// Annotations are ordered by StartMs, then ID.
	Annotations []storage.Annotation
	// More means that others come before them, which Position{} of the first leads to.
	More bool
}

// Find returns the last annotations that a query asks for. It holds no more of them than it returns, and charges them
// to the request. The time that it takes grows with the annotations in the query's time.
func (b *Book) Find(ctx context.Context, q Query) (Found, error) {
	text := strings.ToLower(q.Text)
	if q.Before != nil { // which may start before the range, and so may what comes before it
		q.ToMs = min(q.ToMs, max(q.FromMs, q.Before.StartMs))
	}
	var kept []storage.Annotation // the first begin of them are dropped
	begin, held, charged := 0, int64(0), int64(0)
	more := false
	for a, err := range b.store.Annotations(ctx, q.FromMs, q.ToMs) {
		if err != nil {
			return Found{}, err
		}
		if q.Before != nil && !q.Before.follows(&a) {
			break
		}
		if !q.matches(&a, text) {
			continue
		}
		size := sizeOf(&a)
		for len(kept) > begin && (len(kept)-begin >= q.Limit || held+size > maxFound) {
			held -= sizeOf(&kept[begin])
			kept[begin] = storage.Annotation{}
			begin, more = begin+1, true
		}
		if begin > q.Limit {
			kept = append(kept[:0], kept[begin:]...)
			begin = 0
		}
		if held += size; held > charged {
			if err := limits.Charge(ctx, held-charged); err != nil {
				return Found{}, err
			}
			charged = held
		}
		kept = append(kept, a)
	}
	return Found{Annotations: kept[begin:], More: more}, nil
}

// follows reports whether the position is behind an annotation.
func (p *Position) follows(a *storage.Annotation) bool {
	return cmp.Or(cmp.Compare(a.StartMs, p.StartMs), cmp.Compare(a.ID, p.ID)) < 0
}

func (q *Query) matches(a *storage.Annotation, text string) bool {
	for _, tag := range q.Tags {
		if _, has := slices.BinarySearch(a.Tags, tag); !has {
			return false
		}
	}
	return text == "" || strings.Contains(strings.ToLower(a.Text), text)
}

// sizeOf returns about how much memory an annotation takes: itself in a list that has doubled, and its texts.
func sizeOf(a *storage.Annotation) int64 {
	const frame, tagFrame = 400, 16
	n := frame + len(a.ID) + len(a.Text) + len(a.Selector) + len(a.Author)
	for _, tag := range a.Tags {
		n += tagFrame + len(tag)
	}
	return int64(n)
}
