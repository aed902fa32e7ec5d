package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
)

// unpacked prepares a system that an earlier version has left, which did not pack: late data, corrections and a deletion
// among the slices of a day.
func unpacked(s *System) {
	s.cfg.Unpacked = true
	s.Restart()
	for hour := 13; hour < 16; hour++ {
		s.setClock(hour, 3)
		for minute := range 5 {
			s.MustReport(s.point("A", hour, minute, 1), s.point("B", hour, minute+1, 2.5), s.point("C", hour, minute, -3))
			s.MustReport(s.point("D", hour, minute, 4), s.point("E", hour, 0, float64(minute)))
		}
		if hour > 13 {
			s.MustReport(s.point("A", hour-1, 10, 9), s.point("D", hour-1, 0, -4))
		}
		s.MustRun()
	}
	_, err := s.Delete("C", time.UnixMilli(at(s, 13, 1)), time.UnixMilli(at(s, 13, 2)))
	require.NoError(s.t, err)
	s.setClock(17, 2)
	s.MustRun()
	s.cfg.Unpacked = false
	s.Restart()
}

// loose is the largest number of raw chunks that a storage group has in a slice.
func (s *System) loose() int {
	from, to := s.timesMs()
	type place struct {
		group metric.ScheduleID
		ms    int64
	}
	n, most := map[place]int{}, 0
	for c, err := range s.inspect().RawChunks(s.t.Context(), s.allIDs(), from, to) {
		require.NoError(s.t, err)
		at := place{c.Group, c.SliceMs}
		n[at]++
		most = max(most, n[at])
	}
	return most
}

// testRepackStopsAtEveryStep: a worker that packs what an earlier version has left dies or stalls at each of its steps, and another
// goes on when its leases have ended. Readers and runs find the same as before.
func testRepackStopsAtEveryStep(t *testing.T, b Backend) {
	for _, f := range variants(t, b, fates...) {
		t.Run(f.name, func(t *testing.T) {
			b.sweep(t, func(k int) int {
				s := Start(t, b, Config{BlockSize: 2, GroupSize: 4, IndexPartitions: 3})
				unpacked(s)
				require.Greater(t, s.loose(), 4)
				want := s.Dump()
				other := s.join("other")
				require.NoError(t, other.engine.Member.Beat(t.Context()))
				packRest := func() {
					s.eventually("chunks stay unpacked", func() bool {
						require.NoError(t, s.Repack())
						return s.loose() == 1
					})
				}
				f.befall(other.steps, k, packRest)
				err := other.engine.Runner.Repack(t.Context())
				steps := other.steps.Taken()
				if k == never {
					require.NoError(t, err)
					require.Positive(t, other.store.Count("PackRaw"), "the other had nothing to do")
				}
				packRest()
				require.Equal(t, want, s.Dump(), "at step %d", k)
				s.awaitAlone()
				other.stop()
				now := clock.NowMs(s.Clock)
				s.MustReport(Point{"A", now - 3_600_000, 7}, Point{"C", now, 8})
				s.Settle()
				s.MustCheck(Raw)
				require.Empty(t, s.Leftovers(), "at step %d, %v", k, err)
				s.End()
				return steps
			})
		})
	}
}
