// Package wire declares what Quern's HTTP API says in JSON, once for the server, for its clients and for the tests.
// Scripts rely on the names. Times are in Unix ms.
//
// Large replies, such as exports, are encoded without these types: by the handler, line by line. The types are what
// clients decode.
package wire

// The values of Error.Status, and of what a line says of the request.
const (
	Success = "success"
	Failure = "error"
)

// Done is the reply to a request that needs no more words.
type Done struct {
	Status string `json:"status"`
}

// Reload is the reply to a reload.
type Reload struct {
	Status string `json:"status"`
	// Changed are the options that have changed, by name.
	Changed []string `json:"changed"`
	// NeedsRestart are those that have changed in the file only.
	NeedsRestart []string `json:"needs_restart"`
}

// Error is the reply to a request that fails, and the last line of one that fails in the middle.
// The status serves clients of Prometheus' API, whose errors have one.
type Error struct {
	Status string `json:"status"`
	// ErrorType is one stable word, where an endpoint says it.
	ErrorType string `json:"errorType,omitempty"`
	Error     string `json:"error"`
	// Newest is the number of the newest version, where a request was for an earlier one.
	Newest *int64 `json:"newest,omitempty"`
}

// Failure returns what went wrong, nothing for a line that says no such thing.
func (e *Error) Failure() string {
	if e.Status != Failure {
		return ""
	}
	return e.Error
}

// Report is the reply to measurement reports whose body was decoded.
type Report struct {
	// Status is "error" if Error is set.
	Status   string      `json:"status,omitempty"`
	Error    string      `json:"error,omitempty"`
	Accepted int         `json:"accepted"`
	Rejected []Rejection `json:"rejected"`
	// RejectedTotal is set if the list was truncated.
	RejectedTotal int `json:"rejected_total,omitempty"`
}

// Rejection is a measurement that was not accepted.
type Rejection struct {
	Index int `json:"index"`
	// Reason is one stable word.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Import is the reply to an import.
type Import struct {
	// Status is "error" if Error is set.
	Status   string `json:"status,omitempty"`
	Error    string `json:"error,omitempty"`
	Accepted int64  `json:"accepted"`
	// Annotations is the number of annotations that are durable.
	Annotations int64            `json:"annotations,omitempty"`
	Rejected    []RejectedOfLine `json:"rejected"`
	// RejectedTotal counts the samples that were rejected.
	RejectedTotal int64 `json:"rejected_total,omitempty"`
	// Malformed lists the first malformed lines; MalformedTotal counts all of them.
	Malformed      []MalformedLine `json:"malformed,omitempty"`
	MalformedTotal int64           `json:"malformed_total,omitempty"`
	// Lines is the number of processed lines: all their samples are durable or rejected, or the
	// line is malformed.
	Lines int `json:"lines"`
}

// MalformedLine is a line that is dropped as a whole.
type MalformedLine struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

// RejectedOfLine counts the samples of a line that were rejected for one reason.
type RejectedOfLine struct {
	Line    int    `json:"line"`
	Reason  string `json:"reason"`
	Message string `json:"message"` // of the first sample
	Samples int64  `json:"samples"`
}

// Samples is a line of an export, which an import accepts.
type Samples struct {
	Metric     map[string]string `json:"metric"`
	Values     []Value           `json:"values"`
	Timestamps []int64           `json:"timestamps"`
}

// Row is a line of /api/v1/rollups.
type Row struct {
	Metric   map[string]string `json:"metric"`
	Time     int64             `json:"time"`
	Count    uint64            `json:"count"`
	Sum      Value             `json:"sum"`
	Min      Value             `json:"min"`
	Max      Value             `json:"max"`
	Avg      Value             `json:"avg"`
	First    Value             `json:"first"`
	Last     Value             `json:"last"`
	FirstMs  int64             `json:"first_time"`
	LastMs   int64             `json:"last_time"`
	Increase Value             `json:"increase"`
	P50      Value             `json:"p50"`
	P90      Value             `json:"p90"`
	P99      Value             `json:"p99"`
	Partial  bool              `json:"partial"`
}
