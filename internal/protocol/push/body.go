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

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// zstdWindowBytes is the largest window that a zstd body may request. RFC 9659 sets this limit
	// for Content-Encoding, so that a decoder's memory is known in advance.
	zstdWindowBytes = 8 << 20
	// zstdSmallBytes is the window reserved for a zstd body whose first frame needs no more, such as
	// a small body. Later frames of that body get no larger window.
	zstdSmallBytes = 1 << 20
	// snappyMaxRatio is more than a snappy block can expand: its densest element is a copy of 64
	// bytes, encoded in 3. A block that claims more is damaged or hostile.
	snappyMaxRatio = 32
	// MinBufferBytes is the initial size of a body buffer. A buffer that has grown beyond
	// maxPooledBody is not pooled: a request is charged for the whole buffer that it gets, and a small
	// one should not be charged for what a large one has grown.
	MinBufferBytes = 64 << 10
	maxPooledBody  = 256 << 10
	// MaxPooledBytes is the same limit for what is decoded from a body, so that a rare huge request does
	// not hold its memory for ever.
	MaxPooledBytes = 8 << 20
)

// snappyStreamID starts the framed form of snappy. No block starts like that: after one literal it
// would copy from before its own beginning.
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
	return 0, fmt.Errorf("the Content-Encoding %s is not supported: use one of gzip, zstd, snappy, identity", excerpt.Quoted(v))
}

// ErrUntrusted means that a compressed body did not break off, and yet cannot be decompressed. Damage
// shows only where decompression fails, at the latest by the checksum behind all data. So no value of
// the body can be trusted. A body that breaks off is good up to there.
var ErrUntrusted = errors.New("the body cannot be decompressed")

// arriving is a compressed body as it arrives.
type arriving struct {
	from io.Reader
	// broke is why the body does not arrive whole, nil while it does.
	broke error
}

// Read implements io.Reader.
func (w *arriving) Read(p []byte) (int, error) {
	if w.broke != nil {
		return 0, w.broke
	}
	n, err := w.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		w.broke = err
	}
	return n, err
}

// judge returns why the body cannot be decompressed to its end, given the decompressor's error: that
// it broke off, or ErrUntrusted.
func (w *arriving) judge(err error) error {
	switch {
	case w.broke != nil && (err == nil || errors.Is(err, w.broke) || errors.Is(err, snappy.ErrCorrupt)):
		// Zstd takes a body that breaks off between two frames for a whole one, snappy for a damaged
		// one: its frames up to there are whole.
		return w.broke
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends early", ErrUntrusted)
	}
	return fmt.Errorf("%w: %w", ErrUntrusted, err)
}

// unpacked reads what a decompressor makes of a body.
type unpacked struct {
	from io.Reader
	wire *arriving
}

// Read implements io.Reader.
func (u unpacked) Read(p []byte) (int, error) {
	n, err := u.from.Read(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return n, err // a limit, no damage
	case errors.Is(err, io.EOF):
		if err := u.wire.judge(nil); err != nil {
			return n, err
		}
		return n, io.EOF
	}
	return n, u.wire.judge(err)
}

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
	claim limits.Claim
}

// read fills b.Data with the decompressed body. If the body breaks off, b.Data holds what was decoded
// before that. With any other error b.Data is not to be used.
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

func (s *bodies) decode(from io.Reader, enc Encoding, b *body) (err error) {
	b.wire, b.Data = b.wire[:0], b.Data[:0]
	if !b.claim.Grow(int64(cap(b.wire) + cap(b.Data))) {
		b.wire, b.Data = nil, nil // a smaller one may do
	}
	switch enc {
	case gzipped:
		return s.gunzip(&arriving{from: from}, b)
	case Zstd:
		return s.unzstd(&arriving{from: from}, b)
	case Snappy:
		return s.unsnappy(&arriving{from: from}, b)
	case Identity:
	}
	b.Data, err = s.fill(b, b.Data, from, s.limits.BodyBytes)
	return err
}

// StreamBytes returns the memory that the decompressor of a body of any length takes.
func (e Encoding) StreamBytes() int64 {
	if e == Zstd {
		return zstdWindowBytes
	}
	return 0
}

// Open decompresses a body of any length as it is read, unless it is snappy. Read returns ErrUntrusted at the latest behind all
// data. release gives the decompressor back.
func (in *Intake) Open(enc Encoding, body io.Reader) (from io.Reader, release func(), err error) {
	switch enc {
	case gzipped:
		return in.bodies.gzipped(&arriving{from: body})
	case Zstd:
		wire := &arriving{from: body}
		return in.bodies.zstd(wire, wire, zstdWindowBytes)
	case Identity, Snappy:
	}
	return body, func() {}, nil
}

// gzipped reads the header of a gzip body, and returns a reader of what is behind it.
func (s *bodies) gzipped(wire *arriving) (from io.Reader, release func(), err error) {
	zr, ok := s.gzips.Get().(*gzip.Reader)
	if !ok {
		zr = new(gzip.Reader)
	}
	release = func() { s.gzips.Put(zr) }
	if err := zr.Reset(wire); err != nil {
		return nil, release, wire.judge(err)
	}
	return unpacked{zr, wire}, release, nil
}

// zstd returns a reader of what a zstd body decompresses to. Its frames have at most the window, which is one of the two sizes.
func (s *bodies) zstd(body io.Reader, wire *arriving, window int64) (from io.Reader, release func(), err error) {
	pool := &s.smallZstds
	if window > zstdSmallBytes {
		pool = &s.zstds
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
			return nil, func() {}, err
		}
	}
	release = func() {
		if zr.Reset(nil) == nil {
			pool.Put(zr)
		}
	}
	return unpacked{zr, wire}, release, zr.Reset(body)
}

func (s *bodies) gunzip(wire *arriving, b *body) error {
	from, release, err := s.gzipped(wire)
	defer release()
	if err == nil {
		b.Data, err = s.fill(b, b.Data, from, s.limits.BodyBytes)
	}
	return err
}

func (s *bodies) unzstd(wire *arriving, b *body) error {
	var start [zstd.HeaderMaxSize]byte
	n, err := io.ReadFull(wire, start[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	// A few bytes can request a full window.
	window := zstdWindow(start[:n])
	if !b.claim.Grow(window) {
		return respond.ErrNoRoom
	}
	from, release, err := s.zstd(io.MultiReader(bytes.NewReader(start[:n]), wire), wire, window)
	defer release()
	if err == nil {
		b.Data, err = s.fill(b, b.Data, from, s.limits.BodyBytes)
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return &respond.TooLargeError{Message: fmt.Sprintf(
			"the zstd body needs a window above %d bytes, the limit that follows from its first frame and RFC 9659: compress without --long or --ultra",
			window)}
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

func (s *bodies) unsnappy(from *arriving, b *body) error {
	var err error
	// The reader from enforces the same limit.
	if b.wire, err = s.fill(b, b.wire, from, s.limits.CompressedBytes); err != nil && !errors.Is(err, from.broke) {
		return err
	}
	if bytes.HasPrefix(b.wire, []byte(snappyStreamID)) {
		if hidesFrame(b.wire) {
			return from.judge(snappy.ErrCorrupt)
		}
		// The reader yields a frame only if it is whole and its checksum matches.
		b.Data, err = s.fill(b, b.Data, unpacked{snappy.NewReader(bytes.NewReader(b.wire)), from}, s.limits.BodyBytes)
		return err
	}
	if from.broke != nil {
		return from.broke // the beginning of a block is useless without its end
	}
	n, err := snappy.DecodedLen(b.wire)
	if err != nil {
		return from.judge(err)
	}
	if int64(n) > s.limits.BodyBytes {
		return s.bomb()
	}
	if int64(n) > snappyMaxRatio*int64(len(b.wire)) {
		return from.judge(snappy.ErrCorrupt)
	}
	if more := n - cap(b.Data); more > 0 {
		if !b.claim.Grow(int64(more)) {
			return respond.ErrNoRoom
		}
		b.Data = make([]byte, n)
	}
	b.Data, err = snappy.Decode(b.Data[:cap(b.Data)], b.wire)
	return from.judge(err)
}

// hidesFrame returns whether a framed snappy stream has a frame of a kind that readers skip, other than
// padding. No encoder writes one: it is a frame with data whose kind is damaged, and no checksum would
// miss it.
func hidesFrame(stream []byte) bool {
	const head = 4 // the kind, and three bytes of length
	for len(stream) >= head {
		if kind := stream[0]; kind >= 0x80 && kind < 0xfe {
			return true
		}
		size := head + (int(stream[1]) | int(stream[2])<<8 | int(stream[3])<<16)
		stream = stream[min(size, len(stream)):]
	}
	return false
}

// fill appends the data of src to dst, up to limit. The buffer grows with the data received, not
// with the announced length, and is charged before it does.
func (s *bodies) fill(b *body, dst []byte, src io.Reader, limit int64) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			size := max(2*cap(dst), MinBufferBytes)
			if int64(size) >= limit {
				// The extra byte shows whether there is more data than the limit.
				size = int(limit) + 1
			}
			if !b.claim.Grow(int64(size - cap(dst))) {
				return dst, respond.ErrNoRoom
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
	if cap(b.wire) > maxPooledBody {
		b.wire = nil
	}
	if cap(b.Data) > maxPooledBody {
		b.Data = nil
	}
}
