package cassandra

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// listed answers every query with the same partitions, a few per page.
type listed struct {
	session // nil: no other method is called

	parts  []partition
	failAt int // the page that fails, counted from 1; 0 for none
	asked  []string
}

var errPage = errors.New("this page fails")

func (l *listed) page(_ context.Context, st statement, _ int, from []byte, dest any) ([]byte, error) {
	const pageRows = 3
	l.asked = append(l.asked, st.cql)
	page := 0
	if from != nil {
		page = int(from[0])
	}
	if page+1 == l.failAt {
		return nil, errPage
	}
	begin, end := page*pageRows, min((page+1)*pageRows, len(l.parts))
	*dest.(*[]partition) = append(*dest.(*[]partition), l.parts[begin:end]...)
	if end == len(l.parts) {
		return nil, nil
	}
	return []byte{byte(page + 1)}, nil
}

func TestPartitions(t *testing.T) {
	const hour = int64(3600_000)
	const names, lists = false, true
	stored := []partition{{8, 2 * hour}, {0, 0}, {4, hour}, {4, 0}, {12, 5 * hour}, {8, -hour}, {4, 3 * hour}}
	for _, c := range []struct {
		name         string
		start, end   metric.ScheduleID
		fromMs, toMs int64
		lists        bool
		want         []partition
	}{
		{"no ids", 5, 5, 0, hour, names, nil},
		{"no time", 0, 5, hour, hour, names, nil},
		{"one schedule, one moment", 5, 6, hour + 1, hour + 2, names, []partition{{4, hour}}},
		{"a group, an hour", 4, 8, hour, 2 * hour, names, []partition{{4, hour}}},
		{"over the edges", 3, 5, hour - 1, hour + 1, names, []partition{{0, 0}, {0, hour}, {4, 0}, {4, hour}}},
		{"before 1970", 0, 1, -1, 1, names, []partition{{0, -hour}, {0, 0}}},
		{"all ids and times", 0, math.MaxInt64, math.MinInt64, math.MaxInt64, lists, []partition{
			{0, 0}, {4, 0}, {4, hour}, {4, 3 * hour}, {8, -hour}, {8, 2 * hour}, {12, 5 * hour},
		}},
		{"all ids, an hour", 0, math.MaxInt64, 0, hour, lists, []partition{{0, 0}, {4, 0}}},
		{"some ids, all times", 4, 9, math.MinInt64, math.MaxInt64, lists, []partition{
			{4, 0}, {4, hour}, {4, 3 * hour}, {8, -hour}, {8, 2 * hour},
		}},
		{"some ids from within a group, since 1970", 7, 9, 0, math.MaxInt64, lists, []partition{
			{4, 0}, {4, hour}, {4, 3 * hour}, {8, 2 * hour},
		}},
		{"the last id", math.MaxInt64 - 1, math.MaxInt64, 0, hour, names, []partition{{math.MaxInt64 - 3, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &listed{parts: stored}
			s := &Store{session: f}
			got, err := s.partitions(t.Context(), listing{cqlList: "LIST", groupSize: 4, periodMs: hour},
				blocks.Range{Start: c.start, End: c.end}, c.fromMs, c.toMs)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.lists, len(f.asked) > 0)
		})
	}
	t.Run("as many as are named", func(t *testing.T) {
		f := &listed{parts: stored}
		s := &Store{session: f}
		for _, groups := range []int{maxNamed, maxNamed + 1} {
			got, err := s.partitions(t.Context(), listing{groupSize: 4, periodMs: hour}, blocks.Range{End: metric.ScheduleID(4 * groups)}, 0, hour)
			require.NoError(t, err)
			if groups == maxNamed {
				require.Len(t, got, groups)
				require.Empty(t, f.asked)
			} else {
				require.Equal(t, []partition{{0, 0}, {4, 0}}, got)
			}
		}
	})
	t.Run("the listing fails", func(t *testing.T) {
		s := &Store{session: &listed{parts: stored, failAt: 2}}
		_, err := s.partitions(t.Context(), listing{groupSize: 4, periodMs: hour}, blocks.Range{End: math.MaxInt64}, 0, hour)
		require.ErrorIs(t, err, errPage)
	})
}

// reader reads keys slowly. Each key has as many rows as rows returns for it.
type reader struct {
	rows    func(key int) int
	failAt  int // the key whose last row is an error; below 0 for none
	running atomic.Int64
	most    atomic.Int64
	started atomic.Int64
}

var errRow = errors.New("this row fails")

func (r *reader) read(ctx context.Context, key int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		r.started.Add(1)
		r.most.Store(max(r.most.Load(), r.running.Add(1)))
		defer r.running.Add(-1)
		rng := rand.New(rand.NewPCG(uint64(key), 5))
		for i := range r.rows(key) {
			select {
			case <-time.After(time.Duration(rng.IntN(10)) * time.Millisecond):
			case <-ctx.Done():
				yield("", ctx.Err())
				return
			}
			if !yield(fmt.Sprintf("%d/%d", key, i), nil) {
				return
			}
		}
		if key == r.failAt {
			yield("", errRow)
		}
	}
}

func keysUpTo(n int) (keys []int) {
	for i := range n {
		keys = append(keys, i)
	}
	return keys
}

// manyAndFew returns no rows for some keys, a few for others, and for others more than are kept
// ahead.
func manyAndFew(key int) int { return []int{3, 0, 5 * aheadRows, 1}[key%4] }

func expected(keys []int, rows func(int) int) (out []string) {
	for _, k := range keys {
		for i := range rows(k) {
			out = append(out, fmt.Sprintf("%d/%d", k, i))
		}
	}
	return out
}

// Spread keeps the order, yields an error once and last, and leaves no reader running, whether the
// readers wait for rows or for room.
func TestSpread(t *testing.T) {
	for _, c := range []struct {
		keys   int
		failAt int           // -1 for never
		rows   int           // after which the loop breaks; -1 for never
		ends   time.Duration // after which the context ends; 0 for never
	}{
		{0, -1, -1, 0},
		{1, -1, -1, 0},
		{readAhead, -1, -1, 0},
		{5 * readAhead, -1, -1, 0},
		{50, 0, -1, 0},
		{50, readAhead, -1, 0},
		{50, 49, -1, 0},
		{100, -1, 0, 0},
		{100, -1, 2, 0},
		{100, -1, 1000, 0},
		{200, -1, -1, time.Nanosecond},
		{200, -1, -1, 50 * time.Millisecond},
		{200, -1, -1, time.Second},
	} {
		for _, ahead := range []int{0, aheadRows} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.ends > 0 {
					time.AfterFunc(c.ends, cancel)
				}
				r := &reader{rows: manyAndFew, failAt: c.failAt}
				var got []string
				var failed error
				for row, err := range spread(ctx, keysUpTo(c.keys), ahead, r.read) {
					require.NoError(t, failed, "nothing follows an error")
					if failed = err; err != nil {
						continue
					}
					if got = append(got, row); len(got)-1 == c.rows {
						time.Sleep(time.Second) // the others read as far as they may
						break
					}
				}
				require.Zero(t, r.running.Load(), "when the loop has ended")
				require.LessOrEqual(t, r.most.Load(), int64(readAhead))
				want := expected(keysUpTo(c.keys), manyAndFew)
				switch {
				case c.failAt >= 0:
					require.ErrorIs(t, failed, errRow)
					require.Equal(t, expected(keysUpTo(c.failAt+1), manyAndFew), got, "all before it, and nothing of what lies behind")
				case c.ends > 0:
					require.ErrorIs(t, failed, context.Canceled, "what is short must not look whole")
					require.Equal(t, want[:len(got)], append([]string{}, got...))
				case c.rows >= 0:
					require.Equal(t, want[:c.rows+1], got)
					require.Less(t, r.started.Load(), int64(c.keys), "nobody reads far ahead")
				default:
					require.Equal(t, want, got)
					if c.keys >= readAhead {
						require.Greater(t, r.most.Load(), int64(readAhead/2), "many at once; those without rows end at once")
					}
				}
			})
		}
	}
}
