package wire

// Backup is a line of the reply of BackupPath: how far the backup is, or its end.
type Backup struct {
	Status string `json:"status,omitempty"` // Success or Failure in the last line
	Error  string `json:"error,omitempty"`
	Done   int    `json:"done"`  // files
	Total  int    `json:"total"` // files
	Name   string `json:"name,omitempty"`
	Bytes  int64  `json:"bytes"`
	Sent   int64  `json:"sent"` // bytes that the place did not have
}
