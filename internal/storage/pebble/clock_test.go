package pebble

import (
	"fmt"
	"testing"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestClockFarAhead sets the clock nine days ahead, at start or while the process runs. Nothing may
// expire, and all rows count as whole, until the clock is right again or somebody confirms it.
func TestClockFarAhead(t *testing.T) {
	const day = 24 * time.Hour
	for _, how := range []string{"at start", "after a crash", "of an older version", "while it runs"} {
		t.Run(how, func(t *testing.T) {
			noLeaks(t)
			clk := clock.NewSimulated(time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC))
			fs := vfs.NewCrashableMem()
			opts := func(fs vfs.FS) Options {
				return Options{
					Settings: storagetest.TestSettings(), Clock: clk, FS: fs,
					Policy: storage.Policy{Retention: storage.Retention{2 * day, 7 * day, 7 * day, 7 * day}}.Always,
				}
			}
			st := mustOpen(t, "/data", opts(fs))
			now := func() int64 { return clk.Now().UnixMilli() }
			write := func() {
				t.Helper()
				require.NoError(t, st.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{
					SliceMs: metric.AlignDown(now(), 3_600_000), Chunk: storage.Chunk{ID: blocks.NewIDs(1).Next(now()), Data: []byte("x")},
				}}}))
				require.NoError(t, st.Heartbeat(t.Context(), storage.Worker{ID: "w"}, time.Minute))
			}
			chunks := func() (n int) {
				for _, err := range st.RawChunks(t.Context(), blocks.Range{End: 1}, now()-30*day.Milliseconds(), now()+day.Milliseconds()) {
					require.NoError(t, err)
					n++
				}
				return n
			}
			write()
			clk.Set(clk.Now().Add(time.Hour))
			write()
			first := metric.AlignDown(now(), 3_600_000)
			switch how {
			case "while it runs":
				clk.Jump(9 * day)
			case "after a crash":
				crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
				require.NoError(t, st.Close())
				fs = crashed
				clk.Jump(9 * day)
				st = mustOpen(t, "/data", opts(fs))
			case "of an older version":
				require.NoError(t, st.ConfirmClock(t.Context())) // so that Close has nothing to store
				require.NoError(t, st.db.Delete(metaKey(metaClock), lsm.Sync))
				fallthrough
			case "at start":
				require.NoError(t, st.Close())
				clk.Jump(9 * day)
				st = mustOpen(t, "/data", opts(fs))
			}
			doubted := func() {
				t.Helper()
				require.ErrorContains(t, st.ClockDoubt(), "ahead of the newest time seen before")
				require.NoError(t, st.Expire(t.Context()))
				require.Equal(t, 2, chunks())
				require.Less(t, st.WholeFrom(metric.Raw, now()), first, "all is there, so all can be ground")
			}
			doubted()
			require.NoError(t, st.Heartbeat(t.Context(), storage.Worker{ID: "w"}, time.Minute))
			require.NoError(t, st.Close())
			st = mustOpen(t, "/data", opts(fs))
			doubted() // also after another restart

			clk.Jump(-9 * day)
			require.NoError(t, st.ClockDoubt())
			require.NoError(t, st.Expire(t.Context()))
			require.Equal(t, 2, chunks())
			require.Equal(t, now()-2*day.Milliseconds(), st.WholeFrom(metric.Raw, now()))

			// An outage of the same length looks the same.
			clk.Jump(9 * day)
			doubted()
			require.NoError(t, st.ConfirmClock(t.Context()))
			require.NoError(t, st.ClockDoubt())
			require.NoError(t, st.Close())
			st = mustOpen(t, "/data", opts(fs))
			require.NoError(t, st.ClockDoubt(), "it is confirmed for the next process too")
			require.NoError(t, st.Expire(t.Context()))
			require.Zero(t, chunks())
			require.NoError(t, st.Close())
		})
	}
}

// TestClockAheadForAMoment has one reading of the clock nine days ahead. Nothing expires by it,
// whichever reading it is.
func TestClockAheadForAMoment(t *testing.T) {
	noLeaks(t)
	clk := &momentarily{Simulated: newClock()}
	st := mustOpen(t, "/data", Options{
		Settings: storagetest.TestSettings(), Clock: clk, FS: vfs.NewMem(),
		Policy: storage.Policy{Retention: storage.Retention{2 * 24 * time.Hour}}.Always,
	})
	require.NoError(t, st.Write(t.Context(), crashBatch(1)))
	require.NoError(t, st.ClockDoubt(), "it has been looked at")
	for n := 1; ; n++ {
		clk.left = n
		require.NoError(t, st.Expire(t.Context()))
		if clk.left > 0 { // it was never ahead
			require.Greater(t, n, 1)
			break
		}
		k, err := st.firstKey([]byte{tableRaw}, []byte{tableRaw + 1})
		require.NoError(t, err)
		require.NotNil(t, k, "reading %d", n)
	}
	require.NoError(t, st.Close())
}

// momentarily is a clock that is ahead at one reading: when left falls to 0.
type momentarily struct {
	*clock.Simulated
	left int
}

// Now implements clock.Clock.
func (m *momentarily) Now() time.Time {
	now := m.Simulated.Now()
	if m.left--; m.left == 0 {
		return now.Add(9 * 24 * time.Hour)
	}
	return now
}

// TestClockDoubtedOverNights runs a machine that was off for a week and is off every night. The run
// time of its doubted clock is counted over its restarts, orderly or after a crash, until the clock
// is believed. A clock that is wrong every morning and then corrected is never believed while it is
// wrong.
func TestClockDoubtedOverNights(t *testing.T) {
	const hour = time.Hour
	for _, wrong := range []bool{false, true} {
		t.Run(fmt.Sprintf("wrong=%t", wrong), func(t *testing.T) {
			noLeaks(t)
			clk := clock.NewSimulated(time.Date(2025, time.November, 21, 17, 0, 0, 0, time.UTC))
			fs := vfs.NewCrashableMem()
			open := func() *Store {
				return mustOpen(t, "/data", Options{
					Settings: storagetest.TestSettings(), Clock: clk, FS: fs,
					Policy: storage.Policy{Retention: storage.Retention{48 * hour, 0, 0, 0}}.Always,
				})
			}
			st := open()
			works := func(d time.Duration) {
				for range d / (30 * time.Minute) {
					clk.Set(clk.Now().Add(30 * time.Minute))
					require.NoError(t, st.Heartbeat(t.Context(), storage.Worker{ID: "w"}, time.Hour))
				}
			}
			off := func(d time.Duration, crashes bool) {
				clone := fs.CrashClone(vfs.CrashCloneCfg{})
				require.NoError(t, st.Close())
				if crashes {
					fs = clone
				}
				clk.Jump(d)
				st = open()
			}
			works(hour)
			off(7*24*hour, false)
			for day := range 6 {
				doubted := wrong || day < 2
				works(9 * hour)
				require.Equal(t, doubted, st.ClockDoubt() != nil, "day %d", day)
				if wrong {
					clk.Jump(-7 * 24 * hour)
					works(hour)
					require.NoError(t, st.ClockDoubt())
					off(7*24*hour+14*hour, day%2 == 0)
				} else {
					off(15*hour, day%2 == 0)
				}
				require.Equal(t, doubted, st.ClockDoubt() != nil, "the morning after day %d", day)
			}
			require.NoError(t, st.Close())
		})
	}
}
