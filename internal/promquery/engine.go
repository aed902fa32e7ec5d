// Package promquery is PromQL over Quern: Prometheus' own engine, a storage that reads
// for it, and the rewriting that has it read roll-ups where raw samples are gone.
//
// An expression is rewritten after it has been parsed and before it is evaluated, and only
// if a selector goes further back than raw samples are kept. A selector, together with
// the function around it, then becomes one whose samples are that function's values at
// the times at which it will be evaluated, computed here from rows; see reading. All
// else is the engine's: labels, operators, aggregations, and everything about young data.
//
// Times are in Unix ms. Windows of raw samples are PromQL's, (t-range, t]; those of rows are
// [t-range, t), see reading.
package promquery

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/query"
)

// Options set up the engine; the zero value stands for the defaults.
type Options struct {
	// Timeout is how long a query may take. The default is 2m.
	Timeout time.Duration
	// MaxSamples is the number of samples that a query may hold at a time. The default
	// is 50,000,000.
	MaxSamples int
	// Lookback is how old the sample may be that an instant selector finds. The default is 5m.
	Lookback time.Duration
	// Logger takes what goes wrong inside the engine. The default is nobody.
	Logger *slog.Logger
	// Metrics takes the engine's own metrics. The default is nobody.
	Metrics prometheus.Registerer
}

// EnsureDefaults fills in what was left zero.
func (o Options) EnsureDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.MaxSamples <= 0 {
		o.MaxSamples = 50_000_000
	}
	if o.Lookback <= 0 {
		o.Lookback = 5 * time.Minute
	}
	return o
}

// Engine evaluates PromQL. It is safe for concurrent use.
type Engine struct {
	engine *promql.Engine
	// subqueryStepMs is the step of a subquery that names none, by its range.
	subqueryStepMs func(rangeMs int64) int64
}

var _ promql.QueryEngine = (*Engine)(nil)

// New makes an engine, and the storage that queries are given, over a querier.
func New(q *query.Querier, opts Options) (*Engine, *Queryable) {
	opts = opts.EnsureDefaults()
	return newEngine(promql.EngineOpts{
		Logger:                   opts.Logger,
		Reg:                      opts.Metrics,
		MaxSamples:               opts.MaxSamples,
		Timeout:                  opts.Timeout,
		LookbackDelta:            opts.Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnablePerStepStats:       true,
	}), &Queryable{q: q, maxSamples: int64(opts.MaxSamples)}
}

func newEngine(opts promql.EngineOpts) *Engine {
	return &Engine{engine: promql.NewEngine(opts), subqueryStepMs: opts.NoStepSubqueryIntervalFn}
}

// NewInstantQuery implements promql.QueryEngine. Only queries of a Queryable of this
// package are rewritten.
func (e *Engine) NewInstantQuery(
	ctx context.Context, q storage.Queryable, opts promql.QueryOpts, qs string, ts time.Time,
) (promql.Query, error) {
	return e.plan(q, func(q storage.Queryable) (promql.Query, error) {
		return e.engine.NewInstantQuery(ctx, q, opts, qs, ts)
	})
}

// NewRangeQuery implements promql.QueryEngine; see NewInstantQuery.
func (e *Engine) NewRangeQuery(
	ctx context.Context, q storage.Queryable, opts promql.QueryOpts, qs string, start, end time.Time, interval time.Duration,
) (promql.Query, error) {
	return e.plan(q, func(q storage.Queryable) (promql.Query, error) {
		return e.engine.NewRangeQuery(ctx, q, opts, qs, start, end, interval)
	})
}

// plan makes a query and rewrites it.
func (e *Engine) plan(q storage.Queryable, begin func(storage.Queryable) (promql.Query, error)) (promql.Query, error) {
	// So also a storage that embeds a Queryable has its queries rewritten.
	own, ok := q.(interface{ during(*plan) *Queryable })
	if !ok {
		return begin(q)
	}
	p := newPlan()
	during := own.during(p)
	inner, err := begin(during)
	if err != nil {
		return nil, err
	}
	stmt := inner.Statement().(*parser.EvalStmt)
	r := rewriter{
		plan: p, q: during.q, maxSamples: during.maxSamples,
		lookbackMs: stmt.LookbackDelta.Milliseconds(), subqueryStepMs: e.subqueryStepMs,
	}
	all := grid{startMs: timestamp.FromTime(stmt.Start), endMs: timestamp.FromTime(stmt.End), stepMs: stmt.Interval.Milliseconds()}
	stmt.Expr = r.rewrite(stmt.Expr, all)
	if r.err == nil {
		p.weigher = &weigher{
			maxSamples: during.maxSamples, subqueryStepMs: e.subqueryStepMs, expr: stmt.Expr, grid: all,
			selected: make(map[*labels.Matcher]*selected), instructions: make(map[string]float64),
			subqueries: make(map[argument]*parser.SubqueryExpr),
		}
		r.err = p.weigher.weigh()
	}
	if r.err != nil {
		inner.Close()
		return nil, r.err
	}
	return &planned{Query: inner, plan: p}, nil
}

// planned is a query with what its reading has to say.
type planned struct {
	promql.Query
	plan *plan
}

// Exec implements promql.Query. It may be called once, and leaves a Statement without its expression.
func (q *planned) Exec(ctx context.Context) *promql.Result {
	if q.plan.refused != nil {
		return &promql.Result{Err: q.plan.refused}
	}
	r := q.Query.Exec(ctx)
	r.Warnings.Merge(q.plan.notes)
	for _, w := range q.plan.warnings.List() {
		r.Warnings.Add(fmt.Errorf("%w: %s", annotations.PromQLWarning, w))
	}
	// A result is sent as slowly as its client reads: what the expression was compiled to is not held as long.
	q.Query.Statement().(*parser.EvalStmt).Expr, q.plan = nil, nil
	return r
}
