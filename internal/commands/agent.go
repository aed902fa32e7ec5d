package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/wire"
)

// ListAdaptors prints what an agent reads.
func ListAdaptors(ctx context.Context, cfg config.AgentClient, stdout, stderr io.Writer) error {
	got, _, err := answered[wire.Adaptors](ctx, &cfg.Connection, stderr, http.MethodGet, wire.AdaptorsPath, nil)
	if err != nil {
		return noAgent(err)
	}
	w := table(stdout, "ID\tADAPTOR\tFROM\tSAMPLES\t1 MIN\t5 MIN\t10 MIN\tLAST ERROR")
	for _, a := range got.Adaptors {
		from := "file"
		if a.Added {
			from = "client"
		}
		trouble := "-"
		if a.Error != "" {
			trouble = moment(a.ErrorMs) + " " + oneLine(a.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.1f/s\t%.1f/s\t%.1f/s\t%s\n", a.ID, oneLine(a.Adaptor), from, a.Samples, a.Rates[0], a.Rates[1], a.Rates[2], trouble)
	}
	return w.Flush()
}

// AgentStatus prints what became of the samples of an agent, and how far its streams are.
func AgentStatus(ctx context.Context, cfg config.AgentClient, stdout, stderr io.Writer) error {
	got, _, err := answered[wire.Adaptors](ctx, &cfg.Connection, stderr, http.MethodGet, wire.AdaptorsPath, nil)
	if err != nil {
		return noAgent(err)
	}
	fmt.Fprintf(stdout, "%d samples delivered, %d wait in the spool. The server rejected %d, and refused %d. The spool dropped %d.\n\n",
		got.Delivered, got.Waiting, got.Rejected, got.Refused, got.Dropped)
	w := table(stdout, "STREAM\tSPOOLED\tACKNOWLEDGED")
	for _, a := range got.Adaptors {
		for _, s := range a.Streams {
			fmt.Fprintf(w, "%s\t%d\t%d\n", oneLine(s.Name), s.Offset, s.Acknowledged)
		}
	}
	return w.Flush()
}

// AddAdaptor has an agent run one more adaptor.
func AddAdaptor(ctx context.Context, cfg config.AgentClient, stdout, stderr io.Writer) error {
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	resp, err := server.Send(ctx, http.MethodPost, wire.AdaptorsPath, nil, []byte(cfg.Argument))
	if err != nil {
		return noAgent(stopped(ctx, err, "stopped; `quern agent list` says whether the adaptor was added"))
	}
	defer resp.Body.Close()
	var added wire.Adaptor
	if _, err := decode(resp.Body, &added); err != nil {
		return err
	}
	fmt.Fprintf(terminal.Plain(stdout), "%s runs. `quern agent stop %s` ends it.\n", added.Adaptor, added.ID)
	return nil
}

// StopAdaptor has an agent end an adaptor that was added.
func StopAdaptor(ctx context.Context, cfg config.AgentClient, stdout, stderr io.Writer) error {
	ended, _, err := answered[wire.Adaptor](ctx, &cfg.Connection, stderr, http.MethodDelete, wire.AdaptorsPath+"/"+url.PathEscape(cfg.Argument), nil)
	if err == nil {
		fmt.Fprintf(terminal.Plain(stdout), "%s has ended, after %s.\n", ended.Adaptor, count(int64(ended.Samples), "sample", "samples"))
	}
	return noAgent(err)
}

// noAgent says what to do if no agent answers.
func noAgent(err error) error {
	if away := (*client.AwayError)(nil); errors.As(err, &away) {
		return fmt.Errorf("%w: start the agent with --control 127.0.0.1:9097, or name its address by --agent", err)
	}
	return err
}
