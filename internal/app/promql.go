package app

import (
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
)

// newPromQL makes what evaluates PromQL over a querier.
func (s *server) newPromQL(q *query.Querier) (*promquery.Engine, *promquery.Queryable) {
	return promquery.New(q, promquery.Options{
		Timeout: s.cfg.Query.Timeout, MaxSamples: s.cfg.Query.MaxSamples,
		Concurrency: s.cfg.Query.Concurrency, Lookback: s.cfg.Query.Lookback,
		Logger: component(s.log, "promql"), Metrics: s.metrics,
	})
}
