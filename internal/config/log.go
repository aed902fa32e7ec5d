package config

import (
	"errors"
	"io"
	"log/slog"
)

// Log says what is logged, and how.
type Log struct {
	LogLevel  slog.Leveler // a *slog.LevelVar, so that it can be changed
	LogFormat string
}

// addRows adds the rows of a command that logs.
func (l *Log) addRows(o *options) {
	parsed(o.server(), &l.LogLevel, "log-level", "info", "lowest level to log: debug, info, warn or error", func(s string) (slog.Leveler, error) {
		level := new(slog.LevelVar)
		if level.UnmarshalText([]byte(s)) != nil {
			return nil, errors.New("must be debug, info, warn or error")
		}
		return level, nil
	})
	o.server().oneOf(&l.LogFormat, "log-format", "text", "format of the log on standard error: text or json", "text", "json")
}

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
