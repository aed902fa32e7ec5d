package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/webconfig"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/groups"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/annotation"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/limits/admission"
	"github.com/quern/quern/internal/operate/aggregation"
	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/storage"
)

// drainTime is how long requests under way may take, after the process has announced for long
// enough that it ends.
const drainTime = 10 * time.Second

// patience is how long requests may take after they have been broken off. They look at their context all the time, so
// only a mistake, or a machine that hardly runs, makes this too short.
const patience = 3 * time.Second

const (
	// exportTurns is how many exports and row reads are answered at once.
	exportTurns = 8
	// statusTurns is how many statuses are read at once: two, so that one client leaves room for another.
	statusTurns = 2
	// verifyTurns is how many verifications run at once. Each keeps one read busy.
	verifyTurns = 1
	// aggregatorTimeout is that of reads where a process has no flags for queries.
	aggregatorTimeout = 2 * time.Minute
)

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
	if err := s.openWebConfig(); err != nil {
		return err
	}
	if err := s.checkDataDir(); err != nil {
		return err
	}
	if err := s.openDashboards(); err != nil {
		return err
	}
	if cfg.GraphiteListen != "" {
		if s.lines, err = lc.Listen(ctx, "tcp", cfg.GraphiteListen); err != nil {
			return fmt.Errorf("cannot listen on --graphite-listen %s: %w", cfg.GraphiteListen, err)
		}
		defer s.lines.Close() //nolint:errcheck // the server has closed it by then
	}
	if cfg.Demo {
		if s.demo, err = demo.New(demo.Options{}); err != nil {
			return err
		}
		if err := fillDemo(ctx, cfg, s.demo, time.Now().UTC(), log, stdout); err != nil {
			return err
		}
	}
	return s.run(ctx, listener, func(addr string) {
		if cfg.Demo {
			demo.PrintNext(stdout, s.engine.ladder, hostName(), cfg.DataDir, s.scheme()+addr)
		}
	})
}

// server is one process that serves.
type server struct {
	setup
	gathered *prometheus.Registry
	demo     *demo.Generator // nil without --demo
	lines    net.Listener    // for Graphite, nil without --graphite-listen
	clients  *admission.Clients
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
	sessions *access.Sessions

	background sync.WaitGroup
}

func newServer(with setup) *server {
	s := &server{setup: with, patience: patience, gathered: prometheus.NewRegistry(), clients: admission.NewClients(with.cfg.Proxies)}
	s.gathered.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	s.metrics = s.gathered
	s.open, s.mayOpen = s.opener().Open, mayOpen
	s.away.set(errOpening)
	s.gate.lead(api.NewWaiting(s.awayFor))
	return s
}

// run serves on l until ctx is done or something fails for good, then drains. It calls started with
// the address when the store is open.
func (s *server) run(stopped context.Context, l net.Listener, started func(addr string)) error {
	ctx, fail := context.WithCancelCause(stopped)
	defer fail(nil)
	// Requests and ingest outlive ctx, since they must drain when it is done. breakOff aborts those
	// that take too long.
	hard, breakOff := context.WithCancel(context.WithoutCancel(stopped))
	defer breakOff()

	s.onLoopback = onLoopback(l)
	var err error
	if s.locks, err = s.lock(l); err != nil {
		return err
	}
	if err = s.limitConnections(); err != nil {
		return err
	}
	if err = s.limitMemory(); err != nil {
		return err
	}
	web := api.NewHTTPServer(s.guarded(&s.gate), api.Serving{
		Clock: s.clk, Logger: s.log, Clients: s.clients, Requests: maxConnections,
	})
	web.BaseContext = func(net.Listener) context.Context { return hard }
	var serving sync.WaitGroup
	answer := func() {
		serving.Go(func() {
			if err := s.serveOn(web, l); !errors.Is(err, http.ErrServerClosed) {
				fail(fmt.Errorf("serve HTTP: %w", err))
			}
		})
	}
	defer serving.Wait()
	defer web.Close() //nolint:errcheck // shut down by then, if all went well

	addr := l.Addr().String()
	refuse := api.RefuseConnection
	if s.scheme() == "https://" {
		refuse = nil // it speaks no TLS
	}
	l = admission.Limit(l, s.accepts.http, s.clients, refuse)
	if s.web != nil {
		s.background.Go(func() { s.watchWebConfig(ctx) })
	}
	if s.shared() {
		// The store may take long to answer, and whoever watches must see why.
		s.log.Info("listening", "address", addr)
		answer()
	}
	if err := s.openEngine(ctx, fail); err != nil {
		switch {
		case stopped.Err() != nil:
			s.log.Info("stopped")
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		return err
	}
	if err := s.build(hard); err != nil {
		return errors.Join(err, s.engine.finish(hard), s.engine.Close())
	}
	s.start(ctx)
	if !s.shared() {
		answer()
	}
	s.log.With("address", addr).With(s.where()...).Info("serving", "rollups", s.engine.ladder.String())
	started(addr)

	<-ctx.Done()
	announce := s.cfg.DrainDelay
	if stopped.Err() == nil {
		err, announce = context.Cause(ctx), 0
	}
	return errors.Join(err, s.drain(context.WithoutCancel(ctx), web, announce, breakOff))
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

// build makes the request handlers and opens the gate to them. ctx is the context of ingest.
func (s *server) build(ctx context.Context) error {
	s.openTokens(ctx)
	audit := s.audit()
	door := s.door(audit)
	opts := api.Options{
		Clock: s.clk, Logger: component(s.log, "http"),
		Status:   aggregation.New(s.engine.Store, s.engine.Recovery, s.clk),
		Ready:    func(context.Context) error { return s.ready() },
		Gatherer: s.gathered, Registerer: s.metrics,
		Limits:      push.Limits{CompressedBytes: s.cfg.MaxBodyBytes, BodyBytes: 4 * s.cfg.MaxBodyBytes},
		Sources:     s.engine.policy.SourceLabels,
		OTLPPromote: s.cfg.OTLPPromote, InfluxBucketLabel: s.cfg.InfluxBucketLabel,
		Clients: s.clients,
		Door:    door, Audit: audit,
		Origins: api.Origins{
			CheckHost: s.onLoopback || len(s.cfg.AllowedHosts) > 0, Hosts: s.cfg.AllowedHosts, CORS: s.cfg.CORSOrigin,
		},
	}
	// An aggregator has no flags for queries, and beside those at the status one turn: at reading what waits.
	timeout := cmp.Or(s.cfg.Query.Timeout, aggregatorTimeout)
	turnsAt := func(name string, n int) *admission.Turns {
		return admission.NewTurns(admission.TurnOptions{N: max(n, 1), Name: name, Wait: timeout, Clients: s.clients, Metrics: s.metrics})
	}
	turns := reading.Turns{
		Queries: turnsAt("queries", s.cfg.Query.Concurrency), Exports: turnsAt("exports", exportTurns), Status: turnsAt("status", statusTurns),

		QueryTimeout: timeout,
	}
	opts.Turns = turns
	if s.roles.ingest {
		s.startIngest(ctx, s.engine, s.mayNotWrite)
		reader := s.engine.reader
		opts.Annotations = annotation.New(s.engine.Store, s.clk, s.cfg.AnnotationRetention)
		opts.Appender = s.engine.Ingest
		opts.BackFiller = s.engine.Ingest
		if s.lines != nil {
			s.graphite = graphite.New(ctx, opts.Appender, s.clk, graphite.Options{
				Sources: s.engine.policy.SourceLabels, Logger: component(s.log, "graphite"), Metrics: s.metrics,
				Connections: s.accepts.graphite,
			})
		}
		opts.Metadata = s.engine.catalog
		boards, err := s.dashboardsAPI(s.engine)
		if err != nil {
			return err
		}
		opts.Extra = []api.Registrar{boards, groups.New(group.NewLibrary(s.engine.Store, s.clk)), reading.New(reader, opts.Annotations, s.clk, turns), s.operate(s.engine, turns), s.verify(turnsAt("verifications", verifyTurns)), s.catalog(s.engine, turns), s.prometheusAPI(reader, turns)}
	}
	opts.Extra = append(opts.Extra, api.NewLogin(door, audit), api.NewTokens(s.tokens), profiles{})
	var err error
	if s.http, err = api.New(opts); err != nil {
		return err
	}
	s.away.set(nil)
	s.gate.lead(s.http)
	return nil
}

// start starts the background work, which runs until ctx is done.
func (s *server) start(ctx context.Context) {
	s.background.Go(func() { s.heartbeats(ctx) })
	if s.roles.aggregate {
		s.background.Go(func() { s.aggregation(ctx) })
	}
	if s.roles.ingest {
		s.background.Go(func() { s.seals(ctx) })
		s.background.Go(func() { s.settles(ctx) })
		s.background.Go(func() { s.metadata(ctx) })
		if s.shared() {
			s.background.Go(func() { s.refreshes(ctx) })
		}
	}
	s.background.Go(func() {
		s.every(ctx, access.RefreshEvery, "cannot learn of changed tokens; the known ones stay valid", s.refreshTokens)
	})
	if s.dashboards != nil {
		s.background.Go(func() { s.watchDashboards(ctx) })
	}
	if s.graphite != nil {
		s.log.Info("serving Graphite", "graphite_address", s.lines.Addr().String())
		s.background.Go(func() {
			if err := s.graphite.Serve(s.linesOverTLS(admission.Limit(s.lines, s.accepts.graphite, s.clients, nil))); err != nil {
				s.log.Error("Graphite server failed", "err", err)
			}
		})
	}
	if s.cfg.HostMetrics {
		s.background.Go(func() { s.hostMetrics(ctx) })
	}
	if s.demo != nil {
		s.background.Go(func() { liveDemo(ctx, s.engine, s.demo, s.clk, s.log) })
	}
}

// drain ends what is under way and closes the store. The caller has already stopped the background
// work. The port stays open while requests are under way, and at least for announce: a closed port
// tells a load balancer, or the next client, nothing.
func (s *server) drain(ctx context.Context, web *http.Server, announce time.Duration, breakOff func()) error {
	ended := s.http.Drain()
	s.log.Info("draining; a second signal stops at once")
	grace, cancel := context.WithTimeout(ctx, announce+drainTime)
	defer cancel()
	if s.graphite != nil {
		s.background.Go(func() {
			// It has reported what it lost.
			_ = s.graphite.Shutdown(grace)
		})
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
	s.background.Wait()
	// Ingest commits what waits in it, even if the clients have gone.
	hard := time.AfterFunc(drainTime, breakOff)
	err := s.engine.finish(ctx)
	hard.Stop()
	breakOff()
	leaving, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if !s.gate.close(leaving) {
		// The process ends as by a second signal: all that was acknowledged is durable.
		return errors.Join(err, fmt.Errorf("a request has not ended %v after it was broken off: the process ends without closing the store, "+
			"and nothing that was acknowledged is lost", s.patience))
	}
	s.engine.beside.Wait() // what the last requests have begun
	err = errors.Join(err, s.engine.Close())
	s.log.Info("stopped")
	return err
}

// where returns the log fields that say where the data lies.
func (s *setup) where() []any {
	if s.shared() {
		return []any{"cassandra", strings.Join(s.cfg.Cluster.Hosts, ","), "keyspace", s.cfg.Cluster.Keyspace}
	}
	return []any{"data_dir", s.cfg.DataDir}
}
