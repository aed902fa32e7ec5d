package app

import (
	"bufio"
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConnectionsFor: the files of the store and of the process itself are kept, and clients share the rest.
func TestConnectionsFor(t *testing.T) {
	for _, c := range []struct {
		name            string
		files           uint64
		embedded, lines bool
		want            connections
		fails           bool
	}{
		{"unknown", 0, true, true, connections{8192, 1024}, false},
		{"just enough", 704 + 8192 + 1024, true, true, connections{8192, 1024}, false},
		{"one too few", 704 + 8192 + 1024 - 1, true, true, connections{8191, 1024}, false},
		{"without Graphite", 1024, true, false, connections{320, 0}, false},
		{"with Graphite", 1024, true, true, connections{160, 160}, false},
		{"over Cassandra", 1024, false, false, connections{832, 0}, false},
		{"the least", 704 + 32, true, true, connections{16, 16}, false},
		{"below the least", 704 + 31, true, true, connections{8192, 1024}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := connectionsFor(c.files, 8192, c.embedded, c.lines)
			require.Equal(t, c.want, got)
			if !c.fails {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "raise its limit of open files to 9920")
		})
	}
}

// TestFewFiles: a server that may open few files accepts fewer connections, and says so. With too few it does not start.
func TestFewFiles(t *testing.T) {
	s := testServer(t)
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s.mayOpen = func() uint64 { return 704 + 16 }
	addr, stop := running(t, s)
	var conns []net.Conn
	open := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(addr, "http://"))
		require.NoError(t, err)
		conns = append(conns, conn)
		return conn
	}
	for range 8 { // one client has half
		open()
	}
	line, err := bufio.NewReader(open()).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "503")
	for _, conn := range conns { // the server waits some seconds for those that have sent nothing
		require.NoError(t, conn.Close())
	}
	stop()
	require.Contains(t, log.String(), "raise its limit of open files")
	require.Contains(t, log.String(), "http_connections=16 max_connections=8192")

	s = testServer(t)
	s.mayOpen = func() uint64 { return 256 }
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", s.cfg.Listen)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorContains(t, s.run(t.Context(), l, nil), "this process may open 256 files and needs 720 at least")
}
