package pebble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/storage"
)

// convert converts Pebble's errors to those of the contract. No other function does.
func convert(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, storage.ErrCorrupt):
		return fmt.Errorf("%s: %w", op, err)
	case lsm.IsCorruptionError(err):
		return fmt.Errorf("%s: %w", op, damage{plain(err)})
	case errors.Is(err, lsm.ErrClosed):
		return fmt.Errorf("%s: %w: %w", op, storage.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// damage is an error that counts as storage.ErrCorrupt but has a text of its own: that of
// ErrCorrupt speaks of chunks.
type damage struct{ error }

// Is reports whether target is storage.ErrCorrupt.
func (d damage) Is(target error) bool { return target == storage.ErrCorrupt }

// Unwrap returns the underlying error.
func (d damage) Unwrap() error { return d.error }

// contextError returns the error of an operation whose context is done.
func contextError(ctx context.Context, op string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w: %w", op, storage.ErrTimeout, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w", op, context.Cause(ctx))
}

// failures keeps the first error that Pebble cannot survive. On such an error Pebble would end the
// process from whatever goroutine met it. Or it would panic with a mutex unlocked that a deferred
// call unlocks again; nothing can recover from that. So failures parks that goroutine for good: it
// neither continues nor unwinds. The callers return with the error, and OnFatal decides about the
// process.
type failures struct {
	failed chan struct{}
	logger *slog.Logger

	mu sync.Mutex
	// onFatal is nil while Open can still return the failure.
	onFatal func(error)
	err     error
}

func newFailures(o *Options) *failures {
	return &failures{failed: make(chan struct{}), logger: o.Logger}
}

// fail marks the store as unusable. OnFatal runs in a goroutine of its own: in the caller's,
// Pebble's log writer would swallow its panic.
func (f *failures) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = fmt.Errorf("%w: it cannot write its log and must be reopened: %w", storage.ErrUnavailable, err)
	close(f.failed)
	f.logger.Error("the store has failed and must be reopened", "err", err)
	if f.onFatal != nil {
		go f.onFatal(f.err)
	}
}

// park fails the store and never returns.
func (f *failures) park(err error) {
	f.fail(err)
	select {}
}

// opening reports whether Open is still under way.
func (f *failures) opening() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.onFatal == nil
}

// arm sets OnFatal. Before it, Open returns a failure as its error.
func (f *failures) arm(onFatal func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onFatal = onFatal
	if f.err != nil {
		go onFatal(f.err)
	}
}

// check returns the failure, nil if there is none.
func (f *failures) check() error {
	select {
	case <-f.failed:
		return f.err
	default:
		return nil
	}
}

// pebbleLogger receives Pebble's log messages.
type pebbleLogger struct {
	log      *slog.Logger
	failures *failures
}

// Infof implements Pebble's Logger. Pebble reports every flush and compaction.
func (l *pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug(fmt.Sprintf(format, args...))
}

// Errorf implements Pebble's Logger.
func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error(fmt.Sprintf(format, args...))
}

// Fatalf implements Pebble's Logger. It never returns, as Pebble requires.
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.failures.park(fmt.Errorf(format, args...))
}
