// Package graphite listens for Graphite's plaintext protocol over TCP, and decodes it. Each line has
// a path, a value and a time, and becomes one sample.
//
// The protocol has no replies. The only way to hold up a sender is to stop reading from it.
// Invariants:
//
//  1. Nothing that was read is lost while the process lives: what ingest does not take is tried
//     again, unless the store refuses it for good, and until then no more is read from that
//     connection. What the sender has sent meanwhile waits in the kernels, and in the sender.
//  2. Bounded: what each connection holds of its lines, and how many are decoded at once. The listener bounds the connections.
//  3. Lines that ingest does not take hold up their own connection and no other: they give up what
//     decoding takes while they wait, and those that are tried again use half of it at most.
//  4. A line that cannot be taken is counted and told of, and the others are kept.
//  5. Nothing is taken of a connection that begins as one of a browser does.
package graphite

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Connections is the maximum number of open connections, for the listener.
const Connections = 1024

const (
	// minBufferBytes is the initial size of a connection's buffer.
	minBufferBytes = 4 << 10
	// logEvery is the minimum interval between log lines about rejected lines, and between those
	// about refusals by ingest.
	logEvery = 10 * time.Second
	// firstWait and lastWait are the first and the longest wait before a retry.
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
	// handshake is the maximum time for the handshake of TLS.
	handshake = 10 * time.Second
)

// Appender ingests decoded lines; see ingest.Ingest.Append.
type Appender interface {
	Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error)
}

// Options configure a Server.
type Options struct {
	// Sources say which tag holds the source of a series.
	Sources metric.SourceLabels
	// Idle is the maximum time for which a connection may be silent. The default is 30m.
	Idle time.Duration
	// LineBytes bounds the buffered part of an incomplete line. The default is 64 KiB.
	LineBytes int
	// BatchBytes bounds the lines of a connection that are appended together. The default is 256
	// KiB. It is at least LineBytes + 1.
	BatchBytes int
	// Batches is the number of connections that decode and append at once; up to half of them may
	// be retries. The default is 32.
	Batches int
	// Logger receives messages for the operator. The default discards them.
	Logger *slog.Logger
	// Metrics registers the server's own metrics. The default registers them nowhere.
	Metrics prometheus.Registerer
}

func (o *Options) ensureDefaults() {
	o.Idle = cmp.Or(o.Idle, 30*time.Minute)
	o.LineBytes = cmp.Or(o.LineBytes, 64<<10)
	o.BatchBytes = max(cmp.Or(o.BatchBytes, 256<<10), o.LineBytes+1)
	o.Batches = cmp.Or(o.Batches, 32)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Server ingests lines from connections.
type Server struct {
	ctx     context.Context // context of appends
	breakUp context.CancelFunc
	to      Appender
	clk     clock.Clock
	opts    Options
	metrics metrics
	batches chan *batch   // idle batches
	retries chan struct{} // has a value for each batch in use by a retry

	badLines, refusals, givenUp, strangers *limits.Throttle

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	closing  bool
	running  sync.WaitGroup
}

// batch holds the memory for decoding.
type batch struct {
	Decoder
	ingest.Batch
}

type metrics struct {
	lines, invalid, retries, refused, strangers prometheus.Counter
	connections                                 prometheus.Gauge
}

// New makes a server that appends to an appender. When ctx is done, pending appends are cancelled;
// Shutdown lets them finish.
func New(ctx context.Context, to Appender, clk clock.Clock, opts Options) *Server {
	opts.ensureDefaults()
	f := promauto.With(opts.Metrics)
	s := &Server{
		to: to, clk: clk, opts: opts,
		metrics: metrics{
			lines: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_total",
				Help: "Lines received, including those that were not accepted.",
			}),
			invalid: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_invalid_total",
				Help: "Lines that could not be decoded, and so did not reach ingest.",
			}),
			retries: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_retries_total",
				Help: "Failed appends, each of which blocked its connection until a retry.",
			}),
			refused: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_refused_total",
				Help: "Lines dropped because the store permanently refuses them, or others written with them.",
			}),
			strangers: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_strangers_total",
				Help: "Connections closed because they began as HTTP or TLS.",
			}),
			connections: f.NewGauge(prometheus.GaugeOpts{
				Name: "quern_graphite_connections",
				Help: "Open connections.",
			}),
		},
		batches:  make(chan *batch, opts.Batches),
		retries:  make(chan struct{}, max(1, opts.Batches/2)),
		badLines: limits.NewThrottle(clk, logEvery), refusals: limits.NewThrottle(clk, logEvery), givenUp: limits.NewThrottle(clk, logEvery),
		strangers: limits.NewThrottle(clk, logEvery),
		conns:     make(map[net.Conn]bool),
	}
	s.ctx, s.breakUp = context.WithCancel(ctx)
	for range opts.Batches {
		s.batches <- &batch{Batch: ingest.Batch{Sources: opts.Sources}}
	}
	return s
}

// Serve accepts connections from l until Shutdown, which closes l. Call it once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.listener = l
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return l.Close()
	}
	for wait := firstWait; ; {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// For example, too many open files: connections that end make room.
			s.opts.Logger.Warn("cannot accept connections; retrying", "err", err, "again_in", wait)
			if s.clk.Sleep(s.ctx, wait) != nil {
				return nil //nolint:nilerr // the server ends
			}
			wait = min(2*wait, lastWait)
			continue
		}
		wait = firstWait
		if !s.add(conn) {
			return conn.Close()
		}
	}
}

// add starts serving a connection, unless the server is shutting down.
func (s *Server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.conns[conn] = true
	s.metrics.connections.Inc()
	s.running.Go(func() {
		defer func() {
			_ = conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			s.metrics.connections.Dec()
		}()
		s.serve(conn)
	})
	return true
}

// Shutdown stops accepting and reading, and waits until the lines read are appended. When ctx is
// done, it gives up and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for conn := range s.conns {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the pending read
	}
	s.mu.Unlock()
	defer s.breakUp()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.breakUp()
		<-done
		return context.Cause(ctx)
	}
}

// mayRead sets the deadline of the next read. It returns false if there must be none.
func (s *Server) mayRead(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closing && conn.SetReadDeadline(s.clk.Now().Add(s.opts.Idle)) == nil
}

// shakeHands completes the handshake of TLS, if the connection has it, in a time in which nothing else is allowed.
func (s *Server) shakeHands(conn net.Conn) error {
	over, ok := conn.(interface {
		HandshakeContext(ctx context.Context) error
	})
	if !ok {
		return nil
	}
	if err := conn.SetDeadline(s.clk.Now().Add(handshake)); err != nil {
		return err
	}
	if err := over.HandshakeContext(s.ctx); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// serve ingests the lines of a connection until it ends.
func (s *Server) serve(conn net.Conn) {
	from := conn.RemoteAddr()
	if err := s.shakeHands(conn); err != nil {
		s.opts.Logger.Debug("no TLS connection", "from", from, "err", err)
		return
	}
	buf := make([]byte, 0, minBufferBytes)
	skipping := false // inside a line that is too long
	known := false    // whether this is Graphite's protocol
	for s.mayRead(conn) {
		n, err := conn.Read(buf[len(buf):cap(buf)])
		full := len(buf)+n == cap(buf)
		buf = buf[:len(buf)+n]
		if !known {
			var protocol string
			if protocol, known = stranger(buf); protocol != "" {
				s.metrics.strangers.Inc()
				s.note(s.strangers, slog.LevelWarn, "connection closed, nothing of it is stored: it speaks another protocol than Graphite's", from, "protocol", protocol)
				return
			}
		}
		if skipping {
			end := bytes.IndexByte(buf, '\n')
			if skipping = end < 0; skipping {
				buf = buf[:0]
			} else {
				buf = buf[:copy(buf, buf[end+1:])]
			}
		}
		if end := bytes.LastIndexByte(buf, '\n') + 1; end > 0 {
			if !s.take(from, buf[:end]) {
				return
			}
			buf = buf[:copy(buf, buf[end:])]
		}
		if len(buf) > s.opts.LineBytes {
			s.bad(from, 1, "a line is too long")
			buf, skipping = buf[:0], true
		}
		if err != nil {
			s.ended(from, err, len(buf) > 0)
			return
		}
		// A full buffer suggests that the sender has more data, so let it grow.
		if full && cap(buf) < s.opts.BatchBytes {
			buf = append(make([]byte, 0, min(2*cap(buf), s.opts.BatchBytes)), buf...)
		}
	}
}

// ended reports a connection that did not end between two lines. A partial line is dropped, as
// carbon does: its number may lack digits.
func (s *Server) ended(from net.Addr, err error, within bool) {
	switch {
	case within:
		s.bad(from, 1, "the connection ended within a line")
	case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
	default:
		s.opts.Logger.Debug("connection broken", "from", from, "err", err)
	}
}

// bad counts lines that could not be decoded.
func (s *Server) bad(from net.Addr, n int, what string) {
	s.metrics.lines.Add(float64(n))
	s.metrics.invalid.Add(float64(n))
	s.rejected(from, n, what)
}

// rejected logs rejected lines.
func (s *Server) rejected(from net.Addr, n int, first string) {
	s.note(s.badLines, slog.LevelWarn, "lines rejected", from, "lines", n, "first", first)
}

// note logs a message, unless one of its kind was logged a short time ago.
func (s *Server) note(kind *limits.Throttle, level slog.Level, message string, from net.Addr, args ...any) {
	if skipped, ok := kind.Pass(); ok {
		s.opts.Logger.Log(s.ctx, level, message, append([]any{"from", from, "more_since_last", skipped}, args...)...)
	}
}

// take makes ingest accept whole lines, with retries. It returns false if it gave up.
func (s *Server) take(from net.Addr, lines []byte) bool {
	// Take the time once: lines that are appended twice must have the same time.
	nowMs := clock.NowMs(s.clk)
	err := s.try(from, lines, nowMs, nil)
	for wait := firstWait; err != nil; wait = min(2*wait, lastWait) {
		n := bytes.Count(lines, []byte{'\n'})
		if s.ctx.Err() != nil {
			s.opts.Logger.Error("lines lost: append failed while the process stops", "from", from, "lines", n, "err", err)
			return false
		}
		if errors.Is(err, storage.ErrRefused) && !storage.IsAway(err) {
			s.metrics.lines.Add(float64(n))
			s.metrics.refused.Add(float64(n))
			s.note(s.givenUp, slog.LevelError, "lines lost: the store permanently refuses some or all of them", from, "lines", n, "err", err)
			return true
		}
		s.metrics.retries.Inc()
		s.note(s.refusals, slog.LevelWarn, "append failed; retrying, senders are blocked", from, "lines", n, "err", err)
		// If ctx ends meanwhile, the last attempt below reports it.
		_ = s.clk.Sleep(s.ctx, wait)
		err = s.try(from, lines, nowMs, s.retries)
	}
	return true
}

// try decodes lines and appends their samples. On error, the lines do not count as ingested. Unless turns is nil, it waits for
// one of them.
func (s *Server) try(from net.Addr, lines []byte, nowMs int64, turns chan struct{}) error {
	if turns != nil {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	var b *batch
	select {
	case b = <-s.batches:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	defer func() { s.batches <- b }()
	b.Reset()
	b.Decode(lines, nowMs, &b.Batch)
	var result ingest.Result
	if reports := b.Reports(); len(reports) > 0 {
		var err error
		if result, err = s.to.Append(s.ctx, reports); err != nil {
			return err
		}
	}
	s.metrics.lines.Add(float64(b.Len()))
	s.metrics.invalid.Add(float64(b.Rejected()))
	if all := b.Result(result).Rejected; len(all) > 0 {
		first := all[0].Message
		if series, ok := b.SeriesOf(all[0].Index); ok {
			first = series + ": " + first
		}
		s.rejected(from, len(all), first)
	}
	return nil
}
