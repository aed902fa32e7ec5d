package query

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// SampleBytes is what a sample takes in an answer. What queries may hold is counted in samples.
const SampleBytes = 16

const (
	// leastWanted is what the samples wanted of a part take at least, beside what it takes to decode a chunk. Each part reads
	// all chunks of its slice, so there should be few.
	leastWanted = 1 << 20
	// pooledBytes bounds the sets that are kept for the next request.
	pooledBytes = 4 << 20
)

// groupBytes is what a group's samples may take while they are put together: a request reads several groups at a time, which
// together hold what its samples may take.
func (q *Querier) groupBytes() int {
	return q.opts.MaxSamples / q.opts.Parallel * SampleBytes
}

// Samples reads the raw samples in [fromMs, toMs) and calls visit for each series in each
// slice, slices in order: i is the series' place, samples are by time and valid during
// the call, which MUST NOT wait, since the store is being read. A slice with more samples than
// may be held is read in parts, and visit is called for each of them in turn. An error of visit ends the reading.
//
// While a slice is put together, loading is called with how many samples more are held, duplicates aside, and with as many less
// before visit is called. Its error ends the reading. With nil, Options.MaxSamples bounds them.
func (g Group) Samples(
	ctx context.Context, fromMs, toMs int64, warn *Warnings,
	loading func(n int) error, visit func(i int, samples []metric.Sample) error,
) error {
	fromMs, toMs = g.q.kept(ctx, metric.Raw, max(fromMs, minTimeMs), min(toMs, maxTimeMs))
	if fromMs >= toMs {
		return nil
	}
	warn.reads.once(g, fromMs).add(metric.Raw, fromMs, toMs, len(g.ids))
	return g.q.samples(ctx, g, fromMs, toMs, warn, loading, visit)
}

// samples is Group.Samples in a range that has data.
func (q *Querier) samples(
	ctx context.Context, g Group, fromMs, toMs int64, warn *Warnings,
	loading func(n int) error, visit func(i int, samples []metric.Sample) error,
) error {
	return inParts(fromMs, toMs, func(fromMs, toMs int64) (metric.Slice, error) {
		set := q.set()
		defer q.giveBack(set)
		held := 0
		hold := func(n int) error {
			more := n - held
			switch held = n; {
			case loading == nil:
				return atMost(q.opts.MaxSamples/q.opts.Parallel, n, fromMs, toMs)
			case more == 0:
				return nil
			}
			return loading(more)
		}
		at, err := q.load(ctx, g, set, fromMs, toMs, warn, hold, func(int64) (bool, error) {
			if err := hold(0); err != nil {
				return false, err
			}
			for i, samples := range g.in(set) {
				if len(samples) == 0 {
					continue
				}
				if err := visit(i, samples); err != nil {
					return false, err
				}
			}
			g.reset(set, fromMs, toMs)
			return true, nil
		})
		if errors.Is(err, errTooMany) {
			err = errors.Join(err, hold(0))
		}
		return at, err
	})
}

// Pieces reads the raw samples in [fromMs, toMs) as Samples does, and calls visit for each piece: pieces of a series come in
// order of time, with pieces of other series between them. The store is not read meanwhile, so visit may wait. An error of visit
// ends the reading.
func (g Group) Pieces(
	ctx context.Context, fromMs, toMs int64, warn *Warnings, visit func(i int, samples []metric.Sample) error,
) error {
	q := g.q
	fromMs, toMs = q.kept(ctx, metric.Raw, max(fromMs, minTimeMs), min(toMs, maxTimeMs))
	return inParts(fromMs, toMs, func(fromMs, toMs int64) (metric.Slice, error) {
		set := q.set()
		defer q.giveBack(set)
		for nextMs := fromMs; nextMs < toMs; {
			sinceMs := nextMs
			at, err := q.load(ctx, g, set, sinceMs, toMs, warn, func(n int) error {
				return atMost(q.opts.MaxSamples, n, sinceMs, toMs)
			}, func(untilMs int64) (bool, error) {
				nextMs = untilMs
				return set.Len() < min(exportSamples, q.opts.MaxSamples), nil
			})
			if err != nil {
				return metric.Slice{StartMs: sinceMs, EndMs: at.EndMs}, err
			}
			for i, samples := range g.in(set) {
				for piece := range slices.Chunk(samples, pieceSamples) {
					if err := visit(i, piece); err != nil {
						return at, err
					}
				}
			}
		}
		return metric.Slice{}, nil
	})
}

// load puts the samples of a group in [fromMs, toMs) together in a set. Whenever the set has all of a slice, it calls ready with
// the start of the next slice that has any, or toMs, and ends unless that returns true. It calls hold with the number of samples
// in the set. It returns the slice that it read last.
func (q *Querier) load(
	ctx context.Context, g Group, set *blocks.SampleSet, fromMs, toMs int64, warn *Warnings,
	hold func(n int) error, ready func(untilMs int64) (more bool, err error),
) (at metric.Slice, err error) {
	g.reset(set, fromMs, toMs)
	at.StartMs = math.MinInt64
	for ch, err := range q.chunks(ctx, g, q.ladder.SliceAt(metric.Raw, fromMs).StartMs, toMs) {
		if err != nil {
			return at, q.readError(metric.Raw, g, err)
		}
		if ch.SliceMs != at.StartMs {
			if more, err := ready(ch.SliceMs); err != nil || !more {
				return at, err
			}
			at = q.ladder.SliceAt(metric.Raw, ch.SliceMs)
		}
		in, err := q.open(set, ch.Data, fromMs, toMs)
		if err != nil {
			return at, err
		}
		q.addChunk(in, ch, at, warn)
		if err := hold(set.Distinct()); err != nil {
			return at, err
		}
	}
	_, err = ready(toMs)
	return at, err
}

// errTooMany says that a slice has more samples than may be held at a time.
var errTooMany = errors.New("the slice has too many samples")

// inParts reads [fromMs, toMs). If read ends with errTooMany, it has read what is before the slice
// that it returns. That slice is then read in two halves, and what is after it as before.
func inParts(fromMs, toMs int64, read func(fromMs, toMs int64) (metric.Slice, error)) error {
	for fromMs < toMs {
		slice, err := read(fromMs, toMs)
		if !errors.Is(err, errTooMany) {
			return err
		}
		fromMs = max(fromMs, slice.StartMs)
		endMs := min(toMs, slice.EndMs)
		halfMs := fromMs + (endMs-fromMs)/2
		if err := inParts(fromMs, halfMs, read); err != nil {
			return err
		}
		if err := inParts(halfMs, endMs, read); err != nil {
			return err
		}
		fromMs = endMs
	}
	return nil
}

// atMost returns errTooMany if n samples are more than most, and a part of [fromMs, toMs) may have fewer.
func atMost(most, n int, fromMs, toMs int64) error {
	if n > most && toMs-fromMs > 1 {
		return errTooMany
	}
	return nil
}

// chunks yields the raw chunks of a group for the slices that start in [fromMs, toMs), by slice and ID.
func (q *Querier) chunks(ctx context.Context, g Group, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return q.unpacked.chunks(q.store.RawChunks(ctx, g.span(), fromMs, toMs))
}

// set returns an empty set, until it is given back.
func (q *Querier) set() *blocks.SampleSet { return q.sets.Get().(*blocks.SampleSet) }

// giveBack lets another request use a set.
func (q *Querier) giveBack(s *blocks.SampleSet) {
	if s.Bytes() <= pooledBytes {
		q.sets.Put(s)
	}
}

// open begins to add what a set wants of a chunk of [fromMs, toMs). The error is errTooMany if that takes more than a group may
// hold, and a smaller part takes less: what it takes to decode the chunk is the same for each.
func (q *Querier) open(s *blocks.SampleSet, chunk []byte, fromMs, toMs int64) (*blocks.Incoming, error) {
	in := s.Open(chunk)
	if needs := in.Needs(); needs > q.groupBytes() && needs-in.Scratch() > leastWanted && toMs-fromMs > 1 {
		return nil, errTooMany
	}
	return in, nil
}

// reset has set keep what the group has in [fromMs, toMs).
func (g Group) reset(set *blocks.SampleSet, fromMs, toMs int64) {
	set.Reset(g.span())
	set.Only(g.ids, fromMs, toMs)
}

// addChunk adds a raw chunk to its set. It skips a damaged chunk, counts it, and names it in a
// warning.
func (q *Querier) addChunk(in *blocks.Incoming, ch storage.RawChunk, slice metric.Slice, warn *Warnings) {
	if err := in.Add(); err != nil {
		q.damaged.Inc()
		warn.Add("samples are missing: raw chunk %s of group %d in the slice of %s: %v", ch.ID, ch.Group, slice, err)
		warn.reads.partial(metric.Raw, slice.StartMs, slice.EndMs)
	}
}

func (q *Querier) readError(b metric.Bucket, g Group, err error) error {
	return fmt.Errorf("read %s of group %d: %w", q.ladder.Name(b), blocks.BlockAt(g.ids[0], q.groupSize).Start, err)
}

// in yields the index of each series in the group that has samples in the set, with its samples.
// Tombstones are left out.
func (g Group) in(set *blocks.SampleSet) iter.Seq2[int, []metric.Sample] {
	return func(yield func(int, []metric.Sample) bool) {
		i := 0
		for id, samples := range set.Series() {
			for i < len(g.ids) && g.ids[i] < id {
				i++
			}
			if i == len(g.ids) || g.ids[i] == id && !yield(i, live(samples)) {
				return
			}
		}
	}
}

// live removes tombstones in place.
func live(samples []metric.Sample) []metric.Sample {
	i := 0
	for i < len(samples) && !math.IsNaN(samples[i].Value) { // as tombstones are
		i++
	}
	if i == len(samples) {
		return samples
	}
	return slices.DeleteFunc(samples, func(s metric.Sample) bool { return metric.IsTombstone(s.Value) })
}

// groupRow is a roll-up row and the place of its series in the group.
type groupRow struct {
	i int
	*metric.RollupRow
}

// rowReader yields rows of a group and level that start in [fromMs, toMs), as Querier.rows and Querier.stored do.
type rowReader func(ctx context.Context, g Group, level metric.Bucket, fromMs, toMs int64, warn *Warnings) iter.Seq2[groupRow, error]

// read reads the parts of a group in order: it calls samples as Group.Samples does, or row with each row of the part's level.
func (q *Querier) read(
	ctx context.Context, g Group, parts []part, warn *Warnings, loading func(n int) error, rows rowReader,
	samples func(i int, samples []metric.Sample) error, row func(level metric.Bucket, row groupRow) error,
) error {
	if len(parts) == 0 {
		return nil
	}
	reads := warn.reads.once(g, parts[0].fromMs)
	for _, part := range parts {
		reads.add(part.bucket, part.fromMs, part.toMs, len(g.ids))
		if part.bucket == metric.Raw {
			if err := q.samples(ctx, g, part.fromMs, part.toMs, warn, loading, samples); err != nil {
				return err
			}
			continue
		}
		for r, err := range rows(ctx, g, part.bucket, part.fromMs, part.toMs, warn) {
			if err != nil {
				return err
			}
			if err := row(part.bucket, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// rows yields the group's rows with samples of a level that start in [fromMs, toMs); the rows of each
// series are sorted by time. A row is valid until the next one. It skips a damaged row with a warning.
func (q *Querier) rows(ctx context.Context, g Group, level metric.Bucket, fromMs, toMs int64, warn *Warnings) iter.Seq2[groupRow, error] {
	return func(yield func(groupRow, error) bool) {
		for row, err := range q.stored(ctx, g, level, fromMs, toMs, warn) {
			if err != nil {
				yield(groupRow{}, err)
				return
			}
			if row.Damaged {
				warn.Add("%s of %s is damaged, and was skipped", q.rowName(level, row.TimeMs), q.index.Labels(row.Schedule))
				warn.reads.partial(level, row.TimeMs, row.TimeMs+q.ladder.WidthMs(level))
			}
			// A zero row takes an earlier row back, or says that there may have been one.
			if row.Count > 0 && !yield(row, nil) {
				return
			}
		}
	}
}

// stored yields all stored rows, as rows does, also damaged rows and those without samples. It warns of none.
func (q *Querier) stored(ctx context.Context, g Group, level metric.Bucket, fromMs, toMs int64, _ *Warnings) iter.Seq2[groupRow, error] {
	return func(yield func(groupRow, error) bool) {
		for _, ids := range g.runs() {
			for row, err := range q.store.Rollups(ctx, level, ids, fromMs, toMs) {
				if err != nil {
					yield(groupRow{}, q.readError(level, g, err))
					return
				}
				if i, found := slices.BinarySearch(g.ids, row.Schedule); found && !yield(groupRow{i, &row}, nil) {
					return
				}
			}
		}
	}
}

// inOrder runs work for each group, as many at a time as a request may, and yields the results in the
// order of the groups. It returns when all work has ended.
func inOrder[T any](ctx context.Context, q *Querier, groups []Group, work func(context.Context, Group) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		type outcome struct {
			all []T
			err error
		}
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var running []chan outcome
		for len(groups) > 0 || len(running) > 0 {
			for len(groups) > 0 && len(running) < q.opts.Parallel {
				g, done := groups[0], make(chan outcome, 1)
				groups, running = groups[1:], append(running, done)
				wg.Go(func() {
					all, err := work(ctx, g)
					done <- outcome{all, err}
				})
			}
			o := <-running[0]
			running = running[1:]
			if o.err != nil {
				var none T
				yield(none, o.err)
				return
			}
			for _, v := range o.all {
				if !yield(v, nil) {
					return
				}
			}
		}
	}
}
