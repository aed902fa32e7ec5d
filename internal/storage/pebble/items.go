package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"strings"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

func itemKey(k storage.ItemKey) []byte { return kindKey(tableItems, k.Kind, k.ID) }

// expiry: time of expiry, then the key of the row of items without its table. Rows of items that expire have one.
func expiryKey(expiresMs int64, item []byte) []byte {
	return append(appendInt([]byte{tableExpiry}, expiresMs), item[1:]...)
}

// itemRow is a row of items.
type itemRow struct {
	storage.Item
	expiresMs int64 // 0 for never
}

func (e *itemRow) expired(nowMs int64) bool { return e.expiresMs != 0 && e.expiresMs <= nowMs }

// appendItem appends version, the time of expiry and the value.
func appendItem(b []byte, expiresMs int64, value []byte) []byte {
	return append(binary.BigEndian.AppendUint64(append(b, itemVersion), uint64(expiresMs)), value...)
}

// parseItem decodes a row of items.
func parseItem(k, v []byte) (e itemRow, err error) {
	kind, id, _ := bytes.Cut(k[1:], []byte{0})
	e.ItemKey = storage.ItemKey{Kind: string(kind), ID: string(id)}
	if err := checkVersion(v, itemVersion, 9); err != nil {
		return e, fmt.Errorf("item %q of the kind %q: %w", id, kind, err)
	}
	e.expiresMs, e.Value = int64(binary.BigEndian.Uint64(v[1:])), v[9:]
	return e, nil
}

// PutItems implements storage.Items: one batch, synced unless all of it expires soon. While the clock is refused, what
// expires does so by the newest time that the store has seen.
func (s *Store) PutItems(ctx context.Context, es []storage.Item) error {
	const op = "put items"
	if err := storage.CheckItems(es); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	now, err := s.gate.Now()
	if err != nil {
		now = s.gate.Newest()
	}
	puts := make([]row, len(es)) // copies: the caller may change its own when it has given up
	expiries := make([][]byte, len(es))
	size, floor, sync := 0, s.disk.reserve/4, lsm.NoSync
	for i, e := range es {
		puts[i].key = itemKey(e.ItemKey)
		expiresMs := int64(0)
		if e.TTL > 0 {
			expiresMs = now.Add(e.TTL).UnixMilli()
			expiries[i] = expiryKey(expiresMs, puts[i].key)
		}
		puts[i].value = appendItem(nil, expiresMs, e.Value)
		size += 2*rowOverhead + len(e.Value)
		if !e.Protects {
			floor = s.disk.reserve
		}
		if e.TTL == 0 || e.TTL > time.Minute {
			sync = lsm.Sync
		}
	}
	if err := s.disk.admitAbove(floor, size); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.changeItems(ctx, op, sync, func(batch *lsm.Batch) error {
		for i, p := range puts {
			err := s.dropExpiry(batch, p.key)
			if err == nil {
				err = batch.Set(p.key, p.value, nil)
			}
			if err == nil && expiries[i] != nil {
				err = batch.Set(expiries[i], nil, nil)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// changeItems commits what fill puts into a batch. No other change of items is under way meanwhile.
func (s *Store) changeItems(ctx context.Context, op string, o *lsm.WriteOptions, fill func(*lsm.Batch) error) error {
	return s.do(ctx, op, func() error {
		s.rowsMu.Lock()
		defer s.rowsMu.Unlock()
		batch := s.db.NewBatch()
		if err := fill(batch); err != nil || batch.Empty() {
			return closed(batch, err)
		}
		return closed(batch, batch.Commit(o))
	})
}

// dropExpiry adds the deletion of an item's row of expiry to a batch. The row stays if the item cannot be read; Expire
// removes it.
func (s *Store) dropExpiry(batch *lsm.Batch, item []byte) error {
	v, err := s.row(item)
	if err != nil && !lsm.IsCorruptionError(err) {
		return err
	}
	old, err := parseItem(item, v)
	if err != nil || old.expiresMs == 0 {
		return nil //nolint:nilerr // there is none to be found
	}
	return batch.Delete(expiryKey(old.expiresMs, item), nil)
}

// DeleteItems implements storage.Items: one synced batch.
func (s *Store) DeleteItems(ctx context.Context, keys []storage.ItemKey) error {
	rows := make([][]byte, 0, len(keys))
	for _, k := range keys {
		if k.Valid() {
			rows = append(rows, itemKey(k))
		}
	}
	return s.changeItems(ctx, "delete items", lsm.Sync, func(batch *lsm.Batch) error {
		for _, row := range rows {
			if err := s.dropExpiry(batch, row); err != nil {
				return err
			}
			if err := batch.Delete(row, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// Items implements storage.Items. While the clock is refused, nothing has expired.
func (s *Store) Items(ctx context.Context, kind, from, to string) iter.Seq2[storage.Item, error] {
	return func(yield func(storage.Item, error) bool) {
		if strings.Contains(kind, "\x00") {
			return
		}
		lower, upper := kindKey(tableItems, kind, from), kindKey(tableItems, kind, to)
		if to == "" {
			upper = after(kindPrefix(tableItems, kind))
		}
		if to != "" && to <= from {
			lower = upper
		}
		now, refused := s.gate.Now()
		scan(ctx, s, "items of the kind "+kind, lower, upper, nil, parseItem, nil, func(e itemRow, err error) bool {
			return err == nil && refused == nil && e.expired(now.UnixMilli()) || yield(e.Item, err)
		})
	}
}

// expireAtOnce is how many items one batch of expireItems deletes at most.
const expireAtOnce = 1000

// expireItems deletes the items that have expired at nowMs. Those that cannot be read stay.
func (s *Store) expireItems(ctx context.Context, nowMs int64) (err error) {
	const op = "expire items"
	var old [][]byte // keys of expiry
	drop := func() error {
		keys := old
		old = nil
		return s.changeItems(ctx, op, lsm.NoSync, func(batch *lsm.Batch) error {
			for _, k := range keys {
				row := append([]byte{tableItems}, k[1+8:]...)
				v, err := s.row(row)
				if lsm.IsCorruptionError(err) {
					continue
				}
				if err != nil {
					return err
				}
				// It may have been put again since.
				if e, err := parseItem(row, v); err == nil && e.expired(nowMs) {
					if err := batch.Delete(row, nil); err != nil {
						return err
					}
				}
				if err := batch.Delete(k, nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	leave := func([]byte, []byte) bool { return true }
	parse := func(k, _ []byte) ([]byte, error) { return k, nil }
	scan(ctx, s, op, []byte{tableExpiry}, expiryKey(nowMs+1, []byte{tableItems}), nil, parse, leave, func(k []byte, e error) bool {
		if err = e; err == nil && len(k) > 1+8 {
			old = append(old, k)
		}
		if err == nil && len(old) == expireAtOnce {
			err = drop()
		}
		return err == nil
	})
	if err == nil && len(old) > 0 {
		err = drop()
	}
	return err
}
