package pebble

import "log/slog"

// quiet is a logger for tests that provoke errors.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
