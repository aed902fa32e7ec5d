// Package commands holds the commands of the program quern that are no servers, and all that they
// print: those that ask a server over HTTP, and those that open a store themselves.
package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/quern/quern/internal/app/backend"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/client"
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

// answered sends a form to a server, and returns its whole answer: decoded, and as it came.
func answered[T any](ctx context.Context, server *config.Connection, stderr io.Writer, method, path string, form url.Values) (answer T, text []byte, err error) {
	to, err := server.Client(stderr)
	if err != nil {
		return answer, nil, err
	}
	resp, err := to.Do(ctx, method, path, form)
	if err == nil {
		defer resp.Body.Close()
		text, err = decode(resp.Body, &answer)
	}
	return answer, text, stopped(ctx, err, "stopped")
}

// decode reads a whole answer.
func decode(body io.Reader, to any) (text []byte, err error) {
	if text, err = client.ReadAll(body); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, to); err != nil {
		return nil, fmt.Errorf("the server's answer is not a Quern response: %w", err)
	}
	return text, nil
}

// table prints rows in columns, until its Flush. It is for terminals.
func table(out io.Writer, head string) *tabwriter.Writer {
	w := tabwriter.NewWriter(terminal.Plain(out), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	return w
}

func count(n int64, one, more string) string {
	if n != 1 {
		one = more
	}
	return strconv.FormatInt(n, 10) + " " + one
}

// moment formats a time, in Unix ms, for people.
func moment(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

// momentOr formats a time, in Unix ms, for people, or returns what stands for none.
func momentOr(ms int64, none string) string {
	if ms == 0 {
		return none
	}
	return moment(ms)
}

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
