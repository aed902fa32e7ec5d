package app

import (
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/operate/deletion"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
)

// prometheusAPI returns the handler that answers PromQL over a querier.
func (s *server) prometheusAPI(q *query.Querier, turns reading.Turns) *promapi.API {
	engine, queryable := promquery.New(q, promquery.Options{
		Timeout: s.cfg.Query.Timeout, MaxSamples: s.cfg.Query.MaxSamples,
		Lookback: s.cfg.Query.Lookback, MemoryLimit: s.memoryLimit,
		Logger: component(s.log, "promql"), Metrics: s.metrics,
	})
	opts := promapi.Options{
		Engine: engine, Timeout: s.cfg.Query.Timeout, Queries: turns.Queries, Deletions: turns.Exports, Queryable: queryable, Metadata: s.engine.catalog, Querier: q, Clock: s.clk,
		Logger: component(s.log, "http"), Version: program.Version(),
	}
	if s.cfg.EnableAdminAPI {
		opts.Deleter = deletion.New(deletion.Parts{
			Querier: q, Ingest: s.engine.Ingest, Kept: s.reaggregator(s.engine), Clock: s.clk, Logger: component(s.log, "deletion"),
		})
	}
	return promapi.New(opts)
}
