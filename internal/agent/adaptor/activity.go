package adaptor

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// rateSpans are the times over which rates are averaged.
var rateSpans = [3]time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute}

// Activity is what an adaptor has done. It is safe for concurrent use.
type Activity struct {
	mu       sync.Mutex
	clock    clock.Clock
	begun    time.Duration
	last     time.Duration // when rates was right
	samples  uint64
	averages [3]float64 // samples a second, less what is missing since begun
	trouble  string
	atMs     int64
}

func newActivity(c clock.Clock) *Activity {
	now := c.Elapsed()
	return &Activity{clock: c, begun: now, last: now}
}

// add counts samples, and lets the averages be those of now. They are exponential, as the load average of Unix is.
func (a *Activity) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Elapsed()
	for i, span := range rateSpans {
		a.averages[i] *= math.Exp(-float64(now-a.last) / float64(span))
		a.averages[i] += float64(n) / span.Seconds()
	}
	a.samples += uint64(n)
	a.last = now
}

// Samples returns how many were spooled, and how many a second over each of 1, 5 and 10 minutes.
func (a *Activity) Samples() (n uint64, rates [3]float64) {
	a.add(0)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, span := range rateSpans {
		if age := a.last - a.begun; age > 0 {
			rates[i] = a.averages[i] / (1 - math.Exp(-float64(age)/float64(span)))
		}
	}
	return a.samples, rates
}

// Trouble returns what went wrong last, and when in Unix ms.
func (a *Activity) Trouble() (text string, atMs int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trouble, a.atMs
}

func (a *Activity) warn(message, stream string, args []any) {
	text := stream + ": " + message
	for i := 0; i+1 < len(args); i += 2 {
		text += fmt.Sprintf(", %v=%v", args[i], args[i+1])
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trouble, a.atMs = text, clock.NowMs(a.clock)
}
