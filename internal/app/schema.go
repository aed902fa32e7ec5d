package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/storage/cassandra"
)

// ApplySchema creates or updates the tables in a Cassandra cluster. It retries until a node
// answers.
func ApplySchema(ctx context.Context, cfg config.Schema, stdout, stderr io.Writer) error {
	log := newLogger(stderr, cfg.Log)
	clk := clock.System{}
	opts := clusterOptions(&cfg.Cluster, cfg.Made)
	opts.Clock = clk
	opts.Logger = component(log, "cassandra")
	opts.Policy = cfg.Policy.New
	opts.Applier = workerName()

	steps := steps{out: stdout}
	err := whileAway(ctx, clk, func(ctx context.Context) error {
		return cassandra.ApplySchema(ctx, opts, cfg.Replication, steps.next)
	}, func(err error, wait time.Duration) {
		log.Warn(noNode(&cfg.Cluster, wait), "err", err)
	})
	steps.end()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("stopped before the schema was complete: run it again, it goes on from there")
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
	if !isTerminal(s.out) {
		if done < total {
			fmt.Fprintf(s.out, "%d/%d %s\n", done+1, total, step)
		}
		return
	}
	if s.bar == nil {
		s.bar = newBar(s.out, int64(total), "")
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
