// Package api speaks HTTP: it decodes requests and encodes replies, and nothing else. The packages
// behind its narrow interfaces decide what a request means: an Appender takes reports, a
// StatusProvider knows the state of aggregation, a Registrar adds endpoints.
//
// These invariants hold whatever a client sends:
//
//  1. No input ends the process: a panic becomes a 500 and a log line.
//  2. Memory is bounded: for one request by the Limits, for all requests together by
//     MaxInFlightBytes. The server never allocates a size just because a header claims it.
//  3. No measurement is lost silently: each is accepted, rejected with a reason, or located after
//     the byte that the error names.
package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// Appender ingests decoded reports.
type Appender interface {
	// Append returns when every measurement is durable or rejected. Rejections number the
	// measurements over all reports, from 0. After it returns, it MUST NOT keep any string or slice
	// of reports: they are views into a buffer that the next request reuses.
	Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error)
}

// Metadata receives what protocols say about metrics.
type Metadata interface {
	// Note is called concurrently, for every series of every request. It MUST NOT keep any string
	// of m: they are views into a buffer that the next request reuses.
	Note(m metric.Metadata)
}

// Registrar adds its own endpoints.
type Registrar interface {
	Register(mux *http.ServeMux)
}

// Sources are, per protocol, the labels that name a source; see ingest.Batch.
type Sources struct {
	Prometheus, Influx, OTLP, Graphite ingest.SourceLabels
}

// Options configure a Server. Handlers whose dependency is nil are left out, so a process serves
// exactly what it supports.
type Options struct {
	// Clock times the requests. Required.
	Clock clock.Clock
	// Logger receives panics and the failures behind a 500. Required.
	Logger *slog.Logger

	// Appender ingests what the endpoints for pushed data decode. Without one there are no such
	// endpoints.
	Appender Appender
	// BackFiller ingests the history of POST /api/v1/import. Without one, imports are refused.
	BackFiller BackFiller
	// Metadata receives metric metadata. The default discards it.
	Metadata Metadata
	// Sources define the source of a series in protocols that know only series.
	Sources Sources
	// OTLPPromote are the OTLP resource attributes that become labels of all series of the
	// resource.
	OTLPPromote []string
	// InfluxBucketLabel is the label that holds the bucket of an InfluxDB 2 write, or the retention
	// policy of an InfluxDB 1 write. By default there is no such label, and series of several
	// buckets are one.
	InfluxBucketLabel string

	// Status answers GET /api/v1/status/aggregation; Ladder names its buckets.
	Status StatusProvider
	Ladder metric.Ladder
	// Turns are those at reading, of which a status takes one. The default bounds nothing.
	Turns Turns
	// Ready returns why the process cannot serve, nil if it can. The default is always ready.
	Ready func(ctx context.Context) error
	// Gatherer provides the metrics of GET /metrics. Registerer receives the request metrics. The
	// default is neither.
	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
	// Extra adds endpoints.
	Extra []Registrar

	// Limits bound one ingest request.
	Limits Limits
	// Clients tells clients apart, so that none gets more than its share. By default, the loopback
	// address stands for many clients.
	Clients *admission.Clients
	// MaxInFlightBytes bounds the memory of all ingest requests together, except imports: their
	// bodies, compressed and decompressed, and the decoded data. A request beyond it is answered
	// with 429. The default is 256 MiB, or the most that one request within Limits may need if that
	// is more: otherwise such a request would never fit.
	MaxInFlightBytes int64
	// MaxImportBytes bounds the memory of all imports together. The default is 128 MiB.
	MaxImportBytes int64
	// MaxFormBytes bounds the forms of all requests together, and the data parsed from forms and
	// URLs; see query.Admit. The default is 128 MiB, or the most that one request may need if that
	// is more.
	MaxFormBytes int64
	// MaxBodyBytes bounds the form of one request to an endpoint that does not ingest. The default
	// is 1 MiB.
	MaxBodyBytes int64
	// Origins say what web pages may do.
	Origins Origins
	// Stall is the time in which a client must send, or read, 64 KiB. The default is 30s.
	Stall time.Duration
}

// EnsureDefaults fills in unset fields.
func (o *Options) EnsureDefaults() {
	o.Limits.EnsureDefaults()
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = max(256<<20, o.Limits.requestBytes())
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 1 << 20
	}
	o.MaxImportBytes = cmp.Or(o.MaxImportBytes, 128<<20)
	o.MaxFormBytes = cmp.Or(o.MaxFormBytes, max(128<<20, o.formBytes()))
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	if o.Clients == nil {
		o.Clients = admission.NewClients(admission.Loopback())
	}
}

// formBytes returns the most memory that a non-ingest request may need: its form, in a buffer that
// has doubled, and the data parsed from it.
func (o *Options) formBytes() int64 { return 2*o.MaxBodyBytes + query.MaxParsedBytes }

// Validate checks the options after EnsureDefaults.
func (o *Options) Validate() error {
	switch {
	case o.Clock == nil:
		return errors.New("api: a clock is required")
	case o.Logger == nil:
		return errors.New("api: a logger is required")
	case o.Status != nil && o.Ladder.Top() == 0:
		return errors.New("api: a ladder is required to name the buckets of the status")
	case o.MaxInFlightBytes < 1 || o.MaxImportBytes < 1 || o.MaxFormBytes < 1 || o.MaxBodyBytes < 1 || o.Stall <= 0:
		return errors.New("api: limits must be positive")
	}
	return o.Limits.Validate()
}

// Server is the HTTP interface of one process.
type Server struct {
	opts    Options
	mux     *http.ServeMux
	handler http.Handler
	forms   *admission.Budget
	bounded map[string]bool // paths whose handlers read and limit their bodies themselves
	door    doorkeeper
	unkept  *unkept // nil in a process that does not ingest

	mu       sync.Mutex
	active   int // requests that Drain waits for
	draining bool
	idle     chan struct{} // closed when draining and no request is active
}

// New assembles a server. It opens no port; use HTTPServer or ServeHTTP to serve.
func New(opts Options) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Server{opts: opts, mux: http.NewServeMux(), forms: admission.NewBudget(opts.MaxFormBytes, opts.formBytes()), bounded: make(map[string]bool), door: doorkeeper{Origins: opts.Origins}, idle: make(chan struct{})}

	s.mux.HandleFunc("GET /-/healthy", healthy)
	s.mux.HandleFunc("GET /-/ready", s.ready)
	s.mux.HandleFunc("GET /{$}", s.index)
	if opts.Gatherer != nil {
		s.mux.Handle("GET /metrics", promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
			ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelError),
			EnableOpenMetrics: true,
			// One failing collector must not hide the others.
			ErrorHandling: promhttp.ContinueOnError,
		}))
	}
	if opts.Appender != nil {
		in, err := newIntake(&s.opts, s.drains)
		if err != nil {
			return nil, err
		}
		s.unkept = in.unkept
		s.take(in, &reportsHandler{intake: in}, reportsPath)
		if opts.BackFiller != nil {
			s.mux.Handle("POST "+importPath, newImportHandler(in, &s.opts))
			s.bounded[importPath] = true
		} else {
			s.mux.Handle("POST "+importPath, switchedOff("enable-import"))
		}
		s.take(in, newCollectdHandler(in, &s.opts), collectdPath)
		if err := s.registerInflux(in); err != nil {
			return nil, err
		}
		s.take(in, newRemoteWriteHandler(in, &s.opts), remoteWritePath)
		s.take(in, newOTLPHandler(in, &s.opts), "/v1/metrics", "/api/v1/otlp/v1/metrics")
	}
	if opts.Status != nil {
		s.mux.HandleFunc("GET /api/v1/status/aggregation", s.aggregation)
	}
	for _, r := range opts.Extra {
		r.Register(s.mux)
	}

	inst, err := newInstruments(opts.Registerer, opts.Clock, opts.Logger)
	if err != nil {
		return nil, err
	}
	s.handler = inst.wrap(http.HandlerFunc(s.route))
	return s, nil
}

// take registers an ingest handler at paths.
func (s *Server) take(in *intake, h http.Handler, paths ...string) {
	for _, p := range paths {
		in.rejects(p, 0) // rates need an initial sample
		s.mux.Handle("POST "+p, h)
		s.bounded[p] = true
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Drain marks the server as not ready and answers all new requests with 503, so that clients and
// load balancers go elsewhere. The returned channel is closed when the earlier requests have ended.
// Drain cannot be undone.
func (s *Server) Drain() (ended <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.draining {
		s.draining = true
		if s.active == 0 {
			close(s.idle)
		}
	}
	return s.idle
}

func (s *Server) drains() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// begin makes Drain wait for a request until end is called. It returns false if the server drains.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.active++
	return true
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active--; s.active == 0 && s.draining {
		close(s.idle)
	}
}

// watched are the paths for monitoring. They are served until the process ends.
var watched = map[string]bool{"/-/healthy": true, "/-/ready": true, "/health": true, "/metrics": true}

// HTTPServer returns an http.Server for s; see NewHTTPServer.
func (s *Server) HTTPServer() *http.Server {
	return NewHTTPServer(s, s.opts.Clock, s.opts.Stall, s.opts.Logger)
}

// NewHTTPServer returns an http.Server for a handler, with timeouts and limits that a slow or
// hostile client cannot evade. For stall, see Options. The caller adds a listener and shuts the
// server down.
func NewHTTPServer(h http.Handler, clk clock.Clock, stall time.Duration, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           demandProgress(h, clk, stall),
		ReadHeaderTimeout: 10 * time.Second,
		// ReadTimeout and WriteTimeout are unset: an import or export may take hours, as long as it
		// progresses.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
}

// RefuseConnection answers on a connection beyond the limit. It does not wait for the client.
func RefuseConnection(conn net.Conn) {
	// The buffer of a new connection holds this much, so the write does not block.
	_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: "+retryAwaySeconds+
		"\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ntoo many connections\n")
}

// route is the mux, with JSON replies where nothing matches. A catch-all pattern would hide from
// the mux which methods a path has, so route asks the mux first.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if !s.door.admits(w, r) {
		return
	}
	if !watched[r.URL.Path] {
		switch {
		case s.begin():
			defer s.end()
		case s.bounded[r.URL.Path]:
			// The handler refuses it in the form of its protocol.
		default:
			w.Header().Set("Retry-After", retryAwaySeconds)
			w.Header().Set("Connection", "close")
			replyError(w, http.StatusServiceUnavailable, drainingMessage)
			return
		}
	}
	h, pattern := s.mux.Handler(r)
	if pattern == "" {
		s.unmatched(w, r, h)
		return
	}
	if s.bounded[r.URL.Path] {
		s.mux.ServeHTTP(w, r)
		return
	}
	claim := s.forms.Claim(s.opts.Clients.Of(r.RemoteAddr))
	defer claim.Release()
	r = r.WithContext(admission.WithClaim(r.Context(), &claim))
	if r.Body != nil && r.Body != http.NoBody {
		form, err := s.readForm(r.Body, &claim)
		if err != nil {
			code := readFailure(w, err)
			if code == 0 {
				code = http.StatusBadRequest
			}
			replyError(w, code, err.Error())
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(form))
	}
	s.mux.ServeHTTP(w, r)
}

// readForm reads the body of a request to an endpoint that does not ingest.
func (s *Server) readForm(from io.Reader, claim *admission.Claim) ([]byte, error) {
	var form []byte
	for {
		if len(form) == cap(form) {
			size := max(2*cap(form), 4<<10)
			if !claim.Grow(int64(size - cap(form))) {
				return nil, errNoRoom
			}
			form = append(make([]byte, 0, size), form...)
		}
		n, err := from.Read(form[len(form):cap(form)])
		form = form[:len(form)+n]
		switch {
		case int64(len(form)) > s.opts.MaxBodyBytes:
			return nil, &tooLargeError{fmt.Sprintf("the form is larger than the limit of %d bytes", s.opts.MaxBodyBytes)}
		case errors.Is(err, io.EOF):
			return form, nil
		case err != nil:
			return nil, fmt.Errorf("the form cannot be read: %w", err)
		}
	}
}

func (s *Server) unmatched(w http.ResponseWriter, r *http.Request, h http.Handler) {
	probe := headerProbe{header: http.Header{}}
	h.ServeHTTP(&probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		replyError(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s is not for %s, use %s",
			r.URL.Path, r.Method, strings.ReplaceAll(allow, ", ", " or ")))
		return
	}
	replyError(w, http.StatusNotFound, fmt.Sprintf("there is nothing at %s; GET / lists the endpoints", r.URL.Path))
}

// headerProbe records only the headers of a reply.
type headerProbe struct{ header http.Header }

func (p *headerProbe) Header() http.Header         { return p.header }
func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *headerProbe) WriteHeader(int)             {}

func healthy(w http.ResponseWriter, _ *http.Request) {
	replyText(w, http.StatusOK, "Quern is healthy.\n")
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if reason := s.unready(r.Context()); reason != "" {
		notReady(w, reason)
		return
	}
	replyText(w, http.StatusOK, "Quern is ready.\n")
}

// unready returns why the process cannot serve, "" if it can.
func (s *Server) unready(ctx context.Context) string {
	if s.drains() {
		return drainingMessage
	}
	if s.opts.Ready != nil {
		if err := s.opts.Ready(ctx); err != nil {
			return err.Error()
		}
	}
	return ""
}

func notReady(w http.ResponseWriter, reason string) {
	replyText(w, http.StatusServiceUnavailable, "Quern is not ready: "+reason+".\n")
}

// index lists the endpoints of this process. It asks the mux, so that the list cannot name a
// missing endpoint.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	var sb strings.Builder
	sb.WriteString("Quern, a time-series store. This process serves:\n\n")
	for _, e := range []struct{ method, path, what string }{
		{"POST", "/api/v1/reports", "measurement reports as JSON or NDJSON"},
		{"POST", "/api/v1/write", "Prometheus remote write"},
		{"POST", "/api/v2/write", "Influx line protocol, also at /write and /influx/write"},
		{"POST", "/v1/metrics", "OTLP, also at /api/v1/otlp/v1/metrics"},
		{"POST", "/api/v1/push/collectd", "collectd's write_http, as JSON"},
		{"POST", "/api/v1/import", "back-fill from NDJSON"},
		{"GET", "/api/v1/query", "PromQL at one time"},
		{"GET", "/api/v1/query_range", "PromQL over a range"},
		{"GET", "/api/v1/series", "series that match a selector"},
		{"GET", "/api/v1/labels", "label names; values at /api/v1/label/NAME/values"},
		{"GET", "/api/v1/metadata", "metric metadata"},
		{"GET", "/api/v1/export", "raw samples as NDJSON"},
		{"GET", "/api/v1/rollups", "roll-up rows as NDJSON"},
		{"GET", "/api/v1/points", "min, average and max over a range, in so many points"},
		{"GET", "/api/v1/latest", "latest values"},
		{"GET", "/api/v1/summary", "count, min, max, average and percentiles over a range"},
		{"GET", "/api/v1/baseline", "min, max and mean of roll-up rows"},
		{"GET", "/api/v1/explain", "why a roll-up row is there, missing or late"},
		{"POST", "/api/v1/reaggregate", "has roll-up rows computed again"},
		{"GET", "/api/v1/status/aggregation", "outstanding slices, runs, workers, shards, errors"},
		{"GET", "/api/v1/status/buildinfo", "version"},
		{"GET", "/metrics", "this process's own metrics"},
		{"GET", "/-/healthy", "does the process run"},
		{"GET", "/-/ready", "can it serve"},
	} {
		probe := http.Request{Method: e.method, URL: &url.URL{Path: e.path}}
		if _, pattern := s.mux.Handler(&probe); pattern != "" {
			fmt.Fprintf(&sb, "%-4s  %-28s  %s\n", e.method, e.path, e.what)
		}
	}
	replyText(w, http.StatusOK, sb.String())
}

func replyText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	// A client that has gone cannot be told.
	_, _ = io.WriteString(w, text)
}
