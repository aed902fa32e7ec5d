package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// The limits of an annotation. Lengths are in bytes.
const (
	MaxAnnotationID       = 64
	MaxAnnotationText     = 16 << 10
	MaxAnnotationTags     = 64
	MaxAnnotationTag      = 256
	MaxAnnotationSelector = 4 << 10
	MaxAnnotationAuthor   = 256
	// MaxAnnotationMs bounds times on both sides of 1970.
	MaxAnnotationMs = 1 << 53
)

// Annotation is a remark about a time. All texts are valid UTF-8, and all but ID may be empty.
type Annotation struct {
	// ID has 1 to MaxAnnotationID bytes. ID and StartMs together identify the annotation.
	ID string
	// StartMs and EndMs are the first and the last millisecond that the annotation is about, in Unix ms. They are
	// equal for a moment.
	StartMs, EndMs int64
	Text           string
	// Tags are sorted and unique, such as "release" or "team=web".
	Tags []string
	// Selector is a PromQL vector selector of the series that the annotation is about. The store does not parse it.
	Selector  string
	Author    string
	UpdatedMs int64
}

// AnnotationKey names an annotation. EndMs is what was last read; it says where else the store has entered a long
// annotation, and does not decide whether the annotation is found.
type AnnotationKey struct {
	StartMs, EndMs int64
	ID             string
}

// Key returns the annotation's key.
func (a *Annotation) Key() AnnotationKey { return AnnotationKey{a.StartMs, a.EndMs, a.ID} }

// Overlaps reports whether the annotation is about a time in [fromMs, toMs], both included.
func (a *Annotation) Overlaps(fromMs, toMs int64) bool { return a.StartMs <= toMs && a.EndMs >= fromMs }

// Annotations accesses the tables annotations and annotation_spans.
type Annotations interface {
	// PutAnnotations stores annotations for ttl from now; 0 means for ever. One with the same ID and StartMs is
	// replaced, with its ttl. Of two in as with the same ID and StartMs the last counts. They are durable when
	// PutAnnotations returns nil. If one breaks a limit, or ttl is negative, PutAnnotations returns ErrRefused and
	// stores none. After any other error some may be stored; it may be repeated.
	PutAnnotations(ctx context.Context, as []Annotation, ttl time.Duration) error
	// DeleteAnnotations deletes the annotations with the given ID and StartMs. One that does not exist is no error.
	// The deletion is durable when DeleteAnnotations returns nil.
	DeleteAnnotations(ctx context.Context, keys []AnnotationKey) error
	// Annotations yields the annotations that overlap [fromMs, toMs], both included, ordered by StartMs, then ID. It
	// reads the days of the range and the one before, and a few more places where long annotations are entered. It
	// leaves out annotations that have expired. It fails with ErrCorrupt at one that cannot be read, and names it.
	Annotations(ctx context.Context, fromMs, toMs int64) iter.Seq2[Annotation, error]
	// AnnotationsAt yields the annotations with the given ID and StartMs, in the order of the keys, and reads no others.
	// It leaves out those that do not exist, have expired or cannot be read.
	AnnotationsAt(ctx context.Context, keys []AnnotationKey) iter.Seq2[Annotation, error]
}

// CheckAnnotations returns an error if PutAnnotations must refuse its arguments.
func CheckAnnotations(as []Annotation, ttl time.Duration) error {
	if ttl < 0 {
		return fmt.Errorf("%w: annotations cannot be kept for %s", ErrRefused, ttl)
	}
	for i := range as {
		if err := as[i].Check(); err != nil {
			return fmt.Errorf("annotation %.100q: %w: %w", as[i].ID, ErrRefused, err)
		}
	}
	return nil
}

// Check returns which limit the annotation breaks, nil if none.
func (a *Annotation) Check() error {
	switch {
	case a.ID == "":
		return errors.New("the id is empty")
	case a.StartMs < -MaxAnnotationMs || a.EndMs > MaxAnnotationMs:
		return errors.New("the time is too far from 1970")
	case a.EndMs < a.StartMs:
		return errors.New("the end is before the start")
	case len(a.Tags) > MaxAnnotationTags:
		return fmt.Errorf("it has %d tags, at most %d are allowed", len(a.Tags), MaxAnnotationTags)
	}
	for i := 1; i < len(a.Tags); i++ {
		if a.Tags[i-1] >= a.Tags[i] {
			return errors.New("the tags are not sorted and unique")
		}
	}
	for _, t := range []struct {
		what, text string
		most       int
	}{
		{"id", a.ID, MaxAnnotationID},
		{"text", a.Text, MaxAnnotationText},
		{"selector", a.Selector, MaxAnnotationSelector},
		{"author", a.Author, MaxAnnotationAuthor},
	} {
		if err := textFault(t.what, t.text, t.most); err != nil {
			return err
		}
	}
	for _, tag := range a.Tags {
		if err := textFault("tag", tag, MaxAnnotationTag); err != nil {
			return err
		}
	}
	return nil
}

// LastAnnotations returns the annotations that are left when the last one of each ID and StartMs counts.
func LastAnnotations(as []Annotation) []Annotation {
	type id struct {
		startMs int64
		id      string
	}
	last := make(map[id]int, len(as))
	for i := range as {
		last[id{as[i].StartMs, as[i].ID}] = i
	}
	out := make([]Annotation, 0, len(last))
	for i := range as {
		if last[id{as[i].StartMs, as[i].ID}] == i {
			out = append(out, as[i])
		}
	}
	return out
}

// Span is a class of lengths of annotations. An annotation is stored under its start. One that is longer than a day is
// also entered in the table annotation_spans, under its span and start. So a read finds it without going through all
// days before: an annotation of a span that overlaps a time starts at most the span's length earlier.
type Span uint8

// The spans, by the longest annotation that they hold.
const (
	SpanDay Span = iota // not entered in annotation_spans
	SpanMonth
	SpanYear
	SpanAny
)

// LongSpans are the spans that are entered in annotation_spans.
var LongSpans = [...]Span{SpanMonth, SpanYear, SpanAny}

const spanDayMs = int64(24 * time.Hour / time.Millisecond)

// Ms returns the longest time from start to end of an annotation of the span.
func (s Span) Ms() int64 {
	switch s {
	case SpanDay:
		return spanDayMs
	case SpanMonth:
		return 30 * spanDayMs
	case SpanYear:
		return 365 * spanDayMs
	}
	return 2 * MaxAnnotationMs
}

// SpanOf returns the span of an annotation from startMs to endMs.
func SpanOf(startMs, endMs int64) Span {
	for s := SpanDay; s < SpanAny; s++ {
		if endMs-startMs <= s.Ms() {
			return s
		}
	}
	return SpanAny
}

// AnnotationTimes bounds a range of times to those that annotations may have, so that a span may be subtracted.
func AnnotationTimes(fromMs, toMs int64) (int64, int64) {
	return max(fromMs, -MaxAnnotationMs), min(toMs, MaxAnnotationMs)
}
