package otlp

import (
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire/excerpt"
)

// mediaProtobuf and mediaJSON are the media types of OTLP/HTTP. A reply has the type of its request.
const (
	mediaProtobuf = "application/x-protobuf"
	mediaJSON     = "application/json"
)

// handler serves POST /v1/metrics as specified in
// https://opentelemetry.io/docs/specs/otlp/#otlphttp.
type handler struct {
	opts     settings
	notes    func(*http.Request) func(metric.Metadata)
	decoders sync.Pool // *decoder
}

// New makes the handler. promote are the resource attributes that become labels of all
// series of the resource. notes, unless it is nil, returns what receives the metric metadata of a
// request.
func New(in *push.Intake, promote []string, notes func(*http.Request) func(metric.Metadata)) http.Handler {
	h := &handler{opts: settings{Promote: promote, Labels: in.Limits.Labels}, notes: notes}
	return &push.Endpoint{
		Intake:  in,
		Accepts: checkType, Decode: h.decode, Refuse: refuse, Explain: nameFirst, Reply: answer,
		// The SDKs ignore partial_success.
		Unread: func(*http.Request, ingest.Rejection) bool { return true },
	}
}

func checkType(h http.Header) error {
	if mediaType(h) == "" {
		return fmt.Errorf("the Content-Type %s is not supported: use %s or %s", excerpt.Quoted(h.Get("Content-Type")), mediaProtobuf, mediaJSON)
	}
	return nil
}

// mediaType returns the media type of a request, "" if it is not OTLP.
func mediaType(h http.Header) string {
	switch media, _, _ := mime.ParseMediaType(h.Get("Content-Type")); media {
	case mediaProtobuf, mediaJSON:
		return media
	}
	return ""
}

func (h *handler) decode(r *http.Request, body []byte, b *ingest.Batch) error {
	d, ok := h.decoders.Get().(*decoder)
	if !ok {
		d = newDecoder(h.opts)
	}
	if h.notes != nil {
		d.opts.Note = h.notes(r)
	}
	defer h.decoders.Put(d)
	if mediaType(r.Header) == mediaJSON {
		return d.fromJSON(body, b)
	}
	return d.fromProtobuf(body, b)
}

// status is google.rpc.Status. It omits the code, as OTLP allows: clients use the HTTP status.
type status struct {
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, r *http.Request, code int, message string) {
	if code == http.StatusUnsupportedMediaType {
		w.Header().Set("Accept", mediaProtobuf+", "+mediaJSON)
	}
	message = strings.ToValidUTF8(excerpt.Message(message), "?")
	if mediaType(r.Header) != mediaProtobuf {
		respond.JSON(w, code, status{message})
		return
	}
	replyProtobuf(w, code, appendField(nil, 2, message))
}

// exportReply is ExportMetricsServiceResponse.
type exportReply struct {
	PartialSuccess *partialReply `json:"partialSuccess,omitempty"`
}

type partialReply struct {
	RejectedDataPoints int    `json:"rejectedDataPoints,omitempty,string"`
	ErrorMessage       string `json:"errorMessage,omitempty"`
}

func answer(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
	partial := partialSuccess(result)
	if broken != nil {
		refuse(w, r, http.StatusBadRequest, fmt.Sprintf("the body is malformed: %s; of the data points before that, %d were stored and %d rejected",
			broken, result.Accepted, partial.RejectedDataPoints))
		return
	}
	var reply exportReply
	if partial != (partialReply{}) {
		reply.PartialSuccess = &partial
	}
	if mediaType(r.Header) == mediaJSON {
		respond.JSON(w, http.StatusOK, reply)
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
			push.NameSeries(b, rejected[i:i+1])
		}
	}
}

// partialSuccess counts rejections, with the first message for each reason. It is empty if nothing
// was rejected.
func partialSuccess(result ingest.Result) partialReply {
	var p partialReply
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
	w.Header().Set("Content-Type", mediaProtobuf)
	w.WriteHeader(code)
	// A client that has gone cannot be told.
	_, _ = w.Write(body)
}
