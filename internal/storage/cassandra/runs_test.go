package cassandra

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// calendar is a session on the table slices. Days in away cannot be read, and while there is one the
// days cannot be listed.
type calendar struct {
	session
	open []storage.SliceKey
	away map[sliceDay]error

	mu    sync.Mutex
	reads int
}

func (c *calendar) page(_ context.Context, st statement, _ int, _ []byte, dest any) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	if st.cql == cqlListDays {
		for _, err := range c.away {
			return nil, err
		}
		for _, k := range c.open {
			d := sliceDay{int(k.Bucket), metric.AlignDown(k.StartMs, dayMs)}
			if out := dest.(*[]sliceDay); !slices.Contains(*out, d) {
				*out = append(*out, d)
			}
		}
		return nil, nil
	}
	day := sliceDay{st.args[0].(int), st.args[1].(int64)}
	if err := c.away[day]; err != nil {
		return nil, err
	}
	for _, k := range c.open {
		if int(k.Bucket) == day.Bucket && metric.AlignDown(k.StartMs, dayMs) == day.DayMs && st.args[2].(int64) <= k.StartMs && k.StartMs < st.args[3].(int64) {
			out := dest.(*[]sliceRow)
			*out = append(*out, sliceRow{StartMs: k.StartMs})
		}
	}
	return nil, nil
}

// Days of slices that are out of reach are gaps, and all others are read: by name where the days
// cannot be listed.
func TestSlicesWithDaysAway(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	at := func(days int) int64 { return metric.AlignDown(now.UnixMilli(), dayMs) + int64(days)*dayMs }
	errAway := fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)
	c := &calendar{away: map[sliceDay]error{}}
	for _, days := range []int{-400, -120, -3, -2, 0, 1, 40} {
		c.open = append(c.open, storage.SliceKey{StartMs: at(days) + 7})
	}
	s := &Store{
		session: c, clk: clock.NewSimulated(now), ladder: metric.DefaultLadder(),
		policies: storage.Policies(nil).Set(storage.Policy{Retention: storage.Retention{7 * day, 90 * day, 0, 0}}, 0),
	}
	read := func(b metric.Bucket, fromMs, toMs int64, gaps ...storage.Gap) (days []int) {
		t.Helper()
		states, err := s.Slices(t.Context(), b, fromMs, toMs)
		var some *storage.GapsError
		if len(gaps) == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorAs(t, err, &some)
			require.True(t, storage.IsAway(err))
			for i := range gaps {
				gaps[i].Bucket, gaps[i].Err = b, errAway
			}
			require.Equal(t, gaps, some.Gaps)
		}
		for _, st := range states {
			days = append(days, int((metric.AlignDown(st.StartMs, dayMs)-at(0))/dayMs))
		}
		return days
	}
	gap := func(fromMs, toMs int64) storage.Gap { return storage.Gap{FromMs: fromMs, ToMs: toMs} }
	const never, always = int64(math.MinInt64), int64(math.MaxInt64)
	nowMs := now.UnixMilli()
	require.Equal(t, []int{-400, -120, -3, -2, 0}, read(0, never, nowMs))
	require.Equal(t, 1+5, c.reads)

	c.away[sliceDay{0, at(-3)}], c.away[sliceDay{2, at(-2)}] = errAway, errAway
	// Open raw slices are recorded for 90 d + 30 d + 4 h.
	require.Equal(t, []int{-120, -2, 0}, read(0, never, nowMs, gap(never, at(-120)), gap(at(-3), at(-2))))
	require.Equal(t, []int{-120, -2, 0, 1}, read(0, never, always, gap(never, at(-120)), gap(at(30), always), gap(at(-3), at(-2))))
	require.Empty(t, read(0, never, at(-120), gap(never, at(-120))))
	require.Empty(t, read(0, at(30), always, gap(at(30), always)))
	require.Equal(t, []int{-2, 0}, read(0, at(-3)+5, nowMs, gap(at(-3)+5, at(-2))))
	require.Empty(t, read(0, at(-3)+5, at(-3)+9, gap(at(-3)+5, at(-3)+9)))
	require.Equal(t, []int{0}, read(0, at(-1), nowMs))
	// Those of 6h for ever.
	require.Empty(t, read(2, never, nowMs, gap(never, at(-mostDaysBack)), gap(at(-2), at(-1))))
	require.Less(t, c.reads, 3000)

	// Any other error is no gap.
	c.away[sliceDay{0, at(-3)}] = storage.ErrCorrupt
	_, err := s.Slices(t.Context(), 0, at(-5), nowMs)
	require.ErrorIs(t, err, storage.ErrCorrupt)

	// Where nothing can be read, few days are tried.
	for days := range 2 * mostDaysBack {
		c.away[sliceDay{2, at(-days)}] = errAway
	}
	delete(c.away, sliceDay{0, at(-3)})
	c.reads = 0
	_, err = s.Slices(t.Context(), 2, never, nowMs)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.LessOrEqual(t, c.reads, mostDaysLost+maxSpread+1)
}
