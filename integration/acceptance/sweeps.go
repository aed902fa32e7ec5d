package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"

	"github.com/quern/quern/internal/blocks"
)

// at returns a time of the first day, in Unix ms.
func at(s *System, hour, minute int) int64 {
	return s.cfg.Start.Truncate(24 * time.Hour).Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute).UnixMilli()
}

// setClock moves the clock to hour:minute of the first day. Hours beyond 23 are on later days.
func (s *System) setClock(hour, minute int) { s.SetClock(time.UnixMilli(at(s, hour, minute))) }

func (s *System) point(series string, hour, minute int, v float64) Point {
	return Point{Series: series, TimeMs: at(s, hour, minute), Value: v}
}

// stride returns the number of steps by which a sweep advances.
func (b Backend) stride() int {
	switch {
	case *strideFlag > 0:
		return *strideFlag
	case b.Stride > 0:
		return b.Stride
	case raceEnabled || testing.Short():
		return 7
	}
	return 1
}

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

var eventfulConfig = Config{BlockSize: 2, GroupSize: 4, IndexPartitions: 3}

// testCrashAtEveryStep is Aggregation 15: the process dies after each single step of a run. Its
// successor's run ends in the same state as a run without a crash.
func testCrashAtEveryStep(t *testing.T, b Backend) {
	for _, torn := range variants(t, b, false, true) {
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
				if k == never {
					require.NoError(t, err)
					s.MustCheck(Raw)
					whole, want, total = s, s.Dump(), s.Steps.Taken()
					return total
				}
				steps := s.Store.Log()
				s.Restart()
				s.MustRun()
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

// flushes returns reports of every kind. Each may be repeated after an error.
func flushes(s *System) []func() error {
	report := func(clockHour, clockMinute int, points ...Point) func() error {
		return func() error {
			if now := s.Clock.Now().UnixMilli(); now < at(s, clockHour, clockMinute) {
				s.setClock(clockHour, clockMinute)
			}
			_, err := s.Report(points...)
			return err
		}
	}
	return []func() error{
		report(10, 30, s.point("A", 10, 10, 1), s.point("B", 10, 10, 2), s.point("C", 10, 11, 3)),
		report(10, 31, s.point("A", 10, 20, 4), s.point("B", 10, 10, 5)),
		report(10, 32, s.point("A", 9, 20, 6), s.point("C", 8, 20, 7), s.point("C", 10, 20, 8)),
		report(10, 33, s.point("A", 9, 21, 9), s.point("C", 8, 21, 10), s.point("D", 4, 0, 11)),
		report(10, 55, s.point("A", 11, 1, 12), s.point("B", 10, 54, 13)),
	}
}

// testIngestFailsAtEveryStep is Ingest 25: at each single step of ingest, the store fails, or the
// process dies after the step. The client gets an error and sends the report again, to the same
// process or to its successor. The result must be the one correct one.
func testIngestFailsAtEveryStep(t *testing.T, b Backend) {
	for _, dies := range variants(t, b, false, true) {
		for _, torn := range variants(t, b, false, true) {
			t.Run(fmt.Sprintf("dies=%t/torn=%t", dies, torn), func(t *testing.T) {
				failed := 0
				b.sweep(t, func(k int) int {
					s := Start(t, b, eventfulConfig)
					s.Clock.Set(time.UnixMilli(at(s, 10, 0)))
					s.Steps.Tear(torn)
					s.Steps.CrashAt(k)
					for _, report := range flushes(s) {
						if err := report(); err != nil {
							failed++
							if dies {
								s.Restart()
								s.Steps.Tear(torn)
							} else {
								s.Steps.CrashAt(-1)
							}
							require.NoError(t, report(), "sent again")
						}
					}
					steps := s.Steps.Taken()
					s.Steps.CrashAt(-1)
					s.MustCheck(Raw)
					s.Settle()
					s.MustCheck(Raw)
					require.Empty(t, s.Leftovers(), "after step %d", k)
					s.End()
					return steps
				})
				require.Greater(t, failed, 1)
			})
		}
	}
}

// testIngestFailsUnrepeated is the same with a client that gives up. Acknowledged samples are in
// the roll-ups. The others may be there or not.
func testIngestFailsUnrepeated(t *testing.T, b Backend) {
	b.sweep(t, func(k int) int {
		s := Start(t, b, eventfulConfig)
		s.Clock.Set(time.UnixMilli(at(s, 10, 0)))
		s.Steps.Tear(true)
		s.Steps.CrashAt(k)
		for _, report := range flushes(s) {
			if err := report(); err != nil {
				s.Restart()
			}
		}
		steps := s.Steps.Taken()
		s.Steps.CrashAt(-1)
		s.Settle()
		s.MustCheck(Acknowledged)
		require.Empty(t, s.Leftovers(), "after step %d", k)
		s.End()
		return steps
	})
}

// testLandedOnOneCopy: a write of ingest fails, but its chunks are on one copy, where no run reads
// them. The client gives up. The chunks come to light before the next run or long after it, and the
// rows must match the raw table then.
func testLandedOnOneCopy(t *testing.T, b Backend) {
	reports := len(flushes(Start(t, b, eventfulConfig)))
	n := 0
	for _, failed := range []int{1, 2, 3} {
		for _, c := range []struct {
			when    string
			surface func(s *System)
		}{
			{"before the run", func(*System) {}},
			{"after the run", func(s *System) { s.setClock(11, 2); s.MustRun() }},
			{"after late data's", func(s *System) { s.setClock(12, 2); s.MustRun() }},
			{"after the last of them", func(s *System) { s.Settle() }},
			{"while nothing is settled", func(s *System) { s.Clock.Set(time.UnixMilli(at(s, 11, 2))); s.MustRun() }},
		} {
			for i := range reports {
				if n++; n%b.stride() != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%d writes from report %d on/it surfaces %s", failed, i+1, c.when), func(t *testing.T) {
					s := Start(t, b, eventfulConfig)
					s.Clock.Set(time.UnixMilli(at(s, 10, 0)))
					for k, report := range flushes(s) {
						if k == i {
							s.Store.Land(failed, storage.ErrTimeout)
						}
						if err := report(); k == i {
							require.ErrorIs(t, err, storage.ErrTimeout)
						}
					}
					c.surface(s)
					require.Positive(t, s.Store.Landed())
					require.NoError(t, s.Store.Surface(t.Context()))
					s.Settle()
					s.Drain()
					s.MustCheck(Acknowledged)
					s.MustCheck(Raw)
					require.Empty(t, s.Leftovers())
				})
			}
		}
	}
}

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
