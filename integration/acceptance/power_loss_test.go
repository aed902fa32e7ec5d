package acceptance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
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

// mains is a system on a disk. It records what the disk holds if the power fails, at every single
// I/O.
type mains struct {
	*System
	files *ioCounter
	off   func() *vfs.MemFS
	given map[string]metric.ScheduleID // ids of acknowledged series
	lost  []loss
}

// known is what a client knows at some moment.
type known struct {
	oracle *Oracle
	given  map[string]metric.ScheduleID
}

type loss struct {
	known
	fs *vfs.MemFS
}

// powerLoss runs do. Then, for each I/O of do, it calls recovered with a system that has opened
// what the disk held at that moment, with none, some or all of the unsynced data.
func powerLoss(t *testing.T, cfg Config, do func(m *mains), recovered func(s *System, k known, io int)) {
	for _, percent := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("unsynced=%d%%", percent), func(t *testing.T) {
			crashable := vfs.NewCrashableMem()
			m := &mains{files: &ioCounter{FS: crashable}, given: map[string]metric.ScheduleID{}}
			m.System = Start(t, Backend{Open: func(t testing.TB, set storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
				return openPebbleOn(t, m.files, set, r, clk)
			}}, cfg)
			rng := rand.New(rand.NewPCG(uint64(percent), 1))
			m.off = func() *vfs.MemFS {
				return crashable.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			}
			do(m)
			m.files.set(nil)
			now := m.Clock.Now()
			m.Stop()
			require.Greater(t, len(m.lost), 8, "the log is written in as many parts as its writer happens to make")
			for i, l := range m.lost {
				s := Start(t, Backend{Open: func(t testing.TB, set storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
					return openPebbleOn(t, l.fs, set, r, clk)
				}}, cfg)
				s.Clock.Set(now)
				s.Oracle = l.oracle.Clone()
				recovered(s, l.known, i)
				s.Settle()
				require.Empty(t, s.Check(Raw), "I/O %d of %d", i, len(m.lost))
				require.Empty(t, s.Leftovers(), "I/O %d of %d", i, len(m.lost))
				s.Stop()
			}
			t.Logf("%d I/Os", len(m.lost))
		})
	}
}

// knows records what the clients know: what has been acknowledged so far. The fate of about, the
// points to be sent next, is unknown to them. From the first call on the power may fail.
func (m *mains) knows(about ...Point) {
	now := known{m.Oracle.Clone(), maps.Clone(m.given)}
	for _, p := range about {
		now.oracle.Tried(p)
	}
	m.files.set(func() { m.lost = append(m.lost, loss{now, m.off()}) })
}

func (m *mains) report(points ...Point) {
	m.knows(points...)
	m.MustReport(points...)
	ids := m.IDs()
	for _, p := range points {
		m.given[p.Series] = ids[p.Series]
	}
	m.knows()
}

// TestPebblePowerLoss: the power fails during a report and a run of all levels. The result must be
// the same as without the loss, for everything that was acknowledged.
func TestPebblePowerLoss(t *testing.T) {
	powerLoss(t, eventfulConfig, func(m *mains) {
		eventful(m.System)
		m.report(m.point("A", 23, 55, 50), m.point("C", 23, 55, 51), m.point("G", 12, 0, 52))
		m.MustRun()
		m.report(m.point("A", 24, 1, 60)) // its sync makes the run durable
	}, func(s *System, _ known, io int) {
		s.MustRun()
		require.Empty(s.t, s.Check(Raw), "I/O %d", io)
	})
}

// TestPebblePowerLossOfIDs: the power fails while ids are leased and assigned to new series.
// Acknowledged series keep their ids, and no other series gets them.
func TestPebblePowerLossOfIDs(t *testing.T) {
	reports := func(s *System) (out [][]Point) {
		for i, names := range []string{"AB", "ABCDE", "FGHIJKL", "MA"} {
			var points []Point
			for _, r := range names {
				points = append(points, s.point(string(r), 10, 1+i, float64(r)))
			}
			out = append(out, points)
		}
		return out
	}
	powerLoss(t, Config{BlockSize: 2, GroupSize: 4, LeaseSize: 4}, func(m *mains) {
		m.Clock.Set(time.UnixMilli(at(m.System, 10, 30)))
		for _, points := range reports(m.System) {
			m.report(points...)
		}
	}, func(s *System, k known, io int) {
		s.checkIDs(k.given)
		s.MustReport(s.point("X", 10, 5, 1), s.point("Y", 10, 5, 2)) // other series come first now
		for _, points := range reports(s) {
			s.MustReport(points...)
		}
		s.checkIDs(k.given)
		require.Len(s.t, s.IDs(), 15, "I/O %d", io)
	})
}
