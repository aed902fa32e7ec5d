// Package acceptance holds Quern to what it promises: reports go in through the real
// ingest, time passes on a simulated clock, the real runs grind, and what rests in the
// tables in the end is compared with what the acknowledged samples say it must be.
//
// Each case runs on every store (Run). The cases that a reader should be able to check
// by hand are scripts in testdata; what sweeps over every step of something, or makes up
// histories, is in Go. Only tests import this package.
package acceptance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/late"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// Backend is a kind of store, and what is to be known of it to test it.
type Backend struct {
	Open OpenFunc
	// Stride is how many steps a sweep goes on at a time, for stores where each takes long. The
	// default is 1, each step, or 7 under the race detector.
	Stride int
	// Believes says that the store believes any clock, as the model does: it says what is right where the clock is.
	Believes bool
	// Sample has each sweep take one of its variants, and of that a few steps, which the seed picks, unless
	// -acceptance.stride is given.
	Sample bool
	// Histories is how many histories are made up. The default is 16, or 6 under the race detector.
	Histories int
	// ManyWriters says that several processes may have the store open at once, and only clocks order
	// what they write: after a restart under a clock that has gone back, a correction may lose. Heartbeats
	// and leases end by the store's own time.
	ManyWriters bool
}

// OpenFunc makes a place for one new store with the given settings. What it returns
// opens the store there: first to create it, and again, each time after the one before
// was closed, as a restarted process would.
type OpenFunc func(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) (open func() storage.Store)

// Config is what a System is made with.
type Config struct {
	// Start is where the clock starts, and Day the midnight that scripts count from.
	Start time.Time
	// Ladder, the default is 1h,6h,24h.
	Ladder metric.Ladder
	// BlockSize, GroupSize and IndexPartitions; the defaults are 4, 4 and 4, so that a
	// handful of schedules makes several blocks.
	BlockSize, GroupSize, IndexPartitions int
	// Timing, the default is that of package cache.
	Timing cache.Timing
	// AgeCap, the default is 24h.
	AgeCap time.Duration
	// Retention, the default is for ever.
	Retention storage.Retention
	// Parallel is the number of blocks ground at once. The default is 1, which makes
	// the order of steps the same every time.
	Parallel int
	// LeaseSize is the number of ids leased at a time; the default is 16.
	LeaseSize int
	// Logger, the default discards.
	Logger *slog.Logger
}

// Noon of a day without anything special about it.
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

// System is one process of Quern on a store, with everything real but the clock.
type System struct {
	t           testing.TB
	cfg         Config
	open        func() storage.Store
	scope       scope // of the store
	manyWriters bool
	life        int    // counts the restarts
	peers       uint64 // counts the other processes

	Clock  *clock.Simulated
	Store  *storagetest.Faulty
	Steps  Steps
	Oracle *Oracle

	tables *tables
	reg    *registry.Registry
	cache  *cache.Cache
	ingest *ingest.Ingest
	member *shards.Member
	runner *rollup.Runner
	up     bool
	// astray: the clock has jumped, and the servers of a cluster do not know of it.
	astray bool
	// recovery is the runner's, late what queries are told of late data.
	recovery *recovery.Recovery
	late     *late.Tracker
	// first is the time from which on there may be anything.
	first int64
}

// Start makes a system on a new store. It is closed when the test ends.
func Start(t testing.TB, b Backend, cfg Config) *System {
	t.Helper()
	cfg.ensureDefaults()
	s := &System{t: t, cfg: cfg, manyWriters: b.ManyWriters, Clock: clock.NewSimulated(cfg.Start), Oracle: NewOracle(cfg.Ladder)}
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

// scope is what lasts until it ends, where that is before the test's end.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup is of testing.TB.
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
	s.tables = &tables{Store: st, astray: func() bool { return s.astray && s.manyWriters }}
	s.Store = storagetest.NewFaulty(s.tables)
	s.Steps = stepsOf(st, s.Store)
	s.build()
	if s.astray {
		s.beat()
	}
}

func (s *System) build() {
	s.cache = cache.New(s.Store, s.Clock, uint64(s.life), s.cfg.Timing)
	s.reg = registry.New(s.Store, registry.Options{LeaseSize: s.cfg.LeaseSize})
	s.ingest = ingest.Start(context.WithoutCancel(s.t.Context()), s.Store, s.reg, s.cache, s.Clock, ingest.Options{
		AgeCap: s.cfg.AgeCap, Logger: s.cfg.Logger,
	})
	s.member = shards.New(s.Store, s.Clock, storage.Worker{ID: "worker", Aggregates: true}, 24*time.Hour)
	s.recovery = recovery.New(s.Store, s.cache, s.Clock, recovery.Options{AgeCap: s.cfg.AgeCap})
	s.late = late.New(s.Store, s.Clock, late.Options{Outstanding: s.recovery.Outstanding})
	s.cache.OnLate(s.late.Note)
	s.runner = rollup.NewRunner(s.Store, s.member, s.cache, s.recovery, s.Clock, rollup.Options{Parallel: s.cfg.Parallel, Logger: s.cfg.Logger})
	s.up = true
}

// Stop ends the process in order.
func (s *System) Stop() {
	if !s.up {
		return
	}
	s.up = false
	require.NoError(s.t, s.ingest.Close())
	require.NoError(s.t, s.Store.Close())
}

// End ends the process and gives its store back. A test that starts many systems ends each, rather than have
// all their stores at once.
func (s *System) End() {
	s.Stop()
	s.scope.end()
}

// Restart ends the process, or what a crash left of it, and starts a new one on the
// same store. Nothing of its memory is carried over, faults included. It takes a second.
func (s *System) Restart() {
	s.Stop()
	s.Advance(time.Second)
	s.start()
}

// JumpClock sets the clock to t, without any time passing. right says that this is what it should be.
func (s *System) JumpClock(t time.Time, right bool) {
	s.Clock.Jump(t.Sub(s.Clock.Now()))
	s.astray = !right
	if s.up {
		s.beat()
	}
}

// beat has the worker look at its clock, as it does now and again. What it finds it says itself, by taking no part.
func (s *System) beat() { _ = s.member.Beat(s.t.Context()) }

// ConfirmClock has a store that doubts a clock that has jumped, as after an outage of days, believe it.
func (s *System) ConfirmClock() {
	s.t.Helper()
	if s.astray {
		s.astray = false
		s.beat()
	}
	if keeper, ok := s.inspect().(interface {
		ConfirmClock(ctx context.Context) error
	}); ok {
		require.NoError(s.t, keeper.ConfirmClock(s.t.Context()))
	}
}

// Advance moves the clock on; see SetClock.
func (s *System) Advance(d time.Duration) { s.SetClock(s.Clock.Now().Add(d)) }

// SetClock moves the clock to t. Whenever the grace of a slice passes on the way, ingest seals
// what it wrote to it, as the server lets it. That this fails is no reason to stop: nothing
// relies on it but the cost. A test that holds up ingest itself must move Clock instead.
func (s *System) SetClock(t time.Time) {
	for s.up {
		slice := s.cfg.Ladder.SliceAt(metric.Raw, s.Clock.Now().Add(-s.cfg.Timing.Grace).UnixMilli())
		closes := time.UnixMilli(slice.EndMs).Add(s.cfg.Timing.Grace)
		if closes.After(t) {
			break
		}
		s.Clock.Set(closes)
		_ = s.ingest.Seal(s.t.Context())
	}
	if t.After(s.Clock.Now()) { // sealing may have taken long
		s.Clock.Set(t)
	}
}

// Point is one measurement of a schedule, named by its metric.
type Point struct {
	Series string
	TimeMs int64
	Value  float64
}

// source is who reports everything here.
const source = "host"

// Report reports the points in one call and tells the oracle what became of them.
func (s *System) Report(points ...Point) (ingest.Result, error) { return s.reportTo(s.ingest, points) }

func (s *System) reportTo(in *ingest.Ingest, points []Point) (ingest.Result, error) {
	s.Advance(time.Millisecond) // no two reports at the same moment, so that ids tell their order
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

// MustReport reports points of which all must be taken.
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
	_, err := s.runner.RunDue(s.t.Context())
	return s.tables.takeRuns(), err
}

// MustRun runs every slice that is due.
func (s *System) MustRun() []storage.Run {
	s.t.Helper()
	runs, err := s.Run()
	require.NoError(s.t, err)
	return runs
}

// Drain lets time pass, running what becomes due, until nothing can be outstanding: as
// long as the longest slice takes, for every level that late data may have to climb.
func (s *System) Drain() {
	s.t.Helper()
	step := time.Duration(s.cfg.Ladder.WidthMs(1)) * time.Millisecond
	for range int(s.cfg.Ladder.Top()) + 1 {
		end := s.cfg.Ladder.SliceAt(s.cfg.Ladder.Top()-1, clock.NowMs(s.Clock)).EndMs
		for clock.NowMs(s.Clock) < end {
			s.Advance(step)
			s.MustRun()
		}
		s.SetClock(time.UnixMilli(end).Add(s.cfg.Timing.Delay))
		s.MustRun()
	}
}

// Settle lets time pass, running what becomes due, until no slice is open. It does what Drain does where
// nothing is wrong, in far fewer runs.
func (s *System) Settle() {
	s.t.Helper()
	for range 100 {
		s.MustRun()
		next := int64(0)
		for _, b := range s.cfg.Ladder.Ground() {
			for _, st := range s.Slices(b) {
				if end := s.cfg.Ladder.SliceAt(b, st.StartMs).EndMs; !st.Complete && (next == 0 || end < next) {
					next = end
				}
			}
		}
		if next == 0 {
			return
		}
		s.SetClock(time.UnixMilli(next).Add(s.cfg.Timing.Delay))
	}
	require.Fail(s.t, "slices stay open")
}

// The range of times that can hold anything in a test: a store with partitions by day
// is not asked about all days since 1970.
func (s *System) timesMs() (fromMs, toMs int64) {
	return s.first, s.Clock.Now().Add(48 * time.Hour).UnixMilli()
}

// inspect is a look at the tables past the counting and failing.
func (s *System) inspect() storage.Store { return s.Steps.Past() }

// IDs are the schedule ids by name.
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

// Rows are the rows of a level, by schedule and time, as a reader sees them: one without
// samples stands for no row.
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

// Slices are all slices of a bucket that were opened.
func (s *System) Slices(b metric.Bucket) []storage.SliceState {
	from, to := s.timesMs()
	out, err := s.inspect().Slices(s.t.Context(), b, from, to)
	require.NoError(s.t, err)
	return out
}

// PlacedMark is a mark, where it lies, and whether a run will still look there.
type PlacedMark struct {
	storage.PlacedMark
	Slice    metric.Slice
	Complete bool
}

// Marks are all marks of a bucket, by slice, block and time.
func (s *System) Marks(b metric.Bucket) []PlacedMark {
	var out []PlacedMark
	for _, state := range s.Slices(b) {
		for shard := range s.cfg.IndexPartitions {
			p := storage.IndexPartition{SliceKey: state.SliceKey, Shard: shard}
			for m, err := range s.inspect().Marks(s.t.Context(), p) {
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

// CacheBlock is a partition of the cache that is not empty.
type CacheBlock struct {
	storage.CacheKey
	Chunks []storage.Chunk
}

// CacheBlocks are all partitions of the cache that are not empty. The contract has no listing
// of them, so every key is tried that a block of any epoch can have.
func (s *System) CacheBlocks(b metric.Bucket) []CacheBlock {
	starts := map[metric.ScheduleID]bool{}
	for _, e := range s.inspect().Settings().Epochs {
		for _, id := range s.IDs() {
			starts[blocks.Of(id, e.BlockSize).Start] = true
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

// RawSamples are what the raw table holds, merged, by schedule and time.
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

// Dump is the content of all tables that aggregation leaves behind, as text: what two
// stores, or two ways to the same end, must agree on. Marks that say the same are one:
// which of them a crash has doubled is no difference.
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
