package pebble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// disk keeps the log from ever meeting a full disk: Pebble does not survive that. With R the
// reserve and f the free space:
//
//  1. The store accepts new data only while f stays above R. It always accepts deletes. Documents and items
//     that protect it accepts while f stays above R/4: they are few and small, and flushes go on there.
//  2. Compactions write only while f is above R/2, flushes only while f is above R/4. Below that
//     they fail as on a full disk and are retried. So background writes never take the room of the
//     log.
//  3. The log and the manifest always write. If they meet a full disk after all, because other programs have taken the reserve
//     or the file system does not report its free space, the store fails, with all that it acknowledged on the disk.
type disk struct {
	dir      string
	base     vfs.FS
	reserve  int64
	clk      clock.Clock
	log      *slog.Logger
	failures *failures

	// closing ends the pauses of refused background writes.
	closing closeSignal

	mu sync.Mutex
	// oldLogs are removed when the store is open.
	oldLogs []string
}

// refusalPause delays the retries of background work on a full disk.
const refusalPause = 200 * time.Millisecond

var errDiskFull = fmt.Errorf("kept free for the log: %w", syscall.ENOSPC)

func newDisk(dir string, o *Options, f *failures) *disk {
	return &disk{
		dir: dir, base: o.FS, reserve: o.ReserveBytes, clk: o.Clock, log: o.Logger, failures: f,
		closing: make(closeSignal),
	}
}

// closeSignal is the context of the store's background work. It is done when the channel is closed.
type closeSignal chan struct{}

// Deadline implements context.Context.
func (c closeSignal) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c closeSignal) Done() <-chan struct{} { return c }

// Err implements context.Context.
func (c closeSignal) Err() error {
	select {
	case <-c:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (c closeSignal) Value(any) any { return nil }

// fs returns the file system that Pebble uses.
func (d *disk) fs() vfs.FS {
	return &guardedFS{FS: d.base, disk: d}
}

// free returns the free space and the size of the file system. ok is false where the file system
// does not report them.
func (d *disk) free() (freeBytes, totalBytes int64, ok bool) {
	u, err := d.base.GetDiskUsage(d.dir)
	if err != nil {
		return 0, 0, false
	}
	return int64(u.AvailBytes), int64(u.TotalBytes), true
}

// admit returns nil if n more bytes may be written by rule 1.
func (d *disk) admit(n int) error { return d.admitAbove(d.reserve, n) }

// admitAbove is admit for what may be written while more than floor stays free.
func (d *disk) admitAbove(floor int64, n int) error {
	free, total, ok := d.free()
	if !ok {
		return nil
	}
	if free < floor+int64(n) {
		return fmt.Errorf("%w: disk full: %d MB free of %d MB at %s, %d MB are kept free",
			storage.ErrUnavailable, free>>20, total>>20, d.dir, floor>>20)
	}
	return nil
}

// allowTable enforces rule 2: it fails if less than floor is free. In a failed store it parks the
// background work for good.
func (d *disk) allowTable(floor int64) error {
	if err := d.failures.check(); err != nil {
		d.failures.park(err)
	}
	if free, _, ok := d.free(); ok && free < floor {
		_ = d.clk.Sleep(d.closing, refusalPause)
		return errDiskFull
	}
	return nil
}

// opened removes the logs that were replayed, once the store is open.
func (d *disk) opened() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range d.oldLogs {
		_ = d.base.Remove(d.base.PathJoin(d.dir, name)) // the next start tries again
	}
	d.oldLogs = nil
}

// guardedFS applies rules 2 and 3 to the files that Pebble writes.
type guardedFS struct {
	vfs.FS
	disk *disk
}

// Unwrap implements vfs.FS.
func (fs *guardedFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS.
func (fs *guardedFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	switch {
	case category == "pebble-memtable-flush":
		return fs.createTable(name, category, fs.disk.reserve/4)
	case strings.HasSuffix(name, tableSuffix) || strings.HasSuffix(name, blobSuffix):
		return fs.createTable(name, category, fs.disk.reserve/2)
	}
	f, err := fs.FS.Create(name, category)
	return fs.watchLog(name, f, err)
}

// ReuseForWrite implements vfs.FS. It turns an old log into a new one.
func (fs *guardedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, category)
	return fs.watchLog(newname, f, err)
}

// Remove implements vfs.FS. While the store is being opened it keeps the logs: Pebble removes those
// that it has replayed before it makes a new one, and examine refuses a directory without any log.
func (fs *guardedFS) Remove(name string) error {
	if !isLog(name) {
		return fs.FS.Remove(name)
	}
	fs.disk.mu.Lock()
	defer fs.disk.mu.Unlock()
	if fs.disk.failures.opening() {
		fs.disk.oldLogs = append(fs.disk.oldLogs, fs.PathBase(name))
		return nil
	}
	return fs.FS.Remove(name)
}

// OpenDir implements vfs.FS.
func (fs *guardedFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &dirFile{File: f, failures: fs.disk.failures}, nil
}

func (fs *guardedFS) createTable(name string, category vfs.DiskWriteCategory, floor int64) (vfs.File, error) {
	if err := fs.disk.allowTable(floor); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	return &tableFile{File: f, disk: fs.disk, floor: floor}, nil
}

// watchLog wraps a new log so that its writes are watched. If a log cannot be made
// while the store is open, watchLog fails the store, because Pebble would panic.
func (fs *guardedFS) watchLog(name string, f vfs.File, err error) (vfs.File, error) {
	switch {
	case !isLog(name) || fs.PathBase(fs.PathDir(name)) == checkpointName: // without a checkpoint the store goes on
		return f, err
	case err == nil:
		return &logFile{File: f, failures: fs.disk.failures}, nil
	case !fs.disk.failures.opening():
		fs.disk.failures.park(err)
	}
	return nil, err
}

// tableFile checks the free space before each write.
type tableFile struct {
	vfs.File
	disk  *disk
	floor int64
}

// Write implements io.Writer.
func (f *tableFile) Write(p []byte) (int, error) {
	if err := f.disk.allowTable(f.floor + int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	if errors.Is(err, syscall.ENOSPC) {
		_ = f.disk.clk.Sleep(f.disk.closing, refusalPause)
	}
	return n, err
}

// logFile fails the store at the first error, before Pebble accepts another record that it could
// not write: records behind a gap in the log would be lost.
type logFile struct {
	vfs.File
	failures *failures
}

// Write implements io.Writer.
func (f *logFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.watch(err)
	return n, nil
}

// Sync implements vfs.File.
func (f *logFile) Sync() error {
	f.watch(f.File.Sync())
	return nil
}

// SyncData implements vfs.File.
func (f *logFile) SyncData() error {
	f.watch(f.File.SyncData())
	return nil
}

// SyncTo implements vfs.File.
func (f *logFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	f.watch(err)
	return full, nil
}

func (f *logFile) watch(err error) {
	if err != nil {
		f.failures.park(err)
	}
}

// dirFile fails the store when a new manifest cannot be made durable in the directory. Pebble would
// panic there, in the background.
type dirFile struct {
	vfs.File
	failures *failures
}

// Sync implements vfs.File.
func (f *dirFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		f.failures.park(err)
	}
	return nil
}
