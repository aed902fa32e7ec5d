package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/pebble"
)

// store is what every backend has besides the contract.
type store interface {
	storage.Store
	// Collector returns the backend's own metrics.
	Collector() prometheus.Collector
}

// openStore opens the store of --store and applies the requested settings.
func (s *setup) openStore(ctx context.Context, onFatal func(error)) (store, error) {
	st, err := s.openBackend(ctx, onFatal)
	if err != nil {
		return nil, err
	}
	if err := s.adopt(ctx, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// openBackend opens the store of --store. It calls onFatal at most once, when the store cannot go
// on in this process.
func (s *setup) openBackend(ctx context.Context, onFatal func(error)) (store, error) {
	if s.cfg.Store == config.Cassandra {
		return s.openCassandra(ctx)
	}
	return s.openPebble(onFatal)
}

// adopt applies the requested settings to the store.
func (s *setup) adopt(ctx context.Context, st storage.Store) error {
	if err := s.changePolicy(ctx, st); err != nil {
		return err
	}
	return s.changeBlockSize(ctx, st)
}

// changePolicy applies the requested policy to the store. If other processes share the store, it
// refuses a different policy instead: two processes with different policies would acknowledge data
// into slices that the other has completed, or grind input that has partly expired. On an embedded
// store no other process runs.
func (s *setup) changePolicy(ctx context.Context, st storage.Store) error {
	recorded := st.Settings()
	want, err := s.cfg.Policy.Over(recorded.Policy, recorded.Ladder)
	if err != nil {
		return err
	}
	differences := recorded.Policy.Differences(want, recorded.Ladder)
	if len(differences) == 0 {
		return nil
	}
	if s.shared() {
		return refuseDifferent(&s.cfg.Cluster, differences)
	}
	if err := st.SetPolicy(ctx, want); err != nil {
		return err
	}
	for _, d := range differences {
		s.log.Info("a setting of the store changes", "setting", d[0].Flag, "from", d[0].Text, "to", d[1].Text)
	}
	return nil
}

// refuseDifferent returns an error that names the stored and the requested values, and the command
// that changes them.
func refuseDifferent(c *config.Cluster, differences [][2]storage.Value) error {
	var has, set []string
	for _, d := range differences {
		has = append(has, fmt.Sprintf("--%s %s, and %s is asked for", d[0].Flag, d[0].Text, d[1].Text))
		set = append(set, fmt.Sprintf("--%s %s", d[1].Flag, d[1].Text))
	}
	return fmt.Errorf("%w: keyspace %q has %s: leave the options out, or stop all processes and change them for all by `quern settings set --keyspace %s %s`",
		storage.ErrSettings, c.Keyspace, strings.Join(has, "; "), c.Keyspace, strings.Join(set, " "))
}

func (s *setup) openPebble(onFatal func(error)) (store, error) {
	st, err := pebble.Open(s.cfg.DataDir, pebble.Options{
		Settings: settings(s.cfg.Made),
		Policy:   s.cfg.Policy.New,
		Clock:    s.clk,
		Logger:   component(s.log, "pebble"),
		OnFatal:  onFatal,
	})
	if err != nil {
		return nil, err // not st, which would make an interface that holds a nil *Store
	}
	return st, nil
}

func (s *setup) openCassandra(ctx context.Context) (store, error) {
	opts := clusterOptions(&s.cfg.Cluster, s.cfg.Made)
	opts.Clock = s.clk
	opts.Logger = component(s.log, "cassandra")
	opts.Policy = s.cfg.Policy.New
	st, err := cassandra.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// clusterOptions returns how to connect, and what the store was or will be made with.
func clusterOptions(c *config.Cluster, made config.Made) cassandra.Options {
	return cassandra.Options{
		Hosts:       c.Hosts,
		Keyspace:    c.Keyspace,
		LocalDC:     c.LocalDC,
		Consistency: c.Consistency,
		Username:    c.Username,
		Password:    string(c.Password),
		TLS: cassandra.TLS{
			Enabled: c.TLS, CAFile: c.CA, CertFile: c.Cert, KeyFile: c.Key, SkipVerify: c.SkipVerify,
		},
		Timeout:     c.Timeout,
		MaxInFlight: c.MaxInFlight,
		DirectHosts: c.Direct,
		Settings:    settings(made),
	}
}

// noNode returns the message for when no node answers.
func noNode(c *config.Cluster, wait time.Duration) string {
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
func (s *setup) changeBlockSize(ctx context.Context, st storage.Store) error {
	size := s.cfg.BlockSize
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
		from, err := s.unusedFrom(ctx, st, last)
		if err != nil {
			return err
		}
		err = st.AddEpoch(ctx, blocks.Epoch{FromMs: from, BlockSize: size})
		switch {
		case err == nil:
			s.log.Info("the block size changes", "from", last.BlockSize, "to", size, "at", metric.Slice{StartMs: from})
			return nil
		case errors.Is(err, storage.ErrConflict) && attempt < attempts:
			// Another process has changed it meanwhile, probably to the same size.
		default:
			return fmt.Errorf("change the block size from %d to %d: %w", last.BlockSize, size, err)
		}
	}
}

// unusedFrom returns the start of a slice, in Unix ms, that no process has written to, nor will
// within a slice's width.
func (s *setup) unusedFrom(ctx context.Context, st storage.Store, last blocks.Epoch) (int64, error) {
	ladder := st.Settings().Ladder
	from := ladder.SliceAt(metric.Raw, s.clk.Now().Add(st.Settings().Policy.FutureLimit).UnixMilli()).EndMs
	// Another future limit, or a clock that was ahead, may have opened slices further ahead.
	opened, err := st.Slices(ctx, metric.Raw, from, from+(30*24*time.Hour).Milliseconds())
	if err != nil {
		return 0, err
	}
	for _, o := range opened {
		from = max(from, ladder.SliceAt(metric.Raw, o.StartMs).EndMs)
	}
	return max(from, last.FromMs) + ladder.WidthMs(metric.Raw+1), nil
}
