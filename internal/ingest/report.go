// Package ingest is the one entry that every protocol feeds: it validates reports,
// finds their schedule ids, groups samples by (slice, block), and commits the
// groups together. A report is acknowledged only when its raw chunks, and marks
// that lead a run to them, are durable.
package ingest

import (
	"errors"
	"fmt"
	"math"

	"github.com/quern/quern/internal/metric"
)

// NoTime as a measurement's time stands for the time of its arrival.
const NoTime int64 = math.MinInt64

// Measurement is one measured value as a protocol decoded it. Labels need not be
// sorted and do not hold the name, nor the source unless it is derived.
type Measurement struct {
	Metric string
	Labels []metric.Label
	// TimeMs is in Unix ms, or NoTime.
	TimeMs int64
	Value  float64
}

// sameSeries says whether two measurements share their labels, as those do that a Batch has put into one series. If not,
// they may be of the same series all the same.
func (m *Measurement) sameSeries(o *Measurement) bool {
	return sameLabels(m.Labels, o.Labels) && m.Metric == o.Metric
}

// sameLabels says whether two are the same slice. If not, or if they are empty, they may be equal all the same.
func sameLabels(a, b []metric.Label) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

// Report is the measurements of one source.
type Report struct {
	// Source is what reports. Its series have it as their label metric.SourceLabel.
	Source string
	// Derived says that Source is only what some label of all the series says, or "": they keep their labels,
	// and get none. It decides which series lie together, and nothing else.
	Derived      bool
	Measurements []Measurement
}

// Reason says in one stable word why a measurement was rejected.
type Reason string

// The reasons that clients may rely on.
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
	// ReasonDamaged: what the store knows of the source is damaged.
	ReasonDamaged Reason = "damaged"
)

// reasons are all of them.
var reasons = []Reason{
	ReasonInvalidSource, ReasonInvalidMetric, ReasonInvalidLabel, ReasonInvalidValue,
	ReasonInvalidTime, ReasonTooOld, ReasonTooFarAhead, ReasonLimit, ReasonUnsupported, ReasonDamaged,
}

// Rejection is one measurement that was not taken. Index counts the measurements
// over all reports of the call, from 0. The first thousand of a reason have a message of their own.
type Rejection struct {
	Index   int
	Reason  Reason
	Message string
}

// messages makes those of rejections. The zero value has made none.
type messages map[Reason]int

const (
	// maxMessages are made for one reason in one call. Nobody reads more, and what a message takes is many times what the
	// measurement takes that it is about.
	maxMessages = 1000
	oneOfMany   = "as others before it"
)

func (m *messages) of(reason Reason, format string, args ...any) string {
	if *m == nil {
		*m = make(messages)
	}
	if (*m)[reason]++; (*m)[reason] > maxMessages {
		return oneOfMany
	}
	return fmt.Sprintf(format, args...)
}

// Result says what became of a call's measurements: each was accepted, and is
// durable, or is among the rejected.
type Result struct {
	Accepted int
	Rejected []Rejection
	// Overwritten are accepted samples of which nothing stays.
	Overwritten Overwritten
}

// Overwritten says how many accepted samples of a call another sample of the same series and millisecond replaced in the
// same commit, with another value. A store keeps one sample of a series in a millisecond, so this is no error; but a sender
// whose points lie closer, or two senders that use the same series, lose data by it.
type Overwritten struct {
	Samples int
	// Series, in Prometheus' notation, and TimeMs are those of one of them.
	Series string
	TimeMs int64
}

// ErrBusy says that the queue is full: nothing was taken, try again later.
var ErrBusy = errors.New("too many samples are waiting to be written")
