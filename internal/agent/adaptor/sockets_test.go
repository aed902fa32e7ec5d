package adaptor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
)

// stepped is a clock of which each Sleep ends when the test says.
type stepped struct {
	*clock.Simulated
	steps chan time.Time
}

func (c stepped) Sleep(ctx context.Context, _ time.Duration) error {
	select {
	case at := <-c.steps:
		c.Set(at)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// logLines receives the lines of a log.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// find returns the next line that has a text.
func (l logLines) find(text string) string {
	for line := range l {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// socketRig is a Socket that runs. Its time begins far ahead, so that no connection is idle.
type socketRig struct {
	*Socket
	spool   *spool.Spool
	begin   time.Time
	clock   stepped
	log     logLines
	stop    func() // and wait
	address string
	at      spool.Position
}

func newSocket(t *testing.T, s *Socket, o spool.Options) *socketRig {
	t.Helper()
	r := &socketRig{Socket: s, log: make(logLines, 1000), begin: time.Date(2100, 1, 1, 0, 0, 3, 0, time.UTC)}
	r.clock = stepped{clock.NewSimulated(r.begin), make(chan time.Time)}
	o.FS, o.Clock, o.Logger = spool.Memory(), r.clock, slog.New(slog.DiscardHandler)
	var err error
	r.spool, err = spool.Open("/spool", o)
	require.NoError(t, err)
	require.NoError(t, s.check())
	return r
}

// run runs it until it receives.
func (r *socketRig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, NewOutput(r.spool, r.clock, slog.New(slog.NewTextHandler(r.log, nil)), "web-1"))
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(func() {
		r.stop()
		require.NoError(t, r.spool.Close())
	})
}

// receives waits until it receives.
func (r *socketRig) receives() {
	_, address, _ := strings.Cut(r.log.find("receiving"), "address=")
	r.address = strings.TrimSpace(address)
}

// send sends packets, or lines by TCP, and waits until they were read.
func (r *socketRig) send(t *testing.T, packets ...string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), r.network, r.address)
	require.NoError(t, err)
	defer conn.Close()
	before := r.count()
	for _, p := range packets {
		_, err := conn.Write([]byte(p))
		require.NoError(t, err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		require.NoError(t, tcp.CloseWrite())
		n, _ := tcp.Read(make([]byte, 1)) // it closes when it has read all
		require.Zero(t, n)
		return
	}
	for r.count() < before+len(packets) {
		runtime.Gosched()
	}
}

func (r *socketRig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.received)
}

// step moves the clock to so many seconds after the begin of the minute.
func (r *socketRig) step(seconds int) {
	r.clock.steps <- r.begin.Add(time.Duration(seconds-3) * time.Second)
}

// samples waits for the next chunk, and returns its samples. Times are seconds after the begin of the minute.
func (r *socketRig) samples(t *testing.T) (samples []string) {
	t.Helper()
	chunks, at, err := r.spool.Next(t.Context(), r.at, 1)
	require.NoError(t, err)
	require.Len(t, chunks, 1)
	r.at = at
	require.Equal(t, r.String(), chunks[0].Stream)
	for _, s := range decoded(t, chunks[0]) {
		require.Equal(t, "web-1", s.Source)
		if s.Labels["adaptor"] == r.String() {
			delete(s.Labels, "adaptor")
		}
		labels := ""
		for name, value := range s.Labels {
			labels += " " + name + "=" + value
		}
		samples = append(samples, fmt.Sprintf("%s%s %v @%v", s.Metric, labels, s.Value, time.UnixMilli(s.Time).Sub(r.begin.Truncate(time.Minute)).Seconds()))
	}
	return samples
}

func counts(received, at int) []string {
	return []string{fmt.Sprintf("agent_received_packets_total %d @%d", received, at), fmt.Sprintf("agent_dropped_packets_total 0 @%d", at)}
}

// TestDatagrams: what packets have is put after a second, StatsD at each interval, and what is left at the stop.
func TestDatagrams(t *testing.T) {
	for _, network := range []string{"udp", "unixgram"} {
		listen := "127.0.0.1:0"
		if network == "unixgram" {
			listen = filepath.Join(t.TempDir(), "s")
		}
		t.Run(network, func(t *testing.T) {
			r := newSocket(t, &Socket{kind: network, network: network, Listen: listen, Format: "graphite", Labels: map[string]string{"env": "prod"}, Prefix: "p."}, spool.Options{})
			r.run(t)
			r.receives()
			require.Equal(t, []string{"agent_received_packets_total env=prod 0 @3", "agent_dropped_packets_total env=prod 0 @3"}, r.samples(t))
			r.send(t, "a 1\nb;x=y 2 4102444802\n", "bad\nc 3")
			r.step(4)
			got := r.samples(t)
			require.Len(t, got, 3)
			require.Equal(t, "p.a env=prod 1 @3", got[0])
			require.Equal(t, "p.c env=prod 3 @3", got[2])
			require.Contains(t, r.log.find("cannot be read"), `lines=1 offset=0 err="\"bad\"`)
			require.EqualValues(t, 30, r.spool.Stream(r.String()).Seq)
			r.send(t, "d 4\n")
			r.stop()
			require.Equal(t, "p.d env=prod 4 @4", r.samples(t)[0])
		})
		t.Run(network+" statsd", func(t *testing.T) {
			r := newSocket(t, &Socket{kind: network, network: network, Listen: listen, Format: "statsd", Interval: span(5 * time.Second)}, spool.Options{})
			r.run(t)
			r.receives()
			require.Equal(t, counts(0, 3), r.samples(t))
			r.send(t, "a:1|c\nbad\na:2|c", "a:1|c")
			r.step(4)
			require.Contains(t, r.log.find("cannot be read"), `lines=1 offset=0 err="bad: a line must be`)
			r.step(5)
			require.Equal(t, append(counts(2, 5), "a 0 @4.999", "a 4 @5"), r.samples(t))
			r.step(9)
			r.step(11)
			require.Equal(t, append(counts(2, 10), "a 4 @10"), r.samples(t))
			r.send(t, "a:1|c")
			r.stop()
			require.Equal(t, append(counts(3, 11), "a 5 @11"), r.samples(t))
		})
	}
}

// TestTCP: the lines of connections are put after a second, or when there are many. Too long a line, or none for a time, ends a connection.
func TestTCP(t *testing.T) {
	r := newSocket(t, &Socket{kind: "tcp", network: "tcp", Listen: "127.0.0.1:0", Format: "influx"}, spool.Options{})
	r.run(t)
	r.receives()
	r.send(t, "m,x=y v=1 4102444802000000000\nm v=", "2 4102444802000000000")
	r.send(t, "bad\n")
	r.step(4)
	require.Equal(t, []string{"m_v x=y 1 @2", "m_v 2 @2"}, r.samples(t))
	require.Contains(t, r.log.find("cannot be read"), "lines=1 offset=0")
	r.send(t, "m v=3\n", strings.Repeat("x", maxLine))
	require.Contains(t, r.log.find("too long"), "max-bytes=65536")
	r.stop()
	require.Equal(t, []string{"m_v 3 @4"}, r.samples(t))

	r = newSocket(t, &Socket{kind: "tcp", network: "tcp", Listen: "127.0.0.1:0", Format: "graphite"}, spool.Options{})
	r.clock.Set(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) // the deadline of each connection has passed
	r.run(t)
	r.receives()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
}

// TestTCPWaits: while the spool is full, what came by TCP waits, and nothing more is read.
func TestTCPWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSocket(t, &Socket{kind: "tcp", network: "tcp", Listen: "127.0.0.1:0", Format: "graphite"}, spool.Options{MaxBytes: 1 << 10})
		r.out = NewOutput(r.spool, r.clock, slog.New(slog.NewTextHandler(r.log, nil)), "web-1")
		for range 4 {
			require.NoError(t, r.spool.Put(spool.Chunk{Stream: "other", Data: make([]byte, 200)}))
		}
		go func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.read(t.Context(), []byte("a 1 1\n"+strings.Repeat("\n", maxText)), 0)
		}()
		synctest.Wait()
		require.False(t, r.mu.TryLock())
		for range 4 {
			chunks, at, err := r.spool.Next(t.Context(), r.at, 1)
			require.NoError(t, err)
			require.Equal(t, "other", chunks[0].Stream)
			require.NoError(t, r.spool.Ack(chunks, at))
			r.at = at
		}
		synctest.Wait()
		require.True(t, r.mu.TryLock())
		require.Len(t, r.samples(t), 1)
		require.NoError(t, r.spool.Close())
	})
}

// TestClockSetBackALittle: an interval is not told twice.
func TestClockSetBackALittle(t *testing.T) {
	r := newSocket(t, &Socket{kind: "udp", network: "udp", Listen: "127.0.0.1:0", Format: "statsd"}, spool.Options{})
	r.out = NewOutput(r.spool, r.clock, slog.New(slog.NewTextHandler(r.log, nil)), "web-1")
	for _, tickMs := range []int64{5_000, 20_000, 19_000, 20_000, 21_000, 30_000} { // of some day
		r.tick(t.Context(), tickMs+1e12)
	}
	chunks, _, err := r.spool.Next(t.Context(), spool.Position{}, 1<<20)
	require.NoError(t, err)
	require.Len(t, chunks, 3, "at 5, 20 and 30 s")
	require.NoError(t, r.spool.Close())
}

// TestPortInUse: it is told, and tried again.
func TestPortInUse(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		var end func() error
		var address string
		if network == "udp" {
			conn, err := new(net.ListenConfig).ListenPacket(t.Context(), network, "127.0.0.1:0")
			require.NoError(t, err)
			end, address = conn.Close, conn.LocalAddr().String()
		} else {
			l, err := new(net.ListenConfig).Listen(t.Context(), network, "127.0.0.1:0")
			require.NoError(t, err)
			end, address = l.Close, l.Addr().String()
		}
		r := newSocket(t, &Socket{kind: network, network: network, Listen: address, Format: "statsd"}, spool.Options{})
		r.run(t)
		require.Contains(t, r.log.find("cannot receive"), "address already in use")
		require.NoError(t, end())
		// Both the ticks and the next try wait for a step.
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.receives()
		}()
		for waiting := true; waiting; {
			select {
			case r.clock.steps <- r.begin:
			case <-done:
				waiting = false
			}
		}
		r.send(t, "a:1|c")
	}
}

// TestStaleSocket: the socket of a process that has ended is replaced; one that a process listens to, or another file, is not.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	other, err := new(net.ListenConfig).ListenPacket(t.Context(), "unixgram", path)
	require.NoError(t, err)
	s := &Socket{kind: "unix", network: "unixgram", Listen: path, Format: "statsd"}
	require.NoError(t, s.check())
	require.ErrorContains(t, s.listen(t.Context()), "address already in use")
	require.FileExists(t, path)
	require.NoError(t, other.Close())
	r := newSocket(t, &Socket{kind: "unix", network: "unixgram", Listen: path, Format: "statsd"}, spool.Options{})
	r.run(t)
	r.receives()
	r.send(t, "a:1|c")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o722), info.Mode().Perm())
	r.stop()
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	require.ErrorContains(t, s.listen(t.Context()), "address already in use")
	require.FileExists(t, path)
	require.NoError(t, os.Remove(path))
	stream, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	defer stream.Close()
	require.ErrorContains(t, s.listen(t.Context()), "address already in use")
	require.FileExists(t, path)
}

// BenchmarkUDP sends packets of StatsD as fast as it can, and counts what is received, and what the system drops.
func BenchmarkUDP(b *testing.B) {
	kept, err := spool.Open("/spool", spool.Options{FS: vfs.NewMem(), Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	defer kept.Close()
	log := make(logLines, 1000)
	r := &socketRig{Socket: &Socket{kind: "udp", network: "udp", Listen: "127.0.0.1:0", Format: "statsd"}, log: log}
	require.NoError(b, r.check())
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, NewOutput(kept, clock.System{}, slog.New(slog.NewTextHandler(log, nil)), "web-1"))
	}()
	r.receives()
	conn, err := new(net.Dialer).DialContext(b.Context(), "udp", r.address)
	require.NoError(b, err)
	defer conn.Close()
	out := ipv4.NewPacketConn(conn.(net.PacketConn))
	ms := make([]ipv4.Message, 64)
	for i := range ms {
		ms[i].Buffers = [][]byte{fmt.Appendf(nil, "requests.count:%d|c|#env:prod,service:shop,host:web-%d", i, i)}
	}
	var sent atomic.Int64
	b.ResetTimer()
	begin := time.Now()
	for sent.Load() < int64(b.N) {
		n, err := out.WriteBatch(ms, 0)
		require.NoError(b, err)
		sent.Add(int64(n))
	}
	sending := time.Since(begin)
	all := func() (received, dropped int64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return int64(r.received), int64(r.dropped)
	}
	received, dropped := all()
	for before := int64(-1); received+dropped < sent.Load(); received, dropped = all() {
		if received == before { // the number of dropped packets comes with the next packet
			_, err := out.WriteBatch(ms[:1], 0)
			require.NoError(b, err)
			sent.Add(1)
		}
		before = received
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	elapsed := time.Since(begin)
	b.ReportMetric(float64(sent.Load())/sending.Seconds(), "sent/s")
	b.ReportMetric(float64(received)/elapsed.Seconds(), "received/s")
	b.ReportMetric(100*float64(dropped)/float64(sent.Load()), "%dropped")
	cancel()
	<-ended
}
