package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

// A version of a document is a row of two tables, written in one batch: its head alone in documents, which lists
// read, and its head and body in document_versions. The keys are the same but for the table.

// documents, document_versions: kind, id, version. Kind and id end with a 0 byte, which neither contains, so that they
// order as text. Newer versions come first.
func documentsPrefix(table byte, kind string) []byte {
	return append(append([]byte{table}, kind...), 0)
}

func versionsPrefix(table byte, k storage.DocumentKey) []byte {
	return append(append(documentsPrefix(table, k.Kind), k.ID...), 0)
}

func versionKey(table byte, k storage.DocumentKey, version int64) []byte {
	return binary.BigEndian.AppendUint64(versionsPrefix(table, k), ^uint64(version))
}

func parseVersionKey(k []byte) (h storage.DocumentHead, err error) {
	name, version := k[1:max(1, len(k)-8)], k[max(1, len(k)-8):]
	kind, rest, _ := bytes.Cut(name, []byte{0})
	id, rest, ended := bytes.Cut(rest, []byte{0})
	h.DocumentKey = storage.DocumentKey{Kind: string(kind), ID: string(id)}
	if len(version) != 8 || !ended || len(rest) > 0 || !h.Valid() {
		return storage.DocumentHead{}, damagedKey("documents", k)
	}
	h.Version = int64(^binary.BigEndian.Uint64(version))
	return h, nil
}

// documentDeleted is the bit of the flags that marks a deletion.
const documentDeleted = 1

// appendHead appends version, flags, time, length of the body, author and title.
func appendHead(b []byte, h *storage.DocumentHead) []byte {
	flags := byte(0)
	if h.Deleted {
		flags |= documentDeleted
	}
	b = append(b, documentVersion, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(h.UpdatedMs))
	b = binary.AppendUvarint(b, uint64(h.Bytes))
	for _, text := range []string{h.Author, h.Title} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

// parseHead decodes what appendHead wrote into h, whose key and version the caller has set. It returns what follows.
func parseHead(b []byte, h *storage.DocumentHead) (rest []byte, err error) {
	if err := checkVersion(b, documentVersion, 10); err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	flags := b[1]
	r := varints{rest: b[10:]}
	size, author, title := r.uint(), r.take(r.uint()), []byte(nil)
	title = r.take(r.uint())
	if r.bad || flags&^documentDeleted != 0 || size > storage.MaxDocumentBody {
		return nil, fmt.Errorf("document: %w: %w", storage.ErrCorrupt, errValue)
	}
	h.Deleted, h.UpdatedMs, h.Bytes = flags&documentDeleted != 0, int64(binary.BigEndian.Uint64(b[2:])), int(size)
	h.Author, h.Title = string(author), string(title)
	return r.rest, nil
}

// parseDocument decodes a row of document_versions.
func parseDocument(h storage.DocumentHead, b []byte) (storage.Document, error) {
	rest, err := parseHead(b, &h)
	if err == nil && len(rest) != h.Bytes {
		err = fmt.Errorf("document: %w: %w", storage.ErrCorrupt, errValue)
	}
	if err != nil {
		return storage.Document{}, err
	}
	return storage.Document{DocumentHead: h, Body: rest}, nil
}

// Document implements storage.Documents.
func (s *Store) Document(ctx context.Context, key storage.DocumentKey, version int64) (storage.Document, error) {
	op := fmt.Sprintf("document %s", key)
	if err := s.begin(ctx, op); err != nil {
		return storage.Document{}, err
	}
	if !key.Valid() || version < 0 {
		return storage.Document{}, fmt.Errorf("%s: %w", op, storage.ErrNoDocument)
	}
	// A version may be removed between the look at the newest and the read of it: then there is a newer one.
	for wanted := version; ; {
		if version == 0 {
			newest, err := s.newestVersion(key)
			if err != nil {
				return storage.Document{}, convert(op, err)
			}
			if newest == 0 {
				return storage.Document{}, fmt.Errorf("%s: %w", op, storage.ErrNoDocument)
			}
			if newest == wanted {
				return storage.Document{}, fmt.Errorf("%s, version %d: its body is missing: %w", op, wanted, storage.ErrCorrupt)
			}
			wanted = newest
		}
		d, ok, err := s.document(key, wanted)
		switch {
		case err != nil:
			return storage.Document{}, convert(fmt.Sprintf("%s, version %d", op, wanted), err)
		case ok:
			return d, nil
		case version != 0:
			return storage.Document{}, fmt.Errorf("%s, version %d: %w", op, version, storage.ErrNoDocument)
		}
	}
}

// document reads one version. ok is false if there is none.
func (s *Store) document(key storage.DocumentKey, version int64) (d storage.Document, ok bool, err error) {
	v, err := s.row(versionKey(tableVersions, key, version))
	if err != nil || v == nil {
		return d, false, err
	}
	d, err = parseDocument(storage.DocumentHead{DocumentKey: key, Version: version}, v)
	return d, err == nil, err
}

// newestVersion returns the number of the newest version, 0 if there is none.
func (s *Store) newestVersion(key storage.DocumentKey) (int64, error) {
	prefix := versionsPrefix(tableDocuments, key)
	k, lost, err := s.firstReadable(prefix, after(prefix))
	switch {
	case err != nil:
		return 0, err
	case lost != nil:
		return 0, damage{fmt.Errorf("the newest version of %s may lie in a damaged block of a table: restore the directory from a backup, "+
			"or put the document under another id", key)}
	case k == nil:
		return 0, nil
	}
	h, err := parseVersionKey(k)
	return h.Version, err
}

// newestOnly skips all but the first version of each document. It may see a key more than once.
func newestOnly() skipFunc {
	var taken []byte
	return func(k []byte) []byte {
		name := len(k) - 8
		if name < 1 || len(taken) != len(k) || !bytes.Equal(taken[1:name], k[1:name]) {
			taken = append(taken[:0], k...)
			return nil
		}
		if bytes.Equal(taken[1:], k[1:]) {
			return nil
		}
		return after(k[:name])
	}
}

// heads yields the heads of the versions that skip lets through. prefix is that of documents.
func (s *Store) heads(ctx context.Context, op string, prefix []byte, skip skipFunc, yield func(storage.DocumentHead, error) bool) {
	var lostTo []byte // the end of the last range that cannot be read
	parse := func(k, v []byte) (storage.DocumentHead, error) {
		h, err := parseVersionKey(k)
		if err != nil {
			s.lost(fmt.Sprintf("a document with the key %x", k))
			return storage.DocumentHead{}, nil //nolint:nilerr // it is named, and left out
		}
		// A newer version of the document may be lost.
		outdated := skip != nil && bytes.Compare(versionsPrefix(tableDocuments, h.DocumentKey), lostTo) < 0
		if rest, err := parseHead(v, &h); err != nil || len(rest) > 0 || outdated {
			return storage.DocumentHead{DocumentKey: h.DocumentKey, Version: h.Version, Damaged: true}, nil //nolint:nilerr // the head says so
		}
		return h, nil
	}
	around := func(_, to []byte) bool {
		lostTo = bytes.Clone(to)
		s.lost("some " + op)
		return true
	}
	scan(ctx, s, op, prefix, after(prefix), skip, parse, around, func(h storage.DocumentHead, err error) bool {
		return h.Version == 0 && err == nil || yield(h, err)
	})
}

// Documents implements storage.Documents.
func (s *Store) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		if !storage.ValidKind(kind) {
			return
		}
		s.heads(ctx, "documents of the kind "+kind, documentsPrefix(tableDocuments, kind), newestOnly(), yield)
	}
}

// Versions implements storage.Documents.
func (s *Store) Versions(ctx context.Context, key storage.DocumentKey) iter.Seq2[storage.DocumentHead, error] {
	return func(yield func(storage.DocumentHead, error) bool) {
		if !key.Valid() {
			return
		}
		s.heads(ctx, "versions of "+key.String(), versionsPrefix(tableDocuments, key), nil, yield)
	}
}

// PutDocument implements storage.Documents: one synced batch.
func (s *Store) PutDocument(ctx context.Context, d storage.Document, keep int) error {
	op := fmt.Sprintf("put document %s", d.DocumentKey)
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	if err := storage.CheckDocument(&d, keep); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	d.Bytes = len(d.Body)
	head := appendHead(nil, &d.DocumentHead)
	version := append(bytes.Clone(head), d.Body...)
	floor := s.disk.reserve
	if d.Protects {
		floor /= 4
	}
	if err := s.disk.admitAbove(floor, 2*(rowOverhead+len(head))+len(d.Body)); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	// The caller may change the body once the call has returned, but the version is a copy of it.
	wanted := storage.Document{DocumentHead: d.DocumentHead, Body: version[len(head):]}
	return s.do(ctx, op, func() error {
		s.documentsMu.Lock()
		defer s.documentsMu.Unlock()
		newest, err := s.newestVersion(wanted.DocumentKey)
		if err != nil {
			return err
		}
		if wanted.Version != newest+1 {
			if stored, ok, err := s.document(wanted.DocumentKey, wanted.Version); err == nil && ok && stored.Same(&wanted) {
				return nil
			}
			return &storage.ConflictError{Key: wanted.DocumentKey, Newest: newest}
		}
		batch := s.db.NewBatch()
		err = batch.Set(versionKey(tableDocuments, wanted.DocumentKey, wanted.Version), head, nil)
		if err == nil {
			err = batch.Set(versionKey(tableVersions, wanted.DocumentKey, wanted.Version), version, nil)
		}
		for _, table := range []byte{tableDocuments, tableVersions} {
			if err == nil && wanted.Version > int64(keep) {
				err = s.dropVersions(batch, table, wanted.DocumentKey, wanted.Version-int64(keep))
			}
		}
		if err == nil {
			err = batch.Commit(lsm.Sync)
		}
		return closed(batch, err)
	})
}

// ForgetDocument implements storage.Documents: one synced batch.
func (s *Store) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	op := fmt.Sprintf("forget document %s", key)
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	if !key.Valid() {
		return nil
	}
	return s.do(ctx, op, func() error {
		s.documentsMu.Lock()
		defer s.documentsMu.Unlock()
		newest, err := s.newestVersion(key)
		if err != nil || newest == 0 {
			return err
		}
		d, ok, err := s.document(key, newest)
		if err == nil && !ok {
			err = damage{fmt.Errorf("%s, version %d: its body is missing", key, newest)}
		}
		if err == nil {
			err = storage.CheckForget(&d.DocumentHead, version)
		}
		if err != nil {
			return err
		}
		batch := s.db.NewBatch()
		for _, table := range []byte{tableDocuments, tableVersions} {
			if err == nil {
				err = s.dropVersions(batch, table, key, newest)
			}
		}
		if err == nil {
			err = batch.Commit(lsm.Sync)
		}
		return closed(batch, err)
	})
}

// dropVersions deletes the versions up to one. Where they cannot be listed, it takes a range tombstone.
func (s *Store) dropVersions(batch *lsm.Batch, table byte, key storage.DocumentKey, last int64) error {
	lower, upper := versionKey(table, key, last), after(versionsPrefix(table, key))
	if s.unreadable.past(lower) == nil {
		err := s.eachKey(lower, upper, func(k []byte) error { return batch.Delete(k, nil) })
		if !lsm.IsCorruptionError(err) {
			return err
		}
		s.beyond(lower, upper, err)
	}
	return batch.DeleteRange(lower, upper, nil)
}

// moment formats a time for messages.
func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
