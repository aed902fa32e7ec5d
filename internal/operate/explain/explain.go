// Package explain says why a roll-up row is there, missing or late. It collects what the store
// knows of one series around one time, level by level, and draws the conclusion that an operator
// would.
//
//  1. It changes nothing.
//  2. Work under way never makes a row look wrong. Explain reads in the order in which a row is
//     made (samples, marks, row), and reads everything again before it calls a row missing or
//     different.
//  3. Bounded: a request reads a few series, keeps few of the marks that it finds, and refuses a
//     series with too many samples. It holds the samples of one slice of a series at a time, of the
//     memory that all queries have together.
package explain

import (
	"context"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

const (
	// MaxSeries is the maximum number of series per request.
	MaxSeries = 100
	// Limit is the default number of series to explain.
	Limit = 10

	keptMarks  = 20
	keptRuns   = 5
	lookedRuns = 200
	keptErrors = 5
)

// Explainer explains rows. It is safe for concurrent use.
type Explainer struct {
	Parts
	ladder metric.Ladder
	// maxSamples is the number of samples of one slice that a request may hold.
	maxSamples int
}

// Parts are what an Explainer works with. All are required.
type Parts struct {
	Store    storage.Store
	Index    *query.Index
	Cache    *cache.Cache
	Recovery *recovery.Recovery
	Clock    clock.Clock
}

// New returns an Explainer for the series of an index. It refuses a series that has more than
// maxSamples in the slice of a row.
func New(p Parts, maxSamples int) *Explainer {
	return &Explainer{Parts: p, ladder: p.Store.Settings().Ladder, maxSamples: maxSamples}
}

// Explain explains the rows around atMs, in Unix ms, of the first series by id that match any of
// the selectors.
func (x *Explainer) Explain(ctx context.Context, sels []query.Selector, atMs int64, limit int) (Answer, error) {
	const year9999 = 253_402_300_799_999
	if atMs < -62_135_596_800_000 || atMs > year9999 {
		return Answer{}, &query.RequestError{Message: "time must lie in the years 1 to 9999"}
	}
	ids, err := x.Index.Select(ctx, sels...)
	if err != nil {
		return Answer{}, err
	}
	out := Answer{Time: atMs, Now: clock.NowMs(x.Clock), Matched: len(ids), Series: []Series{}}
	ids = ids[:min(limit, len(ids))]
	if len(ids) == 0 {
		return out, nil
	}
	around, err := x.look(ctx)
	if err != nil {
		return Answer{}, err
	}
	for _, id := range ids {
		s, again, err := x.series(ctx, id, atMs, around)
		if err == nil && again {
			if around, err = x.look(ctx); err == nil {
				s, _, err = x.series(ctx, id, atMs, around)
			}
		}
		if err != nil {
			return Answer{}, err
		}
		out.Series = append(out.Series, s)
	}
	return out, nil
}

// around holds what is the same for all series.
type around struct {
	runs    []storage.Run
	errs    []storage.ComponentError
	workers []string // by shard
	leases  map[int]storage.Lease
}

// withheld replaces the text of an error about a block or a run for a request that may not have all series: the text may
// name the others.
const withheld = "shown to clients that may see all series"

func withhold(text *string) {
	if *text != "" {
		*text = withheld
	}
}

func (x *Explainer) look(ctx context.Context) (*around, error) {
	a := &around{leases: map[int]storage.Lease{}}
	var err error
	if a.runs, err = storage.RecentRuns(ctx, x.Store, lookedRuns); err != nil {
		return nil, err
	}
	if a.errs, err = storage.RecentErrors(ctx, x.Store); err != nil {
		return nil, err
	}
	if bound.FromContext(ctx) != nil {
		a.errs = nil
		for i := range a.runs {
			withhold(&a.runs[i].Err)
		}
	}
	workers, err := storage.Workers(ctx, x.Store)
	if err != nil {
		return nil, err
	}
	a.workers = shards.Assign(workers, x.Store.Settings().IndexPartitions)
	leases, err := x.Store.Leases(ctx)
	for _, l := range leases {
		a.leases[l.Shard] = l
	}
	return a, err
}

// found is what the store holds of one series at one level.
type found struct {
	level, bucket metric.Bucket // the slice of bucket is ground into the level's row
	slice         metric.Slice
	block         blocks.Range
	shard         int
	answer        Level
	// should is the roll-up of the input. ok is false if no sample is finite.
	should metric.Rollup
	ok     bool
	row    metric.Rollup
	hasRow bool
	// gap says that the row only says that samples may be missing. damaged says that the row cannot
	// be decoded.
	gap, damaged bool
	// partial is the time of the first partial row below, gaps included; 0 for none.
	partial int64
	marks   []placed
	// below is the earliest run of a lower level whose result reaches this row.
	below *below
}

func (f *found) done() bool { return f.answer.State == Complete }

// placed is a mark and the slice whose index holds it.
type placed struct {
	storage.Mark
	in metric.Slice
}

// below is work on a lower level.
type below struct {
	level metric.Bucket
	slice metric.Slice
	runAt int64
	byMs  int64 // when the row in question follows
}

// series explains one series. again says that something looks wrong, so that the caller reads once
// more.
func (x *Explainer) series(ctx context.Context, id metric.ScheduleID, atMs int64, a *around) (s Series, again bool, err error) {
	labels := x.Index.Labels(id)
	s = Series{Metric: map[string]string{}, Schedule: (*int64)(&id), Source: labels.Get(metric.SourceLabel)}
	for _, l := range labels {
		s.Metric[l.Name] = l.Value
	}
	now := clock.NowMs(x.Clock)
	var levels []*found
	for _, level := range x.ladder.Levels() {
		f := x.begin(id, level, atMs, a)
		if err := x.readInput(ctx, id, f); err != nil {
			return s, false, err
		}
		levels = append(levels, f)
	}
	if err := x.readMarks(ctx, id, levels); err != nil {
		return s, false, err
	}
	for _, f := range levels {
		if err := x.readRow(ctx, id, f); err != nil {
			return s, false, err
		}
		f.answer.Conclusion = x.conclude(f, a, now)
		again = again || f.answer.Verdict == Missing || f.answer.Verdict == Differs
		s.Levels = append(s.Levels, f.answer)
	}
	if bound.FromContext(ctx) != nil {
		s.withhold()
	}
	return s, again, nil
}

// begin begins what is found of a level, with what is known of the slice around a time.
func (x *Explainer) begin(id metric.ScheduleID, level metric.Bucket, atMs int64, a *around) *found {
	bucket, set := level-1, x.Store.Settings()
	slice := x.ladder.SliceAt(bucket, atMs)
	block := set.Epochs.BlockAt(id, slice.StartMs)
	shard := blocks.ShardOf(block.Start, set.IndexPartitions)
	l := Level{
		Level: x.ladder.Name(level), Slice: slice.StartMs, SliceEnd: slice.EndMs, RunAt: x.Cache.Timing().RunAtMs(slice), State: NeverOpened,
		Place: &Place{
			Block: int64(block.Start), BlockEnd: int64(block.End), Shard: shard, Worker: a.workers[shard], LeaseOwner: a.leases[shard].Owner,
		},
		Input: Input{Bucket: x.ladder.Name(bucket), Expires: set.Policy.Retention.Until(bucket, slice.StartMs)},
		Marks: []Mark{}, Runs: []Run{}, Errors: []Error{},
	}
	for _, r := range a.runs {
		if r.Bucket == bucket && r.StartMs == slice.StartMs && len(l.Runs) < keptRuns {
			l.Runs = append(l.Runs, Run{
				Worker: r.Worker, Started: r.StartedMs, Seconds: r.Duration.Seconds(), Blocks: r.Blocks,
				Rescheduled: r.Rescheduled, Dropped: r.Dropped, Error: r.Err,
			})
		}
	}
	for _, e := range a.errs {
		if e.Bucket == bucket && e.Start == block.Start && len(l.Errors) < keptErrors {
			l.Errors = append(l.Errors, Error{Time: e.TimeMs, Slice: e.StartMs, Worker: e.Worker, Message: e.Message})
		}
	}
	return &found{level: level, bucket: bucket, slice: slice, block: block, shard: shard, answer: l}
}

// one returns the range of a single schedule.
func one(id metric.ScheduleID) blocks.Range { return blocks.Range{Start: id, End: id + 1} }

// readInput reads the input of the row, and computes the row.
func (x *Explainer) readInput(ctx context.Context, id metric.ScheduleID, f *found) error {
	var g rollup.Grinder
	if f.bucket == metric.Raw {
		var set blocks.SampleSet
		set.Reset(one(id))
		for ch, err := range x.Store.RawChunks(ctx, one(id), f.slice.StartMs, f.slice.EndMs) {
			if err != nil {
				return fmt.Errorf("read raw samples of series %d: %w", id, err)
			}
			before := set.Added()
			if set.Add(ch.Data) != nil {
				f.answer.Input.Damaged++
			} else if set.Added() > before {
				f.answer.Input.Chunks++
			}
			if set.Distinct() > x.maxSamples {
				return &query.RequestError{Message: fmt.Sprintf("%s has more than %d samples in the slice of %s, the most that a request may hold (--query-max-samples)",
					x.Index.Labels(id), x.maxSamples, f.slice)}
			}
		}
		for _, samples := range set.Series() {
			samples = slices.DeleteFunc(samples, func(s metric.Sample) bool { return metric.IsTombstone(s.Value) })
			f.should, f.ok = g.Samples(samples)
			f.answer.Input.Samples = len(samples)
			f.answer.Input.Finite = int(f.should.Count)
			f.answer.Input.NotFinite = len(samples) - f.answer.Input.Finite
		}
		return nil
	}
	var rows []metric.RollupRow
	for r, err := range x.Store.Rollups(ctx, f.bucket, one(id), f.slice.StartMs, f.slice.EndMs) {
		if err != nil {
			return fmt.Errorf("read %s rows of series %d: %w", x.ladder.Name(f.bucket), id, err)
		}
		if r.Schedule != id {
			continue
		}
		if r.Damaged {
			r.Rollup = metric.Rollup{Partial: true}
			f.answer.Input.Damaged++
		}
		rows = append(rows, r)
	}
	for _, r := range rows {
		if r.Count > 0 {
			f.answer.Input.Rows++
		}
		if r.Partial && f.partial == 0 {
			f.partial = r.TimeMs
		}
		f.answer.Input.Finite += int(r.Count)
	}
	f.answer.Input.Samples = f.answer.Input.Finite
	var err error
	if f.should, f.ok, err = g.Rollups(rows); err != nil {
		f.answer.Input.Damaged++
	}
	return nil
}

func (x *Explainer) readRow(ctx context.Context, id metric.ScheduleID, f *found) error {
	for r, err := range x.Store.Rollups(ctx, f.level, one(id), f.slice.StartMs, f.slice.StartMs+1) {
		if err != nil {
			return fmt.Errorf("read the %s row of series %d: %w", x.ladder.Name(f.level), id, err)
		}
		// A row without samples takes an earlier row back, or says that there may have been one.
		if r.Schedule == id {
			f.row, f.hasRow, f.gap, f.damaged = r.Rollup, r.Count > 0, r.Count == 0 && r.Partial, r.Damaged
		}
	}
	if f.hasRow {
		f.answer.Row = &Row{
			Count: f.row.Count, Sum: finite(f.row.Sum), Min: f.row.Min, Max: f.row.Max, Partial: f.row.Partial,
			Expires: x.Store.Settings().Policy.Retention.Until(f.level, f.slice.StartMs),
		}
	}
	return nil
}

// readMarks looks for outstanding work in all open slices. It reads the oldest first, since work
// that is put off moves from an older slice to a younger one.
func (x *Explainer) readMarks(ctx context.Context, id metric.ScheduleID, levels []*found) error {
	open, err := x.Recovery.Outstanding(ctx)
	if err != nil {
		return err
	}
	for _, f := range levels {
		states, err := x.Store.Slices(ctx, f.bucket, f.slice.StartMs, f.slice.StartMs+1)
		if err != nil {
			return err
		}
		for _, st := range states {
			if f.answer.State = Open; st.Complete {
				f.answer.State = Complete
			}
			if !st.Complete && !slices.Contains(open, st.SliceKey) {
				open = append(open, st.SliceKey) // ahead of the clock
			}
		}
	}
	// The widest slice contains all others, so its blocks give all the shards to read.
	widest := levels[len(levels)-1].slice
	for _, k := range open {
		for _, shard := range x.shardsOf(id, widest) {
			for m, err := range x.Store.Marks(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}, storage.MarkKey{}, 0) {
				if err != nil {
					return fmt.Errorf("read the index of %s slice %s: %w", x.ladder.Name(k.Bucket), x.ladder.SliceAt(k.Bucket, k.StartMs), err)
				}
				if bound.FromContext(ctx) != nil {
					withhold(&m.LastError)
				}
				x.sort(id, levels, k, m)
			}
		}
	}
	return nil
}

// shardsOf returns the shards that may hold marks of a series, for any slice within the given one.
func (x *Explainer) shardsOf(id metric.ScheduleID, within metric.Slice) []int {
	set := x.Store.Settings()
	out := []int{blocks.ShardOf(set.Epochs.BlockAt(id, within.StartMs).Start, set.IndexPartitions)}
	for _, e := range set.Epochs {
		if within.Contains(e.FromMs) {
			out = append(out, blocks.ShardOf(blocks.BlockAt(id, e.BlockSize).Start, set.IndexPartitions))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sort assigns a mark to the levels that it concerns.
func (x *Explainer) sort(id metric.ScheduleID, levels []*found, k storage.SliceKey, m storage.Mark) {
	slice := x.ladder.SliceAt(k.Bucket, m.TimeMs)
	if m.Start != x.Store.Settings().Epochs.BlockAt(id, slice.StartMs).Start {
		return
	}
	if _, named := slices.BinarySearch(m.Schedules, id); !named && len(m.Schedules) > 0 {
		return
	}
	in := x.ladder.SliceAt(k.Bucket, k.StartMs)
	for _, f := range levels {
		switch {
		case k.Bucket == f.bucket && slice == f.slice:
			if len(f.marks) == keptMarks {
				f.answer.MoreMarks++
				continue
			}
			f.marks = append(f.marks, placed{m, in})
			f.answer.Marks = append(f.answer.Marks, Mark{
				Kind: m.Kind.String(), Slice: in.StartMs, RunAt: x.Cache.Timing().RunAtMs(in), Chunks: &m.Chunks,
				Schedules: new(len(m.Schedules)), Due: m.DueMs, Attempt: m.Attempt, LastError: m.LastError,
			})
		case k.Bucket < f.bucket && f.slice.Contains(slice.StartMs):
			climb := x.Cache.Climb(k.Bucket, slice, in)
			b := below{level: k.Bucket + 1, slice: slice, runAt: climb[0], byMs: climb[f.bucket-k.Bucket]}
			if f.below == nil || b.byMs < f.below.byMs {
				f.below = &b
			}
		}
	}
}
