package pebble

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestClockRefused sets the clock nine days ahead, or an hour back, at start or while the process runs. Nothing is
// written, nothing expires, and all rows count as whole, until the clock is right again or somebody accepts it.
func TestClockRefused(t *testing.T) {
	const day = 24 * time.Hour
	for _, by := range []time.Duration{9 * day, -time.Hour} {
		for _, how := range []string{"at start", "after a crash", "while it runs"} {
			t.Run(how+" "+by.String(), func(t *testing.T) {
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
					require.NoError(t, st.CheckFit(t.Context()))
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
					clk.Jump(by)
				case "after a crash":
					crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
					require.NoError(t, st.Close())
					fs = crashed
					clk.Jump(by)
					st = mustOpen(t, "/data", opts(fs))
				case "at start":
					require.NoError(t, st.Close())
					clk.Jump(by)
					st = mustOpen(t, "/data", opts(fs))
				}
				refused := func() {
					t.Helper()
					require.ErrorContains(t, st.ClockRefused(), "the newest time that the store has seen")
					require.ErrorIs(t, st.CheckFit(t.Context()), storage.ErrSettings)
					err := st.Confirms(t.Context(), clock.Read(clk))
					require.ErrorIs(t, err, storage.ErrUnavailable)
					require.ErrorContains(t, err, "--accept-clock")
					require.NoError(t, st.Expire(t.Context()))
					require.Equal(t, 2, chunks())
					require.Less(t, st.WholeFrom(metric.Raw, now()), first, "all is there, so all can be ground")
				}
				refused()
				require.NoError(t, st.Close())
				st = mustOpen(t, "/data", opts(fs))
				refused() // also after another restart

				clk.Jump(-by)
				require.NoError(t, st.CheckFit(t.Context()))
				require.NoError(t, st.Confirms(t.Context(), clock.Read(clk)))
				require.NoError(t, st.Expire(t.Context()))
				require.Equal(t, 2, chunks())
				require.Equal(t, now()-2*day.Milliseconds(), st.WholeFrom(metric.Raw, now()))

				// An outage of the same length looks the same.
				clk.Jump(by)
				refused()
				require.NoError(t, st.AcceptClock(t.Context()))
				require.NoError(t, st.ClockRefused())
				crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0})
				require.NoError(t, st.Close())
				st = mustOpen(t, "/data", opts(crashed))
				require.NoError(t, st.ClockRefused(), "it is accepted for the next process too")
				require.NoError(t, st.Expire(t.Context()))
				require.Equal(t, by < 0, chunks() == 2)
				require.NoError(t, st.Close())
			})
		}
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
	require.NoError(t, st.ClockRefused(), "it has been looked at")
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
