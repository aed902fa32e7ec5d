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

// store is what every backend has beside the contract.
type store interface {
	storage.Store
	// Collector has its own metrics.
	Collector() prometheus.Collector
}

// openStore opens the store of --store and brings its block size to the one asked
// for. onFatal hears, once, that the store cannot go on in this process.
func (s *setup) openStore(ctx context.Context, onFatal func(error)) (store, error) {
	var st store
	var err error
	if s.cfg.Store == config.Cassandra {
		st, err = s.openCassandra(ctx)
	} else {
		st, err = s.openPebble(onFatal)
	}
	if err != nil {
		return nil, err
	}
	if err := s.changeBlockSize(ctx, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

func (s *setup) openPebble(onFatal func(error)) (store, error) {
	retention, err := s.cfg.RetentionOn(s.cfg.Ladder)
	if err != nil {
		return nil, err
	}
	st, err := pebble.Open(s.cfg.DataDir, pebble.Options{
		Settings:  settings(s.cfg.Made),
		Retention: retention,
		Clock:     s.clk,
		Logger:    component(s.log, "pebble"),
		OnFatal:   onFatal,
	})
	if err != nil {
		return nil, err // and no interface that holds a nil *Store
	}
	return st, nil
}

func (s *setup) openCassandra(ctx context.Context) (store, error) {
	opts := clusterOptions(&s.cfg.Cluster, s.cfg.Made)
	opts.MaxClockSkew = s.cfg.MaxClockSkew()
	opts.Clock = s.clk
	opts.Logger = component(s.log, "cassandra")
	opts.Retention = func(l metric.Ladder) (storage.Retention, error) { return s.cfg.RetentionOn(l) }
	st, err := cassandra.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return st, nil
}

// clusterOptions say how to connect, and what the store was or is to be made with.
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

// noNode is said when nobody answers.
func noNode(c *config.Cluster, wait time.Duration) string {
	return fmt.Sprintf("no Cassandra node of %s answers; trying again in %s", strings.Join(c.Hosts, ","), wait)
}

// settings are those to make a store with, or to find it made with. What is zero in made is
// left to the store.
func settings(made config.Made) storage.Settings {
	out := storage.Settings{
		Ladder: made.Ladder, GroupSize: made.GroupSize, IndexPartitions: made.IndexPartitions,
	}
	if made.BlockSize > 0 {
		out.Epochs = blocks.Epochs{{FromMs: 0, BlockSize: made.BlockSize}}
	}
	return out
}

// changeBlockSize adds an epoch when another block size is asked for. It begins a
// slice after the last one that a sample may have been written to.
func (s *setup) changeBlockSize(ctx context.Context, st storage.Store) error {
	size := s.cfg.BlockSize
	if size == 0 {
		return nil // not asked for
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
			// Another process has changed it meanwhile, probably to the same.
		default:
			return fmt.Errorf("change the block size from %d to %d: %w", last.BlockSize, size, err)
		}
	}
}

// unusedFrom is the start of a slice that nobody has written to, nor will for a slice's
// width.
func (s *setup) unusedFrom(ctx context.Context, st storage.Store, last blocks.Epoch) (int64, error) {
	ladder := st.Settings().Ladder
	from := ladder.SliceAt(metric.Raw, s.clk.Now().Add(s.cfg.FutureLimit).UnixMilli()).EndMs
	// Under another future limit, or a clock that was ahead, slices beyond may be in use.
	opened, err := st.Slices(ctx, metric.Raw, from, from+(30*24*time.Hour).Milliseconds())
	if err != nil {
		return 0, err
	}
	for _, o := range opened {
		from = max(from, ladder.SliceAt(metric.Raw, o.StartMs).EndMs)
	}
	return max(from, last.FromMs) + ladder.WidthMs(metric.Raw+1), nil
}
