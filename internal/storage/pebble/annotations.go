package pebble

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

// annotations: start, id.
func annotationKey(startMs int64, id string) []byte {
	return append(appendInt([]byte{tableAnnotations}, startMs), id...)
}

// annotation_spans: span, start, id. The value is the end.
func spanKey(s storage.Span, startMs int64, id string) []byte {
	return append(appendInt([]byte{tableSpans, byte(s)}, startMs), id...)
}

type spanRow struct {
	span           storage.Span
	startMs, endMs int64
	id             string
}

func (r spanRow) compare(o spanRow) int {
	return cmp.Or(cmp.Compare(r.startMs, o.startMs), cmp.Compare(r.id, o.id))
}

// appendAnnotation appends version, the time of expiry (0 for never), time of the update, length, author, selector,
// text and tags.
func appendAnnotation(b []byte, a *storage.Annotation, expiresMs int64) []byte {
	b = append(b, annotationVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(expiresMs))
	b = binary.BigEndian.AppendUint64(b, uint64(a.UpdatedMs))
	b = binary.AppendUvarint(b, uint64(a.EndMs-a.StartMs))
	for _, text := range []string{a.Author, a.Selector, a.Text} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	for _, tag := range a.Tags {
		b = binary.AppendUvarint(b, uint64(len(tag)))
		b = append(b, tag...)
	}
	return b
}

// storedAnnotation is a decoded row of annotations.
type storedAnnotation struct {
	storage.Annotation
	expiresMs int64 // 0 for never
}

func (a *storedAnnotation) expired(nowMs int64) bool { return a.expiresMs != 0 && a.expiresMs <= nowMs }

// parseAnnotation decodes what appendAnnotation wrote into a, whose key the caller has set.
func parseAnnotation(b []byte, a *storedAnnotation) error {
	if err := checkVersion(b, annotationVersion, 17); err != nil {
		return fmt.Errorf("annotation: %w", err)
	}
	r := varints{rest: b[17:]}
	length := r.uint()
	author, selector, text := r.take(r.uint()), []byte(nil), []byte(nil)
	selector = r.take(r.uint())
	text = r.take(r.uint())
	var tags []string
	for !r.bad && len(r.rest) > 0 {
		tags = append(tags, string(r.take(r.uint())))
	}
	if r.bad || length > 2*storage.MaxAnnotationMs {
		return fmt.Errorf("annotation: %w: %w", storage.ErrCorrupt, errValue)
	}
	a.expiresMs, a.UpdatedMs = int64(binary.BigEndian.Uint64(b[1:])), int64(binary.BigEndian.Uint64(b[9:]))
	a.EndMs = a.StartMs + int64(length)
	a.Author, a.Selector, a.Text, a.Tags = string(author), string(selector), string(text), tags
	return nil
}

func decodeAnnotation(k, v []byte) (a storedAnnotation, err error) {
	if len(k) < 1+8 {
		return a, damagedKey("annotations", k)
	}
	a.StartMs, a.ID = getInt(k[1:]), string(k[9:])
	if err = parseAnnotation(v, &a); err != nil {
		err = fmt.Errorf("annotation %q that starts at %s, which a put or a delete replaces: %w", a.ID, moment(a.StartMs), err)
	}
	return a, err
}

// PutAnnotations implements storage.Annotations: one synced batch.
func (s *Store) PutAnnotations(ctx context.Context, as []storage.Annotation, ttl time.Duration) error {
	const op = "put annotations"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	if err := storage.CheckAnnotations(as, ttl); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	now, err := s.gate.Now()
	if err != nil {
		return fmt.Errorf("%s: %w", op, unwritable(err))
	}
	expiresMs := int64(0)
	if ttl > 0 {
		expiresMs = now.Add(ttl).UnixMilli()
	}
	as = storage.LastAnnotations(as)
	size := 0
	values := make([][]byte, len(as))
	for i := range as {
		values[i] = appendAnnotation(nil, &as[i], expiresMs)
		size += 2*rowOverhead + len(values[i])
	}
	if err := s.disk.admit(size); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.do(ctx, op, func() error {
		s.annotationsMu.Lock()
		defer s.annotationsMu.Unlock()
		batch := s.db.NewBatch()
		for i := range as {
			a := &as[i]
			err := s.dropAnnotation(batch, a.StartMs, a.ID, nil)
			if err == nil {
				err = batch.Set(annotationKey(a.StartMs, a.ID), values[i], nil)
			}
			if span := storage.SpanOf(a.StartMs, a.EndMs); err == nil && span != storage.SpanDay {
				err = batch.Set(spanKey(span, a.StartMs, a.ID), appendInt(nil, a.EndMs), nil)
			}
			if err != nil {
				return closed(batch, err)
			}
		}
		if batch.Empty() {
			return batch.Close()
		}
		return closed(batch, batch.Commit(lsm.Sync))
	})
}

// annotation reads an annotation. there is false if there is none. If there is one that cannot be decoded, there is true and err says so.
func (s *Store) annotation(startMs int64, id string) (a storedAnnotation, there bool, err error) {
	key := annotationKey(startMs, id)
	v, err := s.row(key)
	if err != nil || v == nil {
		return a, false, err
	}
	a, err = decodeAnnotation(key, v)
	return a, true, err
}

// dropAnnotation adds the deletion of an annotation, and of its entry among the spans, to a batch. If only is not nil,
// it does so only for an annotation that only accepts. The caller holds annotationsMu.
func (s *Store) dropAnnotation(batch *lsm.Batch, startMs int64, id string, only func(*storedAnnotation) bool) error {
	old, there, err := s.annotation(startMs, id)
	if !there {
		return err
	}
	foreign := err != nil
	if only != nil && (foreign || !only(&old)) {
		return nil //nolint:nilerr // what cannot be read is not what the caller named
	}
	if err := batch.Delete(annotationKey(startMs, id), nil); err != nil {
		return err
	}
	for _, span := range storage.LongSpans {
		if !foreign && span != storage.SpanOf(old.StartMs, old.EndMs) {
			continue
		}
		if err := batch.Delete(spanKey(span, startMs, id), nil); err != nil {
			return err
		}
	}
	return nil
}

// DeleteAnnotations implements storage.Annotations: one synced batch.
func (s *Store) DeleteAnnotations(ctx context.Context, keys []storage.AnnotationKey) error {
	const op = "delete annotations"
	if err := s.mayWrite(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.dropAnnotations(ctx, op, keys, nil, lsm.Sync)
}

func (s *Store) dropAnnotations(ctx context.Context, op string, keys []storage.AnnotationKey, only func(*storedAnnotation) bool, o *lsm.WriteOptions) error {
	keys = append([]storage.AnnotationKey(nil), keys...) // the caller may give up before they are read
	return s.do(ctx, op, func() error {
		s.annotationsMu.Lock()
		defer s.annotationsMu.Unlock()
		batch := s.db.NewBatch()
		for _, k := range keys {
			if err := s.dropAnnotation(batch, k.StartMs, k.ID, only); err != nil {
				return closed(batch, err)
			}
		}
		if batch.Empty() {
			return batch.Close()
		}
		return closed(batch, batch.Commit(o))
	})
}

// expireAtOnce is how many annotations one batch of expireAnnotations deletes at most.
const expireAtOnce = 1000

// expireAnnotations deletes the annotations that have expired at nowMs. It reads all annotations. Those that cannot be
// read stay.
func (s *Store) expireAnnotations(ctx context.Context, nowMs int64) (err error) {
	const op = "expire annotations"
	var old []storage.AnnotationKey
	leave := func([]byte, []byte) bool { return true }
	parse := func(k, v []byte) (storedAnnotation, error) {
		a, err := decodeAnnotation(k, v)
		if err != nil {
			a.expiresMs = 0
		}
		return a, nil
	}
	scan(ctx, s, op, []byte{tableAnnotations}, []byte{tableAnnotations + 1}, nil, parse, leave, func(a storedAnnotation, e error) bool {
		if err = e; err == nil && a.expired(nowMs) {
			if old = append(old, a.Key()); len(old) == expireAtOnce {
				err = s.dropExpired(ctx, op, old, nowMs)
				old = old[:0]
			}
		}
		return err == nil
	})
	if err == nil && len(old) > 0 {
		err = s.dropExpired(ctx, op, old, nowMs)
	}
	return err
}

// dropExpired deletes those of the annotations that have expired at nowMs: one may have been put again since its key was
// read.
func (s *Store) dropExpired(ctx context.Context, op string, keys []storage.AnnotationKey, nowMs int64) error {
	return s.dropAnnotations(ctx, op, keys, func(a *storedAnnotation) bool { return a.expired(nowMs) }, lsm.NoSync)
}

// Annotations implements storage.Annotations. Those that start at most a day before the range are in the range's own
// part of the table; the longer ones before them are found by their spans.
func (s *Store) Annotations(ctx context.Context, fromMs, toMs int64) iter.Seq2[storage.Annotation, error] {
	return func(yield func(storage.Annotation, error) bool) {
		const op = "annotations"
		if err := s.begin(ctx, op); err != nil {
			yield(storage.Annotation{}, err)
			return
		}
		fromMs, toMs := storage.AnnotationTimes(fromMs, toMs)
		if fromMs > toMs {
			return
		}
		now, refused := s.gate.Now() // while the clock is refused, nothing has expired
		shown := func(a *storedAnnotation) bool {
			return a.Overlaps(fromMs, toMs) && (refused != nil || !a.expired(now.UnixMilli()))
		}
		nearMs := fromMs - storage.SpanDay.Ms()
		if !s.longAnnotations(ctx, op, nearMs, fromMs, shown, yield) {
			return
		}
		lower, upper := annotationKey(nearMs, ""), annotationKey(toMs+1, "")
		scan(ctx, s, op, lower, upper, nil, decodeAnnotation, nil, func(a storedAnnotation, err error) bool {
			if err == nil && !shown(&a) {
				return true
			}
			return yield(a.Annotation, err)
		})
	}
}

// AnnotationsAt implements storage.Annotations.
func (s *Store) AnnotationsAt(ctx context.Context, keys []storage.AnnotationKey) iter.Seq2[storage.Annotation, error] {
	return func(yield func(storage.Annotation, error) bool) {
		const op = "annotations by key"
		now, refused := s.gate.Now() // while the clock is refused, nothing has expired
		for _, k := range keys {
			var a storedAnnotation
			there, err := false, s.begin(ctx, op)
			if err == nil {
				a, there, err = s.annotation(k.StartMs, k.ID)
			}
			if err != nil && !there {
				yield(storage.Annotation{}, convert(op, err))
				return
			}
			if there && err == nil && (refused != nil || !a.expired(now.UnixMilli())) && !yield(a.Annotation, nil) {
				return
			}
		}
	}
}

// longAnnotations yields the annotations that are entered in annotation_spans, start before beforeMs, end at endMs or
// later, and are shown. It holds a page of rows of each span at a time, however many long annotations there are.
func (s *Store) longAnnotations(ctx context.Context, op string, beforeMs, endMs int64, shown func(*storedAnnotation) bool, yield func(storage.Annotation, error) bool) bool {
	streams := make([]iter.Seq2[spanRow, error], len(storage.LongSpans))
	for i, span := range storage.LongSpans {
		streams[i] = s.spanRows(ctx, op, span, beforeMs, endMs)
	}
	for r, err := range storage.InTurn(streams, spanRow.compare) {
		if err == nil {
			err = s.begin(ctx, op)
		}
		if err != nil {
			return yield(storage.Annotation{}, err) && false
		}
		a, there, err := s.annotation(r.startMs, r.id)
		if err != nil {
			return yield(storage.Annotation{}, convert(op, err)) && false
		}
		// It may have been deleted or replaced since its span was read.
		if !there || storage.SpanOf(a.StartMs, a.EndMs) != r.span || !shown(&a) {
			continue
		}
		if !yield(a.Annotation, nil) {
			return false
		}
	}
	return true
}

// spanRows yields the rows of one span that start before beforeMs and end at endMs or later, in order.
func (s *Store) spanRows(ctx context.Context, op string, span storage.Span, beforeMs, endMs int64) iter.Seq2[spanRow, error] {
	parse := func(k, v []byte) (spanRow, error) {
		if len(k) < 2+8 || len(v) != 8 {
			return spanRow{}, damagedKey("annotation_spans", k)
		}
		return spanRow{span: span, startMs: getInt(k[2:]), endMs: getInt(v), id: string(k[10:])}, nil
	}
	return func(yield func(spanRow, error) bool) {
		scan(ctx, s, op, spanKey(span, endMs-span.Ms(), ""), spanKey(span, beforeMs, ""), nil, parse, nil, func(r spanRow, err error) bool {
			if err == nil && r.endMs < endMs {
				return true
			}
			return yield(r, err)
		})
	}
}
