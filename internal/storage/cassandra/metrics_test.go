package cassandra

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

func TestRequestsAreCounted(t *testing.T) {
	l := newLimiter(8)
	for _, err := range []error{
		nil, nil, fmt.Errorf("w: %w", storage.ErrTimeout), storage.ErrOverloaded, storage.ErrUnavailable, storage.ErrUnavailable, errors.New("x"),
	} {
		require.ErrorIs(t, l.do(t.Context(), func() error { return err }), err)
	}
	require.NoError(t, testutil.CollectAndCompare(collector{limiter: l, nodes: new(nodes), clocks: new(clocks)}, strings.NewReader(`
# HELP quern_cassandra_requests_total Requests that have ended, after retries, by outcome.
# TYPE quern_cassandra_requests_total counter
quern_cassandra_requests_total{outcome="ok"} 2
quern_cassandra_requests_total{outcome="other"} 1
quern_cassandra_requests_total{outcome="overloaded"} 1
quern_cassandra_requests_total{outcome="timeout"} 1
quern_cassandra_requests_total{outcome="unavailable"} 2
`), "quern_cassandra_requests_total"))
}
