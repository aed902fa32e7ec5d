package cassandra

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/storage"
)

const (
	cqlReadDocument   = `SELECT id, version, nonces, deleted, updated, author, title, bytes FROM documents WHERE kind = ? AND id = ?`
	cqlListDocuments  = `SELECT id, version, nonces, deleted, updated, author, title, bytes FROM documents WHERE kind = ?`
	cqlFirstVersion   = `INSERT INTO documents (version, nonces, deleted, updated, author, title, bytes, kind, id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS`
	cqlNextVersion    = `UPDATE documents SET version = ?, nonces = ?, deleted = ?, updated = ?, author = ?, title = ?, bytes = ? WHERE kind = ? AND id = ? IF version = ?`
	cqlWriteVersion   = `INSERT INTO document_versions (kind, id, version, nonce, deleted, updated, author, title, bytes, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	cqlReadVersion    = `SELECT version, nonce, deleted, updated, author, title, bytes, body FROM document_versions WHERE kind = ? AND id = ? AND version = ? AND nonce = ?`
	cqlListVersions   = `SELECT version, nonce, deleted, updated, author, title, bytes FROM document_versions WHERE kind = ? AND id = ?`
	cqlWrittenVersion = `SELECT version, nonce, WRITETIME(bytes) AS written FROM document_versions WHERE kind = ? AND id = ? AND version <= ?`
	cqlForgetDocument = `DELETE FROM documents WHERE kind = ? AND id = ? IF version = ? AND deleted = true`
	cqlDeleteVersion  = `DELETE FROM document_versions WHERE kind = ? AND id = ? AND version = ? AND nonce = ?`
)

// headRow is the newest version of a document.
type headRow struct {
	ID      string `db:"id"`
	Version int64  `db:"version"`
	// Nonces name the rows of document_versions that count: those of the kept versions, newest first.
	Nonces    []gocql.UUID `db:"nonces"`
	Deleted   bool         `db:"deleted"`
	UpdatedMs int64        `db:"updated"`
	Author    string       `db:"author"`
	Title     string       `db:"title"`
	Bytes     int          `db:"bytes"`
}

// nonce returns the nonce of a version. ok is false if the version is not kept.
func (r *headRow) nonce(version int64) (nonce gocql.UUID, ok bool) {
	if back := r.Version - version; back >= 0 && back < int64(len(r.Nonces)) {
		return r.Nonces[back], true
	}
	return nonce, false
}

// versionRow is one row of document_versions.
type versionRow struct {
	Version   int64      `db:"version"`
	Nonce     gocql.UUID `db:"nonce"`
	Deleted   bool       `db:"deleted"`
	UpdatedMs int64      `db:"updated"`
	Author    string     `db:"author"`
	Title     string     `db:"title"`
	Bytes     int        `db:"bytes"`
	Body      []byte     `db:"body"`
	WrittenUs *int64     `db:"written"`
}

func (r *versionRow) head(key storage.DocumentKey) storage.DocumentHead {
	return storage.DocumentHead{
		DocumentKey: key, Version: r.Version, Deleted: r.Deleted, UpdatedMs: r.UpdatedMs, Author: r.Author, Title: r.Title, Bytes: r.Bytes,
	}
}

// readHead returns the row of a document, with version 0 if there is none.
func (s *Store) readHead(ctx context.Context, key storage.DocumentKey) (headRow, error) {
	found, err := all[headRow](ctx, s.session, stmt(cqlReadDocument, key.Kind, key.ID))
	if err != nil || len(found) == 0 {
		return headRow{}, err
	}
	return found[0], nil
}

// Document implements storage.Documents.
func (s *Store) Document(ctx context.Context, key storage.DocumentKey, version int64) (storage.Document, error) {
	op := fmt.Sprintf("document %s", key)
	if !key.Valid() || version < 0 {
		return storage.Document{}, fmt.Errorf("%s: %w", op, storage.ErrNoDocument)
	}
	head, err := s.readHead(ctx, key)
	for {
		if err != nil {
			return storage.Document{}, named(op, err)
		}
		wanted := version
		if wanted == 0 {
			wanted = head.Version
		}
		nonce, kept := head.nonce(wanted)
		if !kept {
			return storage.Document{}, fmt.Errorf("%s, version %d: %w", op, version, storage.ErrNoDocument)
		}
		d, ok, err := s.readVersion(ctx, key, wanted, nonce)
		if err != nil || ok {
			return d, named(op, err)
		}
		// The row may have been removed because newer versions have come.
		again, err := s.readHead(ctx, key)
		if err == nil && again.Version == head.Version {
			err = fmt.Errorf("version %d is missing in table document_versions: %w", wanted, storage.ErrCorrupt)
		}
		if err != nil {
			return storage.Document{}, named(op, err)
		}
		head = again
	}
}

func (s *Store) readVersion(ctx context.Context, key storage.DocumentKey, version int64, nonce gocql.UUID) (d storage.Document, ok bool, err error) {
	found, err := all[versionRow](ctx, s.session, stmt(cqlReadVersion, key.Kind, key.ID, version, nonce))
	if err != nil || len(found) == 0 {
		return d, false, err
	}
	d = storage.Document{DocumentHead: found[0].head(key), Body: found[0].Body}
	if len(d.Body) != d.Bytes {
		return storage.Document{}, false, fmt.Errorf("version %d in table document_versions has %d bytes, not %d: %w", version, len(d.Body), d.Bytes, storage.ErrCorrupt)
	}
	return d, true, nil
}

// Documents implements storage.Documents.
func (s *Store) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		if !storage.ValidKind(kind) {
			return
		}
		for r, err := range rows[headRow](ctx, s.session, manyRows, stmt(cqlListDocuments, kind)) {
			h := storage.DocumentHead{
				DocumentKey: storage.DocumentKey{Kind: kind, ID: r.ID}, Version: r.Version, Deleted: r.Deleted,
				UpdatedMs: r.UpdatedMs, Author: r.Author, Title: r.Title, Bytes: r.Bytes,
			}
			if !yield(h, named("documents", err)) || err != nil {
				return
			}
		}
	}
}

// Versions implements storage.Documents.
func (s *Store) Versions(ctx context.Context, key storage.DocumentKey) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		if !key.Valid() {
			return
		}
		heads, err := s.versions(ctx, key)
		if err != nil {
			yield(storage.DocumentHead{}, named("versions of a document", err))
			return
		}
		for _, h := range heads {
			if err := convert(ctx, ctx.Err()); err != nil {
				yield(storage.DocumentHead{}, named("versions of a document", err))
				return
			}
			if !yield(h, nil) {
				return
			}
		}
	}
}

func (s *Store) versions(ctx context.Context, key storage.DocumentKey) ([]storage.DocumentHead, error) {
	for before := int64(-1); ; {
		head, err := s.readHead(ctx, key)
		if err != nil {
			return nil, err
		}
		found, err := all[versionRow](ctx, s.session, stmt(cqlListVersions, key.Kind, key.ID))
		if err != nil {
			return nil, err
		}
		byNonce := make(map[gocql.UUID]*versionRow, len(found))
		for i := range found {
			byNonce[found[i].Nonce] = &found[i]
		}
		heads, damaged := []storage.DocumentHead(nil), false
		for i, nonce := range head.Nonces {
			h := storage.DocumentHead{DocumentKey: key, Version: head.Version - int64(i), Damaged: true}
			if r := byNonce[nonce]; r != nil {
				h = r.head(key)
			}
			damaged = damaged || h.Damaged
			heads = append(heads, h)
		}
		// A row that is missing may have been removed since the head was read, because newer versions have come.
		if !damaged || before == head.Version {
			return heads, nil
		}
		before = head.Version
	}
}

// PutDocument implements storage.Documents. The row of the version comes first, under a nonce that nobody else has.
// Then a conditional write of the document's row makes it count. A writer that loses takes its row away. What it
// leaves behind, as when it dies, is removed by the next put of the document.
func (s *Store) PutDocument(ctx context.Context, d storage.Document, keep int) error {
	op := fmt.Sprintf("put document %s", d.DocumentKey)
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	if err := storage.CheckDocument(&d, keep); err != nil {
		return named(op, err)
	}
	d.Bytes = len(d.Body)
	// The driver may send the body once more after the call has returned.
	d.Body = append(make([]byte, 0, len(d.Body)), d.Body...)
	head, err := s.readHead(ctx, d.DocumentKey)
	if err != nil {
		return named(op, err)
	}
	if d.Version != head.Version+1 {
		return named(op, s.repeated(ctx, &d, &head))
	}
	nonce, err := gocql.RandomUUID()
	if err != nil {
		return named(op, err)
	}
	tsUs, err := s.timestamp(ctx, 0)
	if err != nil {
		return named(op, err)
	}
	if err := s.session.exec(ctx, tsUs, stmt(cqlWriteVersion, d.Kind, d.ID, d.Version, nonce,
		d.Deleted, d.UpdatedMs, d.Author, d.Title, d.Bytes, d.Body)); err != nil {
		return named(op, err)
	}
	nonces := append([]gocql.UUID{nonce}, head.Nonces[:min(keep-1, len(head.Nonces))]...)
	next, err := s.decide(ctx, &d, nonces)
	if err != nil {
		if errors.Is(err, storage.ErrConflict) {
			_ = s.writeOne(ctx, 0, stmt(cqlDeleteVersion, d.Kind, d.ID, d.Version, nonce))
		}
		return named(op, err)
	}
	s.tidy(ctx, d.DocumentKey, &next)
	return nil
}

// ForgetDocument implements storage.Documents. A conditional delete of the document's row decides. Then the rows of its
// versions count no more. Only those are removed that the row named: another writer may be at the next first version.
func (s *Store) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	op := fmt.Sprintf("forget document %s", key)
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	if !key.Valid() {
		return nil
	}
	head, err := s.readHead(ctx, key)
	if err == nil && head.Version > 0 {
		newest := storage.DocumentHead{DocumentKey: key, Version: head.Version, Deleted: head.Deleted}
		if err = storage.CheckForget(&newest, version); err == nil {
			err = s.forget(ctx, key, &head)
		}
	}
	return named(op, err)
}

func (s *Store) forget(ctx context.Context, key storage.DocumentKey, head *headRow) error {
	won, err := s.session.cas(ctx, stmt(cqlForgetDocument, key.Kind, key.ID, head.Version).again())
	if err == nil && !won { // by the first attempt, or another process was first
		var now headRow
		if now, err = s.readHead(ctx, key); err == nil && now.Version > 0 {
			err = &storage.ConflictError{Key: key, Newest: now.Version}
		}
	}
	if err != nil {
		return err
	}
	found, err := all[versionRow](ctx, s.session, stmt(cqlWrittenVersion, key.Kind, key.ID, head.Version))
	for i := range found {
		r := &found[i]
		if nonce, kept := head.nonce(r.Version); err == nil && kept && nonce == r.Nonce {
			err = s.writeAfter(ctx, r.WrittenUs, stmt(cqlDeleteVersion, key.Kind, key.ID, r.Version, r.Nonce))
		}
	}
	return err
}

// repeated returns nil if d is stored already, and otherwise a conflict.
func (s *Store) repeated(ctx context.Context, d *storage.Document, head *headRow) error {
	if nonce, kept := head.nonce(d.Version); kept {
		stored, ok, err := s.readVersion(ctx, d.DocumentKey, d.Version, nonce)
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			return err
		}
		if ok && stored.Same(d) {
			return nil
		}
	}
	return &storage.ConflictError{Key: d.DocumentKey, Newest: head.Version}
}

// decide makes d the newest version by a conditional write, and returns the document's row as it is then. nonces are those
// of the kept versions, with that of d first. A refusal may come from the effect of an earlier attempt of the driver. So
// the first nonce in the row says who has won.
func (s *Store) decide(ctx context.Context, d *storage.Document, nonces []gocql.UUID) (headRow, error) {
	args := []any{d.Version, nonces, d.Deleted, d.UpdatedMs, d.Author, d.Title, d.Bytes, d.Kind, d.ID}
	next := stmt(cqlFirstVersion, args...).again()
	if d.Version > 1 {
		next = stmt(cqlNextVersion, append(args, d.Version-1)...).again()
	}
	won, err := s.session.cas(ctx, next)
	if err != nil {
		return headRow{}, err
	}
	if won {
		return headRow{Version: d.Version, Nonces: nonces}, nil
	}
	head, err := s.readHead(ctx, d.DocumentKey)
	if err != nil {
		return head, err
	}
	winner, kept := head.nonce(d.Version)
	switch {
	case kept && winner == nonces[0]:
		return head, nil
	case !kept && head.Version > d.Version:
		return head, fmt.Errorf("%w: version %d has been replaced by version %d, and nobody knows any more whose it was", storage.ErrTimeout, d.Version, head.Version)
	}
	return head, &storage.ConflictError{Key: d.DocumentKey, Newest: head.Version}
}

// tidy removes the rows of versions up to the newest that do not count: of versions that are no longer kept, and of
// writers that lost. None of them can count any more, since a version is decided only once. What cannot be removed
// now, the next put removes.
//
// If the document has been forgotten meanwhile, a row may be one of its next first version, whose writer has found it
// forgotten before: so the document's row is read after the list, and says what counts.
func (s *Store) tidy(ctx context.Context, key storage.DocumentKey, head *headRow) {
	found, err := all[versionRow](ctx, s.session, stmt(cqlWrittenVersion, key.Kind, key.ID, head.Version))
	if err != nil {
		return
	}
	now, err := s.readHead(ctx, key)
	if err != nil || now.Version < head.Version {
		return
	}
	for i := range found {
		r := &found[i]
		if nonce, kept := now.nonce(r.Version); kept && nonce == r.Nonce {
			continue
		}
		if err := s.writeAfter(ctx, r.WrittenUs, stmt(cqlDeleteVersion, key.Kind, key.ID, r.Version, r.Nonce)); err != nil {
			return
		}
	}
}
