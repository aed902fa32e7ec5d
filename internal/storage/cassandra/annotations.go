package cassandra

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlWriteAnnotation = `INSERT INTO annotations (day, start_time, id, annotation) VALUES (?, ?, ?, ?) USING TTL ?`
	cqlReadAnnotations = `SELECT start_time, id, annotation, end_time, content, tags, selector, author, updated FROM annotations WHERE day = ? AND start_time >= ? AND start_time <= ?`
	cqlReadAnnotation  = `SELECT start_time, id, annotation, end_time, content, tags, selector, author, updated, WRITETIME(annotation) AS written, WRITETIME(end_time) AS written_before FROM annotations WHERE day = ? AND start_time = ? AND id = ?`
	cqlDropAnnotation  = `DELETE FROM annotations WHERE day = ? AND start_time = ? AND id = ?`
	cqlListAnnotations = `SELECT DISTINCT day FROM annotations`
	cqlWriteSpan       = `INSERT INTO annotation_spans (span, period, start_time, id, end_time) VALUES (?, ?, ?, ?, ?) USING TTL ?`
	cqlReadSpans       = `SELECT start_time, id, end_time FROM annotation_spans WHERE span = ? AND period = ? AND start_time >= ? AND start_time < ?`
	cqlDropSpan        = `DELETE FROM annotation_spans WHERE span = ? AND period = ? AND start_time = ? AND id = ?`
)

// spansAhead is how many rows of annotation_spans a page has, and how many annotations they lead to are read together.
const spansAhead = 1000

// annotationRow is a row of annotations, or of annotation_spans. The row of an annotation that was put before version 5 of
// the schema has no cell, and the annotation in columns.
type annotationRow struct {
	StartMs   int64    `db:"start_time"`
	ID        string   `db:"id"`
	Cell      *string  `db:"annotation"`
	EndMs     *int64   `db:"end_time"` // null between two expiry times of a row that was sent twice; see Workers
	Text      string   `db:"content"`
	Tags      []string `db:"tags"`
	Selector  string   `db:"selector"`
	Author    string   `db:"author"`
	UpdatedMs int64    `db:"updated"`
	WrittenUs *int64   `db:"written"`
	BeforeUs  *int64   `db:"written_before"`

	span storage.Span
}

// annotationCell is the JSON of the column annotation. All of an annotation but its key is in one cell: of two puts with
// equal write timestamps, which follow on a row of a writer whose clock was ahead, one counts as a whole.
type annotationCell struct {
	EndMs     int64    `json:"end"`
	Text      string   `json:"text,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	Selector  string   `json:"selector,omitempty"`
	Author    string   `json:"author,omitempty"`
	UpdatedMs int64    `json:"updated"`
}

// decode takes the annotation from the cell, if there is one.
func (r *annotationRow) decode() error {
	if r.Cell == nil {
		return nil
	}
	var c annotationCell
	if err := json.Unmarshal([]byte(*r.Cell), &c); err != nil {
		return fmt.Errorf("annotation %q that starts at %d, which a put or a delete replaces: %w: %w", r.ID, r.StartMs, storage.ErrCorrupt, err)
	}
	r.EndMs, r.Text, r.Tags, r.Selector, r.Author, r.UpdatedMs = &c.EndMs, c.Text, c.Tags, c.Selector, c.Author, c.UpdatedMs
	return nil
}

// writtenUs returns the newest write timestamp of what the row has of an annotation, nil if there is nothing.
func (r *annotationRow) writtenUs() *int64 {
	if r.WrittenUs == nil || r.BeforeUs != nil && *r.BeforeUs > *r.WrittenUs {
		return r.BeforeUs
	}
	return r.WrittenUs
}

func (r annotationRow) compare(o annotationRow) int {
	return cmp.Or(cmp.Compare(r.StartMs, o.StartMs), cmp.Compare(r.ID, o.ID))
}

func (r *annotationRow) annotation() storage.Annotation {
	return storage.Annotation{
		ID: r.ID, StartMs: r.StartMs, EndMs: *r.EndMs, Text: r.Text, Tags: r.Tags, Selector: r.Selector, Author: r.Author, UpdatedMs: r.UpdatedMs,
	}
}

// periodOf returns the period of annotation_spans that a start lies in. It is as long as the span. SpanAny has one.
func periodOf(s storage.Span, startMs int64) int64 {
	if s == storage.SpanAny {
		return 0
	}
	return metric.AlignDown(startMs, s.Ms())
}

// periods returns the periods that starts in [fromMs, toMs) lie in. The time is never longer than the span, so that
// there are three at most.
func periods(s storage.Span, fromMs, toMs int64) []int64 {
	out := []int64{periodOf(s, fromMs)}
	for s != storage.SpanAny && out[len(out)-1]+s.Ms() < toMs {
		out = append(out, out[len(out)-1]+s.Ms())
	}
	return out
}

// stored reads what is stored under an annotation's start and id. It is zero if nothing is.
func (s *Store) stored(ctx context.Context, startMs int64, id string) (annotationRow, error) {
	found, err := all[annotationRow](ctx, s.session, stmt(cqlReadAnnotation, metric.AlignDown(startMs, dayMs), startMs, id))
	if err != nil || len(found) == 0 {
		return annotationRow{}, err
	}
	return found[0], found[0].decode()
}

// PutAnnotations implements storage.Annotations. The entry of a long annotation among the spans comes before the
// annotation, with the same write timestamp: a row that leads to nothing is skipped. The write timestamp lies above
// that of the row that is replaced, although the clock of its writer may be ahead. Another put of the annotation may have
// the same one. So the annotation is one cell, and the entry of the replaced one is deleted just below this timestamp,
// which spares an entry of the other put.
func (s *Store) PutAnnotations(ctx context.Context, as []storage.Annotation, keep time.Duration) error {
	const op = "put annotations"
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	if err := storage.CheckAnnotations(as, keep); err != nil {
		return named(op, err)
	}
	as = storage.LastAnnotations(as)
	return named(op, each(ctx, len(as), maxSpread, func(ctx context.Context, i int) error { return s.putAnnotation(ctx, &as[i], ttl(keep)) }))
}

func (s *Store) putAnnotation(ctx context.Context, a *storage.Annotation, seconds int) error {
	old, err := s.stored(ctx, a.StartMs, a.ID)
	if err != nil && !errors.Is(err, storage.ErrCorrupt) { // what cannot be read is replaced
		return err
	}
	tsUs, err := s.timestampAfter(ctx, old.writtenUs())
	if err != nil {
		return err
	}
	cell, err := json.Marshal(annotationCell{a.EndMs, a.Text, a.Tags, a.Selector, a.Author, a.UpdatedMs})
	if err != nil {
		return err
	}
	span := storage.SpanOf(a.StartMs, a.EndMs)
	if span != storage.SpanDay {
		if err := s.session.exec(ctx, tsUs, stmt(cqlWriteSpan, int(span), periodOf(span, a.StartMs), a.StartMs, a.ID, a.EndMs, seconds)); err != nil {
			return err
		}
	}
	if err := s.session.exec(ctx, tsUs,
		stmt(cqlWriteAnnotation, metric.AlignDown(a.StartMs, dayMs), a.StartMs, a.ID, string(cell), seconds)); err != nil {
		return err
	}
	if old.EndMs == nil {
		return nil
	}
	return s.dropSpan(ctx, tsUs-1, storage.SpanOf(a.StartMs, *old.EndMs), span, a.StartMs, a.ID)
}

// dropSpan deletes the entry of an annotation under a span, unless it is the one that stays.
func (s *Store) dropSpan(ctx context.Context, tsUs int64, span, stays storage.Span, startMs int64, id string) error {
	if span == stays || span == storage.SpanDay {
		return nil
	}
	return s.session.exec(ctx, tsUs, stmt(cqlDropSpan, int(span), periodOf(span, startMs), startMs, id))
}

// DeleteAnnotations implements storage.Annotations.
func (s *Store) DeleteAnnotations(ctx context.Context, keys []storage.AnnotationKey) error {
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	return named("delete annotations", each(ctx, len(keys), maxSpread, func(ctx context.Context, i int) error {
		k := keys[i]
		old, err := s.stored(ctx, k.StartMs, k.ID)
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
		tsUs, err := s.timestampAfter(ctx, old.writtenUs())
		if err != nil {
			return err
		}
		if err := s.session.exec(ctx, tsUs, stmt(cqlDropAnnotation, metric.AlignDown(k.StartMs, dayMs), k.StartMs, k.ID)); err != nil {
			return err
		}
		hint := storage.SpanOf(k.StartMs, k.EndMs)
		if old.EndMs != nil {
			if err := s.dropSpan(ctx, tsUs, storage.SpanOf(k.StartMs, *old.EndMs), hint, k.StartMs, k.ID); err != nil {
				return err
			}
		}
		return s.dropSpan(ctx, tsUs, hint, storage.SpanDay, k.StartMs, k.ID)
	}))
}

// Annotations implements storage.Annotations. It reads the days from the one before the range on. The longer
// annotations that start before these days are found by their spans.
func (s *Store) Annotations(ctx context.Context, fromMs, toMs int64) iter.Seq2[storage.Annotation, error] {
	const op = "annotations"
	return func(yield func(storage.Annotation, error) bool) {
		if err := convert(ctx, ctx.Err()); err != nil {
			yield(storage.Annotation{}, named(op, err))
			return
		}
		fromMs, toMs := storage.AnnotationTimes(fromMs, toMs)
		if fromMs > toMs {
			return
		}
		first := metric.AlignDown(fromMs-dayMs, dayMs)
		days, err := s.annotationDays(ctx, first, toMs)
		if err != nil {
			yield(storage.Annotation{}, named(op, err))
			return
		}
		for _, seq := range []iter.Seq2[annotationRow, error]{
			s.longAnnotations(ctx, fromMs, first),
			spread(ctx, days, aheadRows, func(ctx context.Context, day int64) iter.Seq2[annotationRow, error] {
				return rows[annotationRow](ctx, s.session, manyRows, stmt(cqlReadAnnotations, day, first, toMs))
			}),
		} {
			for r, err := range seq {
				if err == nil {
					err = r.decode()
				}
				if err != nil {
					yield(storage.Annotation{}, named(op, err))
					return
				}
				if r.EndMs == nil || *r.EndMs < fromMs {
					continue
				}
				if !yield(r.annotation(), nil) {
					return
				}
			}
		}
	}
}

// AnnotationsAt implements storage.Annotations.
func (s *Store) AnnotationsAt(ctx context.Context, keys []storage.AnnotationKey) iter.Seq2[storage.Annotation, error] {
	return spread(ctx, keys, 0, func(ctx context.Context, k storage.AnnotationKey) iter.Seq2[storage.Annotation, error] {
		return func(yield func(storage.Annotation, error) bool) {
			r, err := annotationRow{}, convert(ctx, ctx.Err())
			if err == nil {
				r, err = s.stored(ctx, k.StartMs, k.ID)
			}
			switch {
			case errors.Is(err, storage.ErrCorrupt):
			case err != nil:
				yield(storage.Annotation{}, named("annotations by key", err))
			case r.EndMs != nil:
				yield(r.annotation(), nil)
			}
		}
	})
}

// longAnnotations yields the annotations that annotation_spans leads to, start before a time and end at endMs or later,
// in order. It holds some pages of that table, and reads some annotations ahead, however many there are.
func (s *Store) longAnnotations(ctx context.Context, endMs, beforeMs int64) iter.Seq2[annotationRow, error] {
	streams := make([]iter.Seq2[annotationRow, error], len(storage.LongSpans))
	for i, span := range storage.LongSpans {
		streams[i] = s.spanRows(ctx, span, endMs, beforeMs)
	}
	return func(yield func(annotationRow, error) bool) {
		var some []annotationRow
		read := func() bool {
			for r, err := range spread(ctx, some, aheadRows, s.ofSpan) {
				if !yield(r, err) || err != nil {
					return false
				}
			}
			some = some[:0]
			return true
		}
		for r, err := range storage.InTurn(streams, annotationRow.compare) {
			if err != nil {
				if read() { // what comes before
					yield(annotationRow{}, err)
				}
				return
			}
			if some = append(some, r); len(some) == spansAhead && !read() {
				return
			}
		}
		read()
	}
}

// spanRows yields the rows of annotation_spans of one span that start before a time and end at endMs or later, in order.
func (s *Store) spanRows(ctx context.Context, span storage.Span, endMs, beforeMs int64) iter.Seq2[annotationRow, error] {
	return func(yield func(annotationRow, error) bool) {
		first := endMs - span.Ms()
		for _, period := range periods(span, first, beforeMs) {
			for r, err := range rows[annotationRow](ctx, s.session, spansAhead, stmt(cqlReadSpans, int(span), period, first, beforeMs)) {
				if r.span = span; err == nil && (r.EndMs == nil || *r.EndMs < endMs) {
					continue
				}
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

// ofSpan yields the annotation that a row of annotation_spans leads to, unless it has been deleted, or has become so
// much longer or shorter that another row leads to it.
func (s *Store) ofSpan(ctx context.Context, r annotationRow) iter.Seq2[annotationRow, error] {
	return func(yield func(annotationRow, error) bool) {
		found, err := s.stored(ctx, r.StartMs, r.ID)
		if err != nil || found.EndMs != nil && storage.SpanOf(found.StartMs, *found.EndMs) == r.span {
			yield(found, err)
		}
	}
}

// annotationDays returns the days from first on that may have annotations that start at toMs or before. For a long
// range it lists the days of the table.
func (s *Store) annotationDays(ctx context.Context, first, toMs int64) ([]int64, error) {
	if (toMs-first)/dayMs < maxNamed {
		return namedDays(first, toMs+1), nil
	}
	var out []int64
	for r, err := range rows[struct {
		DayMs int64 `db:"day"`
	}](ctx, s.session, manyRows, stmt(cqlListAnnotations)) {
		if err != nil {
			return nil, err
		}
		if first <= r.DayMs && r.DayMs <= toMs {
			out = append(out, r.DayMs)
		}
	}
	slices.Sort(out)
	return out, nil
}
