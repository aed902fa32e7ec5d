// Package ingest is the one entry that every protocol feeds: it validates reports,
// finds their schedule ids, groups samples by (slice, block), and commits the
// groups together. A report is acknowledged only when its raw chunks, and marks
// that lead a run to them, are durable.
package ingest

import (
	"errors"
	"math"

	"github.com/quern/quern/internal/metric"
)

// NoTime as a measurement's time stands for the time of its arrival.
const NoTime int64 = math.MinInt64

// Measurement is one measured value as a protocol decoded it. Labels need not be
// sorted and do not hold the name or the source.
type Measurement struct {
	Metric string
	Labels []metric.Label
	// TimeMs is in Unix ms, or NoTime.
	TimeMs int64
	Value  float64
}

// Report is the measurements of one source.
type Report struct {
	Source       string
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
)

// reasons are all of them.
var reasons = []Reason{
	ReasonInvalidSource, ReasonInvalidMetric, ReasonInvalidLabel, ReasonInvalidValue,
	ReasonInvalidTime, ReasonTooOld, ReasonTooFarAhead, ReasonLimit,
}

// Rejection is one measurement that was not taken. Index counts the measurements
// over all reports of the call, from 0.
type Rejection struct {
	Index   int
	Reason  Reason
	Message string
}

// Result says what became of a call's measurements: each was accepted, and is
// durable, or is among the rejected.
type Result struct {
	Accepted int
	Rejected []Rejection
}

// ErrBusy says that the queue is full: nothing was taken, try again later.
var ErrBusy = errors.New("too many samples are waiting to be written")
