package explore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// All worlds are on one day, with slices of one and two hours.
var (
	day    = time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC)
	ladder = func() metric.Ladder {
		l, err := metric.NewLadder(time.Hour, 2*time.Hour)
		if err != nil {
			panic(err)
		}
		return l
	}()
)

func at(hour, minute int) time.Time {
	return day.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
}

// scenario is a world to explore.
type scenario struct {
	name string
	// lww: the last write wins by its timestamp; otherwise stale fences are refused.
	lww bool
	// torn: other actors see each write in part. Only with lww.
	torn bool
	// checks: when a lease ends, its holder's monotonic clock shows it, if the holder looks.
	checks bool
	// oneBlock puts both schedules into one block, instead of one each.
	oneBlock bool
	// shared puts both blocks into one storage group, which workers pack after the run.
	shared bool
	// unsealed leaves the marks open, so that blocks are read from the tables.
	unsealed bool
	// skew is how far ingest's clock is ahead.
	skew time.Duration
	// ingest is what ingest does during the exploration.
	ingest func(ctx context.Context, p *process)
	// before is what ingest does before the exploration starts.
	before func(ctx context.Context, p *process)
	// leaseEnds is how often the held lease may end.
	leaseEnds int
	// mortal: the first worker may die.
	mortal bool
	// lands: data that is on only one copy comes to light at any time.
	lands bool
	// gone: the index of the first hour becomes unavailable at any time, and comes back at any
	// later time.
	gone bool
	// hours is the number of hours after which the second worker continues.
	hours int
	// preemptions bounds the exploration.
	preemptions int
	// open opens another store than the models.
	open func(clk clock.Clock, s storage.Settings) storage.Store
}

// world is one execution of a scenario. It runs in a synctest bubble, which tells when all actors
// have stopped.
type world struct {
	sc     *scenario
	clk    *clock.Simulated
	ingest *clock.Simulated
	store  storage.Store
	lww    *storagetest.LWWModel
	states interface{ Fingerprint() uint64 }

	actors []*actor
	events []*event
	begun  bool
	over   bool
	trace  []string

	mu    sync.Mutex
	acked []metric.Sample
	wrong []string
	// gone: the index of the first hour is unavailable.
	gone bool
}

// actor is a process whose steps at the store each wait to be granted.
type actor struct {
	w    *world
	name string
	// past is a hash of everything that the actor has learned. With the store's state it determines
	// the actor's future.
	past uint64
	at   *request
	dead bool
	done bool
}

type request struct {
	op      string
	enabled func() bool
	grant   chan error
}

// event is something that happens to all actors.
type event struct {
	name, what string
	left       int
	enabled    func() bool
	do         func()
}

var (
	errOver = fmt.Errorf("%w: the execution is over", storage.ErrUnavailable)
	errDead = fmt.Errorf("%w: the process is dead", storage.ErrUnavailable)
	errGone = fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)
)

// process is a process of Quern.
type process struct {
	*actor
	clk    *clock.Simulated
	store  storage.Store
	runner *rollup.Runner
	writer *cache.Writer
	// copies is ingest's store before others see its writes: a write may land on one copy only.
	copies *storagetest.Faulty
	// stall is called when ingest's next write is granted, stalled when that write is done. Either
	// may be nil.
	stall, stalled func()
}

const (
	// timeout is how long a worker believes its lease to last.
	timeout = 30 * time.Second
	// never is longer than any world.
	never = 1000 * time.Hour
)

func newWorld(ctx context.Context, sc *scenario) *world {
	w := &world{sc: sc, clk: clock.NewSimulated(at(11, 30)), ingest: clock.NewSimulated(at(11, 30).Add(sc.skew))}
	size := 1
	if sc.oneBlock {
		size = 2
	}
	group := size
	if sc.shared {
		group = 2
	}
	settings := storage.Settings{Ladder: ladder, GroupSize: group, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: size}}}
	switch {
	case sc.open != nil:
		w.store = sc.open(w.clk, settings)
	case sc.lww:
		w.lww = storagetest.NewLWWModel(settings, nil, w.clk)
		w.store, w.states = w.lww, w.lww
	default:
		m := storagetest.NewModel(settings, nil, w.clk)
		w.store, w.states = m, m
	}

	a, b, i := w.process("A", 1), w.process("B", 2), w.process("I", 3)
	a.worker()
	b.worker()
	if sc.shared { // the ids of two writers tie
		other := w.process("J", 4)
		must(i.writer.Flush(ctx, i.groups(sample(1, 11, 15, 3))))
		must(other.writer.Flush(ctx, i.groups(sample(0, 11, 10, 5))))
		w.clk.Set(at(11, 31))
		must(other.writer.Flush(ctx, i.groups(sample(0, 11, 20, 7))))
		w.clk.Set(at(12, 1))
		must(other.writer.Seal(ctx))
	} else {
		must(i.writer.Flush(ctx, i.groups(sample(0, 11, 10, 5), sample(0, 11, 20, 7), sample(1, 11, 15, 3))))
	}
	w.acked = append(w.acked, sample(0, 11, 10, 5), sample(0, 11, 20, 7), sample(1, 11, 15, 3))
	if !sc.unsealed {
		i.clk.Set(at(12, 1).Add(sc.skew))
		must(i.writer.Seal(ctx))
	}
	w.clk.Set(at(12, 2))
	if sc.shared {
		_, err := w.store.LeaseIDs(ctx, 2)
		must(err)
		w.clk.Set(at(12, 10)) // so that the chunks have settled
	}
	i.clk.Set(w.clk.Now().Add(sc.skew))
	if sc.before != nil {
		sc.before(ctx, i)
	}

	w.begun = true
	w.actors = []*actor{a.actor, b.actor}
	w.spawn(a.actor, func() { a.work(ctx) })
	w.spawn(b.actor, func() {
		b.work(ctx)
		for n := range sc.hours {
			if b.stop(fmt.Sprintf("clock %d:02", 13+n), nil) != nil {
				return
			}
			w.clk.Set(at(13+n, 2))
			b.work(ctx)
		}
	})
	if sc.ingest != nil {
		w.actors = append(w.actors, i.actor)
		w.spawn(i.actor, func() { sc.ingest(ctx, i) })
	}
	w.events = []*event{
		{name: "E", what: "the lease ends", left: sc.leaseEnds, enabled: func() bool { return w.holder() != "" }, do: w.endLease},
	}
	if sc.lands {
		w.events = append(w.events, &event{
			name: "S", what: "what is on one copy comes to light", left: 1, enabled: func() bool { return i.copies.Landed() > 0 },
			do: func() { must(i.copies.Surface(ctx)) },
		})
	}
	if sc.gone {
		w.events = append(w.events,
			&event{name: "N", what: "the index of 11:00 is out of reach", left: 1, enabled: func() bool { return true }, do: func() { w.gone = true }},
			&event{name: "R", what: "it is in reach again", left: 1, enabled: func() bool { return w.gone }, do: func() { w.gone = false }})
	}
	if sc.mortal {
		w.events = append(w.events, &event{
			name: "K", what: "A dies", left: 1, enabled: func() bool { return !a.done },
			do: func() { a.dead = true; a.release(errDead) },
		})
	}
	synctest.Wait()
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func sample(id metric.ScheduleID, hour, minute int, v float64) metric.Sample {
	return metric.Sample{Schedule: id, TimeMs: at(hour, minute).UnixMilli(), Value: v}
}

func (w *world) process(name string, writer uint64) *process {
	p := &process{actor: &actor{w: w, name: name}, clk: w.clk}
	s := w.store
	if name == "I" {
		p.clk = w.ingest
	}
	if w.lww != nil {
		session := w.lww.Session(p.clk)
		if w.sc.torn {
			session.Between = func(part string) error { return p.stop("Write "+part, nil) }
		}
		s = session
	}
	if name == "I" {
		p.copies = storagetest.NewFaulty(s)
		s = p.copies
	}
	p.store = &gate{Store: s, p: p}
	p.writer = cache.NewWriter(cache.New(p.store, p.clk, writer, cache.DefaultTiming()))
	return p
}

func (p *process) worker() {
	lasts := never
	if p.w.sc.checks {
		lasts = timeout
	}
	p.runner = engine.New(engine.Options{
		Store: p.store, Clock: p.clk, Writer: uint64(p.name[0]) << 8,
		Worker: storage.Worker{ID: p.name}, Timeout: lasts, Rollup: &rollup.Options{Parallel: 1, PackRate: math.MaxInt},
	}).Runner
}

// work runs an aggregator until nothing is due. If it waits for a shard, it looks again when the
// shard is free.
func (p *process) work(ctx context.Context) {
	for range 4 {
		_, err := p.runner.RunDue(ctx)
		if err == nil && p.w.sc.shared {
			err = p.runner.Pack(ctx)
		}
		switch {
		case err == nil || errors.Is(err, errOver) || errors.Is(err, errDead):
			return
		case !errors.Is(err, rollup.ErrShared) && !errors.Is(err, storage.ErrConflict) && !errors.Is(err, errGone):
			p.w.failed("%s: %v", p.name, err)
			return
		}
		if p.stop("look again", func() bool { h := p.w.holder(); return h == "" || h == p.name }) != nil {
			return
		}
	}
}

// groups groups samples of one hour by block.
func (p *process) groups(samples ...metric.Sample) []cache.BlockSamples {
	var out []cache.BlockSamples
	for _, s := range samples {
		block := p.w.store.Settings().Epochs.BlockAt(s.Schedule, s.TimeMs)
		i := slices.IndexFunc(out, func(g cache.BlockSamples) bool { return g.Block == block })
		if i < 0 {
			i = len(out)
			out = append(out, cache.BlockSamples{Slice: ladder.SliceAt(metric.Raw, s.TimeMs), Block: block})
		}
		out[i].Samples = append(out[i].Samples, s)
	}
	return out
}

// flush makes ingest store samples, and records them as acknowledged if it succeeds.
func (p *process) flush(ctx context.Context, samples ...metric.Sample) {
	if err := p.writer.Flush(ctx, p.groups(samples...)); err == nil {
		p.w.mu.Lock()
		p.w.acked = append(p.w.acked, samples...)
		p.w.mu.Unlock()
	} else if !errors.Is(err, errOver) {
		p.w.failed("flush: %v", err)
	}
}

func (w *world) failed(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

func (w *world) spawn(a *actor, do func()) {
	go func() {
		do()
		w.mu.Lock()
		defer w.mu.Unlock()
		a.done = true
	}()
}

func (w *world) holder() string {
	held, err := w.store.Leases(context.Background())
	must(err)
	for _, l := range held {
		return l.Owner
	}
	return ""
}

func (w *world) endLease() {
	must(w.store.ReleaseShard(context.Background(), 0, w.holder()))
	if w.sc.checks {
		time.Sleep(timeout)
	}
}

// stop waits until the actor's next step is granted.
func (a *actor) stop(op string, enabled func() bool) error {
	if !a.w.begun {
		return nil
	}
	w := a.w
	w.mu.Lock()
	switch {
	case w.over:
		w.mu.Unlock()
		return errOver
	case a.dead:
		w.mu.Unlock()
		return errDead
	case a.at != nil:
		w.mu.Unlock()
		panic(a.name + " takes two steps at once: " + a.at.op + ", " + op)
	}
	r := &request{op: op, enabled: enabled, grant: make(chan error, 1)}
	a.at = r
	w.mu.Unlock()
	return <-r.grant
}

func (a *actor) release(err error) {
	a.w.mu.Lock()
	r := a.at
	a.at = nil
	a.w.mu.Unlock()
	if r != nil {
		r.grant <- err
	}
}

// learn records what the actor has learned.
func (a *actor) learn(what ...any) {
	var buf [512]byte
	a.past = xxhash.Sum64(fmt.Append(fmt.Append(buf[:0], a.past), what...))
}

// Enabled implements System.
func (w *world) Enabled() []int {
	var out []int
	for i, a := range w.actors {
		if a.at != nil && (a.at.enabled == nil || a.at.enabled()) {
			out = append(out, i)
		}
	}
	for i, e := range w.events {
		if e.left > 0 && e.enabled() {
			out = append(out, len(w.actors)+i)
		}
	}
	return out
}

// Event implements System.
func (w *world) Event(i int) bool { return i >= len(w.actors) }

// Name implements System.
func (w *world) Name(i int) string {
	if w.Event(i) {
		return w.events[i-len(w.actors)].name
	}
	return w.actors[i].name
}

// Step implements System.
func (w *world) Step(i int) {
	if w.Event(i) {
		e := w.events[i-len(w.actors)]
		w.trace = append(w.trace, e.name+": "+e.what)
		e.left--
		e.do()
	} else {
		a := w.actors[i]
		w.trace = append(w.trace, a.name+": "+a.at.op)
		a.learn(a.at.op)
		a.release(nil)
	}
	synctest.Wait()
}

// State implements System.
func (w *world) State() (uint64, bool) {
	if w.states == nil {
		return 0, false
	}
	parts := []any{w.states.Fingerprint(), w.clk.Now().UnixMilli(), w.ingest.Now().UnixMilli()}
	for _, a := range w.actors {
		parts = append(parts, a.past, a.dead, a.done)
	}
	for _, e := range w.events {
		parts = append(parts, e.left)
	}
	return xxhash.Sum64(fmt.Append(nil, parts...)), true
}

// Trace implements System.
func (w *world) Trace() []string { return w.trace }

// Abandon implements System.
func (w *world) Abandon() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	for _, a := range w.actors {
		a.release(errOver)
	}
	synctest.Wait()
	must(w.store.Close())
}

// Finish implements System. A healthy worker does what is left, until late data has climbed to the
// top. Then everything must match the raw samples, and nothing else may be left.
func (w *world) Finish() error {
	ctx := context.Background()
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	for _, a := range w.actors {
		a.release(errOver) // releases those that wait for a dead worker's lease
	}
	synctest.Wait()
	w.begun, w.over, w.gone = false, false, false
	for _, e := range w.events {
		if e.name == "S" && e.enabled() {
			e.do()
		}
	}
	if h := w.holder(); h != "" {
		must(w.store.ReleaseShard(ctx, 0, h))
	}
	c := w.process("C", 4)
	c.worker()
	for _, hour := range []int{13, 14, 15, 16, 18} {
		if w.clk.Now().Before(at(hour, 2)) {
			w.clk.Set(at(hour, 2))
			if _, err := c.runner.RunDue(ctx); err != nil {
				w.failed("at %d:02: %v", hour, err)
			}
		}
	}
	if w.sc.shared {
		must(c.runner.Pack(ctx))
	}
	w.check(ctx)
	must(w.store.Close())
	slices.Sort(w.wrong) // rows come from maps
	if len(w.wrong) > 0 {
		return errors.New(strings.Join(w.wrong, "\n"))
	}
	return nil
}

func (w *world) check(ctx context.Context) {
	all := blocks.Range{End: 2}
	from, to := day.UnixMilli(), day.Add(24*time.Hour).UnixMilli()
	raw := map[metric.Sample]bool{}
	chunks := 0
	for c, err := range w.store.RawChunks(ctx, all, from, to) {
		must(err)
		chunks++
		samples, err := blocks.DecodeSamples(nil, c.Data)
		must(err)
		for _, s := range samples {
			raw[s] = true
		}
	}
	for _, s := range w.acked {
		if !raw[s] {
			w.failed("acknowledged, and not in the raw table: %+v", s)
		}
	}
	if w.sc.shared && chunks != 1 {
		w.failed("the group has %d chunks", chunks)
	}
	for level := metric.Bucket(1); level <= ladder.Top(); level++ {
		want := map[string]metric.Rollup{}
		for s := range raw {
			add(want, rowKey(s.Schedule, ladder.SliceAt(level-1, s.TimeMs).StartMs), raw, s, level)
		}
		for row, err := range w.store.Rollups(ctx, level, all, from, to) {
			must(err)
			k := rowKey(row.Schedule, row.TimeMs)
			row.Sketch = nil
			if exp := want[k]; fmt.Sprint(exp) != fmt.Sprint(row.Rollup) {
				w.failed("%s row %s is %+v, must be %+v", ladder.Name(level), k, row.Rollup, exp)
			}
			delete(want, k)
		}
		for k := range want {
			w.failed("%s row %s is missing", ladder.Name(level), k)
		}
	}
	for b := metric.Raw; b < ladder.Top(); b++ {
		states, err := w.store.Slices(ctx, b, from, to)
		must(err)
		for _, s := range states {
			if !s.Complete && s.StartMs < at(16, 0).UnixMilli() {
				w.failed("%s slice %s is not complete", ladder.Name(b), clockOf(s.StartMs))
			}
		}
		for hour := range 24 {
			k := storage.SliceKey{Bucket: b, StartMs: at(hour, 0).UnixMilli()}
			for m, err := range w.store.Marks(ctx, storage.IndexPartition{SliceKey: k}, storage.MarkKey{}, 0) {
				must(err)
				w.failed("a mark is left in %s slice %s: %s, block %d of %s", ladder.Name(b), clockOf(k.StartMs), m.Kind, m.Start, clockOf(m.TimeMs))
			}
			for start := range all.End {
				chunks, err := w.store.CacheBlock(ctx, storage.CacheKey{SliceKey: k, Start: start})
				must(err)
				if len(chunks) > 0 {
					w.failed("a cache block is left: %s slice %s, block %d", ladder.Name(b), clockOf(k.StartMs), start)
				}
			}
		}
	}
}

func clockOf(ms int64) string { return time.UnixMilli(ms).UTC().Format("15:04") }

func rowKey(id metric.ScheduleID, ms int64) string { return fmt.Sprintf("%d@%s", id, clockOf(ms)) }

// add computes the row that contains a sample, unless it exists.
func add(rows map[string]metric.Rollup, key string, raw map[metric.Sample]bool, sample metric.Sample, level metric.Bucket) {
	if _, ok := rows[key]; ok {
		return
	}
	slice := ladder.SliceAt(level-1, sample.TimeMs)
	var samples []metric.Sample
	for s := range raw {
		if s.Schedule == sample.Schedule && slice.Contains(s.TimeMs) {
			samples = append(samples, s)
		}
	}
	slices.SortFunc(samples, metric.CompareSamples)
	r := metric.Rollup{Min: samples[0].Value, Max: samples[0].Value, First: samples[0].Value, FirstMs: samples[0].TimeMs}
	for i, s := range samples {
		r.Count++
		r.Sum += s.Value
		r.Min, r.Max, r.Last = min(r.Min, s.Value), max(r.Max, s.Value), s.Value
		r.LastMs = s.TimeMs
		if i == 0 {
			continue
		}
		if grown := s.Value - samples[i-1].Value; grown >= 0 {
			r.Increase += grown
		} else {
			r.Increase += s.Value
		}
	}
	rows[key] = r
}

// gate makes each step of a process at its store wait to be granted. A granted step takes effect
// even if its context has ended: it is on its way. Steps that only operators see pass freely, and
// so does a renewal, which is no step of the work.
type gate struct {
	storage.Store
	p *process
}

func pass[T any](ctx context.Context, g *gate, op string, do func(context.Context) (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, storagetest.ContextError(ctx)
	}
	if err := g.p.stop(op, nil); err != nil {
		return zero, err
	}
	v, err := do(context.WithoutCancel(ctx))
	g.p.learn(v, err)
	return v, err
}

func passed(ctx context.Context, g *gate, op string, do func(context.Context) error) error {
	_, err := pass(ctx, g, op, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

func passAll[T any](ctx context.Context, g *gate, op string, do func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		rows, err := pass(ctx, g, op, func(ctx context.Context) (rows []T, err error) {
			for row, err := range do(ctx) {
				if err != nil {
					return nil, err
				}
				rows = append(rows, row)
			}
			return rows, nil
		})
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
		if err != nil {
			var zero T
			yield(zero, err)
		}
	}
}

func (g *gate) Write(ctx context.Context, b *storage.Batch) error {
	do := func(ctx context.Context) error {
		if g.p.stall != nil {
			g.p.stall()
			g.p.stall = nil
		}
		err := g.Store.Write(ctx, b)
		if g.p.stalled != nil {
			g.p.stalled()
			g.p.stalled = nil
		}
		return err
	}
	if g.p.w.sc.torn {
		if ctx.Err() != nil {
			return storagetest.ContextError(ctx)
		}
		err := do(context.WithoutCancel(ctx)) // it stops between the parts of the batch
		g.p.learn(err)
		return err
	}
	return passed(ctx, g, "Write "+written(b), do)
}

func (w *world) isGone(p storage.IndexPartition) bool {
	return w.gone && p.SliceKey == storage.SliceKey{StartMs: at(11, 0).UnixMilli()}
}

func written(b *storage.Batch) string {
	var out []string
	for _, m := range b.Marks {
		out = append(out, fmt.Sprintf("%s mark of block %d into %s %s", m.Kind, m.Start, ladder.Name(m.Partition.Bucket), clockOf(m.Partition.StartMs)))
	}
	return fmt.Sprintf("(%s) raw %d cache %d", strings.Join(out, ", "), len(b.Raw), len(b.Cache))
}

func (g *gate) AcquireShard(ctx context.Context, shard int, owner string, _ time.Duration) (storage.Lease, error) {
	return pass(ctx, g, "AcquireShard", func(ctx context.Context) (storage.Lease, error) {
		return g.Store.AcquireShard(ctx, shard, owner, never) // ends when the explorer says so
	})
}

func (g *gate) ReleaseShard(ctx context.Context, shard int, owner string) error {
	return passed(ctx, g, "ReleaseShard", func(ctx context.Context) error { return g.Store.ReleaseShard(ctx, shard, owner) })
}

func (g *gate) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	if toMs-fromMs == ladder.WidthMs(2) {
		// Only the assertions ask for the parts of a slice. Passing them freely keeps schedules the
		// same without the assertions.
		return g.Store.Slices(ctx, b, fromMs, toMs)
	}
	return pass(ctx, g, "Slices "+ladder.Name(b), func(ctx context.Context) ([]storage.SliceState, error) {
		return g.Store.Slices(ctx, b, fromMs, toMs)
	})
}

func (g *gate) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	return passAll(ctx, g, "Marks "+ladder.Name(p.Bucket)+" "+clockOf(p.StartMs), func(ctx context.Context) iter.Seq2[storage.Mark, error] {
		if g.p.w.isGone(p) {
			return func(yield func(storage.Mark, error) bool) { yield(storage.Mark{}, errGone) }
		}
		return g.Store.Marks(ctx, p, from, most)
	})
}

func (g *gate) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	return pass(ctx, g, fmt.Sprintf("CacheBlock %s %s %d", ladder.Name(k.Bucket), clockOf(k.StartMs), k.Start), func(ctx context.Context) ([]storage.Chunk, error) {
		return g.Store.CacheBlock(ctx, k)
	})
}

func (g *gate) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	return passed(ctx, g, fmt.Sprintf("WriteRollups %s %s", ladder.Name(level), rowsOf(rows)), func(ctx context.Context) error {
		return g.Store.WriteRollups(ctx, f, level, rows)
	})
}

func rowsOf(rows []metric.RollupRow) string {
	var out []string
	for _, r := range rows {
		out = append(out, fmt.Sprintf("%s n=%d", rowKey(r.Schedule, r.TimeMs), r.Count))
	}
	return strings.Join(out, ", ")
}

func (g *gate) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, ids []blocks.ID) error {
	return passed(ctx, g, fmt.Sprintf("PackRaw %s %d, %d chunks", clockOf(packed.SliceMs), packed.Group, len(ids)), func(ctx context.Context) error {
		return g.Store.PackRaw(ctx, f, packed, ids)
	})
}

func (g *gate) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	return passed(ctx, g, fmt.Sprintf("DeleteCacheBlock %s %s %d", ladder.Name(k.Bucket), clockOf(k.StartMs), k.Start), func(ctx context.Context) error {
		return g.Store.DeleteCacheBlock(ctx, f, k)
	})
}

func (g *gate) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	op := fmt.Sprintf("DeleteMarks %s %s", ladder.Name(p.Bucket), clockOf(p.StartMs))
	return passed(ctx, g, op, func(ctx context.Context) error { return g.Store.DeleteMarks(ctx, f, p, marks) })
}

func (g *gate) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	op := fmt.Sprintf("BeginSlice %s %s", ladder.Name(k.Bucket), clockOf(k.StartMs))
	return passed(ctx, g, op, func(ctx context.Context) error { return g.Store.BeginSlice(ctx, k) })
}

func (g *gate) NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error) {
	startMs, err = pass(ctx, g, "NewestBegun "+ladder.Name(b), func(ctx context.Context) (int64, error) {
		startMs, ok, err = g.Store.NewestBegun(ctx, b)
		return startMs, err
	})
	g.p.learn(ok)
	return startMs, ok, err
}

func (g *gate) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	op := fmt.Sprintf("CompleteSlice %s %s", ladder.Name(k.Bucket), clockOf(k.StartMs))
	return passed(ctx, g, op, func(ctx context.Context) error { return g.Store.CompleteSlice(ctx, k) })
}

func (g *gate) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return passAll(ctx, g, fmt.Sprintf("RawChunks %s %d", clockOf(fromMs), ids.Start), func(ctx context.Context) iter.Seq2[storage.RawChunk, error] {
		return storagetest.Kept(g.Store.RawChunks(ctx, ids, fromMs, toMs))
	})
}

func (g *gate) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return passAll(ctx, g, fmt.Sprintf("Rollups %s %s %d", ladder.Name(level), clockOf(fromMs), ids.Start), func(ctx context.Context) iter.Seq2[metric.RollupRow, error] {
		return g.Store.Rollups(ctx, level, ids, fromMs, toMs)
	})
}
