package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
)

// instruments counts and times requests, and contains panics so that other requests go on.
type instruments struct {
	clock    clock.Clock
	logger   *slog.Logger
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	limited  *prometheus.CounterVec
	inFlight prometheus.Gauge
	panics   prometheus.Counter
}

// newInstruments registers the request metrics with reg, unless it is nil.
func newInstruments(reg prometheus.Registerer, c clock.Clock, logger *slog.Logger) (*instruments, error) {
	in := &instruments{
		clock:  c,
		logger: logger,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_requests_total",
			Help: "Requests answered, by path pattern and status code.",
		}, []string{"path", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "quern_http_request_duration_seconds",
			Help: "Time from a request's headers to the end of its reply.",
			// A report waits for a group commit of 100 ms; an export may take minutes.
			Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 10, 60},
		}, []string{"path"}),
		limited: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_http_limited_requests_total",
			Help: "Requests by token that were answered 429, or 503 for Influx: beyond the token's limits, or its share of what the server has. By the token's id.",
		}, []string{"token"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quern_http_requests_in_flight",
			Help: "Requests being served now.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quern_http_panics_total",
			Help: "Requests that ended in a panic, which is a bug.",
		}),
	}
	return in, push.Register(reg, in.requests, in.seconds, in.limited, in.inFlight, in.panics)
}

func (in *instruments) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := in.clock.Elapsed()
		in.inFlight.Inc()
		rec := &recorder{ResponseWriter: w}
		// This runs on every way out, also when http.ErrAbortHandler passes through.
		defer func() {
			in.inFlight.Dec()
			// The mux stores the matched pattern in the request. As a label it has few values,
			// whatever paths clients send.
			_, path, found := strings.Cut(r.Pattern, " ")
			if !found {
				path = r.Pattern // the pattern is for all methods
			}
			if path == "" {
				path = "unmatched"
			}
			code := rec.code
			if code == 0 {
				code = http.StatusOK
			}
			in.requests.WithLabelValues(path, strconv.Itoa(code)).Inc()
			in.seconds.WithLabelValues(path).Observe((in.clock.Elapsed() - start).Seconds())
		}()
		defer in.recover(rec, r)
		next.ServeHTTP(rec, r)
	})
}

// throttled counts a request by a token that was answered 429, or 503 where clients drop data on any 4xx. A store has a
// bounded number of tokens.
func (in *instruments) throttled(ctx context.Context, w http.ResponseWriter) {
	token := access.FromContext(ctx).Token
	rec, ok := w.(*recorder)
	if !ok || token == "" {
		return
	}
	if rec.code == http.StatusTooManyRequests || rec.code == http.StatusServiceUnavailable && limits.MaySpend(ctx) != nil {
		in.limited.WithLabelValues(token).Inc()
	}
}

// recover answers 500 if the handler panicked before it replied. If part of the reply is out,
// recover cuts the connection instead: a clean end would make half an answer look complete.
func (in *instruments) recover(rec *recorder, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	in.panics.Inc()
	in.logger.ErrorContext(r.Context(), "request panicked",
		"method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	if rec.code != 0 {
		panic(http.ErrAbortHandler)
	}
	respond.Error(rec, http.StatusInternalServerError, "internal error: see the server's log")
}

// recorder records the status code of a reply.
type recorder struct {
	http.ResponseWriter
	code int // 0 until the header is written
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	// A 1xx code is not the final reply.
	if r.code == 0 && code >= 200 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Flush implements http.Flusher for handlers that stream.
func (r *recorder) Flush() {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	if f, ok := r.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Unwrap gives http.ResponseController the underlying writer.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
