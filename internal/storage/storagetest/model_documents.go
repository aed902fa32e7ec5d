package storagetest

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// Document implements storage.Documents.
func (m *Model) Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error) {
	if err := m.begin(ctx); err != nil {
		return storage.Document{}, err
	}
	defer m.mu.Unlock()
	d, ok := m.docs[key]
	if !ok {
		return d, fmt.Errorf("%s: %w", key, storage.ErrNoDocument)
	}
	d.Body = bytes.Clone(d.Body)
	return d, nil
}

// Documents implements storage.Documents.
func (m *Model) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return modelSeq(ctx, m, func() []storage.DocumentHead {
		var out []storage.DocumentHead
		for key, d := range m.docs {
			if key.Kind == kind {
				out = append(out, d.DocumentHead)
			}
		}
		slices.SortFunc(out, func(a, b storage.DocumentHead) int { return strings.Compare(a.ID, b.ID) })
		return out
	})
}

// PutDocument implements storage.Documents.
func (m *Model) PutDocument(ctx context.Context, d storage.Document) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := storage.CheckDocument(&d); err != nil {
		return err
	}
	d.Body, d.Bytes, d.Protects = bytes.Clone(d.Body), len(d.Body), false
	now := m.docs[d.DocumentKey]
	switch {
	case now.Same(&d):
		return nil
	case d.Version != now.Version+1:
		return &storage.ConflictError{Key: d.DocumentKey, Newest: now.Version}
	}
	m.docs[d.DocumentKey] = d
	return nil
}

// ForgetDocument implements storage.Documents.
func (m *Model) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	d, ok := m.docs[key]
	if !ok {
		return nil
	}
	if err := storage.CheckForget(&d.DocumentHead, version); err != nil {
		return err
	}
	delete(m.docs, key)
	return nil
}

type modelItem struct {
	value     []byte
	expiresMs int64 // 0 for never
}

func (e *modelItem) expired(nowMs int64) bool { return e.expiresMs != 0 && e.expiresMs <= nowMs }

// PutItems implements storage.Items.
func (m *Model) PutItems(ctx context.Context, es []storage.Item) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := storage.CheckItems(es); err != nil {
		return err
	}
	for _, e := range es {
		kept := modelItem{value: bytes.Clone(e.Value)}
		if e.TTL > 0 {
			kept.expiresMs = m.clk.Now().Add(e.TTL).UnixMilli()
		}
		m.items[e.ItemKey] = kept
	}
	return nil
}

// DeleteItems implements storage.Items.
func (m *Model) DeleteItems(ctx context.Context, keys []storage.ItemKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, k := range keys {
		delete(m.items, k)
	}
	return nil
}

// Items implements storage.Items.
func (m *Model) Items(ctx context.Context, kind, from, to string) iter.Seq2[storage.Item, error] {
	return modelSeq(ctx, m, func() []storage.Item {
		var out []storage.Item
		for k, e := range m.items {
			if k.Kind == kind && k.ID >= from && (to == "" || k.ID < to) && !e.expired(clock.NowMs(m.clk)) {
				out = append(out, storage.Item{ItemKey: k, Value: bytes.Clone(e.value)})
			}
		}
		slices.SortFunc(out, func(a, b storage.Item) int { return strings.Compare(a.ID, b.ID) })
		return out
	})
}
