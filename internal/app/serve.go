package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/demo"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

const (
	// drainTime is how long requests under way may take to end.
	drainTime = 10 * time.Second
	// heartbeatEvery and heartbeatTTL show that this worker lives.
	heartbeatEvery = 10 * time.Second
	heartbeatTTL   = 30 * time.Second
)

// NewLogger makes the process's logger.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: plainErrors}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// plainErrors leaves out errors that are nil, and prints the others as what they say: the
// text handler would add the stack that some libraries keep in theirs.
func plainErrors(_ []string, a slog.Attr) slog.Attr {
	if a.Key != "err" && a.Key != "error" {
		return a
	}
	switch v := a.Value.Any().(type) {
	case nil:
		return slog.Attr{}
	case error:
		a.Value = slog.StringValue(v.Error())
	}
	return a
}

// Serve runs ingest, aggregation and reading in this process until ctx is done, then
// drains: no new requests, those under way are answered, what was taken is made
// durable, blocks under way are released, the store is closed.
func Serve(ctx context.Context, cfg config.Config, stdout, stderr io.Writer) error {
	log := NewLogger(stderr, cfg.LogLevel, cfg.LogFormat)
	// The port first: that it is taken should be known before 26 hours are generated.
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("cannot listen on --listen %s: %w", cfg.Listen, err)
	}
	defer listener.Close() //nolint:errcheck // the server has closed it by then

	var gen *demo.Generator
	if cfg.Demo {
		if gen, err = demo.New(demo.Options{}); err != nil {
			return err
		}
		if err := fillDemo(ctx, cfg, gen, log, stdout); err != nil {
			return err
		}
	}
	s := &server{cfg: cfg, clk: clock.System{}, log: log, metrics: newMetricsRegistry()}
	if err := s.open(ctx); err != nil {
		return err
	}
	s.start(ctx, gen)
	return s.serve(ctx, listener, func(addr string) {
		log.Info("serving", "address", addr, "data_dir", cfg.DataDir, "rollups", cfg.Ladder.String())
		if cfg.Demo {
			printNext(stdout, cfg, addr)
		}
	})
}

func newMetricsRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// server is one process that does everything.
type server struct {
	cfg     config.Config
	clk     clock.Clock
	log     *slog.Logger
	metrics *prometheus.Registry

	store  storage.Store
	index  *query.Index
	engine *engine
	http   *api.Server

	// fatal gets the error after which the store has to be opened again.
	fatal chan error
	// requests are cancelled when their time to end has passed, and have ended when
	// gate is closed: the store must not be closed under them.
	requests context.Context
	gate     gate

	background sync.WaitGroup
	stop       context.CancelFunc
	draining   context.CancelFunc
}

// gate lets requests through until it is closed, which waits for those within.
type gate struct {
	mu     sync.RWMutex
	closed bool
}

func (g *gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.RLock()
		defer g.mu.RUnlock()
		if g.closed {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// open opens the store and builds what works on it. Ingest outlives ctx: it must
// drain when ctx is done.
func (s *server) open(ctx context.Context) error {
	s.fatal = make(chan error, 1)
	st, err := openStore(ctx, s.cfg, s.clk, s.log, func(err error) { s.fatal <- err })
	if err != nil {
		return err
	}
	s.store = st
	s.metrics.MustRegister(st.Collector())
	s.index = query.NewIndex()
	if err := s.index.Refresh(ctx, st); err != nil {
		return errors.Join(fmt.Errorf("load the label index: %w", err), st.Close())
	}
	hard, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.requests, s.draining = hard, stop
	s.engine = startEngine(hard, s.cfg, st, s.clk, s.log, s.index.Add, s.metrics)

	reader := query.New(st, s.index, st.Settings(), s.cfg.Retention, s.clk, query.Options{AgeCap: s.cfg.AgeCap})
	s.http, err = api.New(api.Options{
		Clock: s.clk, Logger: s.log,
		Appender: s.engine.ingest,
		Status:   status{s.engine, s.clk}, Ladder: s.cfg.Ladder,
		Gatherer: s.metrics, Registerer: s.metrics,
		Extra:  []api.Registrar{api.NewRead(reader, s.clk)},
		Limits: api.Limits{CompressedBytes: s.cfg.MaxBodyBytes, BodyBytes: 4 * s.cfg.MaxBodyBytes},
	})
	if err != nil {
		stop()
		return errors.Join(err, s.engine.ingest.Close(), st.Close())
	}
	return nil
}

// start begins what runs beside the requests.
func (s *server) start(ctx context.Context, gen *demo.Generator) {
	ctx, s.stop = context.WithCancel(ctx)
	agg := rollup.NewAggregator(s.engine.runner, s.engine.timing, func(ctx context.Context) error {
		return s.store.Expire(ctx, clock.NowMs(s.clk))
	})
	s.background.Go(func() { agg.Run(ctx) })
	s.background.Go(func() { s.heartbeats(ctx) })
	s.background.Go(func() { s.seals(ctx) })
	if s.cfg.HostMetrics {
		s.background.Go(func() { s.hostMetrics(ctx) })
	}
	if gen != nil {
		s.background.Go(func() { liveDemo(ctx, s.engine, gen, s.clk, s.log) })
	}
}

// serve answers requests until ctx is done, then drains.
func (s *server) serve(ctx context.Context, l net.Listener, ready func(addr string)) error {
	srv := s.http.HTTPServer()
	srv.Handler = s.gate.wrap(srv.Handler)
	srv.BaseContext = func(net.Listener) context.Context { return s.requests }
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	ready(l.Addr().String())

	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve HTTP: %w", err)
	case err = <-s.fatal:
	case <-ctx.Done():
		s.log.Info("draining; a second signal ends at once")
	}
	s.http.Drain()
	s.stop()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if serr := srv.Shutdown(grace); serr != nil && !errors.Is(serr, http.ErrServerClosed) {
		s.log.Warn("requests broken off", "err", serr)
		_ = srv.Close()
	}
	s.background.Wait()
	// Ingest ends what waits in it, also when its clients have gone.
	hard := time.AfterFunc(drainTime, s.draining)
	err = errors.Join(err, s.engine.ingest.Close())
	hard.Stop()
	s.draining()
	s.gate.close()
	err = errors.Join(err, s.store.Close())
	s.log.Info("stopped")
	return err
}

// seals tells ingest when the grace of a slice has passed, which leaves it the rest
// of the delay before the run.
func (s *server) seals(ctx context.Context) {
	ladder, grace := s.cfg.Ladder, s.cfg.LateGrace
	for {
		now := s.clk.Now()
		next := time.UnixMilli(ladder.SliceAt(metric.Raw, now.Add(-grace).UnixMilli()).EndMs).Add(grace)
		if s.clk.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
		if err := s.engine.ingest.Seal(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("blocks not sealed: they are ground from raw", "err", err)
		}
	}
}

func (s *server) heartbeats(ctx context.Context) {
	w := storage.Worker{ID: s.engine.worker, Host: hostName(), StartedMs: clock.NowMs(s.clk)}
	for {
		w.SeenMs = clock.NowMs(s.clk)
		if err := s.store.Heartbeat(ctx, w, heartbeatTTL); err != nil && ctx.Err() == nil {
			s.log.Warn("no heartbeat", "err", err)
		}
		if s.clk.Sleep(ctx, heartbeatEvery) != nil {
			return
		}
	}
}
