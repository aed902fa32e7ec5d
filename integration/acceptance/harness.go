// Package acceptance tests what Quern promises: reports go in through the real ingest, time passes
// on a simulated clock, and the real runs grind. Then the contents of the tables are compared with
// what the acknowledged samples require.
//
// Each case runs on every store (Run). Cases that a reader should be able to check by hand are
// scripts in testdata. Sweeps over every step, and random histories, are in Go. Files are named
// after what happens in them. CONTRIBUTING.md lists the behaviours with their numbers and tests.
// Only tests import this package.
package acceptance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// Backend is a kind of store, with its properties that matter to tests.
type Backend struct {
	Open OpenFunc
	// Stride is the number of steps by which a sweep advances, for stores with slow steps. The
	// default is 7, or 1 with -acceptance.whole.
	Stride int
	// Believes says that the store believes any clock, as the model does. The model defines the
	// right results only where the clock is right.
	Believes bool
	// ManyWriters says that several processes may open the store at once, and that only clocks
	// order their writes. So a correction may lose after a restart under a clock that has gone
	// back. Heartbeats and leases end by the store's own time.
	ManyWriters bool
}

// OpenFunc prepares a place for one new store with the given settings. The returned function opens
// the store there. Its first call creates the store. Each later call reopens it, as a restarted
// process would, after the store was closed.
type OpenFunc func(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) (open func() storage.Store)

// Config holds the settings of a System.
type Config struct {
	// Start is the clock's first time. Scripts count from the midnight before.
	Start time.Time
	// Ladder is the ladder of roll-ups. The default is 1h,6h,24h.
	Ladder metric.Ladder
	// BlockSize, GroupSize and IndexPartitions default to 4 each, so that a handful of schedules
	// makes several blocks.
	BlockSize, GroupSize, IndexPartitions int
	// Timing defaults to that of package cache.
	Timing cache.Timing
	// AgeCap defaults to 24h.
	AgeCap time.Duration
	// Retention defaults to for ever.
	Retention storage.Retention
	// Parallel is the number of blocks ground at once. The default is 1, which makes the order of
	// steps repeatable.
	Parallel int
	// Unpacked says that raw chunks stay as they were written.
	Unpacked bool
	// LeaseSize is the number of ids leased at a time. The default is 16.
	LeaseSize int
	// Logger discards by default.
	Logger *slog.Logger
}

// defaultStart is noon of an ordinary day.
var defaultStart = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

func (c *Config) ensureDefaults() {
	if c.Start.IsZero() {
		c.Start = defaultStart
	}
	if c.Ladder.Top() == 0 {
		c.Ladder = metric.DefaultLadder()
	}
	for _, n := range []*int{&c.BlockSize, &c.GroupSize, &c.IndexPartitions} {
		if *n == 0 {
			*n = 4
		}
	}
	if c.Timing == (cache.Timing{}) {
		c.Timing = cache.DefaultTiming()
	}
	if c.AgeCap == 0 {
		c.AgeCap = 24 * time.Hour
	}
	if c.Parallel == 0 {
		c.Parallel = 1
	}
	if c.LeaseSize == 0 {
		c.LeaseSize = 16
	}
}

// System is one process of Quern on a store. Everything but the clock is real.
type System struct {
	t           testing.TB
	cfg         Config
	open        func() storage.Store
	scope       scope // lives as long as the store
	manyWriters bool
	life        int    // counts the restarts
	peers       uint64 // counts the other processes

	Clock  *clock.Simulated
	Store  *storagetest.Faulty
	Steps  Steps
	Oracle *Oracle

	tables *tables
	engine *engine.Engine
	up     bool
	// astray: the clock has jumped, and the servers of a cluster do not know it.
	astray bool
	// first is the earliest time, in Unix ms, that tests look at.
	first int64
}

// Start returns a system on a new store. It is closed when the test ends.
func Start(t testing.TB, b Backend, cfg Config) *System {
	t.Helper()
	cfg.ensureDefaults()
	s := &System{t: t, cfg: cfg, manyWriters: b.ManyWriters, Clock: clock.NewSimulated(cfg.Start), Oracle: newOracle(cfg.Ladder)}
	s.first = cfg.Start.Add(-72 * time.Hour).UnixMilli()
	s.scope.TB = t
	s.open = b.Open(&s.scope, storage.Settings{
		Ladder: cfg.Ladder, GroupSize: cfg.GroupSize, IndexPartitions: cfg.IndexPartitions,
		Epochs: blocks.Epochs{{FromMs: 0, BlockSize: cfg.BlockSize}},
	}, cfg.Retention, s.Clock)
	s.start()
	t.Cleanup(s.End)
	return s
}

// scope is a testing.TB whose cleanups may run before the test's end.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup implements testing.TB.
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}

func (s *System) start() {
	s.life++
	st := s.open()
	if !s.astray && s.life > 1 { // a new store takes any clock, and tests set it first
		s.accept(st)
	}
	s.tables = &tables{Store: st, astray: func() bool { return s.astray && s.manyWriters }}
	s.Store = storagetest.NewFaulty(s.tables)
	s.Steps = Steps{s.Store, st}
	s.build()
	if s.astray {
		s.beat()
	}
}

func (s *System) build() {
	s.engine = s.cfg.engine(engine.Options{
		Store: s.Store, Clock: s.Clock, Writer: uint64(s.life),
		Worker: storage.Worker{ID: "worker", Aggregates: true}, Timeout: 24 * time.Hour,
		Late: &late.Options{},
	})
	s.startIngest(s.engine)
	s.up = true
}

// engine returns an engine with these settings.
func (c *Config) engine(o engine.Options) *engine.Engine {
	o.Policy = storage.Policy{Grace: c.Timing.Grace, Delay: c.Timing.Delay, AgeCap: c.AgeCap}
	o.Rollup = &rollup.Options{Parallel: c.Parallel, Logger: c.Logger}
	if !c.Unpacked {
		o.Rollup.PackRate = math.MaxInt
	}
	return engine.New(o)
}

func (s *System) startIngest(e *engine.Engine) {
	e.Start(context.WithoutCancel(s.t.Context()), registry.Options{LeaseSize: s.cfg.LeaseSize}, ingest.Options{Logger: s.cfg.Logger})
}

// Stop ends the process in order.
func (s *System) Stop() {
	if !s.up {
		return
	}
	s.up = false
	require.NoError(s.t, s.engine.Close())
}

// End ends the process and releases its store. A test that starts many systems ends each, so that
// their stores do not all exist at once.
func (s *System) End() {
	s.Stop()
	s.scope.end()
}

// Restart ends the process, or what a crash left of it, and starts a new one on the same store. The
// new process shares no memory with the old one, and no faults. It takes a second.
func (s *System) Restart() {
	s.Stop()
	s.Advance(time.Second)
	s.start()
}

// JumpClock sets the clock to t without time passing. right says that t is the correct time.
func (s *System) JumpClock(t time.Time, right bool) {
	s.Clock.Jump(t.Sub(s.Clock.Now()))
	s.astray = !right
	if s.up {
		s.beat()
	}
}

// beat makes the worker check its clock, as it does regularly. If the clock is wrong, the worker
// takes no part.
func (s *System) beat() { _ = s.engine.Member.Beat(s.t.Context()) }

// AcceptClock has a new process start on the word of an operator that the clock is right.
func (s *System) AcceptClock() {
	s.t.Helper()
	s.astray = false
	s.Restart()
}

// accept does what a start with --accept-clock does, if the store refuses the clock: an operator gives the flag then.
func (s *System) accept(st storage.Store) {
	if gated, ok := st.(interface {
		ClockRefused() error
		AcceptClock(ctx context.Context) error
	}); ok && gated.ClockRefused() != nil {
		require.NoError(s.t, gated.AcceptClock(context.WithoutCancel(s.t.Context())))
	}
}

// Advance moves the clock forward; see SetClock.
func (s *System) Advance(d time.Duration) { s.SetClock(s.Clock.Now().Add(d)) }

// SetClock moves the clock to t. Whenever the grace of a slice passes on the way, ingest seals its
// blocks, as in the server. A failed seal does not stop SetClock: only the cost of the run depends
// on it. A test that blocks ingest itself must move Clock instead.
func (s *System) SetClock(t time.Time) {
	for s.up {
		slice := s.cfg.Ladder.SliceAt(metric.Raw, s.Clock.Now().Add(-s.cfg.Timing.Grace).UnixMilli())
		closes := time.UnixMilli(slice.EndMs).Add(s.cfg.Timing.Grace)
		if closes.After(t) {
			break
		}
		s.Clock.Set(closes)
		_ = s.engine.Ingest.Seal(s.t.Context())
	}
	if t.After(s.Clock.Now()) { // sealing may have taken long
		s.Clock.Set(t)
	}
}

// at returns a time of the first day, in Unix ms.
func at(s *System, hour, minute int) int64 {
	return s.cfg.Start.Truncate(24 * time.Hour).Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute).UnixMilli()
}

// setClock moves the clock to hour:minute of the first day. Hours beyond 23 are on later days.
func (s *System) setClock(hour, minute int) { s.SetClock(time.UnixMilli(at(s, hour, minute))) }

func (s *System) point(series string, hour, minute int, v float64) Point {
	return Point{Series: series, TimeMs: at(s, hour, minute), Value: v}
}

// Point is one measurement of a schedule, which is named by its metric.
type Point struct {
	Series string
	TimeMs int64
	Value  float64
}

// source is the source of all reports here.
const source = "host"

// Report reports the points in one call and tells the oracle the outcome.
func (s *System) Report(points ...Point) (ingest.Result, error) {
	return s.reportTo(s.engine.Ingest, points)
}

func (s *System) reportTo(in *ingest.Ingest, points []Point) (ingest.Result, error) {
	s.Advance(time.Millisecond) // no two reports at the same time, so that ids give their order
	rep := ingest.Report{Source: source}
	for _, p := range points {
		rep.Measurements = append(rep.Measurements, ingest.Measurement{Metric: p.Series, TimeMs: p.TimeMs, Value: p.Value})
	}
	res, err := in.Append(s.t.Context(), []ingest.Report{rep})
	rejected := map[int]bool{}
	for _, r := range res.Rejected {
		rejected[r.Index] = true
	}
	for i, p := range points {
		switch {
		case err != nil:
			s.Oracle.Tried(p)
		case !rejected[i]:
			s.Oracle.Acknowledged(p)
		}
	}
	return res, err
}

// MustReport reports points, all of which must be accepted.
func (s *System) MustReport(points ...Point) {
	s.t.Helper()
	res, err := s.Report(points...)
	require.NoError(s.t, err)
	require.Empty(s.t, res.Rejected)
}

// Run runs every slice that is due and returns the records of the runs.
func (s *System) Run() ([]storage.Run, error) {
	s.Store.Forget()
	_ = s.tables.takeRuns()
	_, err := s.engine.Runner.RunDue(s.t.Context())
	return s.tables.takeRuns(), err
}

// MustRun runs every slice that is due.
func (s *System) MustRun() []storage.Run {
	s.t.Helper()
	runs, err := s.Run()
	require.NoError(s.t, err)
	return runs
}

// pack packs the raw chunks of slices that are over.
func (s *System) pack() error { return s.engine.Runner.Pack(s.t.Context()) }

// Drain lets time pass, runs what becomes due and packs what has settled, until nothing can be outstanding. That takes the
// length of the longest slice for each level that late data may have to climb.
func (s *System) Drain() {
	s.t.Helper()
	step := time.Duration(s.cfg.Ladder.WidthMs(1)) * time.Millisecond
	for range int(s.cfg.Ladder.Top()) + 1 {
		end := s.cfg.Ladder.SliceAt(s.cfg.Ladder.Top()-1, clock.NowMs(s.Clock)).EndMs
		for clock.NowMs(s.Clock) < end {
			s.Advance(step)
			s.MustRun()
			require.NoError(s.t, s.pack())
		}
		s.SetClock(time.UnixMilli(end).Add(s.cfg.Timing.Delay))
		s.MustRun()
	}
}

// DrainAndCheck drains the system. Then all rows must match the raw samples, and nothing may be left
// (see Leftovers).
func (s *System) DrainAndCheck() {
	s.t.Helper()
	s.Drain()
	s.MustCheck(Raw)
	require.Empty(s.t, s.Leftovers())
}

// toNextDue sets the clock to when the next open slice is due. It returns false if none is open.
func (s *System) toNextDue() bool {
	s.t.Helper()
	next := int64(0)
	for _, b := range s.cfg.Ladder.Ground() {
		for _, st := range s.Slices(b) {
			if end := s.cfg.Ladder.SliceAt(b, st.StartMs).EndMs; !st.Complete && (next == 0 || end < next) {
				next = end
			}
		}
	}
	if next == 0 {
		return false
	}
	s.SetClock(time.UnixMilli(next).Add(s.cfg.Timing.Delay))
	return true
}

// Settle lets time pass, and runs what becomes due, until no slice is open. If nothing is wrong, it
// has the effect of Drain in far fewer runs.
func (s *System) Settle() {
	s.t.Helper()
	for range 100 {
		s.MustRun()
		if !s.toNextDue() {
			return
		}
	}
	require.Fail(s.t, "slices stay open")
}

// timesMs returns the range of times that a test may use, in Unix ms. Without it, a store with
// partitions by day would be asked for all days since 1970.
func (s *System) timesMs() (fromMs, toMs int64) {
	return s.first, s.Clock.Now().Add(48 * time.Hour).UnixMilli()
}

// inspect returns the store without counting and faults.
func (s *System) inspect() storage.Store { return s.Steps.past }

// IDs returns the schedule ids by name.
func (s *System) IDs() map[string]metric.ScheduleID {
	out := map[string]metric.ScheduleID{}
	for sch, err := range s.inspect().SourceSchedules(s.t.Context(), source) {
		require.NoError(s.t, err)
		out[sch.Labels.Get(metric.NameLabel)] = sch.ID
	}
	return out
}

func (s *System) names() map[metric.ScheduleID]string {
	out := map[metric.ScheduleID]string{}
	for name, id := range s.IDs() {
		out[id] = name
	}
	return out
}

func (s *System) allIDs() blocks.Range {
	r, err := s.inspect().LeasedIDs(s.t.Context())
	require.NoError(s.t, err)
	return r
}

// Rows returns the rows of a level, by schedule and time, as readers see them: a row without
// samples counts as no row.
func (s *System) Rows(level metric.Bucket) []metric.RollupRow {
	return slices.DeleteFunc(s.storedRows(level), func(r metric.RollupRow) bool { return r.Count == 0 })
}

func (s *System) storedRows(level metric.Bucket) []metric.RollupRow {
	from, to := s.timesMs()
	var out []metric.RollupRow
	for row, err := range s.inspect().Rollups(s.t.Context(), level, s.allIDs(), from, to) {
		require.NoError(s.t, err)
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b metric.RollupRow) int {
		if a.Schedule != b.Schedule {
			return int(a.Schedule - b.Schedule)
		}
		return int(a.TimeMs - b.TimeMs)
	})
	return out
}

// Slices returns all slices of a bucket that were opened.
func (s *System) Slices(b metric.Bucket) []storage.SliceState {
	from, to := s.timesMs()
	out, err := s.inspect().Slices(s.t.Context(), b, from, to)
	require.NoError(s.t, err)
	return out
}

// PlacedMark is a mark with its place. Complete says that no run will look there again.
type PlacedMark struct {
	storage.PlacedMark
	Slice    metric.Slice
	Complete bool
}

// Marks returns all marks of a bucket, by slice, block and time.
func (s *System) Marks(b metric.Bucket) []PlacedMark {
	var out []PlacedMark
	for _, state := range s.Slices(b) {
		for shard := range s.cfg.IndexPartitions {
			p := storage.IndexPartition{SliceKey: state.SliceKey, Shard: shard}
			for m, err := range s.inspect().Marks(s.t.Context(), p, storage.MarkKey{}, 0) {
				require.NoError(s.t, err)
				out = append(out, PlacedMark{
					PlacedMark: storage.PlacedMark{Partition: p, Mark: m},
					Slice:      s.cfg.Ladder.SliceAt(b, state.StartMs), Complete: state.Complete,
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b PlacedMark) int {
		if a.Slice != b.Slice {
			return int(a.Slice.StartMs - b.Slice.StartMs)
		}
		if a.Start != b.Start {
			return int(a.Start - b.Start)
		}
		return int(a.TimeMs - b.TimeMs)
	})
	return out
}

// CacheBlock is a non-empty partition of the cache.
type CacheBlock struct {
	storage.CacheKey
	Chunks []storage.Chunk
}

// CacheBlocks returns all non-empty partitions of the cache. The contract cannot list them, so it
// tries every key that a block of any epoch can have.
func (s *System) CacheBlocks(b metric.Bucket) []CacheBlock {
	starts := map[metric.ScheduleID]bool{}
	for _, e := range s.inspect().Settings().Epochs {
		for _, id := range s.IDs() {
			starts[blocks.BlockAt(id, e.BlockSize).Start] = true
		}
	}
	var out []CacheBlock
	for _, state := range s.Slices(b) {
		for _, start := range slices.Sorted(maps.Keys(starts)) {
			k := storage.CacheKey{SliceKey: state.SliceKey, Start: start}
			chunks, err := s.inspect().CacheBlock(s.t.Context(), k)
			require.NoError(s.t, err)
			if len(chunks) > 0 {
				out = append(out, CacheBlock{k, chunks})
			}
		}
	}
	return out
}

// DeleteCache empties the cache, as if it had been lost.
func (s *System) DeleteCache() {
	for _, b := range s.cfg.Ladder.Ground() {
		for _, c := range s.CacheBlocks(b) {
			require.NoError(s.t, s.inspect().DeleteCacheBlock(s.t.Context(), 0, c.CacheKey))
		}
	}
}

// DamageCache flips a bit in every chunk of the cache.
func (s *System) DamageCache() {
	for _, b := range s.cfg.Ladder.Ground() {
		for _, c := range s.CacheBlocks(b) {
			batch := &storage.Batch{}
			for _, ch := range c.Chunks {
				ch.Data[len(ch.Data)/2] ^= 0x10
				batch.Cache = append(batch.Cache, storage.CacheChunk{CacheKey: c.CacheKey, Chunk: ch})
			}
			require.NoError(s.t, s.inspect().Write(s.t.Context(), batch))
		}
	}
}

// SetBlockSize adds an epoch.
func (s *System) SetBlockSize(n int, from time.Time) {
	require.NoError(s.t, s.inspect().AddEpoch(s.t.Context(), blocks.Epoch{FromMs: from.UnixMilli(), BlockSize: n}))
}

// RawSamples returns the merged samples of the raw table, by schedule and time.
func (s *System) RawSamples() []metric.Sample {
	from, to := s.timesMs()
	type key struct {
		id metric.ScheduleID
		ms int64
	}
	type value struct {
		v  float64
		id blocks.ID
	}
	merged := map[key]value{}
	for ch, err := range s.inspect().RawChunks(s.t.Context(), s.allIDs(), from, to) {
		require.NoError(s.t, err)
		samples, err := blocks.DecodeSamples(nil, ch.Data)
		require.NoError(s.t, err)
		for _, sm := range samples {
			k := key{sm.Schedule, sm.TimeMs}
			if was, ok := merged[k]; !ok || was.id.Compare(ch.ID) < 0 {
				merged[k] = value{sm.Value, ch.ID}
			}
		}
	}
	out := make([]metric.Sample, 0, len(merged))
	for k, v := range merged {
		out = append(out, metric.Sample{Schedule: k.id, TimeMs: k.ms, Value: v.v})
	}
	slices.SortFunc(out, metric.CompareSamples)
	return out
}

// Dump returns the contents of all tables that aggregation leaves behind, as text. Two stores, or
// two ways to the same end, must agree on it. Equal marks are listed once, since a crash may double
// a mark.
func (s *System) Dump() string {
	var sb strings.Builder
	l := s.cfg.Ladder
	for _, level := range l.Levels() {
		for _, r := range s.storedRows(level) {
			fmt.Fprintf(&sb, "row %s %d %s n=%d sum=%v min=%v max=%v first=%v last=%v increase=%v sketch=%x partial=%t\n",
				l.Name(level), r.Schedule, l.SliceAt(level-1, r.TimeMs), r.Count, r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase, r.Sketch, r.Partial)
		}
	}
	for _, b := range l.Ground() {
		seen := map[string]bool{}
		for _, m := range s.Marks(b) {
			line := fmt.Sprintf("mark %s %s block %d of %s %s %v attempt %d due %d\n",
				l.Name(b), m.Slice, m.Start, l.SliceAt(b, m.TimeMs), m.Kind, m.Schedules, m.Attempt, m.DueMs)
			if !seen[line] {
				sb.WriteString(line)
			}
			seen[line] = true
		}
		for _, c := range s.CacheBlocks(b) {
			fmt.Fprintf(&sb, "cache %s %s block %d\n", l.Name(b), l.SliceAt(b, c.StartMs), c.Start)
		}
		for _, st := range s.Slices(b) {
			fmt.Fprintf(&sb, "slice %s %s complete=%t\n", l.Name(b), l.SliceAt(b, st.StartMs), st.Complete)
		}
	}
	for _, sm := range s.RawSamples() {
		fmt.Fprintf(&sb, "raw %d %d %v\n", sm.Schedule, sm.TimeMs, sm.Value)
	}
	return sb.String()
}
