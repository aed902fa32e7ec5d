package wire

// Verification is a line of the reply of /api/v1/verify: how far it is, a difference, or, as the last one, the outcome.
// A verification that fails ends with an Error instead.
type Verification struct {
	Status     string      `json:"status,omitempty"` // Success in the last line
	Progress   *Verifying  `json:"progress,omitempty"`
	Difference *Difference `json:"difference,omitempty"`
	Verified   *Verified   `json:"verified,omitempty"`
}

// Verifying is how far a verification is, in windows of time.
type Verifying struct {
	Done  int `json:"done"`
	Total int `json:"total"`
}

// The kinds of a Difference.
const (
	Missing = "missing"
	Surplus = "surplus"
	Doubled = "doubled"
	Wrong   = "wrong"
	// Damaged is what cannot be read. It has a Message and nothing else.
	Damaged = "damaged"
)

// Difference is a row that is not what its samples say.
type Difference struct {
	Kind   string            `json:"kind"`
	Metric map[string]string `json:"metric,omitempty"`
	Level  string            `json:"level,omitempty"`
	// Start and End are the slice of the row.
	Start  int64             `json:"start,omitempty"`
	End    int64             `json:"end,omitempty"`
	Fields []DifferenceField `json:"fields,omitempty"`
	// Message is the warning about what is damaged.
	Message string `json:"message,omitempty"`
}

// DifferenceField is a field that differs, as texts. One of them is empty if there is no row, or if there are no samples.
type DifferenceField struct {
	// Name is the name of the field in /api/v1/rollups.
	Name    string `json:"name"`
	Row     string `json:"row"`
	Samples string `json:"samples"`
}

// Verified is the outcome of a verification.
type Verified struct {
	// Start and End are the range that was looked at, without what has expired or is not over.
	Start   int64           `json:"start"`
	End     int64           `json:"end"`
	Series  int             `json:"series"`
	Samples int             `json:"samples"`
	Levels  []VerifiedLevel `json:"levels"`
	// Damaged is the number of raw chunks that cannot be read; DamagedRows that of rows, or of their sketches.
	Damaged     int `json:"damaged"`
	DamagedRows int `json:"damaged_rows"`
	// Repaired is what is ground again, if that was asked for and anything differs.
	Repaired *Repaired `json:"repaired,omitempty"`
}

// VerifiedLevel counts the rows of a level.
type VerifiedLevel struct {
	Level string `json:"level"`
	// Compared rows were compared with their samples, and Different ones are wrong.
	Compared  int `json:"compared"`
	Different int `json:"different"`
	// Pending rows differ, and something in their slice is still to be ground.
	Pending int `json:"pending"`
	// The others were not compared: see `quern verify`.
	NotGround  int `json:"not_ground"`
	Expired    int `json:"expired"`
	Unreadable int `json:"unreadable"`
}

// Repaired is what is ground again after a verification.
type Repaired struct {
	Series int `json:"series"`
	Slices int `json:"slices"`
	// Surplus rows have no samples, and stay.
	Surplus int `json:"surplus"`
	// Rows say from when on the rows of each level are right.
	Rows []RepairedRows `json:"rows"`
}

// RepairedRows says with which run the rows of a level are right.
type RepairedRows struct {
	Level string `json:"level"`
	// After is the end of the slice whose run it is.
	After int64 `json:"after"`
}
