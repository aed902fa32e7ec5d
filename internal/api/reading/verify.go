package reading

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/client/pipes"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/operate/verify"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

const (
	// listedDifferences is how many differences are listed by default, maxDifferences how many at most. All are counted.
	listedDifferences = 100
	maxDifferences    = 10_000
)

// Verify has the endpoint that compares rows with their samples and, if asked to, has the rows that differ ground again.
// It runs the code of `quern verify`, as a client of this process: each read waits for a turn and is charged.
type Verify struct {
	opts  VerifyOptions
	table *route.Table
}

// VerifyOptions configure Verify.
type VerifyOptions struct {
	// MaxBytes bounds the rows that a verification holds, and what it notes of them. The default is no limit.
	MaxBytes int
	// TakeBack lets clients have rows taken back that have no samples, as in OperateOptions.
	TakeBack bool
	// Clock is what "now" in a request means. Required.
	Clock clock.Clock
	// Turns bound how many requests are answered at once. A verification reads while it holds its turn, so these must not be
	// those at reading. The default bounds nothing.
	Turns *limits.Turns
	// Logger receives failures of the reads of a verification. Required.
	Logger *slog.Logger
}

// NewVerify makes the endpoint.
func NewVerify(opts VerifyOptions) *Verify { return &Verify{opts: opts} }

// Register implements api.Registrar. The reads of a verification go to the same table.
func (h *Verify) Register(to *route.Table) {
	h.table = to
	to.Handle(access.Admin, route.Refused, "POST "+wire.VerifyPath,
		Turns{Logger: h.opts.Logger}.answering(h.opts.Turns, 0, h.verify, "match[]", "level", "start", "end", "limit", "repair", "take_back"))
}

func (h *Verify) verify(out *lines, r *http.Request) error {
	o, err := h.options(r)
	if err != nil {
		return err
	}
	ask, hangUp := h.self(r)
	defer hangUp()
	held := 0
	o.Client, o.Hold = &verify.Client{Client: ask}, func(n int) error {
		if held += n; h.opts.MaxBytes > 0 && held > h.opts.MaxBytes {
			return &query.RequestError{Message: fmt.Sprintf("the rows to verify take more than %d MB, what the samples of a query may take (--query-max-samples): "+
				"verify fewer series, or a shorter range", h.opts.MaxBytes>>20)}
		}
		return nil
	}

	// The comparison goes on only if the client takes what was found.
	ctx, stop := context.WithCancelCause(r.Context())
	defer stop(nil)
	send := func(line wire.Verification) {
		if err := out.document(line); err != nil {
			stop(err)
		}
	}
	o.Tell = func(d wire.Difference) { send(wire.Verification{Difference: &d}) }
	o.Progress = func(done, total int) {
		send(wire.Verification{Progress: &wire.Verifying{Done: done, Total: total}})
		if err := out.flush(); err != nil {
			stop(err)
		}
	}
	sum, err := verify.Run(ctx, o)
	switch refused := (*client.RefusedError)(nil); {
	case errors.As(err, &refused):
		return &query.RequestError{Message: refused.Message}
	case err != nil:
		return err
	}
	return out.document(wire.Verification{Status: wire.Success, Verified: sum})
}

// options reads the parameters.
func (h *Verify) options(r *http.Request) (o verify.Options, err error) {
	o.Match, o.Level, o.Limit = r.Form.Get("match[]"), r.Form.Get("level"), listedDifferences
	if len(r.Form["match[]"]) != 1 {
		return o, &query.RequestError{Message: `give one selector as match[], such as match[]={__name__!=""} for all series`}
	}
	// This also charges the request for what each of its reads parses again.
	if _, err := query.ParseSelectors(r.Context(), r.Form["match[]"]); err != nil {
		return o, err
	}
	if r.Form.Get("start") == "" {
		return o, &query.RequestError{Message: "start is missing: give the start of the rows to verify, such as start=-2d"}
	}
	nowMs := clock.NowMs(h.opts.Clock)
	if o.StartMs, err = parseTime(r.Form, "start", nowMs, 0); err != nil {
		return o, err
	}
	if o.EndMs, err = parseTime(r.Form, "end", nowMs, nowMs); err != nil {
		return o, err
	}
	if o.StartMs >= o.EndMs {
		return o, &query.RequestError{Message: "start must be before end"}
	}
	if s := r.Form.Get("limit"); s != "" {
		if o.Limit, err = strconv.Atoi(s); err != nil || o.Limit < 0 || o.Limit > maxDifferences {
			return o, badParameter("limit", s, fmt.Sprintf("a whole number up to %d", maxDifferences))
		}
	}
	for name, to := range map[string]*bool{"repair": &o.Repair, "take_back": &o.TakeBack} {
		if *to, err = flag(r, name); err != nil {
			return o, err
		}
	}
	switch {
	case o.TakeBack && !o.Repair:
		return o, &query.RequestError{Message: "take_back needs repair=true"}
	case o.TakeBack && !h.opts.TakeBack:
		return o, &forbiddenError{takeBackOff}
	}
	return o, nil
}

// self returns a client of this process, whose requests are those of the client of r. hangUp ends it, and waits for what
// it has asked. Answers that are not read to their end must have been closed before.
func (h *Verify) self(r *http.Request) (ask client.Client, hangUp func()) {
	l := pipes.Listen()
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, inner *http.Request) {
			inner.RemoteAddr = r.RemoteAddr
			h.table.ServeHTTP(w, inner)
		}),
		ReadHeaderTimeout: time.Minute,
		// Whose requests they are. They end with their connection, which is that of the one who verifies. What they charge was
		// charged to r, and they must not give it back.
		BaseContext: func(net.Listener) context.Context {
			return limits.WithClaim(context.WithoutCancel(r.Context()), nil)
		},
		ErrorLog: slog.NewLogLogger(h.opts.Logger.Handler(), slog.LevelError),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // until it is closed
	}()
	to := &http.Transport{DialContext: l.Dial, DisableCompression: true}
	return client.Client{URL: "http://self", HTTP: &http.Client{Transport: to}}, func() {
		to.CloseIdleConnections()
		// No read goes on once this request has ended: the store may be closed then.
		_ = server.Shutdown(context.WithoutCancel(r.Context()))
		<-served
	}
}
