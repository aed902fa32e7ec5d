package push

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// StreamBytes returns the memory that open takes.
func (e Encoding) StreamBytes() int64 {
	if e == Zstd {
		return zstdWindowBytes
	}
	return 0
}

// Open decompresses a body of any length as it is read. Its Read returns ErrUntrusted at the latest
// behind all data.
func (e Encoding) Open(body io.ReadCloser) (io.ReadCloser, error) {
	from := &arriving{from: body}
	switch e {
	case gzipped:
		zr := &lazyGzip{from: from}
		return stream{unpacked{zr, from}, body.Close}, nil
	case Zstd:
		zr, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindowBytes))
		if err != nil {
			return nil, err
		}
		return stream{unpacked{zr, from}, zr.IOReadCloser().Close}, nil
	case Identity:
		return body, nil
	case Snappy:
	}
	return nil, fmt.Errorf("the Content-Encoding %q is not supported here: use gzip or zstd", e)
}

// stream is a body that is decompressed as it is read.
type stream struct {
	unpacked

	end func() error
}

// Close implements io.Closer.
func (s stream) Close() error { return s.end() }

// lazyGzip reads the gzip header at the first Read, not before.
type lazyGzip struct {
	from io.Reader
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
