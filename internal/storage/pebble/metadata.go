package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// metadata: name.
func metadataKey(name string) []byte { return append([]byte{tableMetadata}, name...) }

// PutMetadata implements storage.Metadata. It is not synced.
func (s *Store) PutMetadata(ctx context.Context, ms []metric.Metadata) error {
	const op = "put metadata"
	size := 0
	for i := range ms {
		size += rowOverhead + len(ms[i].Name) + len(ms[i].Help) + len(ms[i].Unit)
	}
	if err := s.disk.admit(size); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return s.do(ctx, op, func() error {
		batch := s.db.NewBatch()
		for i := range ms {
			if err := batch.Set(metadataKey(ms[i].Name), appendMetadata(nil, &ms[i]), nil); err != nil {
				return closed(batch, err)
			}
		}
		if batch.Empty() {
			return batch.Close()
		}
		return closed(batch, batch.Commit(lsm.NoSync))
	})
}

// Metadata implements storage.Metadata.
func (s *Store) Metadata(ctx context.Context) iter.Seq2[metric.Metadata, error] {
	return func(yield func(metric.Metadata, error) bool) {
		lower := []byte{tableMetadata}
		scan(ctx, s, "metadata", lower, after(lower), nil, func(k, v []byte) (metric.Metadata, error) {
			return parseMetadata(string(k[1:]), v)
		}, nil, yield)
	}
}

// appendMetadata appends version, type, unit and help.
func appendMetadata(b []byte, m *metric.Metadata) []byte {
	b = append(b, metadataVersion, byte(m.Type))
	b = binary.AppendUvarint(b, uint64(len(m.Unit)))
	b = append(b, m.Unit...)
	return append(b, m.Help...)
}

// parseMetadata decodes what appendMetadata wrote.
func parseMetadata(name string, b []byte) (metric.Metadata, error) {
	if err := checkVersion(b, metadataVersion, 2); err != nil {
		return metric.Metadata{}, fmt.Errorf("metadata: %w", err)
	}
	r := varints{rest: b[2:]}
	unit := r.take(r.uint())
	if r.bad {
		return metric.Metadata{}, fmt.Errorf("metadata: %w: %w", storage.ErrCorrupt, errValue)
	}
	return metric.Metadata{Name: name, Type: metric.Type(b[1]), Unit: string(unit), Help: string(r.rest)}, nil
}
