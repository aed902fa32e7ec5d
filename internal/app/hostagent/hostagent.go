// Package hostagent runs the agent of a host as a process of its own. It links no store, so that its program is small.
package hostagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
)

// Run runs adaptors and sends what they read to a server until ctx is done.
func Run(ctx context.Context, cfg config.Agent, _, stderr io.Writer) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // it shares its host with what it measures: memory is worth more than processor time
	}
	log := cfg.Logger(stderr)
	inFile, err := inFileAdaptors(cfg)
	if err != nil {
		return err
	}
	control := &agent.Control{InFile: inFile, Dir: cfg.DataDir, Commands: cfg.AllowCommands, Logger: log}
	adaptors, err := control.Load()
	if err != nil {
		return err
	}
	clk := clock.System{}
	var servers []agent.Sender
	for _, url := range append([]string{cfg.URL}, cfg.FallbackURLs...) {
		to := cfg.Connection
		to.URL = url // a client shows its token to no other
		server, err := to.Client(stderr)
		if err != nil {
			return err
		}
		one, err := agent.NewHTTPSender(url, server.HTTP, clk)
		if err != nil {
			return err
		}
		servers = append(servers, one)
	}
	kept, err := spool.Open(cfg.DataDir, spool.Options{Clock: clk, Logger: log, MaxBytes: cfg.SpoolBytes, MaxAge: cfg.SpoolAge, Others: agent.ControlFiles})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	out := adaptor.NewOutput(kept, clk, log, HostName(cfg.Source))
	a := agent.New(agent.Parts{Adaptors: adaptors, Output: out, Sender: agent.NewFailover(clk, log, servers), Clock: clk, Logger: log}, agent.Options{})
	control.Agent = a
	var others sync.WaitGroup
	defer others.Wait()
	if cfg.Control != "" {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Control)
		if err != nil {
			return fmt.Errorf("cannot listen on --control %s: %w", cfg.Control, err)
		}
		web, err := newServer(cfg, control, log)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		log.Info("listening", "address", l.Addr().String())
		others.Go(func() { _ = web.Serve(l) }) // it ends by Close
		defer web.Close()                      //nolint:errcheck // requests that are broken off have changed nothing, or all
	}
	log.Info("reading", "adaptors", len(adaptors), "source", HostName(cfg.Source), "url", (&client.Client{URL: cfg.URL}).Name(), "waiting", a.Stats().Waiting)
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	others.Go(func() { reload(ctx, cfg, control, again, log) })
	a.Run(ctx)
	st := a.Stats()
	log.Info("stopped", "delivered", st.Delivered, "rejected", st.Rejected, "refused", st.Refused, "dropped", st.Dropped, "waiting", st.Waiting)
	return nil
}

// newServer returns the HTTP server of an agent.
func newServer(cfg config.Agent, control *agent.Control, log *slog.Logger) (*http.Server, error) {
	gathered := prometheus.NewRegistry()
	gathered.MustRegister(control.Agent, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	door := api.Door(readers{})
	if cfg.ControlTokenFile != "" {
		door = access.Secret{File: cfg.ControlTokenFile, Roles: access.Admin}
	}
	server, err := api.New(api.Options{
		Clock: clock.System{}, Logger: log, Gatherer: gathered, Extra: []api.Registrar{control}, Door: door,
		Origins: api.Origins{CheckHost: access.Loopback(cfg.Control)},
	})
	if err != nil {
		return nil, err
	}
	return server.HTTPServer(), nil
}

// readers is the door of an agent without a token: more would give each user of the machine the rights of the agent.
type readers struct{}

// Identify implements api.Door.
func (readers) Identify(r *http.Request) (access.Grant, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return access.Grant{}, &access.Refusal{
			Code: http.StatusForbidden, Message: "changes need a token: start the agent with --control-token-file FILE, and show it by --token-file FILE",
		}
	}
	return access.Grant{Roles: access.Read}, nil
}

// reload reads the adaptors of the file again when something is received from again, until ctx ends.
func reload(ctx context.Context, cfg config.Agent, control *agent.Control, again <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		n := 0
		var inFile []adaptor.Configured
		err := cfg.Reload()
		if err == nil {
			inFile, err = inFileAdaptors(cfg)
		}
		if err == nil {
			n, err = control.Reload(inFile)
		}
		switch {
		case err == nil:
			log.Info("reloaded", "adaptors", n)
		case ctx.Err() == nil:
			log.Error("reload: the adaptors stay as they were", "err", err)
		}
	}
}

// inFileAdaptors returns those of the file of --config, or the host if it names none.
func inFileAdaptors(cfg config.Agent) ([]adaptor.Configured, error) {
	if cfg.Adaptors.IsZero() {
		return []adaptor.Configured{{Adaptor: adaptor.NewHost(cfg.Interval)}}, nil
	}
	return adaptor.Parse("--config "+cfg.File, &cfg.Adaptors)
}

// Check says what an agent with this configuration would read.
func Check(_ context.Context, cfg config.Agent, stdout, _ io.Writer) error {
	adaptors, err := inFileAdaptors(cfg)
	if err != nil {
		return err
	}
	for _, a := range adaptors {
		if _, err := fmt.Fprintln(stdout, a); err != nil {
			return err
		}
	}
	return nil
}

// HostName returns a source, or, if that is empty, the name of this host.
func HostName(source string) string {
	if source != "" {
		return source
	}
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return "localhost"
}
