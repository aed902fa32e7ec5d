package wire

// The states of a slice.
const (
	// SliceOpen has begun and not ended.
	SliceOpen = "open"
	// SliceAhead begins after now: it was opened by a clock that was ahead, or by samples from the future.
	SliceAhead = "ahead"
	// SliceOutstanding has ended and is not ground.
	SliceOutstanding = "outstanding"
	// SliceComplete is ground.
	SliceComplete = "complete"
	// SliceLate is ground, and late data waits to be ground.
	SliceLate = "late"
	// SlicePartial is ground, and its runs have given up work whose input had expired.
	SlicePartial = "partial"
	// SliceExpired is not ground, and its input has expired, at least in part.
	SliceExpired = "expired"
)

// Slices is the reply of SlicesPath: the time line of each bucket that is ground, finest first.
type Slices struct {
	Buckets []BucketSlices `json:"buckets"`
	// RunsSince is absent if all runs that the store keeps are known. Otherwise those that began before it are not.
	RunsSince *int64 `json:"runs_since,omitempty"`
	// Unread is absent while all can be read.
	Unread []string `json:"unread,omitempty"`
}

// BucketSlices are the slices of a bucket that overlap [Start, End), by start. Where there is no slice, none is on
// record: nothing came, or its record has been removed.
type BucketSlices struct {
	Bucket string       `json:"bucket"`
	Start  int64        `json:"start"`
	End    int64        `json:"end"`
	Slices []SliceState `json:"slices"`
	// Unknown are the times whose slices cannot be read, absent if there are none.
	Unknown []Range `json:"unknown,omitempty"`
}

// Range is [Start, End).
type Range struct {
	Start int64 `json:"start"`
	End   int64 `json:"end"`
}

// SliceState is what the store has on record of a slice.
type SliceState struct {
	Start int64  `json:"start"`
	End   int64  `json:"end"`
	State string `json:"state"`
	// Begun says that a run has begun, Expired that the input of the slice has expired, at least in part.
	Begun   bool `json:"begun"`
	Expired bool `json:"expired"`
	// Marks is what waits to be ground of the slice's data, Late the part of it that waits for another slice's run.
	// RunAt is when the last of it is ground, absent if nothing waits.
	Marks int    `json:"marks"`
	Late  int    `json:"late"`
	RunAt *int64 `json:"run_at,omitempty"`
	// Runs are the runs of the slice that are known. RunsUnknown says that there may have been others. The numbers below
	// are sums over the runs, Queries of both kinds, and Worker is that of the last one.
	Runs        int     `json:"runs"`
	RunsUnknown bool    `json:"runs_unknown,omitempty"`
	Blocks      int     `json:"blocks"`
	Schedules   int     `json:"schedules"`
	Queries     int     `json:"queries"`
	NPlus1      int     `json:"n_plus_1"` // the queries that a schema by single schedules needs
	Dropped     int     `json:"dropped"`
	Duration    float64 `json:"duration"` // seconds
	Worker      string  `json:"worker"`
	// Errors are the last errors, oldest first, absent if there are none.
	Errors []string `json:"errors,omitempty"`
}
