package annotations

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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

// Store is what annotations are kept in. Confirms says whether the clock may be acted on; see storage.Store.
type Store interface {
	storage.Items
	Confirms(ctx context.Context, now clock.Reading) error
}

// Book has the annotations of a store: remarks about a time, beside the series. Its methods may be called concurrently.
type Book struct {
	store Store
	clock clock.Clock
	keep  time.Duration
	// changing has the one change that is under way.
	changing chan struct{}
}

// New returns the annotations of a store. A put keeps an annotation for keep; 0 is for ever.
func New(store Store, clk clock.Clock, keep time.Duration) *Book {
	return &Book{store: store, clock: clk, keep: keep, changing: make(chan struct{}, 1)}
}

// NowMs returns the time that counts as now, in Unix ms.
func (b *Book) NowMs() int64 { return clock.NowMs(b.clock) }

// Draft is an annotation as somebody gives it.
type Draft struct {
	Annotation
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
func (c *Checks) Check(ctx context.Context, a *Annotation) (why string, err error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	slices.Sort(a.Tags)
	a.Tags = slices.Compact(a.Tags)
	switch err := a.fault(); {
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
func (d *Draft) Repeats(old *Annotation) bool {
	return d.EndMs == old.EndMs && d.Text == old.Text && d.Selector == old.Selector && d.Author == old.Author && slices.Equal(d.Tags, old.Tags)
}

// change runs do, which changes annotations, and no other change of this process meanwhile. A change looks where an annotation
// is before it moves it.
func (b *Book) change(ctx context.Context, do func() error) error {
	if err := b.store.Confirms(ctx, clock.Read(b.clock)); err != nil {
		return err
	}
	select {
	case b.changing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.changing }()
	return do()
}

// Put stores drafts that are complete, as if one after the other: a later one may lie where an earlier one was moved
// from. They are durable when Put returns nil. One with the ID and StartMs of another replaces it. After an error some
// may be stored; it may be repeated.
func (b *Book) Put(ctx context.Context, drafts []Draft) error {
	last := make(map[Position]*Annotation)
	left := make(map[Position]bool)
	for i := range drafts {
		d := &drafts[i]
		last[d.position()] = &d.Annotation
		delete(left, d.position())
		if d.Moves() {
			left[Position{d.WasMs, d.ID}] = true
		}
	}
	puts, others := []storage.Item(nil), []storage.ItemKey(nil)
	months := make(map[string]bool)
	for _, a := range last {
		e, other, err := a.item(b.keep)
		if err != nil {
			return err
		}
		puts, others = append(puts, e), append(others, other)
		months[monthOf(a.StartMs)] = true
	}
	for month := range months { // for ever: others in the month may be kept for longer
		puts = append(puts, storage.Item{ItemKey: storage.ItemKey{Kind: monthsKind, ID: month}})
	}
	return b.change(ctx, func() error {
		found, err := b.lookUp(ctx, others)
		if err != nil {
			return err
		}
		if err := b.store.PutItems(ctx, puts); err != nil {
			return err
		}
		var gone []storage.ItemKey // afterwards: better twice than not at all
		for i, other := range others {
			if found[i].exists {
				gone = append(gone, other)
			}
		}
		for p := range left {
			gone = append(gone, p.near(), p.long())
		}
		if len(gone) == 0 {
			return nil
		}
		return b.store.DeleteItems(ctx, gone)
	})
}

// Delete deletes the annotation with an id that starts at startMs. It returns whether there was one.
func (b *Book) Delete(ctx context.Context, id string, startMs int64) (was bool, err error) {
	p := Position{startMs, id}
	keys := []storage.ItemKey{p.near(), p.long()}
	err = b.change(ctx, func() error {
		found, err := b.lookUp(ctx, keys)
		if err != nil || !found[0].exists && !found[1].exists {
			return err
		}
		was = true
		return b.store.DeleteItems(ctx, keys)
	})
	return was, err
}

// Replaced yields what drafts that are complete would replace, in their order. It leaves out what cannot be read.
func (b *Book) Replaced(ctx context.Context, drafts []Draft) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		keys := make([]storage.ItemKey, 0, 2*len(drafts))
		for i := range drafts {
			p := drafts[i].position()
			keys = append(keys, p.near(), p.long())
		}
		found, err := b.lookUp(ctx, keys)
		if err != nil {
			yield(Annotation{}, err)
			return
		}
		for pair := range slices.Chunk(found, 2) {
			a := pair[0].newer(pair[1])
			if a != nil && !yield(*a, nil) {
				return
			}
		}
	}
}

// lookedUp is what is under a key.
type lookedUp struct {
	exists bool
	a      *Annotation // nil if it cannot be read
}

// newer returns the annotation that was updated last, nil if there is none that can be read.
func (f lookedUp) newer(o lookedUp) *Annotation {
	if f.a == nil || o.a != nil && o.a.UpdatedMs > f.a.UpdatedMs {
		return o.a
	}
	return f.a
}

// lookUpAtOnce is how many keys are looked up at once.
const lookUpAtOnce = 32

// lookUp returns what is under each key.
func (b *Book) lookUp(ctx context.Context, keys []storage.ItemKey) ([]lookedUp, error) {
	found := make([]lookedUp, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookUpAtOnce)
	for i, k := range keys {
		if !k.Valid() {
			continue
		}
		g.Go(func() error {
			for e, err := range b.store.Items(ctx, k.Kind, k.ID, k.ID+"\x00") {
				if err == nil {
					var a Annotation
					if a, err = parse(e); err == nil {
						found[i].a = &a
					}
				}
				if found[i].exists = true; err != nil && !errors.Is(err, storage.ErrCorrupt) {
					return err
				}
			}
			return nil
		})
	}
	return found, g.Wait()
}

// overlapping yields the annotations that overlap [fromMs, toMs], both included, by StartMs, then ID. It fails with
// storage.ErrCorrupt at one that cannot be read, and names it.
func (b *Book) overlapping(ctx context.Context, fromMs, toMs int64) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		fromMs, toMs := max(fromMs, -farthestMs), min(toMs, farthestMs)
		if fromMs > toMs {
			return
		}
		end := startID(toMs + 1)
		short, long := b.near(ctx, max(fromMs-dayMs, -farthestMs), toMs), b.kind(ctx, longKind, "", end)
		// One is in both places while it becomes longer or shorter, and for longer if that was broken off.
		var held *Annotation
		for a, err := range inTurn(short, long) {
			switch {
			case err != nil:
				yield(Annotation{}, err)
				return
			case held != nil && held.position() == a.position():
				if a.UpdatedMs > held.UpdatedMs {
					held = &a
				}
				continue
			case held != nil && held.overlaps(fromMs, toMs) && !yield(*held, nil):
				return
			}
			held = &a
		}
		if held != nil && held.overlaps(fromMs, toMs) {
			yield(*held, nil)
		}
	}
}

// inTurn merges two streams that are in order. It ends with the first error.
func inTurn(one, other iter.Seq2[Annotation, error]) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		next, stop := iter.Pull2(other)
		defer stop()
		b, bErr, has := next()
		for a, err := range one {
			for has && (bErr != nil || err == nil && b.position().compare(a.position()) < 0) {
				if !yield(b, bErr) || bErr != nil {
					return
				}
				b, bErr, has = next()
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
		for ; has; b, bErr, has = next() {
			if !yield(b, bErr) || bErr != nil {
				return
			}
		}
	}
}

// near yields the annotations that are at most a day long and start in [fromMs, toMs].
func (b *Book) near(ctx context.Context, fromMs, toMs int64) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		for month, err := range b.store.Items(ctx, monthsKind, monthOf(fromMs), monthOf(toMs)+"\x00") {
			if err != nil {
				yield(Annotation{}, err)
				return
			}
			for a, err := range b.kind(ctx, kindOfMonth(month.ID), startID(fromMs), startID(toMs+1)) {
				if !yield(a, err) || err != nil {
					return
				}
			}
		}
	}
}

// kind yields the annotations of a kind with ids in [from, to).
func (b *Book) kind(ctx context.Context, kind, from, to string) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		for e, err := range b.store.Items(ctx, kind, from, to) {
			var a Annotation
			if err == nil {
				a, err = parse(e)
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
	}
}

// Starting yields all annotations that start in [fromMs, toMs), by StartMs, then ID.
func (b *Book) Starting(ctx context.Context, fromMs, toMs int64) iter.Seq2[Annotation, error] {
	return func(yield func(Annotation, error) bool) {
		for a, err := range b.overlapping(ctx, fromMs, toMs-1) {
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
	Annotations []Annotation
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
	var kept []Annotation // the first begin of them are dropped
	begin, held, charged := 0, int64(0), int64(0)
	more := false
	for a, err := range b.overlapping(ctx, q.FromMs, q.ToMs) {
		if err != nil {
			return Found{}, err
		}
		if q.Before != nil && a.position().compare(*q.Before) >= 0 {
			break
		}
		if !q.matches(&a, text) {
			continue
		}
		size := sizeOf(&a)
		for len(kept) > begin && (len(kept)-begin >= q.Limit || held+size > maxFound) {
			held -= sizeOf(&kept[begin])
			kept[begin] = Annotation{}
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

func (p Position) compare(o Position) int {
	return cmp.Or(cmp.Compare(p.StartMs, o.StartMs), cmp.Compare(p.ID, o.ID))
}

func (q *Query) matches(a *Annotation, text string) bool {
	for _, tag := range q.Tags {
		if _, has := slices.BinarySearch(a.Tags, tag); !has {
			return false
		}
	}
	return text == "" || strings.Contains(strings.ToLower(a.Text), text)
}

// sizeOf returns about how much memory an annotation takes: itself in a list that has doubled, and its texts.
func sizeOf(a *Annotation) int64 {
	const frame, tagFrame = 400, 16
	n := frame + len(a.ID) + len(a.Text) + len(a.Selector) + len(a.Author)
	for _, tag := range a.Tags {
		n += tagFrame + len(tag)
	}
	return int64(n)
}
