// Package query reads what rests: raw samples and roll-up rows. It finds series in an
// in-memory label index, puts them together by the groups in which they are stored,
// and reads each group once for all of them: what a request costs grows with the
// groups it touches, not with its series.
//
// Times are in Unix ms, ranges half open. Non-finite samples are shown where raw
// samples are, and left out of everything that is computed. Memory is bounded by what
// one group holds in one slice, or by the buckets asked for, not by the range.
package query

import (
	"context"
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
	"github.com/quern/quern/internal/errand"
	"github.com/quern/quern/internal/late"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Store is what the querier reads of a store.
type Store interface {
	storage.Reader
	// Slices tells what has been ground; see storage.Runs.
	Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error)
}

// Options set up a Querier; the zero value stands for the defaults.
type Options struct {
	// MaxSeries is the number of series that one request may match. The default is 300000.
	MaxSeries int
	// Outstanding are the slices that were opened and are not ground. The default asks the store about all of a
	// request's range, which over Cassandra is a read for each day.
	Outstanding func(ctx context.Context) ([]storage.SliceKey, error)
	// FutureLimit is how far ahead of the clock samples may be taken in. The default is 24h, and less stands for it too. What
	// was taken in under another limit, or by a clock that was ahead, is read as well; see untilMs.
	FutureLimit time.Duration
	// Parallel is the number of groups that one request reads at the same time, except
	// where it streams what it reads. The default is 4.
	Parallel int
	// Sightings know when series were last seen. The default is one that learns all of it from the store, and serves where
	// nothing is taken in.
	Sightings *Sightings
	// Late knows which rows late data has left behind. The default is that nothing comes late.
	Late *late.Tracker
	// Beside runs what goes on beside requests: to look when series were seen may take longer than the request that begins it.
	Beside errand.Beside
	// Metrics takes the querier's own metrics. The default is nobody.
	Metrics prometheus.Registerer
}

// EnsureDefaults fills in what was left zero.
func (o Options) EnsureDefaults() Options {
	if o.MaxSeries <= 0 {
		o.MaxSeries = 300_000
	}
	o.FutureLimit = max(o.FutureLimit, 24*time.Hour)
	if o.Parallel <= 0 {
		o.Parallel = 4
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
	looks     *errand.Group[question, sighted]
	seed      maphash.Seed
	// sets are *blocks.SampleSet: what one group's reading has grown serves the next.
	sets sync.Pool
}

// New makes a querier on a store with the given settings. WholeFrom says from when on a bucket is whole; nil is always.
func New(
	store Store, index *Index, settings storage.Settings, wholeFrom func(b metric.Bucket, nowMs int64) int64, clk clock.Clock, opts Options,
) *Querier {
	if wholeFrom == nil {
		wholeFrom = func(metric.Bucket, int64) int64 { return math.MinInt64 }
	}
	return &Querier{
		store:     store,
		index:     index,
		ladder:    settings.Ladder,
		groupSize: settings.GroupSize,
		wholeFrom: wholeFrom,
		clock:     clk,
		opts:      opts.EnsureDefaults(),
		ahead:     ahead{asking: errand.New(opts.Beside)},
		looks:     errand.NewGroup[question, sighted](opts.Beside, maxLooks),
		seed:      maphash.MakeSeed(),
		damaged: promauto.With(opts.Metrics).NewCounter(prometheus.CounterOpts{
			Name: "quern_query_damaged_chunks_total",
			Help: "Damaged raw chunks that were left out of answers, each time.",
		}),
		sets: sync.Pool{New: func() any { return new(blocks.SampleSet) }},
	}
}

// Ladder is the ladder whose levels can be asked for.
func (q *Querier) Ladder() metric.Ladder { return q.ladder }

// Level finds a roll-up level by its name, the finest for "". The error is a
// *RequestError.
func (q *Querier) Level(name string) (metric.Bucket, error) {
	if name == "" {
		return 1, nil
	}
	b, err := q.ladder.Bucket(name)
	if err != nil || b == metric.Raw {
		return 0, badRequest("level %q: there are %s", name, q.ladder)
	}
	return b, nil
}

// Result is an answer that is being read. It is read once, by one goroutine.
type Result[T any] struct {
	all      iter.Seq2[T, error]
	warnings warnings
}

// All yields what was asked for, and an error at most once, as its last pair. A value
// is valid until the next one.
func (r *Result[T]) All() iter.Seq2[T, error] { return r.all }

// Warnings say what is missing from the answer, or may be wrong with it, because stored
// data is damaged, or has yet to be ground. They are complete after the last value.
func (r *Result[T]) Warnings() []string { return r.warnings.list() }

// maxWarnings bounds the warnings of one answer: who has more has one problem, not many.
const maxWarnings = 20

type warnings struct {
	mu   sync.Mutex
	all  []string
	more int
}

func (w *warnings) add(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case slices.Contains(w.all, text): // of another group, say
	case len(w.all) == maxWarnings:
		w.more++
	default:
		w.all = append(w.all, text)
	}
}

// merge adds what others say.
func (w *warnings) merge(said []string) {
	for _, text := range said {
		w.add("%s", text)
	}
}

func (w *warnings) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.all)
	if w.more > 0 {
		out = append(out, fmt.Sprintf("and %d more", w.more))
	}
	return out
}

// The times that can be asked for: the years 1 to 9999, within which sums of times and
// widths cannot overflow.
const (
	minTimeMs = -62_135_596_800_000
	maxTimeMs = 253_402_300_799_999
)

func checkRange(startMs, endMs int64) error {
	switch {
	case startMs < minTimeMs || endMs > maxTimeMs:
		return badRequest("start and end must lie in the years 1 to 9999")
	case startMs >= endMs:
		return badRequest("start must be before end")
	}
	return nil
}

func (q *Querier) nowMs() int64 { return clock.NowMs(q.clock) }

// sinceMs is startMs, or from when on the bucket is whole if that is later: older rows
// may be half deleted.
func (q *Querier) sinceMs(b metric.Bucket, startMs int64) int64 {
	return max(startMs, q.wholeFrom(b, q.nowMs()))
}

// group is series that lie in the same storage group, by id.
type group struct {
	ids []metric.ScheduleID
}

// span is the ids from the first series to the last.
func (g group) span() blocks.Range {
	return blocks.Range{Start: g.ids[0], End: g.ids[len(g.ids)-1] + 1}
}

// groups selects series and puts them into groups of at most maxIDs.
func (q *Querier) groups(ctx context.Context, sels []Selector, maxIDs int) ([]group, error) {
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.grouped(ids, maxIDs), nil
}

// selected are the series that match any of the selectors, by id.
func (q *Querier) selected(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	ids, err := q.index.Select(ctx, sels...)
	if err != nil {
		return nil, err
	}
	if len(ids) > q.opts.MaxSeries {
		return nil, badRequest("the selectors match %d series, more than the %d that one request may ask for: narrow them",
			len(ids), q.opts.MaxSeries)
	}
	return ids, nil
}

// matchesPerSeries is how many selectors of one request may match MaxSeries series each.
const matchesPerSeries = 4

// Bound says whether one request may hold what its selectors match, so many series in all, of which those count several
// times that several selectors match. The error is a *RequestError.
func (q *Querier) Bound(matches int) error {
	if most := matchesPerSeries * q.opts.MaxSeries; matches > most {
		return badRequest("the selectors match more than %d series together, each counted for every selector that matches it: "+
			"narrow them, use fewer, or ask in several requests", most)
	}
	return nil
}

// grouped puts series, which are by id, into groups of at most maxIDs.
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
// group, samples are by time and valid during the call.
//
// While it puts a slice together it calls loading with how many more samples it holds, duplicates aside, and ends with the
// error that says that those are too many; with as many less, before it calls with. Nil takes any number.
func (q *Querier) rawSlices(
	ctx context.Context, g group, fromMs, toMs int64, warn *warnings,
	loading func(n int) error, with func(i int, samples []metric.Sample),
) error {
	set := q.sets.Get().(*blocks.SampleSet)
	defer q.sets.Put(set)
	slice := metric.Slice{StartMs: math.MinInt64}
	held := 0
	load := func(n int) error {
		if loading == nil || n == held {
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
			if len(samples) > 0 {
				with(i, samples)
			}
		}
		g.reset(set, fromMs, toMs)
		return nil
	}
	g.reset(set, fromMs, toMs)
	for ch, err := range q.store.RawChunks(ctx, g.span(), q.ladder.SliceAt(metric.Raw, fromMs).StartMs, toMs) {
		if err != nil {
			return q.readError(metric.Raw, g, err)
		}
		if ch.SliceMs != slice.StartMs {
			if err := flush(); err != nil {
				return err
			}
			slice = q.ladder.SliceAt(metric.Raw, ch.SliceMs)
		}
		q.addChunk(set, ch, slice, warn)
		if err := load(set.Distinct()); err != nil {
			return err
		}
	}
	return flush()
}

// reset has set keep what the group has in [fromMs, toMs).
func (g group) reset(set *blocks.SampleSet, fromMs, toMs int64) {
	set.Reset(g.span())
	set.Only(g.ids, fromMs, toMs)
}

// addChunk adds a raw chunk to the set; one that is damaged is left out, counted, and named in a warning.
func (q *Querier) addChunk(set *blocks.SampleSet, ch storage.RawChunk, slice metric.Slice, warn *warnings) {
	if err := set.Add(ch.Data); err != nil {
		q.damaged.Inc()
		warn.add("samples are missing: raw chunk %s of group %d in the slice of %s: %v", ch.ID, ch.Group, slice, err)
	}
}

func (q *Querier) readError(b metric.Bucket, g group, err error) error {
	return fmt.Errorf("read %s of group %d: %w", q.ladder.Name(b), blocks.Of(g.ids[0], q.groupSize).Start, err)
}

// in yields the places in the group of those of its series that have samples in the set, without those that were taken back.
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

// live leaves out, in place, the samples that were taken back.
func live(samples []metric.Sample) []metric.Sample {
	return slices.DeleteFunc(samples, func(s metric.Sample) bool { return metric.IsTombstone(s.Value) })
}

// groupRow is a roll-up row and the place of its series in the group.
type groupRow struct {
	i int
	*metric.RollupRow
}

// rows yields the group's rows of a level that start in [fromMs, toMs), each series' by
// time. A row is valid until the next. One that is damaged is left out, with a warning.
func (q *Querier) rows(ctx context.Context, g group, level metric.Bucket, fromMs, toMs int64, warn *warnings) iter.Seq2[groupRow, error] {
	return func(yield func(groupRow, error) bool) {
		for row, err := range q.store.Rollups(ctx, level, g.span(), fromMs, toMs) {
			if err != nil {
				yield(groupRow{}, q.readError(level, g, err))
				return
			}
			i, found := slices.BinarySearch(g.ids, row.Schedule)
			if found && row.Damaged {
				warn.add("%s of %s is damaged, and left out", q.rowName(level, row.TimeMs), q.index.Labels(row.Schedule))
			}
			// A row without samples takes back one that was there before, or says that there may have been one.
			if found && row.Count > 0 && !yield(groupRow{i, &row}, nil) {
				return
			}
		}
	}
}

// inOrder does work for each group, n at a time, and yields the results in the order of
// the groups. It returns when all work has ended.
func inOrder[T any](ctx context.Context, groups []group, n int, work func(context.Context, group) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()

		type outcome struct {
			all []T
			err error
		}
		var running []chan outcome
		for len(groups) > 0 || len(running) > 0 {
			for len(groups) > 0 && len(running) < n {
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
