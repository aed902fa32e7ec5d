package adaptor

import (
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/ingest"
)

// TestFullDisk: what can wait is written when there is room, with the time at which it was read; all else is counted.
func TestFullDisk(t *testing.T) {
	full := 0
	r := newRig(t)
	require.NoError(t, r.Spool.Close())
	r.disk.FS = errorfs.Wrap(r.disk.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && full > 0 {
			full--
			return syscall.ENOSPC
		}
		return nil
	}))
	r.open(t)
	var b ingest.Batch
	b.Series("m", nil)
	b.Add(5, 1)
	full = 3
	require.True(t, r.PutOrWait(t.Context(), "s", spool.Point{Seq: 1}, &b))
	require.Zero(t, r.Lost())
	full = 1
	r.Put("s", spool.Point{Seq: 2}, &b)
	require.EqualValues(t, 1, r.Lost())
	require.Contains(t, r.log.String(), `msg="samples cannot be written to the spool; trying again" stream=s err="no space left on device" offset=1`)
	require.Contains(t, r.log.String(), `msg="dropped samples that cannot be written to the spool" stream=s err="no space left on device" samples=1`)
	samples, _ := spooled(t, r.Spool)
	require.Equal(t, []sample{{"web-1", "m", nil, 5, 1}}, samples)
}
