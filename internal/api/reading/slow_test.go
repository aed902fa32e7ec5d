package reading_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/limits"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// progressBytes is what a client must read in each window.
const progressBytes = 64 << 10

// TestSlowReadersOfQueries: the turn of a query is not held for as long as a client cares to read:
// the reply ends soon after the query's time, unless it is read well.
func TestSlowReadersOfQueries(t *testing.T) {
	const timeout = 10 * time.Second
	turns := reading.Turns{Queries: limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil)}), QueryTimeout: timeout}
	const count = 40
	line := strings.Repeat("x", 1<<20)
	var ended chan error
	set := func(o *api.Options) {
		ended = make(chan error, 1)
		answer := func(writeLine func(string) error) (err error) {
			defer func() { ended <- err }()
			for range count {
				if err := writeLine(line); err != nil {
					return err
				}
			}
			return nil
		}
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) { to.Handle(access.Read, route.Filtered, "GET /query", turns.Query(answer)) })}
	}
	apitest.InBubble(t, set, func(t *testing.T, dial func() net.Conn) {
		receive := func(piece int, pause time.Duration) (took time.Duration, err error) {
			began := time.Now()
			conn := dial()
			fmt.Fprintf(conn, "GET /query HTTP/1.1\r\nHost: localhost\r\n\r\n")
			go func() {
				buf := make([]byte, piece)
				for {
					if _, err := io.ReadFull(conn, buf); err != nil {
						return
					}
					time.Sleep(pause)
				}
			}()
			err = <-ended
			took = time.Since(began)
			give, turned := turns.Queries.Take(t.Context(), "")
			require.NoError(t, turned)
			give()
			_ = conn.Close()
			return took, err
		}
		for _, pause := range []time.Duration{25 * time.Second, time.Second} {
			took, err := receive(progressBytes, pause)
			require.Error(t, err)
			require.Less(t, took, 2*(timeout+30*time.Second), pause)
		}
		took, err := receive(progressBytes, 100*time.Millisecond)
		require.NoError(t, err)
		require.Greater(t, took, timeout+30*time.Second, "it has longer than that as long as it is read")
	})
}
