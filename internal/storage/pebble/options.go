package pebble

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Options say how a store is opened. The zero value opens an existing store with the
// settings that it was created with.
type Options struct {
	// Settings are recorded when the store is created. At every later Open each field that is not
	// zero must equal the recorded one; only the epochs may differ, and the store's own apply. A
	// new store takes the defaults of storage.Settings.OrNew for zero fields. With neither settings
	// nor a policy Open creates no store.
	Settings storage.Settings
	// Policy returns the policy of a new store. The default is to keep everything for ever.
	Policy func(metric.Ladder) (storage.Policy, error)
	// Version is that of the program. The store records it, for programs that do not know the store's format. The default
	// leaves what is recorded.
	Version string
	// Clock tells the time for leases, heartbeats and throttling. The default is the
	// machine's.
	Clock clock.Clock
	// Logger receives messages for operators. The default is slog's.
	Logger *slog.Logger
	// FS is where the files live. The default is the operating system's.
	FS vfs.FS
	// CacheBytes is the memory for cached blocks and memtables together: the cache shrinks while
	// memtables fill. The default is 128 MiB.
	CacheBytes int64
	// MemTableBytes is the amount of data that is collected in memory, and in one log file, before
	// Pebble sorts it into tables. It bounds the log that Open has to replay. The default is 32
	// MiB, or a 16th of the file system where that is less, but at least 1 MiB.
	MemTableBytes int64
	// ReserveBytes is the free space below which the store accepts no more data. The log must not
	// fail, and so always has room. The default is 256 MiB, or an 8th of the file system where that is less.
	ReserveBytes int64
	// OnFatal is called, once and in its own goroutine, when the store cannot continue because its
	// log cannot be written. What was acknowledged is on disk; opening the store again recovers it.
	// The default is to panic.
	OnFatal func(error)
}

// formatVersion is the version of Pebble's files that Open upgrades a store to. It is a fixed
// number and not Pebble's newest, since there is no way back: once a store has been opened,
// programs with an older Pebble cannot open it. Raise it only for a gain, and say so in the changelog.
const formatVersion = lsm.FormatValueSeparation

const (
	defaultCacheBytes    = 128 << 20
	defaultMemTableBytes = 32 << 20
	minMemTableBytes     = 1 << 20
	defaultReserveBytes  = 256 << 20
)

// EnsureDefaults fills in the options that are not set. capacityBytes is the size of the file
// system, 0 when it is unknown.
func (o *Options) EnsureDefaults(capacityBytes int64) {
	if capacityBytes <= 0 {
		capacityBytes = math.MaxInt64
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = max(minMemTableBytes, min(defaultMemTableBytes, capacityBytes/16))
	}
	if o.ReserveBytes == 0 {
		o.ReserveBytes = min(defaultReserveBytes, capacityBytes/8)
	}
	if o.OnFatal == nil {
		o.OnFatal = func(err error) { panic(err) }
	}
}

// Validate returns what is wrong with the options, nil if nothing is.
func (o *Options) Validate() error {
	if o.CacheBytes < 0 || o.MemTableBytes < 0 || o.ReserveBytes < 0 {
		return errors.New("cache, memtable and reserve must not be negative")
	}
	if o.MemTableBytes > 1<<30 {
		return fmt.Errorf("memtable of %d bytes: must be at most 1 GiB", o.MemTableBytes)
	}
	if !o.wantsSettings() {
		return nil
	}
	made := o.Settings.OrNew()
	return validateSettings(&made)
}

// wantsSettings reports whether the caller gave settings or a policy.
func (o *Options) wantsSettings() bool {
	return o.Policy != nil || o.Settings.Ladder.Top() > 0 || o.Settings.GroupSize != 0 ||
		o.Settings.IndexPartitions != 0 || len(o.Settings.Epochs) > 0
}

// policy returns the policy to record.
func (o *Options) policy(l metric.Ladder) (storage.Policy, error) {
	if o.Policy == nil {
		return storage.Policy{}, nil
	}
	p, err := o.Policy(l)
	if err == nil {
		err = validatePolicy(&p)
	}
	return p, err
}

func validatePolicy(p *storage.Policy) error {
	if i := slices.IndexFunc(p.Retention, func(d time.Duration) bool { return d < 0 }); i >= 0 {
		return fmt.Errorf("retention %s of bucket %d: must not be negative", p.Retention[i], i)
	}
	return nil
}

func validateSettings(s *storage.Settings) error {
	switch {
	case s.Ladder.Top() < 1:
		return errors.New("settings: at least one roll-up is required")
	case s.Ladder.Top() > math.MaxUint8:
		return errors.New("settings: there are more than 255 roll-ups")
	case s.GroupSize < 1:
		return fmt.Errorf("settings: group size %d: must be at least 1", s.GroupSize)
	case s.IndexPartitions < 1 || s.IndexPartitions > math.MaxUint16:
		return fmt.Errorf("settings: %d index partitions: must be between 1 and %d", s.IndexPartitions, math.MaxUint16)
	case len(s.Epochs) == 0:
		return errors.New("settings: there is no block size")
	}
	for i, e := range s.Epochs {
		if i > 0 && e.FromMs <= s.Epochs[i-1].FromMs {
			return fmt.Errorf("settings: block size %d begins before the one it follows", e.BlockSize)
		}
		if err := blocks.ValidBlockSize(e.BlockSize); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	return nil
}

// checkSettings compares wanted with recorded settings. A different block size is no conflict: it
// becomes an epoch.
func checkSettings(dir string, recorded, wanted *storage.Settings) error {
	differ := func(what, has, wants string) error {
		return fmt.Errorf("%w: data directory %s was created with %s %s, not the requested %s: "+
			"leave the option out, or use another data directory", storage.ErrSettings, dir, what, has, wants)
	}
	switch {
	case wanted.Ladder.Top() > 0 && !recorded.Ladder.Equal(wanted.Ladder):
		return differ("roll-ups", recorded.Ladder.String(), wanted.Ladder.String())
	case wanted.GroupSize != 0 && recorded.GroupSize != wanted.GroupSize:
		return differ("a storage group size of", fmt.Sprint(recorded.GroupSize), fmt.Sprint(wanted.GroupSize))
	case wanted.IndexPartitions != 0 && recorded.IndexPartitions != wanted.IndexPartitions:
		return differ("index partitions", fmt.Sprint(recorded.IndexPartitions), fmt.Sprint(wanted.IndexPartitions))
	}
	return nil
}
