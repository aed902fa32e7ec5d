package wire

// Status is the reply of /api/v1/status/aggregation: the state of aggregation and its recent history.
type Status struct {
	// ClockDoubt says why nothing is written, ground or expired by the clock. It is absent while the clock is right.
	ClockDoubt string `json:"clock_doubt,omitempty"`
	// Unread is absent while all can be read.
	Unread []string `json:"unread,omitempty"`

	Levels  []Level  `json:"levels"`
	Buckets []Bucket `json:"buckets"`
	Runs    []Run    `json:"runs"`
	// Packing is absent until a worker has begun to pack.
	Packing *Packing `json:"packing,omitempty"`
	Workers []Worker `json:"workers"`
	Shards  []Shard  `json:"shards"`
	Errors  []Fault  `json:"errors"`
	// Unkept is what senders lose without learning of it, absent in a process that does not ingest.
	Unkept []Unkept `json:"unkept,omitempty"`
}

// Unkept is what one sender lost without learning of it.
type Unkept struct {
	Path    string `json:"path"`
	Sender  string `json:"sender"`
	Reason  string `json:"reason"`
	Count   int64  `json:"count"` // since this process started
	Last    int64  `json:"last"`
	Message string `json:"message"`
}

// Level is a bucket and how long it is kept.
type Level struct {
	Level string `json:"level"`
	// WidthSeconds is the time that a row covers, 0 for raw.
	WidthSeconds float64 `json:"width_seconds"`
	// RetentionSeconds is how long rows are kept, 0 for ever.
	RetentionSeconds float64 `json:"retention_seconds"`
	// WholeFrom is the time from which all rows exist: earlier rows may have expired. It is absent
	// if rows never expire.
	WholeFrom *int64 `json:"whole_from,omitempty"`
}

// Bucket is the work that is left for one bucket.
type Bucket struct {
	Bucket      string  `json:"bucket"`
	Outstanding []Slice `json:"outstanding"`
	// Waiting is absent unless requested.
	Waiting    *[]Slice `json:"waiting,omitempty"`
	LagSeconds float64  `json:"lag_seconds"`
}

// Slice is a slice that has something left to grind.
type Slice struct {
	Slice int64 `json:"slice"`
	Marks int   `json:"marks"`
}

// Run is one run.
type Run struct {
	Bucket       string  `json:"bucket"`
	Slice        int64   `json:"slice"`
	Worker       string  `json:"worker"`
	Started      int64   `json:"started"`
	Seconds      float64 `json:"seconds"`
	Blocks       int     `json:"blocks"`
	Schedules    int     `json:"schedules"`
	BlockQueries int     `json:"block_queries"`
	IndexQueries int     `json:"index_queries"`
	Late         int     `json:"late"`
	Rescheduled  int     `json:"rescheduled"`
	Dropped      int     `json:"dropped"`
	Error        string  `json:"error,omitempty"`
}

// Packing is how many slices of raw have been packed.
type Packing struct {
	// Slices is the number of slices that raw has in whole and that have ended, Left how many of them are left in
	// the shard that is least far.
	Slices int `json:"slices"`
	Left   int `json:"left"`
}

// Worker is a process that shares the store.
type Worker struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	Started int64  `json:"started"`
	Seen    int64  `json:"seen"`
	// Aggregates means that the worker takes a share of the shards.
	Aggregates bool `json:"aggregates"`
}

// Shard is a shard of the index.
type Shard struct {
	Shard  int    `json:"shard"`
	Worker string `json:"worker"` // the worker whose share it is
	// The lease, absent if nobody holds it.
	Owner   string `json:"owner,omitempty"`
	Fence   int64  `json:"fence,omitempty"`
	Expires int64  `json:"expires,omitempty"`
}

// Fault is an error of a component.
type Fault struct {
	Component string `json:"component"`
	Worker    string `json:"worker"`
	Time      int64  `json:"time"`
	Bucket    string `json:"bucket"`
	Slice     int64  `json:"slice"`
	// Start is the block's first schedule id, absent if the error concerns no block.
	Start   *int64 `json:"start,omitempty"`
	Message string `json:"message"`
}
