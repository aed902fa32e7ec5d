// Package promquery evaluates PromQL over Quern. It has Prometheus' own engine, a storage that
// reads for the engine, and a rewriter that makes the engine read roll-ups where raw samples have
// expired.
//
// An expression is rewritten between parsing and evaluation, and only if a selector reaches further
// back than raw samples are kept. The rewriter replaces such a selector, together with the function
// around it, by a selector whose samples are the function's values at the evaluation times,
// computed here from rows; see reading. The engine does everything else: labels, operators,
// aggregations, and all work on recent data.
//
// A function of a range of raw samples gets its windows as parts of what was read; see windowed.
//
// Times are in Unix ms. Windows of raw samples are PromQL's, (t-range, t]; windows of rows are
// [t-range, t), see reading.
package promquery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/query"
)

// Options configure the engine; the zero value selects the defaults.
type Options struct {
	// Timeout is the time limit of a query. The default is 2m.
	Timeout time.Duration
	// MaxSamples is the maximum number of samples that a query may hold at a time. The default is
	// 50,000,000.
	MaxSamples int
	// Memory is what all queries may hold together, with their results and lists of series. A query
	// that finds no room ends with admission.ErrNoRoom. The default is no limit.
	Memory *admission.Budget
	// Lookback is the maximum age of the sample that an instant selector returns. The default is
	// 5m.
	Lookback time.Duration
	// Logger receives the engine's internal errors. The default discards them.
	Logger *slog.Logger
	// Metrics registers the engine's own metrics. The default registers them nowhere.
	Metrics prometheus.Registerer
}

// EnsureDefaults fills in unset fields.
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
	engine  *promql.Engine
	timeout time.Duration
	// subqueryStepMs returns the step, given the range, of a subquery without an explicit step.
	subqueryStepMs func(rangeMs int64) int64
}

var _ promql.QueryEngine = (*Engine)(nil)

// New makes an engine over a querier, and the storage to pass to its queries.
func New(q *query.Querier, opts Options) (*Engine, *Queryable) {
	opts = opts.EnsureDefaults()
	return NewEngine(promql.EngineOpts{
		Logger:                   opts.Logger,
		Reg:                      opts.Metrics,
		MaxSamples:               opts.MaxSamples,
		Timeout:                  opts.Timeout,
		LookbackDelta:            opts.Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnablePerStepStats:       true,
	}), &Queryable{q: q, maxSamples: int64(opts.MaxSamples), memory: opts.Memory}
}

// NewEngine makes an engine with options of Prometheus' engine. NoStepSubqueryIntervalFn must be set.
func NewEngine(opts promql.EngineOpts) *Engine {
	return &Engine{engine: promql.NewEngine(opts), timeout: opts.Timeout, subqueryStepMs: opts.NoStepSubqueryIntervalFn}
}

// NewInstantQuery implements promql.QueryEngine. It rewrites a query only if q is a Queryable of
// this package.
func (e *Engine) NewInstantQuery(
	ctx context.Context, q storage.Queryable, opts promql.QueryOpts, qs string, ts time.Time,
) (promql.Query, error) {
	return e.prepare(ctx, q, func(q storage.Queryable) (promql.Query, error) {
		return e.engine.NewInstantQuery(ctx, q, opts, qs, ts)
	})
}

// NewRangeQuery implements promql.QueryEngine; see NewInstantQuery.
func (e *Engine) NewRangeQuery(
	ctx context.Context, q storage.Queryable, opts promql.QueryOpts, qs string, start, end time.Time, interval time.Duration,
) (promql.Query, error) {
	return e.prepare(ctx, q, func(q storage.Queryable) (promql.Query, error) {
		return e.engine.NewRangeQuery(ctx, q, opts, qs, start, end, interval)
	})
}

// prepare makes a query, rewrites it, and claims what its evaluation takes, as far as that is known before anything is
// read.
func (e *Engine) prepare(
	ctx context.Context, q storage.Queryable, begin func(storage.Queryable) (promql.Query, error),
) (promql.Query, error) {
	// The check by interface also accepts a storage that embeds a Queryable.
	own, ok := q.(interface{ during(*preparation) *Queryable })
	if !ok {
		return begin(q)
	}
	p := newPreparation(ctx)
	during := own.during(p)
	inner, err := begin(during)
	if err != nil {
		return nil, err
	}
	stmt := inner.Statement().(*parser.EvalStmt)
	if err := query.AdmitDepth(stmt.Expr, inner.String()); err != nil {
		inner.Close()
		return nil, err
	}
	r := rewriter{
		prep: p, q: during.q, lookbackMs: stmt.LookbackDelta.Milliseconds(), subqueryStepMs: e.subqueryStepMs,
	}
	all := grid{startMs: timestamp.FromTime(stmt.Start), endMs: timestamp.FromTime(stmt.End), stepMs: stmt.Interval.Milliseconds()}
	r.err = p.name(stmt.Expr)
	stmt.Expr = r.rewrite(stmt.Expr, all)
	if r.err == nil {
		p.weigher = &weigher{
			index: during.q.Index(), account: p.account, maxSamples: during.maxSamples, lookbackMs: r.lookbackMs, subqueryStepMs: e.subqueryStepMs,
			expr: stmt.Expr, grid: all,
			smoothed: make(map[*labels.Matcher]grid), selected: make(map[*labels.Matcher]*selected), instructions: make(map[string]float64),
			subqueries: make(map[argument]*parser.SubqueryExpr),
		}
		p.account.claims(ctx, during.memory)
		p.refused = p.weigher.weigh()
		if heavy := (*weightError)(nil); errors.As(p.refused, &heavy) { // Exec answers the others
			r.err = heavy
		}
	}
	prepared := &preparedQuery{Query: inner, prep: p, account: p.account, timeout: e.timeout}
	if r.err != nil {
		prepared.Close()
		return nil, r.err
	}
	return prepared, nil
}

// preparedQuery is a query that adds the notes and warnings of its preparation to the result.
type preparedQuery struct {
	promql.Query
	prep    *preparation
	account *account
	timeout time.Duration
}

// Close implements promql.Query.
func (q *preparedQuery) Close() {
	q.Query.Close()
	q.account.only(0)
}

// samplesOf returns what a result takes, in samples.
func samplesOf(v parser.Value) (n int64) {
	switch v := v.(type) {
	case promql.Matrix:
		for i := range v {
			n += int64(cap(v[i].Floats) + samplesIn(int(v[i].Metric.ByteSize())) + samplesIn(int(unsafe.Sizeof(v[i]))))
		}
	case promql.Vector:
		for i := range v {
			n += int64(samplesIn(int(v[i].Metric.ByteSize())) + samplesIn(int(unsafe.Sizeof(v[i]))))
		}
	}
	return n
}

// Exec implements promql.Query. It may be called once, and leaves a Statement without its expression.
func (q *preparedQuery) Exec(ctx context.Context) *promql.Result {
	if q.prep.refused != nil {
		return &promql.Result{Err: q.prep.refused}
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout) // the engine has one of its own, which it does not tell
	defer cancel()
	q.prep.ctx = ctx
	r := q.Query.Exec(ctx)
	r.Warnings.Merge(q.prep.notes)
	for _, w := range q.prep.warnings.List() {
		r.Warnings.Add(fmt.Errorf("%w: %s", annotations.PromQLWarning, w))
	}
	// A result is sent as slowly as its client reads: what the expression was compiled to, and what
	// it read last, is not held as long. The engine's query holds the storage that it was given, and
	// that holds the preparation.
	if now := q.prep.account.now; now != nil {
		now.release()
	}
	recorded := int64(samplesIn(q.prep.levels.Bytes()))
	q.prep.weigher, q.prep.readings, q.prep.windowed, q.prep.texts, q.prep.account.now = nil, nil, nil, nil, nil
	q.Query.Statement().(*parser.EvalStmt).Expr, q.prep = nil, nil
	q.account.only(samplesOf(r.Value) + recorded)
	return r
}
