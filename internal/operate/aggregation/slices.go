package aggregation

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

const (
	// maxSlices bounds the slices of one bucket, maxRuns the runs that are looked at for them, maxTexts the errors of
	// one slice.
	maxSlices = 500
	maxRuns   = 10_000
	maxTexts  = 5
	// sliceBytes and runBytes are what a slice takes with its errors, and what a run takes.
	sliceBytes = 1000
	runBytes   = 300
)

// Slices returns the slices of each bucket that overlap [fromMs, toMs), with what the store has on record of them. It
// leaves out what it cannot read, and names it. It reads all marks, and charges what it holds to the request of ctx.
func (r *Reader) Slices(ctx context.Context, fromMs, toMs int64) (wire.Slices, error) {
	s := timeline{state: state{Reader: r}, out: wire.Slices{Buckets: []wire.BucketSlices{}}}
	if err := limits.Charge(ctx, int64(len(r.ladder.Ground())*maxSlices*sliceBytes+maxRuns*runBytes)); err != nil {
		return s.out, err
	}
	if err := s.readRecords(ctx); err != nil {
		return s.out, err
	}
	outstanding, err := s.readOutstanding(ctx)
	if err != nil {
		return s.out, err
	}
	for _, b := range r.ladder.Ground() {
		bucket, err := s.readBucket(ctx, b, outstanding[b], fromMs, toMs)
		if err != nil {
			return s.out, err
		}
		s.out.Buckets = append(s.out.Buckets, bucket)
	}
	s.out.Unread = s.Unread
	return s.out, nil
}

// timeline is Slices that are being read.
type timeline struct {
	state
	out wire.Slices
	// runs are the last runs of each slice, newest first. sinceMs is when the oldest known run began: of those
	// before it nothing is known, unless it is 0.
	runs    map[storage.SliceKey][]storage.Run
	faults  map[storage.SliceKey][]storage.ComponentError
	sinceMs int64
}

// readRecords reads the last runs and errors.
func (s *timeline) readRecords(ctx context.Context) error {
	runs, faults, known, err := s.records(ctx, maxRuns)
	if err != nil {
		return err
	}
	s.runs, s.faults = make(map[storage.SliceKey][]storage.Run), make(map[storage.SliceKey][]storage.ComponentError)
	for _, run := range runs {
		s.runs[run.SliceKey] = append(s.runs[run.SliceKey], run)
	}
	for _, f := range faults {
		s.faults[f.SliceKey] = append(s.faults[f.SliceKey], f)
	}
	switch {
	case !known:
		s.sinceMs = clock.NowMs(s.clk)
	case len(runs) == maxRuns:
		s.sinceMs = runs[maxRuns-1].StartedMs
	}
	if s.sinceMs != 0 {
		s.out.RunsSince = &s.sinceMs
	}
	return nil
}

// waiting is work on the data of a slice.
type waiting struct {
	marks, late int
	runMs       int64 // when the last of it is ground
}

// readBucket returns the slices of a bucket that overlap [fromMs, toMs), the newest maxSlices of them.
func (s *timeline) readBucket(ctx context.Context, b metric.Bucket, outstanding []storage.SliceKey, fromMs, toMs int64) (wire.BucketSlices, error) {
	last := s.ladder.SliceAt(b, toMs-1)
	width := last.EndMs - last.StartMs
	startMs := max(s.ladder.SliceAt(b, fromMs).StartMs, last.EndMs-maxSlices*width)
	out := wire.BucketSlices{Bucket: s.ladder.Name(b), Start: startMs, End: last.EndMs, Slices: []wire.SliceState{}}

	// Work moves on to later slices and leaves its old place last, so marks come before the states of slices.
	waits, err := s.readWaiting(ctx, outstanding)
	if err != nil {
		return out, err
	}
	known, err := s.store.Slices(ctx, b, startMs, last.EndMs)
	if err != nil {
		out.Unknown = []wire.Range{{Start: startMs, End: last.EndMs}}
		return out, s.without(ctx, "the slices of "+out.Bucket, err)
	}
	states := make(map[int64]storage.SliceState)
	for _, st := range known {
		states[st.StartMs] = st
	}
	for ms := range waits { // late data may come for a slice whose record has been removed
		if _, ok := states[ms]; !ok && startMs <= ms && ms < last.EndMs {
			states[ms] = storage.SliceState{SliceKey: storage.SliceKey{Bucket: b, StartMs: ms}, Complete: true}
		}
	}
	nowMs := clock.NowMs(s.clk)
	for _, ms := range slices.Sorted(maps.Keys(states)) {
		out.Slices = append(out.Slices, s.slice(states[ms], waits[ms], nowMs))
	}
	return out, nil
}

// readWaiting counts the marks of a bucket by the slice that they are of, in whatever slice's index they are.
func (s *timeline) readWaiting(ctx context.Context, outstanding []storage.SliceKey) (map[int64]waiting, error) {
	out := make(map[int64]waiting)
	for _, k := range outstanding {
		runMs := s.recovery.RunAtMs(k)
		if _, err := s.countMarks(ctx, k, func(startMs int64) {
			w := out[startMs]
			w.marks++
			if startMs != k.StartMs {
				w.late++
			}
			w.runMs = max(w.runMs, runMs)
			out[startMs] = w
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// slice returns what is known of one slice.
func (s *timeline) slice(state storage.SliceState, waits waiting, nowMs int64) wire.SliceState {
	in := s.ladder.SliceAt(state.Bucket, state.StartMs)
	out := wire.SliceState{
		Start: in.StartMs, End: in.EndMs, Begun: state.Begun, Expired: !storage.Whole(s.store, state.Bucket, in, nowMs),
		Marks: waits.marks, Late: waits.late,
	}
	if waits.marks > 0 {
		out.RunAt = &waits.runMs
	}
	runs := s.runs[state.SliceKey]
	out.Runs, out.RunsUnknown = len(runs), s.sinceMs > in.EndMs
	for i, run := range slices.Backward(runs) {
		out.Blocks += run.Blocks
		out.Schedules += run.Schedules
		out.Queries += run.BlockQueries + run.IndexQueries
		out.Dropped += run.Dropped
		out.Duration += run.Duration.Seconds()
		if i == 0 {
			out.Worker = run.Worker
		}
		if run.Err != "" {
			say(&out, run.StartedMs, run.Err)
		}
	}
	if len(runs) > 0 {
		out.NPlus1 = out.Schedules + 1
	}
	faults := s.faults[state.SliceKey]
	slices.SortStableFunc(faults, func(a, b storage.ComponentError) int { return cmp.Compare(a.TimeMs, b.TimeMs) })
	for _, f := range faults {
		say(&out, f.TimeMs, f.Component+": "+f.Message)
	}
	out.State = stateOf(state, &out, nowMs)
	return out
}

// say adds an error to a slice, of which it keeps the last maxTexts.
func say(to *wire.SliceState, ms int64, text string) {
	if to.Errors = append(to.Errors, time.UnixMilli(ms).UTC().Format(time.RFC3339)+" "+text); len(to.Errors) > maxTexts {
		to.Errors = to.Errors[1:]
	}
}

func stateOf(state storage.SliceState, s *wire.SliceState, nowMs int64) string {
	switch {
	case state.Complete && s.Late > 0:
		return wire.SliceLate
	case state.Complete && s.Dropped > 0:
		return wire.SlicePartial
	case state.Complete:
		return wire.SliceComplete
	case s.Start > nowMs:
		return wire.SliceAhead
	case s.End > nowMs:
		return wire.SliceOpen
	case s.Expired:
		return wire.SliceExpired
	}
	return wire.SliceOutstanding
}
