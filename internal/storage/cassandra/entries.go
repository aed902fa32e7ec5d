package cassandra

import (
	"context"
	"iter"

	"github.com/quern/quern/internal/storage"
)

const (
	cqlWriteEntry  = `INSERT INTO entries (kind, id, value) VALUES (?, ?, ?) USING TTL ?`
	cqlReadEntries = `SELECT id, value FROM entries WHERE kind = ? AND id >= ? AND id < ?`
	cqlReadLast    = `SELECT id, value FROM entries WHERE kind = ? AND id >= ?`
	cqlDropEntry   = `DELETE FROM entries WHERE kind = ? AND id = ?`
)

// entryRows is how many entries a page has.
const entryRows = 1000

// PutEntries implements storage.Entries.
func (s *Store) PutEntries(ctx context.Context, es []storage.Entry) error {
	const op = "put entries"
	if err := storage.CheckEntries(es); err != nil {
		return named(op, err)
	}
	// Of two rows with the same key and timestamp the greater value would win. So only the last one is written.
	last := make(map[storage.EntryKey]int, len(es))
	for i := range es {
		last[es[i].EntryKey] = i
	}
	byKind := make(map[string][]statement)
	for i := range es {
		if e := &es[i]; last[e.EntryKey] == i {
			// The driver may send the value once more after the call has returned.
			value := append(make([]byte, 0, len(e.Value)), e.Value...)
			byKind[e.Kind] = append(byKind[e.Kind], stmt(cqlWriteEntry, e.Kind, e.ID, value, ttl(e.TTL)))
		}
	}
	return named(op, s.writeEntries(ctx, byKind))
}

// DeleteEntries implements storage.Entries.
func (s *Store) DeleteEntries(ctx context.Context, keys []storage.EntryKey) error {
	byKind := make(map[string][]statement)
	for _, k := range keys {
		if k.Valid() {
			byKind[k.Kind] = append(byKind[k.Kind], stmt(cqlDropEntry, k.Kind, k.ID))
		}
	}
	return named("delete entries", s.writeEntries(ctx, byKind))
}

// writeEntries executes statements of several partitions.
func (s *Store) writeEntries(ctx context.Context, byKind map[string][]statement) error {
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	tsUs, err := s.timestamp(ctx, 0)
	if err != nil {
		return err
	}
	return together(ctx, byKind, func(ctx context.Context, _ string, stmts []statement) error { return s.inBatches(ctx, tsUs, stmts) })
}

type entryRow struct {
	ID    string `db:"id"`
	Value []byte `db:"value"`
}

// Entries implements storage.Entries.
func (s *Store) Entries(ctx context.Context, kind, from, to string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		read := stmt(cqlReadEntries, kind, from, to)
		switch {
		case kind == "" || to != "" && to <= from:
			return
		case to == "":
			read = stmt(cqlReadLast, kind, from)
		}
		for r, err := range rows[entryRow](ctx, s.session, entryRows, read) {
			e := storage.Entry{EntryKey: storage.EntryKey{Kind: kind, ID: r.ID}, Value: r.Value}
			if !yield(e, named("entries", err)) || err != nil {
				return
			}
		}
	}
}
