package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
)

type sendFunc func(ctx context.Context) error

func (f sendFunc) Send(ctx context.Context, _ Batch) error { return f(ctx) }

// TestFailover: the servers are tried in their order. One that is away is left alone for a while, unless all are.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tried string
		var lines bytes.Buffer
		log := slog.New(slog.NewTextHandler(&lines, nil))
		answers := map[string]error{"a": nil, "b": nil}
		server := func(name string) Sender {
			return sendFunc(func(context.Context) error {
				tried += name
				return answers[name]
			})
		}
		f := NewFailover(clock.System{}, log, []Sender{server("a"), server("b")})
		send := func(want string, wantErr error) {
			t.Helper()
			tried = ""
			require.Equal(t, wantErr, f.Send(t.Context(), sample))
			require.Equal(t, want, tried)
		}
		away, refused := errors.New("away"), &RejectedError{Total: 1}
		send("a", nil)
		answers["a"] = refused
		send("a", refused)
		answers["a"] = away
		send("ab", nil)
		require.Contains(t, lines.String(), "another server has taken measurements")
		answers["a"] = nil
		send("b", nil)
		time.Sleep(restTime)
		send("a", nil)
		answers["a"], answers["b"] = away, away
		send("ab", away)
		send("ab", away)
		answers["a"], answers["b"] = &RetryError{After: time.Minute, Err: away}, nil
		send("ab", nil)
		answers["b"] = away
		send("b", away)
		answers["b"] = &RetryError{After: time.Hour, Err: away}
		send("b", answers["b"])
		send("a", answers["a"]) // the first that may be asked: the agent has waited, or stops
		time.Sleep(time.Minute)
		answers["a"] = nil
		send("a", nil)
	})
}

// TestFailoverSilent: a server that takes all the time for an answer is not the first for the next batch.
func TestFailoverSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFailover(clock.System{}, slog.New(slog.DiscardHandler), []Sender{
			sendFunc(func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}),
			sendFunc(func(context.Context) error { return nil }),
		})
		ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
		defer cancel()
		require.Error(t, f.Send(ctx, sample))
		require.NoError(t, f.Send(t.Context(), sample))
	})
}

// TestFailoverStop: a stop tries a server that has asked for time once more.
func TestFailoverStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(context.Context, []ingest.Measurement) error {
			return &RetryError{After: time.Hour, Err: errors.New("busy")}
		}}
		a := start(t, Options{}, &counting{n: 1}, NewFailover(clock.System{}, slog.New(slog.DiscardHandler), []Sender{s}))
		after(time.Second)
		require.Equal(t, 1, s.tries())
		s.answer = nil
		a.stop()
		require.Equal(t, upTo(1), s.values())
	})
}
