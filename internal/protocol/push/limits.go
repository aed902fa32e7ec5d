package push

import (
	"cmp"
	"errors"
	"fmt"
)

// Limits bound what one ingest request may cost the server.
type Limits struct {
	// CompressedBytes bounds a body with a Content-Encoding, as sent. The default is 16 MiB.
	CompressedBytes int64
	// BodyBytes bounds a decompressed body. The default is 64 MiB.
	BodyBytes int64
	// DecodedBytes bounds what is decoded from a body, not counting the body. The default is four
	// times BodyBytes.
	DecodedBytes int64
	// TextBytes bounds the names and labels of a body's measurements. Each measurement counts with
	// all of its labels, even if the body shares them among many. The default is eight times
	// BodyBytes.
	TextBytes int64
	// Measurements bounds the measurements of one body. The default is 1,000,000.
	Measurements int
	// Labels bounds the labels of one measurement before any other check; ingest may allow fewer.
	// The default is 128.
	Labels int
	// Depth bounds the nesting of values in unknown members. The default is 100.
	Depth int
	// Rejections bounds the rejections listed in a reply; all are counted. The default is 1000.
	Rejections int
}

// EnsureDefaults fills in unset fields.
func (l *Limits) EnsureDefaults() {
	l.CompressedBytes = cmp.Or(l.CompressedBytes, 16<<20)
	l.BodyBytes = cmp.Or(l.BodyBytes, 64<<20)
	l.DecodedBytes = cmp.Or(l.DecodedBytes, 4*l.BodyBytes)
	l.TextBytes = cmp.Or(l.TextBytes, 8*l.BodyBytes)
	l.Measurements = cmp.Or(l.Measurements, 1_000_000)
	l.Labels = cmp.Or(l.Labels, 128)
	l.Depth = cmp.Or(l.Depth, 100)
	l.Rejections = cmp.Or(l.Rejections, 1000)
}

// RequestBytes returns the maximum memory of one request.
func (l *Limits) RequestBytes() int64 {
	const beyond = 2 // a byte of each buffer shows whether there is more than the limit
	return l.CompressedBytes + l.BodyBytes + beyond + l.DecodedBytes + zstdWindowBytes
}

// Validate checks the limits after EnsureDefaults.
func (l *Limits) Validate() error {
	if l.CompressedBytes < 1 || l.BodyBytes < 1 || l.DecodedBytes < 1 || l.TextBytes < 1 || l.Measurements < 1 || l.Labels < 1 || l.Depth < 1 || l.Rejections < 1 {
		return errors.New("push: limits must be positive")
	}
	// The decoder recurses for nested values.
	if l.Depth > 10_000 {
		return fmt.Errorf("push: a depth of %d is above 10000", l.Depth)
	}
	return nil
}
