// Package shelf keeps what people edit as documents of one kind, with their versions.
//
//  1. Who changes a document names the version that was changed. If it is not the newest, nothing is stored.
//  2. A put or a deletion may be repeated: what is there already is not stored again.
//  3. What a request reads is charged to it.
package shelf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/excerpt"
)

// HeadBytes is about what a head takes in memory, and as JSON.
const HeadBytes = 4 << 10

// Documents have the newest version of each document.
type Documents = storage.Documents

// Versions have all versions that are kept.
type Versions interface {
	storage.Documents
	storage.Items
}

// Options make a Shelf. All without a default are required.
type Options struct {
	Documents Documents
	// Archive has the versions before the newest. It is not needed if Kept is 1.
	Archive storage.Items
	Clock   clock.Clock
	// Kind is that of the documents, which is also what messages call one.
	Kind string
	// MaxBytes bounds the body of a document.
	MaxBytes int
	// Kept is how many versions of a document are kept, deletions counted.
	Kept int
	// Most bounds the ids that are stored. Deleted documents keep theirs until another needs the room.
	Most int
}

// Shelf keeps the documents of one kind.
type Shelf struct{ Options }

// New returns a shelf.
func New(o Options) *Shelf { return &Shelf{o} }

// InvalidError says what is wrong with a document, and where.
type InvalidError struct{ Message string }

// Error implements error.
func (e *InvalidError) Error() string { return e.Message }

func invalid(format string, args ...any) error {
	return &InvalidError{fmt.Sprintf(format, excerpt.Args(args)...)}
}

// MissingError means that there is no such document, or not this version.
type MissingError struct{ Message string }

// Error implements error.
func (e *MissingError) Error() string { return e.Message }

// FixedError means that a document cannot be changed here, since it comes from elsewhere.
type FixedError struct{ Kind, Origin string }

// Error implements error.
func (e *FixedError) Error() string {
	return fmt.Sprintf("this %s cannot be changed here, it is from elsewhere (%s): save a copy under another id", e.Kind, e.Origin)
}

// Key returns the key of a document.
func (s *Shelf) Key(id string) storage.DocumentKey { return storage.DocumentKey{Kind: s.Kind, ID: id} }

// List returns the heads of all documents, deleted ones included, by id.
func (s *Shelf) List(ctx context.Context) iter.Seq2[storage.DocumentHead, error] {
	return charged(ctx, s.Documents.Documents(ctx, s.Kind))
}

// Versions returns the heads of the versions that are kept of a document, newest first. There are none of one that was
// never stored.
func (s *Shelf) Versions(ctx context.Context, id string) iter.Seq2[storage.DocumentHead, error] {
	return charged(ctx, s.versions(ctx, id))
}

func (s *Shelf) versions(ctx context.Context, id string) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		newest, err := s.Newest(ctx, id)
		if err != nil || newest.Version == 0 || !yield(newest.DocumentHead, nil) {
			if err != nil {
				yield(storage.DocumentHead{}, err)
			}
			return
		}
		var earlier []storage.DocumentHead
		for doc, err := range s.archived(ctx, id, newest.Version+1-int64(s.Kept), newest.Version) {
			if err != nil {
				yield(storage.DocumentHead{}, err)
				return
			}
			earlier = append(earlier, doc.DocumentHead)
		}
		for _, head := range slices.Backward(earlier) {
			if !yield(head, nil) {
				return
			}
		}
	}
}

func charged(ctx context.Context, heads iter.Seq2[storage.DocumentHead, error]) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		for head, err := range heads {
			if err == nil {
				err = limits.Charge(ctx, HeadBytes)
			}
			if !yield(head, err) || err != nil {
				return
			}
		}
	}
}

// Get returns a version of a document, the newest if version is 0. Errors are a *MissingError, or those of the store.
func (s *Shelf) Get(ctx context.Context, id string, version int64) (storage.Document, error) {
	if err := limits.Charge(ctx, int64(s.MaxBytes)); err != nil {
		return storage.Document{}, err
	}
	doc, err := s.Newest(ctx, id)
	if err == nil && version != 0 && version != doc.Version {
		doc, err = s.earlier(ctx, id, version, doc.Version)
	}
	switch {
	case err == nil && (doc.Version == 0 || doc.Deleted):
		return storage.Document{}, s.Missing(ctx, id, version)
	case err == nil && !json.Valid(doc.Body):
		return storage.Document{}, fmt.Errorf("%s version %d: %w", doc.DocumentKey, doc.Version, storage.ErrCorrupt)
	}
	return doc, err
}

// Missing says what there is in place of a document, or of a version, as a *MissingError.
func (s *Shelf) Missing(ctx context.Context, id string, version int64) error {
	newest, deleted := int64(0), false
	var kept []string
	for head, err := range s.versions(ctx, id) {
		if err != nil {
			return err
		}
		if newest == 0 {
			newest, deleted = head.Version, head.Deleted
		}
		if !head.Deleted {
			kept = append(kept, fmt.Sprint(head.Version))
		}
	}
	slices.Reverse(kept)
	which := "no version of it is kept"
	if len(kept) > 0 {
		which = "these versions are kept: " + strings.Join(kept, ", ")
	}
	switch {
	case newest == 0:
		return &MissingError{fmt.Sprintf("there is no %s %q", s.Kind, id)}
	case version == 0 && deleted:
		return &MissingError{fmt.Sprintf("the %s %q was deleted; %s", s.Kind, id, which)}
	}
	return &MissingError{fmt.Sprintf("the %s %q has no version %d; %s", s.Kind, id, version, which)}
}

// Newest returns the newest version of a document, which has version 0 if there is none.
func (s *Shelf) Newest(ctx context.Context, id string) (storage.Document, error) {
	doc, err := s.Documents.Document(ctx, s.Key(id))
	if errors.Is(err, storage.ErrNoDocument) {
		return storage.Document{}, nil
	}
	return doc, err
}

// Change is one of a document.
type Change struct {
	ID string
	// Base is the version that was changed, 0 for a new document.
	Base   int64
	Author string
	// Protects is that of the version; see storage.Document.
	Protects bool
	// May returns why the newest version, which has version 0 if there is none, must not be changed. The default is that it
	// may.
	May func(newest storage.Document) error
}

// changeable returns the newest version of the document that is to be changed, unless c.May forbids that.
func (s *Shelf) changeable(ctx context.Context, c Change) (storage.Document, error) {
	if err := limits.Charge(ctx, int64(s.MaxBytes)); err != nil {
		return storage.Document{}, err
	}
	now, err := s.Newest(ctx, c.ID)
	if err == nil && c.May != nil {
		err = c.May(now)
	}
	return now, err
}

// Put stores a body as the version after c.Base, and returns its number. If it is what is stored already, Put returns the
// number of that and stores nothing. Errors are an *InvalidError, that of c.May, a *storage.ConflictError, or those of the
// store.
func (s *Shelf) Put(ctx context.Context, c Change, title string, body []byte) (int64, error) {
	if !s.Key(c.ID).Valid() {
		return 0, invalid("an id has 1 to %d of the characters a-z, 0-9, _, . and -, not %q", storage.MaxDocumentName, c.ID)
	}
	if len(body) > s.MaxBytes {
		return 0, fmt.Errorf("the %s has %d bytes with all of its fields, at most %d are allowed: %w", s.Kind, len(body), s.MaxBytes, storage.ErrTooLarge)
	}
	now, err := s.changeable(ctx, c)
	switch {
	case err != nil:
		return 0, err
	case now.Version > 0 && !now.Deleted && string(now.Body) == string(body):
		return now.Version, nil
	case now.Version != c.Base:
		return 0, &storage.ConflictError{Key: s.Key(c.ID), Newest: now.Version}
	}
	if c.Base == 0 {
		if err := s.roomForOne(ctx); err != nil {
			return 0, err
		}
	}
	next := storage.Document{DocumentHead: s.next(c), Body: body, Protects: c.Protects}
	next.Title = title
	return next.Version, s.replace(ctx, now, next)
}

func (s *Shelf) next(c Change) storage.DocumentHead {
	author := c.Author
	if len(author) > storage.MaxDocumentAuthor {
		author = author[:storage.MaxDocumentAuthor]
	}
	return storage.DocumentHead{DocumentKey: s.Key(c.ID), Version: c.Base + 1, UpdatedMs: clock.NowMs(s.Clock), Author: strings.ToValidUTF8(author, "")}
}

// roomForOne makes room for a new id: if there are too many, it forgets the document that was deleted first. It returns
// an error if none is deleted.
func (s *Shelf) roomForOne(ctx context.Context) error {
	var oldest storage.DocumentHead
	n := 0
	for head, err := range s.Documents.Documents(ctx, s.Kind) {
		if err != nil {
			return err
		}
		n++
		if head.Deleted && (oldest.Version == 0 || head.UpdatedMs < oldest.UpdatedMs) {
			oldest = head
		}
	}
	switch {
	case n < s.Most:
		return nil
	case oldest.Version == 0:
		return invalid("the store has %d %ss and takes no more: delete one, or replace one", n, s.Kind)
	}
	err := s.Documents.ForgetDocument(ctx, oldest.DocumentKey, oldest.Version)
	switch {
	case errors.Is(err, storage.ErrConflict):
		return nil // it was put again a moment ago, and one more does no harm
	case err != nil:
		return err
	}
	return s.prune(ctx, oldest.ID, 0, oldest.Version+1)
}

// Delete stores the deletion of a document as the version after c.Base, and returns its number. What was stored before
// stays among the versions. Errors are those of Put, and a *MissingError.
func (s *Shelf) Delete(ctx context.Context, c Change) (int64, error) {
	now, err := s.changeable(ctx, c)
	switch {
	case err != nil:
		return 0, err
	case now.Deleted && now.Version == c.Base+1:
		return now.Version, nil // repeated
	case now.Version == 0 || now.Deleted:
		return 0, s.Missing(ctx, c.ID, 0)
	case now.Version != c.Base:
		return 0, &storage.ConflictError{Key: s.Key(c.ID), Newest: now.Version}
	}
	gone := s.next(c)
	gone.Deleted, gone.Title = true, now.Title
	return gone.Version, s.replace(ctx, now, storage.Document{DocumentHead: gone, Protects: c.Protects})
}
