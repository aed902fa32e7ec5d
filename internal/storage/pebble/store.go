// Package pebble keeps Quern's tables in an embedded Pebble database, for one process.
//
// # Tables
//
// A table is a key prefix of one byte. The keys order the rows as the table's key does. Numbers are
// 8 bytes, big endian, with the sign bit flipped; docs/format/pebble.md has every byte.
//
//	table                     key
//	schedules                 's' source, series
//	schedules_by_block        'b' schedule
//	raw_metrics               'r' day, group, slice, chunk id
//	metrics_cache             'c' bucket, slice, start, chunk id
//	metrics_cache_index       'i' bucket, slice, shard, start, time, mark id
//	roll-up tables            'u' level, period, schedule, time
//	slices                    'l' bucket, slice, state
//	documents                 'o' kind, id, version; 'v' for the versions with their bodies
//	annotations               'a' start, id; 'p' span, start, id for long ones
//	runs, errors              'n' start, bucket, slice, worker; 'e' component, time, …
//	settings, ids, fence      'm' name
//
// Leases live in memory only. One process owns the directory, so opening the store voids the leases
// of the process before it. The fence is stored on disk.
package pebble

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// MaxOpenFiles is how many tables a store keeps open. It needs some files more.
const MaxOpenFiles = 512

// Store implements storage.Store. Beyond the contract it guarantees:
//
//  1. There is one log. It is written in the order in which batches commit. So a synced batch makes
//     every batch before it durable too, and after a crash a prefix of the batches is there.
//  2. A batch is atomic: that of Write, of ClaimSchedules, of one call of DeleteMarks, and of one
//     part of WriteRollups.
//  3. A write with a fence commits while it holds fences.mu for reading. A lease is granted under
//     fences.mu held for writing. So no write with an older fence commits after the lease.
//  4. Every write runs in a goroutine of its own (do). Pebble ignores contexts: it blocks while
//     memtables wait for a full disk, and for ever once its log has failed. Locks are taken within
//     that goroutine, so a caller that gives up does not release a lock early. A lock that is taken
//     anywhere else is never held during a write: whoever waits for it does not wait for the disk.
//  5. No iterator of Pebble is open while a caller's loop body runs: a slow reader would keep
//     memtables and deleted files. Raw chunks are the exception: they are most of what is read, and not copied. So
//     the body of a loop over them waits for nobody; see storage.Reader.
type Store struct {
	dir      string
	db       *lsm.DB
	lock     *lsm.Lock
	disk     *disk
	failures *failures
	clk      clock.Clock
	log      *slog.Logger

	// use is held for reading while a read or a write begins. Close holds it for writing to set
	// closed. So nothing begins after that, and Close waits for what is under way.
	use    sync.RWMutex
	closed bool
	reads  sync.WaitGroup // counts iterators
	// writes counts the writes under way, including those whose callers have given up.
	writes sync.WaitGroup

	// These settings never change.
	ladder    metric.Ladder
	groupSize int
	shards    int
	version   string // of the program that opened the store

	// settingsWrites is held while changed settings are written, settingsMu while they are copied.
	settingsWrites sync.Mutex
	settingsMu     sync.Mutex
	settings       storage.Settings
	packed         atomic.Int64 // raw chunks replaced since the memtable was last flushed for that
	// expired holds, by the bucket's name, the time below which Expire has removed rows.
	expired map[string]int64

	// begunMu is held while the newest begun slice is read and replaced.
	begunMu sync.Mutex

	registryMu sync.Mutex
	// nextID is the first schedule id that is not leased. It changes under registryMu.
	nextID atomic.Int64

	// newest is the result of NewestID. It changes under newestMu, which is held while a batch that raises it commits.
	newest   atomic.Pointer[blocks.ID]
	newestMu sync.Mutex

	// gate decides whether the clock may be acted on. keptMs is the newest time that it has seen, as last stored. It
	// changes under clockMu.
	gate    *clock.Gate
	clockMu sync.Mutex
	keptMs  atomic.Int64

	// rowsMu is held while a document or an item is read and replaced.
	rowsMu sync.Mutex

	readerOptions sstable.ReaderOptions
	unreadable    keyRanges

	lostSaid *limits.Throttle

	fences fences
}

var _ storage.Store = (*Store)(nil)

// Open opens the store in dir. If dir is missing or empty, Open creates a store with the wanted
// settings. It returns storage.ErrConflict if another process has the directory open,
// storage.ErrSettings if the wanted settings differ from those recorded, and storage.ErrCorrupt if
// the store is not whole. A refused directory is not changed.
func Open(dir string, opts Options) (*Store, error) {
	exists, err := opts.claim(dir)
	if err != nil {
		return nil, err
	}
	if !exists && !opts.wantsSettings() {
		return nil, noStore(dir)
	}
	if err := opts.FS.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	lock, err := lockDirectory(dir, opts.FS)
	if err != nil {
		return nil, err
	}
	s, err := open(dir, opts, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// claim validates the options, and reports whether a store is in dir. It fails if dir holds anything else.
func (o *Options) claim(dir string) (exists bool, err error) {
	if err := o.Validate(); err != nil {
		return false, err
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	return claimDirectory(dir, o.FS)
}

func noStore(dir string) error {
	return fmt.Errorf("there is no store in %s, and no settings to create one with", dir)
}

// lockDirectory locks dir. Its error distinguishes a directory that is in use from one that cannot
// be used.
func lockDirectory(dir string, files vfs.FS) (*lsm.Lock, error) {
	lock, err := lsm.LockDirectory(dir, files)
	if err == nil {
		return lock, nil
	}
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	return nil, fmt.Errorf("data directory %s is in use by another process: stop that one first, "+
		"or choose another directory: %w (%w)", dir, storage.ErrConflict, err)
}

func open(dir string, opts Options, lock *lsm.Lock) (*Store, error) {
	s := newStore(dir, &opts, lock)
	if err := s.openDB(&opts); err != nil {
		return nil, err
	}
	s.failures.arm(opts.OnFatal)
	s.disk.opened()
	if err := s.RemoveCheckpoint(); err != nil {
		s.log.Warn("cannot remove the checkpoint of a backup that was cut off", "err", err)
	}
	return s, nil
}

// newStore returns a store that is not open yet.
func newStore(dir string, opts *Options, lock *lsm.Lock) *Store {
	var capacity int64
	if usage, err := opts.FS.GetDiskUsage(dir); err == nil {
		capacity = int64(usage.TotalBytes)
	}
	opts.EnsureDefaults(capacity)
	failures := newFailures(opts)
	return &Store{
		dir: dir, lock: lock, failures: failures, disk: newDisk(dir, opts, failures),
		clk: opts.Clock, log: opts.Logger, expired: map[string]int64{},
		fences:   fences{leases: map[int]storage.Lease{}},
		lostSaid: limits.NewThrottle(opts.Clock, time.Minute),
	}
}

// openDB opens the database once the directory is known to be the store's.
func (s *Store) openDB(opts *Options) error {
	exists, err := s.examine(opts)
	if err != nil {
		return err
	}
	if !exists {
		if !opts.wantsSettings() {
			return noStore(s.dir)
		}
		s.log.Info("created a new store", "dir", s.dir)
	}
	if err := s.run("open "+s.dir, func() (err error) {
		p := s.pebbleOptions(opts)
		s.readerOptions = p.MakeReaderOptions()
		s.db, err = lsm.Open(s.dir, p)
		return err
	}); err != nil {
		return err
	}
	if err := s.run("open "+s.dir, func() error {
		if err := s.load(opts); err != nil {
			return err
		}
		// Not as a range: Pebble may panic if it collects the statistics of a table with range tombstones while Open fails.
		workers := kindPrefix(tableItems, storage.KindWorker)
		err := s.eachKey(workers, after(workers), func(k []byte) error { return s.db.Delete(k, lsm.NoSync) })
		if lsm.IsCorruptionError(err) {
			return nil // what cannot be read counts as no heartbeat
		}
		return err
	}); err != nil {
		return errors.Join(err, s.closeDB())
	}
	return nil
}

// pebbleOptions returns options that suit chunks of some kB and two cores.
func (s *Store) pebbleOptions(o *Options) *lsm.Options {
	background, corrupt := limits.NewThrottle(o.Clock, time.Minute), limits.NewThrottle(o.Clock, time.Minute)
	p := &lsm.Options{
		FS:                          s.disk.fs(),
		Lock:                        s.lock,
		Logger:                      &pebbleLogger{log: o.Logger, failures: s.failures},
		FormatMajorVersion:          formatVersion,
		CacheSize:                   o.CacheBytes,
		MemTableSize:                uint64(o.MemTableBytes),
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       24,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		// Every flush of ingest syncs the log. Between flushes, and while tables are written, these
		// two keep the page cache from being flushed in one stall.
		WALBytesPerSync: 512 << 10,
		BytesPerSync:    1 << 20,
		MaxOpenFiles:    MaxOpenFiles,
		EventListener: &lsm.EventListener{
			BackgroundError: func(err error) {
				if skipped, ok := background.Pass(); ok {
					o.Logger.Error("background work of the store failed; retrying",
						"err", err, "more_since_last", skipped)
				}
			},
			DataCorruption: func(info lsm.DataCorruptionInfo) {
				if skipped, ok := corrupt.Pass(); ok {
					o.Logger.Error("stored data is damaged", "file", info.Path, "err", info.Details, "more_since_last", skipped)
				}
			},
		},
	}
	tune(p)
	return p
}

// tune sets how tables are laid out. Chunks of neighbouring blocks lie side by side and are read in
// ranges, so large blocks compress better and cost nothing. The profile compresses fast where data is
// rewritten soon, and with zstd where data stays: 4.9 bytes a sample, compared with 5.8 for the next
// faster profile.
func tune(p *lsm.Options) {
	for i := range p.Levels {
		p.Levels[i].BlockSize = 32 << 10
		p.Levels[i].IndexBlockSize = 256 << 10
	}
	p.TargetFileSizes[0] = 4 << 20
	p.ApplyCompressionSettings(func() lsm.DBCompressionSettings { return lsm.DBCompressionGood })
}

// load reads the settings and the counters. In a new store it records the settings.
func (s *Store) load(o *Options) error {
	recorded, err := s.get(metaKey(metaSettings))
	if err != nil {
		return err
	}
	if recorded == nil {
		if !o.wantsSettings() {
			return fmt.Errorf("the store in %s has no settings, so nothing can be read from it", s.dir)
		}
		s.settings = o.Settings.OrNew()
		s.settings.Epochs, s.version = slices.Clone(s.settings.Epochs), o.Version
		if s.settings.Policy, err = o.policy(s.settings.Ladder); err != nil {
			return err
		}
		if err := s.putSettings(&s.settings); err != nil {
			return err
		}
	} else {
		if s.settings, s.version, err = decodeSettings(recorded); err != nil {
			return err
		}
		if err := checkSettings(s.dir, &s.settings, &o.Settings); err != nil {
			return err
		}
		if o.Version != "" && o.Version != s.version {
			s.log.Info("this version of Quern opens the store for the first time; what is stored keeps its format", "dir", s.dir,
				"last_opened_by", cmp.Or(s.version, "unknown"), "version", o.Version, "schema", schemaVersion)
			s.version = o.Version
			if err := s.putSettings(&s.settings); err != nil {
				return err
			}
		}
	}
	expired, err := s.get(metaKey(metaExpired))
	if err != nil {
		return err
	}
	if expired != nil {
		if s.expired, err = decodeJSON[map[string]int64](metaExpired, expired); err != nil {
			return err
		}
	}
	s.ladder, s.groupSize, s.shards = s.settings.Ladder, s.settings.GroupSize, s.settings.IndexPartitions
	next, err := s.getCounter(metaNextID)
	if err != nil {
		return err
	}
	s.nextID.Store(next)
	newest, err := s.get(metaKey(metaNewestID))
	if err != nil {
		return err
	}
	var id blocks.ID
	copy(id[:], newest)
	s.newest.Store(&id)
	if err := s.loadClock(); err != nil {
		return err
	}
	fence, err := s.getCounter(metaFence)
	s.fences.last = storage.Fence(fence)
	return err
}

// Close waits for the writes under way, syncs the log and closes the store. Memtables
// are not flushed: the next Open replays the log.
func (s *Store) Close() error {
	if _ = s.gate.Check(); s.disk.admit(0) == nil && s.failures.check() == nil {
		if err := s.run("record the time", s.keepTime); err != nil {
			s.log.Warn("cannot record the time; a clock that jumps is detected by an older record", "err", err)
		}
	}
	close(s.disk.closing)
	s.use.Lock()
	s.closed = true
	s.use.Unlock()
	s.reads.Wait()
	idle := make(chan struct{})
	go func() {
		s.writes.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-s.failures.failed:
	}
	if err := s.failures.check(); err != nil {
		return err // Pebble is parked with its locks held; what was acknowledged is in the log
	}
	return errors.Join(s.closeDB(), s.lock.Close())
}

func (s *Store) closeDB() error {
	return s.run("close "+s.dir, s.db.Close)
}

// begin returns an error if an operation cannot start.
func (s *Store) begin(ctx context.Context, op string) error {
	if ctx.Err() != nil {
		return contextError(ctx, op)
	}
	if s.disk.closing.Err() != nil {
		return fmt.Errorf("%s: %w", op, errClosed)
	}
	if err := s.failures.check(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// errClosed is the error of an operation that comes after Close.
var errClosed = fmt.Errorf("%w: the store is closed", storage.ErrUnavailable)

// do runs a write in a goroutine of its own. If ctx is done first, do returns and the write goes
// on.
func (s *Store) do(ctx context.Context, op string, write func() error) error {
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	s.use.RLock()
	if s.closed {
		s.use.RUnlock()
		return fmt.Errorf("%s: %w", op, errClosed)
	}
	done := s.start(write)
	s.use.RUnlock()
	select {
	case err := <-done:
		return convert(op, err)
	case <-ctx.Done():
		return contextError(ctx, op)
	case <-s.failures.failed:
		return fmt.Errorf("%s: %w", op, s.failures.err)
	}
}

// run is like do, for the store's own steps. Nothing cancels them.
func (s *Store) run(op string, step func() error) error {
	select {
	case err := <-s.start(step):
		return convert(op, err)
	case <-s.failures.failed:
		return fmt.Errorf("%s: %w", op, s.failures.err)
	}
}

func (s *Store) start(write func() error) <-chan error {
	done := make(chan error, 1)
	s.writes.Add(1)
	go func() {
		defer s.writes.Done()
		defer func() {
			if r := recover(); r != nil {
				s.failures.fail(fmt.Errorf("%v\n%s", r, debug.Stack()))
			}
		}()
		done <- write()
	}()
	return done
}

// iterator returns an iterator over the rows of [lower, upper). Whoever closes it counts it off reads.
func (s *Store) iterator(lower, upper []byte) (*lsm.Iterator, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	it, err := s.db.NewIter(&lsm.IterOptions{LowerBound: lower, UpperBound: upper})
	if err == nil {
		s.reads.Add(1)
	}
	return it, err
}

// get returns the value at key, nil if there is none.
func (s *Store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, lsm.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(v)), v...), closer.Close()
}

// row is get for a store that may be closed meanwhile. It reads no other row: one that was written since the block
// below it was damaged can be read.
func (s *Store) row(key []byte) ([]byte, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	return s.get(key)
}

func (s *Store) getCounter(name string) (int64, error) {
	v, err := s.get(metaKey(name))
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: counter %s has %d bytes", storage.ErrCorrupt, name, len(v))
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}

func (s *Store) putCounter(name string, x int64) error {
	return s.db.Set(metaKey(name), binary.BigEndian.AppendUint64(nil, uint64(x)), lsm.Sync)
}

func (s *Store) putSettings(settings *storage.Settings) error {
	v, err := encodeSettings(settings, s.version)
	if err != nil {
		return err
	}
	return s.db.Set(metaKey(metaSettings), v, lsm.Sync)
}

// NewestID implements storage.Store.
func (s *Store) NewestID() blocks.ID { return *s.newest.Load() }

// Settings implements storage.Store.
func (s *Store) Settings() storage.Settings {
	s.settingsMu.Lock()
	defer s.settingsMu.Unlock()
	settings := s.settings
	settings.Epochs = slices.Clone(settings.Epochs)
	return settings
}

// AddEpoch implements storage.Store. Adding the last epoch once more changes nothing.
func (s *Store) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	const op = "add epoch"
	unused := storage.CheckUnused(ctx, s, s.ladder, e)
	return s.do(ctx, op, func() error {
		s.settingsWrites.Lock()
		defer s.settingsWrites.Unlock()
		settings := s.Settings()
		if settings.Epochs[len(settings.Epochs)-1] == e {
			return nil
		}
		epochs, err := settings.Epochs.Add(e)
		if errors.Is(err, blocks.ErrEpochTooSoon) {
			return fmt.Errorf("%w: %w", storage.ErrConflict, err)
		}
		if err != nil {
			return err
		}
		if unused != nil {
			return unused
		}
		settings.Epochs = epochs
		return s.replaceSettings(&settings)
	})
}

// replaceSettings writes settings. Readers see them once they are durable.
func (s *Store) replaceSettings(settings *storage.Settings) error {
	if err := s.putSettings(settings); err != nil {
		return err
	}
	s.settingsMu.Lock()
	defer s.settingsMu.Unlock()
	s.settings = *settings
	s.gate.Tolerate(settings.Policy.MostStep())
	return nil
}

// SetPolicy implements storage.Store.
func (s *Store) SetPolicy(ctx context.Context, p storage.Policy) error {
	return s.do(ctx, "set policy", func() error {
		if err := validatePolicy(&p); err != nil {
			return err
		}
		s.settingsWrites.Lock()
		defer s.settingsWrites.Unlock()
		settings := s.Settings()
		settings.Policy = p
		return s.replaceSettings(&settings)
	})
}

// WholeFrom implements storage.Store.
func (s *Store) WholeFrom(b metric.Bucket, nowMs int64) int64 {
	s.settingsMu.Lock()
	defer s.settingsMu.Unlock()
	whole := int64(math.MinInt64)
	if from := s.settings.Policy.Retention.From(b, nowMs); from != math.MinInt64 && s.gate.Check() == nil {
		whole = from
	}
	if below, ok := s.expired[s.ladder.Name(b)]; ok {
		whole = max(whole, below)
	}
	return whole
}
