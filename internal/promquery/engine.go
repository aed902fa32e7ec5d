// Package promquery evaluates PromQL over Quern. It has Prometheus' own engine, a storage that
// reads for the engine, and a rewriter that makes the engine read roll-ups where raw samples have
// expired.
//
// An expression is rewritten between parsing and evaluation, and only if a selector reaches further
// back than raw samples are kept. For each selector the rewriter chooses raw samples or the rows of a level
// (rewrite.go). It replaces a selector of rows, together with the function around it, by a selector whose
// samples are the function's values at the evaluation times, computed here from rows (reading.go). The
// engine does everything else: labels, operators, aggregations, and all work on recent data.
//
// A function of a range of raw samples gets its windows as parts of what was read; see windowed. Rows may prove what it comes to;
// see exact.
//
// A query has limits: the samples that it holds (account.go), its series, its time, and the memory of the process
// (memory.go). What the engine makes in one go, without a look at its context, has limits before it begins: labels
// (labels.go), and the steps of subqueries (rewriter.subquery).
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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/query"
)

// Options configure the engine; the zero value selects the defaults.
type Options struct {
	// Timeout is the time limit of a query. The default is 2m.
	Timeout time.Duration
	// MaxSamples is the maximum number of samples that a query may hold at a time. The default is
	// 50,000,000.
	MaxSamples int
	// MemoryLimit is the bytes of the heap beyond which queries end, those that run longest first. The default is no limit.
	MemoryLimit int64
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
	// noWindows leaves the windows of functions to the engine, which has options that windows do not know.
	noWindows bool
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
	}), &Queryable{q: q, maxSamples: int64(opts.MaxSamples), watch: newWatch(opts.MemoryLimit)}
}

// NewEngine makes an engine with options of Prometheus' engine. NoStepSubqueryIntervalFn must be set.
func NewEngine(opts promql.EngineOpts) *Engine {
	return &Engine{
		engine: promql.NewEngine(opts), timeout: opts.Timeout, subqueryStepMs: opts.NoStepSubqueryIntervalFn,
		noWindows: opts.EnableTypeAndUnitLabels,
	}
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

// prepare makes a query and rewrites it.
func (e *Engine) prepare(
	ctx context.Context, q storage.Queryable, begin func(storage.Queryable) (promql.Query, error),
) (promql.Query, error) {
	// The check by interface also accepts a storage that embeds a Queryable.
	readable, ok := q.(interface{ during(*preparation) *Queryable })
	if !ok {
		return begin(q)
	}
	p := newPreparation(ctx)
	during := readable.during(p)
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
		prep: p, q: during.q, lookbackMs: stmt.LookbackDelta.Milliseconds(), subqueryStepMs: e.subqueryStepMs, maxSteps: during.maxSamples,
		noWindows: e.noWindows,
	}
	all := grid{startMs: timestamp.FromTime(stmt.Start), endMs: timestamp.FromTime(stmt.End), stepMs: stmt.Interval.Milliseconds()}
	p.name(stmt.Expr)
	p.made = madeBy(stmt.Expr, all.steps())
	p.refused = p.made.over(nil, during.maxSamples)
	stmt.Expr = r.rewrite(stmt.Expr, all)
	if r.err != nil {
		inner.Close()
		return nil, r.err
	}
	return &preparedQuery{Query: inner, prep: p, watch: during.watch, timeout: e.timeout}, nil
}

// preparedQuery is a query that adds the notes and warnings of its preparation to the result.
type preparedQuery struct {
	promql.Query
	prep    *preparation
	watch   *watch
	timeout time.Duration
}

// Exec implements promql.Query. It may be called once, and leaves a Statement without its expression.
func (q *preparedQuery) Exec(ctx context.Context) *promql.Result {
	if q.prep.refused != nil {
		return &promql.Result{Err: named(q.prep.refused, q.prep.account.most, q.timeout)}
	}
	ctx, end := q.watch.begin(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, q.timeout) // the engine has one of its own, which it does not tell
	defer cancel()
	q.prep.ctx = ctx
	r := q.Query.Exec(ctx)
	r.Err = named(r.Err, q.prep.account.most, q.timeout)
	if memory := (*memoryError)(nil); r.Err != nil && errors.As(context.Cause(ctx), &memory) {
		r.Err = memory
	}
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
	q.prep.selected, q.prep.account.now = nil, nil
	q.Query.Statement().(*parser.EvalStmt).Expr, q.prep = nil, nil
	return r
}

// named adds to an error of the engine which limit it is about, what that is, and what helps.
func named(err error, maxSamples int64, timeout time.Duration) error {
	var samples promql.ErrTooManySamples
	var late promql.ErrQueryTimeout
	var stored promql.ErrStorage
	switch {
	case errors.As(err, &samples):
		return fmt.Errorf("%w: a query may hold %d at a time (--query-max-samples): narrow the selectors, aggregate, or use a larger step or a shorter range",
			err, maxSamples)
	case errors.As(err, &late), errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &stored):
		return fmt.Errorf("%w: a query may take %s (--query-timeout), or what was asked for: narrow the selectors, or use a larger step or a shorter range", err, timeout)
	}
	return err
}
