package acceptance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestCorrectionBySlowClock: a process whose clock is as far behind another's as the settings allow corrects a sample of a block
// that the other packs, or has just packed. The packed chunk does not hide the correction.
func TestCorrectionBySlowClock(t *testing.T) {
	for name, timing := range map[string]cache.Timing{
		"default": cache.DefaultTiming(), "long delay": {Grace: time.Minute, Delay: 11 * time.Minute}, "short grace": {Grace: time.Second, Delay: 3 * time.Minute},
	} {
		for _, inFlight := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				behind := 2 * storage.Policy{Grace: timing.Grace, Delay: timing.Delay}.MaxClockSkew()
				s := Start(t, Backend{ManyWriters: true, Open: func(_ testing.TB, st storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
					m := storagetest.NewModel(st, r, clk)
					return func() storage.Store { return m }
				}}, Config{Timing: timing})
				s.setClock(12, 10)
				slow := clock.NewSimulated(s.Clock.Now().Add(-behind))
				other := s.cfg.engine(engine.Options{Store: s.Store, Clock: slow, Writer: 999, Worker: storage.Worker{ID: "other"}, Timeout: time.Hour})
				s.startIngest(other)

				// The run at due grinds 12:00 once more, since there is late data, of which the newest is just settled.
				s.MustReport(s.point("A", 12, 10, 1), s.point("B", 12, 10, 1))
				s.SetClock(time.UnixMilli(at(s, 13, 0)).Add(timing.Delay))
				s.MustRun()
				s.setClock(13, 30)
				s.MustReport(s.point("B", 12, 20, 5))
				due := time.UnixMilli(at(s, 14, 0)).Add(timing.Delay)
				s.SetClock(due.Add(-timing.Settled() - time.Second))
				s.MustReport(s.point("B", 12, 30, 6))
				s.SetClock(due.Add(-time.Second))
				correct := func() {
					slow.Set(s.Clock.Now().Add(-behind))
					res, err := s.reportTo(other.Ingest, []Point{s.point("A", 12, 10, 2)})
					require.NoError(t, err)
					require.Empty(t, res.Rejected)
				}
				if inFlight {
					s.Store.Add(storagetest.Rule{Op: "Write", Unfenced: true, Times: 1, Before: func() error {
						s.SetClock(due)
						_, err := s.engine.Runner.RunDue(t.Context())
						return err
					}})
					correct()
				} else {
					s.SetClock(due)
					s.MustRun()
					correct()
				}
				require.NoError(t, other.Drain())
				for _, sample := range s.RawSamples() {
					if sample.Schedule == s.IDs()["A"] {
						require.EqualValues(t, 2, sample.Value)
					}
				}
				s.DrainAndCheck()
			})
		}
	}
}
