package promquery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// Queryable makes Quern readable for Prometheus' engine and API. It returns raw samples, except for
// selectors that an Engine has prepared; for these it returns what the preparation says. It is safe for
// concurrent use.
type Queryable struct {
	q          *query.Querier
	maxSamples int64
	watch      *watch
	prep       *preparation // nil, except in queries of an Engine
}

var _ storage.Queryable = (*Queryable)(nil)

// during returns the storage for one prepared query.
func (s *Queryable) during(p *preparation) *Queryable {
	p.account.most = s.maxSamples
	return &Queryable{q: s.q, maxSamples: s.maxSamples, watch: s.watch, prep: p}
}

// Querier implements storage.Queryable.
func (s *Queryable) Querier(mint, maxt int64) (storage.Querier, error) {
	q := &querier{Queryable: s, mint: mint, maxt: maxt}
	if s.prep != nil {
		q.account = s.prep.account
	} else {
		q.account = &account{most: s.maxSamples}
	}
	return q, nil
}

type querier struct {
	*Queryable
	mint, maxt int64
	account    *account

	mu      sync.Mutex
	cancels []context.CancelFunc
	reads   sync.WaitGroup

	// found caches the results of selectors by what they ask for: an expression may repeat a
	// selector many times.
	found map[string]*found
	// named are the labels of series, by ids.
	named map[metric.ScheduleID]*labels.Labels
	// matches counts the series held for all selectors; see query.Querier.Bound.
	matches int
	// work is what all selectors look at.
	work query.Work
}

// found is the result of a selector. Selectors with the same matchers share it.
type found struct {
	groups []query.Group
	series []foundSeries
}

// Close implements storage.LabelQuerier. It cancels reads that are still running.
func (q *querier) Close() error {
	q.mu.Lock()
	for _, cancel := range q.cancels {
		cancel()
	}
	q.mu.Unlock()
	q.reads.Wait()
	return nil
}

// LabelValues implements storage.LabelQuerier. It returns the values of series that were seen on
// the day of mint or later.
func (q *querier) LabelValues(
	ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher,
) ([]string, annotations.Annotations, error) {
	warn := new(query.Warnings)
	values, err := q.q.LabelValues(query.WithWork(ctx, &q.work), q.mint, warn, name, selectors(matchers)...)
	return atMost(hints, values), annotated(warn), asStored(err)
}

// LabelNames implements storage.LabelQuerier. It looks at the same series as LabelValues.
func (q *querier) LabelNames(
	ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher,
) ([]string, annotations.Annotations, error) {
	warn := new(query.Warnings)
	names, err := q.q.LabelNames(query.WithWork(ctx, &q.work), q.mint, warn, selectors(matchers)...)
	return atMost(hints, names), annotated(warn), asStored(err)
}

func selectors(matchers []*labels.Matcher) []query.Selector {
	if len(matchers) == 0 {
		return nil
	}
	return []query.Selector{matchers}
}

func atMost(hints *storage.LabelHints, words []string) []string {
	if hints != nil && hints.Limit > 0 && len(words) > hints.Limit {
		return words[:hints.Limit]
	}
	return words
}

// Select implements storage.Querier. It reads no samples before a series is asked for them; then it
// reads the series' whole group. The set has all matching series, also those without samples in the
// time range. Only for the series API (hint "series") it leaves out series that were last seen
// before the day of hints.Start.
func (q *querier) Select(
	ctx context.Context, sortSeries bool, hints *storage.SelectHints, matchers ...*labels.Matcher,
) storage.SeriesSet {
	warn := new(query.Warnings)
	if q.prep != nil {
		warn = &q.prep.warnings
	}
	found, err := q.find(ctx, hints, warn, matchers)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	mint, maxt, limit := q.mint, q.maxt, 0
	if hints != nil {
		mint, maxt, limit = hints.Start, hints.End, hints.Limit
	}
	series := found.refs()
	if sortSeries {
		slices.SortFunc(series, func(a, b *foundSeries) int { return a.stored.Compare(b.stored) })
	}
	if limit > 0 && len(series) > limit {
		series = slices.Clone(series[:limit])
	}
	ctx, cancel := context.WithCancel(ctx)
	q.mu.Lock()
	q.cancels = append(q.cancels, cancel)
	q.mu.Unlock()
	// For timestamp(), the engine takes the iterators of all series at once.
	keep := sortSeries || hints != nil && hints.Func == "timestamp"
	held := newHeld(ctx, &q.reads, found.groups, q.account, keep)
	warn = q.prep.reads(matchers).Warnings(warn)
	asked := q.prep.of(matchers)
	if r := asked.rows; r != nil {
		return newSet(ctx, series, warn, &rowSource{reading: r, q: q.q, warn: warn, loader: newLoader[[]query.Span](held)})
	}
	raw := samples{mint: mint, maxt: maxt, warn: warn, loader: newLoader[points](held)}
	if q.prep != nil && !keep {
		// The engine evaluates one series after the other.
		raw.loader.recycle = recycle
	}
	if w := asked.windows; w != nil {
		raw.mint, raw.maxt, raw.windows = w.grid.startMs-w.rangeMs+1, w.grid.last(), true
		return newSet(ctx, series, warn, &windowSource{samples: raw, windowed: w})
	}
	return newSet(ctx, series, warn, &raw)
}

// find returns the series that the matchers select and the hints allow. The error is a
// *query.RequestError, the cause of ctx's end, or the store's.
func (q *querier) find(ctx context.Context, hints *storage.SelectHints, warn *query.Warnings, matchers []*labels.Matcher) (*found, error) {
	if err := ctx.Err(); err != nil { // the engine still asks other selectors after one has failed
		return nil, err
	}
	if err := q.q.Bound(q.matches); err != nil {
		return nil, err
	}
	listed := hints != nil && hints.Func == "series"
	var key strings.Builder
	if listed {
		fmt.Fprint(&key, hints.Start)
	}
	for _, m := range matchers {
		key.WriteByte(',')
		key.WriteString(m.String())
	}
	if f := q.found[key.String()]; f != nil {
		n := len(f.series)
		if hints != nil && hints.Limit > 0 {
			n = min(n, hints.Limit)
		}
		q.matches += n
		return f, cmp.Or(q.q.Bound(q.matches), q.makes(f))
	}
	q.q.WarnUnread(warn)
	var groups []query.Group
	var err error
	working := query.WithWork(ctx, &q.work)
	if listed {
		groups, err = q.q.GroupsSince(working, hints.Start, warn, matchers)
	} else {
		groups, err = q.q.Groups(working, matchers)
	}
	if err != nil {
		return nil, err
	}
	f := &found{groups: groups}
	n := 0
	for _, g := range groups {
		n += len(g.IDs())
	}
	q.matches += n
	if err := q.q.Bound(q.matches); err != nil {
		return nil, err
	}
	name := q.name
	if listed { // the labels of one series at a time
		name = func(metric.ScheduleID) *labels.Labels { return nil }
	}
	if f.series, err = seriesOf(ctx, groups, name); err != nil {
		return nil, err
	}
	if err := q.makes(f); err != nil {
		return nil, err
	}
	if q.found == nil {
		q.found = make(map[string]*found)
	}
	q.found[key.String()] = f
	return f, nil
}

// makes returns an error if the functions of the expression may make too many labels of what a selector has found.
func (q *querier) makes(f *found) error {
	if q.prep == nil {
		return nil
	}
	return q.prep.made.over(f.series, q.maxSamples)
}

// name returns where the labels of a series are converted to, for all selectors of a query.
func (q *querier) name(of metric.ScheduleID) *labels.Labels {
	named := q.named[of]
	if named == nil {
		if q.named == nil {
			q.named = make(map[metric.ScheduleID]*labels.Labels)
		}
		named = new(labels.Labels)
		q.named[of] = named
	}
	return named
}

// refs returns pointers to the series, which callers may sort and cut.
func (f *found) refs() []*foundSeries {
	out := make([]*foundSeries, len(f.series))
	for i := range f.series {
		out[i] = &f.series[i]
	}
	return out
}

// foundSeries is a series and its place in the groups.
type foundSeries struct {
	place
	stored query.Packed

	named *labels.Labels // filled by labels; nil to keep none
}

// labels converts the labels once for all selectors of a query. One goroutine evaluates them.
func (f *foundSeries) labels() labels.Labels {
	if f.named == nil {
		return converted(f.stored)
	}
	if f.named.IsEmpty() {
		*f.named = converted(f.stored)
	}
	return *f.named
}

func converted(stored query.Packed) labels.Labels {
	b := labels.NewScratchBuilder(stored.Len())
	for l := range stored.All() {
		b.Add(l.Name, l.Value)
	}
	return b.Labels()
}

type place struct {
	group, i int
}

// seriesOf returns the series of groups, with what name returns for them.
func seriesOf(ctx context.Context, groups []query.Group, name func(metric.ScheduleID) *labels.Labels) ([]foundSeries, error) {
	n := 0
	for _, g := range groups {
		n += len(g.IDs())
	}
	found := make([]foundSeries, 0, n)
	for gi, g := range groups {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i, id := range g.IDs() {
			found = append(found, foundSeries{place: place{gi, i}, stored: g.Packed(i), named: name(id)})
		}
	}
	return found, nil
}

// source reads the points of a selector's series, and counts those that it makes.
type source interface {
	points(at place, own *own) (points, error)
	// release lets go of all that has been read.
	release()
}

// samples is the source for raw samples in [mint, maxt].
type samples struct {
	mint, maxt int64
	windows    bool // for a windowSource
	warn       *query.Warnings
	loader     *loader[points]
}

func (s *samples) points(at place, own *own) (points, error) {
	*own = s.loader.begin(s)
	return s.read(at)
}

func (s *samples) read(at place) (points, error) {
	found, err := s.loader.get(at.group, func(ctx context.Context, group int, hold func(n int) error) ([]points, error) {
		g := s.loader.groups[group]
		if len(s.loader.groups) == 1 && len(g.IDs()) <= fewSeries {
			if borders := g.Borders(s.mint, s.maxt+1); len(borders) > 2 {
				return s.readStretches(ctx, g, borders, hold)
			}
		}
		return s.readGroup(ctx, g, s.mint, s.maxt+1, hold)
	})
	if err != nil {
		return nil, err
	}
	return found[at.i], nil
}

// fewSeries is the number of series up to which a group that is alone is read in stretches of time. Of more, there would be
// much to put together.
const fewSeries = 8

// readStretches is readGroup by two goroutines. Each takes the next stretch, so that little is left to wait for if the
// processors are busy.
func (s *samples) readStretches(ctx context.Context, g query.Group, borders []int64, hold func(n int) error) ([]points, error) {
	stretches := make([][]points, len(borders)-1)
	var taken atomic.Int64
	readers, ctx := errgroup.WithContext(ctx)
	read := func() error {
		for {
			i := taken.Add(1) - 1
			if i >= int64(len(stretches)) {
				return nil
			}
			var err error
			if stretches[i], err = s.readGroup(ctx, g, borders[i], borders[i+1], hold); err != nil {
				return err
			}
		}
	}
	for range 2 {
		readers.Go(read)
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	out := stretches[0]
	for _, later := range stretches[1:] {
		for i, more := range later {
			room := cap(out[i])
			out[i] = append(out[i], more...)
			if err := hold(cap(out[i]) - room - cap(more)); err != nil {
				return nil, err
			}
		}
		if s.loader.recycle != nil {
			s.loader.recycle(later)
		}
	}
	return out, nil
}

// readGroup reads what the series of a group have in [fromMs, toMs).
func (s *samples) readGroup(ctx context.Context, g query.Group, fromMs, toMs int64, hold func(n int) error) ([]points, error) {
	out := make([]points, len(g.IDs()))
	roomMs := toMs - 1
	if fromMs == s.mint { // what follows is appended
		roomMs = s.maxt
	}
	err := g.Samples(ctx, fromMs, toMs, s.warn, hold, func(i int, samples []metric.Sample) error {
		p := out[i]
		if cap(p) == 0 && s.loader.recycle != nil {
			p = recycled(len(samples) + int(min(s.rest(samples, roomMs), maxRecycled)))
		}
		if more := len(samples) - (cap(p) - len(p)); more > 0 {
			p = slices.Grow(p, s.room(len(p), samples, roomMs))
		}
		if err := hold(cap(p) - cap(out[i])); err != nil {
			return err
		}
		into := p[len(p):][:len(samples)]
		n := 0
		for k := range samples {
			v := samples[k].Value
			into[n] = promql.FPoint{T: samples[k].TimeMs, F: v}
			if !s.windows || !value.IsStaleNaN(v) {
				n++
			}
		}
		p = p[:len(p)+n]
		out[i] = p
		return nil
	})
	return out, err
}

// room returns how many points to make room for, where a series has n and gets more: also for those that follow at the same
// rate, up to as many as it has and some, so that most series grow once.
func (s *samples) room(n int, more []metric.Sample, toMs int64) int {
	const some = 4096
	return len(more) + int(min(s.rest(more, toMs), float64(n+some)))
}

// rest returns how many points would follow at the same rate, up to a time.
func (s *samples) rest(more []metric.Sample, toMs int64) float64 {
	first, last := more[0].TimeMs, more[len(more)-1].TimeMs
	return max(0, float64(toMs-last)*float64(len(more)-1)/float64(max(last-first, 1)))
}

func (s *samples) release() { s.loader.release() }

const (
	sampleBytes = query.SampleBytes
	spanBytes   = int(unsafe.Sizeof(query.Span{}))
)

// samplesIn converts bytes to the number of samples of the same size, which is the unit of the
// query's limit.
func samplesIn(bytes int) int { return (bytes + sampleBytes - 1) / sampleBytes }

// rowSource is the source for selectors that read roll-ups.
type rowSource struct {
	*reading
	q      *query.Querier
	warn   *query.Warnings
	loader *loader[[]query.Span]

	mu      sync.Mutex
	planner *query.Planner
	plans   map[int]*query.Plan // by index of the group
}

// planOf returns the plan for reading a group.
func (r *rowSource) planOf(group int) (*query.Plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.planner == nil {
		p, err := r.newPlanner(r.loader.ctx, r.q, r.warn)
		if err != nil {
			return nil, err
		}
		r.planner, r.plans = p, make(map[int]*query.Plan)
	}
	p := r.plans[group]
	if p == nil {
		p = r.planner.For(r.loader.groups[group])
		r.plans[group] = p
	}
	return p, nil
}

func (r *rowSource) points(at place, own *own) (points, error) {
	*own = r.loader.begin(r)
	plan, err := r.planOf(at.group)
	if err != nil {
		return nil, err
	}
	found, err := r.loader.get(at.group, func(ctx context.Context, group int, hold func(n int) error) ([][]query.Span, error) {
		g := r.loader.groups[group]
		out := make([][]query.Span, len(g.IDs()))
		plan, err := r.planOf(group)
		if err != nil {
			return nil, err
		}
		err = g.Spans(ctx, plan, r.warn, hold, func(i int, s *query.Span) error {
			if n := len(out[i]); n == cap(out[i]) {
				size := max(2*n, r.rowEstimate(r.q))
				if err := hold(samplesIn((size - n) * spanBytes)); err != nil {
					return err
				}
				out[i] = append(make([]query.Span, 0, size), out[i]...)
			}
			kept := r.keep(s)
			out[i] = append(out[i], kept)
			return hold(samplesIn(len(kept.Sketch)))
		})
		return out, err
	})
	if err != nil {
		return nil, err
	}
	return r.reading.points(r.loader.ctx, plan, r.q.Ladder().WidthMs(r.level), found[at.i], own.add, r.warn.Add)
}

// release also lets go of the plans, which know each slice of the time range.
func (r *rowSource) release() {
	r.loader.release()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.planner, r.plans = nil, nil
}

// set is a storage.SeriesSet.
type set struct {
	ctx    context.Context //nolint:containedctx // that of Select
	all    []*foundSeries
	at     int
	warn   *query.Warnings
	source source
}

func newSet(ctx context.Context, all []*foundSeries, warn *query.Warnings, src source) *set {
	return &set{ctx: ctx, all: all, at: -1, warn: warn, source: src}
}

func (s *set) Next() bool {
	s.at++
	return s.at < len(s.all)
}

func (s *set) At() storage.Series { return &series{foundSeries: s.all[s.at], set: s} }

func (s *set) Err() error { return nil }

// Warnings implements storage.SeriesSet. They cover what has been read so far.
func (s *set) Warnings() annotations.Annotations { return annotated(s.warn) }

func annotated(warn *query.Warnings) annotations.Annotations {
	var out annotations.Annotations
	for _, w := range warn.List() {
		out.Add(fmt.Errorf("%w: %s", annotations.PromQLWarning, w))
	}
	return out
}

// series is a storage.Series.
type series struct {
	*foundSeries
	set *set
}

func (s *series) Labels() labels.Labels { return s.labels() }

func (s *series) Iterator(it chunkenc.Iterator) chunkenc.Iterator {
	into, ok := it.(*iterator)
	if !ok {
		into = new(iterator)
	}
	into.own.free()
	*into = iterator{at: -1, ctx: s.set.ctx}
	p, err := s.set.source.points(s.place, &into.own)
	if err == nil {
		err = s.set.ctx.Err()
	}
	if err != nil {
		p = nil
	}
	into.points, into.err = p, asStored(err)
	return into
}

// asStored wraps a store failure in promql.ErrStorage. Cancellation, timeouts and the query's
// sample limit pass through.
func asStored(err error) error {
	var most promql.ErrTooManySamples
	if err == nil || errors.As(err, &most) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return promql.ErrStorage{Err: err}
}
