package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// ApplySchema creates or updates the tables in a Cassandra cluster. It retries until a node
// answers.
func ApplySchema(ctx context.Context, cfg config.Schema, stdout, stderr io.Writer) error {
	log := cfg.Logger(stderr)
	opts := backend.ClusterOptions(&cfg.Cluster, cfg.Made)
	opts.Clock = clock.System{}
	opts.Logger = log.With("component", "cassandra")
	opts.Policy = cfg.Policy.New
	opts.Applier = backend.WorkerName()

	bar := bar{out: stdout}
	err := whenThere(ctx, log, &cfg.Cluster, func(ctx context.Context) error {
		return cassandra.ApplySchema(ctx, opts, cfg.Replication, func(done, total int, step string) {
			if done < total && !terminal.IsTerminal(stdout) { // in a log
				fmt.Fprintf(stdout, "%d/%d %s\n", done+1, total, step)
			}
			bar.at(int64(done), int64(total), step)
		})
	})
	bar.end()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("stopped before the schema was complete: run the command again to continue")
	case err != nil:
		return err
	}
	fmt.Fprintf(stdout, `Keyspace %s is ready. Next, with the same --cassandra and --keyspace flags:

   quern serve --store cassandra       everything in one process, or
   ingest                              any number of them, and
   aggregator                          at least one
`, cfg.Cluster.Keyspace)
	return nil
}

// SchemaRestored prepares tables that were restored from a snapshot for use.
func SchemaRestored(ctx context.Context, cfg config.Schema, stdout, stderr io.Writer) error {
	return onStore(ctx, config.Settings{Cluster: cfg.Cluster, Log: cfg.Log}, stderr, func(st storage.Store) error {
		if err := nobodyRuns(ctx, st); err != nil {
			return err
		}
		next, err := st.(*cassandra.Store).RaiseIDs(ctx)
		if err == nil {
			fmt.Fprintf(stdout, "New series of keyspace %s get ids from %d on. Now start the processes.\n", cfg.Cluster.Keyspace, next)
		}
		return err
	})
}
