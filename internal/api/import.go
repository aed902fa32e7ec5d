package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	importPath = "/api/v1/import"
	// importSamples is the number of samples that are made durable together before more is read.
	importSamples = 20_000
	// importDecoded is the decoded size at which a batch is made durable even with fewer samples.
	// Series with many labels reach it.
	importDecoded = 1 << 20
	// maxImportLine bounds a line.
	maxImportLine = 32 << 20
	// maxIdleBytes bounds the useless bytes of a compressed body, in excess of its useful bytes and
	// its compressed size. More is not data; only compression makes it large.
	maxIdleBytes = 4 << 20
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

// importReply is the body of every reply to an import.
type importReply struct {
	// Status is "error" if Error is set.
	Status   string            `json:"status,omitempty"`
	Error    string            `json:"error,omitempty"`
	Accepted int               `json:"accepted"`
	Rejected []importRejection `json:"rejected"`
	// RejectedTotal counts the samples that were rejected.
	RejectedTotal int `json:"rejected_total,omitempty"`
	// Malformed lists the first malformed lines; MalformedTotal counts all of them.
	Malformed      []malformedLine `json:"malformed,omitempty"`
	MalformedTotal int             `json:"malformed_total,omitempty"`
	// Lines is the number of processed lines: all their samples are durable or rejected, or the
	// line is malformed.
	Lines int `json:"lines"`
}

// malformedLine is a line that is dropped as a whole.
type malformedLine struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

// importRejection counts the samples of a line that were rejected for one reason.
type importRejection struct {
	Line    int           `json:"line"`
	Reason  ingest.Reason `json:"reason"`
	Message string        `json:"message"` // of the first sample
	Samples int           `json:"samples"`
}

// importHandler serves POST /api/v1/import.
type importHandler struct {
	*intake

	budget  *admission.Budget // shared by all imports
	to      BackFiller
	clock   clock.Clock
	sources ingest.SourceLabels
}

func newImportHandler(in *intake, opts *Options) http.Handler {
	return &importHandler{
		intake: in, to: opts.BackFiller, clock: opts.Clock, sources: opts.Sources.Prometheus,
		budget: admission.NewBudget(opts.MaxImportBytes, importBytes(zstandard)+maxImportLine),
	}
}

// ServeHTTP implements http.Handler.
func (h *importHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	im := &importing{
		h: h, ctx: r.Context(), reply: importReply{Rejected: []importRejection{}},
		batch: ingest.Batch{Sources: h.sources, MaxLabels: h.limits.Labels},
	}
	im.depth = h.limits.Depth
	if h.drains(w) {
		im.answer(w, http.StatusServiceUnavailable, drainingMessage)
		return
	}
	wire := &countedBody{ReadCloser: r.Body}
	im.wire = &wire.n
	enc, err := parseEncoding(r.Header, identity)
	var src io.ReadCloser
	if err == nil {
		src, err = openStream(wire, enc)
	}
	if err != nil {
		w.Header().Set("Accept-Encoding", "gzip, zstd")
		im.answer(w, http.StatusUnsupportedMediaType, err.Error())
		return
	}
	defer src.Close()
	im.claim = h.budget.Claim(h.clients.Of(r.RemoteAddr))
	defer im.claim.Release()
	err = errNoRoom
	if im.claim.Grow(importBytes(enc)) {
		err = im.read(src)
	}
	im.claim.Release() // the client may take arbitrarily long to read the reply
	if err == nil {
		im.answer(w, 0, im.complaint())
		return
	}
	code := http.StatusBadRequest
	if malformed := (*lineError)(nil); !errors.As(err, &malformed) {
		if code = readFailure(w, err); code == 0 {
			code = h.failed(w, r, err)
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

// importBytes returns the memory of an import without its line: the batch and the decompressor.
func importBytes(enc encoding) int64 {
	const batch = importSamples*200 + importDecoded
	if enc == zstandard {
		return batch + zstdWindowBytes
	}
	return batch
}

// openStream decompresses a body of any length as it is read.
func openStream(body io.ReadCloser, enc encoding) (io.ReadCloser, error) {
	switch enc {
	case gzipped:
		return &lazyGzip{from: body}, nil
	case zstandard:
		zr, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindowBytes))
		if err != nil {
			return nil, err
		}
		return zr.IOReadCloser(), nil
	case identity:
		return body, nil
	case snappied:
	}
	return nil, fmt.Errorf("the Content-Encoding %q is not supported here: use gzip or zstd", enc)
}

// lazyGzip reads the gzip header at the first Read, not before.
type lazyGzip struct {
	from io.ReadCloser
	*gzip.Reader
}

func (z *lazyGzip) Read(p []byte) (int, error) {
	if z.Reader == nil {
		zr, err := gzip.NewReader(z.from)
		if err != nil {
			return 0, err
		}
		z.Reader = zr
	}
	return z.Reader.Read(p)
}

func (z *lazyGzip) Close() error { return z.from.Close() }

// lineError describes an error in a line, or in the body after the last line. It is answered with
// 400.
type lineError struct {
	line    int
	message string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.message) }

// importing is one import request.
type importing struct {
	h     *importHandler
	ctx   context.Context
	claim admission.Claim
	line  int // number of the current line, from 1
	whole int // number of the last line that was read to its end
	reply importReply

	wire   *int64 // bytes of the body as it was sent
	useful int64  // bytes of lines that carry samples
	idle   int64  // all other bytes

	importScanner
	batch  ingest.Batch
	name   string
	labels []metric.Label
	lines  []int // line number of each sample in the batch
	known  int   // bytes of a line's metric, values and timestamps
	// strings is the part of the arena that has been claimed.
	strings int
}

// importScanner decodes values and times.
type importScanner struct{ scanner }

// read processes the body line by line. The batch holds views into the buffer, so it is flushed
// before the buffer moves.
func (im *importing) read(src io.Reader) error {
	var buf []byte
	begin := 0      // start of the unprocessed bytes
	searched := 0   // no line ends between begin and searched
	var ended error // why the source has no more data
	for {
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
			return &tooLargeError{fmt.Sprintf("up to line %d, %d bytes of the body bring no samples: more than %d, and more than those that do", im.line, im.idle, maxIdleBytes)}
		}
		if begin > 0 {
			buf, begin = buf[:copy(buf, buf[begin:])], 0
		}
		searched = len(buf)
		if len(buf) == cap(buf) {
			if len(buf) >= maxImportLine {
				return &tooLargeError{fmt.Sprintf("line %d is longer than the limit of %d bytes: cut it into several with the same metric", im.line+1, maxImportLine)}
			}
			size := min(max(2*cap(buf), minBufferBytes), maxImportLine)
			if !im.claim.Grow(int64(size - cap(buf))) {
				return errNoRoom
			}
			buf = append(make([]byte, 0, size), buf...)
		}
		var n int
		n, ended = src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
	}
}

// take processes a line.
func (im *importing) take(line []byte) error {
	im.line++
	useful := 0
	if len(bytes.TrimSpace(line)) > 0 {
		if im.batch.Len() == 0 {
			im.arena = im.arena[:0] // no sample refers to it any more
		}
		arena := len(im.arena)
		im.b, im.i = line, 0
		valuesAt, timesAt, n, ok := im.outline()
		switch {
		case !im.holds(len(im.arena), arena):
			return errNoRoom
		case !ok:
			im.malformed()
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

// malformed records that the line cannot be decoded. Later lines still can.
func (im *importing) malformed() {
	im.reply.MalformedTotal++
	if !im.quiet {
		im.reply.Malformed = append(im.reply.Malformed, malformedLine{im.line, fmt.Sprintf("at byte %d: %s", im.at, im.fault)})
	}
	im.quiet = len(im.reply.Malformed) >= im.h.limits.Rejections
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
		return fmt.Sprintf("line %d: %s; %d lines are malformed, the others were taken", r.Malformed[0].Line, r.Malformed[0].Message, r.MalformedTotal)
	case r.MalformedTotal == 1:
		return fmt.Sprintf("line %d: %s", r.Malformed[0].Line, r.Malformed[0].Message)
	case r.Accepted == 0 && r.RejectedTotal > 0:
		var reasons strings.Builder
		for _, rej := range r.Rejected[:min(len(r.Rejected), namedRejections)] {
			fmt.Fprintf(&reasons, "; line %d: %s (%s)", rej.Line, rej.Message, rej.Reason)
		}
		return fmt.Sprintf("all %d samples were rejected%s", r.RejectedTotal, reasons.String())
	}
	return ""
}

// breakOff handles a body that cannot be read further. It makes the complete lines durable, even if
// the client has gone.
func (im *importing) breakOff(cause error) error {
	ctx, done := outlive(im.ctx)
	defer done()
	im.ctx = ctx
	if err := im.flush(); err != nil {
		return err
	}
	if errors.Is(cause, errStalled) {
		return cause
	}
	im.distrust()
	return &lineError{im.line + 1, "the body cannot be read on: " + cause.Error()}
}

// outline checks a whole line. It decodes the name and the labels, and returns where the values and
// the times begin and how many there are.
func (im *importing) outline() (valuesAt, timesAt, n int, ok bool) {
	fail := func(at int, format string, args ...any) (int, int, int, bool) {
		return 0, 0, 0, im.fail(at, format, args...)
	}
	if im.space() != '{' {
		return 0, 0, 0, im.unexpected("an object")
	}
	im.i++
	values, times := -1, -1
	im.name, im.labels, im.known = "", im.labels[:0], 0
	for first := true; ; first = false {
		member, more, ok := im.member(first)
		if !ok {
			return 0, 0, 0, false
		}
		if !more {
			break
		}
		at := im.i
		switch member {
		case "metric":
			ok = im.metric()
		case "values":
			valuesAt = at
			values, ok = im.count(func() bool { _, ok := im.value(); return ok })
		case "timestamps":
			timesAt = at
			times, ok = im.count(func() bool { _, ok := im.timeMs(); return ok })
		default:
			ok = im.skip()
			at = im.i
		}
		if im.known += im.i - at; !ok {
			return 0, 0, 0, false
		}
	}
	if im.space() != 0 || im.i < len(im.b) {
		return 0, 0, 0, im.unexpected("the end of the line")
	}
	switch {
	case values < 0 || times < 0:
		return fail(0, "a line has metric, values and timestamps")
	case values != times:
		return fail(0, "there are %d values and %d timestamps", values, times)
	}
	return valuesAt, timesAt, values, true
}

// metric decodes the name and the labels of a line.
func (im *importing) metric() bool {
	if im.i >= len(im.b) || im.b[im.i] != '{' {
		return im.unexpected("an object of labels")
	}
	im.i++
	im.name, im.labels = "", im.labels[:0]
	for first := true; ; first = false {
		label, more, ok := im.member(first)
		if !ok || !more {
			return ok
		}
		if im.i >= len(im.b) || im.b[im.i] != '"' {
			return im.unexpected("a label's value in quotes")
		}
		value, ok := im.str()
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
	if im.i >= len(im.b) || im.b[im.i] != '[' {
		return 0, im.unexpected("an array")
	}
	im.i++
	for first := true; ; first = false {
		if more, ok := im.element(first); !ok || !more {
			return n, ok
		}
		if !read() {
			return 0, false
		}
		n++
	}
}

// value decodes a value in any form that exports use.
func (s *importScanner) value() (float64, bool) {
	at := s.i
	if word := s.word(); word != "" {
		v, ok := notFinite(word)
		if !ok {
			return 0, s.fail(at, "%s is no value", shown(word))
		}
		s.i += len(word)
		return v, true
	}
	switch s.kind() {
	case "a string":
		text, ok := s.str()
		if !ok {
			return 0, false
		}
		if v, ok := notFinite(text); ok {
			return v, true
		}
		if v, ok := decimal(text); ok {
			return v, true
		}
		return 0, s.fail(at, "%s is no value", shown(text))
	case "a number":
		n, ok := s.number()
		if !ok {
			return 0, false
		}
		v, ok := n.float()
		if !ok {
			return 0, s.fail(at, "%s is too large", n.text)
		}
		return v, true
	}
	return 0, s.unexpected("a value")
}

// word returns an unquoted word such as NaN or +Inf at the place of a value, which JSON does not
// allow; "" if there is none.
func (s *importScanner) word() string {
	end := s.i
	if end < len(s.b) && (s.b[end] == '+' || s.b[end] == '-') {
		end++
	}
	first := end
	for end < len(s.b) && (s.b[end]|0x20) >= 'a' && (s.b[end]|0x20) <= 'z' {
		end++
	}
	if end == first {
		return ""
	}
	return view(s.b[s.i:end])
}

// nanPrefix precedes the bits of a NaN other than the usual one, such as Prometheus' stale marker.
const nanPrefix = "NaN:"

// notFinite decodes the texts, quoted or not, for values that JSON cannot express as numbers.
func notFinite(text string) (float64, bool) {
	if hex, ok := strings.CutPrefix(text, nanPrefix); ok && len(hex) == 16 {
		bits, err := strconv.ParseUint(hex, 16, 64)
		v := math.Float64frombits(bits)
		return v, err == nil && math.IsNaN(v)
	}
	sign := 1
	unsigned := strings.TrimPrefix(text, "+")
	if strings.HasPrefix(text, "-") {
		sign, unsigned = -1, text[1:]
	}
	switch {
	case text == "null", strings.EqualFold(text, "nan"):
		return math.NaN(), true
	case strings.EqualFold(unsigned, "inf"), strings.EqualFold(unsigned, "infinity"):
		return math.Inf(sign), true
	}
	return 0, false
}

// decimal decodes a quoted number, the form of values in Prometheus' API.
func decimal(text string) (float64, bool) {
	if strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}

func (s *importScanner) timeMs() (int64, bool) {
	at := s.i
	if s.kind() != "a number" {
		return 0, s.unexpected("a time in Unix ms")
	}
	n, ok := s.number()
	if !ok {
		return 0, false
	}
	ms, ok := n.int()
	if !ok || ms == ingest.NoTime {
		return 0, s.fail(at, "%s is no time in Unix ms", n.text)
	}
	return ms, true
}

// samples adds the samples of a line, which outline has checked, to the batch. It flushes the batch
// whenever it is large enough.
func (im *importing) samples(valuesAt, timesAt, n int) error {
	values := importScanner{scanner{b: im.b, i: valuesAt + 1}}
	times := importScanner{scanner{b: im.b, i: timesAt + 1}}
	if im.batch.Allowance.Used() > importDecoded {
		if err := im.flush(); err != nil {
			return err
		}
	}
	im.batch.Series(im.name, im.labels)
	for i := range n {
		if im.batch.Len() == importSamples {
			if err := im.flush(); err != nil {
				return err
			}
			im.batch.Series(im.name, im.labels)
		}
		_, _ = values.element(i == 0)
		v, _ := values.value()
		_, _ = times.element(i == 0)
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
		im.h.rejects(importPath, im.batch.Rejected())
		result = im.batch.Result(result)
		im.reply.Accepted += result.Accepted
		for _, rej := range result.Rejected {
			im.reject(im.lines[rej.Index], rej)
		}
		im.batch.Reset()
		im.lines = im.lines[:0]
	}
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
		result, err := im.h.to.BackFill(im.ctx, reports)
		if !errors.Is(err, ingest.ErrBusy) || im.reply.Accepted == 0 || try == busyTries {
			return result, err
		}
		if err := im.h.clock.Sleep(im.ctx, busyWait); err != nil {
			return result, err
		}
	}
}

func (im *importing) reject(line int, rej ingest.Rejection) {
	im.reply.RejectedTotal++
	all := &im.reply.Rejected
	// The rejections of a line are adjacent.
	for i := len(*all) - 1; i >= 0 && (*all)[i].Line == line; i-- {
		if r := &(*all)[i]; r.Reason == rej.Reason {
			r.Samples++
			return
		}
	}
	if len(*all) < im.h.limits.Rejections {
		*all = append(*all, importRejection{Line: line, Reason: rej.Reason, Message: rej.Message, Samples: 1})
	}
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
	replyJSON(w, code, im.reply)
}
