// Package app wires the parts together: it is the only place that knows all of them. It decides
// only the order in which they start and stop.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/late"
	"github.com/quern/quern/internal/metadata"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// setup is what the parts of a process are made with.
type setup struct {
	cfg   config.Config
	roles roles
	clk   clock.Clock
	log   *slog.Logger
	// metrics registers the metrics of the parts; nil for none.
	metrics prometheus.Registerer
}

// roles are what a process does over its store.
type roles struct {
	ingest    bool // accepts reports and answers queries
	aggregate bool // grinds
}

// shared reports whether other processes use the store too.
func (s *setup) shared() bool { return s.cfg.Store == config.Cassandra }

// engine holds the parts of a process over one store, on one clock.
type engine struct {
	store    storage.Store
	ladder   metric.Ladder
	policy   storage.Policy
	member   *shards.Member
	timing   cache.Timing
	cache    *cache.Cache
	recovery *recovery.Recovery

	runner *rollup.Runner // only with the aggregate role

	index   *query.Index // only with the ingest role, as the fields below
	late    *late.Tracker
	seen    *query.Sightings
	catalog *metadata.Catalog
	reader  *query.Querier // set by startIngest
	ingest  *ingest.Ingest // set by startIngest
	beside  beside
}

// beside is work on behalf of requests that outlasts them. It ends with the process.
type beside struct {
	sync.WaitGroup
	ctx context.Context
	end context.CancelFunc
}

func (b *beside) run(work func(context.Context)) { b.Go(func() { work(b.ctx) }) }

// newEngine makes the engine and fills its label index. Nothing runs yet.
func (s *setup) newEngine(ctx context.Context, st storage.Store) (*engine, error) {
	settings := st.Settings()
	e := &engine{
		store: st, ladder: settings.Ladder, policy: settings.Policy,
		member: shards.New(st, s.clk, storage.Worker{
			ID: cmp.Or(s.cfg.WorkerID, workerName()), Host: hostName(), StartedMs: clock.NowMs(s.clk), Aggregates: s.roles.aggregate,
		}, s.cfg.HeartbeatTimeout),
		timing: cache.Timing{Grace: settings.Policy.Grace, Delay: settings.Policy.Delay},
	}
	if s.roles.ingest {
		e.index, e.seen = query.NewIndex(), query.NewSightings(s.shared())
		if err := e.index.Refresh(ctx, st); err != nil {
			return nil, err
		}
		e.catalog = metadata.New(st, s.clk, metadata.Options{Logger: component(s.log, "metadata")})
		if err := e.catalog.Refresh(ctx); err != nil {
			return nil, err
		}
	}
	e.cache = cache.New(st, s.clk, rand.Uint64(), e.timing)
	e.recovery = recovery.New(st, e.cache, s.clk, recovery.Options{AgeCap: e.policy.AgeCap})
	if s.roles.ingest {
		e.late = late.New(st, s.clk, late.Options{Outstanding: e.recovery.Outstanding, Shared: s.shared(), Beside: e.beside.run})
		e.cache.OnLate(e.late.Note)
	}
	if s.roles.aggregate {
		opts := rollup.Options{Logger: component(s.log, "aggregator"), Metrics: s.metrics}
		if s.shared() {
			opts.Parallel = blocksInFlight
		}
		e.runner = rollup.NewRunner(st, e.member, e.cache, e.recovery, s.clk, opts)
		if s.metrics != nil {
			s.metrics.MustRegister(append(e.member.Collectors(), e.recovery.Collector())...)
		}
	}
	return e, nil
}

// blocksInFlight is the number of blocks ground at once if each waits for a network rather than for
// a processor.
const blocksInFlight = 32

// startIngest starts to accept reports. Cancelling ctx aborts what is under way. unfit returns why
// nothing may be written; see ingest.Options.
func (s *setup) startIngest(ctx context.Context, e *engine, unfit func() error) {
	e.beside.ctx, e.beside.end = context.WithCancel(ctx)
	e.reader = query.New(e.store, e.index, e.store.Settings(), e.store.WholeFrom, s.clk, query.Options{
		Outstanding: e.recovery.Outstanding, FutureLimit: e.policy.FutureLimit, Late: e.late, Sightings: e.seen, Beside: e.beside.run, Metrics: s.metrics,
	})
	leaseAge := time.Duration(0)
	if s.shared() {
		leaseAge = registry.LeaseAge
	}
	reg := registry.New(e.store, registry.Options{
		MaxSeries: s.cfg.MaxSeries, MaxSeriesPerSource: s.cfg.MaxSeriesPerSource, OnNew: e.index.Add,
		Gone: e.reader.Gone, Clock: s.clk, LeaseAge: leaseAge,
		Beside: e.beside.run,
	})
	s.countSeries(e.index, reg)
	e.ingest = ingest.Start(ctx, e.store, reg, e.cache, s.clk, ingest.Options{
		Window: s.cfg.GroupCommit, MaxPending: s.cfg.MaxPendingSamples,
		AgeCap: e.policy.AgeCap, FutureLimit: e.policy.FutureLimit,
		OnSamples: e.seen.Saw, Unfit: unfit,
		Logger: component(s.log, "ingest"), Metrics: s.metrics,
	})
}

// countSeries registers metrics for the number of series and its limit.
func (s *setup) countSeries(index *query.Index, reg *registry.Registry) {
	gauge := func(name, help string, value func() int) {
		promauto.With(s.metrics).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("quern_registry_series", "Series that the store knows, also those of which nothing is left.", index.Len)
	gauge("quern_registry_series_gone", "Series of which nothing was left when --max-series was last reached: they do not count.", reg.Gone)
	gauge("quern_registry_series_limit", "Series that the store may have, by --max-series; 0 is no limit.", func() int { return s.cfg.MaxSeries })
}

// close makes the samples in ingest durable. It is called once.
func (e *engine) close(ctx context.Context) error {
	if e.ingest == nil {
		return nil
	}
	e.beside.end()
	e.beside.Wait()
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	return errors.Join(e.ingest.Close(), e.catalog.Flush(ctx))
}

// workerName returns a name that no other process has, not even an earlier one on this host.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%08x", host, rand.Uint32())
}
