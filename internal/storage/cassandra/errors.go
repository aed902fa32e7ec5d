package cassandra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/storage"
)

// convert turns the driver's errors into the contract's. No other place does.
func convert(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%w: %w", storage.ErrTimeout, context.Cause(ctx))
		}
		return context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) {
		// Not the caller: gocql prepares statements in the context of the connection, which ends
		// with the connection.
		err = errNotPrepared
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

// certain turns the refusal of a request with several attempts into a time-out: another node may
// have executed it.
func certain(err error, attempts int64) error {
	if attempts <= 1 || !errors.Is(err, storage.ErrRefused) {
		return err
	}
	return fmt.Errorf("%w from one node, and another node answered: %s", storage.ErrTimeout, err.Error())
}

var errNotPrepared = fmt.Errorf("preparing a statement: %w", gocql.ErrConnectionClosed)

// kindOf returns the contract's error for a driver's error, nil if there is none.
func kindOf(err error) error {
	var frame gocql.RequestError
	if errors.As(err, &frame) {
		switch frame.Code() {
		case gocql.ErrCodeUnavailable, gocql.ErrCodeBootstrapping:
			return storage.ErrUnavailable
		case gocql.ErrCodeOverloaded:
			return storage.ErrOverloaded
		case gocql.ErrCodeWriteTimeout, gocql.ErrCodeReadTimeout, gocql.ErrCodeCASWriteUnknown,
			gocql.ErrCodeWriteFailure, gocql.ErrCodeReadFailure:
			// A failure on a replica is often temporary, such as too many tombstones or a full
			// queue. Like a time-out it leaves open what was done.
			return storage.ErrTimeout
		// A missing permission is none of these: it is given in time, and senders would drop what is refused for good.
		case gocql.ErrCodeSyntax, gocql.ErrCodeInvalid, gocql.ErrCodeConfig:
			// The node that was asked has looked at the request, and has not begun with it.
			return storage.ErrRefused
		}
		return nil
	}
	var netErr net.Error
	switch {
	case errors.Is(err, gocql.ErrTimeoutNoResponse), errors.Is(err, gocql.ErrTooManyTimeouts):
		return storage.ErrTimeout
	case errors.Is(err, gocql.ErrNoStreams):
		return storage.ErrOverloaded
	case errors.Is(err, gocql.ErrNoConnections), errors.Is(err, gocql.ErrConnectionClosed),
		errors.Is(err, gocql.ErrSessionClosed), errors.Is(err, gocql.ErrUnavailable),
		errors.Is(err, gocql.ErrHostQueryFailed), errors.Is(err, gocql.ErrNoConnectionsStarted),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &netErr):
		return storage.ErrUnavailable
	case slices.ContainsFunc(connectionEnds, func(text string) bool { return strings.Contains(err.Error(), text) }):
		return storage.ErrUnavailable
	}
	return nil
}

// connectionEnds are texts of gocql's errors that have no value to compare with: there is no
// connection, or the connection that a request was sent on has ended. Each request under way on a
// connection gets the same error.
var connectionEnds = []string{
	"no connection available",
	"no control connection available",
	"unable to read frame body",
	"error whilst trying to discard frame",
	"heartbeat failed",
	"received unexpected frame on stream",
	"frame header stream is beyond call expected bounds",
}

// refused are texts of servers that answer but reject this client, each with advice. gocql passes
// them on as plain text.
var refused = []struct{ text, advice string }{
	{"Provided username", "the servers rejected the user name and password: check --cassandra-username and --cassandra-password-file"},
	{"is not permitted to log in", "the servers do not allow this user to log in: run ALTER ROLE … WITH LOGIN = true, or use another --cassandra-username"},
	{"unexpected authenticator", "the servers require a login method other than user name and password, which this program does not support"},
	{"Password must not be null", "the servers also require a password: set --cassandra-password-file"},
	{"requires authentication", "the servers require a user name and a password: set --cassandra-username and --cassandra-password-file"},
	{"authentication required", "the servers require a user name and a password: set --cassandra-username and --cassandra-password-file"},
	{"x509:", "the servers' certificate is not trusted: check --cassandra-ca, and that the certificate names the addresses of --cassandra-hosts"},
	{"tls:", "TLS with these servers failed: check --cassandra-tls, --cassandra-ca, --cassandra-cert and --cassandra-key"},
}

// connectError turns the error of a failed connection into one that says what to do.
func connectError(ctx context.Context, o *Options, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, r := range refused {
		if strings.Contains(err.Error(), r.text) {
			return fmt.Errorf("%s (%w)", r.advice, err)
		}
	}
	if errors.Is(err, gocql.ErrKeyspaceDoesNotExist) || strings.Contains(err.Error(), "does not exist") {
		return noSchema(o)
	}
	hint := ""
	// A server that expects TLS closes a plain connection, and so does a server that stops.
	if text := err.Error(); !o.TLS.enabled() && (strings.Contains(text, "EOF") || strings.Contains(text, "connection reset")) {
		hint = "; if the servers require TLS, set --cassandra-tls"
	}
	return fmt.Errorf("%w: no Cassandra node of %s answers%s (%w)", storage.ErrUnavailable, strings.Join(o.Hosts, ", "), hint, err)
}

// refusal is a storage.ErrSettings with its own message: a clock or the cluster may differ, too.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) Unwrap() error { return storage.ErrSettings }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

func noSchema(o *Options) error {
	return refuse("keyspace %q has no Quern tables: create them with `quern schema apply --keyspace %s`, or name another --keyspace",
		o.Keyspace, o.Keyspace)
}
