package app

import (
	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/api/promapi"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/deletion"
	"github.com/quern/quern/internal/program"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
)

// prometheusAPI returns the handler that answers PromQL over a querier.
func (s *server) prometheusAPI(q *query.Querier, turns reading.Turns) *promapi.API {
	engine, queryable := promquery.New(q, promquery.Options{
		Timeout: s.cfg.Query.Timeout, MaxSamples: s.cfg.Query.MaxSamples,
		Lookback: s.cfg.Query.Lookback, Memory: q.Memory(),
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

// queryMemory returns the budget of all queries: a quarter of the process's memory, of which labels
// may take half. The last quarter is for bodies, the store and garbage. If the memory is unknown,
// there is no limit.
func queryMemory(all int64, maxSamples int) *admission.Budget {
	if all <= 0 {
		return nil
	}
	const sampleBytes = 16
	return admission.NewSharedBudget(all/4, int64(maxSamples)*sampleBytes)
}
