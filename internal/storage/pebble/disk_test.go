package pebble

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// smallFS is a file system of a fixed size. Writes beyond it fail with ENOSPC.
type smallFS struct {
	vfs.FS
	total int64
	// mute says that the file system does not report its free space.
	mute bool

	mu    sync.Mutex
	sizes map[string]int64
	full  int // how often ENOSPC was returned
}

func newSmallFS(base vfs.FS, total int64) *smallFS {
	return &smallFS{FS: base, total: total, sizes: map[string]int64{}}
}

func (fs *smallFS) used() (n int64) {
	for _, size := range fs.sizes {
		n += size
	}
	return n
}

// grow extends the file to size, if there is room.
func (fs *smallFS) grow(name string, size int64) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	more := size - fs.sizes[name]
	if more <= 0 {
		return nil
	}
	if fs.used()+more > fs.total {
		fs.full++
		return syscall.ENOSPC
	}
	fs.sizes[name] = size
	return nil
}

// hog sets the size of a file that another program writes.
func (fs *smallFS) hog(size int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.sizes["hog"] = size
}

// leave has the other program take all but n bytes.
func (fs *smallFS) leave(n int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.sizes["hog"] += fs.total - fs.used() - n
}

func (fs *smallFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if fs.mute {
		return vfs.DiskUsage{}, vfs.ErrUnsupported
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	used := fs.used()
	return vfs.DiskUsage{TotalBytes: uint64(fs.total), UsedBytes: uint64(used), AvailBytes: uint64(max(0, fs.total-used))}, nil
}

func (fs *smallFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.sizes[name] = 0
	return &smallFile{File: f, fs: fs, name: name}, nil
}

func (fs *smallFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Remove(oldname); err != nil {
		return nil, err
	}
	return fs.Create(newname, category)
}

func (fs *smallFS) Rename(oldname, newname string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.sizes[newname] = fs.sizes[oldname]
	delete(fs.sizes, oldname)
	return fs.FS.Rename(oldname, newname)
}

func (fs *smallFS) Remove(name string) error {
	err := fs.FS.Remove(name)
	if err == nil {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		delete(fs.sizes, name)
	}
	return err
}

type smallFile struct {
	vfs.File
	fs      *smallFS
	name    string
	written int64
}

func (f *smallFile) Write(p []byte) (int, error) {
	if err := f.fs.grow(f.name, f.written+int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

func (f *smallFile) Preallocate(offset, length int64) error { return f.fs.grow(f.name, offset+length) }

func fullOptions(fs vfs.FS) Options {
	return Options{Settings: storagetest.TestSettings(), FS: fs, Logger: quiet()}
}

// fill writes batches from n on until the store refuses one, and returns its number.
func fill(t *testing.T, st *Store, n int) (int, error) {
	t.Helper()
	for {
		if err := st.Write(t.Context(), crashBatch(n)); err != nil {
			return n, err
		}
		n++
		require.Less(t, n, 100_000, "the disk never fills")
	}
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestDiskFull fills the disk. Writes are refused in time and everything else works. When there is
// space again, writes work too.
func TestDiskFull(t *testing.T) {
	noLeaks(t)
	fs := newSmallFS(vfs.NewMem(), 32<<20)
	st, err := Open("/data", fullOptions(fs))
	require.NoError(t, err)
	fs.hog(16 << 20)
	lease, err := st.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)

	n, err := fill(t, st, 0)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.True(t, storage.IsAway(err))
	require.ErrorContains(t, err, "disk full")
	require.ErrorContains(t, err, "MB free of 32 MB at /data")
	require.Greater(t, n, 500)
	// Flushes and compactions end meanwhile and free some space. Keep the disk full, but for a write of theirs that is under way.
	fs.leave(st.disk.reserve / 8)
	require.ErrorIs(t, st.WriteRollups(t.Context(), lease.Fence, 1, nil), storage.ErrUnavailable)
	packed, ids := crashBatch(0).Raw[0], []blocks.ID{crashBatch(0).Raw[0].ID}
	packed.ID = blocks.PackedID(ids)
	require.ErrorIs(t, st.PackRaw(t.Context(), lease.Fence, packed, ids), storage.ErrUnavailable)
	_, err = st.ClaimSchedules(t.Context(), storagetest.ClaimsOf("s", []storage.Schedule{{}}))
	require.ErrorIs(t, err, storage.ErrUnavailable)

	// Reads still work. Deletes also work, in the room of the log.
	check(t, st, upTo(n))
	fs.hog(16 << 20)
	doomed := crashBatch(0)
	require.NoError(t, st.DeleteMarks(t.Context(), lease.Fence, doomed.Marks[0].Partition, nil))
	require.NoError(t, st.DeleteCacheBlock(t.Context(), lease.Fence, crashKey(1<<20)))
	require.NoError(t, st.Expire(t.Context()))

	// Space becomes free, is used up, and becomes free again; the store is closed and opened
	// meanwhile.
	fs.hog(8 << 20)
	n, err = fill(t, st, n)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	check(t, st, upTo(n))
	require.NoError(t, st.Close())
	st, err = Open("/data", fullOptions(fs))
	require.NoError(t, err, "it opens on a full disk")
	check(t, st, upTo(n))
	fs.hog(0)
	require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	check(t, st, upTo(n+1))
	require.NoError(t, st.Close())
	require.Zero(t, fs.full, "no write of Pebble's ever met the full disk")
}

// TestFullDiskTakesWhatProtects: documents that take access away, and records for operators, are written into the reserve, down to where the log
// needs the rest.
func TestFullDiskTakesWhatProtects(t *testing.T) {
	noLeaks(t)
	const size = 32 << 20
	fs := newSmallFS(vfs.NewMem(), size)
	st, err := Open("/data", fullOptions(fs))
	require.NoError(t, err)
	put := func(kind string, version int64, protects bool, body string) error {
		return st.PutDocument(t.Context(), storage.Document{DocumentHead: storage.DocumentHead{
			DocumentKey: storage.DocumentKey{Kind: kind, ID: "a"}, Version: version, Deleted: body == "",
		}, Body: []byte(body), Protects: protects})
	}
	leave := func(free int64) {
		fs.hog(0)
		fs.hog(size - fs.used() - free)
	}
	require.NoError(t, put("token", 1, false, "secret"))
	leave(st.disk.reserve / 2)
	require.ErrorIs(t, put("token", 2, false, "another"), storage.ErrUnavailable)
	require.NoError(t, put("token", 2, true, ""))
	ended := strings.Repeat("x", 100<<10)
	require.NoError(t, put("session", 1, true, ended))
	require.NoError(t, storage.RecordRun(t.Context(), st, storage.Run{}))
	item := keptItem("a", "", 0)
	item.Protects = true
	require.NoError(t, st.PutItems(t.Context(), []storage.Item{item, item}))
	require.ErrorIs(t, st.PutItems(t.Context(), []storage.Item{keptItem("a", "", 0), item}), storage.ErrUnavailable)
	require.ErrorIs(t, put("session", 2, false, ended), storage.ErrUnavailable)
	leave(st.disk.reserve / 4)
	err = put("session", 2, true, ended)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorContains(t, err, "1 MB are kept free")
	require.ErrorIs(t, storage.RecordRun(t.Context(), st, storage.Run{StartedMs: 1}), storage.ErrUnavailable)
	require.NoError(t, st.Close())
	fs.hog(0)

	st, err = Open("/data", fullOptions(fs))
	require.NoError(t, err)
	for kind, want := range map[string]string{"token": "", "session": ended} {
		d, err := st.Document(t.Context(), storage.DocumentKey{Kind: kind, ID: "a"})
		require.NoError(t, err)
		require.Equal(t, want, string(d.Body))
		require.False(t, d.Protects)
	}
	require.NoError(t, st.Close())
	require.Zero(t, fs.full)
}

// TestDiskFullBehindTheBack fills the disk unnoticed: the file system does not report its free
// space, or another program takes the reserve. The store fails, with all that it acknowledged on disk.
func TestDiskFullBehindTheBack(t *testing.T) {
	base := vfs.NewCrashableMem()
	fs := newSmallFS(base, 12<<20)
	fs.mute = true
	opts := fullOptions(fs)
	opts.ReserveBytes, opts.MemTableBytes = 4<<20, 2<<20
	fatal := make(chan error, 1)
	opts.OnFatal = func(err error) { fatal <- err }
	st, err := Open("/data", opts)
	require.NoError(t, err)
	n, err := fill(t, st, 0)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorIs(t, <-fatal, syscall.ENOSPC)
	clone := base.CrashClone(vfs.CrashCloneCfg{})
	require.ErrorIs(t, st.Close(), storage.ErrUnavailable)

	opts.FS = newSmallFS(clone, 64<<20)
	st, err = Open("/data", opts)
	require.NoError(t, err)
	check(t, st, upTo(n))
	require.NoError(t, st.Close())
}

// TestRefusedTablesComeBack shows that background writes which were refused for lack of space are
// done when there is space.
func TestRefusedTablesComeBack(t *testing.T) {
	noLeaks(t)
	fs := newSmallFS(vfs.NewMem(), 64<<20)
	st, err := Open("/data", fullOptions(fs))
	require.NoError(t, err)
	for n := range 200 {
		require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	}
	fs.hog(64<<20 - fs.used() - st.disk.reserve/8)
	flushed, err := st.db.AsyncFlush()
	require.NoError(t, err)
	select {
	case <-flushed:
		t.Fatal("a flush took the room of the log")
	default:
	}
	require.ErrorIs(t, st.Write(t.Context(), crashBatch(200)), storage.ErrUnavailable)
	fs.hog(0)
	<-flushed
	require.NoError(t, st.Write(t.Context(), crashBatch(200)))
	check(t, st, upTo(201))
	require.NoError(t, st.Close())
}

// TestExpireFreesAFullDisk shows that Expire frees space without any other write, which a full disk
// would refuse.
func TestExpireFreesAFullDisk(t *testing.T) {
	fs := newSmallFS(vfs.NewMem(), 32<<20)
	opts := fullOptions(fs)
	opts.Policy = storage.Policy{Retention: storage.Retention{7 * 24 * time.Hour}}.Always
	st, err := Open("/data", opts)
	require.NoError(t, err)
	n, err := fill(t, st, 0)
	require.ErrorIs(t, err, storage.ErrUnavailable)

	deadline := time.Now().Add(time.Minute)
	for st.Write(t.Context(), crashBatch(n)) != nil {
		require.NoError(t, st.Expire(t.Context()))
		require.True(t, time.Now().Before(deadline), "no space came back")
		runtime.Gosched()
	}
	require.NoError(t, st.Close())
}

// The store counts all that a claim writes, including labels, against the space that is left.
func TestClaimsOnADiskThatIsNearlyFull(t *testing.T) {
	noLeaks(t)
	fs := newSmallFS(vfs.NewMem(), 32<<20)
	st, err := Open("/data", fullOptions(fs))
	require.NoError(t, err)
	free, _, ok := st.disk.free()
	require.True(t, ok)
	fs.hog(free - st.disk.reserve - 256<<10)
	claim := func(value string) error {
		var want []storage.Schedule
		for i := range 40 {
			labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: fmt.Sprint("m", i)}, metric.Label{Name: "v", Value: value})
			require.NoError(t, err)
			want = append(want, storage.Schedule{ID: metric.ScheduleID(i), Labels: labels})
		}
		_, err := st.ClaimSchedules(t.Context(), storagetest.ClaimsOf("s", want))
		return err
	}
	require.ErrorIs(t, claim(strings.Repeat("x", 4000)), storage.ErrUnavailable, "160 KB, in each of two tables")
	require.NoError(t, claim("x"))
	require.NoError(t, st.Close())
}
