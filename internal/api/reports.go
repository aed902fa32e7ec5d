package api

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/quern/quern/internal/ingest"
)

const reportsPath = "/api/v1/reports"

// Limits bound what one ingest request may cost the server.
type Limits struct {
	// CompressedBytes bounds a body with a Content-Encoding, as sent. The default is 16 MiB.
	CompressedBytes int64
	// BodyBytes bounds a decompressed body. The default is 64 MiB.
	BodyBytes int64
	// DecodedBytes bounds what is decoded from a body, not counting the body. The default is four
	// times BodyBytes.
	DecodedBytes int64
	// TextBytes bounds the names and labels of a body's measurements. Each measurement counts with
	// all of its labels, even if the body shares them among many. The default is eight times
	// BodyBytes.
	TextBytes int64
	// Measurements bounds the measurements of one body. The default is 1,000,000.
	Measurements int
	// Labels bounds the labels of one measurement before any other check; ingest may allow fewer.
	// The default is 128.
	Labels int
	// Depth bounds the nesting of values in unknown members. The default is 100.
	Depth int
	// Rejections bounds the rejections listed in a reply; all are counted. The default is 1000.
	Rejections int
}

// EnsureDefaults fills in unset fields.
func (l *Limits) EnsureDefaults() {
	l.CompressedBytes = cmp.Or(l.CompressedBytes, 16<<20)
	l.BodyBytes = cmp.Or(l.BodyBytes, 64<<20)
	l.DecodedBytes = cmp.Or(l.DecodedBytes, 4*l.BodyBytes)
	l.TextBytes = cmp.Or(l.TextBytes, 8*l.BodyBytes)
	l.Measurements = cmp.Or(l.Measurements, 1_000_000)
	l.Labels = cmp.Or(l.Labels, 128)
	l.Depth = cmp.Or(l.Depth, 100)
	l.Rejections = cmp.Or(l.Rejections, 1000)
}

// requestBytes returns the maximum memory of one request.
func (l *Limits) requestBytes() int64 {
	return l.CompressedBytes + l.BodyBytes + l.DecodedBytes + zstdWindowBytes
}

// Validate checks the limits after EnsureDefaults.
func (l *Limits) Validate() error {
	if l.CompressedBytes < 1 || l.BodyBytes < 1 || l.DecodedBytes < 1 || l.TextBytes < 1 || l.Measurements < 1 || l.Labels < 1 || l.Depth < 1 || l.Rejections < 1 {
		return errors.New("api: limits must be positive")
	}
	// The decoder recurses for nested values.
	if l.Depth > 10_000 {
		return fmt.Errorf("api: a depth of %d is above 10000", l.Depth)
	}
	return nil
}

// reportsReply is the body of every reply to a request whose body was decoded.
type reportsReply struct {
	// Status is "error" if Error is set.
	Status   string           `json:"status,omitempty"`
	Error    string           `json:"error,omitempty"`
	Accepted int              `json:"accepted"`
	Rejected []rejectionReply `json:"rejected"`
	// RejectedTotal is set if the list was truncated.
	RejectedTotal int `json:"rejected_total,omitempty"`
}

type rejectionReply struct {
	Index   int           `json:"index"`
	Reason  ingest.Reason `json:"reason"`
	Message string        `json:"message"`
}

// reportsHandler serves POST /api/v1/reports.
type reportsHandler struct {
	*intake

	decoders sync.Pool // *reportDecoder
}

// ServeHTTP implements http.Handler.
func (h *reportsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.receive(w, r, checkReportType, identity, h.refuse, func(b *received) {
		d, ok := h.decoders.Get().(*reportDecoder)
		if !ok {
			d = &reportDecoder{limits: h.limits}
		}
		h.serve(w, r, b, d)
		d.release()
		h.decoders.Put(d)
	})
}

func (h *reportsHandler) refuse(w http.ResponseWriter, _ *http.Request, code int, message string) {
	if code == http.StatusUnsupportedMediaType {
		w.Header().Set("Accept", "application/json, application/x-ndjson")
	}
	replyJSON(w, code, reportsReply{Status: "error", Error: message, Rejected: []rejectionReply{}})
}

func (h *reportsHandler) serve(w http.ResponseWriter, r *http.Request, b *received, d *reportDecoder) {
	enc, broken := b.enc, b.broken
	d.allowance = h.allowance(r, b)
	whole := d.decode(b.data)
	if d.stopped != nil {
		code, message := h.stopped(w, d.stopped)
		h.refuse(w, r, code, message)
		return
	}
	h.rejects(r.URL.Path, d.rejectedTotal)

	var result ingest.Result
	var appendErr error
	if reports := d.result(); len(reports) > 0 {
		result, appendErr = h.append(r.Context(), reports, broken)
		h.overwritten(r, result)
	}
	reply := h.merge(d, result)
	code := http.StatusOK
	switch {
	case appendErr != nil:
		code = h.failed(w, r, appendErr)
		reply.Error = appendErr.Error()
	case broken != nil || !whole || d.malformed != "":
		code = http.StatusBadRequest
		reply.Error = h.complaint(d, enc, broken, whole)
	case d.values == 0:
		code = http.StatusBadRequest
		reply.Error = "the body is empty, want a report"
	case reply.Accepted == 0 && len(reply.Rejected) > 0:
		code = http.StatusBadRequest
		first := reply.Rejected[0]
		reply.Error = fmt.Sprintf("every measurement was rejected, measurement %d because: %s (%s)",
			first.Index, first.Message, first.Reason)
	}
	if reply.Error != "" {
		reply.Status = "error"
	}
	replyJSON(w, code, reply)
}

// readFailure returns the status code for a body that is not decoded at all. It returns 0 for a
// body to decode, even one that broke off. It sets Retry-After where a retry makes sense.
func readFailure(w http.ResponseWriter, err error) int {
	tooLarge := (*tooLargeError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errStalled):
		w.Header().Set("Connection", "close")
		return http.StatusRequestTimeout
	case errors.Is(err, errNoRoom):
		w.Header().Set("Retry-After", retryBusySeconds)
		return http.StatusTooManyRequests
	}
	return 0
}

// complaint describes in one sentence what is wrong with the body. A body that broke off usually
// causes a syntax error at its end, too; complaint reports both.
func (h *reportsHandler) complaint(d *reportDecoder, enc encoding, broken error, whole bool) string {
	body := "the body"
	if enc != identity {
		body = fmt.Sprintf("the %s body", enc)
	}
	cause := ""
	switch {
	case errors.Is(broken, errUntrusted):
		return body + " is damaged, nothing of it was kept: " + broken.Error()
	case errors.Is(broken, io.ErrUnexpectedEOF):
		cause = body + " breaks off"
	case broken != nil:
		cause = body + " cannot be read on: " + broken.Error()
	}
	switch {
	case !whole && cause != "":
		return fmt.Sprintf("%s: %s (%s)", d.where(), d.fault, cause)
	case !whole:
		return fmt.Sprintf("%s: %s", d.where(), d.fault)
	case cause != "" && d.seen > 0:
		return fmt.Sprintf("after measurement %d, at byte %d: %s", d.seen-1, len(d.b), cause)
	case cause != "":
		return fmt.Sprintf("before any measurement, at byte %d: %s", len(d.b), cause)
	}
	return d.malformed
}

// merge combines the rejections of decoding and of ingest, sorted by index. Ingest numbers only the
// measurements that it received, so merge maps its indexes back to the body's.
func (h *reportsHandler) merge(d *reportDecoder, result ingest.Result) reportsReply {
	reply := reportsReply{
		Accepted: result.Accepted,
		Rejected: make([]rejectionReply, 0, min(d.rejectedTotal+len(result.Rejected), h.limits.Rejections)),
	}
	all := d.rejected
	for _, rej := range result.Rejected {
		rej.Index = d.indexes[rej.Index]
		all = append(all, rej)
	}
	d.rejected = all
	slices.SortStableFunc(all, func(a, b ingest.Rejection) int { return cmp.Compare(a.Index, b.Index) })
	for _, rej := range all[:cap(reply.Rejected)] {
		reply.Rejected = append(reply.Rejected, rejectionReply(rej))
	}
	if total := d.rejectedTotal + len(result.Rejected); total > len(reply.Rejected) {
		reply.RejectedTotal = total
	}
	return reply
}
