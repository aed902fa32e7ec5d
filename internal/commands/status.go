package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

// shownLately is the number of recent runs that are printed.
const shownLately = 8

// Healthy returns an error unless a server is ready.
func Healthy(ctx context.Context, server config.Connection, _, stderr io.Writer) error {
	to, err := server.Client(stderr)
	if err != nil {
		return err
	}
	return to.Ready(ctx)
}

// Status prints how far a server's aggregation is.
func Status(ctx context.Context, cfg config.Status, stdout, stderr io.Writer) error {
	st, text, err := answered[wire.Status](ctx, &cfg.Connection, stderr, http.MethodGet, wire.StatusPath, nil)
	switch {
	case err != nil:
		return err
	case len(st.Buckets) == 0:
		return errors.New("the server's answer is not a Quern status")
	}
	stdout = terminal.Plain(stdout)
	if cfg.JSON {
		_, err := stdout.Write(text)
		return err
	}
	return writeStatus(stdout, &st, clock.System{}.Now())
}

func writeStatus(out io.Writer, st *wire.Status, now time.Time) error {
	if st.ClockDoubt != "" {
		fmt.Fprintf(out, "THE CLOCK IS REFUSED: %s\n\n", st.ClockDoubt)
	}
	if n := len(st.Unread); n > 0 {
		fmt.Fprintf(out, "OUT OF REACH: %s\n", st.Unread[0])
		if n > 1 {
			fmt.Fprintf(out, "and %s more\n", count(int64(n-1), "part", "parts"))
		}
		fmt.Fprint(out, "What is there is not shown below, and waits.\n\n")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUCKET\tBEHIND\tOUTSTANDING")
	for _, b := range st.Buckets {
		var slices []string
		for _, o := range b.Outstanding {
			slices = append(slices, fmt.Sprintf("%s (%s)", moment(o.Slice), count(int64(o.Marks), "mark", "marks")))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", b.Bucket, metric.SpanText(time.Duration(b.LagSeconds*float64(time.Second)).Round(time.Second)), orNothing(strings.Join(slices, ", ")))
	}

	fmt.Fprintln(w, "\nLEVEL\tKEPT\tWHOLE FROM")
	for _, l := range st.Levels {
		kept, whole := "for ever", "-"
		if l.RetentionSeconds > 0 {
			kept = metric.FormatSpan(time.Duration(l.RetentionSeconds * float64(time.Second)))
		}
		if l.WholeFrom != nil {
			whole = moment(*l.WholeFrom)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", l.Level, kept, whole)
	}
	if p := st.Packing; p != nil {
		fmt.Fprintf(w, "\nRAW PACKED IN\t%d of %s\n", p.Slices-p.Left, count(int64(p.Slices), "slice", "slices"))
	}
	fmt.Fprintln(w, "\nWORKER\tHOST\tSINCE\tLAST SEEN\tSHARDS")
	for _, wk := range st.Workers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s ago\t%s\n", wk.ID, wk.Host, moment(wk.Started),
			metric.SpanText(now.Sub(time.UnixMilli(wk.Seen)).Round(time.Second)), orNothing(shardsOf(st, wk.ID)))
	}

	fmt.Fprintln(w, "\nRUN OF\tBY\tAT\tTOOK\tBLOCKS\tROWS\tQUERIES\tLATE\tPUT OFF\tDROPPED\tABORTED")
	for _, r := range st.Runs[:min(shownLately, len(st.Runs))] {
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%.3f s\t%d\t%d\t%d + %d\t%d\t%d\t%d\t%s\n", r.Bucket, moment(r.Slice), r.Worker, moment(r.Started),
			r.Seconds, r.Blocks, r.Schedules, r.BlockQueries, r.IndexQueries, r.Late, r.Rescheduled, r.Dropped, orNothing(r.Error))
	}

	fmt.Fprintln(w, "\nERROR AT\tOF\tBY\tIN THE RUN OF\tBLOCK\tWHAT")
	for _, e := range st.Errors {
		run, block := "", ""
		if e.Slice != 0 {
			run = e.Bucket + " " + moment(e.Slice)
		}
		if e.Start != nil {
			block = strconv.FormatInt(*e.Start, 10)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", moment(e.Time), e.Component, e.Worker, orNothing(run), orNothing(block), e.Message)
	}

	if len(st.Unkept) > 0 {
		fmt.Fprintln(w, "\nNOT KEPT SINCE START\tREASON\tPATH\tSENDER\tLAST AT\tEXAMPLE")
		for _, u := range st.Unkept {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", u.Count, u.Reason, u.Path, u.Sender, moment(u.Last), u.Message)
		}
	}
	return w.Flush()
}

// shardsOf formats a worker's shards, such as 0-3, 7.
func shardsOf(st *wire.Status, worker string) string {
	var mine []int
	for _, sh := range st.Shards {
		if sh.Worker == worker {
			mine = append(mine, sh.Shard)
		}
	}
	slices.Sort(mine)
	var out []string
	for i := 0; i < len(mine); {
		j := i
		for j+1 < len(mine) && mine[j+1] == mine[j]+1 {
			j++
		}
		text := strconv.Itoa(mine[i])
		if j > i {
			text += "-" + strconv.Itoa(mine[j])
		}
		out, i = append(out, text), j+1
	}
	return strings.Join(out, ", ")
}
