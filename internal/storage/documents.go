package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"unicode/utf8"
)

// ErrNoDocument means that there is no document of this name.
var ErrNoDocument = errors.New("there is no such document")

// The limits of a document. Lengths are in bytes.
const (
	MaxDocumentName   = 128 // of Kind and of ID
	MaxDocumentBody   = 1 << 20
	MaxDocumentTitle  = 1 << 10
	MaxDocumentAuthor = 256
)

// DocumentKey names a document, such as a dashboard, a token or a group of metrics. Both parts have 1 to
// MaxDocumentName bytes of [a-z0-9_.-]. Another key names no document: reads find none, and writes are refused.
type DocumentKey struct{ Kind, ID string }

// String returns both parts, as messages name a document.
func (k DocumentKey) String() string { return fmt.Sprintf("%s %q", k.Kind, k.ID) }

// DocumentHead is what lists show of a document.
type DocumentHead struct {
	DocumentKey
	// Version counts the changes of the document, from 1. It never goes back: after a deletion the next version has the
	// number after that of the deletion.
	Version int64
	// Deleted says that the document is deleted. It has no body.
	Deleted bool
	// UpdatedMs and Author say when and by whom the version was made. The caller sets them; the store compares
	// UpdatedMs with no clock. Author has at most MaxDocumentAuthor bytes, Title at most MaxDocumentTitle. Both are
	// valid UTF-8 and may be empty.
	UpdatedMs int64
	Author    string
	Title     string
	// Bytes is the length of the body. The store sets it.
	Bytes int
}

// Document is the newest version of a document, which is all that a store has of it. The store does not look into the
// body. It has at most MaxDocumentBody bytes.
type Document struct {
	DocumentHead
	Body []byte
	// Protects says that the version takes access away from somebody, as the revocation of a token does, or lets an
	// operator in. A store that keeps room free for itself takes such a version into that room, too. It is not stored.
	Protects bool
}

// Documents accesses the table documents: a register for each key, which changes by compare-and-set. It holds:
//
//  1. Of two writers of one version exactly one wins. The other one gets a *ConflictError.
//  2. A deletion stays as the newest version, until ForgetDocument removes it. So until then no number is given twice.
type Documents interface {
	// Document returns the newest version, which may be a deletion. It returns ErrNoDocument if there is none, and
	// ErrCorrupt, with the document's name, if it cannot be read.
	Document(ctx context.Context, key DocumentKey) (Document, error)
	// Documents yields the heads of a kind, ordered by id, deletions included. It leaves out those that cannot be read.
	Documents(ctx context.Context, kind string) iter.Seq2[DocumentHead, error]
	// PutDocument stores d as the version d.Version, which must be one above the newest (1 if there is none). If it
	// is not, PutDocument returns a *ConflictError. To delete a document, put a version with Deleted.
	//
	// The version is durable when PutDocument returns nil. To put the newest version once more succeeds. It returns
	// ErrTooLarge if the body is too large, and ErrRefused if anything else breaks a limit. After any other error the
	// version may be stored, and nobody else's version is harmed.
	PutDocument(ctx context.Context, d Document) error
	// ForgetDocument removes a document whose newest version is a deletion with this number: its next version
	// is 1. It is durable when ForgetDocument returns nil. If there is no document, it returns nil. If the newest version
	// has another number, it returns a *ConflictError, and ErrRefused if it is no deletion. After any other error the
	// document may be forgotten.
	ForgetDocument(ctx context.Context, key DocumentKey, version int64) error
}

// ConflictError is the error of PutDocument when the version is not one above the newest. It is an ErrConflict.
type ConflictError struct {
	Key DocumentKey
	// Newest is the number of the newest version, 0 if there is none.
	Newest int64
}

// Error implements error.
func (e *ConflictError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("%s does not exist", e.Key)
	}
	return fmt.Sprintf("%s has changed: its newest version is %d", e.Key, e.Newest)
}

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ValidKind reports whether documents can be of a kind.
func ValidKind(kind string) bool { return validName(kind) }

// Valid reports whether k can name a document.
func (k DocumentKey) Valid() bool { return validName(k.Kind) && validName(k.ID) }

func validName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= MaxDocumentName
}

// CheckDocument returns an error if PutDocument must refuse it, whatever is stored.
func CheckDocument(d *Document) error {
	switch {
	case !d.Valid():
		return fmt.Errorf("%w: a document's kind and id have 1 to %d of the characters a-z, 0-9, _, . and -, not %.200q", ErrRefused, MaxDocumentName, d.DocumentKey)
	case len(d.Body) > MaxDocumentBody:
		return fmt.Errorf("%s has %d bytes, at most %d are allowed: %w", d.DocumentKey, len(d.Body), MaxDocumentBody, ErrTooLarge)
	case d.Deleted && len(d.Body) > 0:
		return fmt.Errorf("%w: %s: a deletion has no body", ErrRefused, d.DocumentKey)
	case d.Version < 1:
		return fmt.Errorf("%w: %s: versions begin at 1, not at %d", ErrRefused, d.DocumentKey, d.Version)
	}
	for _, t := range []struct {
		what, text string
		most       int
	}{{"title", d.Title, MaxDocumentTitle}, {"author", d.Author, MaxDocumentAuthor}} {
		if len(t.text) > t.most || !utf8.ValidString(t.text) {
			return fmt.Errorf("%w: %s: the %s must be valid UTF-8 of at most %d bytes", ErrRefused, d.DocumentKey, t.what, t.most)
		}
	}
	return nil
}

// CheckForget returns an error if ForgetDocument must leave a document with this newest version.
func CheckForget(newest *DocumentHead, version int64) error {
	switch {
	case newest.Version != version:
		return &ConflictError{Key: newest.DocumentKey, Newest: newest.Version}
	case !newest.Deleted:
		return fmt.Errorf("%w: %s is not deleted", ErrRefused, newest.DocumentKey)
	}
	return nil
}

// Same reports whether both are the same version with the same content. It ignores Bytes.
func (d *Document) Same(o *Document) bool {
	a, b := d.DocumentHead, o.DocumentHead
	a.Bytes, b.Bytes = 0, 0
	return a == b && bytes.Equal(d.Body, o.Body)
}
