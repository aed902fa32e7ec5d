package pebble

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
)

// busyFS calls meanwhile after the first piece of a log was read, as if a writer were faster than whoever copies the log.
type busyFS struct {
	vfs.FS
	meanwhile atomic.Pointer[func()]
}

func (fs *busyFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err == nil && isLog(name) {
		f = &busyFile{f, fs}
	}
	return f, err
}

type busyFile struct {
	vfs.File
	fs *busyFS
}

func (f *busyFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if meanwhile := f.fs.meanwhile.Swap(nil); meanwhile != nil {
		(*meanwhile)()
	}
	return n, err
}

// TestCheckpointBesideWrites: a checkpoint that is made while the log is written opens, and has all that was acknowledged before.
func TestCheckpointBesideWrites(t *testing.T) {
	noLeaks(t)
	disk := &busyFS{FS: vfs.NewMem()}
	opts := sweepOptions()
	opts.FS, opts.MemTableBytes = disk, 256<<10
	st := mustOpen(t, "/data", opts)
	j := &journal{acked: map[int]bool{}}
	n := 0
	write := func(count int) {
		require.NoError(t, j.write(t.Context(), st, n, 1, count))
		n += count
	}
	for range 8 { // the files of logs are used again
		write(70)
		require.NoError(t, st.db.Flush())
	}
	var ids []string
	for range 3 {
		write(3)
		acked, _ := j.copy()
		meanwhile := func() { write(20) }
		disk.meanwhile.Store(&meanwhile)
		dir, id, schema, err := st.Checkpoint(t.Context())
		require.NoError(t, err)
		require.Nil(t, disk.meanwhile.Load(), "no log was copied")
		require.Equal(t, schemaVersion, schema)
		ids = append(ids, id)

		copied := sweepOptions()
		copied.FS = vfs.NewMem()
		ok, err := vfs.Clone(disk, copied.FS, dir, "/restored")
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, st.RemoveCheckpoint())
		restored := mustOpen(t, "/restored", copied)
		check(t, restored, acked)
		require.NoError(t, restored.Close())
	}
	require.Equal(t, []string{ids[0], ids[0], ids[0]}, ids)
	require.NoError(t, st.Close())
}

// TestCheckpointFails: a checkpoint that fails leaves nothing, and the store goes on. So does a start after one that was cut off.
func TestCheckpointFails(t *testing.T) {
	noLeaks(t)
	disk := vfs.NewMem()
	var full atomic.Bool
	opts := sweepOptions()
	opts.FS = errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && strings.Contains(op.Path, checkpointName) && isLog(op.Path) {
			return syscall.ENOSPC
		}
		return nil
	}))
	st := mustOpen(t, "/data", opts)
	require.NoError(t, st.Write(t.Context(), crashBatch(1)))
	full.Store(true)
	_, _, _, err := st.Checkpoint(t.Context())
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, st.Write(t.Context(), crashBatch(2)))
	names, err := disk.List("/data")
	require.NoError(t, err)
	require.NotContains(t, names, checkpointName)

	full.Store(false)
	dir, _, _, err := st.Checkpoint(t.Context())
	require.NoError(t, err)
	require.NoError(t, st.Close())
	_, err = disk.Stat(dir)
	require.NoError(t, err)
	require.NoError(t, mustOpen(t, "/data", opts).Close())
	_, err = disk.Stat(dir)
	require.Error(t, err)
}
