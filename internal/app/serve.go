package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/webconfig"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/app/hostagent"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/version"
)

// drainTime is how long requests under way may take, after the process has announced for long
// enough that it ends.
const drainTime = 10 * time.Second

// patience is how long requests may take after they have been broken off. They look at their context all the time, so
// only a mistake, or a machine that hardly runs, makes this too short.
const patience = 3 * time.Second

// Serve takes reports, grinds them and answers queries in this process until ctx is
// done, then drains: no new requests, those under way are answered, what was taken is
// made durable, blocks under way are released, the store is closed.
func Serve(ctx context.Context, cfg config.Config, stdout, stderr io.Writer) error {
	return serve(ctx, cfg, roles{ingest: true, aggregate: true}, stdout, stderr)
}

// Ingest is Serve without grinding.
func Ingest(ctx context.Context, cfg config.Config, stdout, stderr io.Writer) error {
	return serve(ctx, cfg, roles{ingest: true}, stdout, stderr)
}

// Aggregate is Serve with grinding only.
func Aggregate(ctx context.Context, cfg config.Config, stdout, stderr io.Writer) error {
	return serve(ctx, cfg, roles{aggregate: true}, stdout, stderr)
}

func serve(ctx context.Context, cfg config.Config, does roles, stdout, stderr io.Writer) error {
	log := cfg.Logger(stderr)
	// Open the port first: if it is in use, that should be known before 26 hours are generated.
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("cannot listen on --listen %s: %w", cfg.Listen, err)
	}
	defer listener.Close() //nolint:errcheck // the server has closed it by then

	s := newServer(setup{cfg: cfg, roles: does, clk: clock.System{}, log: log})
	for _, open := range []func() error{s.openWebConfig, s.openDashboards} {
		if err := open(); err != nil {
			return err
		}
	}
	if cfg.GraphiteListen != "" {
		if s.lines, err = lc.Listen(ctx, "tcp", cfg.GraphiteListen); err != nil {
			return fmt.Errorf("cannot listen on --graphite-listen %s: %w", cfg.GraphiteListen, err)
		}
		defer s.lines.Close() //nolint:errcheck // the server has closed it by then
	}
	if cfg.Demo {
		s.demo = demo.New(demoSources)
		if err := fillDemo(ctx, cfg, s.demo, time.Now().UTC(), log, stdout); err != nil {
			return err
		}
	}
	return s.run(ctx, listener, func(addr string) {
		if cfg.Demo {
			demo.PrintNext(stdout, s.engine.ladder, hostagent.HostName(""), cfg.DataDir, s.scheme()+addr)
		}
	})
}

// server is one process that serves.
type server struct {
	setup
	gathered *prometheus.Registry
	demo     *demo.Generator // nil without --demo
	lines    net.Listener    // for Graphite, nil without --graphite-listen
	clients  *limits.Clients
	web      *webconfig.Config // nil without --web.config.file
	// dashboards are those of files, nil without --dashboards.
	dashboards *dashboard.Files
	// onLoopback: only this machine can reach the port. locks says whom the server lets in.
	onLoopback bool
	locks      access.Lock
	// open opens the store; tests replace it.
	open func(ctx context.Context, onFatal func(error)) (store, error)
	// mayOpen returns how many files the process may open, 0 if that is not known; tests replace it.
	mayOpen func() uint64
	accepts connections

	// gate is closed before the store, so that the store is not closed under requests. patience is how long requests
	// may take to leave that have been broken off.
	gate     gate
	patience time.Duration
	// away is why the store cannot be used. unfit is why this process must not use it.
	away, unfit condition

	// These are set once the store is open.
	engine   *process
	http     *api.Server
	graphite *graphite.Server // nil without --graphite-listen
	tokens   *access.Tokens

	reloading sync.Mutex                        // held while files are read again
	registry  atomic.Pointer[registry.Registry] // nil until the store is open, and without ingest

	background sync.WaitGroup
}

func newServer(with setup) *server {
	s := &server{setup: with, patience: patience, gathered: prometheus.NewRegistry(), clients: limits.NewClients(with.cfg.Proxies)}
	s.gathered.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{ // of the form that Prometheus' programs have
			Name: "quern_build_info", Help: "Always 1; the labels say which build this program is.",
			ConstLabels: prometheus.Labels{"version": version.Read().Version, "revision": version.Read().Commit, "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	s.metrics = s.gathered
	s.open, s.mayOpen = s.opener().Open, mayOpen
	s.away.set(errOpening)
	s.gate.lead(api.NewWaiting(s.awayFor))
	return s
}

// part is a part of a process that serves. Parts are started in the order of a table and stopped in reverse. stop has no
// deadline but its own.
type part struct {
	name  string
	start func(context.Context) error
	stop  func(context.Context) error
}

// run serves on l until stopped is done or something fails for good, then drains. It calls started with
// the address when the store is open.
func (s *server) run(stopped context.Context, l net.Listener, started func(addr string)) (err error) {
	ctx, fail := context.WithCancelCause(stopped)
	defer fail(nil)
	// Requests and ingest outlive ctx, since they must drain when it is done. breakOff aborts those
	// that take too long.
	hard, breakOff := context.WithCancel(context.WithoutCancel(stopped))
	defer breakOff()
	if err := s.limit(l); err != nil {
		return err
	}
	addr := l.Addr().String()
	web := api.NewHTTPServer(s.guarded(&s.gate), api.Serving{Clock: s.clk, Logger: s.log, Clients: s.clients, Requests: maxConnections})
	web.BaseContext = func(net.Listener) context.Context { return hard }
	var serving sync.WaitGroup
	answer := func() {
		refuse := api.RefuseConnection
		if s.scheme() == "https://" {
			refuse = nil // it speaks no TLS
		}
		limited := limits.Limit(l, s.accepts.http, s.clients, refuse)
		serving.Go(func() {
			if err := s.serveOn(web, limited); !errors.Is(err, http.ErrServerClosed) {
				fail(fmt.Errorf("serve HTTP: %w", err))
			}
		})
	}

	parts := []part{{
		"port",
		func(ctx context.Context) error {
			again := make(chan os.Signal, 1)
			signal.Notify(again, syscall.SIGHUP)
			s.background.Go(func() { s.reloads(ctx, again); signal.Stop(again) })
			if s.shared() {
				// The store may take long to answer, and whoever watches must see why.
				s.log.Info("listening", "address", addr)
				answer()
			}
			return nil
		},
		func(context.Context) error {
			_ = web.Close() // shut down by then, if all went well
			serving.Wait()
			s.background.Wait()
			return nil
		},
	}, {
		"store",
		func(ctx context.Context) error { return s.openEngine(ctx, fail) },
		s.closeStore,
	}, {
		"ingest and handlers",
		func(context.Context) error { return s.build(hard) },
		func(ctx context.Context) error {
			// Ingest commits what waits in it, even if the clients have gone.
			late := time.AfterFunc(drainTime, breakOff)
			defer breakOff()
			defer late.Stop()
			return s.engine.finish(ctx)
		},
	}, {
		"background work",
		func(ctx context.Context) error { s.start(ctx); return nil },
		func(context.Context) error { s.background.Wait(); return nil },
	}, {
		"requests",
		func(context.Context) error {
			if !s.shared() {
				answer()
			}
			s.log.With("address", addr).With(s.where()...).Info("serving", "rollups", s.engine.ladder.String(), "version", version.Read().Version)
			started(addr)
			return nil
		},
		func(ctx context.Context) error {
			announce := s.cfg.DrainDelay
			if stopped.Err() == nil {
				announce = 0 // it has failed
			}
			s.drain(ctx, web, announce)
			return nil
		},
	}}
	n := 0
	for n < len(parts) && err == nil {
		if err = parts[n].start(ctx); err == nil {
			n++
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	switch {
	case stopped.Err() != nil:
		err = nil // what was not started was given up
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	fail(nil)
	for _, p := range slices.Backward(parts[:n]) {
		s.log.Debug("stopping", "part", p.name)
		err = errors.Join(err, p.stop(context.WithoutCancel(ctx)))
	}
	if n == len(parts) || stopped.Err() != nil { // a refusal is one line
		s.log.Info("stopped")
	}
	return err
}

// limit decides whom the server lets in, and what it takes of the machine.
func (s *server) limit(l net.Listener) (err error) {
	s.onLoopback = onLoopback(l)
	if s.locks, err = s.lock(l); err != nil {
		return err
	}
	if err = s.limitConnections(); err != nil {
		return err
	}
	return s.limitMemory()
}

// openEngine opens the store and makes the engine. It waits for a store that runs elsewhere.
func (s *server) openEngine(ctx context.Context, onFatal func(error)) error {
	try := func(ctx context.Context) error {
		st, err := s.open(ctx, onFatal)
		if err != nil {
			return err
		}
		if err = s.opener().Adopt(ctx, st); err == nil {
			s.engine, err = s.newEngine(ctx, st)
		}
		if err != nil {
			return errors.Join(err, st.Close())
		}
		s.metrics.MustRegister(st.Collector())
		return nil
	}
	if !s.shared() {
		return try(ctx)
	}
	return storage.WhileAway(ctx, s.clk, try, func(err error, wait time.Duration) {
		s.away.set(err)
		s.log.Warn(backend.NoNode(&s.cfg.Cluster, wait), "err", err)
	})
}

// ready returns why the process cannot serve, or nil.
func (s *server) ready() error {
	if err := s.unfit.get(); err != nil {
		return err
	}
	return s.away.get()
}

// mayNotWrite returns why ingest may write nothing, or nil.
func (s *server) mayNotWrite() error {
	if err := s.unfit.get(); err != nil || !s.shared() {
		return err
	}
	return s.engine.Member.Lapsed()
}

// drain rejects new requests and waits for those under way. The port stays open meanwhile, and at least for announce: a
// closed port tells a load balancer, or the next client, nothing.
func (s *server) drain(ctx context.Context, web *http.Server, announce time.Duration) {
	ended := s.http.Drain()
	s.log.Info("draining; a second signal stops at once")
	grace, cancel := context.WithTimeout(ctx, announce+drainTime)
	defer cancel()
	var lines sync.WaitGroup
	if s.graphite != nil {
		lines.Go(func() { _ = s.graphite.Shutdown(grace) }) // it has reported what it lost
	}
	_ = s.clk.Sleep(grace, announce)
	select {
	case <-ended:
	case <-grace.Done():
	}
	if err := web.Shutdown(grace); err != nil && !errors.Is(err, http.ErrServerClosed) {
		s.log.Warn("cut off open requests", "err", err)
		_ = web.Close()
	}
	lines.Wait()
}

// closeStore closes the store, once no request is inside that uses it.
func (s *server) closeStore(ctx context.Context) error {
	leaving, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if !s.gate.close(leaving) {
		// The process ends as by a second signal: all that was acknowledged is durable.
		return fmt.Errorf("a request has not ended %v after it was broken off: the process ends without closing the store, "+
			"and nothing that was acknowledged is lost", s.patience)
	}
	s.engine.errands.Wait() // what the last requests have begun
	return s.engine.Close()
}

// where returns the log fields that say where the data lies.
func (s *setup) where() []any {
	if s.shared() {
		return []any{"cassandra", strings.Join(s.cfg.Cluster.Hosts, ","), "keyspace", s.cfg.Cluster.Keyspace}
	}
	return []any{"data_dir", s.cfg.DataDir}
}
