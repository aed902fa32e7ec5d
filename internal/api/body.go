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
	// zstdWindowBytes is the largest window that a zstd body may ask for. RFC 9659
	// sets it for Content-Encoding, so that a decoder's memory is known beforehand.
	zstdWindowBytes = 8 << 20
	// zstdSmallBytes is the window that is set aside for a zstd body whose first frame asks for no more, as one of a small body
	// does; its other frames get no larger one.
	zstdSmallBytes = 1 << 20
	// snappyMaxRatio is above what a snappy block can expand to: its densest element
	// is a copy of 64 bytes in 3. A block that claims more is damaged or hostile.
	snappyMaxRatio = 32
	// minBufferBytes is what a body buffer begins with, and maxPooledBytes what one
	// may have grown to and still be kept: a rare huge request does not own its
	// memory for ever.
	minBufferBytes = 64 << 10
	maxPooledBytes = 8 << 20
)

// snappyStreamID opens the framed form of snappy. As a block it would claim a length
// of 895 bytes and begin with two literals of one byte, which no encoder writes.
const snappyStreamID = "\xff\x06\x00\x00sNaPpY"

// encoding is how a body is compressed.
type encoding int

const (
	identity encoding = iota
	gzipped
	zstandard
	snappied
)

// String is the encoding's token in Content-Encoding.
func (e encoding) String() string { return [...]string{"identity", "gzip", "zstd", "snappy"}[e] }

// parseEncoding reads a Content-Encoding header; unsaid is what none stands for. More than one encoding at once is
// not supported: no client does it, and each stage would need limits of its own.
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

// checkReportType says whether a Content-Type header is one that reports come in. The
// form of the body is seen from the body itself, so JSON and NDJSON are not told apart.
func checkReportType(h http.Header) error {
	v := h.Get("Content-Type")
	if v == "" {
		return nil
	}
	const want = "use application/json or application/x-ndjson"
	media, params, err := mime.ParseMediaType(v)
	// What curl -d says of any body is taken too: whoever tries the endpoint by hand means JSON.
	if err != nil || (media != "application/json" && media != "application/x-ndjson" && media != "application/x-www-form-urlencoded") {
		return fmt.Errorf("the Content-Type %q is not supported: %s", v, want)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return fmt.Errorf("charset %q is not supported: JSON is UTF-8", cs)
	}
	return nil
}

// tooLargeError says which limit a body exceeds. It is answered 413.
type tooLargeError struct{ message string }

func (e *tooLargeError) Error() string { return e.message }

var (
	// errNoRoom is answered 429: other requests, or others of this client, hold the memory set aside for bodies.
	errNoRoom = errors.New("the bodies of other requests fill the memory set aside for them, try again")
	// errUntrusted: the body's checksum says that what was decoded is not what was
	// encoded, and not where, so no value in it can be believed.
	errUntrusted = errors.New("the checksum does not match")
)

// bodies reads the bodies of requests into buffers that are used again.
type bodies struct {
	limits *Limits
	gzips  sync.Pool // *gzip.Reader
	// zstds and smallZstds are *zstd.Decoder, with windows of zstdWindowBytes and zstdSmallBytes.
	zstds, smallZstds sync.Pool
}

// body is one request's body: the buffers and what they hold of the budget.
type body struct {
	wire  []byte // compressed, where it is needed in one piece
	data  []byte // decompressed
	claim admission.Claim
}

// read fills b.data with the decompressed body. With an error b.data is what was read
// before it, which for a body that breaks off is good data.
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
	// Whatever decoder it came through, this is the cause.
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
	// A few bytes may ask for all of a window.
	window, pool := zstdWindow(start[:n]), &s.smallZstds
	if window > zstdSmallBytes {
		pool = &s.zstds
	}
	if !b.claim.Grow(window) {
		return errNoRoom
	}
	zr, ok := pool.Get().(*zstd.Decoder)
	if !ok {
		// Concurrency 1 decodes in the caller, so that a pooled decoder has no
		// goroutine to stop.
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

// zstdWindow is what is set aside for the windows of a zstd body that starts so: one of the two sizes.
func zstdWindow(start []byte) int64 {
	var h zstd.Header
	if err := h.Decode(start); err != nil {
		return zstdSmallBytes // it is no zstd
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
	// The reader has the limit of a compressed body.
	if b.wire, err = s.fill(b, b.wire, wire, s.limits.CompressedBytes); err != nil {
		return err
	}
	if bytes.HasPrefix(b.wire, []byte(snappyStreamID)) {
		// Each frame has a checksum of its own and is yielded only when that is right.
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
	// A block has no usable beginning: its elements are only checked at its end.
	b.data, err = snappy.Decode(b.data[:cap(b.data)], b.wire)
	return err
}

// fill appends what src yields to dst, up to limit. It grows by what has arrived and
// not by what was announced.
func (s *bodies) fill(b *body, dst []byte, src io.Reader, limit int64) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			size := max(2*cap(dst), minBufferBytes)
			if int64(size) >= limit {
				// One byte above the limit shows that there is more than the limit.
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

// release gives back what b holds of the budget, and buffers that are too large to keep.
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
