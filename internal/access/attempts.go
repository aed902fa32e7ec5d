package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
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
	client limits.Client
	name   string // if the client is not known: the address that stands for many clients, or the holder of sessions
	allowance
}

func newAttempts(clk clock.Clock) *attempts {
	return &attempts{clk: clk, meters: make(map[origin]*rate.Limiter)}
}

// wait returns how long there may be no attempt; 0 is not at all.
func (a *attempts) wait(from origin) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	meter := a.meters[from]
	if meter == nil {
		return 0
	}
	return time.Duration(max(0, 1-meter.TokensAt(steady(a.clk))) * float64(from.each))
}

// take counts an attempt, so that those at the same time are counted too. It returns what takes that back if the attempt
// succeeds.
func (a *attempts) take(from origin) (succeeded func()) {
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
	return func() { taken.CancelAt(now) }
}

// steady is a time for limiters, on which it has no effect that the clock is set.
func steady(clk clock.Clock) time.Time { return time.Unix(0, 0).Add(clk.Elapsed()) }
