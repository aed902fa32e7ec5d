// Package reaggregate has slices ground again. It puts late marks for all series that a selector
// names, and the next run does the rest, as after late data.
//
//  1. A slice that is not closed gets no mark: it will be ground anyway.
//  2. A slice whose raw samples may have expired in part by the time of that run gets none: its rows are better than
//     what could be computed from what is left.
//  3. A series without samples in a slice keeps the row that it has, unless it is asked for to be
//     taken back: raw may have lost samples, or never have had those that a migrated row is of.
//  4. Bounded: one batch of marks is in memory at a time, and the ids of the series. Who asks again
//     for what has not been ground since adds no marks.
package reaggregate

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

const (
	// batchMarks and batchSchedules bound one write: about what a flush of ingest writes.
	batchMarks     = 1000
	batchSchedules = 1 << 16
	// maxBlocks bounds one request: a run can read and delete that many marks in a few minutes.
	maxBlocks = 4_000_000
)

// Progress is how far a request is. A block of PBS schedules counts once for each slice.
type Progress struct {
	// Done of Total have been looked at. Each is counted in Blocks if it was marked, and otherwise
	// in Skipped.
	Done    int64 `json:"done"`
	Total   int64 `json:"total"`
	Blocks  int64 `json:"blocks"`
	Skipped int64 `json:"skipped"`
}

// Summary is the outcome of a request.
type Summary struct {
	Progress
	Series int    `json:"series"`
	Slices Slices `json:"slices"`
	// Rows says when the rows of each level will have been computed again, finest level first. It
	// is empty if nothing was marked.
	Rows []Rows `json:"rows"`
}

// Reply is a line of the reply to a request. Lines of progress have no status. The last line has one: success, with the
// summary, or error.
type Reply struct {
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	Summary
}

// Slices counts the raw slices of the range by outcome.
type Slices struct {
	Marked int64 `json:"marked"`
	// NotClosed slices will be ground anyway.
	NotClosed int64 `json:"not_closed"`
	// Expired slices keep their rows.
	Expired int64 `json:"expired"`
}

// Rows is the time by which a level's rows are there.
type Rows struct {
	Level string `json:"level"`
	By    int64  `json:"by"`
}

// Reaggregator puts the marks. It is safe for concurrent use.
type Reaggregator struct {
	Parts
	ladder metric.Ladder
}

// Parts are what a Reaggregator works with. All are required.
type Parts struct {
	Store storage.Store
	Index *query.Index
	// Cache must be the process's only one over the store.
	Cache *cache.Cache
	Clock clock.Clock
	// Logger receives each request, since it gives the next run more to do.
	Logger *slog.Logger
}

// New makes a Reaggregator for the series of an index.
func New(p Parts) *Reaggregator {
	return &Reaggregator{Parts: p, ladder: p.Store.Settings().Ladder}
}

// Run marks what the selectors name in the raw slices that touch [startMs, endMs). With takeBack,
// rows of series without samples there are taken back, at each level. Run calls tell with the
// progress after each batch; an error of tell ends the request. What was marked by then stays
// marked, and a repeat does no harm. The error may be a *query.RequestError.
func (r *Reaggregator) Run(
	ctx context.Context, sels []query.Selector, startMs, endMs int64, takeBack bool, tell func(Progress) error,
) (Summary, error) {
	kind := storage.MarkLate
	if takeBack {
		kind = storage.MarkTakeBack
	}
	now := clock.NowMs(r.Clock)
	// The range ends with the current slice: all later slices are not closed either.
	endMs = min(endMs, r.ladder.SliceAt(metric.Raw, now).EndMs)
	if startMs >= endMs {
		return Summary{}, &query.RequestError{Message: "start must be before end, and not in the future"}
	}
	if err := r.Index.Unread(); err != nil {
		return Summary{}, err // the selectors may match some of these series
	}
	ids, err := r.Index.Select(ctx, sels...)
	if err != nil {
		return Summary{}, err
	}
	j := &job{
		Reaggregator: r, epochs: r.Store.Settings().Epochs, ids: ids, kind: kind, tell: tell,
		width: r.ladder.WidthMs(metric.Raw + 1), perSlice: map[int]int64{},
	}
	j.Series = len(j.ids)
	j.Rows = []Rows{}
	if j.Series == 0 {
		return j.Summary, nil
	}
	first := r.ladder.SliceAt(metric.Raw, startMs).StartMs
	end := r.ladder.SliceAt(metric.Raw, endMs-1).EndMs
	// Expired slices are only counted, however far back the range begins.
	kept := min(max(first, r.KeptFrom(now)), end)
	j.Total = j.count(first, end)
	if n := j.Total - j.count(first, kept); n > maxBlocks {
		return Summary{}, &query.RequestError{Message: fmt.Sprintf(
			"the request covers %d blocks of series and hours, more than the limit of %d: ask for less time or fewer series at once",
			n, maxBlocks)}
	}
	defer func() {
		r.Logger.Info("marked slices to be ground again", "from", metric.Slice{StartMs: first}, "to", metric.Slice{StartMs: end}, "series", j.Series, "blocks", j.Blocks)
	}()
	j.skip(&j.Slices.Expired, first, kept)
	for start := kept; start < end; start += j.width {
		if err := j.slice(ctx, r.ladder.SliceAt(metric.Raw, start)); err != nil {
			return Summary{}, err
		}
	}
	if err := j.put(ctx); err != nil {
		return Summary{}, err
	}
	if j.Blocks > 0 {
		j.Rows = r.rows(r.ladder.SliceAt(metric.Raw, kept))
	}
	return j.Summary, nil
}

// KeptFrom is the start of the first raw slice whose rows can still be computed again by marks that
// are put at nowMs. Rows of earlier slices stay as they are.
func (r *Reaggregator) KeptFrom(nowMs int64) int64 { return r.Cache.KeptFrom(metric.Raw, nowMs) }

// rows returns when the rows of all levels are there, for marks that have been put by now. Those of
// the oldest slice come last.
func (r *Reaggregator) rows(oldest metric.Slice) []Rows {
	in := r.ladder.SliceAt(metric.Raw, clock.NowMs(r.Clock))
	var out []Rows
	for i, at := range r.Cache.Climb(metric.Raw, oldest, in) {
		out = append(out, Rows{Level: r.ladder.Name(metric.Bucket(i + 1)), By: at})
	}
	return out
}

// job is one request under way.
type job struct {
	*Reaggregator
	Summary
	epochs blocks.Epochs
	ids    []metric.ScheduleID
	kind   storage.MarkKind
	tell   func(Progress) error
	width  int64
	// perSlice is the number of blocks in a slice, by block size.
	perSlice map[int]int64

	marks     []storage.Mark
	schedules int
}

// slice marks the blocks of one slice, or counts why it does not.
func (j *job) slice(ctx context.Context, s metric.Slice) error {
	now := clock.NowMs(j.Clock) // time passes during a request
	switch {
	case s.StartMs < j.KeptFrom(now):
		j.skip(&j.Slices.Expired, s.StartMs, s.EndMs)
		return nil
	case !j.Cache.Timing().Closed(s, now):
		j.skip(&j.Slices.NotClosed, s.StartMs, s.EndMs)
		return nil
	}
	j.Slices.Marked++
	for ids := j.ids; len(ids) > 0; {
		block := j.epochs.BlockAt(ids[0], s.StartMs)
		n, _ := slices.BinarySearch(ids, block.End)
		m := storage.Mark{
			Start: block.Start, TimeMs: s.StartMs, ID: markID(s.StartMs, j.kind, ids[:n]), Kind: j.kind, Schedules: ids[:n:n],
		}
		j.marks = append(j.marks, m)
		j.schedules += len(m.Schedules)
		ids = ids[n:]
		if len(j.marks) >= batchMarks || j.schedules >= batchSchedules {
			if err := j.put(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// markID derives the ID of a mark from what it asks for of a block and slice. So a request that is
// repeated before the slice is ground writes the same mark.
func markID(sliceMs int64, kind storage.MarkKind, ids []metric.ScheduleID) blocks.ID {
	key := []byte{byte(kind)}
	for _, id := range ids {
		key = binary.BigEndian.AppendUint64(key, uint64(id))
	}
	return blocks.KeyID(sliceMs, xxhash.Sum64(key))
}

// put writes the batch.
func (j *job) put(ctx context.Context) error {
	if err := j.Cache.Put(ctx, 0, metric.Raw, j.marks); err != nil {
		return err
	}
	j.Blocks += int64(len(j.marks))
	j.Done += int64(len(j.marks))
	j.marks, j.schedules = j.marks[:0], 0
	return j.tell(j.Progress)
}

// skip counts the slices that start in [fromMs, toMs).
func (j *job) skip(slices *int64, fromMs, toMs int64) {
	n := j.count(fromMs, toMs)
	j.Skipped += n
	j.Done += n
	*slices += (toMs - fromMs) / j.width
}

// count is the number of blocks in the slices that start in [fromMs, toMs). A block counts once for
// each slice.
func (j *job) count(fromMs, toMs int64) int64 {
	total := int64(0)
	for i, e := range j.epochs {
		from, to := fromMs, toMs
		if i > 0 {
			from = max(from, e.FromMs)
		}
		if i+1 < len(j.epochs) {
			to = min(to, j.epochs[i+1].FromMs)
		}
		if from < to {
			total += (to - from) / j.width * j.blocks(e.BlockSize)
		}
	}
	return total
}

// blocks is the number of blocks of a size that the series fall into.
func (j *job) blocks(size int) int64 {
	if n, ok := j.perSlice[size]; ok {
		return n
	}
	n := int64(0)
	for ids := j.ids; len(ids) > 0; n++ {
		i, _ := slices.BinarySearch(ids, blocks.BlockAt(ids[0], size).End)
		ids = ids[i:]
	}
	j.perSlice[size] = n
	return n
}
