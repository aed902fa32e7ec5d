// Package app wires the parts together: it is the only place that knows all of them. It decides
// only the order in which they start and stop.
package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/app/hostagent"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/documents/metadata"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
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
	// memoryLimit is Go's memory limit in bytes, 0 for none; see limitMemory.
	memoryLimit int64
}

// roles are what a process does over its store.
type roles struct {
	ingest    bool // accepts reports and answers queries
	aggregate bool // grinds
}

// component returns a logger whose lines name the part of the process.
func component(log *slog.Logger, name string) *slog.Logger { return log.With("component", name) }

type store = backend.Store

func (s *setup) opener() *backend.Opener {
	return &backend.Opener{Config: s.cfg, Clock: s.clk, Logger: s.log}
}

func (s *setup) openStore(ctx context.Context, onFatal func(error)) (store, error) {
	return s.opener().OpenAndAdopt(ctx, onFatal)
}

// shared reports whether other processes use the store too.
func (s *setup) shared() bool { return s.cfg.Store == config.Cassandra }

// process is an engine over one store, and what answers queries beside it.
type process struct {
	// Engine has a Runner only with the aggregate role. It tracks late data, and is started, only
	// with the ingest role.
	*engine.Engine
	ladder metric.Ladder
	policy storage.Policy

	index   *query.Index // only with the ingest role, as the fields below
	seen    *query.Sightings
	catalog *metadata.Catalog
	reader  *query.Querier // set by startIngest
	errands errands
}

// errands are work on behalf of requests that outlasts them. They end with the process.
type errands struct {
	sync.WaitGroup
	ctx context.Context
	end context.CancelFunc
}

func (b *errands) run(work func(context.Context)) { b.Go(func() { work(b.ctx) }) }

// newEngine makes the engine and fills its label index. Nothing runs yet.
func (s *setup) newEngine(ctx context.Context, st storage.Store) (*process, error) {
	settings := st.Settings()
	p := &process{ladder: settings.Ladder, policy: settings.Policy}
	opts := engine.Options{
		Store: st, Clock: s.clk, Policy: p.policy,
		Worker: storage.Worker{
			ID: backend.WorkerName(), Host: hostagent.HostName(""), StartedMs: clock.NowMs(s.clk), Aggregates: s.roles.aggregate,
		},
		Timeout: s.cfg.HeartbeatTimeout,
	}
	if s.roles.ingest {
		p.index, p.seen = query.NewIndex(), query.NewSightings(s.shared())
		if err := p.index.Refresh(ctx, st); errors.As(err, new(*query.UnreadError)) {
			s.log.Warn("started with a part of the series: queries lack the others until they can be read", "err", err)
		} else if err != nil {
			return nil, err
		}
		p.index.CountNew(s.clk)
		p.catalog = metadata.New(st, s.clk, metadata.Options{Shared: s.shared(), Logger: component(s.log, "metadata")})
		if err := p.catalog.Refresh(ctx); err != nil {
			return nil, err
		}
		opts.Late = &late.Options{Shared: s.shared(), Background: p.errands.run}
	}
	if s.roles.aggregate {
		opts.Rollup = &rollup.Options{PackRate: packRate, Logger: component(s.log, "aggregator"), Metrics: s.metrics}
		if s.shared() {
			opts.Rollup.Parallel = blocksInFlight
		}
	}
	p.Engine = engine.New(opts)
	return p, nil
}

// packRate is how many bytes a second of raw chunks are read and written to pack them.
const packRate = 4 << 20

// sharedWindow is how long a report over a shared store waits for others to share its commit. It bounds the rows of a
// partition of raw_metrics; see schema/README.md.
const sharedWindow = 100 * time.Millisecond

// blocksInFlight is the number of blocks ground at once if each waits for a network rather than for
// a processor.
const blocksInFlight = 32

// startIngest starts to accept reports. Cancelling ctx aborts what is under way. unfit returns why
// nothing may be written; see ingest.Options.
func (s *setup) startIngest(ctx context.Context, p *process, unfit func() error) {
	p.errands.ctx, p.errands.end = context.WithCancel(ctx)
	p.reader = query.New(query.Parts{
		Store: p.Store, Index: p.index, Settings: p.Store.Settings(), WholeFrom: p.Store.WholeFrom, Clock: s.clk,
	}, query.Options{
		Outstanding: p.Recovery.Outstanding, FutureLimit: p.policy.FutureLimit, Late: p.Late, Sightings: p.seen, Background: p.errands.run, Metrics: s.metrics,
		MaxSamples: s.cfg.Query.MaxSamples,
	})
	var leaseAge, window time.Duration
	if s.shared() {
		leaseAge, window = registry.LeaseAge, sharedWindow
	}
	maxBytes := s.memoryLimit / 2
	p.Start(ctx, registry.Options{
		MaxSeries: s.cfg.MaxSeries, MaxSeriesPerSource: s.cfg.MaxSeriesPerSource, OnNew: p.index.Add,
		MaxBytes: maxBytes, Memory: p.index,
		Gone: p.reader.Gone, LeaseAge: leaseAge,
		Background: p.errands.run,
	}, ingest.Options{
		Window: window, OnSamples: p.seen.Saw, Unfit: unfit, Within: p.index.Within,
		Logger: component(s.log, "ingest"), Metrics: s.metrics,
	})
	s.countSeries(p.index, p.Registry, maxBytes)
}

// countSeries registers metrics for the series, in number and in bytes, and their limits.
func (s *setup) countSeries(index *query.Index, reg *registry.Registry, maxBytes int64) {
	gauge := func(name, help string, value func() int) {
		promauto.With(s.metrics).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("quern_registry_series", "Series in the store, including those without any data left.", index.Len)
	gauge("quern_registry_series_gone", "Series without any data left when --max-series was last reached; they do not count against it.", reg.Gone)
	gauge("quern_registry_series_limit", "Maximum number of series in the store (--max-series); 0 is no limit.", reg.MaxSeries)
	gauge("quern_registry_series_bytes", "Estimated memory for the labels of all series, including those without any data left, and for their sources.", func() int { return int(reg.Bytes()) })
	gauge("quern_registry_series_bytes_limit", "Maximum memory for the labels of all series (half of the memory limit); 0 is no limit.", func() int { return int(maxBytes) })
}

// finish waits for the errands, and makes durable what ingest and the catalog have
// accepted. It is called once, before Close.
func (p *process) finish(ctx context.Context) error {
	if p.Ingest == nil {
		return nil
	}
	p.errands.end()
	p.errands.Wait()
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	return errors.Join(p.Drain(), p.catalog.Flush(ctx))
}
