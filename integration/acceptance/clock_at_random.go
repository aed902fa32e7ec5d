package acceptance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/storage"
)

// wanderer is a made-up life: clocks that wander, of one server and of a second ingest process on the same store.
type wanderer struct {
	*System
	r *rand.Rand
	// right is the time that a right clock shows.
	right time.Time
	// other is the second ingest process. Its clock wanders by itself.
	other      *engine.Engine
	otherClock *clock.Simulated
}

// testClocksAtRandom: clocks go ahead by minutes, hours or weeks, and back, and behind by as much; runs begin too early
// and end anywhere; samples are on time and late; processes are restarted, and records of slices are removed. In the
// end the clock is right and later than all of these, and each row is what raw says.
func testClocksAtRandom(t *testing.T, b Backend) {
	skipIfClocksAreChecked(t, b)
	lives := 10
	if *wholeFlag {
		lives = 60
	}
	for n := range uint64(lives) {
		t.Run(fmt.Sprintf("seed=%d", seed(t)+n), func(t *testing.T) { wander(t, b, seed(t)+n) })
	}
}

func wander(t *testing.T, b Backend, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	// The age cap is long, so that samples that came before a leap are late after it, and not too old.
	s := Start(t, b, Config{AgeCap: 120 * 24 * time.Hour})
	s.first = at(s, -24*150, 0)
	s.setClock(12, r.IntN(59))
	w := &wanderer{System: s, r: r, right: s.Clock.Now(), otherClock: clock.NewSimulated(s.Clock.Now())}
	w.startOther()
	for range 4 + r.IntN(10) {
		w.pass(w.minutes(150))
		w.report()
		if r.IntN(2) == 0 {
			w.astray()
		}
		switch r.IntN(6) {
		case 0:
			w.restart()
		case 1:
			w.pass(time.Duration(40+r.IntN(10)) * 24 * time.Hour)
			w.note("expire", s.Store.Expire(t.Context()))
		}
		if r.IntN(2) == 0 {
			w.run()
		}
	}
	w.endOther()
	w.pass(60 * 24 * time.Hour) // marks that a clock ahead has put are done by then
	s.Drain()
	s.MustCheck(Raw)
	s.End()
}

func (w *wanderer) note(did string, err error) {
	w.t.Logf("%s: %s, %v", w.Clock.Now().UTC().Format("01-02 15:04:05"), did, err)
}

func (w *wanderer) minutes(most int) time.Duration {
	return time.Duration(w.r.IntN(most)) * time.Minute
}

// pass lets time pass for all clocks, as ingest sees it that seals each hour.
func (w *wanderer) pass(d time.Duration) {
	w.right = w.right.Add(d)
	if d > 24*time.Hour { // as of a machine that sleeps
		w.Clock.Set(w.Clock.Now().Add(d))
	}
	w.SetClock(w.right)
	w.otherClock.Set(w.otherClock.Now().Add(d))
	w.note("the other seals", w.other.Ingest.Seal(w.t.Context()))
}

// astray has the clock wrong for a while.
func (w *wanderer) astray() {
	by := w.minutes([]int{90, 1000, 45 * 24 * 60}[w.r.IntN(3)])
	if w.r.IntN(3) == 0 {
		by = -by
	}
	restarts := w.r.IntN(3) == 0
	if restarts {
		w.endOther()
		w.Stop()
	}
	w.Clock.Jump(by)
	w.note(fmt.Sprintf("wrong by %s, restart=%t", by, restarts), nil)
	if restarts {
		w.start()
		w.startOther()
	}
	for range 1 + w.r.IntN(3) {
		if w.r.IntN(2) == 0 {
			w.report()
		}
		if w.r.IntN(3) == 0 {
			w.Steps.CrashAt(w.r.IntN(60))
		}
		if w.r.IntN(3) > 0 {
			w.run()
		}
		w.Steps.CrashAt(never)
		w.Store.Heal()
		if w.r.IntN(2) == 0 {
			w.Advance(w.minutes(90))
		}
	}
	w.right = w.right.Add(time.Second)
	w.Clock.Jump(w.right.Sub(w.Clock.Now()))
	w.note("right again", w.engine.Ingest.Settle(w.t.Context()))
	if w.r.IntN(3) == 0 {
		w.otherClock.Jump(w.minutes(120) - time.Hour)
	}
	w.note("the other settles", w.other.Ingest.Settle(w.t.Context()))
}

// report sends samples to either process, by whose clock they are on time or late.
func (w *wanderer) report() {
	clk, in := w.Clock, w.engine.Ingest
	if w.r.IntN(3) == 0 {
		clk, in = w.otherClock, w.other.Ingest
	}
	var points []Point
	for range 1 + w.r.IntN(4) {
		age := w.minutes(20)
		switch w.r.IntN(10) {
		case 0, 1:
			age = w.minutes(300)
		case 2:
			age = w.minutes(50 * 24 * 60)
		}
		points = append(points, Point{Series: string(rune('A' + w.r.IntN(6))), TimeMs: clk.Now().Add(-age).UnixMilli(), Value: float64(w.r.IntN(100))})
	}
	_, err := w.reportTo(in, points)
	w.note(fmt.Sprintf("report %v", points), err)
}

func (w *wanderer) run() {
	runs, err := w.Run()
	w.note(fmt.Sprintf("%d runs", len(runs)), err)
}

func (w *wanderer) startOther() {
	w.other = w.cfg.engine(engine.Options{
		Store: w.Store, Clock: w.otherClock, Writer: 1000 + w.r.Uint64N(1000), Worker: storage.Worker{ID: "other"}, Timeout: time.Hour,
	})
	w.startIngest(w.other)
}

// endOther ends the second process, and leaves the store open.
func (w *wanderer) endOther() { require.NoError(w.t, w.other.Drain()) }

// restart ends both processes, and starts new ones. The second has a right clock then.
func (w *wanderer) restart() {
	w.endOther()
	w.Restart()
	w.right = w.Clock.Now()
	w.otherClock.Jump(w.right.Sub(w.otherClock.Now()))
	w.startOther()
	w.note("restart", nil)
}

// Wander runs the random cases.
func Wander(t *testing.T, b Backend) {
	t.Run("ClocksAtRandom", func(t *testing.T) { testClocksAtRandom(t, b) })
}
