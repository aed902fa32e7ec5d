package app

import (
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/admission"
	"github.com/quern/quern/internal/operate/explain"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/query"
)

// operate returns the endpoints for the operators of the store.
func (s *setup) operate(e *process, turns reading.Turns) api.Registrar {
	return reading.NewOperate(reading.OperateOptions{
		Explainer: explain.New(explain.Parts{
			Store: e.Store, Index: e.index, Cache: e.Cache, Recovery: e.Recovery, Clock: s.clk,
		}, s.cfg.Query.MaxSamples),
		Reaggregator: s.reaggregator(e), TakeBack: s.cfg.EnableAdminAPI, Clock: s.clk, Turns: turns,
	})
}

// verify returns the endpoint that compares rows with their samples.
func (s *setup) verify(turns *admission.Turns) api.Registrar {
	return reading.NewVerify(reading.VerifyOptions{
		MaxBytes: s.cfg.Query.MaxSamples * query.SampleBytes, TakeBack: s.cfg.EnableAdminAPI,
		Clock: s.clk, Turns: turns, Logger: component(s.log, "http"),
	})
}

// catalog returns the endpoints that say what series and sources there are.
func (s *setup) catalog(e *process, turns reading.Turns) api.Registrar {
	return reading.NewCatalog(reading.CatalogOptions{
		Querier: e.reader, Registry: e.Registry, Labels: e.policy.SourceLabels, SinceMs: clock.NowMs(s.clk), Turns: turns, Logger: component(s.log, "http"),
	})
}

func (s *setup) reaggregator(e *process) *reaggregate.Reaggregator {
	return reaggregate.New(reaggregate.Parts{Store: e.Store, Index: e.index, Cache: e.Cache, Clock: s.clk, Logger: component(s.log, "reaggregate")})
}
