package transfer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/wire"
)

const (
	// requestBytes is the maximum size of the lines of one request, before compression.
	requestBytes = 4 << 20
	// sampleBytes is about the size of a sample in a line. With a rate, a request holds about a
	// second's samples.
	sampleBytes = 16
	// requestTime is how long a request may take before its connection counts as dead. A busy
	// server takes half a minute for each 20,000 samples.
	requestTime = 10 * time.Minute
	// The waits between attempts while the server is away.
	firstWait = time.Second
	lastWait  = 30 * time.Second
	// toldProblems is the maximum number of rejected lines that are named.
	toldProblems = 10
	// headBytes is the length of the start of a file that tells it from another of the same name.
	headBytes = 64 << 10

	importSuffix = ".quern-import"
)

// Import says what to import, and where to.
type Import struct {
	Client client.Client
	// Files are imported one after the other. "-" is Stdin. An import of Stdin, or of anything but
	// a regular file, cannot be continued.
	Files []string
	Stdin io.Reader
	// Rate is the maximum number of samples sent per second; 0 is no limit.
	Rate int
	// GiveUp is how long to wait for a busy or unavailable server, since it last accepted
	// something; 0 is no wait.
	GiveUp time.Duration
	Clock  clock.Clock
	// Tell receives messages about lines that are not accepted. The default does nothing.
	Tell func(string)
	// Waiting receives failed attempts, and the wait until the next. The default does nothing.
	Waiting func(err error, wait time.Duration)
	// Progress receives the bytes of the files read so far, their total, and the samples accepted.
	// The bytes are counted as stored in the files, and total is -1 if it is not known. The default
	// does nothing.
	Progress func(done, total, accepted int64)
}

// Imported is the result of an import.
type Imported struct {
	// Lines is the number of lines processed.
	Lines int64 `json:"lines"`
	// Accepted is the number of samples accepted. If a line is sent in part and then again, its
	// repeated samples count twice.
	Accepted int64 `json:"accepted"`
	// Annotations is the number of annotations accepted.
	Annotations int64 `json:"annotations"`
	// Rejected counts rejected samples by reason. A reply names a limited number; the rest counts
	// as other.
	Rejected map[string]int64 `json:"rejected"`
	// Malformed is the number of malformed lines.
	Malformed int64 `json:"malformed"`
}

// other is the reason of rejected samples that the server counts but does not name.
const other = "other"

// RejectedTotal returns the number of rejected samples.
func (x *Imported) RejectedTotal() (n int64) {
	for _, count := range x.Rejected {
		n += count
	}
	return n
}

func (x *Imported) reject(reason string, n int64) {
	if x.Rejected == nil {
		x.Rejected = make(map[string]int64)
	}
	x.Rejected[reason] += n
}

func (x *Imported) add(y Imported) {
	x.Lines += y.Lines
	x.Accepted += y.Accepted
	x.Annotations += y.Annotations
	x.Malformed += y.Malformed
	for reason, n := range y.Rejected {
		x.reject(reason, n)
	}
}

// importState is stored beside a file until all files are done.
type importState struct {
	URL string `json:"url"`
	// Size and Head identify the file. Head is the SHA-256 of its first bytes.
	Size int64  `json:"size"`
	Head string `json:"head"`
	// Bytes is the offset up to which lines are processed, in decompressed bytes.
	Bytes int64 `json:"bytes"`
	Done  bool  `json:"done"`
	Imported
}

// whole reports whether the server has processed all n lines, although it reports errors in some.
func whole(r *wire.Import, n int) bool {
	return r.Lines == n && r.RejectedTotal+r.MalformedTotal > 0
}

// Run imports. With an error it also returns what it has done so far. When ctx is done, it ends
// after the request under way.
func (im *Import) Run(ctx context.Context) (Imported, error) {
	r := importRun{Import: im, pace: limits.NewPace(im.Clock, im.Rate), most: requestBytes}
	if im.Rate > 0 {
		r.most = min(r.most, im.Rate*sampleBytes)
	}
	r.size = r.most
	var err error
	if r.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
		return r.sum, err
	}
	for _, path := range im.Files {
		size := int64(-1)
		if info, err := os.Stat(path); path != "-" && err != nil {
			return r.sum, err
		} else if path != "-" && info.Mode().IsRegular() {
			size = info.Size()
		}
		if size < 0 || r.total < 0 {
			r.total = -1
		} else {
			r.total += size
		}
	}
	for _, path := range im.Files {
		if err := r.file(ctx, path); err != nil {
			return r.sum, err
		}
	}
	for _, path := range im.Files {
		if err := remove(path + importSuffix); err != nil {
			return r.sum, err
		}
	}
	return r.sum, nil
}

type importRun struct {
	*Import
	pace *limits.Pace
	zstd *zstd.Encoder
	// most is the maximum size of a request in bytes. size is the limit for the next request, which
	// holds at least one line. It shrinks after a refusal until the refused line is found.
	most, size  int
	sent        int      // samples of the previous request, as far as known
	total, read int64    // bytes of files
	sum         Imported // of the files that are done
	problems    int

	path    string
	st      importState
	keep    bool
	pending []line // not yet processed
}

// file imports one file.
func (r *importRun) file(ctx context.Context, path string) error {
	r.path, r.st, r.keep = path, importState{URL: r.Client.Name()}, false
	from := r.Stdin
	if path == "-" {
		r.path = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // it is only read
		if err := r.goOn(f); err != nil {
			return err
		}
		from = f
	}
	defer func() { r.sum.add(r.st.Imported) }()
	if r.st.Done {
		r.read += r.st.Size
		return nil
	}
	if !r.keep {
		waiting := interruptible(ctx, from)
		defer waiting.Close()
		from = waiting
	}
	stream, err := decompressor(bufio.NewReaderSize(io.TeeReader(from, &counter{&r.read}), 256<<10))
	switch {
	case err != nil && ctx.Err() != nil:
		return r.stopped()
	case err != nil:
		return fmt.Errorf("%s: %w", r.path, err)
	}
	defer stream.Close()
	if _, err := io.CopyN(io.Discard, stream, r.st.Bytes); err != nil {
		return fmt.Errorf("%s: %w", r.path, err)
	}
	if err := r.lines(ctx, &lines{bufio.NewReaderSize(stream, 256<<10)}); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			return r.stopped()
		}
		return fmt.Errorf("%s, after line %d: %w", r.path, r.st.Lines, err)
	}
	r.st.Done = true
	return r.save()
}

// stopped returns what to do after a signal.
func (r *importRun) stopped() error {
	if r.keep {
		return fmt.Errorf("stopped after line %d of %s: run the same command to continue", r.st.Lines, r.path)
	}
	return fmt.Errorf("stopped after line %d of %s: the lines sent so far are stored, and sending them again is safe", r.st.Lines, r.path)
}

// goOn loads the state of a file, or creates one.
func (r *importRun) goOn(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if !lock(f) {
		return fmt.Errorf("another import or export is using %s: wait until it ends", r.path)
	}
	head := make([]byte, headBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	sum := sha256.Sum256(head[:n])
	r.keep = true
	r.st.Size, r.st.Head = info.Size(), hex.EncodeToString(sum[:])
	path := r.path + importSuffix
	var before importState
	found, err := load(path, &before)
	switch {
	case err != nil:
		return fmt.Errorf("%w; if you remove that file, the import starts from the beginning, which is safe", err)
	case !found:
		if err := r.save(); err != nil {
			return fmt.Errorf("cannot save the progress: %w", err)
		}
	case before.Size != r.st.Size || before.Head != r.st.Head:
		return fmt.Errorf("%s has changed since its import was stopped: remove %s to import it from the start", r.path, path)
	case before.URL != r.st.URL:
		return fmt.Errorf("the stopped import of %s was into %s: remove %s to import it from the start", r.path, before.URL, path)
	default:
		r.st = before
	}
	return nil
}

func (r *importRun) save() error {
	if r.Progress != nil {
		done := r.read
		if !r.st.Done && done == r.total {
			done-- // it is read, but not fully processed
		}
		r.Progress(done, r.total, r.sum.Accepted+r.st.Accepted)
	}
	if !r.keep {
		return nil
	}
	return save(r.path+importSuffix, &r.st)
}

// line is a line of a file. One that is longer than the limit has no text.
type line struct {
	text []byte
	size int64
}

// lines sends what is left of a file.
func (r *importRun) lines(ctx context.Context, in *lines) error {
	r.pending = nil
	size := func() (n int) {
		for _, l := range r.pending {
			n += len(l.text)
		}
		return n
	}
	for {
		var broken error
		for held := size(); broken == nil && held < r.most; {
			var l line
			l.text, l.size, broken = in.next(nil)
			if l.size > maxLine {
				l.text = nil // lets go of its memory
			}
			if broken == nil {
				r.pending, held = append(r.pending, l), held+len(l.text)
			}
		}
		for len(r.pending) > 0 && (broken != nil || size() >= r.most) {
			if err := r.send(ctx); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(broken, io.EOF):
			return nil
		case broken != nil:
			return broken
		}
	}
}

// dealt counts the first n pending lines as processed.
func (r *importRun) dealt(n int) error {
	for _, l := range r.pending[:n] {
		r.st.Bytes += l.size
	}
	r.pending = r.pending[n:]
	r.st.Lines += int64(n)
	if n == 0 {
		return nil
	}
	return r.save()
}

func (r *importRun) malformed(why string) {
	r.st.Malformed++
	r.problem(r.st.Lines+1, "malformed: "+why)
}

func (r *importRun) problem(line int64, what string) {
	r.problems++
	switch {
	case r.Tell == nil || r.problems > toldProblems+1:
	case r.problems == toldProblems+1:
		r.Tell("… and more")
	default:
		r.Tell(fmt.Sprintf("%s:%d: %s", r.path, line, what))
	}
}

// send sends pending lines in one request, until the server has processed some of them or has
// refused them.
func (r *importRun) send(ctx context.Context) error {
	if err := r.pace.Wait(ctx, r.sent); err != nil {
		return err
	}
	if r.pending[0].size > maxLine {
		r.malformed(fmt.Sprintf("the line is longer than the limit of %d bytes: split it into several lines with the same metric", maxLine))
		return r.dealt(1)
	}
	n, text := 1, slices.Clone(r.pending[0].text)
	for n < len(r.pending) && r.pending[n].size <= maxLine && len(text)+len(r.pending[n].text) <= r.size {
		text = append(text, r.pending[n].text...)
		n++
	}
	body := r.zstd.EncodeAll(text, nil)
	since := r.Clock.Elapsed()
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		reply, status, err := r.request(ctx, body)
		if reply.Lines < 0 || reply.Lines > n || err == nil && reply.Lines != n {
			return fmt.Errorf("the answer of %s is not a Quern response: it reports %d of %d lines as processed", r.Client.Name(), reply.Lines, n)
		}
		r.count(&reply)
		tooLarge := status == http.StatusRequestEntityTooLarge
		// A proxy may answer so too, but its reply says nothing of lines.
		refused := reply.Error != "" && (tooLarge || status == http.StatusBadRequest)
		var away *client.AwayError
		switch {
		case err == nil, status == http.StatusBadRequest && whole(&reply, n):
			r.size = min(8*max(r.size, sampleBytes), r.most)
		case refused && n == 1:
			r.malformed(strings.TrimPrefix(reply.Error, "line 1: "))
			reply.Lines = 1
		case refused, tooLarge && n > 1:
			// The line at fault is first and is sent alone next. So damage on the way does not
			// count as the file's.
			r.size = 0
		case !errors.As(err, &away):
			return errors.Join(r.dealt(reply.Lines), err)
		case reply.Lines == 0:
			if r.Clock.Elapsed()+wait-since > r.GiveUp {
				return fmt.Errorf("gave up: %w", err)
			}
			if r.Waiting != nil {
				r.Waiting(err, wait)
			}
			if err := r.Clock.Sleep(ctx, wait); err != nil {
				return err
			}
			continue
		}
		return r.dealt(reply.Lines)
	}
}

// request sends a body. The end of ctx does not abort it.
func (r *importRun) request(ctx context.Context, body []byte) (reply wire.Import, status int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	status, err = r.Client.Post(ctx, wire.ImportPath, http.Header{
		"Content-Type": {"application/x-ndjson"}, "Content-Encoding": {"zstd"},
	}, body, &reply)
	return reply, status, err
}

// count counts what became of the samples of a request.
func (r *importRun) count(reply *wire.Import) {
	rest := reply.RejectedTotal
	for _, rej := range reply.Rejected {
		rest -= rej.Samples
		if rej.Line > reply.Lines {
			continue // it is sent again
		}
		r.st.reject(rej.Reason, rej.Samples)
		r.problem(r.st.Lines+int64(rej.Line), fmt.Sprintf("%d rejected, %s: %s", rej.Samples, rej.Reason, rej.Message))
	}
	if rest > 0 {
		r.st.reject(other, rest)
	}
	for _, m := range reply.Malformed {
		r.problem(r.st.Lines+int64(m.Line), "malformed: "+m.Message)
	}
	r.st.Malformed += reply.MalformedTotal
	r.st.Accepted += reply.Accepted
	r.st.Annotations += reply.Annotations
	r.sent = int(reply.Accepted + reply.RejectedTotal)
}

// interruptible reads until ctx is done, even while no data comes, as from a pipe without a writer.
func interruptible(ctx context.Context, from io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(in, from)
		_ = in.CloseWithError(err)
	}()
	return out
}
