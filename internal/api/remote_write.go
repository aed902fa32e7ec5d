package api

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quern/quern/internal/api/remotewrite"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	remoteWritePath = "/api/v1/write"
	// namedRejections is the number of rejections that a reply names; seriesBytes limits the text
	// of each series. Prometheus logs the first KiB.
	namedRejections = 5
	seriesBytes     = 200
)

// remoteWriteHandler serves POST /api/v1/write, https://prometheus.io/docs/specs/prw/remote_write_spec_2_0.
type remoteWriteHandler struct {
	note     func(metric.Metadata)
	decoders sync.Pool // *remotewrite.Decoder
}

func newRemoteWriteHandler(in *intake, opts *Options) http.Handler {
	h := &remoteWriteHandler{}
	if opts.Metadata != nil {
		h.note = opts.Metadata.Note
	}
	return &push{
		intake: in, sources: opts.Sources.Prometheus,
		accepts: func(h http.Header) error {
			_, err := remoteWriteMessage(h)
			return err
		},
		unsaid: snappied,
		decode: h.decode, refuse: refuseRemoteWrite, explain: nameSeries, unread: forgiven, reply: replyRemoteWrite,
	}
}

// remoteWriteVersion is the version of the message: 1 or 2.
type remoteWriteVersion int

// remoteWriteMessage returns the version of a request's message.
func remoteWriteMessage(h http.Header) (remoteWriteVersion, error) {
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
	return 0, fmt.Errorf("the Content-Type %q is not supported: use application/x-protobuf with proto=prometheus.WriteRequest, "+
		"which need not be said, or proto=io.prometheus.write.v2.Request", v)
}

func (h *remoteWriteHandler) decode(r *http.Request, body []byte, b *ingest.Batch) error {
	d, ok := h.decoders.Get().(*remotewrite.Decoder)
	if !ok {
		d = &remotewrite.Decoder{Note: h.note}
	}
	defer h.decoders.Put(d)
	if version, _ := remoteWriteMessage(r.Header); version == 2 {
		return d.V2(body, b)
	}
	return d.V1(body, b)
}

// written sets the headers with the written counts, which senders of version 2.0 expect in every
// reply.
func written(w http.ResponseWriter, r *http.Request, samples int) {
	if version, _ := remoteWriteMessage(r.Header); version != 2 {
		return
	}
	w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", strconv.Itoa(samples))
	w.Header().Set("X-Prometheus-Remote-Write-Histograms-Written", "0")
	w.Header().Set("X-Prometheus-Remote-Write-Exemplars-Written", "0")
}

func refuseRemoteWrite(w http.ResponseWriter, r *http.Request, code int, message string) {
	written(w, r, 0)
	replyText(w, code, message+"\n")
}

// forgiven returns whether a rejection does not make the reply an error. A sender of version 1.0
// counts its whole request as failed on any error, including stored samples. So native histograms
// are dropped silently, as by all receivers without support for them. A sender of version 2.0
// learns from the headers what was written.
func forgiven(r *http.Request, rej ingest.Rejection) bool {
	version, _ := remoteWriteMessage(r.Header)
	return version == 1 && rej.Reason == ingest.ReasonUnsupported
}

// replyRemoteWrite answers 400 if any rejection is not forgiven: sending the request again is
// useless, and the good part is kept.
func replyRemoteWrite(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error) {
	written(w, r, result.Accepted)
	failed := slices.ContainsFunc(result.Rejected, func(rej ingest.Rejection) bool { return !forgiven(r, rej) })
	if broken == nil && !failed {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var sb strings.Builder
	fmt.Fprintf(&sb, "%d samples stored, %d rejected", result.Accepted, len(result.Rejected))
	if broken != nil {
		fmt.Fprintf(&sb, "; the message cannot be read to its end: %s", broken)
	}
	for i, rej := range result.Rejected {
		if i == namedRejections {
			fmt.Fprintf(&sb, "; and %d more", len(result.Rejected)-i)
			break
		}
		fmt.Fprintf(&sb, "; sample %d: %s (%s)", rej.Index, rej.Message, rej.Reason)
	}
	sb.WriteByte('\n')
	replyText(w, http.StatusBadRequest, sb.String())
}

// nameSeries adds the series to the first rejections: nobody counts samples in a binary message.
func nameSeries(b *ingest.Batch, rejected []ingest.Rejection) {
	for i := range rejected[:min(len(rejected), namedRejections)] {
		if series, ok := b.SeriesOf(rejected[i].Index); ok {
			if len(series) > seriesBytes {
				series = series[:seriesBytes] + "…"
			}
			rejected[i].Message += " in " + series
		}
	}
}
