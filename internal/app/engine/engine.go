// Package engine assembles what accepts samples and grinds them over one store: the cache's
// protocol, the registry, ingest, the worker's shards, recovery and the runs. Programs and tests
// make it here, so that all use the same parts, on one store and one clock.
//
// The life of an engine has these steps:
//
//  1. New makes the parts. It starts no goroutine and writes nothing.
//  2. Start starts ingest. A process that only grinds leaves it out.
//  3. Drain makes what ingest has accepted durable, and ends ingest.
//  4. Close drains, unless that is done, and closes the store.
//
// The engine does nothing by itself at some time: who makes it decides when the worker beats, when
// blocks are sealed and what is due is run.
package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// Options say what an engine is made of. Store and Clock are required.
type Options struct {
	Store storage.Store
	Clock clock.Clock
	// Policy is the policy of the store's processes. The engine uses the grace, the delay, the age
	// cap and the future limit. Without grace and delay the timing is that of package cache; other
	// zero fields mean the defaults of ingest and recovery.
	Policy storage.Policy
	// Writer is the number that tells what this process writes from what others write. The default
	// is a random number.
	Writer uint64
	// Worker is this process among the workers. Timeout is how long it may be silent before others
	// take its shards; the default is that of package shards.
	Worker  storage.Worker
	Timeout time.Duration
	// Rollup makes the engine grind; nil for a process that does not. With metrics, those of the
	// member and of the recovery are registered too.
	Rollup *rollup.Options
	// Late makes the engine keep track of late data, for queries; nil for none. The engine sets
	// Outstanding.
	Late *late.Options
}

// Engine holds the parts of one process over a store.
type Engine struct {
	Store    storage.Store
	Cache    *cache.Cache
	Recovery *recovery.Recovery
	Member   *shards.Member
	Runner   *rollup.Runner // nil without Options.Rollup
	Late     *late.Tracker  // nil without Options.Late

	// Start sets these.
	Registry *registry.Registry
	Ingest   *ingest.Ingest

	clk     clock.Clock
	policy  storage.Policy
	drained bool
}

// New makes an engine.
func New(o Options) *Engine {
	timing := cache.Timing{Grace: o.Policy.Grace, Delay: o.Policy.Delay}
	if timing == (cache.Timing{}) {
		timing = cache.DefaultTiming()
	}
	writer := o.Writer
	if writer == 0 {
		writer = rand.Uint64()
	}
	e := &Engine{
		Store: o.Store, clk: o.Clock, policy: o.Policy,
		Member: shards.New(o.Store, o.Clock, o.Worker, o.Timeout),
		Cache:  cache.New(o.Store, o.Clock, writer, timing),
	}
	e.Recovery = recovery.New(o.Store, e.Cache, o.Clock, recovery.Options{AgeCap: o.Policy.AgeCap})
	if o.Late != nil {
		tracks := *o.Late
		tracks.Outstanding = e.Recovery.Outstanding
		e.Late = late.New(o.Store, o.Clock, tracks)
		e.Cache.OnLate(e.Late.Note)
	}
	if o.Rollup != nil {
		e.Runner = rollup.NewRunner(rollup.Parts{
			Store: o.Store, Member: e.Member, Cache: e.Cache, Recovery: e.Recovery, Clock: o.Clock,
		}, *o.Rollup)
		if o.Rollup.Metrics != nil {
			o.Rollup.Metrics.MustRegister(append(e.Member.Collectors(), e.Recovery.Collector())...)
		}
	}
	return e
}

// Start starts ingest. Cancelling ctx aborts the commit under way. The engine sets the registry's
// clock, and the age cap and the future limit of ingest. Start is called at most once.
func (e *Engine) Start(ctx context.Context, series registry.Options, takes ingest.Options) {
	series.Clock = e.clk
	takes.AgeCap, takes.FutureLimit = e.policy.AgeCap, e.policy.FutureLimit
	e.Registry = registry.New(e.Store, series)
	e.Ingest = ingest.Start(ctx, ingest.Parts{Store: e.Store, Registry: e.Registry, Cache: e.Cache, Clock: e.clk}, takes)
}

// Drain rejects new reports, and returns when those under way are durable.
func (e *Engine) Drain() error {
	if e.Ingest == nil || e.drained {
		return nil
	}
	e.drained = true
	return e.Ingest.Close()
}

// Close drains the engine and closes its store.
func (e *Engine) Close() error { return errors.Join(e.Drain(), e.Store.Close()) }
