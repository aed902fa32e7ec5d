package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/protocol/respond"
)

// progressBytes is the number of bytes that renews a connection's time window. With the default
// window of 30 s, the server gives up clients slower than 17 kbit/s.
const progressBytes = 64 << 10

// replyRate is how many bytes of a reply have it a second longer, where it must end by some time.
const replyRate = 256 << 10

// progress gives one direction of a connection the time that it may wait for its client: a window
// for each stretch of progressBytes. What the server takes in between does not count. If ends is
// true, all that is moved must be so by whole, and has a second more for each replyRate bytes.
type progress struct {
	clk      clock.Clock
	window   time.Duration
	deadline func(time.Time) error

	left  time.Duration // of the window
	bytes int           // of the stretch
	moved int64
	ends  bool
	whole time.Duration // by the clock's Elapsed
}

func newProgress(clk clock.Clock, window time.Duration, deadline func(time.Time) error) progress {
	return progress{clk: clk, window: window, deadline: deadline, left: window}
}

// move runs do, which waits for the client.
func (p *progress) move(do func() (int, error)) (int, error) {
	began := p.clk.Elapsed()
	left := p.left
	if p.ends {
		left = min(left, p.whole+time.Duration(p.moved/replyRate)*time.Second-began)
	}
	_ = p.deadline(p.clk.Now().Add(left)) // a test's ResponseWriter may have no deadlines
	n, err := do()
	p.moved += int64(n)
	if p.bytes += n; p.bytes >= progressBytes {
		p.bytes, p.left = 0, p.window
	} else {
		p.left -= p.clk.Elapsed() - began
	}
	return n, err
}

// demandProgress gives up connections whose client neither sends the body that it announced nor
// reads the reply. A stalled body ends with respond.ErrStalled; writes of a stalled reply fail.
func demandProgress(next http.Handler, clk clock.Clock, window time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		// The deadlines of the previous request may have passed. The server itself reads and
		// writes, too: "100 Continue", the rest of a body, and the end of the reply.
		allow := func() {
			now := clk.Now()
			if r.Body != nil && r.Body != http.NoBody {
				_ = conn.SetReadDeadline(now.Add(window))
			}
			_ = conn.SetWriteDeadline(now.Add(2 * window))
		}
		allow()
		defer allow()
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &progressBody{ReadCloser: r.Body, progress: newProgress(clk, window, conn.SetReadDeadline)}
		}
		next.ServeHTTP(&progressWriter{ResponseWriter: w, progress: newProgress(clk, window, conn.SetWriteDeadline)}, r)
	})
}

// progressBody is a body with a progress limit.
type progressBody struct {
	io.ReadCloser
	progress
	ended error
}

// Read implements io.Reader.
func (b *progressBody) Read(p []byte) (n int, err error) {
	if b.ended != nil {
		// After an error the server waits, without a deadline, for the client to disconnect.
		return 0, b.ended
	}
	n, err = b.move(func() (int, error) { return b.ReadCloser.Read(p) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = respond.ErrStalled
	}
	b.ended = err
	return n, err
}

// endSoon has all of the body arrive in one window.
func (b *progressBody) endSoon() { b.ends, b.whole = true, b.clk.Elapsed()+b.window }

// progressWriter is a reply with a progress limit.
type progressWriter struct {
	http.ResponseWriter
	progress
}

// Write implements http.ResponseWriter.
func (w *progressWriter) Write(p []byte) (written int, err error) {
	for {
		piece := p[:min(len(p), progressBytes)]
		n, err := w.move(func() (int, error) { return w.ResponseWriter.Write(piece) })
		written += n
		if p = p[len(piece):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// SetWriteDeadline has the reply end soon after t, for http.ResponseController: a handler says by
// when what it holds must be free.
func (w *progressWriter) SetWriteDeadline(t time.Time) error {
	if w.ends = !t.IsZero(); w.ends {
		w.whole = w.clk.Elapsed() + t.Sub(w.clk.Now()) + w.window
	}
	return nil
}

// Flush implements http.Flusher.
func (w *progressWriter) Flush() {
	_, _ = w.move(func() (int, error) { return 0, http.NewResponseController(w.ResponseWriter).Flush() })
}

// Unwrap gives http.ResponseController the underlying writer.
func (w *progressWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
