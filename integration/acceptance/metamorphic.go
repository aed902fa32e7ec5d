package acceptance

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var (
	seedFlag   = flag.Uint64("acceptance.seed", 0, "replay the history of this seed, and begin sweeps elsewhere; also QUERN_ACCEPTANCE_SEED")
	seedsFlag  = flag.Int("acceptance.seeds", 0, "number of histories, or lives, to make up")
	wholeFlag  = flag.Bool("acceptance.whole", false, "stop at every step, and make up more histories and lives")
	strideFlag = flag.Int("acceptance.stride", 0, "how many steps a sweep goes on at a time")
	stepsFlag  = flag.Int("acceptance.steps", 0, "operations in each history")
)

// shared is the model of a store that several processes write to: only their clocks order what they write, and a writer does not
// know whether others have written since.
type shared struct{ storage.Store }

// NewestID implements storage.Store.
func (shared) NewestID() blocks.ID { return blocks.ID{} }

// openShared is openModel for the model of such a store.
func openShared(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	m := storagetest.NewModel(s, r, clk)
	return func() storage.Store { return shared{m.Reopen()} }
}

// openModel is the OpenFunc of the in-memory model.
func openModel(_ testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	m := storagetest.NewModel(s, r, clk)
	return func() storage.Store { return m.Reopen() }
}

// seed returns the requested seed, or 0.
func seed(t *testing.T) uint64 {
	t.Helper()
	env := os.Getenv("QUERN_ACCEPTANCE_SEED")
	if env == "" {
		return *seedFlag
	}
	n, err := strconv.ParseUint(env, 10, 64)
	require.NoError(t, err)
	return n
}

// testMetamorphic generates random histories of everything that can happen to one process, and runs
// each on the model and on the store under test. Both must always give the same replies and hold
// the same tables. In the end, when nothing is outstanding, the tables must match the acknowledged
// samples.
func testMetamorphic(t *testing.T, b Backend) {
	seeds, steps := 6, 80
	if *wholeFlag {
		seeds, steps = 16, 120
	}
	if b.Histories > 0 {
		seeds = b.Histories
	}
	if *seedsFlag > 0 {
		seeds = *seedsFlag
	}
	if *stepsFlag > 0 {
		steps = *stepsFlag
	}
	first := seed(t)
	if first != 0 {
		seeds = 1
	} else {
		first = 1
	}
	model := Backend{Open: openModel}
	if b.ManyWriters {
		model.Open = openShared
	}
	for seed := first; seed < first+uint64(seeds); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { live(t, seed, steps, 1, model, b) })
		if seed%4 == 1 {
			// Blocks ground in parallel meet the faults in another order each time, so only the
			// oracle can judge the result.
			t.Run(fmt.Sprintf("seed=%d/parallel", seed), func(t *testing.T) { live(t, seed, steps, 4, b) })
		}
	}
}

// options draws one of the sets of options for a history.
func options(r *rand.Rand) Config {
	c := Config{
		BlockSize:       pick(r, 1, 3, 4, 128),
		GroupSize:       pick(r, 1, 4, 5, 128),
		IndexPartitions: pick(r, 1, 4, 16),
		LeaseSize:       pick(r, 8, 4096),
	}
	switch r.IntN(3) {
	case 0: // the defaults
	case 1:
		c.Ladder = ladder(10*time.Second, time.Minute, 2*time.Minute)
		c.Timing = cache.Timing{Grace: time.Second, Delay: 2 * time.Second}
	case 2:
		c.Ladder = ladder(time.Hour, 2*time.Hour)
		c.Timing = cache.Timing{Grace: 0, Delay: time.Second}
	}
	return c
}

func ladder(widths ...time.Duration) metric.Ladder {
	l, err := metric.NewLadder(widths...)
	if err != nil {
		panic(err)
	}
	return l
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// life is one history, run on several systems at once.
type life struct {
	t     *testing.T
	r     *rand.Rand
	seed  uint64
	all   []*System
	width time.Duration // of the finest roll-up
	known []Point       // what was reported
	owed  []Point       // what got an error as its reply; the client will send it again
	// checked is when all was last well. Faults do not last as long as the age cap.
	checked time.Time
	sizes   int
	log     []string
}

func live(t *testing.T, seed uint64, steps, parallel int, backends ...Backend) {
	r := rand.New(rand.NewPCG(seed, 0))
	cfg := options(r)
	cfg.Start = defaultStart.Add(time.Duration(r.IntN(24*60)) * time.Minute)
	l := &life{t: t, r: r, seed: seed}
	cfg.Parallel = parallel
	for _, b := range backends {
		l.all = append(l.all, Start(t, b, cfg))
	}
	l.width = time.Duration(l.sys().cfg.Ladder.WidthMs(1)) * time.Millisecond
	l.checked = l.now()
	defer func() {
		if t.Failed() {
			t.Logf("replay with -acceptance.seed=%d -acceptance.steps=%d; the last steps:", seed, steps)
			for _, line := range l.log[max(0, len(l.log)-40):] {
				t.Log(line)
			}
		}
	}()
	for range steps {
		l.step()
		if l.now().Sub(l.checked) > 8*time.Hour {
			l.checkpoint()
		}
	}
	l.checkpoint()
	for _, s := range l.all {
		s.Drain()
	}
	l.same()
	l.check()
	for _, s := range l.all {
		require.Empty(l.t, s.Leftovers())
	}
}

func (l *life) sys() *System   { return l.all[0] }
func (l *life) now() time.Time { return l.sys().Clock.Now() }

func (l *life) note(format string, args ...any) {
	l.log = append(l.log, l.sys().clockOf(l.now().UnixMilli())+" "+fmt.Sprintf(format, args...))
}

// each calls f on every system and requires equal results.
func each[T any](l *life, f func(s *System) T) T {
	l.t.Helper()
	var first T
	for i, s := range l.all {
		got := f(s)
		if i == 0 {
			first = got
			continue
		}
		require.Equal(l.t, first, got)
	}
	return first
}

func (l *life) step() {
	switch n := l.r.IntN(100); {
	case n < 45:
		l.report(l.points())
	case n < 48:
		l.delete()
	case n < 62:
		l.advance()
	case n < 76:
		l.run()
	case n < 83:
		l.fault()
	case n < 87:
		l.crash()
	case n < 89:
		l.note("restart")
		for _, s := range l.all {
			s.Restart()
		}
	case n < 91:
		l.note("cache damaged")
		for _, s := range l.all {
			s.DamageCache()
		}
	case n < 92:
		l.note("cache deleted")
		for _, s := range l.all {
			s.DeleteCache()
		}
	case n < 94:
		l.blockSize()
	case n < 97:
		l.stall()
	default:
		l.checkpoint()
	}
}

func (l *life) points() []Point {
	var out []Point
	for range 1 + l.r.IntN(6) {
		p := Point{Series: fmt.Sprintf("m%02d", l.r.IntN(4+len(l.log)/4)), Value: l.value()}
		now := l.now().UnixMilli()
		within := func(d time.Duration) int64 { return l.r.Int64N(d.Milliseconds() + 1) }
		switch n := l.r.IntN(20); {
		case n < 9:
			p.TimeMs = now - within(l.width/10)
		case n < 12:
			p.TimeMs = now - within(3*l.width)
		case n < 14:
			p.TimeMs = now - within(min(20*time.Hour, 30*l.width))
		case n < 15:
			p.TimeMs = now + within(l.width/8)
		case n < 16 && len(l.known) > 0: // sent again
			p = l.known[l.r.IntN(len(l.known))]
		case n < 18 && len(l.known) > 0: // corrected
			v := p.Value
			p = l.known[l.r.IntN(len(l.known))]
			p.Value = v
		case n < 19:
			p.TimeMs = now - (24 * time.Hour).Milliseconds() - 2 - within(time.Hour)
		default:
			p.TimeMs = now + (10 * time.Minute).Milliseconds() + 2 + within(time.Hour)
		}
		if l.r.IntN(25) == 0 {
			p.Value = pick(l.r, math.NaN(), math.Inf(1), math.Inf(-1))
		}
		out = append(out, p)
	}
	return out
}

func (l *life) value() float64 {
	switch l.r.IntN(4) {
	case 0:
		return float64(l.r.IntN(1000) - 500)
	case 1:
		return float64(l.r.IntN(10000)) / 100
	case 2:
		return (l.r.Float64() - 0.3) * 1e6
	}
	return float64(len(l.log)) // a counter
}

func (l *life) report(points []Point) bool {
	type reply struct {
		Accepted int
		Rejected []int
		Failed   bool
	}
	rep := each(l, func(s *System) reply {
		res, err := s.Report(points...)
		out := reply{Accepted: res.Accepted, Failed: err != nil}
		for _, rej := range res.Rejected {
			out.Rejected = append(out.Rejected, rej.Index)
		}
		return out
	})
	l.note("report %d points: %+v", len(points), rep)
	for i, p := range points {
		if !slices.Contains(rep.Rejected, i) {
			l.known = append(l.known, p)
		}
	}
	if rep.Failed {
		if l.r.IntN(2) == 0 {
			return l.report(points)
		}
		l.owed = append(l.owed, points...)
	}
	return !rep.Failed
}

// delete deletes some of what was reported.
func (l *life) delete() {
	if len(l.known) == 0 {
		return
	}
	p := l.known[l.r.IntN(len(l.known))]
	from := time.UnixMilli(p.TimeMs)
	to := from.Add(time.Duration(1 + l.r.Int64N(int64(2*l.width))))
	if l.r.IntN(4) == 0 {
		p.Series = ""
	}
	failed := each(l, func(s *System) bool {
		_, err := s.Delete(p.Series, from, to)
		return err != nil
	})
	l.note("delete %q from %s to %s: failed=%t", p.Series, l.sys().clockOf(p.TimeMs), l.sys().clockOf(to.UnixMilli()), failed)
}

func (l *life) advance() {
	s := l.sys()
	b := metric.Bucket(l.r.IntN(int(s.cfg.Ladder.Top())))
	end := time.UnixMilli(s.cfg.Ladder.SliceAt(b, l.now().UnixMilli()).EndMs)
	if end.Sub(l.now()) > 6*time.Hour {
		end = time.UnixMilli(s.cfg.Ladder.SliceAt(metric.Raw, l.now().UnixMilli()).EndMs)
	}
	to := l.now().Add(time.Duration(l.r.Int64N(int64(l.width / 3))))
	switch l.r.IntN(10) {
	case 0:
		to = end.Add(-time.Millisecond)
	case 1:
		to = end
	case 2:
		to = end.Add(s.cfg.Timing.Grace - 2*time.Millisecond)
	case 3:
		to = end.Add(s.cfg.Timing.Grace)
	case 4, 5, 6:
		to = end.Add(s.cfg.Timing.Delay)
	case 7:
		to = l.now().Add(time.Duration(l.r.Int64N(int64(3 * l.width))))
	}
	if !to.After(l.now()) {
		to = l.now().Add(time.Millisecond)
	}
	for _, s := range l.all {
		s.SetClock(to)
	}
	l.note("clock")
}

func (l *life) run() bool {
	type record struct {
		Key                                      storage.SliceKey
		Blocks, Rows, Late, Rescheduled, Dropped int
		BlockQueries, IndexQueries               int
		Aborted                                  bool
	}
	failed := false
	records := each(l, func(s *System) []record {
		runs, err := s.Run()
		failed = err != nil
		var out []record
		for _, r := range runs {
			out = append(out, record{
				r.SliceKey, r.Blocks, r.Schedules, r.Late, r.Rescheduled, r.Dropped, r.BlockQueries, r.IndexQueries, r.Err != "",
			})
		}
		return out
	})
	for _, r := range records {
		l.note("ran %s: %+v", l.sys().clockOf(r.Key.StartMs), r)
		require.Zero(l.t, r.Dropped, "nothing is as old as the age cap")
	}
	return !failed
}

func (l *life) fault() {
	op := pick(l.r, "Write", "Write", "Write", "AcquireShard", "Slices", "Marks", "CacheBlock", "RawChunks", "Rollups",
		"WriteRollups", "WriteRollups", "PackRaw", "DeleteCacheBlock", "DeleteMarks", "NewestBegun", "BeginSlice", "CompleteSlice", "RecordRun", "LeaseIDs", "ClaimSchedules", "SourceSchedules")
	err := pick(l.r, errInjected, errInjected, errInjected, storage.ErrUnavailable, storage.ErrTimeout, storage.ErrOverloaded)
	fail := func() error { return err }
	times, after := 1+l.r.IntN(6), l.r.IntN(3) == 0
	l.note("fault: %s %d times, after=%t: %v", op, times, after, err)
	for _, s := range l.all {
		rule := storagetest.Rule{Op: op, Times: times, Before: fail}
		if after {
			rule.Before, rule.After = nil, fail
		}
		s.Store.Add(rule)
	}
}

func (l *life) crash() {
	k := 1 + l.r.IntN(40)
	torn := l.r.IntN(2) == 0
	l.note("crash at step %d, torn=%t", k, torn)
	for _, s := range l.all {
		s.Store.Tear(torn)
		s.Store.CrashAt(k)
	}
	if l.r.IntN(3) == 0 {
		points := l.points()
		for range 3 {
			l.report(points)
		}
	} else {
		l.run()
	}
	for _, s := range l.all {
		s.Restart()
	}
}

func (l *life) blockSize() {
	if l.sizes++; l.sizes > 3 {
		return
	}
	// Beyond any sample that may have been accepted: samples of the near future are in blocks
	// already.
	reach := l.now().Add(10*time.Minute + time.Duration(l.sizes)*l.width)
	from := time.UnixMilli(l.sys().cfg.Ladder.SliceAt(metric.Raw, reach.UnixMilli()).EndMs)
	size := pick(l.r, 1, 2, 3, 7, 8, 128)
	epochs := l.sys().inspect().Settings().Epochs
	if epochs[len(epochs)-1].FromMs >= from.UnixMilli() {
		return
	}
	l.note("block size %d from %s", size, l.sys().clockOf(from.UnixMilli()))
	for _, s := range l.all {
		s.SetBlockSize(size, from)
	}
}

// stall delays one write.
func (l *life) stall() {
	d := time.Duration(l.r.Int64N(int64(2 * l.width)))
	before, fenced := l.r.IntN(2) == 0, l.r.IntN(2) == 0
	l.note("stall: the next write, fenced=%t, takes %s, before=%t", fenced, d, before)
	for _, s := range l.all {
		rule := storagetest.Rule{Op: "Write", Fenced: fenced, Unfenced: !fenced, Times: 1}
		wait := func() error { s.Clock.Set(s.Clock.Now().Add(d)); return nil }
		if before {
			rule.Before = wait
		} else {
			rule.After = wait
		}
		s.Store.Add(rule)
	}
}

// checkpoint ends all faults, sends what the client owes, runs, and compares.
func (l *life) checkpoint() {
	l.note("checkpoint")
	for _, s := range l.all {
		s.Store.Heal()
		s.Store.CrashAt(-1)
	}
	if owed := l.owed; len(owed) > 0 {
		l.owed = nil
		require.True(l.t, l.report(owed))
	}
	require.True(l.t, l.run())
	l.same()
	l.check()
	l.checked = l.now()
}

func (l *life) same() {
	l.t.Helper()
	each(l, func(s *System) time.Time { return s.Clock.Now() })
	each(l, (*System).Dump)
}

func (l *life) check() {
	l.t.Helper()
	for _, s := range l.all {
		s.MustCheck(Acknowledged)
		s.MustShow()
	}
}
