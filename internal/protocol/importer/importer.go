// Package importer serves POST /api/v1/import, the back-fill of history.
package importer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/jsonscan"
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
	// maxIdleBytes bounds the useless bytes of a compressed body, in excess of its useful bytes and
	// its compressed size. More is not data; only compression makes it large.
	maxIdleBytes = 4 << 20
	// heldBytes is how much of a compressed body is decompressed before a line of it is taken: whether
	// a shorter body is damaged has shown by then.
	heldBytes = 4 << 20
	// complaintBytes is roughly the memory of a malformed line or a rejection, here and in the reply, without its
	// message. The message is there, in the reply, and once more in the reply as it is sent.
	complaintBytes = 256
	messageCopies  = 3
	// lineFrameBytes is roughly the size of a line without its metric, values and timestamps.
	lineFrameBytes = 64
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
	im := &importing{
		h: h, ctx: r.Context(), reply: wire.Import{Rejected: []wire.RejectedOfLine{}},
		batch: ingest.Batch{Sources: h.Sources, MaxLabels: h.Limits.Labels},
	}
	im.Depth = h.Limits.Depth
	if h.Drains(w) {
		im.answer(w, http.StatusServiceUnavailable, respond.Draining)
		return
	}
	body := &countedBody{ReadCloser: r.Body}
	im.wire = &body.n
	enc, err := push.ParseEncoding(r.Header, push.Identity)
	var src io.ReadCloser
	if err == nil {
		src, err = enc.Open(body)
	}
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd")
		im.answer(w, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	defer src.Close()
	im.claim = h.opts.Budget.Claim(h.Clients.Of(r.RemoteAddr))
	defer im.claim.Release()
	im.parsed = h.opts.Budget.Claim(h.Clients.Of(r.RemoteAddr))
	defer im.parsed.Release()
	im.turn = func(ctx context.Context) (func(), error) { return h.opts.Turns.Take(ctx, r.RemoteAddr) }
	im.checks = annotations.NewChecks(im.turn)
	err = respond.ErrNoRoom
	if im.claim.Grow(memory(enc)) {
		held := 0
		if enc != push.Identity {
			held = heldBytes
		}
		err = im.read(src, held)
	}
	im.claim.Shrink(im.complaints) // the client may take arbitrarily long to read the reply
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

// countedBody counts the bytes read of a body as it was sent.
type countedBody struct {
	io.ReadCloser
	n int64
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

// MaxBytes returns the most memory that one import may need besides what selectors are parsed to.
func MaxBytes() int64 { return memory(push.Zstd) + maxLine }

// memory returns the memory of an import without its line: the batch and the decompressor.
func memory(enc push.Encoding) int64 {
	return batchSamples*200 + 3*batchDecoded + enc.StreamBytes() // of which two thirds are for annotations
}

// lineError describes an error in a line, or in the body after the last line. It is answered with
// 400.
type lineError struct {
	line    int
	message string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// importing is one import request.
type importing struct {
	h     *handler
	ctx   context.Context
	claim limits.Claim
	line  int // number of the current line, from 1
	whole int // number of the last line that was read to its end
	reply wire.Import

	wire   *int64 // bytes of the body as it was sent
	useful int64  // bytes of lines that carry samples
	idle   int64  // all other bytes

	scanner
	batch  ingest.Batch
	name   string
	labels []metric.Label
	lines  []int // line number of each sample in the batch
	known  int   // bytes of a line's metric, values and timestamps
	// remark is the annotation of the current line, if isRemark. remarks are those of the batch, and remarkBytes is the
	// size of their lines.
	remark      annotations.Draft
	isRemark    bool
	remarks     []annotations.Draft
	remarkBytes int
	// checks are those of the batch, and parsed is what its selectors take. uncheckable is why the annotation of the
	// current line could not be checked.
	checks      *annotations.Checks
	parsed      limits.Claim
	turn        func(context.Context) (give func(), err error)
	uncheckable error
	// strings is the part of the arena that has been claimed; complaints is what has been claimed for the lists in
	// the reply.
	strings    int
	complaints int64
}

// scanner decodes values and times.
type scanner struct{ jsonscan.Scanner }

// read processes the body line by line, and begins when it has held bytes of it or all. The batch holds
// views into the buffer, so it is flushed before the buffer moves.
func (im *importing) read(src io.Reader, held int) error {
	var buf []byte
	begin := 0      // start of the unprocessed bytes
	searched := 0   // no line ends between begin and searched
	var ended error // why the source has no more data
	for ended == nil && len(buf) < held {
		var err error
		if buf, ended, err = im.more(buf, src); err != nil {
			return err
		}
	}
	for {
		if errors.Is(ended, push.ErrUntrusted) {
			return im.damaged(ended)
		}
		for begin < len(buf) && buf[begin] == '\n' { // there may be very many empty lines
			begin++
			im.line++
			im.idle++
			im.whole = im.line
		}
		searched = max(searched, begin)
		if n := bytes.IndexByte(buf[searched:], '\n'); n >= 0 {
			end := searched + n
			if err := im.take(buf[begin:end]); err != nil {
				return err
			}
			begin = end + 1
			continue
		}
		whole := errors.Is(ended, io.EOF)
		if whole && begin < len(buf) { // the last line has no newline
			if err := im.take(buf[begin:]); err != nil {
				return err
			}
		}
		if ended != nil && !whole {
			return im.breakOff(ended)
		}
		if err := im.flush(); err != nil || whole {
			return err
		}
		if im.idle > maxIdleBytes+im.useful+*im.wire {
			return &respond.TooLargeError{Message: fmt.Sprintf("up to line %d, %d bytes of the body carry no samples: more than the limit of %d, and more than the bytes that do", im.line, im.idle, maxIdleBytes)}
		}
		if begin > 0 {
			buf, begin = buf[:copy(buf, buf[begin:])], 0
		}
		searched = len(buf)
		var err error
		if buf, ended, err = im.more(buf, src); err != nil {
			return err
		}
	}
}

// more appends the next bytes of the body to buf. ended is why there are no others.
func (im *importing) more(buf []byte, src io.Reader) (_ []byte, ended, err error) {
	if len(buf) == cap(buf) {
		if len(buf) >= maxLine {
			return nil, nil, &respond.TooLargeError{Message: fmt.Sprintf("line %d is longer than the limit of %d bytes: split it into several lines with the same metric", im.line+1, maxLine)}
		}
		size := min(max(2*cap(buf), push.MinBufferBytes), maxLine)
		if !im.claim.Grow(int64(size - cap(buf))) {
			return nil, nil, respond.ErrNoRoom
		}
		buf = append(make([]byte, 0, size), buf...)
	}
	n, ended := src.Read(buf[len(buf):cap(buf)])
	return buf[:len(buf)+n], ended, nil
}

// take processes a line.
func (im *importing) take(line []byte) error {
	im.line++
	useful := 0
	if len(bytes.TrimSpace(line)) > 0 {
		if im.batch.Len() == 0 {
			im.Arena = im.Arena[:0] // no sample refers to it any more
		}
		arena := len(im.Arena)
		im.Text, im.Pos = line, 0
		valuesAt, timesAt, n, ok := im.outline()
		switch {
		case im.uncheckable != nil:
			return im.uncheckable
		case !im.holds(len(im.Arena), arena):
			return respond.ErrNoRoom
		case !ok && !im.malformed():
			return respond.ErrNoRoom
		case !ok:
		case im.isRemark:
			useful = len(line) + 1
			if err := im.keepRemark(len(line)); err != nil {
				return err
			}
		case n > 0:
			useful = min(im.known+lineFrameBytes, len(line)+1)
			if err := im.samples(valuesAt, timesAt, n); err != nil {
				return err
			}
		}
	}
	im.useful += int64(useful)
	im.idle += int64(len(line) + 1 - useful)
	im.whole = im.line
	return nil
}

// holds charges the memory of strings that had escapes. arena is the size of the arena, which
// stores them; before is its size at the start of the line. It returns false if there is no room.
func (im *importing) holds(arena, before int) bool {
	im.batch.Charge(int64(max(0, arena-before)))
	if arena <= im.strings {
		return true
	}
	n := arena - im.strings
	im.strings = arena
	return im.claim.Grow(int64(n))
}

// malformed records that the line cannot be decoded. Later lines still can. It returns false if there is no room.
func (im *importing) malformed() bool {
	im.reply.MalformedTotal++
	if im.Quiet {
		return true
	}
	message := fmt.Sprintf("at byte %d: %s", im.At, im.Fault)
	if !im.complains(message) {
		return false
	}
	im.reply.Malformed = append(im.reply.Malformed, wire.MalformedLine{Line: im.line, Message: message})
	im.Quiet = len(im.reply.Malformed) >= im.h.Limits.Rejections
	return true
}

// complains charges the memory of a malformed line, or of a rejection, in the reply. It returns false if there is no
// room.
func (im *importing) complains(message string) bool {
	n := complaintBytes + messageCopies*int64(len(message))
	if !im.claim.Grow(n) {
		return false
	}
	im.complaints += n
	return true
}

// distrust drops all malformed lines, and counts lines as processed only up to the first of them.
// It is called when the body is broken, since the damage may have caused the malformed lines.
func (im *importing) distrust() {
	if len(im.reply.Malformed) > 0 {
		im.reply.Lines = im.reply.Malformed[0].Line - 1
	}
	im.reply.Malformed, im.reply.MalformedTotal = nil, 0
}

// complaint returns the error message for a body that was read to its end, "" for success.
func (im *importing) complaint() string {
	r := &im.reply
	switch {
	case r.MalformedTotal > 1:
		return fmt.Sprintf("line %d: %s; %d lines are malformed, the others were accepted", r.Malformed[0].Line, r.Malformed[0].Message, r.MalformedTotal)
	case r.MalformedTotal == 1:
		return fmt.Sprintf("line %d: %s", r.Malformed[0].Line, r.Malformed[0].Message)
	case r.Accepted == 0 && r.RejectedTotal > 0:
		var reasons strings.Builder
		for _, rej := range r.Rejected[:min(len(r.Rejected), push.NamedRejections)] {
			fmt.Fprintf(&reasons, "; line %d: %s (%s)", rej.Line, rej.Message, rej.Reason)
		}
		return fmt.Sprintf("all %d samples were rejected%s", r.RejectedTotal, reasons.String())
	}
	return ""
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
	return &lineError{im.line + 1, "cannot read the rest of the body: " + cause.Error()}
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

// outline checks a whole line. It decodes the name and the labels, and returns where the values and
// the times begin and how many there are.
func (im *importing) outline() (valuesAt, timesAt, n int, ok bool) {
	fail := func(at int, format string, args ...any) (int, int, int, bool) {
		return 0, 0, 0, im.Fail(at, format, args...)
	}
	if im.Space() != '{' {
		return 0, 0, 0, im.Unexpected("an object")
	}
	im.Pos++
	values, times := -1, -1
	im.name, im.labels, im.known, im.isRemark = "", im.labels[:0], 0, false
	why := ""
	for first := true; ; first = false {
		member, more, ok := im.Member(first)
		if !ok {
			return 0, 0, 0, false
		}
		if !more {
			break
		}
		at := im.Pos
		switch member {
		case "metric":
			ok = im.metric()
		case "values":
			valuesAt = at
			values, ok = im.count(func() bool { _, ok := im.value(); return ok })
		case "timestamps":
			timesAt = at
			times, ok = im.count(func() bool { _, ok := im.timeMs(); return ok })
		case "annotation":
			if ok = im.Skip(); ok {
				im.remark, why = annotations.DecodeLine(im.Text[at:im.Pos])
				im.isRemark = true
			}
		default:
			ok = im.Skip()
			at = im.Pos
		}
		if im.known += im.Pos - at; !ok {
			return 0, 0, 0, false
		}
	}
	if im.Space() != 0 || im.Pos < len(im.Text) {
		return 0, 0, 0, im.Unexpected("the end of the line")
	}
	switch {
	case im.isRemark:
		if why = im.checkRemark(why, values >= 0 || times >= 0 || im.name != ""); why != "" {
			return fail(0, "annotation %.80q: %s", im.remark.ID, why)
		}
		return 0, 0, 0, true
	case values < 0 || times < 0:
		return fail(0, "a line must have metric, values and timestamps")
	case values != times:
		return fail(0, "there are %d values and %d timestamps", values, times)
	}
	return valuesAt, timesAt, values, true
}

// checkRemark returns why the annotation of a line cannot be stored, "" if it can.
func (im *importing) checkRemark(why string, samples bool) string {
	switch {
	case why != "":
		return why
	case im.h.opts.Annotations == nil:
		return "this server takes no annotations"
	case samples:
		return "a line has samples or an annotation, not both"
	}
	why, im.uncheckable = im.checks.Check(limits.WithClaim(im.ctx, &im.parsed), &im.remark.Annotation)
	return why
}

// keepRemark adds the annotation of the current line to the batch.
func (im *importing) keepRemark(size int) error {
	im.remark.Moved = false // an import only adds
	im.remarks = append(im.remarks, im.remark)
	if im.remarkBytes += size; len(im.remarks) < batchRemarks && im.remarkBytes < batchDecoded {
		return nil
	}
	return im.flush()
}

// metric decodes the name and the labels of a line.
func (im *importing) metric() bool {
	if im.Pos >= len(im.Text) || im.Text[im.Pos] != '{' {
		return im.Unexpected("an object of labels")
	}
	im.Pos++
	im.name, im.labels = "", im.labels[:0]
	for first := true; ; first = false {
		label, more, ok := im.Member(first)
		if !ok || !more {
			return ok
		}
		if im.Pos >= len(im.Text) || im.Text[im.Pos] != '"' {
			return im.Unexpected("a label's value in quotes")
		}
		value, ok := im.Str()
		switch {
		case !ok:
			return false
		case label == metric.NameLabel:
			im.name = value
		default:
			im.labels = im.batch.Label(im.labels, label, value)
		}
	}
}

func (im *importing) count(read func() bool) (n int, ok bool) {
	if im.Pos >= len(im.Text) || im.Text[im.Pos] != '[' {
		return 0, im.Unexpected("an array")
	}
	im.Pos++
	for first := true; ; first = false {
		if more, ok := im.Element(first); !ok || !more {
			return n, ok
		}
		if !read() {
			return 0, false
		}
		n++
	}
}

// value decodes a value in any form that exports use.
func (s *scanner) value() (float64, bool) {
	at := s.Pos
	if word := s.word(); word != "" {
		v, ok := wire.ParseNotFinite(word)
		if !ok {
			return 0, s.Fail(at, "%q is not a value", word)
		}
		s.Pos += len(word)
		return v, true
	}
	switch s.Kind() {
	case "a string":
		text, ok := s.Str()
		if !ok {
			return 0, false
		}
		if v, ok := wire.ParseNotFinite(text); ok {
			return v, true
		}
		if v, ok := metric.ParseDecimal(text); ok { // the form of values in Prometheus' API
			return v, true
		}
		return 0, s.Fail(at, "%q is not a value", text)
	case "a number":
		n, ok := s.Number()
		if !ok {
			return 0, false
		}
		v, ok := n.Float()
		if !ok {
			return 0, s.Fail(at, "%s is too large", n.Text)
		}
		return v, true
	}
	return 0, s.Unexpected("a value")
}

// word returns an unquoted word such as NaN or +Inf at the place of a value, which JSON does not
// allow; "" if there is none.
func (s *scanner) word() string {
	end := s.Pos
	if end < len(s.Text) && (s.Text[end] == '+' || s.Text[end] == '-') {
		end++
	}
	first := end
	for end < len(s.Text) && (s.Text[end]|0x20) >= 'a' && (s.Text[end]|0x20) <= 'z' {
		end++
	}
	if end == first {
		return ""
	}
	return jsonscan.View(s.Text[s.Pos:end])
}

func (s *scanner) timeMs() (int64, bool) {
	at := s.Pos
	if s.Kind() != "a number" {
		return 0, s.Unexpected("a time in Unix ms")
	}
	n, ok := s.Number()
	if !ok {
		return 0, false
	}
	ms, ok := n.Int()
	if !ok || ms == ingest.NoTime {
		return 0, s.Fail(at, "%s is not a time in Unix ms", n.Text)
	}
	return ms, true
}

// samples adds the samples of a line, which outline has checked, to the batch. It flushes the batch
// whenever it is large enough.
func (im *importing) samples(valuesAt, timesAt, n int) error {
	values := scanner{jsonscan.Scanner{Text: im.Text, Pos: valuesAt + 1}}
	times := scanner{jsonscan.Scanner{Text: im.Text, Pos: timesAt + 1}}
	if im.batch.Allowance.Used() > batchDecoded {
		if err := im.flush(); err != nil {
			return err
		}
	}
	im.batch.Series(im.name, im.labels)
	for i := range n {
		if im.batch.Len() == batchSamples {
			if err := im.flush(); err != nil {
				return err
			}
			im.batch.Series(im.name, im.labels)
		}
		_, _ = values.Element(i == 0)
		v, _ := values.value()
		_, _ = times.Element(i == 0)
		ms, _ := times.timeMs()
		im.batch.Add(ms, v)
		im.lines = append(im.lines, im.line)
	}
	return nil
}

// flush makes the batch durable.
func (im *importing) flush() error {
	if im.batch.Len() > 0 {
		result, err := im.backFill()
		if err != nil {
			return err
		}
		im.h.Rejects(wire.ImportPath, im.batch.Rejected())
		result = im.batch.Result(result)
		im.reply.Accepted += int64(result.Accepted)
		for _, rej := range result.Rejected {
			if !im.reject(im.lines[rej.Index], rej) {
				return respond.ErrNoRoom
			}
		}
		im.batch.Reset()
		im.lines = im.lines[:0]
	}
	if len(im.remarks) > 0 {
		if err := im.h.opts.Annotations.Put(im.ctx, im.remarks); err != nil {
			return err
		}
		im.reply.Annotations += int64(len(im.remarks))
		im.remarks, im.remarkBytes = nil, 0
	}
	im.parsed.Release()
	im.checks = annotations.NewChecks(im.turn) // a body may go on for hours
	im.reply.Lines = im.whole
	return nil
}

// backFill appends the batch. After part of a body has been accepted, it waits while the server is
// busy. The sender can wait, and otherwise would have to find out where to resume.
func (im *importing) backFill() (ingest.Result, error) {
	reports := im.batch.Reports()
	if len(reports) == 0 {
		return ingest.Result{}, nil
	}
	for try := 0; ; try++ {
		result, err := im.h.opts.To.BackFill(im.ctx, reports)
		if !errors.Is(err, ingest.ErrBusy) || im.reply.Accepted == 0 || try == busyTries {
			return result, err
		}
		if err := im.h.opts.Clock.Sleep(im.ctx, busyWait); err != nil {
			return result, err
		}
	}
}

// reject records a rejected sample. It returns false if there is no room.
func (im *importing) reject(line int, rej ingest.Rejection) bool {
	im.reply.RejectedTotal++
	all := &im.reply.Rejected
	// The rejections of a line are adjacent.
	for i := len(*all) - 1; i >= 0 && (*all)[i].Line == line; i-- {
		if r := &(*all)[i]; r.Reason == string(rej.Reason) {
			r.Samples++
			return true
		}
	}
	if len(*all) == im.h.Limits.Rejections {
		return true
	}
	if !im.complains(rej.Message) {
		return false
	}
	*all = append(*all, wire.RejectedOfLine{Line: line, Reason: string(rej.Reason), Message: rej.Message, Samples: 1})
	return true
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
