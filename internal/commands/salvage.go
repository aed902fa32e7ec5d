package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/client/pipes"
	"github.com/quern/quern/internal/client/transfer"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage/pebble"
)

// Salvage writes the readable samples of a store to a file. It returns an error if some cannot be
// read.
//
// It runs an export from a server inside the process, over the store opened read-only.
func Salvage(ctx context.Context, cfg config.Salvage, stdout, stderr io.Writer) (err error) {
	bar := bar{out: stderr}
	defer bar.end()
	var mu sync.Mutex
	lost := map[string]bool{}
	st, err := pebble.OpenReadOnly(cfg.Dir, pebble.Options{
		Logger: slog.New(slog.DiscardHandler),
		OnLost: func(what string) {
			mu.Lock()
			defer mu.Unlock()
			lost[what] = true
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	index := query.NewIndex()
	if err := index.Refresh(ctx, st); err != nil {
		return err
	}
	fromMs, toMs, err := st.RawSpan()
	if err != nil {
		return err
	}
	// The clock is at the end of the data, so that everything is exported whatever this machine's
	// time is.
	clk := clock.NewSimulated(time.UnixMilli(toMs))
	reader := query.New(query.Parts{Store: st, Index: index, Settings: st.Settings(), Clock: clk}, query.Options{})
	mux := route.NewTable()
	reading.New(reader, nil, clk, reading.Turns{}).Register(mux)
	listener := pipes.Listen()
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until it is closed
	}()
	defer func() {
		_ = server.Close()
		<-served
	}()
	e := transfer.Export{
		Client: client.Client{URL: "http://salvage", HTTP: &http.Client{Transport: &http.Transport{DialContext: listener.Dial}}},
		Match:  []string{`{__name__!=""}`}, Start: cfg.Dir, End: cfg.Dir, StartMs: fromMs, EndMs: toMs, Part: 24 * time.Hour,
		Path: cfg.Output, Overwrite: cfg.Overwrite,
		Progress: func(x transfer.Exported) {
			bar.at(x.NextMs-x.StartMs, x.EndMs-x.StartMs, transferred("Salvaging", x.Samples, x.Bytes))
		},
	}
	x, err := e.Run(ctx)
	bar.end()
	if err != nil {
		return err
	}
	for what := range lost {
		fmt.Fprintln(terminal.Plain(stdout), "skipped:", what)
	}
	fmt.Fprintf(stdout, "%s of %s from %s to %s, %s\n", count(x.Samples, "sample", "samples"), count(int64(index.Len()), "series", "series"),
		moment(x.StartMs), moment(x.EndMs), count(x.Bytes, "byte", "bytes"))
	fmt.Fprintln(stdout, "not in the file: documents and annotations, which an import of samples does not take")
	if len(lost) > 0 || x.Damaged > 0 {
		return errors.New("some data could not be read; the rest is in " + cfg.Output +
			": a sample that was written again may be there with its earlier value")
	}
	return nil
}
