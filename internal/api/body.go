package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/admission"
)

const (
	// zstdWindowBytes is the largest window that a zstd body may request. RFC 9659 sets this limit
	// for Content-Encoding, so that a decoder's memory is known in advance.
	zstdWindowBytes = 8 << 20
	// zstdSmallBytes is the window reserved for a zstd body whose first frame needs no more, as
	// that of a small body does. Later frames of that body get no larger window.
	zstdSmallBytes = 1 << 20
	// snappyMaxRatio is more than a snappy block can expand: its densest element is a copy of 64
	// bytes, encoded in 3. A block that claims more is damaged or hostile.
	snappyMaxRatio = 32
	// minBufferBytes is the initial size of a body buffer. A buffer that has grown beyond
	// maxPooledBytes is not pooled, so a rare huge request does not hold its memory for ever.
	minBufferBytes = 64 << 10
	maxPooledBytes = 8 << 20
)

// snappyStreamID starts the framed form of snappy. Read as a block, it would claim a length of 895
// bytes and begin with two one-byte literals, which no encoder writes.
const snappyStreamID = "\xff\x06\x00\x00sNaPpY"

// encoding is the compression of a body.
type encoding int

const (
	identity encoding = iota
	gzipped
	zstandard
	snappied
)

// String returns the encoding's token in Content-Encoding.
func (e encoding) String() string { return [...]string{"identity", "gzip", "zstd", "snappy"}[e] }

// parseEncoding parses a Content-Encoding header; unsaid is the encoding if there is no header.
// Several encodings at once are not supported: no client uses them, and each stage would need its
// own limits.
func parseEncoding(h http.Header, unsaid encoding) (encoding, error) {
	v := strings.ToLower(strings.TrimSpace(strings.Join(h.Values("Content-Encoding"), ",")))
	switch v {
	case "":
		return unsaid, nil
	case "identity":
		return identity, nil
	case "gzip", "x-gzip":
		return gzipped, nil
	case "zstd":
		return zstandard, nil
	case "snappy":
		return snappied, nil
	}
	return 0, fmt.Errorf("the Content-Encoding %q is not supported: use one of gzip, zstd, snappy, identity", v)
}

// checkReportType checks whether a Content-Type header is allowed for reports. The decoder detects
// the form from the body itself, so JSON and NDJSON are treated alike.
func checkReportType(h http.Header) error {
	v := h.Get("Content-Type")
	if v == "" {
		return nil
	}
	const want = "use application/json or application/x-ndjson"
	media, params, err := mime.ParseMediaType(v)
	// Also accept what curl -d sends with any body: whoever tries the endpoint by hand means JSON.
	if err != nil || (media != "application/json" && media != "application/x-ndjson" && media != "application/x-www-form-urlencoded") {
		return fmt.Errorf("the Content-Type %q is not supported: %s", v, want)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return fmt.Errorf("charset %q is not supported: JSON is UTF-8", cs)
	}
	return nil
}

// tooLargeError says which limit a body exceeds. It is answered with 413.
type tooLargeError struct{ message string }

func (e *tooLargeError) Error() string { return e.message }

var (
	// errNoRoom is answered with 429: other requests, or others of this client, hold the memory
	// reserved for bodies.
	errNoRoom = errors.New("the bodies of other requests fill the memory set aside for them, try again")
	// errUntrusted means that the body's checksum is wrong. The checksum does not say where the
	// damage is, so no value of the body can be trusted.
	errUntrusted = errors.New("the checksum does not match")
)

// bodies reads request bodies into buffers that are reused.
type bodies struct {
	limits *Limits
	gzips  sync.Pool // *gzip.Reader
	// zstds and smallZstds hold *zstd.Decoder with windows of zstdWindowBytes and zstdSmallBytes.
	zstds, smallZstds sync.Pool
}

// body is the body of one request: its buffers and its share of the budget.
type body struct {
	wire  []byte // compressed, only if decoding needs it in one piece
	data  []byte // decompressed
	claim admission.Claim
}

// read fills b.data with the decompressed body. On error, b.data holds the bytes decoded before the
// error. They are good if the body was merely cut off.
func (s *bodies) read(w http.ResponseWriter, r *http.Request, enc encoding, b *body) error {
	limit, what := s.limits.CompressedBytes, "compressed body"
	if enc == identity {
		limit, what = s.limits.BodyBytes, "body"
	}
	tooLarge := &tooLargeError{fmt.Sprintf(
		"the %s is larger than the limit of %d bytes, nothing of it was kept: send smaller requests", what, limit)}
	if r.ContentLength > limit {
		return tooLarge
	}
	err := s.decode(http.MaxBytesReader(w, r.Body, limit), enc, b)
	// Whichever decoder reports the error, MaxBytesError is the cause.
	if maxBytes := (*http.MaxBytesError)(nil); errors.As(err, &maxBytes) {
		return tooLarge
	}
	return err
}

func (s *bodies) decode(wire io.Reader, enc encoding, b *body) (err error) {
	b.wire, b.data = b.wire[:0], b.data[:0]
	switch enc {
	case gzipped:
		return s.gunzip(wire, b)
	case zstandard:
		return s.unzstd(wire, b)
	case snappied:
		return s.unsnappy(wire, b)
	case identity:
	}
	b.data, err = s.fill(b, b.data, wire, s.limits.BodyBytes)
	return err
}

func (s *bodies) gunzip(wire io.Reader, b *body) error {
	zr, ok := s.gzips.Get().(*gzip.Reader)
	if !ok {
		zr = new(gzip.Reader)
	}
	defer s.gzips.Put(zr)
	if err := zr.Reset(wire); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	var err error
	b.data, err = s.fill(b, b.data, zr, s.limits.BodyBytes)
	if errors.Is(err, gzip.ErrChecksum) {
		return errUntrusted
	}
	return err
}

func (s *bodies) unzstd(wire io.Reader, b *body) error {
	var start [zstd.HeaderMaxSize]byte
	n, err := io.ReadFull(wire, start[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	wire = io.MultiReader(bytes.NewReader(start[:n]), wire)
	// A few bytes can request a full window.
	window, pool := zstdWindow(start[:n]), &s.smallZstds
	if window > zstdSmallBytes {
		pool = &s.zstds
	}
	if !b.claim.Grow(window) {
		return errNoRoom
	}
	zr, ok := pool.Get().(*zstd.Decoder)
	if !ok {
		// With concurrency 1 the decoder runs in the caller, so a pooled decoder has no goroutine
		// to stop.
		zr, err = zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(uint64(window)),
			zstd.WithDecoderMaxMemory(uint64(max(s.limits.BodyBytes, zstdWindowBytes))),
			zstd.WithDecodeBuffersBelow(0))
		if err != nil {
			return err
		}
	}
	defer func() {
		if zr.Reset(nil) == nil {
			pool.Put(zr)
		}
	}()
	if err := zr.Reset(wire); err != nil {
		return err
	}
	b.data, err = s.fill(b, b.data, zr, s.limits.BodyBytes)
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return &tooLargeError{fmt.Sprintf(
			"the zstd body asks for a window above %d bytes, the most that its first frame and RFC 9659 allow here: compress without --long or --ultra",
			window)}
	case errors.Is(err, zstd.ErrCRCMismatch):
		return errUntrusted
	}
	return err
}

// zstdWindow returns the window to reserve for a zstd body that begins with start: one of the two
// sizes.
func zstdWindow(start []byte) int64 {
	var h zstd.Header
	if err := h.Decode(start); err != nil {
		return zstdSmallBytes // not zstd
	}
	window := h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	if h.Skippable || window > zstdSmallBytes {
		return zstdWindowBytes
	}
	return zstdSmallBytes
}

func (s *bodies) unsnappy(wire io.Reader, b *body) error {
	var err error
	// The reader wire enforces the same limit.
	if b.wire, err = s.fill(b, b.wire, wire, s.limits.CompressedBytes); err != nil {
		return err
	}
	if bytes.HasPrefix(b.wire, []byte(snappyStreamID)) {
		// Each frame has its own checksum and is yielded only if it matches.
		b.data, err = s.fill(b, b.data, snappy.NewReader(bytes.NewReader(b.wire)), s.limits.BodyBytes)
		return err
	}
	n, err := snappy.DecodedLen(b.wire)
	if err != nil {
		return err
	}
	if int64(n) > s.limits.BodyBytes {
		return s.bomb()
	}
	if int64(n) > snappyMaxRatio*int64(len(b.wire)) {
		return snappy.ErrCorrupt
	}
	if !b.claim.Grow(int64(n)) {
		return errNoRoom
	}
	if cap(b.data) < n {
		b.data = make([]byte, n)
	}
	// The beginning of a block is useless without its end: errors show only there.
	b.data, err = snappy.Decode(b.data[:cap(b.data)], b.wire)
	return err
}

// fill appends the data of src to dst, up to limit. The buffer grows with the data received, not
// with the announced length.
func (s *bodies) fill(b *body, dst []byte, src io.Reader, limit int64) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			size := max(2*cap(dst), minBufferBytes)
			if int64(size) >= limit {
				// The extra byte shows whether there is more data than the limit.
				size = int(limit) + 1
			}
			grown := make([]byte, len(dst), size)
			copy(grown, dst)
			dst = grown
		}
		n, err := src.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if int64(len(dst)) > limit {
			return dst, s.bomb()
		}
		if !b.claim.Grow(int64(n)) {
			return dst, errNoRoom
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return dst, nil
			}
			return dst, err
		}
	}
}

func (s *bodies) bomb() error {
	return &tooLargeError{fmt.Sprintf(
		"the body is larger than the limit of %d bytes when decompressed, nothing of it was kept: send smaller requests",
		s.limits.BodyBytes)}
}

// release returns b's share of the budget and drops buffers that are too large to keep.
func (b *body) release() {
	b.claim.Release()
	b.wire, b.data = b.wire[:0], b.data[:0]
	if cap(b.wire) > maxPooledBytes {
		b.wire = nil
	}
	if cap(b.data) > maxPooledBytes {
		b.data = nil
	}
}
