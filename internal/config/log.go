package config

import (
	"io"
	"log/slog"
)

// Logger returns the process's logger.
func (l Log) Logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: l.LogLevel, ReplaceAttr: plainErrors}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// plainErrors drops nil errors and replaces the others by their text. The text handler would add
// the stack that some libraries keep in their errors.
func plainErrors(_ []string, a slog.Attr) slog.Attr {
	if a.Key != "err" {
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
