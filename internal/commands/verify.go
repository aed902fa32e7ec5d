package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/operate/verify"
	"github.com/quern/quern/internal/wire"
)

// Verify compares a server's roll-ups with its raw samples. It returns an error if they differ.
func Verify(ctx context.Context, cfg config.Verify, stdout, stderr io.Writer) error {
	stdout = terminal.Plain(stdout)
	now := clock.NowMs(clock.System{})
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	o := verify.Options{
		Client: &verify.Client{Client: server},
		Match:  cfg.Match, Level: cfg.Level, StartMs: cfg.Start.Ms(now), EndMs: cfg.End.Ms(now),
		Limit: cfg.Limit, Repair: cfg.Repair, TakeBack: cfg.TakeBack,
	}
	if o.StartMs >= o.EndMs {
		return &client.RefusedError{Message: "--start must be before --end"}
	}
	bar := bar{out: stderr}
	o.Progress = func(done, total int) { bar.at(int64(done), int64(total), "Verifying") }
	asJSON := json.NewEncoder(stdout)
	asJSON.SetEscapeHTML(false)
	var unwritten error
	o.Tell = func(d wire.Difference) {
		bar.clear()
		if cfg.JSON {
			unwritten = errors.Join(unwritten, asJSON.Encode(wire.Verification{Difference: &d}))
			return
		}
		for _, line := range verify.Lines(d) {
			fmt.Fprintln(stdout, line)
		}
	}
	sum, err := verify.Run(ctx, o)
	bar.end()
	switch {
	case sum == nil:
	case cfg.JSON:
		last := wire.Verification{Verified: sum}
		if err == nil {
			last.Status = wire.Success
		}
		unwritten = errors.Join(unwritten, asJSON.Encode(last))
	default:
		printVerified(stdout, sum, cfg.Limit)
	}
	switch {
	case unwritten != nil:
		return unwritten // the output is not whole
	case err != nil && sum == nil:
		return stopped(ctx, err, "stopped before all rows were compared")
	case err != nil:
		return stopped(ctx, err, "stopped before all rows were repaired; "+stayMarked)
	case verify.Differences(sum) > 0:
		return fmt.Errorf("%d rows differ from their samples", verify.Differences(sum))
	case sum.Damaged > 0:
		return fmt.Errorf("%d raw chunks are damaged", sum.Damaged)
	case sum.DamagedRows > 0:
		return fmt.Errorf("%d rows are damaged", sum.DamagedRows)
	case sum.Series == 0:
		return errors.New("nothing to verify: no matching series has samples or rows in the range")
	}
	return nil
}

func printVerified(out io.Writer, s *wire.Verified, limit int) {
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
	if verify.Differences(s)+s.Damaged+s.DamagedRows > limit {
		fmt.Fprintf(out, "… and more: --limit is %d\n", limit)
	}
	fmt.Fprintf(out, "%d series, %d samples from %s to %s\n", s.Series, s.Samples, at(s.Start), at(s.End))
	for _, l := range s.Levels {
		line := fmt.Sprintf("%s: %d rows compared, %d differ", l.Level, l.Compared, l.Different)
		for _, left := range []struct {
			n    int
			what string
		}{
			{l.Pending, "pending"}, {l.NotGround, "not ground yet"}, {l.Expired, "expired"}, {l.Unreadable, "with damaged samples"},
		} {
			if left.n > 0 {
				line += fmt.Sprintf(", %d %s", left.n, left.what)
			}
		}
		fmt.Fprintln(out, line)
	}
	if s.Damaged > 0 {
		fmt.Fprintf(out, "%d raw chunks are damaged: restore them, then recompute their rows with `quern reaggregate`\n", s.Damaged)
	}
	if s.DamagedRows > 0 {
		fmt.Fprintf(out, "%d rows, or their sketches, are damaged: --repair recomputes those that have samples\n", s.DamagedRows)
	}
	r := s.Repaired
	if r == nil {
		return
	}
	if r.Series > 0 {
		var when []string
		for _, rows := range r.Rows {
			when = append(when, rows.Level+" with the run after "+at(rows.After))
		}
		fmt.Fprintf(out, "%d series in %d slices will be ground again; their rows will be right: %s\n", r.Series, r.Slices, strings.Join(when, ", "))
	}
	if r.Surplus > 0 {
		fmt.Fprintf(out, "%d rows have no raw samples, and stay: to take them back, use --repair --take-back on a server with --enable-admin-api\n", r.Surplus)
	}
}
