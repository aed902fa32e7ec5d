package adaptor

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/spool"
)

// TestDroppedPackets: packets that the system has no room for are counted and told.
func TestDroppedPackets(t *testing.T) {
	r := newSocket(t, &Socket{kind: "udp", network: "udp", Listen: "127.0.0.1:0", Format: "statsd"}, spool.Options{})
	r.run(t)
	r.receives()
	require.Equal(t, counts(0, 3), r.samples(t))
	conn, err := new(net.Dialer).DialContext(t.Context(), "udp", r.address)
	require.NoError(t, err)
	defer conn.Close()
	packet := []byte(strings.Repeat(" ", 60_000))
	sent := uint64(0)
	r.mu.Lock()                                // nothing is read
	for range 3 * receiveBytes / len(packet) { // the system holds up to twice what it is asked for
		_, err := conn.Write(packet)
		require.NoError(t, err)
		sent++
	}
	r.mu.Unlock()
	count := func() (received, dropped uint64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.received, r.dropped
	}
	received, dropped := count()
	for received+dropped < sent {
		for range 1000 {
			runtime.Gosched()
		}
		before := received
		// How many were dropped comes with the next packet that is not.
		if received, dropped = count(); received == before {
			_, err := conn.Write(packet[:1])
			require.NoError(t, err)
			sent++
		}
	}
	require.Equal(t, sent, received+dropped)
	require.NotZero(t, dropped)
	r.log.find("the system dropped packets")
	r.step(10)
	require.Equal(t, []string{fmt.Sprintf("agent_received_packets_total %d @10", received), fmt.Sprintf("agent_dropped_packets_total %d @10", dropped)}, r.samples(t))
}
