package app

import (
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/deletion"
	"github.com/quern/quern/internal/program"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
)

// prometheusAPI returns the handler that answers PromQL over a querier.
func (s *server) prometheusAPI(q *query.Querier, turns api.Turns) *promapi.API {
	engine, queryable := promquery.New(q, promquery.Options{
		Timeout: s.cfg.Query.Timeout, MaxSamples: s.cfg.Query.MaxSamples,
		Lookback: s.cfg.Query.Lookback,
		Logger:   component(s.log, "promql"), Metrics: s.metrics,
	})
	opts := promapi.Options{
		Engine: engine, Timeout: s.cfg.Query.Timeout, Queries: turns.Queries, Deletions: turns.Exports, Queryable: queryable, Metadata: s.engine.catalog, Clock: s.clk,
		Logger: component(s.log, "http"), Version: program.Version(),
	}
	if s.cfg.EnableAdminAPI {
		opts.Deleter = deletion.New(q, s.engine.ingest, s.reaggregator(s.engine), s.clk, component(s.log, "deletion"))
	}
	return promapi.New(opts)
}
