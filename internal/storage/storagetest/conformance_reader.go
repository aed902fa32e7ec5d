package storagetest

import (
	"bytes"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// readerCases test storage.Reader.
var readerCases = []conformanceCase{
	{"RollupsByRange", (*suite).rollupsByRange, nil},
	{"RollupsAreReplaced", (*suite).rollupsAreReplaced, nil},
	{"RollupValues", (*suite).rollupValues, nil},
}

func (s *suite) rollupsByRange() {
	f := s.acquire(0, "w").Fence
	// 20 days of 1h rows cross the borders of any reasonable partition.
	var want []metric.RollupRow
	for _, id := range []metric.ScheduleID{0, 1, 127, 128, group, 5 * group} {
		for h := -240; h < 240; h++ {
			want = append(want, row(id, at(h), float64(h)))
		}
	}
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, want))
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 2, []metric.RollupRow{row(1, at(0), 7)}))
	filter := func(ids blocks.Range, fromMs, toMs int64) (out []metric.RollupRow) {
		for _, r := range want {
			if ids.Contains(r.Schedule) && fromMs <= r.TimeMs && r.TimeMs < toMs {
				out = append(out, r)
			}
		}
		return out
	}
	check := func() {
		s.Helper()
		for _, ids := range []blocks.Range{
			{Start: 0, End: 1 << 40},
			{Start: 1, End: 2},
			{Start: 2, End: 127},
			{Start: 127, End: 129},
			{Start: 0, End: 128},
			{Start: 5 * group, End: 6 * group},
			{Start: 6 * group, End: 7 * group},
			{Start: 3, End: 3},
		} {
			for _, span := range [][2]int{{-240, 240}, {0, 1}, {-100, 100}, {-1000, -239}, {239, 1000}, {3, 3}} {
				equal(s, filter(ids, at(span[0]), at(span[1])), s.rollups(1, ids.Start, ids.End, at(span[0]), at(span[1])), ids, span)
			}
		}
		equal(s, []metric.RollupRow{row(1, at(0), 7)}, s.rollups(2, 0, 1000, at(-1000), at(1000)))
		require.Empty(s, s.rollups(3, 0, 1000, at(-1000), at(1000)))
	}
	check()
	s.reopen()
	check()
}

func (s *suite) rollupsAreReplaced() {
	f := s.acquire(0, "w").Fence
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(1, at(0), 1), row(2, at(0), 1)}))
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(1, at(0), 2)}))
	want := []metric.RollupRow{row(1, at(0), 2), row(2, at(0), 1)}
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
	s.advance(time.Minute)
	f = s.acquire(0, "w").Fence
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, []metric.RollupRow{row(2, at(0), 3)}))
	s.reopen()
	want[1] = row(2, at(0), 3)
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
	s.advance(time.Minute)
	f = s.acquire(0, "w").Fence
	require.True(s, want[1].Partial)
	want[1] = row(2, at(0), 4)
	require.False(s, want[1].Partial, "it was ground again, from all of its samples")
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 1, want[1:]))
	equal(s, want, s.rollups(1, 0, 10, at(0), at(1)))
}

func (s *suite) rollupValues() {
	f := s.acquire(0, "w").Fence
	rows := []metric.RollupRow{
		{Schedule: 1, TimeMs: at(0), Rollup: metric.Rollup{Count: 1 << 40, Sum: -1.5, Min: -3, Max: 1e300, First: 4, Last: 5, FirstMs: at(0), LastMs: at(1) - 1, Increase: 6, Sketch: bytes.Repeat([]byte{0xff, 0}, 5000)}},
		{Schedule: 1, TimeMs: at(1), Rollup: metric.Rollup{Count: 1, Sum: 5e-324, FirstMs: at(1) + 7, LastMs: at(1) + 7, NonFinite: true}},
		{Schedule: 1, TimeMs: at(-1_000_000), Rollup: metric.Rollup{Count: 2, FirstMs: at(-1_000_000), LastMs: at(-999_999) - 1, Increase: 0.1}},
		{Schedule: 2, TimeMs: at(0), Rollup: metric.Rollup{Partial: true}}, // no samples are left, but there may have been some
		{Schedule: 3, TimeMs: at(0), Rollup: metric.Rollup{NonFinite: true}},
	}
	require.NoError(s, s.store.WriteRollups(s.ctx, f, 3, rows))
	slices.SortFunc(rows, compareRows)
	equal(s, rows, s.rollups(3, 0, 10, at(-2_000_000), at(2)))
	require.Error(s, s.store.WriteRollups(s.ctx, f, 0, rows), "raw is no roll-up")
	require.Error(s, s.store.WriteRollups(s.ctx, f, 4, rows), "no such level")
}
