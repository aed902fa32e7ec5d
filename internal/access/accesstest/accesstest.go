// Package accesstest has what tests of tokens and sessions share.
package accesstest

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/quern/quern/internal/storage"
)

// Memory keeps the newest versions, as storage.Documents says.
type Memory struct {
	mu sync.Mutex
	// Stored has the newest versions.
	Stored map[storage.DocumentKey]storage.Document
	// Err is the error of everything, Reads the number of documents read.
	Err   error
	Reads int
	// Refuse, unless nil, returns why a put is refused.
	Refuse func(storage.Document) error
	// Before runs before a put, which may lose against what it puts.
	Before func()
	// After runs after a document was read, before the reader has it.
	After func()
}

// NewMemory returns a store without documents.
func NewMemory() *Memory {
	return &Memory{Stored: make(map[storage.DocumentKey]storage.Document)}
}

// Document implements access.Documents.
func (d *Memory) Document(_ context.Context, key storage.DocumentKey) (storage.Document, error) {
	d.mu.Lock()
	d.Reads++
	doc, ok := d.Stored[key]
	d.mu.Unlock()
	if after := d.After; after != nil {
		d.After = nil
		after()
	}
	switch {
	case d.Err != nil:
		return storage.Document{}, d.Err
	case !ok:
		return storage.Document{}, storage.ErrNoDocument
	}
	return doc, nil
}

// Documents implements access.Documents.
func (d *Memory) Documents(_ context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	d.mu.Lock()
	stored, err := maps.Clone(d.Stored), d.Err
	d.mu.Unlock()
	return func(yield func(storage.DocumentHead, error) bool) {
		if err != nil {
			yield(storage.DocumentHead{}, err)
			return
		}
		for _, key := range slices.SortedFunc(maps.Keys(stored), func(a, b storage.DocumentKey) int { return slices.Compare([]byte(a.ID), []byte(b.ID)) }) {
			if key.Kind == kind && !yield(stored[key].DocumentHead, nil) {
				return
			}
		}
	}
}

// PutDocument implements access.Documents.
func (d *Memory) PutDocument(_ context.Context, doc storage.Document) error {
	if before := d.Before; before != nil {
		d.Before = nil
		before()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Err != nil {
		return d.Err
	}
	if err := storage.CheckDocument(&doc); err != nil {
		return err
	}
	if d.Refuse != nil {
		if err := d.Refuse(doc); err != nil {
			return err
		}
	}
	doc.Protects = false
	if newest := d.Stored[doc.DocumentKey].Version; doc.Version != newest+1 {
		return &storage.ConflictError{Key: doc.DocumentKey, Newest: newest}
	}
	d.Stored[doc.DocumentKey] = doc
	return nil
}

// ForgetDocument implements access.Documents.
func (d *Memory) ForgetDocument(_ context.Context, key storage.DocumentKey, version int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	doc, ok := d.Stored[key]
	if d.Err != nil || !ok {
		return d.Err
	}
	if err := storage.CheckForget(&doc.DocumentHead, version); err != nil {
		return err
	}
	delete(d.Stored, key)
	return nil
}

// Change replaces what is stored, as no writer could.
func (d *Memory) Change(key storage.DocumentKey, do func(*storage.Document)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	doc := d.Stored[key]
	do(&doc)
	d.Stored[key] = doc
}
