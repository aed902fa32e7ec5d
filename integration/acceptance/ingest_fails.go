package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

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

// testIngestFailsAtEveryStep is behaviour 25: at each single step of ingest, the store fails, or the
// process dies after the step. The client gets an error and sends the report again, to the same
// process or to its successor. The result must be the one correct one.
func testIngestFailsAtEveryStep(t *testing.T, b Backend) {
	for _, dies := range []bool{false, true} {
		for _, torn := range []bool{false, true} {
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
