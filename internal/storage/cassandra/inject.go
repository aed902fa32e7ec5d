//go:build !faults

package cassandra

import "log/slog"

func inject(s session, _ *slog.Logger) session { return s }
