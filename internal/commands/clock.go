package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/wire"
)

// ConfirmClock tells a server of the embedded store that its clock is right.
func ConfirmClock(ctx context.Context, cfg config.Status, stdout, stderr io.Writer) error {
	reply, err := ask(ctx, &cfg.Connection, stderr, wire.ConfirmClockPath, nil)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer reply.Close()
	fmt.Fprintln(stdout, "The clock is confirmed: rows expire again.")
	return nil
}
