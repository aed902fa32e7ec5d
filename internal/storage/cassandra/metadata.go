package cassandra

import (
	"context"
	"iter"

	"github.com/quern/quern/internal/metric"
)

const (
	cqlWriteMetadata = `INSERT INTO metric_metadata (ring, name, type, help, unit) VALUES (0, ?, ?, ?, ?)`
	cqlReadMetadata  = `SELECT name, type, help, unit FROM metric_metadata WHERE ring = 0`
)

// PutMetadata implements storage.Metadata.
func (s *Store) PutMetadata(ctx context.Context, ms []metric.Metadata) error {
	if ctx.Err() != nil {
		return convert(ctx, ctx.Err())
	}
	// Of two rows with the same key and timestamp in one batch the greater values would win. So
	// only the last row of a name is written.
	last := make(map[string]int, len(ms))
	for i := range ms {
		last[ms[i].Name] = i
	}
	stmts := make([]statement, 0, len(last))
	for i := range ms {
		if m := &ms[i]; last[m.Name] == i {
			stmts = append(stmts, stmt(cqlWriteMetadata, m.Name, m.Type.String(), m.Help, m.Unit))
		}
	}
	const op = "put metadata"
	tsUs, err := s.timestamp(ctx, 0)
	if err != nil {
		return named(op, err)
	}
	return named(op, s.inBatches(ctx, tsUs, stmts))
}

type metadataRow struct {
	Name string `db:"name"`
	Type string `db:"type"`
	Help string `db:"help"`
	Unit string `db:"unit"`
}

// Metadata implements storage.Metadata.
func (s *Store) Metadata(ctx context.Context) iter.Seq2[metric.Metadata, error] {
	return func(yield func(metric.Metadata, error) bool) {
		for r, err := range rows[metadataRow](ctx, s.session, manyRows, stmt(cqlReadMetadata)) {
			m := metric.Metadata{Name: r.Name, Type: metric.ParseType(r.Type), Help: r.Help, Unit: r.Unit}
			if !yield(m, named("metadata", err)) || err != nil {
				return
			}
		}
	}
}
