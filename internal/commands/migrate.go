package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/migrate"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/storage"
)

// Migrate copies a legacy keyspace into the store. It retries until both clusters answer.
func Migrate(ctx context.Context, cfg config.Migrate, stdout, stderr io.Writer) error {
	log := cfg.Logger(stderr)
	clk := clock.System{}
	names, err := readNames(cfg.Names, stdout)
	if err != nil {
		return err
	}
	var from *legacy.Keyspace
	if err := whenThere(ctx, log, &cfg.From, func(ctx context.Context) (err error) {
		opts := backend.ClusterOptions(&cfg.From, config.Made{})
		opts.Logger = log.With("component", "cassandra")
		from, err = legacy.Open(ctx, opts)
		return err
	}); err != nil {
		return stopped(ctx, err, whenStopped)
	}
	defer from.Close()

	opener := backend.Opener{Config: cfg.Config, Clock: clk, Logger: log}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var to backend.Store
	if err := whenThere(ctx, log, &cfg.Cluster, func(ctx context.Context) (err error) {
		to, err = opener.OpenAndAdopt(ctx, fail)
		return err
	}); err != nil {
		return stopped(ctx, err, whenStopped)
	}
	report, err := copyAll(ctx, cfg, from, to, names, clk, log.With("component", "migrate"), stdout)
	err = errors.Join(stopped(ctx, err, whenStopped), to.Close())
	if report != nil {
		printReport(stdout, report)
	}
	if err != nil {
		return err
	}
	return finish(ctx, cfg, report, from, stdout)
}

func copyAll(
	ctx context.Context, cfg config.Migrate, from legacy.Reader, to storage.Store, names map[int32]migrate.Series, clk clock.Clock, log *slog.Logger, stdout io.Writer,
) (*migrate.Report, error) {
	policy := to.Settings().Policy
	bar, logged := bar{out: stdout}, 0
	defer bar.end()
	progress := func(done, total int) {
		if tenth := 10 * done / max(total, 1); !terminal.IsTerminal(stdout) && (tenth > logged || done == 0) {
			logged = tenth
			log.Info("copying", "schedules", done, "of", total)
		}
		bar.at(int64(done), int64(total), "schedules")
	}
	return migrate.New(migrate.Parts{
		From: from, To: to, Cache: cache.New(to, clk, rand.Uint64(), cache.Timing{Grace: policy.Grace, Delay: policy.Delay}), Clock: clk,
	}, migrate.Options{
		Source: cfg.Source, Names: names, Rate: cfg.Rate, Shared: cfg.Store == config.Cassandra,
		Logger: log, Progress: progress,
	}).Run(ctx)
}

// readNames reads the file of --names, and prints what is wrong in it.
func readNames(path string, stdout io.Writer) (map[int32]migrate.Series, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--names: %w", err)
	}
	defer f.Close() //nolint:errcheck // it is only read
	names, bad, err := migrate.ReadNames(f)
	if err != nil {
		return nil, fmt.Errorf("--names %s: %w", path, err)
	}
	for _, b := range bad {
		fmt.Fprintf(stdout, "%s, %s: skipped\n", path, b)
	}
	fmt.Fprintf(stdout, "%s: schedules named: %d; lines skipped: %d\n", path, len(names), len(bad))
	return names, nil
}

// whenStopped says what to do after a signal.
const whenStopped = "stopped before all rows were copied: run the command again to continue"

func printReport(out io.Writer, r *migrate.Report) {
	fmt.Fprintf(out, "%d schedules\n", r.Schedules)
	for i := range r.Read {
		fmt.Fprintf(out, "%-26s %d read, %d written now, %d found in the store\n", migrate.TableOf(i), r.Read[i], r.Written[i], r.Found[i])
	}
	fmt.Fprintf(out, "%d raw samples were left out: their day is not whole in RHQ any more, and its roll-ups have them\n", r.Aggregated)
	fmt.Fprintf(out, "%d raw samples and slices were left out: they expire before a run could grind them\n", r.Expired)
	if r.NotFinite > 0 {
		fmt.Fprintf(out, "%d roll-ups were skipped: they hold NaN or an infinity\n", r.NotFinite)
	}
	if r.Bad > 0 {
		fmt.Fprintf(out, "%d rows could not be copied:\n   %s\n", r.Bad, strings.Join(r.BadRows, "\n   "))
		if more := r.Bad - int64(len(r.BadRows)); more > 0 {
			fmt.Fprintf(out, "   and %d more\n", more)
		}
	}
}

// finish compares the copy with its source, and drops the legacy tables if requested.
func finish(ctx context.Context, cfg config.Migrate, r *migrate.Report, from *legacy.Keyspace, stdout io.Writer) error {
	if !r.Equal() {
		var missing []string
		for i := range r.Read {
			if n := r.Read[i] - r.Found[i]; n != 0 {
				missing = append(missing, fmt.Sprintf("%d of %s", n, migrate.TableOf(i)))
			}
		}
		return fmt.Errorf("rows are missing in the store (%s): run the command again", strings.Join(missing, ", "))
	}
	fmt.Fprintln(stdout, "All rows that were read are in the store.")
	if !cfg.Drop {
		return nil
	}
	if r.Bad > 0 {
		return fmt.Errorf("the legacy tables were not dropped: %d of their rows could not be copied", r.Bad)
	}
	fmt.Fprintf(stdout, "Dropping the tables %s of keyspace %s.\n", strings.Join(legacy.Tables(), ", "), cfg.From.Keyspace)
	if err := from.Drop(ctx); err != nil {
		return fmt.Errorf("%w; all rows are copied: drop the remaining legacy tables with cqlsh", err)
	}
	return nil
}
