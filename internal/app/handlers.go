package app

import (
	"cmp"
	"context"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/documents"
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/documents/group"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/operate/aggregation"
	"github.com/quern/quern/internal/operate/backup"
	"github.com/quern/quern/internal/operate/deletion"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire/version"
)

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

// build makes the request handlers and opens the gate to them. ctx is the context of ingest.
func (s *server) build(ctx context.Context) (err error) {
	s.tokens = access.NewTokens(s.engine.Store, s.clk, component(s.log, "access"))
	if err := s.tokens.Refresh(ctx); err != nil {
		s.log.Warn("tokens cannot be read yet; each is looked up when it is used", "err", err)
	}
	audit := access.NewAudit(component(s.log, "audit"), s.clk, s.metrics)
	doorway := access.Options{Lock: s.locks, Clock: s.clk, Hosts: s.cfg.AllowedHosts, Clients: s.clients, Audit: audit, Tokens: s.tokens}
	if s.web != nil {
		doorway.Users = s.web
	}
	door := access.NewDoor(doorway)

	// An aggregator has no flags for queries, and beside those at the status one turn: at reading what waits.
	timeout := cmp.Or(s.cfg.Query.Timeout, aggregatorTimeout)
	turnsAt := func(name string, n int) *limits.Turns {
		return limits.NewTurns(limits.TurnOptions{N: max(n, 1), Name: name, Wait: timeout, Clients: s.clients, Metrics: s.metrics})
	}
	turns := reading.Turns{
		Queries: turnsAt("queries", s.cfg.Query.Concurrency), Exports: turnsAt("exports", exportTurns), Status: turnsAt("status", statusTurns),
		QueryTimeout: timeout, Logger: component(s.log, "http"),
	}
	opts := api.Options{
		Clock: s.clk, Logger: component(s.log, "http"),
		Status:   aggregation.New(s.engine.Store, s.engine.Recovery, s.clk),
		Ready:    func(context.Context) error { return s.ready() },
		Gatherer: s.gathered, Registerer: s.metrics,
		Limits:      push.Limits{CompressedBytes: s.cfg.MaxBodyBytes, BodyBytes: 4 * s.cfg.MaxBodyBytes},
		Sources:     s.engine.policy.SourceLabels,
		OTLPPromote: s.cfg.OTLPPromote, InfluxBucketLabel: s.cfg.InfluxBucketLabel,
		Clients: s.clients, Turns: turns, Door: door, Audit: audit,
		Origins: api.Origins{
			CheckHost: s.onLoopback || len(s.cfg.AllowedHosts) > 0, Hosts: s.cfg.AllowedHosts, CORS: s.cfg.CORSOrigin,
		},
	}
	if s.roles.ingest {
		s.startIngest(ctx, s.engine, s.mayNotWrite)
		s.registry.Store(s.engine.Registry)
		opts.Annotations = annotations.New(s.engine.Store, s.clk, s.cfg.AnnotationRetention)
		opts.Appender, opts.BackFiller, opts.Metadata = s.engine.Ingest, s.engine.Ingest, s.engine.catalog
		if s.lines != nil {
			s.graphite = graphite.New(ctx, opts.Appender, s.clk, graphite.Options{
				Sources: s.engine.policy.SourceLabels, Logger: component(s.log, "graphite"), Metrics: s.metrics,
			})
		}
		if opts.Extra, err = s.answers(opts.Annotations, turns, turnsAt("verifications", verifyTurns)); err != nil {
			return err
		}
	}
	opts.Extra = append(opts.Extra, api.NewLogin(door, audit), api.NewTokens(s.tokens), profiles{}, s)
	if s.http, err = api.New(opts); err != nil {
		return err
	}
	s.away.set(nil)
	s.gate.lead(s.http)
	return nil
}

// answers returns the endpoints that answer about what is stored.
func (s *server) answers(notes *annotations.Book, turns reading.Turns, verifications *limits.Turns) ([]api.Registrar, error) {
	e, log := s.engine, component(s.log, "http")
	library, err := dashboard.NewLibrary(dashboard.Options{Documents: e.Store, Clock: s.clk, Files: s.dashboards, Demo: s.cfg.Demo})
	if err != nil {
		return nil, err
	}
	again := reaggregate.New(reaggregate.Parts{Store: e.Store, Index: e.index, Cache: e.Cache, Clock: s.clk, Logger: component(s.log, "reaggregate")})
	evaluator, queryable := promquery.New(e.reader, promquery.Options{
		Timeout: s.cfg.Query.Timeout, MaxSamples: s.cfg.Query.MaxSamples,
		Lookback: s.cfg.Query.Lookback, MemoryLimit: s.memoryLimit,
		Logger: component(s.log, "promql"), Metrics: s.metrics,
	})
	prometheus := promapi.Options{
		Engine: evaluator, Timeout: s.cfg.Query.Timeout, Queries: turns.Queries, Deletions: turns.Exports, Queryable: queryable,
		Metadata: e.catalog, Querier: e.reader, Clock: s.clk, Logger: log, Version: version.Read().Version,
	}
	if s.cfg.EnableAdminAPI {
		prometheus.Deleter = deletion.New(deletion.Parts{
			Querier: e.reader, Ingest: e.Ingest, Kept: again, Clock: s.clk, Logger: component(s.log, "deletion"),
		})
	}
	var backups *backup.Maker
	if st, ok := e.Store.(backup.Store); ok && s.cfg.BackupDest != "" {
		backups = &backup.Maker{Store: st, Place: s.cfg.BackupDest, Version: version.Read().Version, Clock: s.clk}
	}
	return []api.Registrar{
		documents.Dashboards{Library: library},
		documents.Groups{Shelf: group.Shelf(e.Store, s.clk)},
		reading.New(e.reader, notes, s.clk, turns),
		reading.NewOperate(reading.OperateOptions{
			Explainer: explain.New(explain.Parts{
				Store: e.Store, Index: e.index, Cache: e.Cache, Recovery: e.Recovery, Clock: s.clk,
			}, s.cfg.Query.MaxSamples),
			Reaggregator: again, TakeBack: s.cfg.EnableAdminAPI, Backups: backups, Clock: s.clk, Turns: turns,
		}),
		reading.NewVerify(reading.VerifyOptions{
			MaxBytes: s.cfg.Query.MaxSamples * query.SampleBytes, TakeBack: s.cfg.EnableAdminAPI,
			Clock: s.clk, Turns: verifications, Logger: log,
		}),
		reading.NewCatalog(reading.CatalogOptions{
			Querier: e.reader, Registry: e.Registry, Labels: e.policy.SourceLabels, SinceMs: clock.NowMs(s.clk), Turns: turns,
		}),
		promapi.New(prometheus),
	}, nil
}

// profiles serves the profiles of this process, for `go tool pprof`.
type profiles struct{}

// Register implements api.Registrar.
func (profiles) Register(to *route.Table) {
	for path, serve := range map[string]http.HandlerFunc{
		"": pprof.Index, "cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/"+path, serve)
	}
}
