package cassandra

import (
	"context"
	"encoding/binary"
	"strconv"
	"testing"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// rawTable answers reads of raw chunks. The chunks of all partitions have the same sizes, and their number as id.
type rawTable struct {
	session
	sizes []int
	asked []int // the rows of each page, as asked for
	most  int   // the bytes of the largest page
}

func (r *rawTable) page(_ context.Context, _ statement, size int, from []byte, dest any) ([]byte, error) {
	r.asked = append(r.asked, size)
	n, _ := strconv.Atoi(string(from))
	bytes := 0
	for ; size > 0 && n < len(r.sizes); size-- {
		var id gocql.UUID
		binary.BigEndian.PutUint64(id[8:], uint64(n))
		*dest.(*[]rawRow) = append(*dest.(*[]rawRow), rawRow{ID: id, Data: make([]byte, r.sizes[n])})
		bytes += r.sizes[n]
		n++
	}
	r.most = max(r.most, bytes)
	if n == len(r.sizes) {
		return nil, nil
	}
	return []byte(strconv.Itoa(n)), nil
}

// chunks returns n chunks of a size.
func chunks(n, size int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = size
	}
	return out
}

// Pages of raw chunks have about as many bytes, whether the chunks are those of flushes or packed.
func TestPagesOfRawChunks(t *testing.T) {
	for _, c := range []struct {
		name         string
		sizes        []int
		first, again []int // the rows asked for when a process reads the table for the first time, and then
		most         int   // bytes of a page that is read again
	}{
		{"none", nil, []int{32}, []int{32}, 0},
		{"a day, packed", chunks(24, 20_000), []int{32}, []int{32}, pageBytes},
		{"a day, flushed every 10 s", chunks(8640, 500), []int{32, 2097, 2097, 2097, 2097, 2097}, []int{32, 2097, 2097, 2097, 2097, 2097}, pageBytes},
		{"empty", chunks(40, 0), []int{32, manyRows}, []int{32, manyRows}, 0},
		{"hours of dense samples, packed", chunks(5, 3<<19), []int{32}, []int{1, 1, 1, 1, 1}, 3 << 19},
		{"packed, then flushed", append(chunks(11, 20_000), chunks(360, 300)...), []int{32, 148, 3495}, []int{32, 148, 3495}, pageBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := &rawTable{sizes: c.sizes}
			s := &Store{session: table, groupSize: 128}
			for _, want := range [][]int{c.first, c.again} {
				table.asked, table.most = nil, 0
				n := 0
				for ch, err := range s.RawChunks(t.Context(), blocks.Range{Start: 128, End: 200}, 0, 1) {
					require.NoError(t, err)
					require.Equal(t, metric.ScheduleID(128), ch.Group)
					require.EqualValues(t, n, binary.BigEndian.Uint64(ch.ID[8:]))
					require.Len(t, ch.Data, c.sizes[n])
					n++
				}
				require.Equal(t, len(c.sizes), n)
				require.Equal(t, want, table.asked)
			}
			require.LessOrEqual(t, table.most, c.most)
		})
	}
}
