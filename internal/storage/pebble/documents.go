package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

// kindPrefix begins the keys of documents and of items of a kind. A 0 byte ends the kind, which has none, so that ids
// order as text.
func kindPrefix(table byte, kind string) []byte { return append(append([]byte{table}, kind...), 0) }

// documents, items: kind, id.
func kindKey(table byte, kind, id string) []byte { return append(kindPrefix(table, kind), id...) }

func documentKey(k storage.DocumentKey) []byte { return kindKey(tableDocuments, k.Kind, k.ID) }

// documentDeleted is the bit of the flags that marks a deletion.
const documentDeleted = 1

// appendDocument appends the version of the encoding, flags, time, version, author, title and body.
func appendDocument(b []byte, d *storage.Document) []byte {
	flags := byte(0)
	if d.Deleted {
		flags |= documentDeleted
	}
	b = append(b, documentVersion, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(d.UpdatedMs))
	b = binary.AppendUvarint(b, uint64(d.Version))
	for _, text := range []string{d.Author, d.Title} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return append(b, d.Body...)
}

// parseDocument decodes a row of documents.
func parseDocument(k, b []byte) (d storage.Document, err error) {
	kind, id, _ := bytes.Cut(k[1:], []byte{0})
	d.DocumentKey = storage.DocumentKey{Kind: string(kind), ID: string(id)}
	if err := checkVersion(b, documentVersion, 10); err != nil {
		return storage.Document{}, fmt.Errorf("%s: %w", d.DocumentKey, err)
	}
	r := varints{rest: b[10:]}
	d.Deleted, d.UpdatedMs, d.Version = b[1] == documentDeleted, int64(binary.BigEndian.Uint64(b[2:])), int64(r.uint())
	d.Author = string(r.take(r.uint()))
	d.Title = string(r.take(r.uint()))
	if r.bad || b[1]&^documentDeleted != 0 || d.Version < 1 || !d.Valid() {
		return storage.Document{}, fmt.Errorf("%s: %w: %w", d.DocumentKey, storage.ErrCorrupt, errValue)
	}
	d.Body, d.Bytes = r.rest, len(r.rest)
	return d, nil
}

// Document implements storage.Documents.
func (s *Store) Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error) {
	op := fmt.Sprintf("document %s", key)
	if err := s.begin(ctx, op); err != nil {
		return storage.Document{}, err
	}
	d, err := s.document(key)
	if err == nil && d.Version == 0 {
		return d, fmt.Errorf("%s: %w", op, storage.ErrNoDocument)
	}
	return d, convert(op, err)
}

// document reads a document, which has version 0 if there is none.
func (s *Store) document(key storage.DocumentKey) (d storage.Document, err error) {
	if !key.Valid() {
		return d, nil
	}
	v, err := s.row(documentKey(key))
	if err != nil || v == nil {
		return d, err
	}
	return parseDocument(documentKey(key), v)
}

// Documents implements storage.Documents.
func (s *Store) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		op := "documents of the kind " + kind
		parse := func(k, v []byte) (storage.DocumentHead, error) {
			d, err := parseDocument(k, v)
			if err != nil {
				s.lost(err.Error())
			}
			return d.DocumentHead, nil
		}
		around := func(_, _ []byte) bool {
			s.lost("some " + op)
			return true
		}
		prefix := kindPrefix(tableDocuments, kind)
		scan(ctx, s, op, prefix, after(prefix), nil, parse, around, func(h storage.DocumentHead, err error) bool {
			return h.Version == 0 && err == nil || yield(h, err)
		})
	}
}

// PutDocument implements storage.Documents: one synced write.
func (s *Store) PutDocument(ctx context.Context, d storage.Document) error {
	op := fmt.Sprintf("put document %s", d.DocumentKey)
	if err := storage.CheckDocument(&d); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	value := appendDocument(nil, &d)
	floor := s.disk.reserve
	if d.Protects {
		floor /= 4
	}
	if err := s.disk.admitAbove(floor, rowOverhead+len(value)); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.do(ctx, op, func() error {
		s.rowsMu.Lock()
		defer s.rowsMu.Unlock()
		now, err := s.document(d.DocumentKey)
		switch {
		case err != nil:
			return err
		case now.Version == d.Version && bytes.Equal(appendDocument(nil, &now), value):
			return nil
		case now.Version != d.Version-1:
			return &storage.ConflictError{Key: d.DocumentKey, Newest: now.Version}
		}
		return s.db.Set(documentKey(d.DocumentKey), value, lsm.Sync)
	})
}

// ForgetDocument implements storage.Documents: one synced write.
func (s *Store) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	return s.do(ctx, fmt.Sprintf("forget document %s", key), func() error {
		s.rowsMu.Lock()
		defer s.rowsMu.Unlock()
		now, err := s.document(key)
		if err == nil && now.Version > 0 {
			err = storage.CheckForget(&now.DocumentHead, version)
		}
		if err != nil || now.Version == 0 {
			return err
		}
		return s.db.Delete(documentKey(key), lsm.Sync)
	})
}
