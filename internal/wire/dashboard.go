package wire

import "encoding/json"

// The values of Error.ErrorType at the endpoints of dashboards.
const (
	BadData     = "bad_data"
	NotFound    = "not_found"
	Conflict    = "conflict"
	Forbidden   = "forbidden"
	Unavailable = "unavailable"
	Internal    = "internal"
)

// Data is the reply to a request that succeeds, in the form of Prometheus' API.
type Data[T any] struct {
	Status string `json:"status"`
	Data   T      `json:"data"`
}

// DashboardHead is a dashboard in the list of all, or a version in the list of those that are kept.
type DashboardHead struct {
	ID    string `json:"id,omitempty"` // not in a list of versions
	Title string `json:"title"`
	// Version is 0 for a dashboard that is not stored.
	Version int64 `json:"version"`
	// Updated is 0 where nobody knows.
	Updated int64  `json:"updated"`
	Author  string `json:"author"`
	// Origin is empty for what is stored, or "built in", or the name of a file.
	Origin  string `json:"origin"`
	Bytes   int    `json:"bytes"`
	Deleted bool   `json:"deleted,omitempty"`
	// Problem is why what is there now cannot be used.
	Problem string `json:"problem,omitempty"`
}

// Dashboard is a dashboard with its content.
type Dashboard struct {
	ID        string          `json:"id"`
	Version   int64           `json:"version"`
	Updated   int64           `json:"updated"`
	Author    string          `json:"author"`
	Origin    string          `json:"origin"`
	Problem   string          `json:"problem,omitempty"`
	Dashboard json.RawMessage `json:"dashboard"`
}

// DocumentVersion is the reply to a put, or to a deletion, of a dashboard or a group.
type DocumentVersion struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
}
