// Package graphite listens for Graphite's plaintext protocol over TCP.
//
// The protocol has no replies, so that a sender can be held up in one way only: nothing more is read from it. What must hold:
//
//  1. Nothing that was read is lost while the process lives: what ingest does not take is tried again, unless the store refuses it for
//     good, and until then no more is read from that connection. What the sender has sent meanwhile waits in the kernels, and in the sender.
//  2. Bounded: the connections, what each holds of its lines, and how many are decoded at once.
//  3. Lines that ingest does not take hold up their own connection and no other: they give up what decoding takes while they
//     wait, and those that are tried again use half of it at most.
//  4. A line that cannot be taken is counted and told of, and the others are kept.
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

	decoder "github.com/quern/quern/internal/api/graphite"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

// Connections are those that are open at once unless Options say otherwise.
const Connections = 1024

const (
	// minBufferBytes is what the buffer of a connection begins with.
	minBufferBytes = 4 << 10
	// logEvery is how often lines that were not taken are logged, and that ingest takes nothing.
	logEvery = 10 * time.Second
	// The waits until what ingest did not take is tried again.
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

// Appender takes what was decoded; see ingest.Ingest.Append.
type Appender interface {
	Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error)
}

// Options tune and bound a Server.
type Options struct {
	// Sources are the tags that name a series' source, best first.
	Sources ingest.SourceLabels
	// Connections bounds those that are open; others wait to be accepted. The default is 1024.
	Connections int
	// Idle is how long a connection may be silent. The default is 30m.
	Idle time.Duration
	// LineBytes bounds what is kept of a line whose end has not come yet. The default is 64 KiB.
	LineBytes int
	// BatchBytes bounds the lines of a connection that are appended together. The default is 256 KiB.
	BatchBytes int
	// Batches is how many connections are decoded and appended at once; half of them may be for what is tried again. The
	// default is 32.
	Batches int
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
	// Metrics takes the server's own metrics. The default is nobody.
	Metrics prometheus.Registerer
}

func (o *Options) ensureDefaults() {
	o.Connections = cmp.Or(o.Connections, Connections)
	o.Idle = cmp.Or(o.Idle, 30*time.Minute)
	o.LineBytes = cmp.Or(o.LineBytes, 64<<10)
	o.BatchBytes = max(cmp.Or(o.BatchBytes, 256<<10), o.LineBytes+1)
	o.Batches = cmp.Or(o.Batches, 32)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Server takes lines from connections.
type Server struct {
	ctx     context.Context // of what is appended
	breakUp context.CancelFunc
	to      Appender
	clk     clock.Clock
	opts    Options
	metrics metrics
	slots   chan struct{} // has a value for each open connection
	batches chan *batch   // those that nobody uses
	retries chan struct{} // has a value for each batch that is used for what is tried again

	badLines, refusals, givenUp *throttle.Throttle

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	closing  bool
	running  sync.WaitGroup
}

// batch is what decoding takes.
type batch struct {
	decoder.Decoder
	ingest.Batch
}

type metrics struct {
	lines, invalid, retries, refused prometheus.Counter
	connections                      prometheus.Gauge
}

// New makes a server that appends to an appender. When ctx is done, what is being appended is broken off; Shutdown lets
// it end.
func New(ctx context.Context, to Appender, clk clock.Clock, opts Options) *Server {
	opts.ensureDefaults()
	f := promauto.With(opts.Metrics)
	s := &Server{
		to: to, clk: clk, opts: opts,
		metrics: metrics{
			lines: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_total",
				Help: "Lines received, those that could not be taken among them.",
			}),
			invalid: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_invalid_total",
				Help: "Lines that could not be decoded, which ingest never saw.",
			}),
			retries: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_retries_total",
				Help: "Times that ingest did not take lines, so that their connection was held up.",
			}),
			refused: f.NewCounter(prometheus.CounterOpts{
				Name: "quern_graphite_lines_refused_total",
				Help: "Lines that were given up since the store refuses them, or others that were written with them, for good.",
			}),
			connections: f.NewGauge(prometheus.GaugeOpts{
				Name: "quern_graphite_connections",
				Help: "Open connections.",
			}),
		},
		slots:    make(chan struct{}, opts.Connections),
		batches:  make(chan *batch, opts.Batches),
		retries:  make(chan struct{}, max(1, opts.Batches/2)),
		badLines: throttle.New(clk, logEvery), refusals: throttle.New(clk, logEvery), givenUp: throttle.New(clk, logEvery),
		conns: make(map[net.Conn]bool),
	}
	s.ctx, s.breakUp = context.WithCancel(ctx)
	for range opts.Batches {
		s.batches <- &batch{Batch: ingest.Batch{Sources: opts.Sources}}
	}
	return s
}

// Serve takes connections from l until Shutdown, which closes it. It is called once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.listener = l
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return l.Close()
	}
	for wait := firstWait; ; {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		if err != nil {
			<-s.slots
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Such as too many open files: connections that end make room.
			s.opts.Logger.Warn("connections cannot be accepted", "err", err, "again_in", wait)
			// That ctx ends meanwhile is seen above.
			_ = s.clk.Sleep(s.ctx, wait)
			wait = min(2*wait, lastWait)
			continue
		}
		wait = firstWait
		if !s.add(conn) {
			return conn.Close()
		}
	}
}

// add has a connection served, unless the server is being shut down.
func (s *Server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		<-s.slots
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
			<-s.slots
		}()
		s.serve(conn)
	})
	return true
}

// Shutdown accepts and reads nothing more, and waits until what was read is appended. When ctx is done it is given up, and the
// error is ctx's.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for conn := range s.conns {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends the read under way
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

// mayRead gives the next read its time. It is false when there must be none.
func (s *Server) mayRead(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closing && conn.SetReadDeadline(s.clk.Now().Add(s.opts.Idle)) == nil
}

// serve takes the lines of a connection until it ends.
func (s *Server) serve(conn net.Conn) {
	from := conn.RemoteAddr()
	buf := make([]byte, 0, minBufferBytes)
	skipping := false // the rest of a line that is too long
	for s.mayRead(conn) {
		n, err := conn.Read(buf[len(buf):cap(buf)])
		full := len(buf)+n == cap(buf)
		buf = buf[:len(buf)+n]
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
		// Where the sender has more than there is room for, there may be more.
		if full && cap(buf) < s.opts.BatchBytes {
			buf = append(make([]byte, 0, min(2*cap(buf), s.opts.BatchBytes)), buf...)
		}
	}
}

// ended tells of a connection that ended otherwise than between two lines. Half a line may be a number of which digits are missing, so it
// is not taken, by carbon neither.
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
	s.say(from, n, what)
}

// say logs lines that were not taken.
func (s *Server) say(from net.Addr, n int, first string) {
	if skipped, ok := s.badLines.Pass(); ok {
		s.opts.Logger.Warn("lines not taken", "from", from, "lines", n, "first", first, "more_since_last", skipped)
	}
}

// take has ingest take whole lines, and tries until it does. It is false when that was given up.
func (s *Server) take(from net.Addr, lines []byte) bool {
	// Now, and not when it is appended at last: what is appended twice has the same time.
	nowMs := clock.NowMs(s.clk)
	err := s.try(from, lines, nowMs)
	for wait := firstWait; err != nil; wait = min(2*wait, lastWait) {
		n := bytes.Count(lines, []byte{'\n'})
		if s.ctx.Err() != nil {
			s.lost(from, n, err)
			return false
		}
		if errors.Is(err, storage.ErrRefused) && !storage.IsAway(err) {
			s.refused(from, n, err)
			return true
		}
		s.metrics.retries.Inc()
		if skipped, ok := s.refusals.Pass(); ok {
			s.opts.Logger.Warn("lines wait, and their senders", "from", from, "lines", n, "more_since_last", skipped, "err", err)
		}
		// That ctx ends meanwhile is said when it has been tried a last time.
		_ = s.clk.Sleep(s.ctx, wait)
		err = s.tryAgain(from, lines, nowMs)
	}
	return true
}

// refused gives up lines that the store does not take, or some of them.
func (s *Server) refused(from net.Addr, n int, err error) {
	s.metrics.lines.Add(float64(n))
	s.metrics.refused.Add(float64(n))
	if skipped, ok := s.givenUp.Pass(); ok {
		s.opts.Logger.Error("lines lost: the store refuses them, or some of them, for good", "from", from, "lines", n, "more_since_last", skipped, "err", err)
	}
}

// tryAgain is try for lines that were refused, and waits for its turn among those.
func (s *Server) tryAgain(from net.Addr, lines []byte, nowMs int64) error {
	select {
	case s.retries <- struct{}{}:
		defer func() { <-s.retries }()
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	return s.try(from, lines, nowMs)
}

// try decodes lines and appends what is in them. With an error nothing counts as taken.
func (s *Server) try(from net.Addr, lines []byte, nowMs int64) error {
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
		s.say(from, len(all), first)
	}
	return nil
}

// lost tells of lines that were read in vain.
func (s *Server) lost(from net.Addr, n int, err error) {
	s.opts.Logger.Error("lines lost: the process ends and they cannot be written", "from", from, "lines", n, "err", err)
}
