package shelf

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"

	"github.com/quern/quern/internal/storage"
)

// The store has only the newest version of a document. Before a version takes its place, it is archived as it was read. All
// who replace it archive the same, so that it does not matter who comes last, or who of them wins. An archived version counts
// while it is below the newest one, and among those to keep.

// archiveKey returns where a version of a document is archived.
func (s *Shelf) archiveKey(id string, version int64) storage.ItemKey {
	return storage.ItemKey{Kind: s.Kind + ".old/" + id, ID: fmt.Sprintf("%019d", version)}
}

// archivedHead is the first line of an archived version, as JSON. The body follows.
type archivedHead struct {
	Deleted   bool   `json:"deleted,omitempty"`
	UpdatedMs int64  `json:"updated"`
	Author    string `json:"author"`
	Title     string `json:"title"`
}

// replace puts next in the place of now, which has version 0 if there is none. What is no longer kept, and cannot be removed
// now, the next call removes.
func (s *Shelf) replace(ctx context.Context, now, next storage.Document) error {
	if s.Kept > 1 && now.Version > 0 {
		head, err := json.Marshal(archivedHead{now.Deleted, now.UpdatedMs, now.Author, now.Title})
		if err != nil {
			return err
		}
		value := append(append(head, '\n'), now.Body...)
		if err := s.Archive.PutItems(ctx, []storage.Item{{ItemKey: s.archiveKey(now.ID, now.Version), Value: value}}); err != nil {
			return err
		}
	}
	if err := s.Documents.PutDocument(ctx, next); err != nil {
		return err
	}
	kept := next.Version + 1 - int64(s.Kept)
	_ = s.prune(ctx, next.ID, kept-int64(s.Kept), kept)
	return nil
}

// prune removes the archived versions in [from, to).
func (s *Shelf) prune(ctx context.Context, id string, from, to int64) error {
	var keys []storage.ItemKey
	for doc, err := range s.archived(ctx, id, from, to) {
		if err != nil {
			return err
		}
		keys = append(keys, s.archiveKey(id, doc.Version))
	}
	if len(keys) == 0 {
		return nil
	}
	return s.Archive.DeleteItems(ctx, keys)
}

// archived yields the archived versions in [from, to), oldest first.
func (s *Shelf) archived(ctx context.Context, id string, from, to int64) iter.Seq2[storage.Document, error] {
	return func(yield func(storage.Document, error) bool) {
		from = max(from, 1)
		if s.Kept <= 1 || from >= to {
			return
		}
		first, end := s.archiveKey(id, from), s.archiveKey(id, to)
		for e, err := range s.Archive.Items(ctx, first.Kind, first.ID, end.ID) {
			doc := storage.Document{DocumentHead: storage.DocumentHead{DocumentKey: s.Key(id)}}
			if err == nil {
				err = parseArchived(e, &doc)
			}
			if !yield(doc, err) || err != nil {
				return
			}
		}
	}
}

func parseArchived(e storage.Item, doc *storage.Document) error {
	text, body, _ := bytes.Cut(e.Value, []byte("\n"))
	var head archivedHead
	version, err := strconv.ParseInt(e.ID, 10, 64)
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err != nil {
		return fmt.Errorf("%s, version %s: %w: %w", doc.DocumentKey, e.ID, storage.ErrCorrupt, err)
	}
	doc.Version, doc.Deleted, doc.UpdatedMs, doc.Author, doc.Title = version, head.Deleted, head.UpdatedMs, head.Author, head.Title
	doc.Body, doc.Bytes = body, len(body)
	return nil
}

// earlier returns a version below the newest, which has version 0 if it is not kept.
func (s *Shelf) earlier(ctx context.Context, id string, version, newest int64) (doc storage.Document, err error) {
	if version > newest-int64(s.Kept) && version < newest {
		for doc, err = range s.archived(ctx, id, version, version+1) {
			return doc, err
		}
	}
	return doc, nil
}
