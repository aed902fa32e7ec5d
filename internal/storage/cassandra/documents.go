package cassandra

import (
	"context"
	"fmt"
	"iter"

	"github.com/quern/quern/internal/storage"
)

const (
	cqlReadDocument   = `SELECT id, version, deleted, updated, author, title, bytes, body FROM documents WHERE kind = ? AND id = ?`
	cqlListDocuments  = `SELECT id, version, deleted, updated, author, title, bytes FROM documents WHERE kind = ?`
	cqlFirstVersion   = `INSERT INTO documents (version, deleted, updated, author, title, bytes, body, kind, id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`
	cqlNextVersion    = `UPDATE documents SET version = ?, deleted = ?, updated = ?, author = ?, title = ?, bytes = ?, body = ? WHERE kind = ? AND id = ? IF version = ?`
	cqlForgetDocument = `DELETE FROM documents WHERE kind = ? AND id = ? IF version = ? AND deleted = true`
)

type documentRow struct {
	ID        string `db:"id"`
	Version   int64  `db:"version"`
	Deleted   bool   `db:"deleted"`
	UpdatedMs int64  `db:"updated"`
	Author    string `db:"author"`
	Title     string `db:"title"`
	Bytes     int    `db:"bytes"`
	Body      []byte `db:"body"`
}

func (r *documentRow) head(kind string) storage.DocumentHead {
	return storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: kind, ID: r.ID}, Version: r.Version, Deleted: r.Deleted,
		UpdatedMs: r.UpdatedMs, Author: r.Author, Title: r.Title, Bytes: r.Bytes,
	}
}

// document reads a document, which has version 0 if there is none. A serial read also finds what a conditional write has
// decided whose outcome is not known.
func (s *Store) document(ctx context.Context, key storage.DocumentKey, serial bool) (storage.Document, error) {
	st := stmt(cqlReadDocument, key.Kind, key.ID)
	st.serial = serial
	found, err := all[documentRow](ctx, s.session, st)
	if err != nil || len(found) == 0 {
		return storage.Document{}, err
	}
	return storage.Document{DocumentHead: found[0].head(key.Kind), Body: found[0].Body}, nil
}

// Document implements storage.Documents.
func (s *Store) Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error) {
	op := fmt.Sprintf("document %s", key)
	if !key.Valid() {
		return storage.Document{}, fmt.Errorf("%s: %w", op, storage.ErrNoDocument)
	}
	d, err := s.document(ctx, key, false)
	switch {
	case err == nil && d.Version == 0:
		err = storage.ErrNoDocument
	case err == nil && len(d.Body) != d.Bytes:
		err = fmt.Errorf("the row in table documents has %d bytes, not %d: %w", len(d.Body), d.Bytes, storage.ErrCorrupt)
	}
	return d, named(op, err)
}

// Documents implements storage.Documents.
func (s *Store) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		if !storage.ValidKind(kind) {
			return
		}
		for r, err := range rows[documentRow](ctx, s.session, manyRows, stmt(cqlListDocuments, kind)) {
			if !yield(r.head(kind), named("documents", err)) || err != nil {
				return
			}
		}
	}
}

// PutDocument implements storage.Documents: one conditional write. The driver may send it more than once, so a refusal may
// come from its own effect, and an error may hide it. Then the row says who has won.
func (s *Store) PutDocument(ctx context.Context, d storage.Document) error {
	op := fmt.Sprintf("put document %s", d.DocumentKey)
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	if err := storage.CheckDocument(&d); err != nil {
		return named(op, err)
	}
	d.Bytes, d.Protects = len(d.Body), false
	// The driver may send the body once more after the call has returned.
	d.Body = append(make([]byte, 0, len(d.Body)), d.Body...)
	now, err := s.document(ctx, d.DocumentKey, false)
	switch {
	case err != nil:
		return named(op, err)
	case now.Version == d.Version && now.Same(&d):
		return nil
	case now.Version != d.Version-1:
		return named(op, &storage.ConflictError{Key: d.DocumentKey, Newest: now.Version})
	}
	args := []any{d.Version, d.Deleted, d.UpdatedMs, d.Author, d.Title, d.Bytes, d.Body, d.Kind, d.ID}
	put := stmt(cqlFirstVersion, args...).again()
	if d.Version > 1 {
		put = stmt(cqlNextVersion, append(args, d.Version-1)...).again()
	}
	won, err := s.session.cas(ctx, put)
	if won || ctx.Err() != nil {
		return named(op, err)
	}
	now, readErr := s.document(ctx, d.DocumentKey, true)
	switch {
	case readErr != nil:
		if err == nil {
			err = readErr
		}
	case now.Same(&d):
		return nil
	case err != nil && now.Version < d.Version: // an attempt may still be under way
	case now.Version > d.Version:
		err = fmt.Errorf("%w: version %d has been replaced by version %d, and nobody knows any more whose it was", storage.ErrTimeout, d.Version, now.Version)
	default:
		err = &storage.ConflictError{Key: d.DocumentKey, Newest: now.Version}
	}
	return named(op, err)
}

// ForgetDocument implements storage.Documents: one conditional delete.
func (s *Store) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	op := fmt.Sprintf("forget document %s", key)
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	if !key.Valid() {
		return nil
	}
	now, err := s.document(ctx, key, false)
	if err == nil && now.Version > 0 {
		err = storage.CheckForget(&now.DocumentHead, version)
	}
	if err != nil || now.Version == 0 {
		return named(op, err)
	}
	won, err := s.session.cas(ctx, stmt(cqlForgetDocument, key.Kind, key.ID, version).again())
	if err == nil && !won { // by its first attempt, or another process was first
		if now, err = s.document(ctx, key, true); err == nil && now.Version > 0 {
			err = &storage.ConflictError{Key: key, Newest: now.Version}
		}
	}
	return named(op, err)
}
