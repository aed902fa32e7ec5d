package adaptor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/netutil"

	"github.com/quern/quern/internal/agent/format"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	// listenEvery is the wait before it listens again after an error.
	listenEvery = 5 * time.Second
	// What was received is put after putEvery at the latest, or maxText bytes.
	putEvery = time.Second
	maxText  = 256 << 10
	// maxDatagram is more than a packet of UDP can have. It is no power of two, so that the buffers lie well in the processor's caches.
	maxDatagram = 64<<10 + 64
	// So many packets are received at once, and so many of these batches wait until they are read. More wait in the system.
	packetBatch, batches = 64, 4
	// A connection has lines of at most maxLine bytes, and ends after idleConnection without any.
	maxConnections, maxLine, idleConnection = 1024, 64 << 10, 30 * time.Minute
)

// Socket receives what programs send by UDP, by TCP, or as datagrams to a Unix socket. These protocols have no login: whoever reaches the
// address can send, and all users of the host can send to a Unix socket. Its stream counts bytes.
//
// A packet cannot wait. If the spool is full, its oldest chunks go. If packets come faster than they are read, the system drops some, which
// are counted. A sender by TCP waits instead.
type Socket struct {
	kind, network string // the network is udp, tcp or unixgram
	// Listen is an address and a port, or the path of a Unix socket.
	Listen string `yaml:"listen"`
	// Interval is the time between two samples of a series of StatsD, aligned to it in UTC. The default is 10s.
	Interval span `yaml:"interval"`
	// Format is statsd, graphite or influx.
	Format string            `yaml:"format"`
	Source string            `yaml:"source"`
	Labels map[string]string `yaml:"labels"`
	Prefix string            `yaml:"prefix"`

	out    *Output
	lines  *format.Format
	labels []metric.Label

	mu                sync.Mutex // of what follows
	statsd            *statsd    // nil if there are lines
	batch             ingest.Batch
	at                spool.Point
	text              uint64 // how many bytes came since the last put
	emittedMs         int64
	received, dropped uint64 // packets
	overflow          uint32 // how many packets the system has dropped for this socket
}

// String implements Adaptor.
func (s *Socket) String() string { return s.kind + " " + s.Listen }

func (s *Socket) check() error {
	_, port, _ := net.SplitHostPort(s.Listen)
	switch {
	case s.network == "unixgram" && !filepath.IsAbs(s.Listen) || s.network != "unixgram" && port == "":
		return errors.New("listen: must be an address and a port, such as 127.0.0.1:8125, or the path of a Unix socket, such as /run/quern/statsd.sock")
	case s.Format != "statsd" && s.Format != "graphite" && s.Format != "influx":
		return fmt.Errorf("format: %q is none of statsd, graphite, influx", s.Format)
	case s.Interval < 0 || time.Duration(s.Interval)%time.Second != 0 || s.Interval > 0 && s.Format != "statsd":
		return errors.New("interval: must be whole seconds, at least 1s, and only the format statsd has one")
	}
	s.Interval = cmp.Or(s.Interval, span(10*time.Second))
	l := Lines{Source: s.Source, Options: format.Options{Format: s.Format, Labels: s.Labels, Prefix: s.Prefix}}
	for name, value := range l.allLabels() {
		s.labels = append(s.labels, metric.Label{Name: name, Value: value})
	}
	if s.Format == "statsd" {
		s.statsd = newStatsd(s.Prefix, s.labels)
		return nil
	}
	err := l.checkLines()
	s.lines = l.parsed
	return err
}

// Run implements Adaptor.
func (s *Socket) Run(ctx context.Context, out *Output) {
	s.out, s.at = out, out.Spool.Stream(s.String())
	var ticks sync.WaitGroup
	ticks.Go(func() { everyTick(ctx, out.Clock, putEvery, func(tickMs int64) { s.tick(ctx, tickMs) }) })
	for ctx.Err() == nil {
		if err := s.listen(ctx); ctx.Err() == nil {
			out.Warn("cannot receive; trying again", s.String(), "err", err)
			_ = out.Clock.Sleep(ctx, listenEvery) // it fails when ctx ends
		}
	}
	ticks.Wait()
	s.emittedMs = 0
	s.tick(ctx, clock.NowMs(out.Clock))
}

// listen receives until ctx ends, or an error.
func (s *Socket) listen(ctx context.Context) error {
	if s.network == "tcp" {
		l, err := new(net.ListenConfig).Listen(ctx, s.network, s.Listen)
		if err != nil {
			return err
		}
		return s.accept(ctx, netutil.LimitListener(l, maxConnections))
	}
	if s.network == "unixgram" {
		removeStale(ctx, s.Listen)
	}
	conn, err := (&net.ListenConfig{Control: datagramOptions}).ListenPacket(ctx, s.network, s.Listen)
	if err != nil {
		return err
	}
	if s.network == "unixgram" {
		if err := os.Chmod(s.Listen, 0o722); err != nil { // who sends must be able to write
			return errors.Join(err, conn.Close())
		}
	}
	return s.receive(ctx, conn)
}

// removeStale removes the Unix socket of a process that has ended. Anything else is left to the error of listening.
func removeStale(ctx context.Context, path string) {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unixgram", path)
	if err == nil {
		_ = conn.Close() // nothing was sent
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // listening fails, too
	}
}

// datagrams is a socket that golang.org/x/net takes for one of TCP, so that it does not decode the address of each sender.
type datagrams interface {
	net.PacketConn
	net.Conn
	syscall.Conn
}

type likeTCP struct{ datagrams }

func (likeTCP) SetLinger(int) error { return errors.ErrUnsupported }

// receive receives packets. Another goroutine reads them meanwhile.
func (s *Socket) receive(ctx context.Context, conn net.PacketConn) error {
	full, free := make(chan []ipv4.Message, batches), make(chan []ipv4.Message, batches)
	for range batches {
		ms := make([]ipv4.Message, packetBatch)
		for i := range ms {
			ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, maxDatagram)}, make([]byte, overflowBytes)
		}
		free <- ms
	}
	s.overflow = 0
	var reader sync.WaitGroup
	defer reader.Wait()
	defer close(full)
	reader.Go(func() {
		for ms := range full {
			s.packets(ctx, ms)
			free <- ms[:packetBatch]
		}
	})
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	s.out.log.Info("receiving", "stream", s.String(), "address", conn.LocalAddr().String())
	for in := ipv4.NewPacketConn(likeTCP{conn.(datagrams)}); ; {
		ms := <-free
		n, err := in.ReadBatch(ms, 0)
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		full <- ms[:n]
	}
}

func (s *Socket) packets(ctx context.Context, ms []ipv4.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received += uint64(len(ms))
	last := &ms[len(ms)-1]
	if all := overflow(last.OOB[:last.NN]); all != s.overflow {
		s.out.Warn("the system dropped packets that came faster than they are read", s.String(), "packets", all-s.overflow)
		s.dropped += uint64(all - s.overflow)
		s.overflow = all
	}
	nowMs := clock.NowMs(s.out.Clock)
	for i := range ms {
		s.read(ctx, ms[i].Buffers[0][:ms[i].N], nowMs)
	}
}

// accept takes connections.
func (s *Socket) accept(ctx context.Context, l net.Listener) error {
	var senders sync.WaitGroup
	defer senders.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	s.out.log.Info("receiving", "stream", s.String(), "address", l.Addr().String())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		senders.Go(func() { s.converse(ctx, conn) })
	}
}

// converse reads the lines of a connection until it ends.
func (s *Socket) converse(ctx context.Context, conn net.Conn) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	for in := bufio.NewReaderSize(conn, maxLine); ; {
		_ = conn.SetReadDeadline(s.out.Clock.Now().Add(idleConnection)) // reading fails, too
		line, err := in.ReadSlice('\n')
		if err == nil || errors.Is(err, io.EOF) {
			s.mu.Lock()
			s.read(ctx, line, clock.NowMs(s.out.Clock))
			s.mu.Unlock()
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			s.out.Warn("a connection was closed, since its line is too long", s.String(), "from", conn.RemoteAddr().String(), "max-bytes", maxLine)
		}
		if err != nil {
			return
		}
	}
}

// read reads lines.
func (s *Socket) read(ctx context.Context, lines []byte, nowMs int64) {
	s.text, s.at.Seq = s.text+uint64(len(lines)), s.at.Seq+uint64(len(lines))
	for len(lines) > 0 {
		line, rest, _ := bytes.Cut(lines, []byte("\n"))
		if s.statsd == nil {
			s.lines.Line(line, nowMs, &s.batch)
		} else if problem := s.statsd.read(line, s.out.Clock.Elapsed()); problem != "" {
			s.batch.Reject(ingest.ReasonInvalidValue, "%s: %s", line, problem)
		}
		lines = rest
	}
	if s.text >= maxText {
		s.put(ctx)
	}
}

// put puts what was read into the spool. The offset of lines that cannot be read is where what was put began.
func (s *Socket) put(ctx context.Context) {
	s.out.rejected(s.String(), s.at.Seq-s.text, &s.batch)
	if len(s.batch.Reports()) > 0 && (s.network != "tcp" || !s.out.PutOrWait(ctx, s.String(), s.at, &s.batch)) {
		s.out.Put(s.String(), s.at, &s.batch)
	}
	s.batch.Reset()
	s.text = 0
}

// tick puts what was read, and at each interval the samples of it.
func (s *Socket) tick(ctx context.Context, tickMs int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	interval := time.Duration(s.Interval).Milliseconds()
	// The clock may be set back a little: an interval is not told twice.
	if due := metric.AlignDown(tickMs, interval); due > s.emittedMs || s.emittedMs-due >= 2*interval {
		if s.emittedMs > 0 { // the first one is at once
			tickMs = due
		}
		s.emittedMs = due
		if s.network != "tcp" {
			s.batch.Series("agent_received_packets_total", append(s.labels, metric.Label{Name: "adaptor", Value: s.String()}))
			s.batch.Add(tickMs, float64(s.received))
			s.batch.Metric("agent_dropped_packets_total")
			s.batch.Add(tickMs, float64(s.dropped))
		}
		if s.statsd != nil {
			s.statsd.emit(tickMs, s.out.Clock.Elapsed(), &s.batch, func() { s.put(ctx) })
		}
	}
	s.put(ctx)
}
