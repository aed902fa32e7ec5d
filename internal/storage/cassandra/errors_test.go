package cassandra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// frame is an error answer of a server. gocql's own types do not let others set their codes.
type frame struct {
	error
	code int
}

func (f frame) Code() int       { return f.code }
func (f frame) Message() string { return f.Error() }

// answered returns a gocql error as gocql's decoder makes it.
func answered(err error, code int) error { return frame{err, code} }

func plain(code int) error { return frame{errors.New("server says no"), code} }

// driverErrors are errors that gocql may return, each with the contract's error for it; nil means
// none.
var driverErrors = []struct {
	name string
	err  error
	want error
}{
	{"too few replicas", answered(&gocql.RequestErrUnavailable{Consistency: gocql.LocalQuorum, Required: 2, Alive: 1}, gocql.ErrCodeUnavailable), storage.ErrUnavailable},
	{"bootstrapping", plain(gocql.ErrCodeBootstrapping), storage.ErrUnavailable},
	{"overloaded", plain(gocql.ErrCodeOverloaded), storage.ErrOverloaded},
	{"write time-out", answered(&gocql.RequestErrWriteTimeout{WriteType: "SIMPLE"}, gocql.ErrCodeWriteTimeout), storage.ErrTimeout},
	{"time-out of a conditional write", answered(&gocql.RequestErrWriteTimeout{WriteType: "CAS"}, gocql.ErrCodeWriteTimeout), storage.ErrTimeout},
	{"read time-out", answered(&gocql.RequestErrReadTimeout{}, gocql.ErrCodeReadTimeout), storage.ErrTimeout},
	{"outcome unknown", answered(&gocql.RequestErrCASWriteUnknown{}, gocql.ErrCodeCASWriteUnknown), storage.ErrTimeout},
	{"write failure", answered(&gocql.RequestErrWriteFailure{}, gocql.ErrCodeWriteFailure), storage.ErrTimeout},
	{"read failure", answered(&gocql.RequestErrReadFailure{}, gocql.ErrCodeReadFailure), storage.ErrTimeout},

	{"syntax", plain(gocql.ErrCodeSyntax), storage.ErrRefused},
	{"invalid", plain(gocql.ErrCodeInvalid), storage.ErrRefused},
	{"unauthorized", plain(gocql.ErrCodeUnauthorized), nil},
	{"server error", plain(gocql.ErrCodeServer), nil},

	{"no answer", gocql.ErrTimeoutNoResponse, storage.ErrTimeout},
	{"many without answer", gocql.ErrTooManyTimeouts, storage.ErrTimeout},
	{"no streams", gocql.ErrNoStreams, storage.ErrOverloaded},
	{"no hosts", gocql.ErrNoConnections, storage.ErrUnavailable},
	{"no connection at the start", gocql.ErrNoConnectionsStarted, storage.ErrUnavailable},
	{"hosts cannot be asked", gocql.ErrHostQueryFailed, storage.ErrUnavailable},
	{"connection closed", gocql.ErrConnectionClosed, storage.ErrUnavailable},
	{"session closed", gocql.ErrSessionClosed, storage.ErrUnavailable},
	{"host down", gocql.ErrUnavailable, storage.ErrUnavailable},
	{"not prepared anywhere", errors.New("gocql: unable to fetch prepared info: no connection available"), storage.ErrUnavailable},
	{"no control connection", errors.New("gocql: no control connection available"), storage.ErrUnavailable},
	{"an answer that breaks off", errors.New("unable to read frame body: read 100/20000 bytes: EOF"), storage.ErrUnavailable},
	{"an answer too long that breaks off", errors.New("error whilst trying to discard frame with invalid length: EOF"), storage.ErrUnavailable},
	{"a node that hangs", errors.New("gocql: heartbeat failed"), storage.ErrUnavailable},
	{"an answer to nobody", errors.New("gocql: received unexpected frame on stream 7: [x]"), storage.ErrUnavailable},
	{"an answer to nobody, from out of range", errors.New("gocql: frame header stream is beyond call expected bounds: 40000"), storage.ErrUnavailable},
	{"refused", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, storage.ErrUnavailable},
	{"reset", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, storage.ErrUnavailable},
	{"no such host", &net.DNSError{Err: "no such host", Name: "db1"}, storage.ErrUnavailable},
	{"end of the stream", io.EOF, storage.ErrUnavailable},
	{"end within a frame", io.ErrUnexpectedEOF, storage.ErrUnavailable},

	{"another", errors.New("gocql: query argument length mismatch"), nil},
}

var contract = []error{
	storage.ErrUnavailable, storage.ErrTimeout, storage.ErrOverloaded, storage.ErrCorrupt,
	storage.ErrConflict, storage.ErrFenced, storage.ErrSettings, storage.ErrRefused,
}

func TestConvert(t *testing.T) {
	require.NoError(t, convert(t.Context(), nil))
	for _, c := range driverErrors {
		t.Run(c.name, func(t *testing.T) {
			for _, err := range []error{c.err, fmt.Errorf("in the driver: %w", c.err)} {
				got := convert(t.Context(), err)
				require.ErrorIs(t, got, c.err, "what the driver said stays")
				for _, kind := range contract {
					require.Equal(t, kind == c.want, errors.Is(got, kind), "%v: %v", got, kind) //nolint:errorlint // which of them it is, and which not
				}
			}
		})
	}
}

// If a connection ends while a statement is being prepared, gocql reports it as if the caller had
// cancelled.
func TestConvertACancellationOfTheDrivers(t *testing.T) {
	for _, err := range []error{context.Canceled, fmt.Errorf("in the driver: %w", context.Canceled)} {
		got := convert(t.Context(), err)
		require.ErrorIs(t, got, storage.ErrUnavailable)
		require.NotErrorIs(t, got, context.Canceled)
	}
}

// If the caller has cancelled, or its deadline has passed, no server is to blame, whatever the
// driver says.
func TestConvertAsksTheContextFirst(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	why := errors.New("the server shuts down")
	because, cancelBecause := context.WithCancelCause(t.Context())
	cancelBecause(why)
	for _, c := range driverErrors {
		got := convert(cancelled, c.err)
		require.ErrorIs(t, got, context.Canceled, c.name)
		require.False(t, storage.IsAway(got), c.name)

		got = convert(late, c.err)
		require.ErrorIs(t, got, storage.ErrTimeout, c.name)
		require.ErrorIs(t, got, context.DeadlineExceeded, c.name)

		require.Equal(t, why, convert(because, c.err), c.name)
	}
	require.NoError(t, convert(cancelled, nil), "what was answered was answered")
}

func TestConnectError(t *testing.T) {
	const nobody = `the store is unavailable: no Cassandra node of db1, db2 answers`
	for _, c := range []struct {
		name string
		tls  bool
		said string
		want string
		kind error
	}{
		{"nobody there", false, "dial tcp 127.0.0.1:9042: connect: connection refused", nobody + " (", storage.ErrUnavailable},
		{"TLS is asked for", false, "gocql: unable to create session: EOF", nobody + "; if the servers require TLS, set --cassandra-tls (", storage.ErrUnavailable},
		{"TLS is asked for, abruptly", false, "read tcp 127.0.0.1:1->127.0.0.1:9042: read: connection reset by peer", nobody + "; if the servers require TLS, set --cassandra-tls (", storage.ErrUnavailable},
		{"a broken stream under TLS", true, "EOF", nobody + " (", storage.ErrUnavailable},
		{"wrong password", false, "Provided username quern and/or password are incorrect", "check --cassandra-username and --cassandra-password-file (", nil},
		{"a role that is none to log in with", false, "quern is not permitted to log in", "ALTER ROLE … WITH LOGIN = true", nil},
		{"another kind of login", false, `unexpected authenticator "com.example.KerberosAuthenticator"`, "a login method other than user name and password", nil},
		{"a user name alone", false, "Password must not be null", "set --cassandra-password-file", nil},
		{"no password", false, `authentication required (using "org.apache.cassandra.auth.PasswordAuthenticator")`, "set --cassandra-username", nil},
		{"unknown authority", true, "tls: failed to verify certificate: x509: certificate signed by unknown authority", "check --cassandra-ca", nil},
		{"no certificate of ours", true, "remote error: tls: certificate required", "--cassandra-cert", nil},
		{"no TLS there", true, "tls: first record does not look like a TLS handshake", "TLS with these servers failed", nil},
		{"no keyspace", false, gocql.ErrKeyspaceDoesNotExist.Error(), "quern schema apply --keyspace quern", storage.ErrSettings},
		{"no keyspace, in the server's words", false, "Keyspace 'quern' does not exist", "quern schema apply --keyspace quern", storage.ErrSettings},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &Options{Hosts: []string{"db1", "db2"}, TLS: TLS{Enabled: c.tls}}
			o.ensureDefaults()
			got := connectError(t.Context(), o, errors.New(c.said))
			require.ErrorContains(t, got, c.want)
			if c.kind != nil {
				require.ErrorIs(t, got, c.kind)
			} else {
				require.False(t, storage.IsAway(got), "to try again is of no use: %v", got)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, connectError(ctx, &Options{}, io.EOF), context.Canceled)
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		err  error
		want gocql.RetryType
	}{
		{plain(gocql.ErrCodeWriteTimeout), gocql.RetryNextHost},
		{plain(gocql.ErrCodeReadFailure), gocql.RetryNextHost},
		{plain(gocql.ErrCodeUnavailable), gocql.RetryNextHost},
		{plain(gocql.ErrCodeBootstrapping), gocql.RetryNextHost},
		{gocql.ErrConnectionClosed, gocql.RetryNextHost},
		{gocql.ErrTimeoutNoResponse, gocql.RetryNextHost},
		{plain(gocql.ErrCodeOverloaded), gocql.Rethrow},
		{plain(gocql.ErrCodeSyntax), gocql.Rethrow},
		{plain(gocql.ErrCodeInvalid), gocql.Rethrow},
	} {
		require.Equal(t, c.want, retries{}.GetRetryType(c.err), c.err)
	}
}
