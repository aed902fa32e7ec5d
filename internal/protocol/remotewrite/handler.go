package remotewrite

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Path is where remote write sends.
const Path = "/api/v1/write"

// handler serves POST /api/v1/write, https://prometheus.io/docs/specs/prw/remote_write_spec_2_0.
type handler struct {
	notes    func(*http.Request) func(metric.Metadata)
	decoders sync.Pool // *decoder
}

// New makes the handler. notes, unless it is nil, returns what receives the metric metadata of a
// request.
func New(in *push.Intake, notes func(*http.Request) func(metric.Metadata)) http.Handler {
	h := &handler{notes: notes}
	return &push.Endpoint{
		Intake: in,
		Accepts: func(h http.Header) error {
			_, err := versionOf(h)
			return err
		},
		Unsaid: push.Snappy,
		Decode: h.decode, Refuse: refuse, Explain: push.NameSeries, Unread: forgiven, Reply: reply,
	}
}

// protocolVersion is the version of the message: 1 or 2.
type protocolVersion int

// versionOf returns the version of a request's message.
func versionOf(h http.Header) (protocolVersion, error) {
	v := h.Get("Content-Type")
	if v == "" {
		return 1, nil
	}
	media, params, err := mime.ParseMediaType(v)
	if err == nil && media == "application/x-protobuf" {
		switch params["proto"] {
		case "", "prometheus.WriteRequest":
			return 1, nil
		case "io.prometheus.write.v2.Request":
			return 2, nil
		}
	}
	return 0, fmt.Errorf("the Content-Type %s is not supported: use application/x-protobuf with proto=prometheus.WriteRequest, "+
		"which is the default, or proto=io.prometheus.write.v2.Request", excerpt.Quoted(v))
}

func (h *handler) decode(r *http.Request, body []byte, b *ingest.Batch) error {
	d, ok := h.decoders.Get().(*decoder)
	if !ok {
		d = new(decoder)
	}
	if h.notes != nil {
		d.Note = h.notes(r)
	}
	defer h.decoders.Put(d)
	if version, _ := versionOf(r.Header); version == 2 {
		return d.v2(body, b)
	}
	return d.v1(body, b)
}

// These headers say how many samples of a request were written, and how many were rejected. The first is of version 2.0. Quern's agent
// tells by it whether it was Quern that answered.
const (
	WrittenHeader  = "X-Prometheus-Remote-Write-Samples-Written"
	RejectedHeader = "X-Quern-Samples-Rejected"
)

// written sets the header with the count of what was written, and the others that senders of version 2.0 expect in every reply.
func written(w http.ResponseWriter, r *http.Request, samples int) {
	w.Header().Set(WrittenHeader, strconv.Itoa(samples))
	if version, _ := versionOf(r.Header); version != 2 {
		return
	}
	w.Header().Set("X-Prometheus-Remote-Write-Histograms-Written", "0")
	w.Header().Set("X-Prometheus-Remote-Write-Exemplars-Written", "0")
}

func refuse(w http.ResponseWriter, r *http.Request, code int, message string) {
	written(w, r, 0)
	respond.Text(w, code, message+"\n")
}

// forgiven returns whether a rejection does not make the reply an error. A sender of version 1.0
// counts its whole request as failed on any error, including stored samples. So native histograms
// are dropped silently, as by all receivers without support for them. A sender of version 2.0
// learns from the headers what was written.
func forgiven(r *http.Request, rej ingest.Rejection) bool {
	version, _ := versionOf(r.Header)
	return version == 1 && rej.Reason == ingest.ReasonUnsupported
}

// reply answers 400 if any rejection is not forgiven: sending the request again is
// useless, and the good part is kept.
func reply(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
	written(w, r, result.Accepted)
	if n := len(result.Rejected); n > 0 {
		w.Header().Set(RejectedHeader, strconv.Itoa(n))
	}
	failed := slices.ContainsFunc(result.Rejected, func(rej ingest.Rejection) bool { return !forgiven(r, rej) })
	if broken == nil && !failed {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var sb strings.Builder
	fmt.Fprintf(&sb, "%d samples stored, %d rejected", result.Accepted, len(result.Rejected))
	if broken != nil {
		fmt.Fprintf(&sb, "; cannot read the message to its end: %s", broken)
	}
	for i, rej := range result.Rejected {
		if i == push.NamedRejections {
			fmt.Fprintf(&sb, "; and %d more", len(result.Rejected)-i)
			break
		}
		fmt.Fprintf(&sb, "; sample %d: %s (%s)", rej.Index, rej.Message, rej.Reason)
	}
	sb.WriteByte('\n')
	respond.Text(w, http.StatusBadRequest, sb.String())
}
