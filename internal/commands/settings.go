package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/pebble"
)

// Settings prints what a store was made with, and which stored settings can be changed.
func Settings(ctx context.Context, cfg config.Settings, stdout, stderr io.Writer) error {
	return onStore(ctx, cfg, stderr, func(st storage.Store) error {
		s := st.Settings()
		w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SETTING\tVALUE\t")
		fmt.Fprintf(w, "--rollups\t%s\tfixed\n--group-size\t%d\tfixed\n--index-partitions\t%d\tfixed\n", s.Ladder, s.GroupSize, s.IndexPartitions)
		for i, e := range s.Epochs {
			from := ""
			if i > 0 {
				from = "from " + moment(e.FromMs) + " on"
			}
			fmt.Fprintf(w, "--block-size\t%d\t%s\n", e.BlockSize, from)
		}
		if s.Policy.Equal(storage.Policy{}) {
			fmt.Fprintln(w, "the others\t-\tset by the first process that opens the store")
			return w.Flush()
		}
		for _, v := range s.Policy.Values(s.Ladder) {
			fmt.Fprintf(w, "--%s\t%s\t\n", v.Flag, v.Text)
		}
		return w.Flush()
	})
}

// wantedPolicy returns the policy of a store with the settings that cfg changes.
func wantedPolicy(cfg config.Settings, recorded storage.Settings) (storage.Policy, error) {
	if recorded.Policy.Equal(storage.Policy{}) {
		return cfg.Policy.New(recorded.Ladder)
	}
	return cfg.Over(recorded.Policy, recorded.Ladder)
}

// SetSettings changes settings for all processes of a store. It refuses while a process runs, since
// a process keeps the settings that it started with.
func SetSettings(ctx context.Context, cfg config.Settings, stdout, stderr io.Writer) error {
	return onStore(ctx, cfg, stderr, func(st storage.Store) error {
		recorded := st.Settings()
		want, err := wantedPolicy(cfg, recorded)
		if err != nil {
			return err
		}
		differences := recorded.Policy.Differences(want, recorded.Ladder)
		if len(differences) == 0 {
			fmt.Fprintln(stdout, "Nothing to change: the store already has these settings.")
			return nil
		}
		if err := nobodyRuns(ctx, st); err != nil {
			return err
		}
		if err := st.SetPolicy(ctx, want); err != nil {
			return err
		}
		for _, d := range differences {
			fmt.Fprintf(stdout, "--%s: %s, was %s\n", d[0].Flag, d[1].Text, cmp.Or(d[0].Text, "not set"))
		}
		if err := nobodyRuns(ctx, st); err != nil {
			return fmt.Errorf("the settings were changed, but a process started meanwhile and will not ingest or aggregate until it is restarted: %w", err)
		}
		return nil
	})
}

// nobodyRuns returns an error if processes of the store are alive.
func nobodyRuns(ctx context.Context, st storage.Store) error {
	workers, err := storage.Workers(ctx, st)
	if err != nil || len(workers) == 0 {
		return err
	}
	var names []string
	for _, w := range workers {
		names = append(names, fmt.Sprintf("%s on host %s, last heartbeat at %s", w.ID, w.Host, moment(w.SeenMs)))
	}
	return fmt.Errorf("%w: these processes are running: %s: stop them first; a killed process counts until its --heartbeat-timeout has passed",
		storage.ErrConflict, strings.Join(names, "; "))
}

// onStore calls do with an existing store. It changes nothing in the store by itself.
func onStore(ctx context.Context, cfg config.Settings, stderr io.Writer, do func(storage.Store) error) error {
	log := cfg.Logger(stderr)
	if cfg.Store == config.Pebble {
		st, err := pebble.Open(cfg.DataDir, pebble.Options{Clock: clock.System{}, Logger: log.With("component", "pebble")})
		if err != nil {
			return err
		}
		return errors.Join(do(st), st.Close())
	}
	opts := backend.ClusterOptions(&cfg.Cluster, config.Made{})
	opts.Clock = clock.System{}
	opts.Logger = log.With("component", "cassandra")
	return whenThere(ctx, log, &cfg.Cluster, func(ctx context.Context) error {
		st, err := cassandra.Open(ctx, opts)
		if err != nil {
			return err
		}
		return errors.Join(do(st), st.Close())
	})
}
