package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
)

// eventful prepares a system for a run at the end of a day that has every kind of work: fresh
// blocks, late data for an hour of the same 6 h, of an earlier 6 h and of yesterday, a block put
// off, a suspect block, and slices of all levels.
func eventful(s *System) {
	s.Clock.Set(time.UnixMilli(at(s, -4, 30)))
	s.MustReport(s.point("A", -4, 10, 1), s.point("B", -4, 20, 2), s.point("C", -4, 15, 3))
	s.setClock(0, 2)
	s.MustRun()
	s.setClock(22, 30)
	s.MustReport(s.point("A", 22, 10, 4), s.point("B", 22, 20, 5), s.point("C", 22, 15, 6), s.point("D", 22, 0, 7), s.point("E", 22, 1, 8))
	s.Store.Fail("WriteRollups", blocks.Range{Start: 2, End: 4}, 3, errInjected)
	s.setClock(23, 2)
	s.MustRun()
	s.MustReport(s.point("A", 23, 1, 9), s.point("B", 23, 2, 10), s.point("E", 23, 1, 11), s.point("E", 23, 2, -11))
	s.MustReport(s.point("A", 22, 50, 12), s.point("B", 12, 10, 13), s.point("E", -0, 40, 14))
	s.MustReport(s.point("C", 0, 40, 15), s.point("D", 20, 40, 16))
	s.Store.Fail("Write", blocks.Range{}, 1, errInjected)
	_, err := s.Report(s.point("B", 23, 3, 17))
	require.Error(s.t, err)
	s.MustReport(s.point("B", 23, 3, 17))
	s.setClock(24, 2)
}

var eventfulConfig = Config{BlockSize: 2, GroupSize: 2, IndexPartitions: 3}

// testCrashAtEveryStep is behaviour 15: the process dies after each single step of a run, and of packing after it. Its
// successor ends in the same state as a process without a crash.
func testCrashAtEveryStep(t *testing.T, b Backend) {
	for _, torn := range []bool{false, true} {
		t.Run(fmt.Sprintf("torn=%t", torn), func(t *testing.T) {
			var whole *System
			want := ""
			total := 0
			b.sweep(t, func(k int) int {
				s := Start(t, b, eventfulConfig)
				eventful(s)
				s.Steps.Tear(torn)
				s.Steps.CrashAt(k)
				_, err := s.Run()
				if err == nil {
					err = s.pack()
				}
				if k == never {
					require.NoError(t, err)
					require.NotZero(t, s.Store.Count("PackRaw"))
					s.MustCheck(Raw)
					whole, want, total = s, s.Dump(), s.Steps.Taken()
					return total
				}
				steps := s.Store.Log()
				s.Restart()
				s.MustRun()
				require.NoError(t, s.pack())
				require.Equal(t, want, s.Dump(), "after a crash at step %d, %v, behind %s", k, err, steps)
				s.End()
				return 0
			})
			require.Greater(t, total, 50, "the run had less to do than was meant")

			whole.Drain()
			whole.MustCheck(Raw)
			require.Empty(t, whole.Leftovers())
		})
	}
}

// testCrashWhilePuttingOff dies at every step of a run with a failing block. The failure ends with
// the process, so the final state differs from that without a crash, but it must be right.
func testCrashWhilePuttingOff(t *testing.T, b Backend) {
	b.sweep(t, func(k int) int {
		s := Start(t, b, eventfulConfig)
		eventful(s)
		s.Store.Fail("WriteRollups", blocks.Range{Start: 2, End: 4}, -1, errInjected)
		s.Steps.CrashAt(k)
		_, _ = s.Run()
		steps := s.Steps.Taken()
		s.Restart()
		s.MustRun()
		s.MustCheck(Raw)
		s.Settle()
		s.MustCheck(Raw)
		require.Empty(t, s.Leftovers(), "after a crash at step %d", k)
		s.End()
		return steps
	})
}
