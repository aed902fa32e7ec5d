package pebble

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// crashStart is a slice's start.
const crashStart = benchStart

// journal records what the writers of a crash test know: which batches were acknowledged, and how
// many fenced operations have returned.
type journal struct {
	mu     sync.Mutex
	acked  map[int]bool
	fenced int
}

func (j *journal) ack(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acked[n] = true
}

func (j *journal) copy() (acked []int, fenced int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n := range j.acked {
		acked = append(acked, n)
	}
	return acked, j.fenced
}

// crashKey returns the key of the cache block that the n-th batch writes. The batch also writes its
// mark and raw chunk.
func crashKey(n int) storage.CacheKey {
	return storage.CacheKey{SliceKey: storage.SliceKey{StartMs: crashStart}, Start: metric.ScheduleID(n * 128)}
}

func crashBatch(n int) *storage.Batch {
	k := crashKey(n)
	rng := rand.New(rand.NewPCG(uint64(n), 0))
	c := storage.Chunk{ID: blocks.KeyID(1, uint64(n))}
	for range 128 { // data that does not compress
		c.Data = binary.BigEndian.AppendUint64(c.Data, rng.Uint64())
	}
	return &storage.Batch{
		Open: []storage.SliceKey{k.SliceKey},
		Marks: []storage.PlacedMark{{
			Partition: storage.IndexPartition{SliceKey: k.SliceKey},
			Mark:      storage.Mark{Start: k.Start, TimeMs: crashStart, ID: c.ID},
		}},
		Raw:   []storage.RawChunk{{Group: blocks.BlockAt(k.Start, 256).Start, SliceMs: crashStart, Chunk: c}},
		Cache: []storage.CacheChunk{{CacheKey: k, Chunk: c}},
	}
}

// fencedRow returns the row that the n-th fenced operation writes.
func fencedRow(n int) metric.RollupRow {
	return metric.RollupRow{Schedule: metric.ScheduleID(n), TimeMs: crashStart, Rollup: metric.Rollup{Count: uint64(n + 1)}}
}

// write writes the batches first + k*stride, and records the acknowledged ones, until count is
// reached, ctx is done or the store fails.
func (j *journal) write(ctx context.Context, st *Store, first, stride, count int) error {
	for k := range count {
		n := first + k*stride
		if err := st.Write(ctx, crashBatch(n)); err != nil {
			return err
		}
		j.ack(n)
	}
	return nil
}

func (j *journal) run(ctx context.Context, st *Store, count int) error {
	lease, err := st.AcquireShard(ctx, 0, "w", time.Hour)
	if err != nil {
		return err
	}
	for n := range count {
		if err := st.WriteRollups(ctx, lease.Fence, 1, []metric.RollupRow{fencedRow(n)}); err != nil {
			return err
		}
		j.mu.Lock()
		j.fenced = n + 1
		j.mu.Unlock()
	}
	return nil
}

// check asserts rules 1 and 2 of the contract on a reopened store: every acknowledged batch is
// there as a whole, and the fenced operations that are there are a prefix. It returns the length of
// the prefix.
func check(t *testing.T, st *Store, acked []int) int {
	t.Helper()
	raw := map[blocks.ID]bool{}
	for c, err := range st.RawChunks(t.Context(), blocks.Range{End: 1 << 40}, crashStart, crashStart+1) {
		require.NoError(t, err)
		raw[c.ID] = true
	}
	marks := map[metric.ScheduleID]bool{}
	for m, err := range st.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: crashStart}}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		marks[m.Start] = true
	}
	for _, n := range acked {
		b := crashBatch(n)
		require.True(t, raw[b.Raw[0].ID], "acknowledged batch %d has lost its raw chunk", n)
		require.True(t, marks[b.Marks[0].Start], "acknowledged batch %d has lost its mark", n)
		got, err := st.CacheBlock(t.Context(), crashKey(n))
		require.NoError(t, err)
		require.Equal(t, []storage.Chunk{b.Cache[0].Chunk}, got)
	}
	require.Len(t, marks, len(raw), "a batch is there in part")
	n := 0
	for row, err := range st.Rollups(t.Context(), 1, blocks.Range{End: 1 << 40}, crashStart, crashStart+1) {
		require.NoError(t, err)
		require.Equal(t, fencedRow(n), row, "the fenced operations are no prefix")
		n++
	}
	return n
}

func crashOptions(fs vfs.FS) Options {
	return Options{
		Settings: storagetest.TestSettings(), FS: fs, Logger: quiet(),
		// The memtables are small, so that logs rotate and tables are written during the crash.
		MemTableBytes: 64 << 10, CacheBytes: 1 << 20,
	}
}

func reopenAndCheck(t *testing.T, fs vfs.FS, acked []int) (prefix int) {
	t.Helper()
	st, err := Open("/data", crashOptions(fs))
	require.NoError(t, err)
	prefix = check(t, st, acked)
	require.NoError(t, st.Close())
	return prefix
}

// TestPowerLoss clones the file system as after a power loss, at many moments while four writers
// and a run are at work. A clone holds what was synced, and by chance some of what was not.
func TestPowerLoss(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewCrashableMem()
	st, err := Open("/data", crashOptions(fs))
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	written := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				n := w + 4*i
				if err := st.Write(ctx, crashBatch(n)); err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					return
				}
				j.ack(n)
				select {
				case written <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Go(func() { assert.ErrorIs(t, j.run(ctx, st, 1<<30), context.Canceled) })

	type clone struct {
		fs    *vfs.MemFS
		acked []int
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var clones []clone
	for i := range 24 {
		for range 15 {
			<-written
		}
		acked, _ := j.copy() // before the clone: it must hold all that is acknowledged by now
		clones = append(clones, clone{
			fs:    fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: i % 4 * 25, RNG: rng}),
			acked: acked,
		})
	}
	stop()
	wg.Wait()
	require.NoError(t, st.Close())
	for i, c := range clones {
		t.Run(fmt.Sprint("clone=", i), func(t *testing.T) { reopenAndCheck(t, c.fs, c.acked) })
	}
	acked, fenced := j.copy()
	require.GreaterOrEqual(t, reopenAndCheck(t, fs, acked), fenced, "Close syncs what was not")
}

// TestSyncedBatchCarriesWhatWasBefore shows that a later unfenced write makes a fenced write
// durable.
func TestSyncedBatchCarriesWhatWasBefore(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewCrashableMem()
	st, err := Open("/data", crashOptions(fs))
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	require.NoError(t, j.run(t.Context(), st, 20))
	require.NoError(t, j.write(t.Context(), st, 0, 1, 1))
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, st.Close())
	require.Equal(t, 20, reopenAndCheck(t, clone, []int{0}))
}

// TestOpenSurvivesErrors fails the n-th write operation of Open, for every n until Open succeeds.
// Open must return an error, not hang, and lose nothing. The store is small so that no compaction
// begins before Open ends: Pebble panics when a failing Open closes the table cache during a
// compaction.
func TestOpenSurvivesErrors(t *testing.T) {
	base := vfs.NewCrashableMem()
	opts := crashOptions(base)
	opts.MemTableBytes = 1 << 20
	st, err := Open("/data", opts)
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	require.NoError(t, j.write(t.Context(), st, 0, 1, 50))
	acked, _ := j.copy()
	image := base.CrashClone(vfs.CrashCloneCfg{}) // the store is not closed: there is a log to replay
	require.NoError(t, st.Close())

	t.Run("with a log", func(t *testing.T) { openWithErrors(t, image, opts, acked) })
	t.Run("new", func(t *testing.T) { openWithErrors(t, vfs.NewCrashableMem(), opts, nil) })
}

func openWithErrors(t *testing.T, image *vfs.MemFS, opts Options, acked []int) {
	for n := int32(1); ; n++ {
		fs := image.CrashClone(vfs.CrashCloneCfg{})
		var seen atomic.Int32
		opts.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(o errorfs.Op) error {
			if o.Kind.ReadOrWrite() == errorfs.OpIsWrite && seen.Add(1) == n {
				return errorfs.ErrInjected
			}
			return nil
		}))
		opts.OnFatal = func(error) {}
		st, err := Open("/data", opts)
		if err == nil {
			// Open can do without the failed operation, or the fault comes later or not at all.
			err = st.Close()
		}
		if err != nil {
			require.Truef(t, errors.Is(err, errorfs.ErrInjected) || errors.Is(err, storage.ErrUnavailable), "n=%d: %v", n, err)
		}
		names, err := listDirectory("/data", fs) // as a killed process leaves it
		require.NoError(t, err)
		require.Truef(t, !hasMarker(names, versionMarker) || slices.ContainsFunc(names, isLog), "n=%d: Open would refuse a directory without a log: %v", n, names)
		reopenAndCheck(t, fs.CrashClone(vfs.CrashCloneCfg{}), acked)
		if seen.Load() < n {
			require.Greater(t, n, int32(10), "Open was never disturbed")
			return
		}
	}
}

// TestWritesSurviveErrors breaks the log at some moment. All writers must return, the store must
// report that it has failed, and what was acknowledged must be there when the store is opened
// again.
func TestWritesSurviveErrors(t *testing.T) {
	for _, op := range []string{"write", "sync", "create"} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%s/seed=%d", op, seed), func(t *testing.T) { breakLog(t, op, 3+int(seed)*17) })
		}
	}
}

// noReuse keeps Pebble from recycling logs: errorfs does not see writes to a recycled log.
type noReuse struct{ vfs.FS }

// ReuseForWrite implements vfs.FS.
func (fs noReuse) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.Remove(oldname); err != nil {
		return nil, err
	}
	return fs.Create(newname, category)
}

func breakLog(t *testing.T, op string, after int) {
	fs := vfs.NewCrashableMem()
	var broken atomic.Bool
	injector := errorfs.InjectorFunc(func(o errorfs.Op) error {
		isLog := len(o.Path) > 4 && o.Path[len(o.Path)-4:] == ".log"
		hit := isLog && broken.Load()
		switch op {
		case "write":
			hit = hit && o.Kind == errorfs.OpFileWrite
		case "sync":
			hit = hit && (o.Kind == errorfs.OpFileSync || o.Kind == errorfs.OpFileSyncData || o.Kind == errorfs.OpFileSyncTo)
		case "create":
			hit = hit && o.Kind == errorfs.OpCreate
		}
		if hit {
			return syscall.EIO
		}
		return nil
	})
	opts := crashOptions(noReuse{errorfs.Wrap(fs, injector)})
	fatal := make(chan error, 1)
	opts.OnFatal = func(err error) { fatal <- err }
	st, err := Open("/data", opts)
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() { assert.NoError(t, j.write(t.Context(), st, w, 4, after)) })
	}
	wg.Wait()
	broken.Store(true)
	for w := range 4 {
		wg.Go(func() {
			assert.ErrorIs(t, j.write(t.Context(), st, w+4*after, 4, 1<<30), storage.ErrUnavailable)
		})
	}
	wg.Go(func() { assert.ErrorIs(t, j.run(t.Context(), st, 1<<30), storage.ErrUnavailable) })
	wg.Wait()
	require.ErrorIs(t, <-fatal, storage.ErrUnavailable)
	require.ErrorIs(t, st.Write(t.Context(), crashBatch(0)), storage.ErrUnavailable)
	_, err = st.CacheBlock(t.Context(), crashKey(0))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	acked, _ := j.copy()
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	broken.Store(false)
	require.ErrorIs(t, st.Close(), storage.ErrUnavailable)
	reopenAndCheck(t, clone, acked)
}
