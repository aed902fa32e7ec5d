package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/storage"
)

// testWeeksAhead: the clock is ahead by weeks. What is late by it is ground in a slice of then, and the clock is put
// right. What comes after that is on time, but it is not all that there is of its block.
func testWeeksAhead(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, restart := range map[string]bool{"the same process": false, "restart": true} {
		t.Run(name, func(t *testing.T) {
			const ahead = 3*7*24*time.Hour + 110*time.Minute
			s := Start(t, b, Config{AgeCap: 60 * 24 * time.Hour})
			s.setClock(12, 8)
			s.Clock.Jump(ahead)
			s.MustReport(s.point("A", 12, 8, 1), s.point("A", 6, 8, 1))
			s.Advance(10 * time.Minute)
			s.MustRun() // the slice that the clock was in is due by it
			s.Clock.Jump(-ahead)
			if restart {
				s.Restart()
			}
			s.MustRun()
			s.MustReport(s.point("A", 12, 10, 2), s.point("A", 12, 11, 4))
			s.Drain()
			s.SetClock(defaultStart.Add(ahead)) // marks ahead are done there
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// testRecordRemoved: the record of a slice is removed some time after the slice is complete. Then the clock goes back
// into the slice, and what comes is on time by it.
func testRecordRemoved(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, restart := range map[string]bool{"the same process": false, "restart": true} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 12, 20)
			s.MustReport(s.point("A", 12, 10, 1), s.point("A", 7, 10, 1), s.point("B", 12, 10, 1))
			s.Drain()
			then := s.Clock.Now()
			s.SetClock(defaultStart.Add(45 * 24 * time.Hour))
			s.MustReport(Point{"A", s.Clock.Now().UnixMilli(), 1}) // so that the store has seen this time
			require.NoError(t, s.Store.Expire(t.Context()))
			require.Len(t, s.Slices(0), 1, "the records are gone")
			s.Clock.Jump(time.UnixMilli(at(s, 12, 30)).Sub(s.Clock.Now()))
			if restart {
				s.Restart()
			}
			s.MustReport(s.point("A", 12, 25, 2))
			s.SetClock(then)
			s.Drain()
			s.SetClock(defaultStart.Add(46 * 24 * time.Hour))
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// testRecordOfTheNewestRemoved: the slice was the last that was ground when its record was removed. The run that
// follows is aborted as soon as it has begun, so the next one finds a record again.
func testRecordOfTheNewestRemoved(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	for name, ground := range map[string]int{"raw": 13, "1h": 18} {
		t.Run(name, func(t *testing.T) {
			s := startAt(t, b, 12, 20)
			s.MustReport(s.point("A", 12, 10, 1), s.point("B", 12, 10, 1))
			if ground > 13 {
				s.setClock(13, 20)
				s.MustReport(s.point("A", 13, 10, 1))
			}
			s.setClock(ground, 2)
			s.MustRun()
			s.Clock.Set(defaultStart.Add(45 * 24 * time.Hour))
			require.NoError(t, s.Store.Expire(t.Context()))
			require.Empty(t, s.Slices(0), "the record is gone")
			s.Clock.Jump(time.UnixMilli(at(s, 12, 30)).Sub(s.Clock.Now()))
			s.Restart()
			s.MustReport(s.point("A", 12, 25, 2))
			for hour := 13; hour <= ground; hour++ {
				s.setClock(hour, 2)
				s.Store.Fail("Marks", blocks.Range{}, s.cfg.IndexPartitions, storage.ErrCorrupt)
				if _, err := s.Run(); err != nil {
					require.ErrorIs(t, err, storage.ErrCorrupt)
				}
				s.Store.Heal()
				s.MustRun()
			}
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// Past runs the cases in which the store has no record of what was ground.
func Past(t *testing.T, b Backend) {
	for _, c := range []testCase{
		{"WeeksAhead", testWeeksAhead},
		{"RecordRemoved", testRecordRemoved},
		{"RecordOfTheNewestRemoved", testRecordOfTheNewestRemoved},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}
