package adaptor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	// A chunk of a request ends with the sample that makes it maxPart bytes, before it is encoded. So the server takes each chunk.
	maxPart = 1 << 20
	// partSample is what a sample takes beside its text.
	partSample = 32
	// leaveTime is how long requests under way may take when it stops.
	leaveTime = 5 * time.Second
)

var errFull = errors.New("the spool of the agent is full")

// HTTP takes what the server takes, at the same paths, and answers when it is in the spool. What it cannot put there, such as while the
// spool is full, it answers by 503, and the sender sends again. The labels stay as they came, so that the server finds the source of a
// series as it would itself. Its stream counts samples.
type HTTP struct {
	// Listen is an address and a port.
	Listen string `yaml:"listen"`
	// TokenFile holds what senders must show. It is required if other machines reach the address.
	TokenFile string `yaml:"token-file"`

	out *Output
	mu  sync.Mutex // of what follows, and while it is put
	at  spool.Point
}

// String implements Adaptor.
func (h *HTTP) String() string { return "http " + h.Listen }

func (h *HTTP) check() error {
	_, port, err := net.SplitHostPort(h.Listen)
	if err != nil || port == "" {
		return errors.New("listen: must be an address and a port, such as 127.0.0.1:9096")
	}
	if err := (access.Secret{File: h.TokenFile}).Check(h.Listen); err != nil {
		return fmt.Errorf("token-file: %w", err)
	}
	return nil
}

// Run implements Adaptor.
func (h *HTTP) Run(ctx context.Context, out *Output) {
	h.out, h.at = out, out.Spool.Stream(h.String())
	for ctx.Err() == nil {
		if err := h.serve(ctx); ctx.Err() == nil {
			out.Warn("cannot receive; trying again", h.String(), "err", err)
			_ = out.Clock.Sleep(ctx, listenEvery) // it fails when ctx ends
		}
	}
}

// serve answers requests until ctx ends, or an error.
func (h *HTTP) serve(ctx context.Context) error {
	opts := api.Options{
		Clock: h.out.Clock, Logger: h.out.log, Appender: h, Origins: api.Origins{CheckHost: access.Loopback(h.Listen)},
		OTLPPromote: strings.Split(metric.ResourceAttributes, ","),
	}
	if h.TokenFile != "" {
		opts.Door = access.Secret{File: h.TokenFile, Roles: access.Write}
	}
	server, err := api.New(opts)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", h.Listen)
	if err != nil {
		return err
	}
	h.out.log.Info("receiving", "stream", h.String(), "address", l.Addr().String())
	web := server.HTTPServer()
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(netutil.LimitListener(l, maxConnections)) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		patience, cut := context.WithCancel(context.WithoutCancel(ctx))
		go func() {
			_ = h.out.Clock.Sleep(patience, leaveTime) // it fails when all requests were answered
			cut()
		}()
		_ = web.Shutdown(patience) // it fails when the time is over
		cut()
		err = <-ended
	}
	return errors.Join(err, web.Close())
}

// Append implements push.Appender. A request comes into the spool as a whole, unless the disk fails: what is sent again without times
// gets new ones.
func (h *HTTP) Append(ctx context.Context, reports []ingest.Report) (result ingest.Result, err error) {
	nowMs := clock.NowMs(h.out.Clock)
	var chunks []spool.Chunk
	var part []ingest.Report
	size := 0
	for _, r := range reports {
		begin := 0
		for i := range r.Measurements {
			m := &r.Measurements[i]
			if m.TimeMs == ingest.NoTime {
				m.TimeMs = nowMs
			}
			size += partSample + len(m.Metric) + len(r.Source)
			for _, l := range m.Labels {
				size += len(l.Name) + len(l.Value)
			}
			if size >= maxPart {
				part = append(part, ingest.Report{Source: r.Source, Measurements: r.Measurements[begin : i+1]})
				chunks = append(chunks, h.out.chunk(h.String(), spool.Point{}, "", part))
				part, size, begin = part[:0], 0, i+1
			}
		}
		part = append(part, ingest.Report{Source: r.Source, Measurements: r.Measurements[begin:]})
		result.Accepted += len(r.Measurements)
	}
	if result.Accepted == 0 {
		return result, nil
	}
	chunks = append(chunks, h.out.chunk(h.String(), spool.Point{}, "", part))
	now, end := context.WithCancelCause(context.WithoutCancel(ctx))
	end(errFull) // it does not wait
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.at
	for i := range chunks {
		at.Seq += uint64(chunks[i].Samples)
		chunks[i].Point = at
	}
	if err := h.out.Spool.PutOrWait(now, chunks...); err != nil {
		h.out.Warn("refused samples that cannot be written to the spool", h.String(), "err", err)
		kind := storage.ErrUnavailable
		if errors.Is(err, spool.ErrTooLarge) {
			kind = ingest.ErrTooLarge
		}
		return ingest.Result{}, fmt.Errorf("%w: %w", kind, err)
	}
	h.out.add(result.Accepted)
	h.at = at
	return result, nil
}
