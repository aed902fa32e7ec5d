package storage

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of an item, in bytes. Kind and ID have at least one.
const (
	MaxItemKind  = 256
	MaxItemID    = 256
	MaxItemValue = 2 << 20
)

// ItemKey names an item. Kind and ID are valid UTF-8. Kind has no byte 0.
type ItemKey struct{ Kind, ID string }

// Item is a value under a key. The store does not look into it.
type Item struct {
	ItemKey
	Value []byte
	// TTL is how long PutItems keeps the item from now; 0 is for ever. Reads do not say it. Nor do they say Protects: a
	// store that keeps room free for itself takes such an item into that room, too.
	TTL      time.Duration
	Protects bool
}

// Items accesses the table items: values that nobody compares before they are replaced. Of two writers the later one
// wins; where several processes write, that is the one whose clock says so.
type Items interface {
	// PutItems stores items, each with its TTL. Of two with the same key the last counts. They are durable when
	// PutItems returns nil; those that live for at most a minute may be lost if the machine fails. If one breaks a
	// limit, it returns ErrRefused and stores none. After any other error some may be stored; it may be repeated.
	PutItems(ctx context.Context, es []Item) error
	// DeleteItems deletes items. One that does not exist is no error. The deletion is durable when DeleteItems
	// returns nil.
	DeleteItems(ctx context.Context, keys []ItemKey) error
	// Items yields the items of a kind with ids in [from, to), ordered by id. An empty to is no bound. It leaves out
	// what has expired, and fails with ErrCorrupt at what cannot be read.
	Items(ctx context.Context, kind, from, to string) iter.Seq2[Item, error]
}

// CheckItems returns an error if PutItems must refuse items.
func CheckItems(es []Item) error {
	for i := range es {
		e := &es[i]
		switch {
		case !e.Valid():
			return fmt.Errorf("%w: the kind %.100q and the id %.100q of an item must be valid UTF-8 of 1 to %d and %d bytes", ErrRefused, e.Kind, e.ID, MaxItemKind, MaxItemID)
		case len(e.Value) > MaxItemValue || e.TTL < 0:
			return fmt.Errorf("%w: the item %q of the kind %q has %d bytes, of at most %d, and is to be kept for %s", ErrRefused, e.ID, e.Kind, len(e.Value), MaxItemValue, e.TTL)
		}
	}
	return nil
}

// Valid reports whether k can name an item. Another key names none: reads and deletes pass it over.
func (k ItemKey) Valid() bool {
	return validPart(k.Kind, MaxItemKind) && validPart(k.ID, MaxItemID) && !strings.Contains(k.Kind, "\x00")
}

func validPart(s string, most int) bool { return s != "" && len(s) <= most && utf8.ValidString(s) }
