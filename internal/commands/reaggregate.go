package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/wire"
)

// errBrokenOff: a complete answer ends with a line that says so.
var errBrokenOff = errors.New("the server's answer ended early; " + stayMarked)

// Reaggregate asks a server to mark slices to be ground again, shows the progress and prints the
// result.
func Reaggregate(ctx context.Context, cfg config.Reaggregate, stdout, stderr io.Writer) error {
	body, err := ask(ctx, &cfg.Connection, stderr, wire.ReaggregatePath, url.Values{
		"match[]": cfg.Match, "start": {cfg.Start}, "end": {cfg.End}, "take_back": {strconv.FormatBool(cfg.TakeBack)},
	})
	if err != nil {
		return stopped(ctx, err, "stopped; "+stayMarked)
	}
	defer body.Close()
	sum, err := follow(body, stderr)
	switch {
	case err != nil:
		return stopped(ctx, err, "stopped; "+stayMarked)
	case sum.Series == 0:
		return fmt.Errorf("no series match %s", strings.Join(cfg.Match, " "))
	}
	sayMarked(terminal.Plain(stdout), sum)
	return nil
}

// follow reads the reply's lines to the last one, and shows the progress on a terminal.
func follow(body io.Reader, stderr io.Writer) (reaggregate.Summary, error) {
	bar := bar{out: stderr}
	defer bar.end()
	var last reaggregate.Reply
	err := client.Lines(body, func(l *reaggregate.Reply) error {
		if l.Status == wire.Failure {
			return fmt.Errorf("%s (%d of %d blocks were done; repeating the request is safe)", l.Error, last.Done, last.Total)
		}
		if last = *l; last.Total > 0 && last.Status == "" {
			bar.at(last.Done, last.Total, "blocks")
		}
		return nil
	})
	if err == nil && last.Status != wire.Success {
		err = errBrokenOff
	}
	return last.Summary, err
}

func sayMarked(out io.Writer, sum reaggregate.Summary) {
	n := sum.Slices
	fmt.Fprintf(out, "%s: %s marked, %s not closed yet, %s expired.\n", count(int64(sum.Series), "series", "series"),
		count(n.Marked, "slice", "slices"), count(n.NotClosed, "slice", "slices"), count(n.Expired, "slice", "slices"))
	if n.NotClosed > 0 {
		fmt.Fprintln(out, "Slices that are not closed yet will be ground when they close.")
	}
	if n.Expired > 0 {
		fmt.Fprintln(out, "Expired slices keep their rows: some of their samples may be gone.")
	}
	if sum.Blocks == 0 {
		fmt.Fprintln(out, "There is nothing to recompute.")
		return
	}
	fmt.Fprintf(out, "%s will be read again. The rows are ready soon after the run at:\n", count(sum.Blocks, "block", "blocks"))
	for _, r := range sum.Rows {
		fmt.Fprintf(out, "   %-6s %s\n", r.Level, moment(r.By))
	}
}
