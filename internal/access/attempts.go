package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/admission"
)

// allowance is how many attempts may be made at once, and the time after which one more may.
type allowance struct {
	burst int
	each  time.Duration
}

// The allowances. An address that stands for many clients has that of many.
var (
	perAddress = allowance{10, 6 * time.Second}
	perProxy   = allowance{100, time.Second}
	// perHolder is for who logs in with success: each time that writes a line of the audit log, and a logout writes the
	// document of all sessions.
	perHolder = allowance{100, 6 * time.Second}
)

// mostRemembered bounds the addresses that are remembered. Beyond it all are forgotten.
const mostRemembered = 4096

// attempts limits how often one address may guess passwords, or one user or token log in. There is no limit for a name:
// whoever fails for it, from a few addresses, would keep its owner out. What bounds the guesses of all addresses together
// is that Users compare one password at a time.
type attempts struct {
	clk clock.Clock

	mu     sync.Mutex
	meters map[origin]*rate.Limiter
}

// origin identifies whose attempts are counted together.
type origin struct {
	client admission.Client
	name   string // if the client is not known: the address that stands for many clients, or the holder of sessions
	allowance
}

func newAttempts(clk clock.Clock) *attempts {
	return &attempts{clk: clk, meters: make(map[origin]*rate.Limiter)}
}

// take counts an attempt. It returns what takes that back, for an attempt that succeeds, or how long to wait if there
// may be none now.
func (a *attempts) take(from origin) (succeeded func(), wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	meter := a.meters[from]
	if meter == nil {
		if len(a.meters) >= mostRemembered {
			clear(a.meters)
		}
		meter = rate.NewLimiter(rate.Every(from.each), from.burst)
		a.meters[from] = meter
	}
	now := steady(a.clk)
	taken := meter.ReserveN(now, 1)
	if wait = taken.DelayFrom(now); wait > 0 {
		taken.CancelAt(now)
		return nil, wait
	}
	return func() { taken.CancelAt(now) }, 0
}

// steady is a time for limiters, on which it has no effect that the clock is set.
func steady(clk clock.Clock) time.Time { return time.Unix(0, 0).Add(clk.Elapsed()) }
