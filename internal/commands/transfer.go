package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/client/transfer"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
)

// Export writes a server's raw samples to a file or to stdout.
func Export(ctx context.Context, cfg config.Export, stdout, stderr io.Writer) error {
	now := clock.NowMs(clock.System{})
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	e := transfer.Export{
		Client: server, Match: cfg.Match, Start: cfg.Start.String(), End: cfg.End.String(),
		StartMs: cfg.Start.Ms(now), EndMs: cfg.End.Ms(now), Part: cfg.Part,
		Annotations: cfg.Annotations, Path: cfg.Output, Stdout: stdout, Overwrite: cfg.Overwrite,
	}
	if terminal.IsTerminal(stdout) { // otherwise every byte counts
		e.Stdout = terminal.Plain(stdout)
	}
	if e.StartMs >= e.EndMs {
		return &client.RefusedError{Message: "--start must be before --end"}
	}
	bar := bar{out: stderr}
	defer bar.end()
	e.Progress = func(x transfer.Exported) {
		bar.at(x.NextMs-x.StartMs, x.EndMs-x.StartMs, transferred("Exporting", x.Samples, x.Bytes))
	}
	e.Warn = func(w string) { bar.tell(stderr, "skipped: "+w) }
	x, err := e.Run(ctx)
	bar.end()
	switch {
	case err != nil && ctx.Err() != nil && cfg.Overwrite:
		return fmt.Errorf("stopped; %s is complete up to %s: run the same command without --overwrite to continue", cfg.Output, moment(x.NextMs))
	case err != nil && ctx.Err() != nil && cfg.Output != "":
		return fmt.Errorf("stopped; %s is complete up to %s: run the same command to continue", cfg.Output, moment(x.NextMs))
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("stopped; all samples up to %s are written", moment(x.NextMs))
	case err != nil:
		return err
	}
	report := stdout
	if cfg.Output == "" {
		report = stderr
	}
	fmt.Fprintf(report, "%s%s from %s to %s, %s\n", count(x.Samples, "sample", "samples"), andAnnotations(x.Annotations), moment(x.StartMs), moment(x.EndMs), count(x.Bytes, "byte", "bytes"))
	if x.Damaged > 0 {
		return errors.New("export incomplete: damaged chunks were skipped")
	}
	return nil
}

// Import sends the samples of files to a server. It returns an error if the server does not accept
// all of them.
func Import(ctx context.Context, cfg config.Import, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	bar := bar{out: stderr}
	defer bar.end()
	im := transfer.Import{
		Client: server, Files: cfg.Files, Stdin: os.Stdin, Rate: cfg.Rate, GiveUp: cfg.GiveUp, Clock: clock.System{},
		Tell: func(line string) { bar.tell(stdout, line) },
		Waiting: func(err error, wait time.Duration) {
			bar.tell(stderr, fmt.Sprintf("trying again in %s: %v", wait, err))
		},
		Progress: func(done, total, accepted int64) { bar.at(done, total, transferred("Importing", accepted, done)) },
	}
	x, err := im.Run(ctx)
	bar.end()
	rejected := x.RejectedTotal()
	fmt.Fprintf(terminal.Plain(stdout), "%s%s accepted, %d rejected%s; %s, %d malformed\n", count(x.Accepted, "sample", "samples"), andAnnotations(x.Annotations), rejected, reasons(x.Rejected),
		count(x.Lines, "line", "lines"), x.Malformed)
	switch {
	case err != nil:
		return err
	case rejected+x.Malformed > 0:
		return fmt.Errorf("%s and %s were not imported; all the rest was",
			count(rejected, "sample", "samples"), count(x.Malformed, "malformed line", "malformed lines"))
	}
	return nil
}

// andAnnotations counts annotations, if there are any.
func andAnnotations(n int64) string {
	if n == 0 {
		return ""
	}
	return " and " + count(n, "annotation", "annotations")
}

// reasons lists the reasons of rejections, most frequent first.
func reasons(counts map[string]int64) string {
	if len(counts) == 0 {
		return ""
	}
	all := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	for i, reason := range all {
		all[i] = fmt.Sprintf("%d %s", counts[reason], reason)
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// transferred says what is in the bar of an export or an import.
func transferred(what string, samples, bytes int64) string {
	return fmt.Sprintf("%s: %d samples, %.1f MB", what, samples, float64(bytes)/1e6)
}
