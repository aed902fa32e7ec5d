// Package importer serves POST /api/v1/import, the back-fill of history.
//
// The way of a sample: next finds its line in the body (importer.go). The line is checked as a whole and decoded (line.go). The
// sample waits in a batch until flush makes it durable, or the reply says why it is rejected (batch.go). An annotation waits in
// a batch of its own (annotations.go).
package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

const (
	// batchSamples is the number of samples that are made durable together before more is read.
	batchSamples = 20_000
	// batchDecoded is the decoded size at which a batch is made durable even with fewer samples.
	// Series with many labels reach it.
	batchDecoded = 1 << 20
	// batchRemarks is the number of annotations that are made durable together.
	batchRemarks = 256
	// maxLine bounds a line.
	maxLine = 32 << 20
	// maxSeries bounds the name and the labels of a line. It is more than ingest accepts.
	maxSeries = 1 << 20
	// heldBytes is how much of a compressed body is decompressed before a line of it is taken: whether
	// a shorter body is damaged has shown by then.
	heldBytes = 4 << 20
	// replyBytes is roughly what the lists of a reply take, with it as it is sent.
	replyBytes = 2 << 20
	// In the middle of a body, a busy server is retried busyTries times, every busyWait.
	busyTries = 300
	busyWait  = 100 * time.Millisecond
)

// BackFiller ingests history.
type BackFiller interface {
	// BackFill is Appender.Append for samples up to the retention of raw samples.
	BackFill(ctx context.Context, reports []ingest.Report) (ingest.Result, error)
}

// handler serves POST /api/v1/import.
type handler struct {
	*push.Intake

	opts Options
}

// Options configure the handler. All but Annotations are required.
type Options struct {
	// To takes the samples.
	To BackFiller
	// Annotations take the annotations. Without them, lines with one are malformed.
	Annotations *annotations.Book
	// Budget is shared by all imports.
	Budget *limits.Budget
	// Clock times the waits for a busy server.
	Clock clock.Clock
	// Turns limit how many selectors with regular expressions are checked at once; nil is no limit.
	Turns *limits.Turns
}

// New makes the handler.
func New(in *push.Intake, opts Options) http.Handler { return &handler{in, opts} }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	im := &importing{h: h, ctx: r.Context(), reply: wire.Import{Rejected: []wire.RejectedOfLine{}}}
	if h.Drains(w) {
		im.answer(w, http.StatusServiceUnavailable, respond.Draining)
		return
	}
	enc, err := push.ParseEncoding(r.Header, push.Identity)
	if err == nil && enc == push.Snappy {
		err = errors.New("the Content-Encoding snappy is not supported here: use gzip or zstd")
	}
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd")
		im.answer(w, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	client := h.Clients.ByAddress(r.RemoteAddr)
	im.claim, im.remarks.parsed = h.opts.Budget.Claim(client), h.opts.Budget.Claim(client)
	defer im.claim.Release()
	defer im.remarks.parsed.Release()
	im.remarks.turn = func(ctx context.Context) (func(), error) { return h.opts.Turns.Take(ctx, r.RemoteAddr) }
	im.batch = ingest.Batch{Sources: h.Sources, MaxLabels: h.Limits.Labels}
	im.line.Depth, im.line.most = h.Limits.Depth, h.Limits.Labels

	err = respond.ErrNoRoom
	if im.claim.Grow(memory(enc)) {
		err = im.read(enc, r.Body)
	}
	im.claim.Shrink(replyBytes) // the client may take arbitrarily long to read the reply
	if err == nil {
		im.answer(w, 0, im.complaint())
		return
	}
	code := http.StatusBadRequest
	if malformed := (*lineError)(nil); !errors.As(err, &malformed) {
		if code = respond.BodyFailure(w, err); code == 0 {
			code = h.Failed(w, r, err)
		}
	}
	im.answer(w, code, err.Error())
}

// MaxBytes returns the most memory that one import may need besides what selectors are parsed to.
func MaxBytes() int64 { return memory(push.Zstd) + maxLine }

// memory returns the memory of an import without a long line: the batches, the reply, the buffer and the decompressor.
func memory(enc push.Encoding) int64 {
	return batchSamples*200 + 3*batchDecoded + 2*maxSeries + replyBytes + int64(bufferBytes(enc)) + enc.StreamBytes()
}

// bufferBytes returns the size of the buffer of a body.
func bufferBytes(enc push.Encoding) int {
	if enc == push.Identity {
		return push.MinBufferBytes
	}
	return heldBytes
}

// importing is one import request.
type importing struct {
	h     *handler
	ctx   context.Context
	claim limits.Claim
	reply wire.Import

	body   *bufio.Reader
	long   []byte // a line that is longer than the buffer of body
	number int    // of the current line, from 1
	whole  int    // number of the last line that was read to its end

	line    line
	arena   int // the charged size of its strings that have escapes
	batch   ingest.Batch
	labels  []metric.Label // of the series that samples are added to
	lines   []int          // line number of each sample in the batch
	remarks remarks
}

// lineError describes an error in a line, or in the body after the last line. It is answered with
// 400.
type lineError struct {
	line    int
	message string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// read takes the body line by line, and makes it durable.
func (im *importing) read(enc push.Encoding, body io.Reader) error {
	from, release, err := im.h.Open(enc, body)
	defer release()
	if err == nil {
		im.body = bufio.NewReaderSize(from, bufferBytes(enc))
		if enc != push.Identity {
			if _, err = im.body.Peek(heldBytes); !errors.Is(err, push.ErrUntrusted) {
				err = nil // next returns it behind the lines before it
			}
		}
	}
	for err == nil {
		var text []byte
		text, err = im.next()
		if err == nil || errors.Is(err, io.EOF) {
			if err := im.take(text, err != nil); err != nil {
				return err
			}
		}
	}
	tooLarge := (*respond.TooLargeError)(nil)
	switch {
	case errors.Is(err, io.EOF):
		return im.flush()
	case errors.Is(err, push.ErrUntrusted):
		return im.damaged(err)
	case errors.As(err, &tooLarge), errors.Is(err, respond.ErrNoRoom):
		return cmp.Or(im.flush(), err)
	}
	return im.breakOff(err)
}

// next returns the next line of the body, without its line feed. It is valid until the next call. At the end of the body, io.EOF
// comes with the rest, which is a line, too, unless it is empty.
func (im *importing) next() ([]byte, error) {
	im.long = im.long[:0]
	for {
		piece, err := im.body.ReadSlice('\n')
		if err == nil && len(im.long) == 0 {
			return piece[:len(piece)-1], nil
		}
		size := len(im.long) + len(piece)
		if size > maxLine {
			return nil, &respond.TooLargeError{Message: fmt.Sprintf("line %d is longer than the limit of %d bytes: split it into several lines with the same metric", im.number+1, maxLine)}
		}
		if size > cap(im.long) {
			size = min(2*size, maxLine)
			if !im.claim.Grow(int64(size - cap(im.long))) {
				return nil, respond.ErrNoRoom
			}
			im.long = append(make([]byte, 0, size), im.long...)
		}
		im.long = append(im.long, piece...)
		switch {
		case err == nil:
			return im.long[:len(im.long)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return im.long, err
		}
	}
}

// take processes a line. Behind the last line feed, nothing is no line.
func (im *importing) take(text []byte, last bool) error {
	if last && len(text) == 0 {
		return nil
	}
	im.number++
	if len(bytes.TrimSpace(text)) > 0 {
		l := &im.line
		ok := l.decode(text)
		if more := cap(l.Arena) - im.arena; more > 0 {
			im.arena = cap(l.Arena)
			if !im.claim.Grow(int64(more)) {
				return respond.ErrNoRoom
			}
		}
		switch {
		case !ok:
			im.malformed()
		case l.annotated:
			if err := im.remark(); err != nil {
				return err
			}
		default:
			if err := im.samples(); err != nil {
				return err
			}
		}
	}
	im.whole = im.number
	return nil
}

// breakOff handles a body that cannot be read further. It makes the complete lines durable, even if
// the client has gone.
func (im *importing) breakOff(cause error) error {
	ctx, done := ingest.Outlive(im.ctx)
	defer done()
	im.ctx = ctx
	if err := im.flush(); err != nil {
		return err
	}
	if errors.Is(cause, respond.ErrStalled) {
		return cause
	}
	im.distrust()
	return &lineError{im.number + 1, "cannot read the rest of the body: " + cause.Error()}
}

// damaged handles a body that cannot be decompressed. What of it was not yet made durable is dropped.
func (im *importing) damaged(cause error) error {
	im.distrust()
	kept := "nothing of it was kept"
	if n := im.reply.Accepted; n > 0 {
		kept = fmt.Sprintf("%d samples were kept before that showed, and may be wrong: send the undamaged body", n)
	}
	return &lineError{im.reply.Lines + 1, fmt.Sprintf("%v; %s", cause, kept)}
}

// answer replies. Code 0 means that the body was read to its end.
func (im *importing) answer(w http.ResponseWriter, code int, message string) {
	if message != "" {
		im.reply.Status, im.reply.Error = "error", message
	}
	switch {
	case code != 0:
		// The server does not read the rest of the body, however long it is.
		w.Header().Set("Connection", "close")
	case message != "":
		code = http.StatusBadRequest
	default:
		code = http.StatusOK
	}
	respond.JSON(w, code, im.reply)
}
