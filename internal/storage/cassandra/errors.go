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

// convert is the only place where the driver's errors become the contract's.
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
		// Not the caller: gocql prepares statements in the context of the connection, which is cancelled when that ends.
		err = errNotPrepared
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return err
}

// certain is err, of a request that was made in so many attempts: what one node refuses another may have done.
func certain(err error, attempts int64) error {
	if attempts <= 1 || !errors.Is(err, storage.ErrRefused) {
		return err
	}
	return fmt.Errorf("%w from one node, and another one: %s", storage.ErrTimeout, err.Error())
}

var errNotPrepared = fmt.Errorf("preparing a statement: %w", gocql.ErrConnectionClosed)

// kindOf is the contract's error that a driver's error means, nil if it is another.
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
			// A failure on a replica is often one of that moment, such as too many tombstones
			// or a full queue, and like a time-out leaves open what was done.
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

// connectionEnds are what gocql says in words alone when there is no connection, or when that ends which a request was sent
// by: each request under way on it gets the same error.
var connectionEnds = []string{
	"no connection available",
	"no control connection available",
	"unable to read frame body",
	"error whilst trying to discard frame",
	"heartbeat failed",
	"received unexpected frame on stream",
	"frame header stream is beyond call expected bounds",
}

// refused are what servers say, in words that gocql passes on as plain text, when they answer
// but do not want this client; with what to do about each.
var refused = []struct{ text, advice string }{
	{"Provided username", "the servers do not take this user name and password: check --cassandra-username and --cassandra-password"},
	{"is not permitted to log in", "the servers do not let this user log in: ALTER ROLE … WITH LOGIN = true, or give another --cassandra-username"},
	{"unexpected authenticator", "the servers ask for another kind of login than by user name and password, which this program does not know"},
	{"Password must not be null", "the servers ask for a password too: set --cassandra-password or --cassandra-password-file"},
	{"requires authentication", "the servers ask for a user name and a password: set --cassandra-username and --cassandra-password"},
	{"authentication required", "the servers ask for a user name and a password: set --cassandra-username and --cassandra-password"},
	{"x509:", "the servers' certificate is not trusted: check --cassandra-ca, and that the certificate names the addresses of --cassandra-hosts"},
	{"tls:", "no TLS with these servers: check --cassandra-tls, --cassandra-ca, --cassandra-cert and --cassandra-key"},
}

// connectError says what to do about a session that could not be made.
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
	// Servers that get anything else than TLS close the connection, and so do those that stop.
	if said := err.Error(); !o.TLS.enabled() && (strings.Contains(said, "EOF") || strings.Contains(said, "connection reset")) {
		hint = "; if the servers ask for TLS, set --cassandra-tls"
	}
	return fmt.Errorf("%w: no Cassandra node of %s answers%s (%w)", storage.ErrUnavailable, strings.Join(o.Hosts, ", "), hint, err)
}

// refusal is a storage.ErrSettings in words of its own: what differs may be a clock or the cluster.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) Unwrap() error { return storage.ErrSettings }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

func noSchema(o *Options) error {
	return refuse("keyspace %q has no tables of Quern's: make them with `quern schema apply --keyspace %s`, or name another --keyspace",
		o.Keyspace, o.Keyspace)
}
