package wire

import "encoding/json"

// GroupHead is a group of metrics in the list of all.
type GroupHead struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Version int64  `json:"version"`
	Updated int64  `json:"updated"`
	Author  string `json:"author"`
}

// Group is a group of metrics with its content.
type Group struct {
	ID      string          `json:"id"`
	Version int64           `json:"version"`
	Updated int64           `json:"updated"`
	Author  string          `json:"author"`
	Group   json.RawMessage `json:"group"`
}
