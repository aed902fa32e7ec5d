package acceptance

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/storage/storagetest"
)

// moments are the points at which a step can take long. Their rule moves the clock, and runs what
// has become due, either before the step takes effect or between its effect and its return.
var moments = []struct {
	name string
	rule func(op string, ingest bool, stall func()) storagetest.Rule
}{
	{"before it takes effect", func(op string, ingest bool, stall func()) storagetest.Rule {
		return storagetest.Rule{Op: op, Unfenced: ingest, Fenced: !ingest, Times: 1, Before: func() error { stall(); return nil }}
	}},
	{"before it returns", func(op string, ingest bool, stall func()) storagetest.Rule {
		return storagetest.Rule{Op: op, Unfenced: ingest, Fenced: !ingest, Times: 1, After: func() error { stall(); return nil }}
	}},
}

// testClosingRace is invariant 4 and behaviour 14 from ingest's side. A flush begins while its
// slice accepts data, and ends only when the slice is closed, or has even been run. Whatever was
// acknowledged must be in the roll-ups after the next run.
func testClosingRace(t *testing.T, b Backend) {
	histories := []struct {
		name string
		// before brings the system to 10:59; then the flush stalls.
		before func(s *System)
		flush  func(s *System) []Point
	}{
		{
			"the slice's first samples",
			func(*System) {},
			func(s *System) []Point { return []Point{s.point("A", 10, 50, 1)} },
		},
		{
			"a block that is marked already",
			func(s *System) { s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2)) },
			func(s *System) []Point { return []Point{s.point("A", 10, 50, 3)} },
		},
		{
			"a second block",
			func(s *System) { s.MustReport(s.point("A", 10, 10, 1), s.point("B", 10, 10, 2)) },
			func(s *System) []Point { return []Point{s.point("C", 10, 50, 3)} },
		},
		{
			"late samples",
			func(s *System) { s.MustReport(s.point("A", 10, 10, 1)) },
			func(s *System) []Point { return []Point{s.point("A", 9, 50, 3), s.point("A", 4, 50, 3)} },
		},
		{
			// The process remembers the mark of the first sample, but the slice that holds the mark
			// is over.
			"late samples of schedules that are marked already",
			func(s *System) { s.MustReport(s.point("A", 9, 10, 1), s.point("C", 10, 10, 1)) },
			func(s *System) []Point { return []Point{s.point("A", 9, 50, 3)} },
		},
		{
			"samples of a block that is suspect",
			func(s *System) {
				s.MustReport(s.point("A", 10, 10, 1))
				s.Store.Fail("Write", blocks.Range{}, 1, errInjected)
				_, err := s.Report(s.point("A", 10, 20, 2))
				require.Error(s.t, err)
			},
			func(s *System) []Point { return []Point{s.point("A", 10, 20, 2)} },
		},
		{
			"samples from the near future",
			func(s *System) { s.MustReport(s.point("A", 10, 10, 1)) },
			func(s *System) []Point { return []Point{s.point("A", 10, 59, 2), s.point("A", 11, 5, 3)} },
		},
		{
			// The run after 11:59 is also that of the 6h slice.
			"at the end of a 6h slice",
			func(s *System) { s.Clock.Set(time.UnixMilli(at(s, 11, 59))) },
			func(s *System) []Point { return []Point{s.point("A", 11, 50, 1), s.point("B", 10, 10, 2)} },
		},
	}
	stalls := []struct {
		name string
		to   []time.Duration // after the hour's end; a run follows each
	}{
		{"within the grace", []time.Duration{59 * time.Second}},
		{"to the end of the grace", []time.Duration{time.Minute}},
		{"to before the run", []time.Duration{2*time.Minute - time.Millisecond}},
		{"over the run", []time.Duration{2 * time.Minute}},
		{"over two runs", []time.Duration{2 * time.Minute, time.Hour + 2*time.Minute}},
		{"over a day's", []time.Duration{2 * time.Minute, 13*time.Hour + 2*time.Minute}},
	}
	// On stores with slow steps it takes every seventh case; seven is prime to the number of each
	// kind.
	every, n := 1, 0
	if b.Stride > 0 {
		every = 7
	}
	for _, h := range histories {
		for _, stall := range stalls {
			for _, m := range moments {
				if n++; n%every != 0 {
					continue
				}
				t.Run(h.name+"/"+stall.name+"/"+m.name, func(t *testing.T) {
					s := Start(t, b, Config{BlockSize: 2})
					s.Clock.Set(time.UnixMilli(at(s, 10, 58)))
					h.before(s)
					if s.Clock.Now().UnixMilli() < at(s, 10, 59) {
						s.Clock.Set(time.UnixMilli(at(s, 10, 59)))
					}
					end := s.Clock.Now().Truncate(time.Hour).Add(time.Hour)
					var runErr error
					s.Store.Add(m.rule("Write", true, func() {
						for _, d := range stall.to {
							s.Clock.Set(end.Add(d))
							if _, err := s.Run(); err != nil {
								runErr = err
							}
						}
					}))
					s.MustReport(h.flush(s)...)
					require.NoError(t, runErr)
					s.MustCheck(Acknowledged)
					// The result must not depend on the memory of the process.
					s.Restart()
					next := s.Clock.Now().Truncate(time.Hour).Add(time.Hour)
					s.SetClock(next.Add(2 * time.Minute))
					s.MustRun()
					s.MustCheck(Acknowledged)
					for name, id := range s.IDs() {
						for _, p := range h.flush(s) {
							if p.Series == name {
								require.False(t, s.outstanding().covers(1, id, s.cfg.Ladder.SliceAt(0, p.TimeMs)),
									"%s at %s still waits after the next run", name, s.clockOf(p.TimeMs))
							}
						}
					}
					s.Drain()
					s.MustCheck(Acknowledged)
					require.Empty(t, s.Leftovers())
				})
			}
		}
	}
}

// testLateMarkStalls: the late mark that closes the race is itself written so slowly that the slice
// it goes into closes and is run, again and again.
func testLateMarkStalls(t *testing.T, b Backend) {
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			s := Start(t, b, Config{})
			s.Clock.Set(time.UnixMilli(at(s, 10, 59)))
			stalls := 0
			rule := m.rule("Write", true, func() {
				stalls++
				s.Clock.Set(s.Clock.Now().Truncate(time.Hour).Add(time.Hour + 2*time.Minute))
				_, _ = s.Run()
			})
			rule.Times = 4
			s.Store.Add(rule)
			s.MustReport(s.point("A", 10, 50, 1))
			require.Equal(t, 4, stalls)
			s.MustCheck(Raw)
			s.Drain()
			s.MustCheck(Raw)
		})
	}
}

// testLateDuringRun is behaviour 14: late and repeated samples arrive after each single step of a
// run. The next run's result includes them.
func testLateDuringRun(t *testing.T, b Backend) {
	for k := 1; ; k += b.stride() {
		s := Start(t, b, eventfulConfig)
		eventful(s)
		// The reading of the index ends while blocks are still being ground.
		var steps atomic.Int64
		var err error
		step := func() error {
			if steps.Add(1) == int64(k) {
				// For the slices being ground, at each level, and for their late data.
				_, err = s.Report(s.point("A", 23, 30, 100), s.point("B", 23, 2, 110), s.point("C", 22, 15, 120),
					s.point("E", 0, 40, 140), s.point("F", 23, 50, 150), s.point("A", -0, 1, 160))
			}
			return nil
		}
		for _, op := range []string{"AcquireShard", "NewestBegun", "BeginSlice", "Marks", "CacheBlock", "RawChunks", "Rollups", "WriteRollups", "PackRaw", "DeleteCacheBlock", "DeleteMarks", "CompleteSlice"} {
			s.Store.Add(storagetest.Rule{Op: op, Times: -1, After: step})
		}
		s.Store.Add(storagetest.Rule{Op: "Write", Fenced: true, Times: -1, After: step})
		s.MustRun()
		require.NoError(t, err)
		s.Store.Heal()
		s.MustCheck(Raw)
		s.setClock(25, 2)
		s.MustRun()
		s.MustCheck(Raw)
		s.Drain()
		s.MustCheck(Raw)
		require.Empty(t, s.Leftovers(), "after step %d", k)
		s.End()
		if steps.Load() < int64(k) {
			require.Greater(t, k, 50)
			return
		}
	}
}
