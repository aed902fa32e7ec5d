package acceptance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// ioCounter calls at before every operation that changes the file system.
type ioCounter struct {
	vfs.FS
	mu sync.Mutex
	at func()
}

func (c *ioCounter) io() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at != nil {
		c.at()
	}
}

func (c *ioCounter) set(at func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

func (c *ioCounter) Create(name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	c.io()
	f, err := c.FS.Create(name, cat)
	return c.file(f), err
}

func (c *ioCounter) OpenReadWrite(name string, cat vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	c.io()
	f, err := c.FS.OpenReadWrite(name, cat, opts...)
	return c.file(f), err
}

func (c *ioCounter) ReuseForWrite(old, name string, cat vfs.DiskWriteCategory) (vfs.File, error) {
	c.io()
	f, err := c.FS.ReuseForWrite(old, name, cat)
	return c.file(f), err
}

func (c *ioCounter) OpenDir(name string) (vfs.File, error) {
	f, err := c.FS.OpenDir(name)
	return c.file(f), err
}

func (c *ioCounter) Rename(old, name string) error { c.io(); return c.FS.Rename(old, name) }
func (c *ioCounter) Remove(name string) error      { c.io(); return c.FS.Remove(name) }
func (c *ioCounter) Link(old, name string) error   { c.io(); return c.FS.Link(old, name) }

func (c *ioCounter) file(f vfs.File) vfs.File {
	if f == nil {
		return nil
	}
	return &ioFile{File: f, c: c}
}

type ioFile struct {
	vfs.File
	c *ioCounter
}

func (f *ioFile) Write(b []byte) (int, error) { f.c.io(); return f.File.Write(b) }

func (f *ioFile) WriteAt(b []byte, off int64) (int, error) {
	f.c.io()
	return f.File.WriteAt(b, off)
}
func (f *ioFile) Sync() error                  { f.c.io(); return f.File.Sync() }
func (f *ioFile) SyncData() error              { f.c.io(); return f.File.SyncData() }
func (f *ioFile) SyncTo(n int64) (bool, error) { f.c.io(); return f.File.SyncTo(n) }

// TestPebblePowerLoss: the power goes at every single I/O of a report and of a run of all
// levels. What is on the disk then, with none, some or all of what was not synced, is opened
// again and run; it must end as without the loss, for all that had been acknowledged.
func TestPebblePowerLoss(t *testing.T) {
	for _, percent := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("unsynced=%d%%", percent), func(t *testing.T) {
			crashable := vfs.NewCrashableMem()
			files := &ioCounter{FS: crashable}
			s := Start(t, Backend{Open: func(t testing.TB, set storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
				return openPebbleOn(t, files, set, r, clk)
			}}, eventfulConfig)
			eventful(s)

			rng := rand.New(rand.NewPCG(uint64(percent), 1))
			type clone struct {
				fs     *vfs.MemFS
				oracle *Oracle
				ran    bool
			}
			var clones []clone
			oracle, ran := s.Oracle.Clone(), false
			files.set(func() {
				clones = append(clones, clone{
					crashable.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), oracle, ran,
				})
			})
			// A report, of which nothing is promised until it is acknowledged, ...
			points := []Point{s.point("A", 23, 55, 50), s.point("C", 23, 55, 51), s.point("G", 12, 0, 52)}
			for _, p := range points {
				s.Oracle.Tried(p)
			}
			during := s.Oracle.Clone()
			files.mu.Lock()
			oracle = during
			files.mu.Unlock()
			s.MustReport(points...)
			after := s.Oracle.Clone()
			files.mu.Lock()
			oracle = after
			files.mu.Unlock()
			// ... the run, and another report, whose sync makes the run durable.
			s.MustRun()
			files.mu.Lock()
			ran = true
			files.mu.Unlock()
			s.MustReport(s.point("A", 24, 1, 60))
			files.set(nil)
			now := s.Clock.Now()
			s.Stop()
			require.Greater(t, len(clones), 8, "the log is written in as many parts as its writer happens to make")

			for i, c := range clones {
				loss := Start(t, Backend{Open: func(t testing.TB, set storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
					return openPebbleOn(t, c.fs, set, r, clk)
				}}, eventfulConfig)
				loss.Clock.Set(now)
				loss.Oracle = c.oracle
				if c.ran {
					loss.Oracle.Tried(s.point("A", 24, 1, 60))
				}
				loss.MustRun()
				require.Empty(t, loss.Check(Raw), "I/O %d of %d", i, len(clones))
				loss.Drain()
				require.Empty(t, loss.Check(Raw), "I/O %d of %d", i, len(clones))
				require.Empty(t, loss.Leftovers(), "I/O %d of %d", i, len(clones))
				loss.Stop()
			}
			t.Logf("%d I/Os", len(clones))
		})
	}
}
