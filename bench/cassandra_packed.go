package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// The data has the shape of the Time Series Benchmark Suite's cpu-only: hosts that report ten
// percentages every 10 s, each an integer that follows a random walk.
const (
	packedHosts    = 100
	packedHours    = 14
	packedInterval = 10 * time.Second
	// queriedHours is how much a long query reads.
	queriedHours = 12
	// packedWarmUps are repeats that do not count, of each query on each side.
	packedWarmUps = 10
)

var packedMetrics = strings.Fields(`cpu_usage_user cpu_usage_system cpu_usage_idle cpu_usage_nice cpu_usage_iowait cpu_usage_irq
	cpu_usage_softirq cpu_usage_steal cpu_usage_guest cpu_usage_guest_nice`)

// side is one of two keyspaces with the same data.
type side struct {
	name   string
	suffix string // of the keyspace
	pack   bool
}

var sides = []side{{name: "flushed"}, {"packed", "_packed", true}}

// bench returns the bench in the side's keyspace.
func (s side) bench(b *bench) *bench {
	c := *b
	c.cluster.keyspace += s.suffix
	return &c
}

// packedMeasurement compares raw samples that were packed each hour with the chunks that flushes wrote: in two
// keyspaces, which are loaded with the same reports and ground, one of them without packing. Queries go to both in turns.
// In the end the flushed chunks, which lie in a compacted SSTable, are packed.
func packedMeasurement() measurement {
	const name = "packed"
	return measurement{
		name: name,
		steps: []step{
			{name: "load-flushed", run: func(ctx context.Context, b *bench) error { return loadSide(ctx, b, sides[0]) }},
			{name: "load-packed", run: func(ctx context.Context, b *bench) error { return loadSide(ctx, b, sides[1]) }},
			{name: "flush", operate: nodetoolOnRaw("flush")},
			{name: "ask", run: askSides},
			{name: "compact", operate: nodetoolOnRaw("compact")},
			{name: "ask-compacted", run: askSides},
			{name: "pack", run: func(ctx context.Context, b *bench) error { return packSide(ctx, b, sides[0]) }},
			{name: "flush-backlog", operate: nodetoolOnRaw("flush")},
			{name: "ask-backlog", run: askSides},
			{name: "garbagecollect", operate: nodetoolOnRaw("garbagecollect")},
		},
		rows: func(r results) []row { return packedRows(r[name]) },
	}
}

func packedRows(f figures) (rows []row) {
	millis := func(x float64) string { return fmt.Sprintf("%.1f ms", x*1000) }
	kilobytes := func(x float64) string { return fmt.Sprintf("%.0f kB", x/1e3) }
	both := func(figure string, format func(float64) string) string {
		return fmt.Sprintf("%s → %s", format(f[figure+".flushed"]), format(f[figure+".packed"]))
	}
	for _, state := range []struct{ step, what string }{{"ask", "before compaction"}, {"ask-compacted", "compacted"}} {
		for i, q := range packedQueries() {
			figure := state.step + "." + q.name
			ratio := f[figure+".flushed"] / f[figure+".packed"]
			what, shown := q.what+", "+state.what, fmt.Sprintf("%s, %.1f times as fast", both(figure, millis), ratio)
			if i == 0 {
				rows = append(rows, judged(what, shown, "≥ 5 times", ratio >= 5, ratio/5))
			} else {
				rows = append(rows, info(what, shown))
			}
		}
	}
	for _, q := range packedQueries() {
		rows = append(rows, info(q.what+": chunks read", both("ask."+q.name+".chunks", count)+"; "+both("ask."+q.name+".bytes", kilobytes)))
	}
	for _, state := range []struct{ step, what string }{{"flush", "before compaction"}, {"compact", "compacted"}} {
		ratio := f[state.step+".packed"] / f[state.step+".flushed"]
		rows = append(rows, judged("SSTables of raw, for each sample, "+state.what, fmt.Sprintf("%s, %.2f ×", both(state.step, bytesEach), ratio),
			"≤ 0.50 ×", ratio <= 0.5, ratio/0.5))
	}
	const background = "packed after the flushed chunks were compacted: "
	first := packedQueries()[0]
	return append(rows,
		info(background+first.what, millis(f["ask-backlog."+first.name+".flushed"])),
		info(background+"SSTables of raw, for each sample", bytesEach(f["flush-backlog.flushed"])),
		info("the same after nodetool garbagecollect", bytesEach(f["garbagecollect.flushed"])),
	)
}

func packedSamples(b *bench) float64 {
	return float64(b.scaled(packedHosts, 2)*len(packedMetrics)) * float64(packedHours*time.Hour/packedInterval)
}

// packedEnd is when loading ends: the last slice is packed, and nothing is open.
func packedEnd() time.Time { return historyStart.Add(packedHours*time.Hour + 5*time.Minute) }

// loadSide has the hosts report under a simulated clock, seals each hour when the grace is over, and grinds it when its
// run is due, as in production.
func loadSide(ctx context.Context, b *bench, s side) (err error) {
	b = s.bench(b)
	if err := applySchema(ctx, b, blockSize); err != nil {
		return err
	}
	clk := clock.NewSimulated(historyStart)
	e, err := openSide(ctx, b, clk, s.pack)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	e.Start(ctx, registry.Options{}, ingest.Options{})

	rng := rand.New(rand.NewPCG(1, 1))
	reports := make([]ingest.Report, b.scaled(packedHosts, 2))
	values := make([]float64, len(reports)*len(packedMetrics))
	for i := range values {
		values[i] = 100 * rng.Float64()
	}
	for h := range reports {
		reports[h].Source = hostName(h)
		for _, name := range packedMetrics {
			reports[h].Measurements = append(reports[h].Measurements, ingest.Measurement{Metric: name})
		}
	}
	p := b.bar(int(packedSamples(b)), "samples loaded")
	defer p.end()
	for at := time.Duration(0); at < packedHours*time.Hour; at += packedInterval {
		clk.Set(historyStart.Add(at))
		for h := range reports {
			for i := range reports[h].Measurements {
				v := &values[h*len(packedMetrics)+i]
				*v = min(100, max(0, *v+rng.NormFloat64()))
				m := &reports[h].Measurements[i]
				m.TimeMs, m.Value = clock.NowMs(clk), float64(int(*v))
			}
		}
		if err := appendAll(ctx, e.Ingest, reports); err != nil {
			return err
		}
		p.add(len(values))
		if err := closeHour(ctx, e, at%time.Hour); err != nil {
			return err
		}
	}
	for _, after := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute} {
		clk.Set(historyStart.Add(packedHours*time.Hour + after))
		if err := closeHour(ctx, e, after); err != nil {
			return err
		}
	}
	return nil
}

// closeHour does what is due so long after the end of an hour: a minute later the grace is over, two minutes later the run
// is due, and five minutes later all has settled and is packed.
func closeHour(ctx context.Context, e *engine.Engine, after time.Duration) error {
	switch after {
	case time.Minute:
		return e.Ingest.Seal(ctx)
	case 2 * time.Minute:
		_, err := e.Runner.RunDue(ctx)
		return err
	case 5 * time.Minute:
		return e.Runner.Pack(ctx)
	}
	return nil
}

// packSide packs what was flushed as an aggregator does between runs.
func packSide(ctx context.Context, b *bench, s side) (err error) {
	e, err := openSide(ctx, s.bench(b), clock.NewSimulated(packedEnd().Add(time.Hour/2)), true)
	if err != nil {
		return err
	}
	return errors.Join(e.Runner.Pack(ctx), e.Close())
}

func hostName(h int) string { return fmt.Sprintf("host_%d", h) }

// openSide is openEngine with what queries need, and with packing or without. Ingest is not started.
func openSide(ctx context.Context, b *bench, clk clock.Clock, pack bool) (*engine.Engine, error) {
	log := slog.New(slog.NewTextHandler(b.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	st, err := openCassandra(ctx, b, clk, log)
	if err != nil {
		return nil, err
	}
	rate := 0
	if pack {
		rate = math.MaxInt
	}
	return engine.New(engine.Options{
		Store: st, Clock: clk, Worker: storage.Worker{ID: worker},
		Rollup: &rollup.Options{Logger: log, Parallel: blocksInFlight, PackRate: rate},
		Late:   &late.Options{Shared: true},
	}), nil
}

var spaceUsed = regexp.MustCompile(`Space used \(live\): (\d+)`)

// nodetoolOnRaw has nodetool work on the raw tables of both sides, and measures the size of their SSTables with all their files,
// for each sample.
func nodetoolOnRaw(command string) func(ctx context.Context, b *bench) error {
	return func(ctx context.Context, b *bench) error {
		for _, s := range sides {
			if err := s.nodetool(ctx, b, command); err != nil {
				return fmt.Errorf("nodetool %s: %w", command, err)
			}
		}
		return nil
	}
}

func (s side) nodetool(ctx context.Context, b *bench, command string) error {
	keyspace := s.bench(b).cluster.keyspace
	if _, err := b.cluster.nodetool(ctx, command, keyspace, "raw_metrics"); err != nil {
		return err
	}
	out, err := b.cluster.nodetool(ctx, "tablestats", keyspace+".raw_metrics")
	if err != nil {
		return err
	}
	found := spaceUsed.FindStringSubmatch(out)
	if found == nil {
		return fmt.Errorf("no size in %q", out)
	}
	bytes, err := strconv.ParseFloat(found[1], 64)
	b.figures[s.name] = bytes / packedSamples(b)
	return err
}

// packedQuery is asked many times. Each time is of another host, or at another time. Times are never full hours, so that rows
// of roll-ups cannot answer.
type packedQuery struct {
	name, what string
	repeats    int
	series     int // of the answer; 0 for one of each host
	span, step time.Duration
	promql     func(i, hosts int) string
}

func packedQueries() []packedQuery {
	one := func(i, hosts int) string {
		return fmt.Sprintf(`max_over_time(%s{source="%s"}[1m])`, packedMetrics[i%len(packedMetrics)], hostName(i*7%hosts))
	}
	return []packedQuery{
		{
			"metric-12h", "one metric of 100 hosts over 12 h by hours", 20, 0, queriedHours * time.Hour, time.Hour,
			func(i, _ int) string {
				return fmt.Sprintf(`avg_over_time(%s[1h])`, packedMetrics[i%len(packedMetrics)])
			},
		},
		{"host-12h", "one metric of one host over 12 h by minutes", 40, 1, queriedHours * time.Hour, time.Minute, one},
		{"host-1h", "one metric of one host over 1 h by minutes", 40, 1, time.Hour, time.Minute, one},
	}
}

// counting counts the raw chunks that are read.
type counting struct {
	query.Store
	chunks, bytes atomic.Int64
}

// RawChunks implements storage.Reader.
func (c *counting) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		for ch, err := range c.Store.RawChunks(ctx, ids, fromMs, toMs) {
			c.chunks.Add(1)
			c.bytes.Add(int64(len(ch.Data)))
			if !yield(ch, err) {
				return
			}
		}
	}
}

// asked is a side that is queried, as by a process that answers queries only.
type asked struct {
	side
	*engine.Engine
	store     *counting
	engine    *promquery.Engine
	queryable *promquery.Queryable
}

func askSide(ctx context.Context, b *bench, s side) (*asked, error) {
	clk := clock.NewSimulated(packedEnd())
	e, err := openSide(ctx, s.bench(b), clk, s.pack)
	if err != nil {
		return nil, err
	}
	a := &asked{side: s, Engine: e, store: &counting{Store: e.Store}}
	index := query.NewIndex()
	if err := index.Refresh(ctx, e.Store); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	a.engine, a.queryable = promquery.New(query.New(query.Parts{
		Store: a.store, Index: index, Settings: e.Store.Settings(), WholeFrom: e.Store.WholeFrom, Clock: clk,
	}, query.Options{Outstanding: e.Recovery.Outstanding, Late: e.Late}), promquery.Options{})
	return a, nil
}

// ask sends a query, whose answer must be whole, and returns the answer as text, and how long it took.
func (a *asked) ask(ctx context.Context, q packedQuery, i, hosts int) (text string, took time.Duration, err error) {
	// The first minutes of what may be asked are as many as there are between the loaded and the queried hours.
	from := historyStart.Add(time.Duration(1+i*37%(int((packedHours*time.Hour-q.span)/time.Minute)-1)) * time.Minute)
	if from.Minute() == 0 {
		from = from.Add(time.Minute)
	}
	began := time.Now()
	p, err := a.engine.NewRangeQuery(ctx, a.queryable, nil, q.promql(i, hosts), from.Add(q.step), from.Add(q.span), q.step)
	if err != nil {
		return "", 0, err
	}
	defer p.Close()
	answer := p.Exec(ctx)
	if answer.Err != nil {
		return "", 0, answer.Err
	}
	took = time.Since(began)
	m, err := answer.Matrix()
	if err != nil {
		return "", 0, err
	}
	series := q.series
	if series == 0 {
		series = hosts
	}
	if len(m) != series || slices.ContainsFunc(m, func(s promql.Series) bool { return len(s.Floats) != int(q.span/q.step) }) {
		return "", 0, fmt.Errorf("%s: %d series, want %d with %d values each", q.promql(i, hosts), len(m), series, q.span/q.step)
	}
	return m.String(), took, nil
}

// askSides asks both sides in turns. They must give the same answers.
func askSides(ctx context.Context, b *bench) (err error) {
	hosts := b.scaled(packedHosts, 2)
	var both []*asked
	defer func() {
		for _, a := range both {
			err = errors.Join(err, a.Close())
		}
	}()
	for _, s := range sides {
		a, err := askSide(ctx, b, s)
		if err != nil {
			return err
		}
		both = append(both, a)
	}
	for _, q := range packedQueries() {
		b.progress("%s", q.what)
		took := make(map[string][]float64)
		for i := range packedWarmUps + q.repeats {
			var first string
			for turn := range both {
				a := both[(i+turn)%len(both)]
				if i == packedWarmUps {
					a.store.chunks.Store(0)
					a.store.bytes.Store(0)
				}
				answer, d, err := a.ask(ctx, q, i, hosts)
				if err != nil {
					return fmt.Errorf("%s: %w", a.name, err)
				}
				if turn == 0 {
					first = answer
				} else if answer != first {
					return fmt.Errorf("%s: flushed and packed chunks give different answers", q.promql(i, hosts))
				}
				if i >= packedWarmUps {
					took[a.name] = append(took[a.name], d.Seconds())
				}
			}
		}
		for _, a := range both {
			slices.Sort(took[a.name])
			b.figures[q.name+"."+a.name] = took[a.name][len(took[a.name])/2]
			b.figures[q.name+".chunks."+a.name] = float64(a.store.chunks.Load()) / float64(q.repeats)
			b.figures[q.name+".bytes."+a.name] = float64(a.store.bytes.Load()) / float64(q.repeats)
		}
	}
	return nil
}
