package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/schollz/progressbar/v3"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
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

	steps := steps{out: stdout}
	err := whenThere(ctx, log, &cfg.Cluster, func(ctx context.Context) error {
		return cassandra.ApplySchema(ctx, opts, cfg.Replication, steps.next)
	})
	steps.end()
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

// steps shows the progress of the schema: a bar on a terminal, lines in a log.
type steps struct {
	out io.Writer
	bar *progressbar.ProgressBar
}

// next is called before each step, and once more after the last.
func (s *steps) next(done, total int, step string) {
	if !terminal.Is(s.out) {
		if done < total {
			fmt.Fprintf(s.out, "%d/%d %s\n", done+1, total, step)
		}
		return
	}
	if s.bar == nil {
		s.bar = terminal.NewBar(s.out, int64(total), "")
	}
	s.bar.ChangeMax(total)
	s.bar.Describe(step)
	// A bar that cannot be drawn is no reason to stop.
	_ = s.bar.Set(done)
}

func (s *steps) end() {
	if s.bar != nil {
		_ = s.bar.Exit()
		fmt.Fprintln(s.out)
	}
}
