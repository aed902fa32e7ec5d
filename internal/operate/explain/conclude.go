package explain

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
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

// conclude returns the first of the findings that holds.
func (x *Explainer) conclude(f *found, a *around, now int64) Conclusion {
	const (
		nothing = "nothing is outstanding"
		noRow   = "nothing: there will be no row"
		byHand  = "`quern reaggregate` recomputes it"
		// stays is what becomes of work that is given up.
		stays = "nothing: an existing row stays and is partial, and so are the rows above it"
	)
	run, m, b, input := x.Cache.Timing().RunAtMs(f.slice), x.firstMarks(f, now), f.below, f.answer.Input
	bucket, gap := x.ladder.Name(f.bucket), at(f.partial)
	whole, damaged := storage.Whole(x.Store, f.bucket, f.slice, now), input.Damaged > 0
	partial, equal := f.hasRow && f.row.Partial, f.ok && f.hasRow && same(&f.row, &f.should)
	dropped := droppedAt(f, a)
	keep, from := x.Store.Settings().Policy.Retention, x.Store.WholeFrom(f.level, now)

	waiting := Conclusion{Waiting, fmt.Sprintf("the slice ends at %s and is ground at %s", at(f.slice.EndMs), at(run)), "the run of the slice", run}
	below := Conclusion{}
	if b != nil {
		by := "the run at " + at(b.runAt)
		if b.runAt <= now {
			by = "the run that was due at " + at(b.runAt) + " and has not ended"
		}
		below = Conclusion{
			Below, fmt.Sprintf("the %s row of %s, which it is made from, is computed by %s", x.ladder.Name(b.level), b.slice, by),
			"the row follows by the run at " + at(b.byMs), b.byMs,
		}
	}
	givenUp := Conclusion{Expired, fmt.Sprintf("given up at %s: its input has expired", at(dropped)), stays, 0}
	stillPartial := givenUp
	stillPartial.Verdict = Partial

	for _, finding := range []struct {
		holds bool
		Conclusion
	}{
		{now < f.slice.EndMs, waiting},
		{b != nil && !f.done(), below}, // even if the slice's own marks are due: a slice is ground after those within it

		// Marks lead a run to the row.
		{m.expired, Conclusion{
			Expired, fmt.Sprintf("its input has partly expired by the run at %s, and a row is not computed from the rest", at(m.runMs)), stays, 0,
		}},
		{m.any && now >= m.runMs, x.due(f, a, m)},
		{m.any && m.last.Attempt > 0, Conclusion{
			PutOff, fmt.Sprintf("put off after the error: %s; attempt %d is at %s", m.last.LastError, m.last.Attempt+1, at(m.runMs)), "the next attempt", m.runMs,
		}},
		{m.any && m.in == f.slice, waiting},
		{m.any, Conclusion{Late, "late data: will be recomputed by the run at " + at(m.runMs), "that run", m.runMs}},
		{b != nil, below},

		// No run will come to the row.
		{partial && dropped > 0, stillPartial},
		{partial && !whole, Conclusion{
			Partial, "partial: samples may be missing, and its input has expired, so it can no longer be computed", "nothing: the row stays as it is", 0,
		}},
		{partial && damaged && f.bucket > metric.Raw, Conclusion{
			Partial, fmt.Sprintf("partial: a %s row that it is made from, or the sketch of that row, is damaged, so percentiles lack its samples", bucket),
			fmt.Sprintf("the row follows when the %s row is recomputed", bucket), 0,
		}},
		{partial && f.should.Partial, Conclusion{
			Partial, fmt.Sprintf("partial: the %s row of %s, which it is made from, is partial, so samples may be missing", bucket, gap),
			fmt.Sprintf("the row follows when the %s row is recomputed from all of its samples; `quern explain --time %s` says whether it can be", bucket, gap), 0,
		}},
		{partial && damaged, Conclusion{
			Partial, fmt.Sprintf("partial: %d of the raw chunks are damaged, and samples may be missing", input.Damaged), "once they are restored, " + byHand, 0,
		}},
		{partial, Conclusion{Partial, "partial: its input was damaged when it was computed, and can be read now", byHand, 0}},
		{f.hasRow && !whole, Conclusion{Done, "complete; its input has expired, so it can no longer be compared", nothing, 0}},
		{f.hasRow && damaged, Conclusion{Done, "complete; part of its input is damaged, so it cannot be compared", nothing, 0}},
		{equal, Conclusion{Done, "complete and up to date", nothing, 0}},
		{f.hasRow && dropped > 0, givenUp},
		{f.hasRow && input.Samples == 0, Conclusion{
			Differs, fmt.Sprintf("the row is of %s, but its input has none; no mark leads a run to it", samples(f.row.Count)),
			"nothing: a run leaves the row of a series without input unchanged", 0,
		}},
		{f.hasRow, Conclusion{
			Differs, fmt.Sprintf("the row (%s) differs from its input (%s); no mark leads a run to it", samples(f.row.Count), samples(f.should.Count)), byHand, 0,
		}},

		// There is no row.
		{f.slice.StartMs < keep.From(f.level, now), Conclusion{
			RowExpired, "rows of this level are kept until " + at(keep.Until(f.level, f.slice.StartMs)), noRow, 0,
		}},
		{f.slice.StartMs < from, Conclusion{RowExpired, fmt.Sprintf("rows of this level exist from %s on; earlier ones have expired", at(from)), noRow, 0}},
		{dropped > 0, givenUp},
		{!whole, Conclusion{Expired, "there is no row, and its input has expired, so it can no longer be computed", noRow, 0}},
		{f.damaged && (f.ok || !damaged), Conclusion{Missing, "the stored row is damaged and cannot be read; no mark leads a run to it", byHand, 0}},
		{f.ok && !f.done() && now < run, waiting},
		{f.ok, Conclusion{Missing, fmt.Sprintf("there is no row for %s, and no mark leads a run to it", samples(f.should.Count)), byHand, 0}},
		{damaged, Conclusion{Missing, "the input is damaged", "restore it from a backup", 0}},
		{f.gap && f.should.Partial, Conclusion{
			Partial, fmt.Sprintf("no row: the %s row of %s, which it would be made from, could not be computed", bucket, gap),
			fmt.Sprintf("`quern explain --time %s` says why", gap), 0,
		}},
		{input.NotFinite > 0, Conclusion{NoSamples, fmt.Sprintf("no samples: all %d are NaN or infinite, which roll-ups skip", input.NotFinite), noRow, 0}},
		{f.bucket > metric.Raw, Conclusion{NoSamples, fmt.Sprintf("no samples: there is no %s row in the slice", bucket), noRow, 0}},
	} {
		if finding.holds {
			return finding.Conclusion
		}
	}
	return Conclusion{NoSamples, "no samples: the series has none in the slice", noRow, 0}
}

// first is the marks that are ground first.
type first struct {
	any   bool
	in    metric.Slice // whose run grinds them
	runMs int64
	// last is the one with the most attempts.
	last storage.Mark
	// expired says that the run finds their input expired.
	expired bool
}

func (x *Explainer) firstMarks(f *found, now int64) first {
	if len(f.marks) == 0 {
		return first{}
	}
	in := slices.MinFunc(f.marks, func(a, b placed) int { return cmp.Compare(a.in.EndMs, b.in.EndMs) }).in
	work := cache.Work{
		Partition: storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: f.bucket, StartMs: in.StartMs}, Shard: f.shard},
		Block:     f.block, Slice: f.slice,
	}
	for _, m := range f.marks {
		if m.in == in {
			work.Marks = append(work.Marks, m.Mark)
		}
	}
	run := x.Cache.Timing().RunAtMs(in)
	return first{
		any: true, in: in, runMs: run,
		last:    slices.MaxFunc(work.Marks, func(a, b storage.Mark) int { return a.Attempt - b.Attempt }),
		expired: x.Recovery.Expired(&work, max(now, run)),
	}
}

// due says what holds up a run that is due.
func (x *Explainer) due(f *found, a *around, m first) Conclusion {
	c := Conclusion{
		Verdict: Due, Why: fmt.Sprintf("the run that was due at %s has not ended", at(m.runMs)),
		Next: "it is in progress, or will be retried within 30 s",
	}
	failed := slices.IndexFunc(a.runs, func(r storage.Run) bool {
		return r.Bucket == f.bucket && r.StartMs == m.in.StartMs && r.Err != ""
	})
	if failed >= 0 {
		c.Why += fmt.Sprintf("; the last attempt, at %s, failed: %s", at(a.runs[failed].StartedMs), a.runs[failed].Err)
	}
	if a.workers[f.shard] == "" {
		c.Why += "; no aggregating worker is alive"
		c.Next = "it starts when an aggregator is started"
	}
	return c
}

// droppedAt returns when a run gave up work on the block, by the stored errors, 0 for never.
func droppedAt(f *found, a *around) int64 {
	for _, e := range a.errs {
		if e.Bucket == f.bucket && e.Start == f.block.Start && rollup.Expired.Has(e.Message, f.slice) {
			return e.TimeMs
		}
	}
	return 0
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
		a.FirstMs == b.FirstMs && a.LastMs == b.LastMs && a.NonFinite == b.NonFinite && near(a.Sum, b.Sum) && near(a.Increase, b.Increase)
}
