package pebble

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
)

// quiet returns a logger for tests that provoke errors.
// lostLog keeps what the log says is lost.
type lostLog struct {
	slog.Handler
	what []string
}

func (l *lostLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *lostLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "stored data cannot be read and is skipped" {
		r.Attrs(func(a slog.Attr) bool {
			l.what = append(l.what, a.Value.String())
			return false
		})
	}
	return nil
}

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
