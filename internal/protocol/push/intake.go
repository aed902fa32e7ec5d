// Package push is what all protocols that push over HTTP share: reading a body within the limits, the
// way of a batch into ingest, and telling operators what a sender does not learn.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
)

// Appender ingests decoded reports.
type Appender interface {
	// Append returns when every measurement is durable or rejected. Rejections number the
	// measurements over all reports, from 0. After it returns, it MUST NOT keep any string or slice
	// of reports: they are views into a buffer that the next request reuses.
	Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error)
}

// Intake is the common part of all endpoints that ingest data. It reads bodies within shared
// limits, and refuses them while the process shuts down.
type Intake struct {
	// Limits bound one request.
	Limits Limits
	// Clients tells clients apart.
	Clients *limits.Clients
	// Sources says which label holds the source of a series, for protocols that know only series.
	Sources metric.SourceLabels
	// Unkept has what senders lose without learning of it.
	Unkept *Ledger

	appender    Appender
	logger      *slog.Logger
	draining    func() bool
	bodies      bodies
	received    sync.Pool // *Received
	budget      *limits.Budget
	undecodable *prometheus.CounterVec // by path
}

// Options configure an Intake. All but Sources and Registerer are required.
type Options struct {
	Clock    clock.Clock
	Logger   *slog.Logger
	Appender Appender
	// Limits bound one request; Budget bounds the bodies of all, and what is decoded from them.
	Limits  Limits
	Budget  *limits.Budget
	Clients *limits.Clients
	// Sources are those of the store.
	Sources metric.SourceLabels
	// Draining returns whether the process shuts down.
	Draining   func() bool
	Registerer prometheus.Registerer
}

// NewIntake makes an intake and registers its metrics.
func NewIntake(opts Options) (*Intake, error) {
	lost, err := newLedger(opts.Clock, opts.Logger, opts.Registerer)
	if err != nil {
		return nil, err
	}
	in := &Intake{
		Unkept:   lost,
		appender: opts.Appender, Limits: opts.Limits, logger: opts.Logger, draining: opts.Draining,
		bodies: bodies{limits: &opts.Limits}, Clients: opts.Clients, Sources: opts.Sources,
		budget: opts.Budget,
		undecodable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_undecodable_measurements_total",
			Help: "Measurements rejected while decoding, before they reached ingest, by path.",
		}, []string{"path"}),
	}
	return in, Register(opts.Registerer, in.undecodable)
}

// Rejects counts measurements rejected while decoding a request to the path.
func (in *Intake) Rejects(path string, n int) { in.undecodable.WithLabelValues(path).Add(float64(n)) }

// Received is the part of a request's body that could be read.
type Received struct {
	body

	Encoding Encoding
	// Broken is why the body broke off, nil if it did not. The data before that is good.
	Broken error
}

// Refusal answers, in a protocol's own form, a request from which nothing is accepted.
type Refusal func(w http.ResponseWriter, r *http.Request, code int, message string)

// Receive reads a request's body and calls do with it. It refuses a request that cannot be read at
// all. accepts checks the headers; unsaid is the compression if they name none.
func (in *Intake) Receive(w http.ResponseWriter, r *http.Request, accepts func(http.Header) error, unsaid Encoding, refuse Refusal, do func(*Received)) {
	if in.Drains(w) {
		refuse(w, r, http.StatusServiceUnavailable, respond.Draining)
		return
	}
	if err := accepts(r.Header); err != nil {
		refuse(w, r, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	enc, err := ParseEncoding(r.Header, unsaid)
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd, snappy")
		refuse(w, r, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	// What may not be kept is not read either.
	if err := limits.MaySpend(r.Context()); err != nil {
		refuse(w, r, in.Failed(w, r, err), err.Error())
		return
	}
	b, ok := in.received.Get().(*Received)
	if !ok {
		b = new(Received)
	}
	// Release after the reply, whose messages may still refer to the body. After a panic, other
	// code may still hold the buffers, so only the budget is released.
	healthy := false
	defer func() {
		b.release()
		if healthy {
			in.received.Put(b)
		}
	}()
	b.Encoding, b.claim = enc, in.budget.Claim(in.Clients.ByAddress(r.RemoteAddr))
	b.Broken = in.bodies.read(w, r, enc, &b.body)
	code, message := respond.BodyFailure(w, b.Broken), ""
	switch {
	case errors.Is(b.Broken, ErrUntrusted):
		code, message = http.StatusBadRequest, fmt.Sprintf("%s; nothing of it was kept", b.Broken)
	case code != 0:
		message = b.Broken.Error()
	}
	if code != 0 {
		b.claim.Release() // the client may take arbitrarily long to read the reply
		refuse(w, r, code, message)
	} else {
		do(b)
	}
	healthy = true
}

// Drains returns whether the process shuts down; if so, it sets headers that send the client
// elsewhere.
func (in *Intake) Drains(w http.ResponseWriter) bool {
	if !in.draining() {
		return false
	}
	w.Header().Set("Retry-After", respond.RetryAway)
	w.Header().Set("Connection", "close")
	return true
}

// Append appends decoded reports; broken is the error that cut the body off, if any. It has then
// cancelled the request's own context, under which no series could be registered.
func (in *Intake) Append(ctx context.Context, reports []ingest.Report, broken error) (ingest.Result, error) {
	if broken != nil {
		lasting, done := ingest.Outlive(ctx)
		defer done()
		ctx = lasting
	}
	return in.appender.Append(ctx, reports)
}

// Charged returns a context whose charges count like the body; see limits.Charge.
func (b *Received) Charged(ctx context.Context) context.Context {
	return limits.WithClaim(ctx, &b.claim)
}

// Allowance limits what decoding a request may take in addition to the body.
func (in *Intake) Allowance(r *http.Request, b *Received) ingest.Allowance {
	a := ingest.Allowance{Max: in.Limits.DecodedBytes, Take: b.claim.Grow, Gone: r.Context().Err}
	if b.Broken != nil {
		a.Gone = nil // readable data is kept even if the client has gone
	}
	return a
}

// Stopped answers a request whose decoding stopped; nothing of the request is accepted. It sets
// Retry-After where a retry makes sense.
func (in *Intake) Stopped(w http.ResponseWriter, err error) (code int, message string) {
	const advice = ", nothing of it was kept: send smaller requests"
	switch {
	case errors.Is(err, ingest.ErrTooMany):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than the limit of %d measurements"+advice, in.Limits.Measurements)
	case errors.Is(err, ingest.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, "the body exceeds the limit on labels, or on bytes of names and labels, of one request" + advice
	case errors.Is(err, ingest.ErrNoRoom):
		w.Header().Set("Retry-After", respond.RetryBusy)
		return http.StatusTooManyRequests, respond.ErrNoRoom.Error()
	}
	return respond.ClientGone, err.Error()
}

// Failed chooses the status code for an error of the appender. It logs unexpected errors.
func (in *Intake) Failed(w http.ResponseWriter, r *http.Request, err error) int {
	if errors.Is(err, storage.ErrRefused) && !storage.IsAway(err) {
		return http.StatusBadRequest // ingest has logged and counted it; to send it again would be of no use
	}
	code, retryAfter := respond.Failure(r.Context(), err)
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	if code == http.StatusInternalServerError {
		in.logger.ErrorContext(r.Context(), "append failed", "path", r.URL.Path, "err", err)
	}
	return code
}
