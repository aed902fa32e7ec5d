// Package query reads the data that stays in the store: raw samples and roll-up rows. It finds
// series in an in-memory label index and groups them by storage group. It reads each group once for
// all of its series, so the cost of a request grows with the number of groups, not of series.
//
// A request goes through the files in this order: selector.go and admit.go parse what it selects, select.go finds the series, groups.go
// groups them, plan.go says from which levels a range is read, read.go reads rows and puts the chunks of a slice together, and
// points.go, summary.go, export.go and spans.go make answers of these.
//
// Times are in Unix ms, ranges are half open. Answers of raw samples include non-finite values;
// computed answers leave them out. Memory is bounded by the samples of one group in one slice, or
// by the number of buckets requested, not by the range. A slice with more samples than a request
// may hold is read in parts; see Options.MaxSamples.
package query

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
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
	// Sightings record when each series lived. The default learns everything from the
	// store. It suits a process that does not ingest.
	Sightings *Sightings
	// Late knows the roll-up rows that late data has made stale. The default is that no data is
	// late.
	Late *late.Tracker
	// Background runs what goes on beside requests: to look when series were seen may take longer than the
	// request that begins it.
	Background limits.Background
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
	reach     atomic.Pointer[reach]
	looks     *limits.Errands[question, sighted]
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
		looks:     limits.NewErrands[question, sighted](opts.Background, maxLooks),
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

// kept returns the part of [fromMs, toMs) in which a bucket may have data.
func (q *Querier) kept(ctx context.Context, b metric.Bucket, fromMs, toMs int64) (int64, int64) {
	return q.sinceMs(b, fromMs), q.untilMs(ctx, toMs)
}

// Index returns the label index.
func (q *Querier) Index() *Index { return q.index }
