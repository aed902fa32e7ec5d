package push

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/api/respond"
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
	// MinBufferBytes is the initial size of a body buffer. A buffer that has grown beyond
	// MaxPooledBytes is not pooled, so a rare huge request does not hold its memory for ever.
	MinBufferBytes = 64 << 10
	MaxPooledBytes = 8 << 20
)

// snappyStreamID starts the framed form of snappy. Read as a block, it would claim a length of 895
// bytes and begin with two one-byte literals, which no encoder writes.
const snappyStreamID = "\xff\x06\x00\x00sNaPpY"

// Encoding is the compression of a body.
type Encoding int

// The encodings of a body.
const (
	Identity Encoding = iota
	gzipped
	Zstd
	Snappy
)

// String returns the encoding's token in Content-Encoding.
func (e Encoding) String() string { return [...]string{"identity", "gzip", "zstd", "snappy"}[e] }

// ParseEncoding parses a Content-Encoding header; unsaid is the encoding if there is no header.
// Several encodings at once are not supported: no client uses them, and each stage would need its
// own limits.
func ParseEncoding(h http.Header, unsaid Encoding) (Encoding, error) {
	v := strings.ToLower(strings.TrimSpace(strings.Join(h.Values("Content-Encoding"), ",")))
	switch v {
	case "":
		return unsaid, nil
	case "identity":
		return Identity, nil
	case "gzip", "x-gzip":
		return gzipped, nil
	case "zstd":
		return Zstd, nil
	case "snappy":
		return Snappy, nil
	}
	return 0, fmt.Errorf("the Content-Encoding %q is not supported: use one of gzip, zstd, snappy, identity", v)
}

// ErrUntrusted means that the body's checksum is wrong. The checksum does not say where the damage is,
// so no value of the body can be trusted.
var ErrUntrusted = errors.New("the checksum does not match")

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
	Data  []byte // decompressed
	claim admission.Claim
}

// read fills b.data with the decompressed body. On error, b.data holds the bytes decoded before the
// error. They are good if the body was merely cut off.
func (s *bodies) read(w http.ResponseWriter, r *http.Request, enc Encoding, b *body) error {
	limit, what := s.limits.CompressedBytes, "compressed body"
	if enc == Identity {
		limit, what = s.limits.BodyBytes, "body"
	}
	tooLarge := &respond.TooLargeError{Message: fmt.Sprintf(
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

func (s *bodies) decode(wire io.Reader, enc Encoding, b *body) (err error) {
	b.wire, b.Data = b.wire[:0], b.Data[:0]
	switch enc {
	case gzipped:
		return s.gunzip(wire, b)
	case Zstd:
		return s.unzstd(wire, b)
	case Snappy:
		return s.unsnappy(wire, b)
	case Identity:
	}
	b.Data, err = s.fill(b, b.Data, wire, s.limits.BodyBytes)
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
	b.Data, err = s.fill(b, b.Data, zr, s.limits.BodyBytes)
	if errors.Is(err, gzip.ErrChecksum) {
		return ErrUntrusted
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
		return respond.ErrNoRoom
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
	b.Data, err = s.fill(b, b.Data, zr, s.limits.BodyBytes)
	switch {
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return &respond.TooLargeError{Message: fmt.Sprintf(
			"the zstd body needs a window above %d bytes, the limit that follows from its first frame and RFC 9659: compress without --long or --ultra",
			window)}
	case errors.Is(err, zstd.ErrCRCMismatch):
		return ErrUntrusted
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
		b.Data, err = s.fill(b, b.Data, snappy.NewReader(bytes.NewReader(b.wire)), s.limits.BodyBytes)
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
		return respond.ErrNoRoom
	}
	if cap(b.Data) < n {
		b.Data = make([]byte, n)
	}
	// The beginning of a block is useless without its end: errors show only there.
	b.Data, err = snappy.Decode(b.Data[:cap(b.Data)], b.wire)
	return err
}

// fill appends the data of src to dst, up to limit. The buffer grows with the data received, not
// with the announced length.
func (s *bodies) fill(b *body, dst []byte, src io.Reader, limit int64) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			size := max(2*cap(dst), MinBufferBytes)
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
			return dst, respond.ErrNoRoom
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
	return &respond.TooLargeError{Message: fmt.Sprintf(
		"the body is larger than the limit of %d bytes when decompressed, nothing of it was kept: send smaller requests",
		s.limits.BodyBytes)}
}

// release returns b's share of the budget and drops buffers that are too large to keep.
func (b *body) release() {
	b.claim.Release()
	b.wire, b.Data = b.wire[:0], b.Data[:0]
	if cap(b.wire) > MaxPooledBytes {
		b.wire = nil
	}
	if cap(b.Data) > MaxPooledBytes {
		b.Data = nil
	}
}
