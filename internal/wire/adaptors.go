package wire

// AdaptorsPath is the endpoint for the adaptors of an agent. One of them is at its ID below it.
const AdaptorsPath = "/rest/v2/adaptor"

// Adaptors is the answer of GET AdaptorsPath: what an agent runs, and what became of its samples since it started.
type Adaptors struct {
	Adaptors  []Adaptor `json:"adaptors"`
	Delivered uint64    `json:"delivered"`
	Rejected  uint64    `json:"rejected"` // by the server, one by one
	Refused   uint64    `json:"refused"`  // by the server, with their request
	Dropped   uint64    `json:"dropped"`  // by the spool
	Waiting   int       `json:"waiting"`  // in the spool
}

// Adaptor is one that an agent runs.
type Adaptor struct {
	ID      string     `json:"id"`
	Adaptor string     `json:"adaptor"` // its type, and what it reads
	Added   bool       `json:"added"`   // by a client; the others are in the file of the agent
	Samples uint64     `json:"samples"` // spooled since it began
	Rates   [3]float64 `json:"rates"`   // samples a second, averaged over 1, 5 and 10 minutes
	// Error is the latest, at Unix ms; empty if there was none.
	Error   string   `json:"error,omitempty"`
	ErrorMs int64    `json:"error_time,omitempty"`
	Streams []Stream `json:"streams"`
}

// Stream is one of an adaptor. Its offsets are ends: 100 if it has 100 bytes, or samples.
type Stream struct {
	Name         string `json:"name"`
	Offset       uint64 `json:"offset"`       // up to which it is in the spool
	Acknowledged uint64 `json:"acknowledged"` // up to which the server has it
}
