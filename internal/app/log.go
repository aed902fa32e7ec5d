package app

import (
	"io"
	"log/slog"

	"github.com/quern/quern/internal/config"
)

// newLogger returns the process's logger.
func newLogger(w io.Writer, cfg config.Log) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: plainErrors}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// component returns a logger whose lines name the part of the process.
func component(log *slog.Logger, name string) *slog.Logger { return log.With("component", name) }

// plainErrors drops nil errors and replaces the others by their text. The text handler would add
// the stack that some libraries keep in their errors.
func plainErrors(_ []string, a slog.Attr) slog.Attr {
	if a.Key != "err" && a.Key != "error" {
		return a
	}
	switch v := a.Value.Any().(type) {
	case nil:
		return slog.Attr{}
	case error:
		a.Value = slog.StringValue(v.Error())
	}
	return a
}
