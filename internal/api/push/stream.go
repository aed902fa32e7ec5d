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

// Open decompresses a body of any length as it is read.
func (e Encoding) Open(body io.ReadCloser) (io.ReadCloser, error) {
	switch e {
	case gzipped:
		return &lazyGzip{from: body}, nil
	case Zstd:
		zr, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindowBytes))
		if err != nil {
			return nil, err
		}
		return zr.IOReadCloser(), nil
	case Identity:
		return body, nil
	case Snappy:
	}
	return nil, fmt.Errorf("the Content-Encoding %q is not supported here: use gzip or zstd", e)
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
