package push

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/quern/quern/internal/ingest"
)

// Endpoint serves a protocol that pushes series.
type Endpoint struct {
	*Intake

	// Accepts checks the headers of a request, except for Content-Encoding.
	Accepts func(http.Header) error
	// Unsaid is the compression of a body without a Content-Encoding. The default is none.
	Unsaid Encoding
	// Decode adds the contents of the body to the batch. An error concerns the rest of the body;
	// the batch remains good. The batch may hold views into the body. Decode MUST stop when the
	// batch takes no more.
	Decode func(r *http.Request, body []byte, b *ingest.Batch) error
	// Whole returns the decodable part of a body that broke off. The default is all of it.
	Whole func(body []byte) []byte
	// Refuse answers if nothing was accepted. Retry-After is already set where a retry makes sense.
	Refuse Refusal
	// Explain, unless nil, improves the messages of rejections before they are reported; the batch
	// has the samples.
	Explain func(b *ingest.Batch, rejected []ingest.Rejection)
	// Unread returns whether the sender does not learn of a rejection, or ignores the reply.
	// Operators are then told. The default is that senders read replies.
	Unread func(r *http.Request, rej ingest.Rejection) bool
	// Reply answers if something may have been accepted. result has the outcome of each
	// measurement; broken, unless nil, says what is wrong with the rest of the body.
	Reply func(w http.ResponseWriter, r *http.Request, result ingest.Result, broken error)

	batches sync.Pool // *ingest.Batch
}

// ServeHTTP implements http.Handler.
func (p *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Receive(w, r, p.Accepts, p.Unsaid, p.Refuse, func(body *Received) {
		b, ok := p.batches.Get().(*ingest.Batch)
		if !ok {
			b = &ingest.Batch{Sources: p.Sources, Max: p.Limits.Measurements, MaxLabels: p.Limits.Labels, MaxText: p.Limits.TextBytes}
		}
		b.Reset()
		b.Allowance = p.Allowance(r, body)
		p.serve(w, r, body, b)
		b.Allowance = ingest.Allowance{} // it refers to the request
		p.batches.Put(b)                 // also when nothing was accepted, since memory is short then
	})
}

func (p *Endpoint) serve(w http.ResponseWriter, r *http.Request, body *Received, b *ingest.Batch) {
	data := body.Data
	if body.Broken != nil && p.Whole != nil {
		data = p.Whole(data)
	}
	broken := p.Decode(r, data, b)
	if body.Broken != nil {
		broken = body.Broken // the cause of any decoding error
	}
	if err := b.Err(); err != nil {
		code, message := p.Stopped(w, err)
		p.Refuse(w, r, code, message)
		return
	}
	p.Rejects(r.URL.Path, b.Rejected())
	var result ingest.Result
	if reports := b.Reports(); len(reports) > 0 {
		var err error
		if result, err = p.Append(r.Context(), reports, body.Broken); err != nil {
			p.Refuse(w, r, p.Failed(w, r, err), err.Error())
			return
		}
	}
	result = b.Result(result)
	if p.Explain != nil {
		p.Explain(b, result.Rejected)
	}
	p.notice(r, result)
	p.Reply(w, r, result, broken)
}

// notice tells operators what the sender does not learn.
func (p *Endpoint) notice(r *http.Request, result ingest.Result) {
	p.Overwritten(r, result)
	if p.Unread == nil {
		return
	}
	type lost struct {
		n       int
		message string
	}
	byReason := map[ingest.Reason]*lost{}
	for _, rej := range result.Rejected {
		if !p.Unread(r, rej) {
			continue
		}
		if l := byReason[rej.Reason]; l != nil {
			l.n++
		} else {
			byReason[rej.Reason] = &lost{1, rej.Message}
		}
	}
	for reason, l := range byReason {
		p.Unkept.Note(r, string(reason), l.n, l.message)
	}
}

// Overwritten tells operators that samples within one millisecond have replaced each other.
func (in *Intake) Overwritten(r *http.Request, result ingest.Result) {
	if o := result.Overwritten; o.Samples > 0 {
		in.Unkept.Note(r, sameMillisecond, o.Samples, fmt.Sprintf(
			"%s has several values at %s, and the last one is kept: a series has one sample per millisecond",
			o.Series, time.UnixMilli(o.TimeMs).UTC().Format("2006-01-02T15:04:05.000Z")))
	}
}

const (
	// NamedRejections is the number of rejections that a reply names; SeriesBytes limits the text
	// of each series. Prometheus logs the first KiB.
	NamedRejections = 5
	SeriesBytes     = 200
)

// NameSeries adds the series to the first rejections: nobody counts samples in a binary message.
func NameSeries(b *ingest.Batch, rejected []ingest.Rejection) {
	for i := range rejected[:min(len(rejected), NamedRejections)] {
		if series, ok := b.SeriesOf(rejected[i].Index); ok {
			if len(series) > SeriesBytes {
				series = series[:SeriesBytes] + "…"
			}
			rejected[i].Message += " in " + series
		}
	}
}
