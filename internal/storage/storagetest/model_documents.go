package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// modelNote identifies an annotation.
type modelNote struct {
	startMs int64
	id      string
}

type modelAnnotation struct {
	storage.Annotation
	expiresMs int64 // 0 for never
}

func (a *modelAnnotation) expired(nowMs int64) bool { return a.expiresMs != 0 && a.expiresMs <= nowMs }

func cloneDocument(d storage.Document) storage.Document {
	d.Body = bytes.Clone(d.Body)
	return d
}

// Document implements storage.Documents.
func (m *Model) Document(ctx context.Context, key storage.DocumentKey, version int64) (storage.Document, error) {
	if err := m.begin(ctx); err != nil {
		return storage.Document{}, err
	}
	defer m.mu.Unlock()
	kept := m.docs[key]
	for i := len(kept) - 1; i >= 0; i-- {
		if version == 0 || kept[i].Version == version {
			return cloneDocument(kept[i]), nil
		}
	}
	return storage.Document{}, fmt.Errorf("%s, version %d: %w", key, version, storage.ErrNoDocument)
}

// Documents implements storage.Documents.
func (m *Model) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return modelSeq(ctx, m, func() []storage.DocumentHead {
		var out []storage.DocumentHead
		for key, kept := range m.docs {
			if key.Kind == kind {
				out = append(out, kept[len(kept)-1].DocumentHead)
			}
		}
		slices.SortFunc(out, func(a, b storage.DocumentHead) int { return strings.Compare(a.ID, b.ID) })
		return out
	})
}

// Versions implements storage.Documents.
func (m *Model) Versions(ctx context.Context, key storage.DocumentKey) iter.Seq2[storage.DocumentHead, error] {
	return modelSeq(ctx, m, func() []storage.DocumentHead {
		var out []storage.DocumentHead
		for _, d := range slices.Backward(m.docs[key]) {
			out = append(out, d.DocumentHead)
		}
		return out
	})
}

// PutDocument implements storage.Documents.
func (m *Model) PutDocument(ctx context.Context, d storage.Document, keep int) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := storage.CheckDocument(&d, keep); err != nil {
		return err
	}
	d = cloneDocument(d)
	d.Bytes, d.Protects = len(d.Body), false
	kept := m.docs[d.DocumentKey]
	var newest int64
	for i := range kept {
		if kept[i].Same(&d) {
			return nil
		}
		newest = kept[i].Version
	}
	if d.Version != newest+1 {
		return &storage.ConflictError{Key: d.DocumentKey, Newest: newest}
	}
	kept = append(kept, d)
	m.docs[d.DocumentKey] = kept[max(0, len(kept)-keep):]
	return nil
}

// ForgetDocument implements storage.Documents.
func (m *Model) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	kept := m.docs[key]
	if len(kept) == 0 {
		return nil
	}
	if err := storage.CheckForget(&kept[len(kept)-1].DocumentHead, version); err != nil {
		return err
	}
	delete(m.docs, key)
	return nil
}

// PutAnnotations implements storage.Annotations.
func (m *Model) PutAnnotations(ctx context.Context, as []storage.Annotation, ttl time.Duration) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := storage.CheckAnnotations(as, ttl); err != nil {
		return err
	}
	for _, a := range as {
		kept := modelAnnotation{Annotation: a}
		kept.Tags = slices.Clone(a.Tags)
		if ttl > 0 {
			kept.expiresMs = m.clk.Now().Add(ttl).UnixMilli()
		}
		m.notes[modelNote{a.StartMs, a.ID}] = kept
	}
	return nil
}

// DeleteAnnotations implements storage.Annotations.
func (m *Model) DeleteAnnotations(ctx context.Context, keys []storage.AnnotationKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, k := range keys {
		delete(m.notes, modelNote{k.StartMs, k.ID})
	}
	return nil
}

// Annotations implements storage.Annotations.
func (m *Model) Annotations(ctx context.Context, fromMs, toMs int64) iter.Seq2[storage.Annotation, error] {
	return modelSeq(ctx, m, func() []storage.Annotation {
		var out []storage.Annotation
		for _, a := range m.notes {
			if a.Overlaps(fromMs, toMs) && fromMs <= toMs && !a.expired(clock.NowMs(m.clk)) {
				a.Tags = slices.Clone(a.Tags)
				out = append(out, a.Annotation)
			}
		}
		slices.SortFunc(out, byTime)
		return out
	})
}

// AnnotationsAt implements storage.Annotations.
func (m *Model) AnnotationsAt(ctx context.Context, keys []storage.AnnotationKey) iter.Seq2[storage.Annotation, error] {
	return modelSeq(ctx, m, func() []storage.Annotation {
		var out []storage.Annotation
		for _, k := range keys {
			if a, ok := m.notes[modelNote{k.StartMs, k.ID}]; ok && !a.expired(clock.NowMs(m.clk)) {
				a.Tags = slices.Clone(a.Tags)
				out = append(out, a.Annotation)
			}
		}
		return out
	})
}

// byTime orders annotations as a store yields them.
func byTime(a, b storage.Annotation) int {
	return cmp.Or(cmp.Compare(a.StartMs, b.StartMs), cmp.Compare(a.ID, b.ID))
}
