// Package ingest is the one entry that every protocol feeds. It validates reports, finds their
// schedule ids, groups samples by (slice, block), and commits the groups together. It acknowledges
// a report only when its raw chunks are durable, together with marks that lead a run to them.
//
// The way of a report: resolve.go finds the ids of its series and rejects measurements, commit.go collects samples until a
// commit is full or its window over, and group.go sorts a commit into blocks.
package ingest

import (
	"errors"
	"fmt"
	"math"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// NoTime as a measurement's time means the time of its arrival.
const NoTime int64 = math.MinInt64

// Measurement is one measured value as a protocol decoded it. Labels need not be sorted. They do
// not hold the name, and hold the source only if it is derived.
type Measurement struct {
	Metric string
	Labels []metric.Label
	// TimeMs is the time in Unix ms, or NoTime.
	TimeMs int64
	Value  float64
}

// sameSeries reports whether two measurements share their labels and have the same name, as within
// one series of a Batch. If not, they may still be of the same series.
func (m *Measurement) sameSeries(o *Measurement) bool {
	return sameLabels(m.Labels, o.Labels) && m.Metric == o.Metric
}

// sameLabels reports whether a and b are the same slice. If not, or if they are empty, they may
// still be equal.
func sameLabels(a, b []metric.Label) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// Report holds the measurements of one source.
type Report struct {
	// Source is the name of what reports. Its series have it as their label metric.SourceLabel.
	Source string
	// Derived says that Source is the value of some label that all the series have, or "". The
	// series keep their labels and get no source label. Source then only decides which series lie
	// together.
	Derived      bool
	Measurements []Measurement
}

// Reason is a stable word for why a measurement was rejected.
type Reason string

// The reasons, which clients may rely on.
const (
	ReasonInvalidSource Reason = "invalid_source"
	ReasonInvalidMetric Reason = "invalid_metric"
	ReasonInvalidLabel  Reason = "invalid_label"
	ReasonInvalidValue  Reason = "invalid_value"
	ReasonInvalidTime   Reason = "invalid_time"
	ReasonTooOld        Reason = "too_old"
	ReasonTooFarAhead   Reason = "too_far_ahead"
	ReasonLimit         Reason = "limit_exceeded"
	ReasonUnsupported   Reason = "unsupported"
	// ReasonForbidden: the series is not among those that the sender's token is bound to.
	ReasonForbidden Reason = "forbidden"
	// ReasonDamaged: what the store knows of the source is damaged.
	ReasonDamaged Reason = "damaged"
)

// reasons lists all reasons.
var reasons = []Reason{
	ReasonInvalidSource, ReasonInvalidMetric, ReasonInvalidLabel, ReasonInvalidValue,
	ReasonInvalidTime, ReasonTooOld, ReasonTooFarAhead, ReasonLimit, ReasonUnsupported, ReasonForbidden, ReasonDamaged,
}

// Rejection is one rejected measurement. Index counts the measurements over all reports of the
// call, from 0. The first thousand rejections per reason have a message of their own.
type Rejection struct {
	Index   int
	Reason  Reason
	Message string
}

// messages counts the messages by reason and formats them. The zero value is ready.
type messages map[Reason]int

const (
	// maxMessages is the maximum number of messages per reason and call. Nobody reads more, and a
	// message takes far more memory than its measurement.
	maxMessages = 1000
	oneOfMany   = "for the same reason as earlier ones"
)

// text formats a message. The arguments that are text of a client are excerpts.
func (m *messages) text(reason Reason, format string, args ...any) string {
	if *m == nil {
		*m = make(messages)
	}
	if (*m)[reason]++; (*m)[reason] > maxMessages {
		return oneOfMany
	}
	return excerpt.Message(fmt.Sprintf(format, args...))
}

// Result says what became of a call's measurements: each is accepted and durable, or rejected.
type Result struct {
	Accepted int
	Rejected []Rejection
	// Overwritten describes accepted samples that were replaced at once.
	Overwritten Overwritten
}

// Overwritten counts accepted samples of a call that another sample of the same series and
// millisecond replaced in the same commit, with another value. A store keeps one sample per series
// and millisecond, so this is no error. But a sender whose points lie closer, or two senders of the
// same series, lose data.
type Overwritten struct {
	Samples int
	// Series, in Prometheus' notation, and TimeMs identify one of them.
	Series string
	TimeMs int64
}

// ErrBusy says that the queue is full, or a client's part of it. Nothing was stored; try again later.
var ErrBusy = errors.New("too many samples are waiting to be written")
