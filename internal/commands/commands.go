// Package commands holds the commands of the program quern that are no servers, and all that they
// print: those that ask a server over HTTP, and those that open a store themselves.
package commands

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/storage"
)

// stopped returns err, or the message say if a signal caused the error.
func stopped(ctx context.Context, err error, say string) error {
	if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return errors.New(say)
	}
	return err
}

// stayMarked tells users that marking twice does no harm.
const stayMarked = "slices marked so far stay marked, and repeating the request is safe"

// ask posts a form to a server. The caller must close the returned body.
func ask(ctx context.Context, server *config.Connection, stderr io.Writer, path string, form url.Values) (io.ReadCloser, error) {
	to, err := server.Client(stderr)
	if err != nil {
		return nil, err
	}
	resp, err := to.Do(ctx, http.MethodPost, path, form)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func count(n int64, one, more string) string {
	if n != 1 {
		one = more
	}
	return strconv.FormatInt(n, 10) + " " + one
}

// moment formats a time, in Unix ms, for people.
func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

func orNothing(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// whenThere calls try until a node of the cluster answers, and logs that it waits.
func whenThere(ctx context.Context, log *slog.Logger, cluster *config.Cluster, try func(context.Context) error) error {
	return storage.WhileAway(ctx, clock.System{}, try, func(err error, wait time.Duration) {
		log.Warn(backend.NoNode(cluster, wait), "err", err)
	})
}
