// Package compress compresses answers for clients that accept that, by the content codings of HTTP (RFC 9110, 8.4 and
// 12.5.3).
//
// The handlers of klauspost/compress/gzhttp would not do: nothing bounds the memory of their encoders, and a flush before
// the first byte does nothing, so that who waits for the header of a stream waits for ever.
package compress

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/limits"
)

// The codings, by their names in HTTP.
const (
	Gzip = "gzip"
	Zstd = "zstd"
)

const (
	// AnswerBytes is what an answer that is being compressed holds: more than an encoder of either kind.
	AnswerBytes = 1 << 20
	// windowBytes is the window of zstd. On answers of 200 series × 1,000 points, four times as much saves 1 % of the bytes
	// and takes 60 % more memory.
	windowBytes = 64 << 10
	// leastBytes is the size of an answer from which compressing it pays: a smaller one is a packet anyway.
	leastBytes = 1 << 10
)

// choose returns the coding for a client with these header fields Accept-Encoding: Zstd, or Gzip, or "" if it accepts neither.
func choose(accept []string) string {
	refused := map[string]bool{}
	for element := range strings.SplitSeq(strings.ToLower(strings.Join(accept, ",")), ",") {
		name, parameter, _ := strings.Cut(strings.ReplaceAll(element, " ", ""), ";")
		if name == Zstd || name == Gzip || name == "*" { // a client may name any number
			refused[name] = strings.HasPrefix(parameter, "q=0") && strings.Trim(parameter, "q=0.") == ""
		}
	}
	for _, coding := range []string{Zstd, Gzip} {
		no, named := refused[coding]
		if !named {
			no, named = refused["*"]
		}
		if named && !no {
			return coding
		}
	}
	return ""
}

// encoder is a *gzip.Writer or a *zstd.Encoder.
type encoder interface {
	io.WriteCloser
	Flush() error
	Reset(to io.Writer)
}

// Answers compresses answers. It is safe for concurrent use.
type Answers struct {
	budget  *limits.Budget
	clients *limits.Clients
	idle    map[string]*sync.Pool // of encoder, by coding
}

// New returns an Answers. An answer for which the budget has no AnswerBytes is sent as it is.
func New(budget *limits.Budget, clients *limits.Clients) *Answers {
	return &Answers{budget: budget, clients: clients, idle: map[string]*sync.Pool{
		Gzip: {New: func() any {
			w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
			if err != nil {
				panic(err) // the level is valid
			}
			return w
		}},
		Zstd: {New: func() any {
			// With one goroutine, an encoder works only while a handler writes.
			w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
				zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true))
			if err != nil {
				panic(err) // the options are valid
			}
			return w
		}},
	}}
}

// Handler returns a handler that compresses the answers of next. It leaves alone answers without a body, partial ones,
// those that have a coding, and those with an ETag, which names exact bytes. What next flushes is sent.
func (a *Answers) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &answer{ResponseWriter: w, answers: a, coding: choose(r.Header.Values("Accept-Encoding"))}
		if r.Method == http.MethodHead {
			out.coding = "" // there is nothing to compress, and the header is that of the answer as it is
		}
		out.claim = a.budget.Claim(a.clients.ByAddress(r.RemoteAddr))
		defer out.release() // of a handler that panics, too: its answer must not end as if it were whole
		next.ServeHTTP(out, r)
		out.end()
	})
}

// answer is one that may be compressed. It is held back until it is decided whether it is: when it has leastBytes, is
// flushed, or ends.
type answer struct {
	http.ResponseWriter
	answers *Answers
	coding  string // "" for none
	claim   limits.Claim

	code    int // 0 until the handler writes the header
	decided bool
	held    []byte  // what the handler wrote before that
	encoder encoder // nil if the answer is sent as it is
}

// WriteHeader implements http.ResponseWriter.
func (w *answer) WriteHeader(code int) {
	if code < http.StatusOK {
		w.ResponseWriter.WriteHeader(code) // and the final code follows
		return
	}
	if w.code != 0 {
		return
	}
	w.code = code
	h := w.Header()
	if code == http.StatusNoContent || code == http.StatusNotModified || code == http.StatusPartialContent ||
		h.Get("Content-Encoding") != "" || h.Get("ETag") != "" {
		w.decide(false)
		return
	}
	if !slices.Contains(h.Values("Vary"), "Accept-Encoding") {
		h.Add("Vary", "Accept-Encoding")
	}
	// Without a type the server looks for one in the bytes.
	if w.coding == "" || h.Get("Content-Type") == "" {
		w.decide(false)
	}
}

// decide sends the header, and has the answer compressed from now on or not.
func (w *answer) decide(compress bool) {
	w.decided = true
	if compress && w.claim.Grow(AnswerBytes) {
		h := w.Header()
		h.Set("Content-Encoding", w.coding)
		h.Del("Content-Length")
		w.encoder = w.answers.idle[w.coding].Get().(encoder)
		w.encoder.Reset(w.ResponseWriter)
	}
	w.ResponseWriter.WriteHeader(w.code)
}

// begin sends the header, and what is held back.
func (w *answer) begin(compress bool) error {
	w.decide(compress)
	held := w.held
	w.held = nil
	if len(held) == 0 {
		return nil
	}
	_, err := w.send(held)
	return err
}

func (w *answer) send(p []byte) (int, error) {
	if w.encoder != nil {
		return w.encoder.Write(p)
	}
	return w.ResponseWriter.Write(p)
}

// Write implements http.ResponseWriter.
func (w *answer) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.decided {
		if len(w.held)+len(p) < leastBytes {
			w.held = append(w.held, p...)
			return len(p), nil
		}
		if err := w.begin(true); err != nil {
			return 0, err
		}
	}
	return w.send(p)
}

// Flush implements http.Flusher. Who flushes has more to say, so the answer counts as a long one.
func (w *answer) Flush() {
	if w.code == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.decided && w.begin(true) != nil {
		return // the client has gone, as the next write will say
	}
	if w.encoder != nil && w.encoder.Flush() != nil {
		return
	}
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a test's ResponseWriter may not flush
}

// end sends what is left.
func (w *answer) end() {
	if w.code != 0 && !w.decided && w.begin(false) != nil {
		return
	}
	if w.encoder == nil {
		return
	}
	if w.encoder.Close() != nil {
		panic(http.ErrAbortHandler) // a clean end would make half an answer look complete
	}
	for name := range w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			// Of an answer that has become short, the server would send the size in place of the trailer.
			_ = http.NewResponseController(w.ResponseWriter).Flush() // a test's ResponseWriter may not flush
			return
		}
	}
}

// release gives the encoder back, whatever it has of the answer.
func (w *answer) release() {
	if w.encoder != nil {
		w.encoder.Reset(io.Discard)
		w.answers.idle[w.coding].Put(w.encoder)
		w.encoder = nil
	}
	w.claim.Release()
}

// Unwrap gives http.ResponseController the underlying writer, for deadlines.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
