package api

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/api/otlp"
	"github.com/quern/quern/internal/ingest"
)

// otlpProtobuf and otlpJSON are the media types of OTLP/HTTP. A reply has the type of its request.
const (
	otlpProtobuf = "application/x-protobuf"
	otlpJSON     = "application/json"
)

// otlpHandler serves POST /v1/metrics as specified in
// https://opentelemetry.io/docs/specs/otlp/#otlphttp.
type otlpHandler struct {
	opts     otlp.Options
	decoders sync.Pool // *otlp.Decoder
}

func newOTLPHandler(in *intake, opts *Options) http.Handler {
	h := &otlpHandler{opts: otlp.Options{Promote: opts.OTLPPromote, Labels: opts.Limits.Labels}}
	if opts.Metadata != nil {
		h.opts.Note = opts.Metadata.Note
	}
	return &push{
		intake: in, sources: opts.Sources.OTLP,
		accepts: checkOTLPType, decode: h.decode, refuse: refuseOTLP, explain: nameFirst, reply: replyOTLP,
		// The SDKs ignore partial_success.
		unread: func(*http.Request, ingest.Rejection) bool { return true },
	}
}

func checkOTLPType(h http.Header) error {
	if mediaType(h) == "" {
		return fmt.Errorf("the Content-Type %q is not supported: use %s or %s", h.Get("Content-Type"), otlpProtobuf, otlpJSON)
	}
	return nil
}

// mediaType returns the media type of a request, "" if it is not OTLP.
func mediaType(h http.Header) string {
	switch media, _, _ := mime.ParseMediaType(h.Get("Content-Type")); media {
	case otlpProtobuf, otlpJSON:
		return media
	}
	return ""
}

func (h *otlpHandler) decode(r *http.Request, body []byte, b *ingest.Batch) error {
	d, ok := h.decoders.Get().(*otlp.Decoder)
	if !ok {
		d = otlp.NewDecoder(h.opts)
	}
	defer h.decoders.Put(d)
	if mediaType(r.Header) == otlpJSON {
		return d.JSON(body, b)
	}
	return d.Protobuf(body, b)
}

// otlpStatus is google.rpc.Status. It omits the code, as OTLP allows: clients use the HTTP status.
type otlpStatus struct {
	Message string `json:"message"`
}

func refuseOTLP(w http.ResponseWriter, r *http.Request, code int, message string) {
	if code == http.StatusUnsupportedMediaType {
		w.Header().Set("Accept", otlpProtobuf+", "+otlpJSON)
	}
	message = strings.ToValidUTF8(message, "?")
	if mediaType(r.Header) != otlpProtobuf {
		replyJSON(w, code, otlpStatus{message})
		return
	}
	replyProtobuf(w, code, appendField(nil, 2, message))
}

// otlpReply is ExportMetricsServiceResponse.
type otlpReply struct {
	PartialSuccess *otlpPartialSuccess `json:"partialSuccess,omitempty"`
}

type otlpPartialSuccess struct {
	RejectedDataPoints int    `json:"rejectedDataPoints,omitempty,string"`
	ErrorMessage       string `json:"errorMessage,omitempty"`
}

func replyOTLP(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
	partial := partialSuccess(result)
	if broken != nil {
		refuseOTLP(w, r, http.StatusBadRequest, fmt.Sprintf("the body is broken: %s; of what stands before, %d data points were kept and %d rejected",
			broken, result.Accepted, partial.RejectedDataPoints))
		return
	}
	var reply otlpReply
	if partial != (otlpPartialSuccess{}) {
		reply.PartialSuccess = &partial
	}
	if mediaType(r.Header) == otlpJSON {
		replyJSON(w, http.StatusOK, reply)
		return
	}
	var body []byte
	if p := reply.PartialSuccess; p != nil {
		var b []byte
		if p.RejectedDataPoints > 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(p.RejectedDataPoints))
		}
		body = appendField(nil, 1, string(appendField(b, 2, p.ErrorMessage)))
	}
	replyProtobuf(w, http.StatusOK, body)
}

// nameFirst adds the series to the first rejection for each reason, if the rejection has a series.
func nameFirst(b *ingest.Batch, rejected []ingest.Rejection) {
	named := map[ingest.Reason]bool{}
	for i, r := range rejected {
		if r.Index != ingest.NoMeasurement && !named[r.Reason] {
			named[r.Reason] = true
			nameSeries(b, rejected[i:i+1])
		}
	}
}

// partialSuccess counts rejections, with the first message for each reason. It is empty if nothing
// was rejected.
func partialSuccess(result ingest.Result) otlpPartialSuccess {
	var p otlpPartialSuccess
	var reasons []ingest.Reason
	counts, first := map[ingest.Reason]int{}, map[ingest.Reason]string{}
	info := ""
	for _, r := range result.Rejected {
		if r.Index == ingest.NoMeasurement {
			info = r.Message
			continue
		}
		p.RejectedDataPoints++
		if counts[r.Reason]++; counts[r.Reason] == 1 {
			reasons, first[r.Reason] = append(reasons, r.Reason), r.Message
		}
	}
	var parts []string
	for _, reason := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s (%s)", counts[reason], reason, first[reason]))
	}
	if len(parts) > 0 {
		p.ErrorMessage = fmt.Sprintf("%d of %d data points were rejected: %s",
			p.RejectedDataPoints, p.RejectedDataPoints+result.Accepted, strings.Join(parts, ", "))
	}
	if info != "" {
		if p.ErrorMessage != "" {
			p.ErrorMessage += "; "
		}
		p.ErrorMessage += "target_info was rejected: " + info
	}
	p.ErrorMessage = strings.ToValidUTF8(p.ErrorMessage, "?")
	return p
}

func appendField(b []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func replyProtobuf(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", otlpProtobuf)
	w.WriteHeader(code)
	// A client that has gone cannot be told.
	_, _ = w.Write(body)
}
