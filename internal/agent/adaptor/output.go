package adaptor

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-faster/jx"
	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
)

const (
	// topicEvery is the minimum time between two log lines on the same topic.
	topicEvery = time.Minute
	// maxTopics bounds the memory of topics.
	maxTopics = 256
	// retryEvery is the wait before a chunk is written again that the spool could not write.
	retryEvery = time.Second
)

// Output takes what adaptors read, and puts it into the spool. It is safe for concurrent use.
type Output struct {
	Spool  *spool.Spool
	Clock  clock.Clock
	log    *slog.Logger
	source string
	topics *limits.Topics
	zstd   *zstd.Encoder
	lost   atomic.Uint64
}

// NewOutput returns an Output. source is that of series whose adaptor names none.
func NewOutput(s *spool.Spool, c clock.Clock, log *slog.Logger, source string) *Output {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are valid
	}
	return &Output{Spool: s, Clock: c, log: log, source: source, topics: limits.NewTopics(c, topicEvery, maxTopics), zstd: z}
}

// Lost returns how many samples could not be written to the spool.
func (o *Output) Lost() uint64 { return o.lost.Load() }

// Warn logs what is wrong with a stream, or with what would be one, at most once a minute.
func (o *Output) Warn(message, stream string, args ...any) {
	if n, ok := o.topics.Pass(message + "\n" + stream); ok {
		o.log.Warn(message, append([]any{"stream", stream}, append(args, "suppressed", n)...)...)
	}
}

// Put makes the samples of a batch a chunk of a stream that ends at a point. A full spool drops what is oldest for it. What cannot be
// written is lost, and counted.
func (o *Output) Put(stream string, at spool.Point, b *ingest.Batch) {
	c := o.chunk(stream, at, b)
	if err := o.Spool.Put(c); err != nil {
		o.lost.Add(uint64(c.Samples))
		o.Warn("dropped samples that cannot be written to the spool", stream, "err", err, "samples", c.Samples)
	}
}

// PutOrWait is Put for what can be read later as well: it waits until the chunk is written. It returns false if ctx ended before.
func (o *Output) PutOrWait(ctx context.Context, stream string, at spool.Point, b *ingest.Batch) bool {
	// The same chunk is tried again: an error does not say that it was not written, and samples have the time at which they were read.
	c := o.chunk(stream, at, b)
	for {
		err := o.Spool.PutOrWait(ctx, c)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		o.Warn("samples cannot be written to the spool; trying again", stream, "err", err, "offset", at.Seq)
		if o.Clock.Sleep(ctx, retryEvery) != nil {
			return false
		}
	}
}

// writers has the buffers in which reports are encoded.
var writers = sync.Pool{New: func() any { return new(jx.Writer) }}

// chunk encodes the samples of a batch as reports, compressed.
func (o *Output) chunk(stream string, at spool.Point, b *ingest.Batch) spool.Chunk {
	w := writers.Get().(*jx.Writer)
	defer writers.Put(w)
	w.Reset()
	c := spool.Chunk{Stream: stream, Point: at}
	for _, r := range b.Reports() {
		c.Samples += appendReport(w, cmp.Or(r.Source, o.source), r.Measurements)
	}
	if c.Samples > 0 {
		c.Data = o.zstd.EncodeAll(w.Buf, make([]byte, 0, len(w.Buf)/8))
	}
	return c
}

// appendReport appends a line of JSON: a report. It returns the number of samples. JSON cannot represent NaN and infinities.
func appendReport(w *jx.Writer, source string, ms []ingest.Measurement) (n int) {
	w.RawStr(`{"source":`)
	w.Str(source)
	w.RawStr(`,"measurements":[`)
	for i := range ms {
		m := &ms[i]
		if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
			continue
		}
		if n > 0 {
			w.Comma()
		}
		n++
		w.RawStr(`{"metric":`)
		w.Str(m.Metric)
		if len(m.Labels) > 0 {
			w.RawStr(`,"labels":{`)
			for j := range m.Labels {
				if j > 0 {
					w.Comma()
				}
				w.FieldStart(m.Labels[j].Name)
				w.Str(m.Labels[j].Value)
			}
			w.ObjEnd()
		}
		w.RawStr(`,"time":`)
		w.Int64(m.TimeMs)
		w.RawStr(`,"value":`)
		w.Float64(m.Value)
		w.ObjEnd()
	}
	w.RawStr("]}\n")
	return n
}
