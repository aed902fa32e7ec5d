package acceptance

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// fleet is a made-up life of two ingest processes and three aggregators over one store, where the last write wins.
// While one of them stalls at a step, the others go on.
type fleet struct {
	*System
	journal
	r      *rand.Rand
	stores *lastWriteWins
	// away is which part of the blocks and buckets is out of reach, of parts; none says that nothing is.
	away int
	// now is the right time.
	now     time.Time
	members []*member
	// depth counts the members that stall at a step.
	depth int
	// jumps says that clocks go ahead by hours. Otherwise they are wrong by as much as they may be.
	jumps bool
	// used are the times that no further sample may have.
	used map[int64]bool
}

// member is a process of a fleet.
type member struct {
	name       string
	n          int
	aggregates bool
	skew       time.Duration
	clk        *clock.Simulated
	store      *storagetest.Faulty
	blocks     *storagetest.Apart
	engine     *engine.Engine
	// busy: a call of it is under way.
	busy bool
	life int
	// sealedMs is the slice that it is in, as of its last seal.
	sealedMs int64
}

// TestFleetAtRandom: processes stall, die and fail at any step of others; their clocks differ, and jump; ranges of the
// store are away; the block size changes, samples are deleted, rows are computed again. In the end each row is what raw
// says.
func TestFleetAtRandom(t *testing.T) {
	lives(t, 60, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 77))
		var stores lastWriteWins
		s := Start(t, Backend{ManyWriters: true, Believes: true, Open: stores.open}, variety(r, Config{AgeCap: 40 * time.Hour, BlockSize: 1 + r.IntN(5)}))
		s.first = s.Clock.Now().Add(-100 * time.Hour).UnixMilli()
		f := &fleet{
			System: s, r: r, stores: &stores, away: none, now: s.Clock.Now(),
			jumps: r.IntN(3) == 0, used: make(map[int64]bool),
		}
		f.journal.now = func() time.Time { return f.now }
		most := float64(storage.Policy{Grace: s.cfg.Timing.Grace, Delay: s.cfg.Timing.Delay}.MaxClockSkew())
		for i, name := range []string{"I1", "I2", "W1", "W2", "W3"} {
			m := &member{name: name, n: i + 1, aggregates: i >= 2, skew: time.Duration(most * (r.Float64()*1.9 - 0.95))}
			f.members = append(f.members, m)
			f.begin(m)
		}
		for range 30 + r.IntN(60) {
			f.act()
		}
		f.end()
		problems := s.Check(Raw)
		for _, l := range s.Leftovers() {
			if strings.HasSuffix(l, "is open") {
				problems = append(problems, l)
			}
		}
		f.report(t, problems)
	})
}

// journal is what happened in a life. It is printed if the life fails.
type journal struct {
	lines []string
	now   func() time.Time
}

func (j *journal) note(format string, args ...any) {
	j.lines = append(j.lines, j.now().UTC().Format("01-02 15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (j *journal) report(t *testing.T, problems []string) {
	t.Helper()
	if len(problems) == 0 {
		return
	}
	t.Log(strings.Join(j.lines, "\n"))
	t.Error(strings.Join(problems, "\n"))
}

// lives runs the lives of n seeds, or of as many as -acceptance.seeds says, from -acceptance.seed on.
func lives(t *testing.T, n int, live func(*testing.T, uint64)) {
	t.Helper()
	if !*wholeFlag {
		n /= 6
	}
	if *seedsFlag > 0 {
		n = *seedsFlag
	}
	for i := range uint64(n) {
		seed := seed(t) + i
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { live(t, seed) })
	}
}

// variety fills a configuration at random.
func variety(r *rand.Rand, c Config) Config {
	h, m := time.Hour, time.Minute
	ladders := []metric.Ladder{
		ladder(h, 6*h, 24*h), ladder(h, 2*h), ladder(30*m, h, 3*h), ladder(10*m, 20*m), ladder(2*h, 4*h, 12*h, 24*h), ladder(h), ladder(24 * h),
		ladder(5*m, 10*m, 20*m, 40*m),
	}
	timings := []cache.Timing{
		{Grace: m, Delay: 2 * m}, {Grace: 0, Delay: 10 * time.Second}, {Grace: 3 * m, Delay: 4 * m}, {Grace: 2 * time.Second, Delay: 4 * m},
	}
	c.Ladder, c.Timing = ladders[r.IntN(len(ladders))], timings[r.IntN(len(timings))]
	c.IndexPartitions, c.GroupSize = 1+r.IntN(5), 1+r.IntN(5)
	return c
}

func ladder(widths ...time.Duration) metric.Ladder {
	l, err := metric.NewLadder(widths...)
	if err != nil {
		panic(err)
	}
	return l
}

// begin starts a process.
func (f *fleet) begin(m *member) {
	m.life++
	m.clk = clock.NewSimulated(f.now.Add(m.skew))
	m.blocks = storagetest.NewApart(f.stores.place.Session(m.clk))
	m.store = storagetest.NewFaulty(m.blocks)
	f.reach(m)
	cfg := f.cfg
	cfg.Unpacked = m.life%2 == 1 // then the next one finds a backlog
	m.engine = cfg.engine(engine.Options{
		Store: m.store, Clock: m.clk, Writer: uint64(m.n*1000 + m.life), Timeout: 30 * time.Second,
		Worker: storage.Worker{ID: fmt.Sprintf("%s-%d", m.name, m.life), Aggregates: m.aggregates, StartedMs: int64(m.life)},
	})
	if !m.aggregates {
		m.engine.Start(context.WithoutCancel(f.t.Context()), registry.Options{LeaseSize: 4}, ingest.Options{})
	}
	_ = m.engine.Member.Beat(f.t.Context())
	m.sealedMs, m.busy = 0, false
}

const (
	parts = 5
	none  = -1
)

// reach puts the part that is away out of a process's reach, and the others into it.
func (f *fleet) reach(m *member) {
	m.blocks.Fail(nil)
	m.blocks.FailSlices(nil)
	if f.away == none {
		return
	}
	err := fmt.Errorf("part %d: %w", f.away, failures[f.r.IntN(2)])
	m.blocks.Away(func(id metric.ScheduleID) bool { return int(id)%parts == f.away }, err)
	m.blocks.FailSlices(func(b metric.Bucket) error {
		if int(b)%parts == f.away {
			return err
		}
		return nil
	})
}

func (f *fleet) kill(m *member) {
	f.note("kill %s", m.name)
	m.store.Heal()
	m.store.CrashAt(0)
	_ = m.engine.Drain()
	m.busy = true
	f.advance(2 * time.Second)
	f.begin(m)
}

// do has a process do something, unless its call is under way already.
func (f *fleet) do(m *member, what func(ctx context.Context)) {
	if m.busy {
		return
	}
	m.busy = true
	what(f.t.Context())
	m.busy = false
}

// advance lets time pass for all. Ingest settles and seals, and everybody sends heartbeats.
func (f *fleet) advance(d time.Duration) {
	for to := f.now.Add(d); f.now.Before(to); {
		step := min(to.Sub(f.now), 20*time.Second)
		if next := f.now.Truncate(time.Hour).Add(time.Hour); f.now.Minute() > 4 && next.Sub(f.now) > time.Minute {
			step = min(to.Sub(f.now), next.Sub(f.now)-30*time.Second) // nothing is due meanwhile
		}
		f.now = f.now.Add(step)
		f.Clock.Set(f.now)
		for _, m := range f.members {
			m.clk.Set(m.clk.Now().Add(step))
		}
		for _, m := range f.members {
			f.do(m, func(ctx context.Context) {
				_ = m.engine.Member.Beat(ctx)
				if m.aggregates {
					return
				}
				slice := f.cfg.Ladder.SliceAt(metric.Raw, m.clk.Now().Add(-f.cfg.Timing.Grace).UnixMilli())
				if slice.StartMs == m.sealedMs {
					_ = m.engine.Ingest.Settle(ctx)
					return
				}
				if err := m.engine.Ingest.Seal(ctx); m.sealedMs != 0 && err != nil {
					f.note("%s seals: %v", m.name, err)
				}
				m.sealedMs = slice.StartMs
			})
		}
	}
}

// series are the metrics that lives report.
var series = []string{"A", "B", "C", "D", "E", "F", "G"}

// sends has an ingest process take samples, mostly new ones, some late and some ahead.
func (f *fleet) sends(m *member) {
	var points []Point
	for range 1 + f.r.IntN(4) {
		age := -time.Duration(f.r.IntN(500)) * time.Second
		switch n := f.r.IntN(10); {
		case n < 5:
			age = time.Duration(f.r.IntN(300)) * time.Second
		case n < 7:
			age = time.Duration(f.r.IntN(180)) * time.Minute
		case n < 9:
			age = time.Duration(f.r.IntN(30*60)) * time.Minute
		}
		ms := m.clk.Now().Add(-age).UnixMilli()
		for ms += int64(m.n) - ms%10; f.used[ms]; { // each process has times of its own
			ms += 10
		}
		f.used[ms] = f.jumps || f.r.IntN(4) > 0
		points = append(points, Point{Series: series[f.r.IntN(len(series))], TimeMs: ms, Value: float64(f.r.IntN(1000))})
	}
	m.clk.Set(m.clk.Now().Add(time.Millisecond))
	f.do(m, func(ctx context.Context) {
		err := f.Oracle.backFill(ctx, m.engine.Ingest, points)
		f.note("%s takes %v: %v", m.name, points, err)
	})
}

// backFill sends points and notes the outcome.
func (o *Oracle) backFill(ctx context.Context, in *ingest.Ingest, points []Point) error {
	rep := ingest.Report{Source: source}
	for _, p := range points {
		rep.Measurements = append(rep.Measurements, ingest.Measurement{Metric: p.Series, TimeMs: p.TimeMs, Value: p.Value})
	}
	res, err := in.BackFill(ctx, []ingest.Report{rep})
	rejected := make(map[int]bool)
	for _, r := range res.Rejected {
		rejected[r.Index] = true
	}
	for i, p := range points {
		switch {
		case err != nil:
			o.Tried(p)
		case !rejected[i]:
			o.Acknowledged(p)
		}
	}
	return err
}

// deletes has an ingest process delete some of the samples that it has taken.
func (f *fleet) deletes(m *member) {
	var points []Point
	var samples []metric.Sample
	names := f.names()
	for _, s := range f.RawSamples() {
		if s.TimeMs%10 == int64(m.n) && f.r.IntN(4) == 0 && !metric.IsTombstone(s.Value) {
			points = append(points, Point{Series: names[s.Schedule], TimeMs: s.TimeMs, Value: metric.Tombstone()})
			samples = append(samples, s)
		}
	}
	if len(samples) == 0 {
		return
	}
	m.clk.Set(m.clk.Now().Add(time.Millisecond))
	f.do(m, func(ctx context.Context) {
		at, err := m.engine.Ingest.Place(ctx)
		if err == nil {
			err = m.engine.Ingest.Delete(ctx, at, samples)
		}
		for _, p := range points {
			if err != nil {
				f.Oracle.Tried(p)
			} else {
				f.Oracle.Acknowledged(p)
			}
		}
		f.note("%s deletes %v: %v", m.name, points, err)
	})
}

func (f *fleet) runs(m *member) {
	f.do(m, func(ctx context.Context) {
		_ = m.engine.Member.Beat(ctx)
		if n, err := m.engine.Runner.RunDue(ctx); n > 0 || err != nil {
			f.note("%s runs %d: %v", m.name, n, err)
		} else if err := m.engine.Runner.Pack(ctx); err != nil {
			f.note("%s packs: %v", m.name, err)
		}
	})
}

// pick returns a process that is not busy, nil if there is none.
func (f *fleet) pick(aggregates bool) *member {
	idle := slices.DeleteFunc(slices.Clone(f.members), func(m *member) bool { return m.busy || m.aggregates != aggregates })
	if len(idle) == 0 {
		return nil
	}
	return idle[f.r.IntN(len(idle))]
}

var (
	runSteps = []string{
		"Marks", "Marks/row", "RawChunks", "CacheBlock", "Rollups", "WriteRollups", "Write", "PackRaw", "DeleteCacheBlock", "DeleteMarks",
		"BeginSlice", "CompleteSlice", "NewestBegun", "AcquireShard", "Slices", "Marks", "ReleaseShard",
	}
	ingestSteps = []string{"Write", "Write", "Write", "Write", "Slices", "NewestBegun", "DeleteMarks", "LeaseIDs", "ClaimSchedules"}
	failures    = []error{storage.ErrUnavailable, storage.ErrTimeout, errInjected}
)

// disturb has a process stall, fail or die at one of its next steps.
func (f *fleet) disturb(m *member) {
	steps := ingestSteps
	if m.aggregates {
		steps = runSteps
	}
	op, skip, before := steps[f.r.IntN(len(steps))], f.r.IntN(6), f.r.IntN(2) == 0
	var do func() error
	switch n := f.r.IntN(10); {
	case n < 6 && f.depth < 2:
		do = func() error {
			f.depth++
			f.note("%s stalls at %s, before=%t {", m.name, op, before)
			for range 1 + f.r.IntN(4) {
				f.act()
			}
			f.note("}")
			f.depth--
			return nil
		}
	case n < 8:
		err := failures[f.r.IntN(len(failures))]
		do = func() error {
			f.note("%s fails at %s, before=%t: %v", m.name, op, before, err)
			return err
		}
	case n == 8:
		do = func() error {
			f.note("%s dies at %s, before=%t", m.name, op, before)
			m.store.CrashAt(0)
			return storagetest.ErrCrashed
		}
	default:
		if !m.aggregates {
			f.note("what %s writes next lands on one copy", m.name)
			m.store.Land(1+f.r.IntN(2), storage.ErrTimeout)
		}
		return
	}
	if skip > 0 {
		m.store.Add(storagetest.Rule{Op: op, Times: skip})
	}
	rule := storagetest.Rule{Op: op, Times: 1, After: do}
	if before {
		rule.Before, rule.After = do, nil
	}
	m.store.Add(rule)
}

// act does one thing at random.
func (f *fleet) act() {
	anyone := f.r.IntN(2) == 0
	with := func(aggregates bool, do func(*member)) {
		if m := f.pick(aggregates); m != nil {
			do(m)
		}
	}
	switch n := f.r.IntN(100); {
	case n < 30:
		with(false, f.sends)
	case n < 33:
		if !f.jumps {
			with(false, f.deletes)
		}
	case n < 55:
		with(true, f.runs)
	case n < 75:
		d := f.span()
		f.note("%s pass", d)
		f.advance(d)
	case n < 87:
		with(anyone, f.disturb)
	case n < 89:
		with(anyone, f.kill)
	case n < 91:
		with(anyone, func(m *member) {
			f.note("%s heals", m.name)
			m.store.Heal()
		})
	case n < 93:
		with(false, func(m *member) {
			if m.store.Landed() > 0 {
				f.note("what %s wrote surfaces: %v", m.name, m.store.Surface(f.t.Context()))
			}
		})
	case n < 95:
		if f.away = f.r.IntN(parts + 3); f.away >= parts {
			f.away = none
		}
		f.note("away: %d", f.away)
		for _, m := range f.members {
			f.reach(m)
		}
	case n < 96:
		f.resize(&f.journal, f.r, f.now.Add(30*time.Second))
	case n < 98:
		with(anyone, f.again)
	default:
		if f.jumps {
			with(anyone, f.jump)
		}
	}
	for _, m := range f.members {
		if !m.busy && m.store.Crashed() {
			f.kill(m)
		}
	}
}

func (f *fleet) span() time.Duration {
	switch f.r.IntN(8) {
	case 0, 1: // to the hour, or shortly after it
		return f.now.Truncate(time.Hour).Add(time.Hour + time.Duration(f.r.IntN(150))*time.Second).Sub(f.now)
	case 2, 3:
		return time.Duration(f.r.IntN(60)) * time.Second
	case 4:
		return time.Duration(f.r.IntN(20)) * time.Hour
	}
	return time.Duration(f.r.IntN(90)) * time.Minute
}

// jump has the clock of a process be ahead for a while.
func (f *fleet) jump(m *member) {
	d := time.Duration(f.r.IntN(12*60)) * time.Minute
	f.note("%s is ahead by %s {", m.name, d)
	m.clk.Jump(d)
	for range 1 + f.r.IntN(3) {
		f.act()
	}
	m.clk.Jump(f.now.Add(m.skew).Sub(m.clk.Now()))
	f.note("}")
	for _, m := range f.members {
		if !m.aggregates {
			f.do(m, func(ctx context.Context) { _ = m.engine.Ingest.Settle(ctx) })
		}
	}
}

// resize changes the block size, after all slices that are in use.
func (s *System) resize(j *journal, r *rand.Rand, after time.Time) {
	store := s.inspect()
	epochs := store.Settings().Epochs
	used, ok, err := storage.NewestUsed(s.t.Context(), store, s.cfg.Ladder, math.MinInt64)
	if err != nil || len(epochs) > 4 {
		return
	}
	from := s.cfg.Ladder.SliceAt(metric.Raw, after.Add(10*time.Minute).UnixMilli()).EndMs
	if ok {
		from = max(from, s.cfg.Ladder.SliceAt(metric.Raw, used).EndMs)
	}
	from = max(from, epochs[len(epochs)-1].FromMs) + s.cfg.Ladder.WidthMs(1)
	size := []int{1, 2, 3, 7, 8}[r.IntN(5)]
	err = store.AddEpoch(s.t.Context(), blocks.Epoch{FromMs: from, BlockSize: size})
	j.note("block size %d from %s: %v", size, time.UnixMilli(from).UTC(), err)
}

// again has some rows of a block computed again.
func (f *fleet) again(m *member) {
	slice := f.cfg.Ladder.SliceAt(metric.Raw, f.now.Add(-time.Duration(2+f.r.IntN(30))*time.Hour).UnixMilli())
	epochs, ids := f.inspect().Settings().Epochs, slices.Sorted(maps.Values(f.IDs()))
	if len(ids) == 0 {
		return
	}
	block := epochs.BlockAt(ids[f.r.IntN(len(ids))], slice.StartMs)
	ids = slices.DeleteFunc(ids, func(id metric.ScheduleID) bool { return !block.Contains(id) })
	kind := []storage.MarkKind{storage.MarkLate, storage.MarkTakeBack}[f.r.IntN(2)]
	f.do(m, func(ctx context.Context) {
		mark := storage.Mark{Start: block.Start, TimeMs: slice.StartMs, Kind: kind, Schedules: ids}
		f.note("%s marks %v of %s, %s: %v", m.name, ids, slice, kind, m.engine.Cache.Put(ctx, 0, metric.Raw, []storage.Mark{mark}))
	})
}

// end ends all faults and processes. One that starts after them grinds what is left.
func (f *fleet) end() {
	f.note("the end")
	f.away = none
	for _, m := range f.members {
		f.reach(m)
		m.store.Heal()
		_ = m.store.Surface(f.t.Context())
	}
	f.advance(2 * time.Minute)
	if f.r.IntN(2) == 0 {
		for range 80 {
			f.advance(time.Hour)
			for _, m := range f.members {
				if m.aggregates {
					f.runs(m)
				}
			}
		}
	}
	for _, m := range f.members {
		if err := m.engine.Drain(); err != nil {
			f.note("%s ends: %v", m.name, err)
		}
	}
	f.members = nil
	f.advance(3 * time.Hour)
	f.Drain()
}
