package pebble

import (
	"fmt"
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

// TestHistories compares the store with the model, over option sets that reach what the defaults do
// not: memtables so small that everything is flushed and compacted, other sizes of pages and
// groups, ladders of seconds and of days.
func TestHistories(t *testing.T) {
	noLeaks(t)
	ladder := func(widths ...time.Duration) storage.Settings {
		s := storagetest.TestSettings()
		var err error
		s.Ladder, err = metric.NewLadder(widths...)
		require.NoError(t, err)
		return s
	}
	oneShard := storagetest.TestSettings()
	oneShard.IndexPartitions, oneShard.GroupSize = 1, 128
	oneShard.Epochs = blocks.Epochs{{BlockSize: 1}}
	for _, tc := range []struct {
		name     string
		settings storage.Settings
		opts     Options
	}{
		{"defaults", storagetest.TestSettings(), Options{}},
		{"small memtable", storagetest.TestSettings(), Options{MemTableBytes: 64 << 10, CacheBytes: 1 << 20}},
		{"one shard", oneShard, Options{MemTableBytes: 256 << 10}},
		{"seconds", ladder(10*time.Second, time.Minute), Options{}},
		{"two days", ladder(48*time.Hour, 96*time.Hour), Options{MemTableBytes: 64 << 10}},
		{"one roll-up", ladder(time.Hour), Options{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for seed := range uint64(4) {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					h := storagetest.History{Seed: seed, Steps: 400, Settings: tc.settings}
					h.Run(t, storagetest.OpenModel, memStore(tc.opts))
				})
			}
		})
	}
}

// memStore returns a function that opens stores with the given options in memory.
func memStore(opts Options) storagetest.OpenFunc {
	return openerOf(opts, func(*testing.T) (vfs.FS, string) { return vfs.NewMem(), "/data" })
}

func openerOf(opts Options, place func(t *testing.T) (vfs.FS, string)) storagetest.OpenFunc {
	return func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		opts := opts
		opts.Settings, opts.Policy, opts.Clock, opts.Logger = s, storage.Policy{Retention: r}.Always, clk, quiet()
		var dir string
		opts.FS, dir = place(t)
		var st *Store
		start := func() storage.Store {
			var err error
			st, err = Open(dir, opts)
			require.NoError(t, err)
			return st
		}
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return start(), func() storage.Store {
			require.NoError(t, st.Close())
			return start()
		}
	}
}
