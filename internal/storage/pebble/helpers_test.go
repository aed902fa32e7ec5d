package pebble

import (
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
)

// quiet returns a logger for tests that provoke errors.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// noLeaks asserts that the test leaves no goroutine behind. Each test calls it separately, because
// a store whose log has failed cannot be closed: Pebble's goroutines hold its locks until the
// process ends.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func newClock() *clock.Simulated { return clock.NewSimulated(time.UnixMilli(benchStart)) }
