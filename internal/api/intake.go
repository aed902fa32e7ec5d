package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/storage"
)

// intake is what all endpoints that take data have in common: it reads bodies within the limits that
// they share, and refuses them while the process is shutting down.
type intake struct {
	appender Appender
	limits   *Limits
	logger   *slog.Logger
	draining func() bool
	bodies   bodies
	received sync.Pool // *received
	clients  *admission.Clients
	budget   *admission.Budget

	undecodable *prometheus.CounterVec // by path
	unkept      *unkept
}

func newIntake(opts *Options, draining func() bool) (*intake, error) {
	lost, err := newUnkept(opts.Clock, opts.Logger, opts.Registerer)
	if err != nil {
		return nil, err
	}
	in := &intake{
		unkept:   lost,
		appender: opts.Appender, limits: &opts.Limits, logger: opts.Logger, draining: draining,
		bodies: bodies{limits: &opts.Limits}, clients: opts.Clients,
		budget: admission.NewBudget(opts.MaxInFlightBytes, opts.Limits.requestBytes()),
		undecodable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_undecodable_measurements_total",
			Help: "Measurements rejected while decoding, which ingest never saw, by path.",
		}, []string{"path"}),
	}
	return in, register(opts.Registerer, in.undecodable)
}

// rejects counts what was rejected while a request to the path was decoded.
func (in *intake) rejects(path string, n int) { in.undecodable.WithLabelValues(path).Add(float64(n)) }

// received is a request's body as far as it could be read.
type received struct {
	body

	enc encoding
	// broken is why the rest could not be read. What is there of the body is good.
	broken error
}

// refusal answers a request of which nothing is taken, in a protocol's own form.
type refusal func(w http.ResponseWriter, r *http.Request, code int, message string)

// receive reads a request's body and has do deal with it. What cannot be taken at all it refuses itself. accepts says
// what is wrong with the headers, unsaid how the body is compressed when they do not say.
func (in *intake) receive(w http.ResponseWriter, r *http.Request, accepts func(http.Header) error, unsaid encoding, refuse refusal, do func(*received)) {
	if in.drains(w) {
		refuse(w, r, http.StatusServiceUnavailable, drainingMessage)
		return
	}
	if err := accepts(r.Header); err != nil {
		refuse(w, r, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	enc, err := parseEncoding(r.Header, unsaid)
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd, snappy")
		refuse(w, r, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	b, ok := in.received.Get().(*received)
	if !ok {
		b = new(received)
	}
	// After the reply: its messages may still look into the body. Not after a panic:
	// nobody knows who holds what then, so only the budget is put right.
	healthy := false
	defer func() {
		b.release()
		if healthy {
			in.received.Put(b)
		}
	}()
	b.enc, b.claim = enc, in.budget.Claim(in.clients.Of(r.RemoteAddr))
	b.broken = in.bodies.read(w, r, enc, &b.body)
	if errors.Is(b.broken, errUntrusted) {
		b.data = b.data[:0]
	}
	if code := readFailure(w, b.broken); code != 0 {
		b.claim.Release() // it may take as long until the client has read the reply
		refuse(w, r, code, b.broken.Error())
	} else {
		do(b)
	}
	healthy = true
}

// drains says whether nothing is taken any more, and has the reply send the client elsewhere.
func (in *intake) drains(w http.ResponseWriter) bool {
	if !in.draining() {
		return false
	}
	w.Header().Set("Retry-After", retryAwaySeconds)
	w.Header().Set("Connection", "close")
	return true
}

// outliveTime bounds what is done for a client that has gone.
const outliveTime = 10 * time.Second

// outlive is for what came whole of a body that breaks off. The client's going has ended the request's own context, and
// under that no series could be registered.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), outliveTime)
}

// append has decoded reports appended; broken is why the body could not be read to its end, if it could not.
func (in *intake) append(ctx context.Context, reports []ingest.Report, broken error) (ingest.Result, error) {
	if broken != nil {
		lasting, done := outlive(ctx)
		defer done()
		ctx = lasting
	}
	return in.appender.Append(ctx, reports)
}

// allowance is what decoding a request may take, besides the body.
func (in *intake) allowance(r *http.Request, b *received) ingest.Allowance {
	a := ingest.Allowance{Max: in.limits.DecodedBytes, Take: b.claim.Grow, Gone: r.Context().Err}
	if b.broken != nil {
		a.Gone = nil // what came whole is kept, whether or not its client is there
	}
	return a
}

// stopped answers a request whose decoding was stopped, so that nothing of it is taken. Retry-After is set where it makes
// sense.
func (in *intake) stopped(w http.ResponseWriter, err error) (code int, message string) {
	const advice = ", nothing of it was kept: send smaller requests"
	switch {
	case errors.Is(err, ingest.ErrTooMany):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than the limit of %d measurements"+advice, in.limits.Measurements)
	case errors.Is(err, ingest.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, "the body has more labels, or names and labels of more bytes, than a request may have" + advice
	case errors.Is(err, ingest.ErrNoRoom):
		w.Header().Set("Retry-After", retryBusySeconds)
		return http.StatusTooManyRequests, errNoRoom.Error()
	}
	return statusClientGone, err.Error()
}

// failed chooses the status code for an error of the appender's and logs one that nobody expects.
func (in *intake) failed(w http.ResponseWriter, r *http.Request, err error) int {
	if errors.Is(err, storage.ErrRefused) && !storage.IsAway(err) {
		return http.StatusBadRequest // ingest has logged and counted it; to send it again would be of no use
	}
	code, retryAfter := failure(r.Context(), err)
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	if code == http.StatusInternalServerError {
		in.logger.ErrorContext(r.Context(), "samples could not be appended", "path", r.URL.Path, "error", err)
	}
	return code
}

// push serves a protocol by which series are pushed.
type push struct {
	*intake

	// sources say what the source of a series is.
	sources ingest.SourceLabels
	// accepts says what is wrong with a request's headers. Content-Encoding is not its matter.
	accepts func(http.Header) error
	// unsaid is how a body without a Content-Encoding is compressed. The default is not at all.
	unsaid encoding
	// decode adds what the body holds to the batch. An error is about the rest of it: what is in the batch
	// is good. What the batch holds may be views into the body. It MUST stop when the batch takes no more.
	decode func(r *http.Request, body []byte, b *ingest.Batch) error
	// whole is what can be decoded of a body that breaks off. The default is all of it.
	whole func(body []byte) []byte
	// refuse answers when nothing was taken. Retry-After is set where it makes sense.
	refuse refusal
	// explain, unless it is nil, makes more of the rejections before they are told: the batch has the samples.
	explain func(b *ingest.Batch, rejected []ingest.Rejection)
	// unread says whether the sender is not told of a rejection, or does not look at the reply: operators are told then. The
	// default is that senders read.
	unread func(r *http.Request, rej ingest.Rejection) bool
	// reply answers when something may have been taken: what became of each measurement, and, unless it is nil, what is
	// wrong with the rest of the body.
	reply func(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error)

	batches sync.Pool // *ingest.Batch
}

// ServeHTTP implements http.Handler.
func (p *push) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.receive(w, r, p.accepts, p.unsaid, p.refuse, func(body *received) {
		b, ok := p.batches.Get().(*ingest.Batch)
		if !ok {
			b = &ingest.Batch{Sources: p.sources, Max: p.limits.Measurements, MaxLabels: p.limits.Labels, MaxText: p.limits.TextBytes}
		}
		b.Reset()
		b.Allowance = p.allowance(r, body)
		p.serve(w, r, body, b)
		b.Allowance = ingest.Allowance{} // it holds on to the request
		p.batches.Put(b)                 // also when nothing was taken: that is when memory is short
	})
}

func (p *push) serve(w http.ResponseWriter, r *http.Request, body *received, b *ingest.Batch) {
	data := body.data
	if body.broken != nil && p.whole != nil {
		data = p.whole(data)
	}
	broken := p.decode(r, data, b)
	if body.broken != nil {
		broken = body.broken // the cause of what decoding met
	}
	if err := b.Err(); err != nil {
		code, message := p.stopped(w, err)
		p.refuse(w, r, code, message)
		return
	}
	p.rejects(r.URL.Path, b.Rejected())
	var result ingest.Result
	if reports := b.Reports(); len(reports) > 0 {
		var err error
		if result, err = p.append(r.Context(), reports, body.broken); err != nil {
			p.refuse(w, r, p.failed(w, r, err), err.Error())
			return
		}
	}
	result = b.Result(result)
	if p.explain != nil {
		p.explain(b, result.Rejected)
	}
	p.notice(r, result)
	p.reply(w, r, result, broken)
}

// notice tells operators of what the sender does not hear of.
func (p *push) notice(r *http.Request, result ingest.Result) {
	p.overwritten(r, result)
	if p.unread == nil {
		return
	}
	type lost struct {
		n       int
		message string
	}
	byReason := map[ingest.Reason]*lost{}
	for _, rej := range result.Rejected {
		if !p.unread(r, rej) {
			continue
		}
		if l := byReason[rej.Reason]; l != nil {
			l.n++
		} else {
			byReason[rej.Reason] = &lost{1, rej.Message}
		}
	}
	for reason, l := range byReason {
		p.unkept.note(r, string(reason), l.n, l.message)
	}
}

// overwritten tells operators that samples of one millisecond have replaced each other.
func (in *intake) overwritten(r *http.Request, result ingest.Result) {
	if o := result.Overwritten; o.Samples > 0 {
		in.unkept.note(r, unkeptSameMillisecond, o.Samples, fmt.Sprintf(
			"%s has several values at %s, and the last one stays: a series keeps one sample a millisecond",
			o.Series, time.UnixMilli(o.TimeMs).UTC().Format("2006-01-02T15:04:05.000Z")))
	}
}
