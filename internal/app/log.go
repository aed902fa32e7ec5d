package app

import "log/slog"

// component returns a logger whose lines name the part of the process.
func component(log *slog.Logger, name string) *slog.Logger { return log.With("component", name) }
