package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"strings"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

func entryKey(k storage.EntryKey) []byte { return kindKey(tableEntries, k.Kind, k.ID) }

// expiry: time of expiry, then the key of the row of entries without its table. Rows of entries that expire have one.
func expiryKey(expiresMs int64, entry []byte) []byte {
	return append(appendInt([]byte{tableExpiry}, expiresMs), entry[1:]...)
}

// entryRow is a row of entries.
type entryRow struct {
	storage.Entry
	expiresMs int64 // 0 for never
}

func (e *entryRow) expired(nowMs int64) bool { return e.expiresMs != 0 && e.expiresMs <= nowMs }

// appendEntry appends version, the time of expiry and the value.
func appendEntry(b []byte, expiresMs int64, value []byte) []byte {
	return append(binary.BigEndian.AppendUint64(append(b, entryVersion), uint64(expiresMs)), value...)
}

// parseEntry decodes a row of entries.
func parseEntry(k, v []byte) (e entryRow, err error) {
	kind, id, _ := bytes.Cut(k[1:], []byte{0})
	e.EntryKey = storage.EntryKey{Kind: string(kind), ID: string(id)}
	if err := checkVersion(v, entryVersion, 9); err != nil {
		return e, fmt.Errorf("entry %q of the kind %q: %w", id, kind, err)
	}
	e.expiresMs, e.Value = int64(binary.BigEndian.Uint64(v[1:])), v[9:]
	return e, nil
}

// PutEntries implements storage.Entries: one synced batch. Only what expires needs the clock.
func (s *Store) PutEntries(ctx context.Context, es []storage.Entry) error {
	const op = "put entries"
	if err := storage.CheckEntries(es); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	now, refused := s.gate.Now()
	puts := make([]row, len(es)) // copies: the caller may change its own when it has given up
	expiries := make([][]byte, len(es))
	size := 0
	for i, e := range es {
		puts[i].key = entryKey(e.EntryKey)
		expiresMs := int64(0)
		if e.TTL > 0 {
			if refused != nil {
				return fmt.Errorf("%s: %w", op, unwritable(refused))
			}
			expiresMs = now.Add(e.TTL).UnixMilli()
			expiries[i] = expiryKey(expiresMs, puts[i].key)
		}
		puts[i].value = appendEntry(nil, expiresMs, e.Value)
		size += 2*rowOverhead + len(e.Value)
	}
	if err := s.disk.admit(size); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.changeEntries(ctx, op, lsm.Sync, func(batch *lsm.Batch) error {
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

// changeEntries commits what fill puts into a batch. No other change of entries is under way meanwhile.
func (s *Store) changeEntries(ctx context.Context, op string, o *lsm.WriteOptions, fill func(*lsm.Batch) error) error {
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

// dropExpiry adds the deletion of an entry's row of expiry to a batch. The row stays if the entry cannot be read; Expire
// removes it.
func (s *Store) dropExpiry(batch *lsm.Batch, entry []byte) error {
	v, err := s.row(entry)
	if err != nil && !lsm.IsCorruptionError(err) {
		return err
	}
	old, err := parseEntry(entry, v)
	if err != nil || old.expiresMs == 0 {
		return nil //nolint:nilerr // there is none to be found
	}
	return batch.Delete(expiryKey(old.expiresMs, entry), nil)
}

// DeleteEntries implements storage.Entries: one synced batch.
func (s *Store) DeleteEntries(ctx context.Context, keys []storage.EntryKey) error {
	rows := make([][]byte, 0, len(keys))
	for _, k := range keys {
		if k.Valid() {
			rows = append(rows, entryKey(k))
		}
	}
	return s.changeEntries(ctx, "delete entries", lsm.Sync, func(batch *lsm.Batch) error {
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

// Entries implements storage.Entries. While the clock is refused, nothing has expired.
func (s *Store) Entries(ctx context.Context, kind, from, to string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		if strings.Contains(kind, "\x00") {
			return
		}
		lower, upper := kindKey(tableEntries, kind, from), kindKey(tableEntries, kind, to)
		if to == "" {
			upper = after(kindPrefix(tableEntries, kind))
		}
		if to != "" && to <= from {
			lower = upper
		}
		now, refused := s.gate.Now()
		scan(ctx, s, "entries of the kind "+kind, lower, upper, nil, parseEntry, nil, func(e entryRow, err error) bool {
			return err == nil && refused == nil && e.expired(now.UnixMilli()) || yield(e.Entry, err)
		})
	}
}

// expireAtOnce is how many entries one batch of expireEntries deletes at most.
const expireAtOnce = 1000

// expireEntries deletes the entries that have expired at nowMs. Those that cannot be read stay.
func (s *Store) expireEntries(ctx context.Context, nowMs int64) (err error) {
	const op = "expire entries"
	var old [][]byte // keys of expiry
	drop := func() error {
		keys := old
		old = nil
		return s.changeEntries(ctx, op, lsm.NoSync, func(batch *lsm.Batch) error {
			for _, k := range keys {
				row := append([]byte{tableEntries}, k[1+8:]...)
				v, err := s.row(row)
				if lsm.IsCorruptionError(err) {
					continue
				}
				if err != nil {
					return err
				}
				// It may have been put again since.
				if e, err := parseEntry(row, v); err == nil && e.expired(nowMs) {
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
	scan(ctx, s, op, []byte{tableExpiry}, expiryKey(nowMs+1, []byte{tableEntries}), nil, parse, leave, func(k []byte, e error) bool {
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
