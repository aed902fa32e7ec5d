// Package api speaks HTTP: it decodes requests and encodes replies, and nothing else. The packages
// behind its narrow interfaces decide what a request means: an Appender takes reports, a
// StatusProvider knows the state of aggregation, a Registrar adds endpoints.
//
// These invariants hold whatever a client sends:
//
//  1. No input ends the process: a panic becomes a 500 and a log line.
//  2. Memory is bounded: for one request by the Limits, for all requests together by
//     budgets. The server never allocates a size just because a header claims it.
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
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api/compress"
	"github.com/quern/quern/internal/api/page"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/importer"
	"github.com/quern/quern/internal/protocol/influx"
	"github.com/quern/quern/internal/protocol/otlp"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/protocol/reports"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// Metadata receives what protocols say about metrics.
type Metadata interface {
	// Note is called concurrently, for every series of every request. It MUST NOT keep any string
	// of m: they are views into a buffer that the next request reuses.
	Note(from limits.Client, m metric.Metadata)
	// Add is Note for a client that may not replace what others have said.
	Add(from limits.Client, m metric.Metadata)
}

// Registrar adds its own endpoints.
type Registrar interface {
	Register(to *route.Table)
}

// Door tells who sends a request.
type Door interface {
	// Identify returns what the client of a request may do, or an *access.Refusal if the client shows a credential
	// that is not valid.
	Identify(r *http.Request) (access.Grant, error)
}

// open lets everybody do everything.
type open struct{}

// Identify implements Door.
func (open) Identify(*http.Request) (access.Grant, error) {
	return access.Grant{Roles: access.Admin}, nil
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
	Appender push.Appender
	// BackFiller ingests the history of POST /api/v1/import. Without one, or without an Appender, there is no such endpoint.
	BackFiller importer.BackFiller
	// Annotations are those beside the series. Without them, and without an Appender, there are no endpoints for them.
	Annotations *annotations.Book
	// Metadata receives metric metadata. The default discards it.
	Metadata Metadata
	// Sources say which label holds the source of a series, in protocols that know only series.
	Sources metric.SourceLabels
	// OTLPPromote are the OTLP resource attributes that become labels of all series of the
	// resource.
	OTLPPromote []string
	// InfluxBucketLabel is the label that holds the bucket of an InfluxDB 2 write, or the retention
	// policy of an InfluxDB 1 write. By default there is no such label, and series of several
	// buckets are one.
	InfluxBucketLabel string

	// Status answers what is asked of the state of aggregation. Without one there is no page, which shows it.
	Status reading.StatusProvider
	// Turns are those at reading, of which a status takes one. The default bounds nothing.
	Turns reading.Turns
	// Ready returns why the process cannot serve, nil if it can. The default is always ready.
	Ready func(ctx context.Context) error
	// Gatherer provides the metrics of GET /metrics. Registerer receives the request metrics. The
	// default is neither.
	Gatherer   prometheus.Gatherer
	Registerer prometheus.Registerer
	// Extra adds endpoints.
	Extra []Registrar

	// Limits bound one ingest request.
	Limits push.Limits
	// Clients tells clients apart, so that none gets more than its share. By default, the loopback
	// address stands for many clients.
	Clients *limits.Clients
	// MaxBodyBytes bounds the form of one request to an endpoint that does not ingest. The default
	// is 1 MiB.
	MaxBodyBytes int64
	// Origins say what web pages may do.
	Origins Origins
	// Door tells clients apart. The default lets everybody do everything.
	Door Door
	// Audit records what is done at endpoints for administrators. The default records nothing.
	Audit *access.Audit
	// Stall is the time in which a client must send, or read, 64 KiB. The default is 30s.
	Stall time.Duration

	// Budgets follow from the limits; tests set smaller ones.
	Budgets
}

// Budgets bound the memory of all requests of a kind together. A request beyond them is answered
// with 429, except for Answers. In each, the largest request that the limits allow fits into the half of one client:
// otherwise it would never fit, or would leave nothing to others.
type Budgets struct {
	// Bodies are for all ingest requests except imports: their bodies, compressed and decompressed,
	// and the decoded data.
	Bodies *limits.Budget
	// Imports are for lines, decompressors and batches, see importer.MaxBytes, and for parsed selectors of annotations.
	Imports *limits.Budget
	// Forms are for forms, and the data parsed from forms and URLs; see query.Admit.
	Forms *limits.Budget
	// Strangers are for forms to endpoints that are open to all.
	Strangers *limits.Budget
	// Answers are for the encoders of answers that are being compressed. An answer beyond them is sent as it is.
	Answers *limits.Budget
}

// newBudget returns a budget of least bytes, or more if the largest request needs more.
func newBudget(least, largest int64) *limits.Budget {
	return limits.NewBudget(max(least, 2*largest), largest)
}

// EnsureDefaults fills in unset fields.
func (o *Options) EnsureDefaults() {
	o.Limits.EnsureDefaults()
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = 1 << 20
	}
	o.Stall = cmp.Or(o.Stall, defaultStall)
	if o.Door == nil {
		o.Door = open{}
	}
	if o.Audit == nil && o.Clock != nil {
		o.Audit = access.NewAudit(slog.New(slog.DiscardHandler), o.Clock, nil)
	}
	if o.Clients == nil {
		o.Clients = limits.NewClients(limits.Loopback())
	}
}

// ensureBudgets makes the budgets that are not set. The limits are valid.
func (o *Options) ensureBudgets() {
	if o.Bodies == nil {
		o.Bodies = newBudget(256<<20, o.Limits.RequestBytes())
	}
	if o.Imports == nil {
		o.Imports = newBudget(128<<20, importer.MaxBytes()+query.MaxParsedBytes)
	}
	if o.Forms == nil {
		o.Forms = newBudget(128<<20, o.formBytes())
	}
	if o.Strangers == nil {
		o.Strangers = newBudget(64<<20, 2*strangersForm)
	}
	if o.Answers == nil {
		o.Answers = newBudget(64<<20, compress.AnswerBytes)
	}
}

// strangersForm is the largest form of an endpoint that is open to all.
const strangersForm = 4 << 10

// formBytes returns the most memory that a non-ingest request may need: its form, in a buffer that
// has doubled, and the data parsed from it. An endpoint with larger bodies parses less.
func (o *Options) formBytes() int64 { return 2*o.MaxBodyBytes + query.MaxParsedBytes }

// Validate checks the options after EnsureDefaults.
func (o *Options) Validate() error {
	switch {
	case o.Clock == nil:
		return errors.New("api: a clock is required")
	case o.Logger == nil:
		return errors.New("api: a logger is required")
	case o.MaxBodyBytes < 1 || o.Stall <= 0:
		return errors.New("api: limits must be positive")
	}
	return o.Limits.Validate()
}

// Server is the HTTP interface of one process.
type Server struct {
	opts    Options
	routes  *route.Table
	handler http.Handler
	inst    *instruments
	bounded map[string]bool // methods and paths whose handlers read and limit their bodies themselves
	origins doorkeeper

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
	opts.ensureBudgets()
	routes := route.NewTable()
	s := &Server{
		opts: opts, routes: routes, bounded: make(map[string]bool), idle: make(chan struct{}),
		origins: doorkeeper{Origins: opts.Origins, routes: routes},
	}

	routes.HandleFunc(access.Anyone, route.NoData, "GET /-/healthy", healthy)
	routes.HandleFunc(access.Anyone, route.NoData, "GET /-/ready", s.ready)
	routes.HandleFunc(access.Anyone, route.NoData, "GET /{$}", s.index)
	if opts.Status != nil {
		routes.HandleFunc(access.Anyone, route.NoData, "GET /assets/", page.Assets)
		for _, view := range page.Views {
			routes.HandleFunc(access.Anyone, route.NoData, "GET "+view, page.Document)
			routes.HandleFunc(access.Anyone, route.NoData, "GET "+view+"/", page.Document)
		}
	}
	if opts.Gatherer != nil {
		routes.Handle(access.Read, route.Refused, "GET /metrics", promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
			ErrorLog:          slog.NewLogLogger(opts.Logger.Handler(), slog.LevelError),
			EnableOpenMetrics: true,
			// One failing collector must not hide the others.
			ErrorHandling:      promhttp.ContinueOnError,
			DisableCompression: true, // see compress.Answers
		}))
	}
	var lost *push.Ledger // nil in a process that does not ingest
	if opts.Appender != nil {
		in, err := push.NewIntake(push.Options{
			Clock: opts.Clock, Logger: opts.Logger, Appender: opts.Appender,
			Limits: opts.Limits, Budget: opts.Bodies, Clients: opts.Clients, Sources: opts.Sources,
			Draining: s.drains, Registerer: opts.Registerer,
		})
		if err != nil {
			return nil, err
		}
		take := func(h http.Handler, paths ...string) { s.take(in, route.Filtered, h, paths...) }
		var notes func(*http.Request) func(metric.Metadata)
		if opts.Metadata != nil {
			notes = func(r *http.Request) func(metric.Metadata) {
				from := opts.Clients.ByAddress(r.RemoteAddr)
				if access.FromContext(r.Context()).Bound != nil { // metadata is of names, which all series share
					return func(m metric.Metadata) { opts.Metadata.Add(from, m) }
				}
				return func(m metric.Metadata) { opts.Metadata.Note(from, m) }
			}
		}
		lost = in.Unkept
		take(reports.New(in), wire.ReportsPath)
		if opts.BackFiller != nil {
			routes.Handle(access.Admin, route.Refused, "POST "+wire.ImportPath, importer.New(in, importer.Options{
				To: opts.BackFiller, Annotations: opts.Annotations, Budget: opts.Imports, Clock: opts.Clock, Turns: opts.Turns.Queries,
			}))
			s.bounded["POST "+wire.ImportPath] = true
		}
		take(collectd.New(in), collectd.Path)
		if err := influx.Register(in, influx.Options{
			BucketLabel: opts.InfluxBucketLabel,
			Unready:     s.unready, Registerer: opts.Registerer,
		}, routes, take); err != nil {
			return nil, err
		}
		take(remotewrite.New(in, notes), remotewrite.Path)
		take(otlp.New(in, opts.OTLPPromote, notes), "/v1/metrics", "/api/v1/otlp/v1/metrics")
		if opts.Annotations != nil {
			annotations.Register(annotations.Options{
				Book: opts.Annotations, In: in, Audit: opts.Audit, Turns: opts.Turns.Queries, Timeout: opts.Turns.QueryTimeout,
			}, routes, func(h http.Handler, paths ...string) { s.take(in, route.Refused, h, paths...) })
		}
	}
	if opts.Status != nil {
		reading.NewAggregation(opts.Status, opts.Clock, opts.Turns, lost).Register(routes)
	}
	for _, r := range opts.Extra {
		r.Register(routes)
	}

	inst, err := newInstruments(opts.Registerer, opts.Clock, opts.Logger)
	if err != nil {
		return nil, err
	}
	s.inst = inst
	s.handler = compress.New(opts.Answers, opts.Clients).Handler(inst.wrap(boundHeaders(http.HandlerFunc(s.route))))
	return s, nil
}

// take registers an ingest handler at paths.
func (s *Server) take(in *push.Intake, bound route.Bound, h http.Handler, paths ...string) {
	for _, p := range paths {
		in.Rejects(p, 0) // rates need an initial sample
		s.routes.Handle(access.Write, bound, "POST "+p, h)
		s.bounded["POST "+p] = true
	}
}

// Routes returns all endpoints, each with the role that it needs.
func (s *Server) Routes() []route.Route { return s.routes.Routes() }

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
	return NewHTTPServer(s, Serving{Clock: s.opts.Clock, Logger: s.opts.Logger, Stall: s.opts.Stall, Clients: s.opts.Clients, Requests: 8192})
}

const (
	// streams is how many requests a connection of HTTP/2 may have.
	streams = 64
	// receiveBytes is how much a connection of HTTP/2 holds of bodies that no handler has read, all streams together. It
	// is not charged to a budget, and a stranger may have a connection: so it is no more than a connection of HTTP/1 has
	// in the system's buffers.
	receiveBytes = 64 << 10
)

// defaultStall is the time in which a client must send, or read, 64 KiB.
const defaultStall = 30 * time.Second

// Serving configures an HTTP server. All but Stall is required.
type Serving struct {
	Clock  clock.Clock
	Logger *slog.Logger
	// Stall is as in Options.
	Stall time.Duration
	// Requests is how many may be in progress, of which one client has half.
	Requests int
	Clients  *limits.Clients
}

// NewHTTPServer returns an http.Server for a handler, with timeouts and limits that a slow or
// hostile client cannot evade. The caller adds a listener and shuts the server down.
func NewHTTPServer(h http.Handler, with Serving) *http.Server {
	with.Stall = cmp.Or(with.Stall, defaultStall)
	requests := limits.NewRequests(with.Requests, with.Clients, http.HandlerFunc(refuseRequest))
	return &http.Server{
		Handler:           demandProgress(requests.Limit(h), with.Clock, with.Stall),
		ReadHeaderTimeout: 10 * time.Second,
		// ReadTimeout and WriteTimeout are unset: an import or export may take hours, as long as it
		// progresses.
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: maxHeaderBytes, // of HTTP/2, too
		// A deadline of HTTP/2 is that of a stream: it ends no write that waits for the connection.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streams, WriteByteTimeout: with.Stall,
			MaxReceiveBufferPerConnection: receiveBytes, MaxReceiveBufferPerStream: receiveBytes,
		},
		ErrorLog: slog.NewLogLogger(with.Logger.Handler(), slog.LevelWarn),
	}
}

// refuseRequest answers a request beyond the limit, without a body: that would wait for the client.
func refuseRequest(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", respond.RetryAway)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// RefuseConnection answers on a connection beyond the limit. It does not wait for the client.
func RefuseConnection(conn net.Conn) {
	// The buffer of a new connection holds this much, so the write does not block.
	_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: "+respond.RetryAway+
		"\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\ntoo many connections\n")
}

// route is the table, with JSON replies where nothing matches. A catch-all pattern would hide from
// the table which methods a path has, so route asks the table first.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if !s.origins.admits(w, r) {
		return
	}
	bounded := s.bounded[r.Method+" "+r.URL.Path]
	if !watched[r.URL.Path] {
		switch {
		case s.begin():
			defer s.end()
		case bounded:
			// The handler refuses it in the form of its protocol.
		default:
			w.Header().Set("Retry-After", respond.RetryAway)
			w.Header().Set("Connection", "close")
			respond.Error(w, http.StatusServiceUnavailable, respond.Draining)
			return
		}
	}
	to, h, ok := s.routes.Find(r)
	if !ok {
		s.unmatched(w, r, h)
		return
	}
	r.Pattern = to.Pattern // for the metrics, which see no copy of r
	grant, err := s.authorize(r, to)
	if err != nil {
		s.refuse(w, r, to, grant, err)
		return
	}
	r = r.WithContext(access.WithGrant(r.Context(), grant))
	defer s.inst.throttled(r.Context(), w)
	client := s.opts.Clients.ByAddress(r.RemoteAddr)
	if bounded {
		whole := false
		defer func() { s.audit(w, r, to, grant, whole, "") }()
		s.routes.ServeHTTP(w, r.WithContext(limits.WithClient(r.Context(), client)))
		whole = true
		return
	}
	if grant.Token != "" {
		client = limits.TokenClient(grant.Token, grant.Turns)
	}
	budget, most := s.opts.Forms, cmp.Or(to.BodyBytes, s.opts.MaxBodyBytes)
	if to.Role == access.Anyone {
		budget, most = s.opts.Strangers, min(most, strangersForm)
		if r.Method != http.MethodPost {
			r.Body = http.NoBody
		}
		if body, ok := r.Body.(*progressBody); ok {
			body.endSoon()
		}
	}
	claim := budget.Claim(client)
	defer claim.Release()
	r = r.WithContext(limits.WithClient(limits.WithClaim(r.Context(), &claim), client))
	var form []byte
	if r.Body != nil && r.Body != http.NoBody {
		form, err = readForm(r.Body, most, &claim)
		if err != nil {
			code := respond.BodyFailure(w, err)
			if code == 0 {
				code = http.StatusBadRequest
			}
			respond.Error(w, code, err.Error())
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(form))
	}
	sent := ""
	if to.Role == access.Admin {
		sent = string(form[:min(len(form), audited)])
	}
	// Also of a request that breaks off: it may have changed something.
	whole := false
	defer func() { s.audit(w, r, to, grant, whole, sent) }()
	s.routes.ServeHTTP(w, r)
	whole = true
}

// readForm reads the body, of at most so many bytes, of a request to an endpoint that does not ingest.
func readForm(from io.Reader, most int64, claim *limits.Claim) ([]byte, error) {
	var form []byte
	for {
		if len(form) == cap(form) {
			size := max(2*cap(form), 4<<10)
			if !claim.Grow(int64(size - cap(form))) {
				return nil, respond.ErrNoRoom
			}
			form = append(make([]byte, 0, size), form...)
		}
		n, err := from.Read(form[len(form):cap(form)])
		form = form[:len(form)+n]
		switch {
		case int64(len(form)) > most:
			return nil, &respond.TooLargeError{Message: fmt.Sprintf("the body is larger than the limit of %d bytes", most)}
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
		respond.Error(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s does not accept %s, use %s",
			r.URL.Path, r.Method, strings.ReplaceAll(allow, ", ", " or ")))
		return
	}
	respond.Error(w, http.StatusNotFound, fmt.Sprintf("there is nothing at %s; GET / lists the endpoints", r.URL.Path))
}

// headerProbe records only the headers of a reply.
type headerProbe struct{ header http.Header }

func (p *headerProbe) Header() http.Header { return p.header }

func (p *headerProbe) Write(b []byte) (int, error) { return len(b), nil }

func (p *headerProbe) WriteHeader(int) {}

func healthy(w http.ResponseWriter, _ *http.Request) {
	respond.Text(w, http.StatusOK, "Quern is healthy.\n")
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if reason := s.unready(r.Context()); reason != "" {
		if grant := access.FromContext(r.Context()); !grant.Roles.Has(access.Read) || grant.Bound != nil {
			reason = "log in to see why" // it may name machines and directories
		}
		notReady(w, reason)
		return
	}
	respond.Text(w, http.StatusOK, "Quern is ready.\n")
}

// unready returns why the process cannot serve, "" if it can.
func (s *Server) unready(ctx context.Context) string {
	if s.drains() {
		return respond.Draining
	}
	if s.opts.Ready != nil {
		if err := s.opts.Ready(ctx); err != nil {
			return err.Error()
		}
	}
	return ""
}

func notReady(w http.ResponseWriter, reason string) {
	respond.Text(w, http.StatusServiceUnavailable, "Quern is not ready: "+reason+".\n")
}

// index shows browsers the page. For other programs it lists the endpoints of this process that the client may use. It
// asks the table, so that the list cannot name a missing endpoint.
func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	if s.opts.Status != nil && page.Wanted(r) {
		page.Document(w, r)
		return
	}
	var sb strings.Builder
	sb.WriteString("Quern, a time-series store. This process serves:\n\n")
	grant := access.FromContext(r.Context())
	for _, e := range s.routes.Routes() {
		if grant.Roles.Has(e.Role) && (grant.Bound == nil || e.Bound != route.Refused) {
			fmt.Fprintln(&sb, e.Pattern)
		}
	}
	respond.Text(w, http.StatusOK, sb.String())
}
