package commands

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/wire"
)

// TopSeries prints which metrics, labels, values and sources of a server have the most series.
func TopSeries(ctx context.Context, cfg config.TopSeries, stdout, stderr io.Writer) error {
	form := url.Values{"match[]": cfg.Match, "limit": {strconv.Itoa(cfg.Limit)}}
	if cfg.Label != "" {
		form.Set("label", cfg.Label)
	}
	if cfg.Days > 0 {
		form.Set("days", strconv.Itoa(cfg.Days))
	}
	c, text, err := answered[wire.Cardinality](ctx, &cfg.Connection, stderr, http.MethodPost, wire.CardinalityPath, form)
	if err != nil {
		return err
	}
	stdout = terminal.Plain(stdout)
	if cfg.JSON {
		_, err := stdout.Write(text)
		return err
	}
	for _, warning := range c.Warnings {
		fmt.Fprintf(terminal.Plain(stderr), "warning: %s\n", warning)
	}
	return writeTop(stdout, &c, cfg.By)
}

// writeTop prints the list by, or all lists if it is "".
func writeTop(out io.Writer, c *wire.Cardinality, by string) error {
	fmt.Fprintf(out, "%s, %s, %s\n", count(int64(c.Series), "series", "series"),
		count(int64(c.LabelNames), "label", "labels"), count(int64(c.LabelPairs), "value", "values"))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	list := func(key, head string, n int, row func(i int)) {
		if n == 0 || by != "" && by != key {
			return
		}
		fmt.Fprintln(w, "\n"+head)
		for i := range n {
			row(i)
		}
		_ = w.Flush() // the columns of each list are its own; the last Flush has the error
	}
	series := func(name string, n int) {
		fmt.Fprintf(w, "%s\t%d\t%.1f %%\n", orNothing(name), n, 100*float64(n)/float64(max(c.Series, 1)))
	}
	list("metric", "METRIC\tSERIES\tSHARE", len(c.Metrics), func(i int) { series(c.Metrics[i].Name, c.Metrics[i].Series) })
	list("label", "LABEL\tVALUES\tSERIES\tMEMORY", len(c.Labels), func(i int) {
		l := c.Labels[i]
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f MB\n", l.Name, l.Values, l.Series, float64(l.Bytes)/1e6)
	})
	list("value", "VALUE\tSERIES\tSHARE", len(c.Values), func(i int) {
		series(c.Values[i].Label+"="+strconv.Quote(c.Values[i].Value), c.Values[i].Series)
	})
	list("source", "SOURCE\tSERIES\tSHARE", len(c.Sources), func(i int) { series(c.Sources[i].Name, c.Sources[i].Series) })
	if len(c.Days) > 0 {
		fmt.Fprintln(w, "\nDAY\tNEW\tLAST SAMPLE")
		for _, d := range c.Days {
			met := "-" // the server had not started
			if d.Start+(24*time.Hour).Milliseconds() > c.MetSince {
				met = strconv.Itoa(d.Met)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\n", time.UnixMilli(d.Start).UTC().Format(time.DateOnly), met, d.Last)
		}
		fmt.Fprintf(w, "New series are counted from %s on, when the server started.\n", moment(c.MetSince))
	}
	return w.Flush()
}
