package cassandra

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// graveyard is a session on an index partition in which some marks are deleted. It gives up a read
// that meets more than most of the deleted marks, as a server does.
type graveyard struct {
	session
	keys    []storage.MarkKey
	deleted map[storage.MarkKey]bool
	most    int
	leased  string

	reads, givenUp int
}

type tooManyTombstones struct{}

func (tooManyTombstones) Code() int { return gocql.ErrCodeReadFailure }
func (tooManyTombstones) Message() string {
	return "Operation failed - received 0 responses and 1 failures: READ_TOO_MANY_TOMBSTONES from /127.0.0.1:7000"
}
func (e tooManyTombstones) Error() string { return e.Message() }

func (g *graveyard) page(ctx context.Context, st statement, size int, from []byte, dest any) ([]byte, error) {
	out, ok := dest.(*[]markRow)
	if !ok {
		return values{value: g.leased}.page(ctx, st, size, from, dest)
	}
	g.reads++
	lower := storage.MarkKey{Start: metric.ScheduleID(st.args[3].(int64)), TimeMs: st.args[4].(int64), ID: blocks.ID(st.args[5].(gocql.UUID))}
	if from != nil {
		lower = after(g.keys[from[0]])
	}
	upper := storage.MarkKey{Start: metric.ScheduleID(st.args[6].(int64)), TimeMs: st.args[7].(int64)}
	crossed := 0
	for i, k := range g.keys {
		switch {
		case k.Compare(lower) < 0 || k.Compare(upper) >= 0:
		case g.deleted[k]:
			if crossed++; crossed > g.most {
				g.givenUp++
				return nil, convert(ctx, tooManyTombstones{})
			}
		default:
			*out = append(*out, markRow{Start: int64(k.Start), TimeMs: k.TimeMs, ID: gocql.UUID(k.ID)})
			if len(*out) == size {
				return []byte{byte(i)}, nil
			}
		}
	}
	return nil, nil
}

// The index is read in order, each mark once, however many marks are deleted and wherever they lie.
func TestMarksAmongTombstones(t *testing.T) {
	const most = 5
	for seed := range uint64(200) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			g := &graveyard{deleted: map[storage.MarkKey]bool{}, most: most, leased: "1280"}
			perTime := map[storage.MarkKey]int{} // a writer has one mark for a block and slice
			for range r.IntN(200) {
				k := storage.MarkKey{Start: metric.ScheduleID(r.IntN(1+r.IntN(12)) * 128), TimeMs: int64(r.IntN(50)) * 3_600_000, ID: blocks.KeyID(1, r.Uint64())}
				if r.IntN(20) == 0 {
					k.Start = 1 << 40 // of a block that should not exist
				}
				if perTime[storage.MarkKey{Start: k.Start, TimeMs: k.TimeMs}]++; perTime[storage.MarkKey{Start: k.Start, TimeMs: k.TimeMs}] > most {
					continue
				}
				g.keys = append(g.keys, k)
				g.deleted[k] = r.IntN(10) > 0
			}
			slices.SortFunc(g.keys, storage.MarkKey.Compare)
			s := &Store{session: g}
			p := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: 50 * 3_600_000}}
			want := slices.DeleteFunc(slices.Clone(g.keys), func(k storage.MarkKey) bool { return g.deleted[k] })
			var got []storage.MarkKey
			for row, err := range s.markRows(t.Context(), p, allMarks, 3) {
				require.NoError(t, err)
				got = append(got, row.key())
			}
			require.True(t, slices.Equal(want, got), "%v\n%v", want, got)

			for _, from := range append(g.keys, storage.MarkKey{}) {
				left := slices.DeleteFunc(slices.Clone(want), func(k storage.MarkKey) bool { return k.Compare(from) < 0 })
				n := 0
				for m, err := range s.Marks(t.Context(), p, from, 1) {
					require.NoError(t, err)
					require.Equal(t, left[0], m.Key())
					n++
					break
				}
				require.Equal(t, min(1, len(left)), n)
			}
		})
	}
}

// Without tombstones the index is read once, page by page.
func TestMarksWithoutTombstones(t *testing.T) {
	g := &graveyard{most: 5}
	for i := range 10 {
		g.keys = append(g.keys, storage.MarkKey{Start: metric.ScheduleID(i * 128), ID: blocks.KeyID(1, uint64(i))})
	}
	s := &Store{session: g}
	n := 0
	for _, err := range s.Marks(t.Context(), storage.IndexPartition{}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 10, n)
	require.Equal(t, 1, g.reads)
}

// If a span cannot be split any further, the server's error is returned.
func TestMarksThatCannotBeRead(t *testing.T) {
	g := &graveyard{most: 0, leased: "128", keys: []storage.MarkKey{{ID: blocks.KeyID(1, 1)}, {ID: blocks.KeyID(1, 2)}}}
	g.deleted = map[storage.MarkKey]bool{g.keys[0]: true, g.keys[1]: true}
	s := &Store{session: g}
	for _, err := range s.Marks(t.Context(), storage.IndexPartition{}, storage.MarkKey{}, 1) {
		require.ErrorIs(t, err, storage.ErrTimeout)
	}
	require.NotZero(t, g.reads)
	require.Less(t, g.reads, 60)
}

// index holds the rows of one index partition.
type index struct {
	session

	rows []markRow
}

func (x index) page(_ context.Context, _ statement, _ int, _ []byte, dest any) ([]byte, error) {
	*dest.(*[]markRow) = x.rows
	return nil, nil
}

// A mark that does not decode is yielded as damaged, and the marks after it are read.
func TestDamagedMarks(t *testing.T) {
	s := &Store{session: index{rows: []markRow{
		{Start: 128, TimeMs: 5, ID: gocql.UUID(blocks.KeyID(1, 1)), Kind: int(storage.MarkTakeBack) + 1, Chunks: 7},
		{Start: 128, TimeMs: 5, ID: gocql.UUID(blocks.KeyID(1, 2)), Kind: -1},
		{Start: 256, TimeMs: 5, ID: gocql.UUID(blocks.KeyID(1, 3)), Kind: int(storage.MarkLate), Schedules: []byte{0xff}, Attempt: 3},
		{Start: 256, TimeMs: 6, ID: gocql.UUID(blocks.KeyID(1, 4)), Kind: int(storage.MarkRetry), DueMs: 9, Attempt: 3},
	}}}
	var got []storage.Mark
	for m, err := range s.Marks(t.Context(), storage.IndexPartition{}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		got = append(got, m)
	}
	require.Equal(t, []storage.Mark{
		{Start: 128, TimeMs: 5, ID: blocks.KeyID(1, 1), Kind: storage.MarkLate, Damaged: true},
		{Start: 128, TimeMs: 5, ID: blocks.KeyID(1, 2), Kind: storage.MarkLate, Damaged: true},
		{Start: 256, TimeMs: 5, ID: blocks.KeyID(1, 3), Kind: storage.MarkLate, Damaged: true},
		{Start: 256, TimeMs: 6, ID: blocks.KeyID(1, 4), Kind: storage.MarkRetry, DueMs: 9, Attempt: 3},
	}, got)
}
