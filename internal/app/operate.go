package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/explain"
	"github.com/quern/quern/internal/reaggregate"
)

// operate returns the endpoints for the operators of the store.
func (s *setup) operate(e *engine, turns api.Turns) api.Registrar {
	var again *reaggregate.Reaggregator
	if s.cfg.EnableReaggregate {
		again = s.reaggregator(e)
	}
	return api.NewOperate(
		explain.New(e.store, e.index, e.cache, e.recovery, s.clk),
		again, s.cfg.EnableAdminAPI, s.clk, turns,
	)
}

func (s *setup) reaggregator(e *engine) *reaggregate.Reaggregator {
	return reaggregate.New(e.store, e.index, e.cache, s.clk, component(s.log, "reaggregate"))
}

// stopped returns err, or the message say if a signal caused the error.
func stopped(ctx context.Context, err error, say string) error {
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return errors.New(say)
	}
	return err
}

// stayMarked tells users that marking twice does no harm.
const stayMarked = "what was marked until then stays marked, and to ask again does no harm"

// ask posts a form to a server. The caller must close the returned body.
func ask(ctx context.Context, server, path string, form url.Values) (io.ReadCloser, error) {
	resp, err := (&client.Client{URL: server}).Do(ctx, http.MethodPost, path, form)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// errBrokenOff: a complete answer ends with a line that says so.
var errBrokenOff = errors.New("the server broke off; " + stayMarked)

// Reaggregate asks a server to mark slices to be ground again, shows the progress and prints the
// result.
func Reaggregate(ctx context.Context, cfg config.Reaggregate, stdout, stderr io.Writer) error {
	body, err := ask(ctx, cfg.URL, "/api/v1/reaggregate", url.Values{
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
	sayMarked(stdout, sum)
	return nil
}

// follow reads the reply's lines to the last one, and shows the progress on a terminal.
func follow(body io.Reader, stderr io.Writer) (reaggregate.Summary, error) {
	type line struct {
		Status string
		Error  string
		reaggregate.Summary
	}
	var bar *progressbar.ProgressBar
	defer func() {
		if bar != nil && !bar.IsFinished() {
			fmt.Fprintln(stderr)
		}
	}()
	var last reaggregate.Progress
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return l.Summary, fmt.Errorf("the server's answer is not Quern's: %w", err)
		}
		switch l.Status {
		case "success":
			return l.Summary, nil
		case "error":
			return l.Summary, fmt.Errorf("%s (%d of %d blocks were done; to ask again does no harm)", l.Error, last.Done, last.Total)
		}
		last = l.Progress
		if bar == nil && isTerminal(stderr) && last.Total > 0 {
			bar = newBar(stderr, last.Total, "blocks")
		}
		if bar != nil {
			_ = bar.Set64(last.Done) // a bar that cannot be drawn is no reason to fail
		}
	}
	return reaggregate.Summary{}, errBrokenOff
}

func sayMarked(out io.Writer, sum reaggregate.Summary) {
	n := sum.Slices
	fmt.Fprintf(out, "%s: %s marked, %s not closed yet, %s expired.\n", count(int64(sum.Series), "series", "series"),
		count(n.Marked, "slice", "slices"), count(n.NotClosed, "slice", "slices"), count(n.Expired, "slice", "slices"))
	if n.NotClosed > 0 {
		fmt.Fprintln(out, "What is not closed will be ground anyway, when it is.")
	}
	if n.Expired > 0 {
		fmt.Fprintln(out, "What has expired keeps its rows: part of its samples may be gone.")
	}
	if sum.Blocks == 0 {
		fmt.Fprintln(out, "There is nothing to compute again.")
		return
	}
	fmt.Fprintf(out, "%s will be read again. The rows are there soon after the run at:\n", count(sum.Blocks, "block", "blocks"))
	for _, r := range sum.Rows {
		fmt.Fprintf(out, "   %-6s %s\n", r.Level, moment(r.By))
	}
}

func count(n int64, one, more string) string {
	if n != 1 {
		one = more
	}
	return strconv.FormatInt(n, 10) + " " + one
}

// moment formats a time, in Unix ms, for people.
func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

// Explain asks a server why rows are what they are, and prints the answer in words.
func Explain(ctx context.Context, cfg config.Explain, stdout, _ io.Writer) error {
	body, err := ask(ctx, cfg.URL, "/api/v1/explain", url.Values{
		"match[]": cfg.Match, "time": {cfg.Time}, "limit": {strconv.Itoa(cfg.Limit)},
	})
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return stopped(ctx, fmt.Errorf("the answer broke off: %w", err), "stopped")
	}
	var answer explain.Answer
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("the server's answer is not Quern's: %w", err)
	}
	if cfg.JSON {
		if _, err := stdout.Write(text); err != nil {
			return err
		}
	}
	switch {
	case answer.Matched == 0:
		return fmt.Errorf("no series match %s", strings.Join(cfg.Match, " "))
	case cfg.JSON:
		return nil
	}
	return answer.WriteText(stdout)
}
