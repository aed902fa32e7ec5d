// Package backend opens the store that the options of a process name, on this machine or in a
// cluster, and applies the options that are stored with it.
package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/wire/version"
)

// Store is what every backend has besides the contract.
type Store interface {
	storage.Store
	// Collector returns the backend's own metrics.
	Collector() prometheus.Collector
}

// Opener opens the store of --store for one process.
type Opener struct {
	Config config.Config
	Clock  clock.Clock
	Logger *slog.Logger
}

// OpenAndAdopt opens the store and applies the requested settings.
func (o *Opener) OpenAndAdopt(ctx context.Context, onFatal func(error)) (Store, error) {
	st, err := o.Open(ctx, onFatal)
	if err != nil {
		return nil, err
	}
	if err := o.Adopt(ctx, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// Open opens the store. It calls onFatal at most once, when the store cannot go on in this process.
func (o *Opener) Open(ctx context.Context, onFatal func(error)) (Store, error) {
	if o.Config.Store == config.Cassandra {
		return o.openCassandra(ctx)
	}
	return o.openPebble(ctx, onFatal)
}

// Adopt applies the requested settings to the store.
func (o *Opener) Adopt(ctx context.Context, st storage.Store) error {
	if err := o.changePolicy(ctx, st); err != nil {
		return err
	}
	return o.changeBlockSize(ctx, st)
}

// changePolicy applies the requested policy to the store. If other processes share the store, it
// refuses a different policy instead: two processes with different policies would acknowledge data
// into slices that the other has completed, or grind input that has partly expired. On an embedded
// store no other process runs.
func (o *Opener) changePolicy(ctx context.Context, st storage.Store) error {
	recorded := st.Settings()
	want, err := o.Config.Policy.Over(recorded.Policy, recorded.Ladder)
	if err != nil {
		return err
	}
	differences := recorded.Policy.Differences(want, recorded.Ladder)
	if len(differences) == 0 {
		return nil
	}
	if o.Config.Store == config.Cassandra { // other processes use it too
		return refuseDifferent(&o.Config.Cluster, differences)
	}
	if err := st.SetPolicy(ctx, want); err != nil {
		return err
	}
	for _, d := range differences {
		o.Logger.Info("store setting changed", "setting", d[0].Flag, "from", d[0].Text, "to", d[1].Text)
	}
	return nil
}

// refuseDifferent returns an error that names the stored and the requested values, and the command
// that changes them.
func refuseDifferent(c *config.Cluster, differences [][2]storage.Value) error {
	var has, set []string
	for _, d := range differences {
		has = append(has, fmt.Sprintf("--%s %s (%s requested)", d[0].Flag, d[0].Text, d[1].Text))
		set = append(set, fmt.Sprintf("--%s %s", d[1].Flag, d[1].Text))
	}
	return fmt.Errorf("%w: keyspace %q has %s: leave the options out, or stop all processes and change them for all with `quern settings set --keyspace %s %s`",
		storage.ErrSettings, c.Keyspace, strings.Join(has, "; "), c.Keyspace, strings.Join(set, " "))
}

func (o *Opener) openPebble(ctx context.Context, onFatal func(error)) (Store, error) {
	st, err := pebble.Open(o.Config.DataDir, pebble.Options{
		Settings: settings(o.Config.Made),
		Policy:   o.Config.Policy.New,
		Version:  version.Read().Version,
		Clock:    o.Clock,
		Logger:   o.Logger.With("component", "pebble"),
		OnFatal:  onFatal,
	})
	if err != nil {
		return nil, err // not st, which would make an interface that holds a nil *Store
	}
	if o.Config.AcceptClock {
		if err := st.AcceptClock(ctx); err != nil {
			return nil, errors.Join(err, st.Close())
		}
	}
	return st, nil
}

func (o *Opener) openCassandra(ctx context.Context) (Store, error) {
	opts := ClusterOptions(&o.Config.Cluster, o.Config.Made)
	opts.Clock = o.Clock
	opts.Logger = o.Logger.With("component", "cassandra")
	opts.Policy = o.Config.Policy.New
	st, err := cassandra.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// ClusterOptions returns how to connect, and what the store was or will be made with.
func ClusterOptions(c *config.Cluster, made config.Made) cassandra.Options {
	return cassandra.Options{
		Hosts:       c.Hosts,
		Keyspace:    c.Keyspace,
		LocalDC:     c.LocalDC,
		Consistency: c.Consistency,
		Username:    c.Username,
		Password:    string(c.Password),
		TLS: cassandra.TLS{
			Enabled: c.TLS, CAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key,
		},
		Timeout:     c.Timeout,
		DirectHosts: c.Direct,
		Settings:    settings(made),
	}
}

// NoNode returns the message for when no node answers.
func NoNode(c *config.Cluster, wait time.Duration) string {
	return fmt.Sprintf("no Cassandra node of %s answers; trying again in %s", strings.Join(c.Hosts, ","), wait)
}

// settings returns the settings to make a store with, or to compare with those of an existing
// store. The store chooses values for what is zero in made.
func settings(made config.Made) storage.Settings {
	out := storage.Settings{
		Ladder: made.Ladder, GroupSize: made.GroupSize, IndexPartitions: made.IndexPartitions,
	}
	if made.BlockSize > 0 {
		out.Epochs = blocks.Epochs{{FromMs: 0, BlockSize: made.BlockSize}}
	}
	return out
}

// changeBlockSize adds an epoch if another block size is requested. The epoch begins a slice after
// the last one that a sample may have been written to.
func (o *Opener) changeBlockSize(ctx context.Context, st storage.Store) error {
	size := o.Config.BlockSize
	if size == 0 {
		return nil // not requested
	}
	const attempts = 5
	for attempt := 1; ; attempt++ {
		epochs := st.Settings().Epochs
		last := epochs[len(epochs)-1]
		if last.BlockSize == size {
			return nil
		}
		from, err := o.unusedFrom(ctx, st, last)
		if err != nil {
			return err
		}
		err = st.AddEpoch(ctx, blocks.Epoch{FromMs: from, BlockSize: size})
		switch {
		case err == nil:
			o.Logger.Info("block size will change", "from", last.BlockSize, "to", size, "at", metric.Slice{StartMs: from})
			return nil
		case errors.Is(err, storage.ErrConflict) && attempt < attempts:
			// Another process has changed it meanwhile, probably to the same size.
		default:
			return fmt.Errorf("change the block size from %d to %d: %w", last.BlockSize, size, err)
		}
	}
}

// unusedFrom returns the start of a slice, in Unix ms, that no process has written to, nor will
// within a slice's width. It goes by a clock that the store confirms.
func (o *Opener) unusedFrom(ctx context.Context, st storage.Store, last blocks.Epoch) (int64, error) {
	if err := st.CheckFit(ctx); err != nil {
		return 0, fmt.Errorf("the clock is not confirmed: %w", err)
	}
	ladder := st.Settings().Ladder
	from := ladder.SliceAt(metric.Raw, o.Clock.Now().Add(st.Settings().Policy.FutureLimit).UnixMilli()).EndMs
	// Another future limit, or a clock that was ahead, may have used slices further ahead.
	used, ok, err := storage.NewestUsed(ctx, st, ladder, math.MinInt64)
	if err != nil {
		return 0, err
	}
	if ok {
		from = max(from, ladder.SliceAt(metric.Raw, used).EndMs)
	}
	return max(from, last.FromMs) + ladder.WidthMs(metric.Raw+1), nil
}

// WorkerName returns a name that no other process has, not even an earlier one on this host.
func WorkerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%08x", host, rand.Uint32())
}
