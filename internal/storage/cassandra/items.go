package cassandra

import (
	"context"
	"iter"

	"github.com/quern/quern/internal/storage"
)

const (
	cqlWriteItem = `INSERT INTO items (kind, id, value) VALUES (?, ?, ?) USING TTL ?`
	cqlReadItems = `SELECT id, value FROM items WHERE kind = ? AND id >= ? AND id < ?`
	cqlReadLast  = `SELECT id, value FROM items WHERE kind = ? AND id >= ?`
	cqlDropItem  = `DELETE FROM items WHERE kind = ? AND id = ?`
)

// firstItems and itemRows are how many items the first page has, and each other one. Some look at the first few items only.
const (
	firstItems = 100
	itemRows   = 1000
)

// PutItems implements storage.Items.
func (s *Store) PutItems(ctx context.Context, es []storage.Item) error {
	const op = "put items"
	if err := storage.CheckItems(es); err != nil {
		return named(op, err)
	}
	// Of two rows with the same key and timestamp the greater value would win. So only the last one is written.
	last := make(map[storage.ItemKey]int, len(es))
	for i := range es {
		last[es[i].ItemKey] = i
	}
	byKind := make(map[string][]statement)
	for i := range es {
		if e := &es[i]; last[e.ItemKey] == i {
			// The driver may send the value once more after the call has returned.
			value := append(make([]byte, 0, len(e.Value)), e.Value...)
			byKind[e.Kind] = append(byKind[e.Kind], stmt(cqlWriteItem, e.Kind, e.ID, value, ttl(e.TTL)))
		}
	}
	return named(op, s.writeItems(ctx, byKind))
}

// DeleteItems implements storage.Items.
func (s *Store) DeleteItems(ctx context.Context, keys []storage.ItemKey) error {
	byKind := make(map[string][]statement)
	for _, k := range keys {
		if k.Valid() {
			byKind[k.Kind] = append(byKind[k.Kind], stmt(cqlDropItem, k.Kind, k.ID))
		}
	}
	return named("delete items", s.writeItems(ctx, byKind))
}

// writeItems executes statements of several partitions.
func (s *Store) writeItems(ctx context.Context, byKind map[string][]statement) error {
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	tsUs, err := s.timestamp(ctx, 0)
	if err != nil {
		return err
	}
	return together(ctx, byKind, func(ctx context.Context, _ string, stmts []statement) error { return s.inBatches(ctx, tsUs, stmts) })
}

type itemRow struct {
	ID string `db:"id"`
	// Value is nil in a row that expires. A put that was sent twice, for lack of an answer, has two expiry times. Between
	// them a read that meets both finds only the key: at equal write timestamps the expired cell wins.
	Value *[]byte `db:"value"`
}

// Items implements storage.Items.
func (s *Store) Items(ctx context.Context, kind, from, to string) iter.Seq2[storage.Item, error] {
	return func(yield func(storage.Item, error) bool) {
		read := stmt(cqlReadItems, kind, from, to)
		switch {
		case kind == "" || to != "" && to <= from:
			return
		case to == "":
			read = stmt(cqlReadLast, kind, from)
		}
		size := firstItems
		for page, err := range paged[itemRow](ctx, s.session, func() int { return size }, read) {
			if err != nil {
				yield(storage.Item{}, named("items", err))
				return
			}
			size = itemRows
			for _, r := range page {
				if r.Value != nil && !yield(storage.Item{ItemKey: storage.ItemKey{Kind: kind, ID: r.ID}, Value: *r.Value}, nil) {
					return
				}
			}
		}
	}
}
