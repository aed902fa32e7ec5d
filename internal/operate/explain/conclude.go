package explain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// Verdict is a one-word conclusion, for scripts.
type Verdict string

// The verdicts.
const (
	// Waiting: the slice has not ended, or its run is not due.
	Waiting Verdict = "waiting"
	// Due: the run is due and has not ended.
	Due Verdict = "due"
	// Late: late data, or a request, has the row computed again.
	Late Verdict = "late"
	// PutOff: the block failed in a run and is tried again.
	PutOff Verdict = "put_off"
	// Below: the row follows when a row below it has been computed.
	Below Verdict = "below"
	// Expired: the input has partly expired, so the row cannot be computed any more.
	Expired Verdict = "expired"
	// RowExpired: the row itself is older than its level's retention.
	RowExpired Verdict = "row_expired"
	// NoSamples: there is no input for a row.
	NoSamples Verdict = "no_samples"
	// Done: the row is there and equals its input.
	Done Verdict = "complete"
	// Partial: the row is there, and samples may be missing from it. Raw chunks, or sketches of
	// rows below, were damaged, or input expired before it was ground.
	Partial Verdict = "partial"
	// Missing: there is input, but no row, and nothing that would lead to one.
	Missing Verdict = "missing"
	// Differs: the row differs from its input, and nothing would change that.
	Differs Verdict = "differs"
	// Ahead: the row was written with a future timestamp, by hand or under a wrong clock, and hides
	// what runs write.
	Ahead Verdict = "ahead"
)

// Conclusion is the verdict, the reason, and what comes next.
type Conclusion struct {
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
	Next    string  `json:"next"`
	// NextAt is when it comes, absent if it does not come by itself.
	NextAt int64 `json:"next_at,omitempty"`
}

// at formats a time for the sentences.
func at(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

// staysPartial says what becomes of work that is given up.
const staysPartial = "nothing: an existing row stays and is partial, and so are the rows above it"

const byHand = "`quern reaggregate` recomputes it"

func (x *Explainer) conclude(f *found, a *around, now int64) Conclusion {
	if now < f.slice.EndMs {
		return x.waiting(f)
	}
	if f.below != nil && !f.done {
		return x.below(f, now) // even if the slice's own marks are due: a slice is ground after those within it
	}
	if f.fence > f.newest && (!f.ok || !f.hasRow || !same(&f.row, &f.should)) {
		until := int64(f.fence)/1000 + 1
		return Conclusion{
			Ahead, fmt.Sprintf("the row was written with the timestamp %d, which is %s and ahead of all runs: it hides what they write", f.fence, at(until)),
			"after that time " + byHand + "; for what to do before, see What is written by hand in docs/cassandra.md", 0,
		}
	}
	if len(f.marks) > 0 {
		return x.marked(f, a, now)
	}
	if f.below != nil {
		return x.below(f, now)
	}
	if f.hasRow {
		return x.withRow(f, a, now)
	}
	return x.withoutRow(f, a, now)
}

func (x *Explainer) waiting(f *found) Conclusion {
	run := x.cache.Timing().RunAtMs(f.slice)
	return Conclusion{
		Waiting, fmt.Sprintf("the slice ends at %s and is ground at %s", at(f.slice.EndMs), at(run)),
		"the run of the slice", run,
	}
}

func (x *Explainer) below(f *found, now int64) Conclusion {
	b := f.below
	run := "the run at " + at(b.runAt)
	if b.runAt <= now {
		run = "the run that was due at " + at(b.runAt) + " and has not ended"
	}
	return Conclusion{
		Below, fmt.Sprintf("the %s row of %s, which it is made from, is computed by %s", x.ladder.Name(b.level), b.slice, run),
		fmt.Sprintf("the row follows by the run at %s", at(b.byMs)), b.byMs,
	}
}

// marked concludes from the marks that are ground first.
func (x *Explainer) marked(f *found, a *around, now int64) Conclusion {
	first := slices.MinFunc(f.marks, func(a, b placed) int { return cmp.Compare(a.in.EndMs, b.in.EndMs) }).in
	work := cache.Work{
		Partition: storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: f.bucket(), StartMs: first.StartMs}, Shard: f.shard},
		Block:     f.block, Slice: f.slice,
	}
	for _, m := range f.marks {
		if m.in == first {
			work.Marks = append(work.Marks, m.Mark)
		}
	}
	run := x.cache.Timing().RunAtMs(first)
	if x.recovery.JudgeAt(&work, max(now, run)) == recovery.Expired {
		return Conclusion{
			Expired, fmt.Sprintf("its input has partly expired by the run at %s, and a row is not computed from the rest", at(run)),
			staysPartial, 0,
		}
	}
	if now >= run {
		return x.due(f, a, first, run)
	}
	last := slices.MaxFunc(work.Marks, func(a, b storage.Mark) int { return a.Attempt - b.Attempt })
	switch {
	case last.Attempt > 0:
		return Conclusion{
			PutOff, fmt.Sprintf("put off after the error: %s; attempt %d is at %s", last.LastError, last.Attempt+1, at(run)),
			"the next attempt", run,
		}
	case first == f.slice:
		return x.waiting(f)
	}
	return Conclusion{
		Late, fmt.Sprintf("late data: will be recomputed by the run at %s", at(run)), "that run", run,
	}
}

// due says what holds up a run that is due.
func (x *Explainer) due(f *found, a *around, in metric.Slice, run int64) Conclusion {
	c := Conclusion{
		Verdict: Due, Why: fmt.Sprintf("the run that was due at %s has not ended", at(run)),
		Next: "it is in progress, or will be retried within 30 s",
	}
	for _, r := range a.runs {
		if r.Bucket == f.bucket() && r.StartMs == in.StartMs && r.Err != "" {
			c.Why += fmt.Sprintf("; the last attempt, at %s, failed: %s", at(r.StartedMs), r.Err)
			break
		}
	}
	if a.workers[f.shard] == "" {
		c.Why += "; no aggregating worker is alive"
		c.Next = "it starts when an aggregator is started"
	}
	return c
}

func (x *Explainer) withRow(f *found, a *around, now int64) Conclusion {
	nothing := "nothing is outstanding"
	switch {
	case f.row.Partial:
		return x.partial(f, a, now)
	case !storage.Whole(x.store, f.bucket(), f.slice, now):
		return Conclusion{Done, "complete; its input has expired, so it can no longer be compared", nothing, 0}
	case f.input.Damaged > 0:
		return Conclusion{Done, "complete; part of its input is damaged, so it cannot be compared", nothing, 0}
	case f.ok && same(&f.row, &f.should):
		return Conclusion{Done, "complete and up to date", nothing, 0}
	}
	if c, ok := dropped(f, a); ok {
		return c
	}
	if f.input.Samples == 0 {
		return Conclusion{
			Differs, fmt.Sprintf("the row is of %s, but its input has none; no mark leads a run to it", samples(f.row.Count)),
			"nothing: a run leaves the row of a series without input unchanged", 0,
		}
	}
	return Conclusion{
		Differs, fmt.Sprintf("the row (%s) differs from its input (%s); no mark leads a run to it",
			samples(f.row.Count), samples(f.should.Count)), byHand, 0,
	}
}

// partial says whether the row stays partial.
func (x *Explainer) partial(f *found, a *around, now int64) Conclusion {
	if c, ok := dropped(f, a); ok {
		c.Verdict = Partial
		return c
	}
	below := x.ladder.Name(f.bucket())
	switch {
	case !storage.Whole(x.store, f.bucket(), f.slice, now):
		return Conclusion{
			Partial, "partial: samples may be missing, and its input has expired, so it can no longer be computed",
			"nothing: the row stays as it is", 0,
		}
	case f.input.Damaged > 0 && f.bucket() > metric.Raw:
		return Conclusion{
			Partial, fmt.Sprintf("partial: a %s row that it is made from, or the sketch of that row, is damaged, so percentiles lack its samples", below),
			fmt.Sprintf("the row follows when the %s row is recomputed", below), 0,
		}
	case f.should.Partial:
		return Conclusion{
			Partial, fmt.Sprintf("partial: the %s row of %s, which it is made from, is partial, so samples may be missing", below, at(f.partial)),
			fmt.Sprintf("the row follows when the %s row is recomputed from all of its samples; `quern explain --time %s` says whether it can be",
				below, at(f.partial)), 0,
		}
	case f.input.Damaged > 0:
		return Conclusion{
			Partial, fmt.Sprintf("partial: %d of the raw chunks are damaged, and samples may be missing", f.input.Damaged),
			"once they are restored, " + byHand, 0,
		}
	}
	return Conclusion{Partial, "partial: its input was damaged when it was computed, and can be read now", byHand, 0}
}

func (x *Explainer) withoutRow(f *found, a *around, now int64) Conclusion {
	nothing := "nothing: there will be no row"
	if keep := x.store.Settings().Policy.Retention; f.slice.StartMs < keep.From(f.level, now) {
		return Conclusion{RowExpired, fmt.Sprintf("rows of this level are kept until %s", at(keep.Until(f.level, f.slice.StartMs))), nothing, 0}
	}
	if from := x.store.WholeFrom(f.level, now); f.slice.StartMs < from {
		return Conclusion{RowExpired, fmt.Sprintf("rows of this level exist from %s on; earlier ones have expired", at(from)), nothing, 0}
	}
	if c, ok := dropped(f, a); ok {
		return c
	}
	switch {
	case !storage.Whole(x.store, f.bucket(), f.slice, now):
		return Conclusion{Expired, "there is no row, and its input has expired, so it can no longer be computed", nothing, 0}
	case f.damaged && (f.ok || f.input.Damaged == 0):
		return Conclusion{Missing, "the stored row is damaged and cannot be read; no mark leads a run to it", byHand, 0}
	case f.ok && !f.done && now < x.cache.Timing().RunAtMs(f.slice):
		return x.waiting(f)
	case f.ok:
		return Conclusion{Missing, fmt.Sprintf("there is no row for %s, and no mark leads a run to it", samples(f.should.Count)), byHand, 0}
	case f.input.Damaged > 0:
		return Conclusion{Missing, "the input is damaged", "restore it from a backup", 0}
	case f.gap && f.should.Partial:
		return Conclusion{
			Partial, fmt.Sprintf("no row: the %s row of %s, which it would be made from, could not be computed", x.ladder.Name(f.bucket()), at(f.partial)),
			fmt.Sprintf("`quern explain --time %s` says why", at(f.partial)), 0,
		}
	case f.input.NotFinite > 0:
		return Conclusion{NoSamples, fmt.Sprintf("no samples: all %d are NaN or infinite, which roll-ups skip", f.input.NotFinite), nothing, 0}
	case f.bucket() > metric.Raw:
		return Conclusion{NoSamples, fmt.Sprintf("no samples: there is no %s row in the slice", x.ladder.Name(f.bucket())), nothing, 0}
	}
	return Conclusion{NoSamples, "no samples: the series has none in the slice", nothing, 0}
}

// dropped looks for a stored error that says that a run gave up work on the block.
func dropped(f *found, a *around) (Conclusion, bool) {
	for _, e := range a.errs {
		if e.Bucket == f.bucket() && e.Start == f.block.Start && rollup.Expired.Has(e.Message, f.slice) {
			return Conclusion{Expired, fmt.Sprintf("given up at %s: its input has expired", at(e.TimeMs)), staysPartial, 0}, true
		}
	}
	return Conclusion{}, false
}

func samples(n uint64) string {
	if n == 1 {
		return "1 sample"
	}
	return fmt.Sprintf("%d samples", n)
}

// same reports whether a row equals the roll-up of its input. Sums may differ in the last digits if
// another version added them up.
func same(a, b *metric.Rollup) bool {
	near := func(x, y float64) bool {
		return x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= 1e-9*max(math.Abs(x), math.Abs(y))
	}
	return a.Count == b.Count && a.Min == b.Min && a.Max == b.Max && a.First == b.First && a.Last == b.Last &&
		near(a.Sum, b.Sum) && near(a.Increase, b.Increase)
}
