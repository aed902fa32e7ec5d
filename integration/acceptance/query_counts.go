package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testQueryCounts is invariant 6: without late data a run of N schedules reads ceil(N/PBS) blocks
// and each index partition once, at every level.
func testQueryCounts(t *testing.T, b Backend) {
	for _, c := range []struct{ n, size, partitions, want int }{
		{37, 4, 3, 10}, {40, 4, 16, 10}, {41, 4, 1, 11}, {1, 128, 4, 1}, {300, 128, 4, 3}, {7, 1, 4, 7},
	} {
		t.Run(fmt.Sprintf("%d by %d", c.n, c.size), func(t *testing.T) {
			s := Start(t, b, Config{Start: defaultStart.Truncate(24 * time.Hour), BlockSize: c.size, GroupSize: 16, IndexPartitions: c.partitions, LeaseSize: 512})
			for hour := range 24 {
				s.setClock(hour, 30)
				var points []Point
				for i := range c.n {
					points = append(points, s.point(fmt.Sprintf("m%03d", i), hour, 10, float64(i)), s.point(fmt.Sprintf("m%03d", i), hour, 20, 1))
				}
				s.MustReport(points...)
				s.setClock(hour+1, 2)
				s.Store.Forget()
				runs := s.MustRun()
				switch {
				case hour == 23:
					require.Len(t, runs, 3)
				case hour%6 == 5:
					require.Len(t, runs, 2)
				default:
					require.Len(t, runs, 1)
				}
				for _, r := range runs {
					require.Equal(t, c.want, r.BlockQueries, "%+v", r)
					require.Equal(t, c.want, r.Blocks, "%+v", r)
					require.Equal(t, c.partitions, r.IndexQueries, "%+v", r)
					require.Equal(t, c.n, r.Schedules, "%+v", r)
					require.Zero(t, r.Late+r.Rescheduled+r.Dropped, "%+v", r)
				}
				// The record must match what the store was asked.
				asked := map[string]int{}
				for _, step := range s.Store.Log() {
					asked[step.Op]++
				}
				require.Equal(t, c.want*len(runs), asked["CacheBlock"])
				require.Equal(t, len(runs), asked["BeginSlice"])
				require.Equal(t, c.partitions*len(runs), asked["Marks"])
				require.Zero(t, asked["RawChunks"]+asked["Rollups"])
			}
			s.MustCheck(Raw)
			require.Empty(t, s.Leftovers())
		})
	}
}
