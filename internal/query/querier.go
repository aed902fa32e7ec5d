// Package query reads the data that stays in the store: raw samples and roll-up rows. It finds
// series in an in-memory label index and groups them by storage group. It reads each group once for
// all of its series, so the cost of a request grows with the number of groups, not of series.
//
// Times are in Unix ms, ranges are half open. Answers of raw samples include non-finite values;
// computed answers leave them out. Memory is bounded by the samples of one group in one slice, or
// by the number of buckets requested, not by the range. A slice with more samples than a request
// may hold is read in parts; see Options.MaxSamples.
package query

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/errand"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/storage"
)

// Store is the part of a store that the querier reads.
type Store interface {
	storage.Reader
	// Slices returns which slices have been ground; see storage.Runs.
	Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error)
}

// Options configure a Querier; the zero value selects the defaults.
type Options struct {
	// MaxSeries is the maximum number of series that one request may match, other than for raw samples
	// or rows, which may be of any number of series. The default is 300000.
	MaxSeries int
	// Outstanding returns the slices that have been opened but not ground. The default asks the
	// store about the whole range of each request, which over Cassandra costs one read per day.
	Outstanding func(ctx context.Context) ([]storage.SliceKey, error)
	// FutureLimit is how far ahead of the clock ingest accepts samples. The default is 24h, which
	// is also the minimum. Samples that were accepted under another limit, or by a clock that was
	// ahead, are still read; see untilMs.
	FutureLimit time.Duration
	// Parallel is the number of groups that one request reads concurrently; streamed answers read
	// one group at a time. The default is 4.
	Parallel int
	// MaxSamples is the number of samples that one request holds at a time. A slice of a group with
	// more is read in several parts, each of which reads the slice's chunks again. The default is
	// 50,000,000.
	MaxSamples int
	// Sightings record when each series was last seen. The default learns everything from the
	// store. It suits a process that does not ingest.
	Sightings *Sightings
	// Late knows the roll-up rows that late data has made stale. The default is that no data is
	// late.
	Late *late.Tracker
	// Beside runs what goes on beside requests: to look when series were seen may take longer than the
	// request that begins it.
	Beside errand.Beside
	// Metrics takes the querier's own metrics. The default is nobody.
	Metrics prometheus.Registerer
}

// EnsureDefaults fills in unset fields.
func (o Options) EnsureDefaults() Options {
	if o.MaxSeries <= 0 {
		o.MaxSeries = 300_000
	}
	o.FutureLimit = max(o.FutureLimit, 24*time.Hour)
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.MaxSamples <= 0 {
		o.MaxSamples = 50_000_000
	}
	if o.Sightings == nil {
		o.Sightings = NewSightings(true)
	}
	return o
}

// Querier answers requests. It is safe for concurrent use.
type Querier struct {
	store     Store
	index     *Index
	ladder    metric.Ladder
	groupSize int
	wholeFrom func(b metric.Bucket, nowMs int64) int64
	clock     clock.Clock
	opts      Options
	damaged   prometheus.Counter
	ahead     ahead
	looks     *errand.Keyed[question, sighted]
	seed      maphash.Seed
	unpacked  *unpacked
	// sets are *blocks.SampleSet: what one group's reading has grown serves the next.
	sets sync.Pool
}

// Parts are what a Querier works with. All but WholeFrom are required.
type Parts struct {
	Store Store
	Index *Index
	// Settings are those of the store.
	Settings storage.Settings
	// WholeFrom returns the time from which a bucket is whole; nil means that all buckets always are.
	WholeFrom func(b metric.Bucket, nowMs int64) int64
	Clock     clock.Clock
}

// New makes a querier on a store.
func New(p Parts, opts Options) *Querier {
	if p.WholeFrom == nil {
		p.WholeFrom = func(metric.Bucket, int64) int64 { return math.MinInt64 }
	}
	return &Querier{
		store:     p.Store,
		index:     p.Index,
		ladder:    p.Settings.Ladder,
		groupSize: p.Settings.GroupSize,
		wholeFrom: p.WholeFrom,
		clock:     p.Clock,
		opts:      opts.EnsureDefaults(),
		ahead:     ahead{asking: errand.New(opts.Beside)},
		looks:     errand.NewKeyed[question, sighted](opts.Beside, maxLooks),
		seed:      maphash.MakeSeed(),
		unpacked:  newUnpacked(p.Settings.GroupSize, maxUnpacked, opts.Metrics),
		damaged: promauto.With(opts.Metrics).NewCounter(prometheus.CounterOpts{
			Name: "quern_query_damaged_chunks_total",
			Help: "Damaged raw chunks skipped in answers, counted at each read.",
		}),
		sets: sync.Pool{New: func() any { return new(blocks.SampleSet) }},
	}
}

// Ladder returns the ladder whose levels requests may name.
func (q *Querier) Ladder() metric.Ladder { return q.ladder }

// Level finds a roll-up level by name; "" is the finest level. The error is a *RequestError.
func (q *Querier) Level(name string) (metric.Bucket, error) {
	if name == "" {
		return 1, nil
	}
	b, err := q.ladder.Bucket(name)
	if err != nil || b == metric.Raw {
		return 0, badRequest("unknown level %q: there are %s", name, q.ladder)
	}
	return b, nil
}

// Result is an answer that is still being read. One goroutine reads it, once.
type Result[T any] struct {
	all      iter.Seq2[T, error]
	warnings warnings
}

// All yields the answer's values. It yields at most one error, as the last pair. A value is valid until the next one.
func (r *Result[T]) All() iter.Seq2[T, error] { return r.all }

// Warnings say what the answer lacks or may have wrong because stored data is damaged or not ground
// yet. They are complete after the last value.
func (r *Result[T]) Warnings() []string { return r.warnings.list() }

// maxWarnings bounds the warnings of one answer: more of them usually have a single cause.
const maxWarnings = 20

type warnings struct {
	mu   sync.Mutex
	all  []string
	more int
	// with are warnings that take all of these, if that is set. reads takes what these say of the times
	// of rows and samples, unless it is nil.
	with  *warnings
	reads *Reads
}

func (w *warnings) add(format string, args ...any) {
	if w.with != nil {
		w.with.add(format, args...)
		return
	}
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case slices.Contains(w.all, text): // for example from another group
	case len(w.all) == maxWarnings:
		w.more++
	default:
		w.all = append(w.all, text)
	}
}

// merge adds other warnings.
func (w *warnings) merge(said []string) {
	for _, text := range said {
		w.add("%s", text)
	}
}

func (w *warnings) list() []string {
	if w.with != nil {
		return w.with.list()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.all)
	if w.more > 0 {
		out = append(out, fmt.Sprintf("and %d more", w.more))
	}
	return out
}

// minTimeMs and maxTimeMs limit request times to the years 1 to 9999. Within them, sums of times
// and widths cannot overflow.
const (
	minTimeMs = -62_135_596_800_000
	maxTimeMs = 253_402_300_799_999
)

// CheckRange returns a *RequestError unless [startMs, endMs) is a range of times that requests may have.
func CheckRange(startMs, endMs int64) error {
	switch {
	case startMs < minTimeMs || endMs > maxTimeMs:
		return badRequest("start and end must lie in the years 1 to 9999")
	case startMs >= endMs:
		return badRequest("start must be before end")
	}
	return nil
}

func (q *Querier) nowMs() int64 { return clock.NowMs(q.clock) }

// sinceMs returns the later of startMs and the time from which the bucket is whole: older rows may
// be half deleted.
func (q *Querier) sinceMs(b metric.Bucket, startMs int64) int64 {
	return max(startMs, q.wholeFrom(b, q.nowMs()))
}

// group is a set of series in the same storage group, sorted by id.
type group struct {
	ids []metric.ScheduleID
}

// span returns the id range from the first series to the last.
func (g group) span() blocks.Range {
	return blocks.Range{Start: g.ids[0], End: g.ids[len(g.ids)-1] + 1}
}

// WarnUnread warns if an answer may lack series, because their labels are out of reach.
func (q *Querier) WarnUnread(warn *Warnings) { q.warnUnread(&warn.warnings) }

func (q *Querier) warnUnread(warn *warnings) {
	if err := q.index.Unread(); err != nil {
		warn.add("incomplete: %v", err)
	}
}

// streamed selects any number of series and splits them into groups. It is for answers that hold one
// group at a time: beside that, a series takes the few bytes of its id.
func (q *Querier) streamed(ctx context.Context, sels []Selector, warn *warnings) ([]group, error) {
	q.warnUnread(warn)
	ids, err := q.index.Select(ctx, sels...)
	if err != nil {
		return nil, err
	}
	return q.grouped(ids, math.MaxInt), nil
}

// groups selects series, up to the limit of a request, and splits them into groups of at most maxIDs.
func (q *Querier) groups(ctx context.Context, sels []Selector, maxIDs int, warn *warnings) ([]group, error) {
	q.warnUnread(warn)
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.grouped(ids, maxIDs), nil
}

// selected returns the series that match any of the selectors, up to the limit of a request, sorted by
// id.
func (q *Querier) selected(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	ids, err := q.index.Select(ctx, sels...)
	if err != nil {
		return nil, err
	}
	if len(ids) > q.opts.MaxSeries {
		return nil, badRequest("the selectors match %d series, more than the limit of %d for one request: narrow them",
			len(ids), q.opts.MaxSeries)
	}
	return ids, nil
}

// matchesPerSeries is the number of selectors of one request that may each match MaxSeries series.
const matchesPerSeries = 4

// Bound checks the total number of matches of a request's selectors. A series counts once for each
// selector that matches it. The error is a *RequestError.
func (q *Querier) Bound(matches int) error {
	if most := matchesPerSeries * q.opts.MaxSeries; matches > most {
		return badRequest("the selectors match more than %d series together, each counted for every selector that matches it: "+
			"narrow them, use fewer, or ask in several requests", most)
	}
	return nil
}

// grouped splits series, sorted by id, into groups of at most maxIDs.
func (q *Querier) grouped(ids []metric.ScheduleID, maxIDs int) []group {
	var out []group
	for len(ids) > 0 {
		end := blocks.Of(ids[0], q.groupSize).End
		n, _ := slices.BinarySearch(ids, end)
		n = min(n, max(maxIDs, 1))
		out = append(out, group{ids: ids[:n]})
		ids = ids[n:]
	}
	return out
}

// rawSlices reads the group's samples in [fromMs, toMs), slice by slice, which is what
// bounds its memory, and calls with for each series in each slice: i is its place in the
// group, samples are by time and valid during the call, which does not wait. An error of with ends the reading.
//
// A slice that has more samples than the request may hold is read in parts, and with is called for each of them in turn.
//
// While it puts a slice together it calls loading with how many more samples it holds, duplicates
// aside, and ends with the error that says that those are too many; with as many less, before it
// calls with. With nil, Options.MaxSamples bounds them.
func (q *Querier) rawSlices(
	ctx context.Context, g group, fromMs, toMs int64, warn *warnings,
	loading func(n int) error, with func(i int, samples []metric.Sample) error,
) error {
	most := q.opts.MaxSamples / q.opts.Parallel
	return inParts(fromMs, toMs, func(fromMs, toMs int64) (metric.Slice, error) {
		limit := loading
		if held := 0; limit == nil {
			limit = func(n int) error {
				if held += n; held > most && toMs-fromMs > 1 {
					return errTooMany
				}
				return nil
			}
		}
		return q.rawPart(ctx, g, fromMs, toMs, warn, limit, with)
	})
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

// rawPart is rawSlices within the samples that loading allows. It returns the slice that it
// read last.
func (q *Querier) rawPart(
	ctx context.Context, g group, fromMs, toMs int64, warn *warnings,
	loading func(n int) error, with func(i int, samples []metric.Sample) error,
) (metric.Slice, error) {
	set := q.set()
	defer q.giveBack(set)
	slice := metric.Slice{StartMs: math.MinInt64}
	held := 0
	load := func(n int) error {
		if n == held {
			return nil
		}
		more := n - held
		held = n
		return loading(more)
	}
	flush := func() error {
		if err := load(0); err != nil {
			return err
		}
		for i, samples := range g.in(set) {
			if len(samples) == 0 {
				continue
			}
			if err := with(i, samples); err != nil {
				return err
			}
		}
		g.reset(set, fromMs, toMs)
		return nil
	}
	g.reset(set, fromMs, toMs)
	for ch, err := range q.chunks(ctx, g, q.ladder.SliceAt(metric.Raw, fromMs).StartMs, toMs) {
		if err != nil {
			return slice, q.readError(metric.Raw, g, err)
		}
		if ch.SliceMs != slice.StartMs {
			if err := flush(); err != nil {
				return slice, err
			}
			slice = q.ladder.SliceAt(metric.Raw, ch.SliceMs)
		}
		in, err := q.open(set, ch.Data, fromMs, toMs)
		if err != nil {
			return slice, errors.Join(err, load(0))
		}
		q.addChunk(in, ch, slice, warn)
		if err := load(set.Distinct()); err != nil {
			return slice, err
		}
	}
	return slice, flush()
}

// chunks yields the raw chunks of a group for the slices that start in [fromMs, toMs), by slice and ID.
func (q *Querier) chunks(ctx context.Context, g group, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return q.unpacked.chunks(q.store.RawChunks(ctx, g.span(), fromMs, toMs))
}

// reset has set keep what the group has in [fromMs, toMs).
func (g group) reset(set *blocks.SampleSet, fromMs, toMs int64) {
	set.Reset(g.span())
	set.Only(g.ids, fromMs, toMs)
}

// addChunk adds a raw chunk to its set. It skips a damaged chunk, counts it, and names it in a
// warning.
func (q *Querier) addChunk(in *blocks.Incoming, ch storage.RawChunk, slice metric.Slice, warn *warnings) {
	if err := in.Add(); err != nil {
		q.damaged.Inc()
		warn.add("samples are missing: raw chunk %s of group %d in the slice of %s: %v", ch.ID, ch.Group, slice, err)
		warn.reads.partial(metric.Raw, slice.StartMs, slice.EndMs)
	}
}

func (q *Querier) readError(b metric.Bucket, g group, err error) error {
	return fmt.Errorf("read %s of group %d: %w", q.ladder.Name(b), blocks.Of(g.ids[0], q.groupSize).Start, err)
}

// in yields the index of each series in the group that has samples in the set, with its samples.
// Tombstones are left out.
func (g group) in(set *blocks.SampleSet) iter.Seq2[int, []metric.Sample] {
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

// read reads the parts of a group in order: it calls samples as rawSlices does, or row with each row of the part's level.
func (q *Querier) read(
	ctx context.Context, g group, parts []part, warn *warnings,
	samples func(i int, samples []metric.Sample) error, row func(level metric.Bucket, row groupRow) error,
) error {
	for _, part := range parts {
		if part.bucket == metric.Raw {
			if err := q.rawSlices(ctx, g, part.fromMs, part.toMs, warn, nil, samples); err != nil {
				return err
			}
			continue
		}
		for r, err := range q.rows(ctx, g, part.bucket, part.fromMs, part.toMs, warn) {
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

// rows yields the group's rows of a level that start in [fromMs, toMs); the rows of each series are
// sorted by time. A row is valid until the next one. It skips a damaged row with a warning.
func (q *Querier) rows(ctx context.Context, g group, level metric.Bucket, fromMs, toMs int64, warn *warnings) iter.Seq2[groupRow, error] {
	return func(yield func(groupRow, error) bool) {
		for row, err := range q.store.Rollups(ctx, level, g.span(), fromMs, toMs) {
			if err != nil {
				yield(groupRow{}, q.readError(level, g, err))
				return
			}
			i, found := slices.BinarySearch(g.ids, row.Schedule)
			if found && row.Damaged {
				warn.add("%s of %s is damaged, and was skipped", q.rowName(level, row.TimeMs), q.index.Labels(row.Schedule))
				warn.reads.partial(level, row.TimeMs, row.TimeMs+q.ladder.WidthMs(level))
			}
			// A zero row takes an earlier row back, or says that there may have been one.
			if found && row.Count > 0 && !yield(groupRow{i, &row}, nil) {
				return
			}
		}
	}
}

// inOrder runs work for each group, as many at a time as a request may, and yields the results in the
// order of the groups. It returns when all work has ended.
func inOrder[T any](ctx context.Context, q *Querier, groups []group, work func(context.Context, group) ([]T, error)) iter.Seq2[T, error] {
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
