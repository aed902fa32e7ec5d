package cassandra

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// stocked is a recorder whose reads find nothing.
type stocked struct{ recorder }

func (*stocked) page(context.Context, statement, int, []byte, any) ([]byte, error) { return nil, nil }

// A chunk that is packed long after its slice expires when the last of the chunks in it would have.
func TestPackedChunksExpireInTime(t *testing.T) {
	end := time.Date(2025, time.November, 21, 11, 0, 0, 0, time.UTC)
	slice := end.Add(-time.Hour).UnixMilli()
	for _, c := range []struct {
		name      string
		retention time.Duration
		written   time.Time
		packed    time.Time
		want      time.Duration // the time to live
	}{
		{"by the run", 7 * day, end.Add(-time.Minute), end.Add(2 * time.Minute), 7*day - 2*time.Minute},
		{"days later", 7 * day, end.Add(-time.Minute), end.Add(5 * day), 2 * day},
		{"written days later", 7 * day, end.Add(3 * day), end.Add(5 * day), 5 * day},
		{"by a clock that is behind", 7 * day, end.Add(time.Minute), end, 7 * day},
		{"about to expire", 7 * day, end, end.Add(8 * day), time.Second},
		{"kept for ever", 0, end, end.Add(500 * day), 0},
	} {
		clk := clock.NewSimulated(c.packed)
		s := &stocked{}
		st := &Store{
			session: s, clk: clk, ladder: metric.DefaultLadder(), epochsRead: clock.Read(clk),
			policies: storage.Policies(nil).Set(storage.Policy{Retention: storage.Retention{c.retention}}, 0),
		}
		parts := []blocks.ID{blocks.NewIDs(1).Next(end.Add(-time.Hour).UnixMilli()), blocks.NewIDs(1).Next(c.written.UnixMilli())}
		require.NoError(t, st.PackRaw(t.Context(), 17, storage.RawChunk{SliceMs: slice, Chunk: storage.Chunk{ID: blocks.PackedID(parts)}}, parts), c.name)
		require.Len(t, s.written, 1, c.name)
		args := s.written[0].args
		require.Equal(t, int(c.want/time.Second), args[len(args)-1], c.name)
	}
}

// The packer uses its buffer again, and an attempt that lost may still send.
func TestPackRawKeepsNoBuffer(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, time.November, 21, 11, 0, 0, 0, time.UTC))
	s := &stocked{}
	st := &Store{session: s, clk: clk, epochsRead: clock.Read(clk), policies: storage.Policies(nil).Set(storage.Policy{}, 0)}
	data := []byte("packed")
	require.NoError(t, st.PackRaw(t.Context(), 17, storage.RawChunk{Chunk: storage.Chunk{Data: data}}, nil))
	clear(data)
	require.Contains(t, s.written[0].args, []byte("packed"))
}
