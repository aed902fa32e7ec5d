package storage

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of an entry, in bytes. Kind and ID have at least one.
const (
	MaxEntryKind  = 256
	MaxEntryID    = 256
	MaxEntryValue = 2 << 20
)

// EntryKey names an entry. Kind and ID are valid UTF-8. Kind has no byte 0.
type EntryKey struct{ Kind, ID string }

// Entry is a value under a key. The store does not look into it.
type Entry struct {
	EntryKey
	Value []byte
	// TTL is how long PutEntries keeps the entry from now; 0 is for ever. Reads do not say it.
	TTL time.Duration
}

// Entries accesses the table entries: values that nobody compares before they are replaced. Of two writers the later one
// wins; where several processes write, that is the one whose clock says so.
type Entries interface {
	// PutEntries stores entries, each with its TTL. Of two with the same key the last counts. They are durable when
	// PutEntries returns nil. If one breaks a limit, it returns ErrRefused and stores none. After any other error some may
	// be stored; it may be repeated.
	PutEntries(ctx context.Context, es []Entry) error
	// DeleteEntries deletes entries. One that does not exist is no error. The deletion is durable when DeleteEntries
	// returns nil.
	DeleteEntries(ctx context.Context, keys []EntryKey) error
	// Entries yields the entries of a kind with ids in [from, to), ordered by id. An empty to is no bound. It leaves out
	// what has expired, and fails with ErrCorrupt at what cannot be read.
	Entries(ctx context.Context, kind, from, to string) iter.Seq2[Entry, error]
}

// CheckEntries returns an error if PutEntries must refuse entries.
func CheckEntries(es []Entry) error {
	for i := range es {
		e := &es[i]
		switch {
		case !e.Valid():
			return fmt.Errorf("%w: the kind %.100q and the id %.100q of an entry must be valid UTF-8 of 1 to %d and %d bytes", ErrRefused, e.Kind, e.ID, MaxEntryKind, MaxEntryID)
		case len(e.Value) > MaxEntryValue || e.TTL < 0:
			return fmt.Errorf("%w: the entry %q of the kind %q has %d bytes, of at most %d, and is to be kept for %s", ErrRefused, e.ID, e.Kind, len(e.Value), MaxEntryValue, e.TTL)
		}
	}
	return nil
}

// Valid reports whether k can name an entry. Another key names none: reads and deletes pass it over.
func (k EntryKey) Valid() bool {
	return validPart(k.Kind, MaxEntryKind) && validPart(k.ID, MaxEntryID) && !strings.Contains(k.Kind, "\x00")
}

func validPart(s string, most int) bool { return s != "" && len(s) <= most && utf8.ValidString(s) }
