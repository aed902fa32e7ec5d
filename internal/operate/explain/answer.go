package explain

import "math"

// The types below are also the external form: scripts rely on the names. Times are Unix ms.

// Answer describes the requested series.
type Answer struct {
	Time int64 `json:"time"`
	Now  int64 `json:"now"`
	// Matched is the number of series that match. The first of them by id are explained.
	Matched int      `json:"matched"`
	Series  []Series `json:"series"`
}

// Series is one series, with a level for each of its rows around the time, finest first.
type Series struct {
	Metric map[string]string `json:"metric"`
	// Schedule is absent for a client that is bound to some series: it tells how many there are.
	Schedule *int64  `json:"schedule,omitempty"`
	Source   string  `json:"source"`
	Levels   []Level `json:"levels"`
}

// withhold leaves out what tells how much others do: they share the numbers of schedules, the blocks and the runs.
func (s *Series) withhold() {
	s.Schedule = nil
	for i := range s.Levels {
		l := &s.Levels[i]
		l.Place, l.Runs, l.Input.Chunks = nil, nil, 0
		for j := range l.Marks {
			l.Marks[j].Chunks, l.Marks[j].Schedules = nil, nil
		}
	}
}

// The states of a slice.
const (
	NeverOpened = "never opened"
	Open        = "open"
	Complete    = "complete"
)

// Level is one row: what it is made of, how far its grinding is, and the conclusion.
type Level struct {
	Level string `json:"level"`
	Conclusion
	// Slice to SliceEnd is ground into the row, for the first time at RunAt.
	Slice    int64  `json:"slice"`
	SliceEnd int64  `json:"slice_end"`
	RunAt    int64  `json:"run_at"`
	State    string `json:"state"`
	// Place is nil, and its names are absent, for a client that is bound to some series.
	*Place

	Input Input `json:"input"`
	// Row is absent if there is no row.
	Row       *Row   `json:"row,omitempty"`
	Marks     []Mark `json:"marks"`
	MoreMarks int    `json:"more_marks,omitempty"`
	// Runs is absent for a client that is bound to some series.
	Runs   []Run   `json:"runs,omitzero"`
	Errors []Error `json:"errors"`
}

// Place is where a row is ground.
type Place struct {
	// Block to BlockEnd are the schedules that are ground together.
	Block    int64 `json:"block"`
	BlockEnd int64 `json:"block_end"`
	Shard    int   `json:"shard"`
	// Worker is the worker that the shard is assigned to, LeaseOwner the worker that holds it now;
	// empty for none.
	Worker     string `json:"worker"`
	LeaseOwner string `json:"lease_owner,omitempty"`
}

// Input is what the row is made of: samples for the finest level, rows of the level below for the
// others.
type Input struct {
	Bucket string `json:"bucket"`
	// Chunks is absent for a client that is bound to some series.
	Chunks int `json:"chunks,omitempty"`
	Rows   int `json:"rows,omitempty"`
	// Samples is the sum of Finite and NotFinite. Samples that were sent twice count once.
	Samples   int `json:"samples"`
	Finite    int `json:"finite"`
	NotFinite int `json:"not_finite"`
	// Damaged is the number of chunks or rows that cannot be decoded.
	Damaged int `json:"damaged,omitempty"`
	// Expires is when the retention of the input ends, absent for never.
	Expires int64 `json:"expires,omitempty"`
}

// Row is the stored row.
type Row struct {
	Count uint64 `json:"count"`
	// Sum is absent if it is infinite.
	Sum *float64 `json:"sum,omitempty"`
	Min float64  `json:"min"`
	Max float64  `json:"max"`
	// Partial says that samples may be missing, because raw chunks were damaged or input expired
	// before it was ground.
	Partial bool  `json:"partial,omitempty"`
	Expires int64 `json:"expires,omitempty"`
}

func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// Mark is outstanding work on the block, in the index of Slice, which is ground at RunAt.
type Mark struct {
	Kind  string `json:"kind"`
	Slice int64  `json:"slice"`
	RunAt int64  `json:"run_at"`
	// Chunks is the number of cache chunks that a fresh mark states. Schedules is the number of
	// schedules that the mark names, 0 for the whole block. Both are absent for a client that is bound to some series.
	Chunks    *int `json:"chunks,omitempty"`
	Schedules *int `json:"schedules,omitempty"`
	// Due is the earliest time at which the work could have been done.
	Due       int64  `json:"due"`
	Attempt   int    `json:"attempt"`
	LastError string `json:"last_error,omitempty"`
}

// Run is a recent run of the slice.
type Run struct {
	Worker      string  `json:"worker"`
	Started     int64   `json:"started"`
	Seconds     float64 `json:"seconds"`
	Blocks      int     `json:"blocks"`
	Rescheduled int     `json:"rescheduled"`
	Dropped     int     `json:"dropped"`
	Error       string  `json:"error,omitempty"`
}

// Error is a recent error about the block, in the run of Slice.
type Error struct {
	Time    int64  `json:"time"`
	Slice   int64  `json:"slice"`
	Worker  string `json:"worker"`
	Message string `json:"message"`
}
