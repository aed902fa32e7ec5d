package adaptor

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
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
	lost   *atomic.Uint64
	*Activity
}

// NewOutput returns an Output. source is that of series whose adaptor names none.
func NewOutput(s *spool.Spool, c clock.Clock, log *slog.Logger, source string) *Output {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(256<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are valid
	}
	return &Output{Spool: s, Clock: c, log: log, source: source, topics: limits.NewTopics(c, topicEvery, maxTopics), zstd: z, lost: new(atomic.Uint64), Activity: newActivity(c)}
}

// ForAdaptor returns the output of one adaptor, with an activity of its own.
func (o *Output) ForAdaptor() *Output {
	one := *o
	one.Activity = newActivity(o.Clock)
	return &one
}

// Lost returns how many samples could not be written to the spool.
func (o *Output) Lost() uint64 { return o.lost.Load() }

// Warn logs what is wrong with a stream, or with what would be one, at most once a minute.
func (o *Output) Warn(message, stream string, args ...any) {
	o.warn(message, stream, args)
	if n, ok := o.topics.Pass(message + "\n" + stream); ok {
		o.log.Warn(message, append([]any{"stream", stream}, append(args, "suppressed", n)...)...)
	}
}

// Put makes the samples of a batch a chunk of a stream that ends at a point. A full spool drops what is oldest for it. What cannot be
// written is lost, and counted.
func (o *Output) Put(stream string, at spool.Point, b *ingest.Batch) {
	o.put(o.chunk(stream, at, o.source, b.Reports()))
}

func (o *Output) put(c spool.Chunk) {
	err := o.Spool.Put(c)
	if err == nil {
		o.add(c.Samples)
	} else {
		o.lost.Add(uint64(c.Samples))
		o.Warn("dropped samples that cannot be written to the spool", c.Stream, "err", err, "samples", c.Samples)
	}
}

// PutOrWait is Put for what can be read later as well: it waits until the chunk is written. It returns false if ctx ended before.
func (o *Output) PutOrWait(ctx context.Context, stream string, at spool.Point, b *ingest.Batch) bool {
	// The same chunk is tried again: an error does not say that it was not written, and samples have the time at which they were read.
	c := o.chunk(stream, at, o.source, b.Reports())
	for {
		err := o.Spool.PutOrWait(ctx, c)
		if err == nil {
			o.add(c.Samples)
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

// encoder has the buffers in which a request of remote write is encoded.
type encoder struct {
	prompb.TimeSeries

	body []byte
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// chunk encodes reports as a request of remote write, compressed: of several, one behind another is one, too. Series without a source get
// this one, if it is not empty.
func (o *Output) chunk(stream string, at spool.Point, source string, reports []ingest.Report) spool.Chunk {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	e.body = e.body[:0]
	samples := 0
	for _, r := range reports {
		e.append(cmp.Or(r.Source, source), r.Measurements)
		samples += len(r.Measurements)
	}
	return o.compress(stream, at, samples, e.body)
}

// compress returns the chunk of a request.
func (o *Output) compress(stream string, at spool.Point, samples int, body []byte) spool.Chunk {
	c := spool.Chunk{Stream: stream, Point: at, Samples: samples}
	if samples > 0 {
		c.Data = o.zstd.EncodeAll(body, make([]byte, 0, len(body)/8))
	}
	return c
}

// append appends the series of a source.
func (e *encoder) append(source string, ms []ingest.Measurement) {
	for len(ms) > 0 {
		first := &ms[0]
		e.Labels = append(e.Labels[:0], prompb.Label{Name: metric.NameLabel, Value: first.Metric})
		if source != "" {
			e.Labels = append(e.Labels, prompb.Label{Name: metric.SourceLabel, Value: source})
		}
		for _, l := range first.Labels {
			e.Labels = append(e.Labels, prompb.Label{Name: l.Name, Value: l.Value})
		}
		e.Samples = e.Samples[:0]
		for len(ms) > 0 && ms[0].Metric == first.Metric && slices.Equal(ms[0].Labels, first.Labels) {
			e.Samples = append(e.Samples, prompb.Sample{Timestamp: ms[0].TimeMs, Value: ms[0].Value})
			ms = ms[1:]
		}
		size := e.Size()
		e.body = protowire.AppendVarint(protowire.AppendTag(e.body, 1, protowire.BytesType), uint64(size))
		e.body = slices.Grow(e.body, size)
		e.body = e.body[:len(e.body)+size]
		_, _ = e.MarshalToSizedBuffer(e.body[len(e.body)-size:]) // it has no error
	}
}
