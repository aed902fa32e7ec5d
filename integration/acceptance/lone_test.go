package acceptance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// lone is a made-up life of one server on the embedded store.
type lone struct {
	*System
	journal
	r *rand.Rand
	// right is the time that a right clock shows.
	right time.Time
	// ahead says that samples may be of a time that is to come by a right clock.
	ahead bool
	// used are the times that no further sample may have.
	used map[int64]bool
}

// TestServerAtRandom: a server is off for weeks, sleeps, crashes and fails; its clock is wrong by minutes or weeks;
// retentions end, and they, the grace and the block size change; samples are late, at the ends of the retention, and
// deleted. In the end the clock is right, and each row whose input is there says what was acknowledged, or that it is
// partial.
func TestServerAtRandom(t *testing.T) {
	lives(t, 60, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 99))
		hours := func(n int) time.Duration { return time.Duration(n) * time.Hour }
		s := Start(t, Backend{Open: openPebble}, variety(r, Config{BlockSize: 1 + r.IntN(5), Retention: storage.Retention{
			hours(75 + r.IntN(60)), hours(24 * r.IntN(2) * (r.IntN(5) + 6)), hours(24 * r.IntN(2) * (r.IntN(9) + 8)),
		}}))
		s.first = 0
		l := &lone{System: s, r: r, right: s.Clock.Now(), ahead: r.IntN(2) == 0, used: make(map[int64]bool)}
		l.journal.now = s.Clock.Now
		for range 30 + r.IntN(50) {
			l.act()
		}
		l.note("the end")
		s.Store.Heal()
		for range 3 { // marks go into the first slice whose run has not begun, which clocks that were ahead have put off
			s.Drain()
		}
		l.report(t, l.problems())
	})
}

// act does one thing at random.
func (l *lone) act() {
	if n := l.r.IntN(100); n >= 93 {
		l.astray()
	} else {
		l.do(n, false)
	}
}

// do does one thing, the nth of 93. astray: the clock is wrong.
func (l *lone) do(n int, astray bool) {
	switch {
	case n < 35:
		l.sends()
	case n < 55:
		l.runs()
	case n < 70:
		d := time.Duration(l.r.IntN(150)) * time.Minute
		if !astray && l.r.IntN(6) == 0 {
			d = time.Duration(l.r.IntN(30)) * time.Hour
		}
		l.pass(d)
	case n < 74:
		d := time.Duration(l.r.IntN(10)) * time.Hour
		if l.r.IntN(3) == 0 {
			d = time.Duration(l.r.IntN(20*24)) * time.Hour
		}
		l.note("off for %s", d)
		l.Stop()
		l.Clock.Set(l.Clock.Now().Add(d))
		l.right = l.right.Add(d)
		l.cfg.Unpacked = l.r.IntN(2) == 0 // another version
		l.start()
	case n < 78:
		d := time.Duration(l.r.IntN(20*60)) * time.Minute
		l.note("sleeps for %s", d)
		l.Clock.Jump(d)
		l.right = l.right.Add(d)
		_ = l.engine.Ingest.Settle(l.t.Context())
		_ = l.Store.CheckFit(l.t.Context())
	case n < 83:
		l.crashes()
	case n < 86:
		op := []string{
			"Write", "WriteRollups", "DeleteMarks", "BeginSlice", "CompleteSlice", "RawChunks", "Rollups", "NewestBegun", "Slices", "DeleteCacheBlock", "PackRaw",
		}[l.r.IntN(11)]
		err := failures[l.r.IntN(len(failures))]
		l.note("%s fails: %v", op, err)
		l.Store.Fail(op, blocks.Range{}, 1+l.r.IntN(4), err)
	case n < 89:
		l.setsPolicy()
	case n < 91:
		l.resize(&l.journal, l.r, l.Clock.Now())
	default:
		from := l.Clock.Now().Add(-time.Duration(l.r.IntN(600)) * time.Minute)
		to := from.Add(time.Duration(l.r.IntN(120)) * time.Minute)
		if l.Store.WholeFrom(metric.Raw, l.Clock.Now().UnixMilli()) <= from.UnixMilli() {
			_, err := l.Delete(series[l.r.IntN(len(series))], from, to)
			l.note("deletes from %s to %s: %v", from, to, err)
		}
	}
}

// pass lets time pass as the server sees it.
func (l *lone) pass(d time.Duration) {
	l.note("%s pass", d)
	to := l.Clock.Now().Add(d)
	for l.Clock.Now().Before(to) {
		l.Advance(min(to.Sub(l.Clock.Now()), time.Hour))
		_ = l.engine.Ingest.Settle(l.t.Context())
		_ = l.Store.CheckFit(l.t.Context())
		if l.r.IntN(8) == 0 {
			l.runs()
		}
	}
	l.Clock.Set(to)
	l.right = l.right.Add(d)
}

func (l *lone) runs() {
	runs, err := l.Run()
	dropped := 0
	for _, r := range runs {
		dropped += r.Dropped
	}
	l.note("%d runs, %d dropped: %v; expires: %v", len(runs), dropped, err, l.Store.Expire(l.t.Context()))
	if err == nil {
		l.note("packs: %v", l.Repack())
	}
}

// sends sends samples, most of them new, some late, at the end of the retention, or ahead.
func (l *lone) sends() {
	var points []Point
	now, current := l.Clock.Now(), l.cfg.Ladder.SliceAt(metric.Raw, l.right.UnixMilli())
	for range 1 + l.r.IntN(4) {
		age := -time.Duration(l.r.IntN(500)) * time.Second
		switch n := l.r.IntN(10); {
		case n < 4:
			age = time.Duration(l.r.IntN(300)) * time.Second
		case n < 6:
			age = time.Duration(l.r.IntN(180)) * time.Minute
		case n < 8:
			age = time.Duration(l.r.IntN(24*60)) * time.Minute
		case n < 9:
			age = l.Store.Settings().Policy.Retention.Of(metric.Raw) - time.Duration(l.r.IntN(300)-120)*time.Minute
		}
		ms := now.Add(-age).UnixMilli()
		if !l.ahead && ms >= current.StartMs && now.After(l.right) {
			ms = current.StartMs - 1 - l.r.Int64N(time.Hour.Milliseconds())
		}
		for l.used[ms] {
			ms++
		}
		l.used[ms] = l.r.IntN(4) > 0
		points = append(points, Point{Series: series[l.r.IntN(len(series))], TimeMs: ms, Value: float64(l.r.IntN(1000))})
	}
	l.Clock.Set(now.Add(time.Millisecond))
	l.note("takes %v: %v", points, l.Oracle.backFill(l.t.Context(), l.engine.Ingest, points))
}

func (l *lone) crashes() {
	step := 1 + l.r.IntN(60)
	l.note("crashes at step %d {", step)
	l.Steps.CrashAt(step)
	if l.r.IntN(2) == 0 {
		l.sends()
		l.sends()
	} else {
		l.runs()
	}
	l.restart()
	l.Steps.CrashAt(never)
	l.note("}")
}

func (l *lone) restart() {
	l.Restart()
	l.right = l.right.Add(time.Second)
}

func (l *lone) setsPolicy() {
	p := l.Store.Settings().Policy
	p.Retention = storage.Retention{time.Duration(75+l.r.IntN(100)) * time.Hour, p.Retention.Of(1), p.Retention.Of(2)}
	err := l.Store.SetPolicy(l.t.Context(), p)
	l.cfg.Timing = []cache.Timing{
		{Grace: time.Minute, Delay: 2 * time.Minute},
		{Grace: 20 * time.Minute, Delay: 25 * time.Minute},
		{Grace: 0, Delay: 10 * time.Second},
		{Grace: 70 * time.Minute, Delay: 80 * time.Minute},
	}[l.r.IntN(4)]
	l.note("retention %v, %+v: %v", p.Retention, l.cfg.Timing, err)
	l.restart()
}

// astray has the clock be wrong for a while.
func (l *lone) astray() {
	by := time.Duration(l.r.IntN([]int{90, 1000, 30 * 24 * 60}[l.r.IntN(3)])) * time.Minute
	switch n := l.r.IntN(16); {
	case n < 4:
		by = -by
	case n == 4:
		by = time.Unix(l.r.Int64N(7200), 0).Sub(l.Clock.Now())
	}
	restarts := l.r.IntN(3) == 0
	l.note("wrong by %s, restarts=%t {", by, restarts)
	l.System.astray = true
	l.sets(by, restarts)
	for range 1 + l.r.IntN(4) {
		l.do(l.r.IntN(93), true)
	}
	l.Store.Heal()
	restarts = l.r.IntN(4) == 0
	l.System.astray = false
	l.sets(l.right.Sub(l.Clock.Now()), restarts)
	if err := l.Store.CheckFit(l.t.Context()); err != nil {
		l.note("accepted: %v", err)
		l.Stop()
		l.start()
	}
	l.note("right, restarts=%t }", restarts)
}

// sets sets the clock, between two processes or during one.
func (l *lone) sets(by time.Duration, restarts bool) {
	if restarts {
		l.Stop()
	}
	l.Clock.Jump(by)
	if restarts {
		l.start()
	}
	_ = l.engine.Ingest.Settle(l.t.Context())
}

// problems returns the rows that are not what was acknowledged, and do not say that they are partial. It leaves out
// what has expired, samples whose fate is unknown, in whole slices, and the last slices.
func (l *lone) problems() (out []string) {
	ids, now, top := l.IDs(), l.Clock.Now().UnixMilli(), l.cfg.Ladder.Top()
	before := now - int64(top+1)*(l.cfg.Ladder.WidthMs(top)+l.cfg.Timing.Delay.Milliseconds()) // what came ahead of its time may still climb
	raw := make(map[int64]float64)
	for name := range l.Oracle.points {
		acked, _, doubt := l.Oracle.samples(name, raw)
		for _, level := range l.cfg.Ladder.Levels() {
			at := func(ms int64) metric.Slice { return l.cfg.Ladder.SliceAt(level-1, ms) }
			unsure := make(map[metric.Slice]bool)
			for ms := range doubt {
				unsure[at(ms)] = true
			}
			for i, sm := range acked {
				s := at(sm.TimeMs)
				first := i == 0 || at(acked[i-1].TimeMs) != s
				if !first || unsure[s] || s.StartMs < l.Store.WholeFrom(level, now) || s.EndMs > before {
					continue
				}
				row := l.row(level, name, s.StartMs)
				if row.Partial {
					continue
				}
				stored := &row
				if row.Count == 0 {
					stored = nil
				}
				if wrong := expect(within(acked, s)).differs(stored); wrong != "" {
					out = append(out, fmt.Sprintf("%s row of %s (%d) at %s: %s", l.cfg.Ladder.Name(level), name, ids[name], l.clockOf(s.StartMs), wrong))
				}
			}
		}
	}
	return out
}
