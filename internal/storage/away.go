package storage

import (
	"context"
	"time"

	"github.com/quern/quern/internal/clock"
)

// The waits between attempts to reach a store that is away.
const (
	firstWait = time.Second
	lastWait  = 30 * time.Second
)

// WhileAway calls try, which must be repeatable, until the store answers. Any error for which IsAway is false ends it.
// tell receives each failed attempt, and the wait until the next.
func WhileAway(ctx context.Context, clk clock.Clock, try func(context.Context) error, tell func(err error, wait time.Duration)) error {
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := try(ctx)
		if err == nil || !IsAway(err) || ctx.Err() != nil {
			return err
		}
		tell(err, wait)
		if err := clk.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}
