package query

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Sightings record the UTC day on which each series was last seen. They make it cheap to find the
// series with samples since some time: ingest reports what it takes, and the store is asked once
// for the rest. They are safe for concurrent use.
//
//  1. A series was seen on its last day, or has been deleted since. It may have been seen later,
//     unless it is known to be unseen.
//  2. A series is known to be unseen from a day on if a reading found nothing from that day on, and
//     ingest has reported nothing since. Ingest reports samples after they are durable, so a
//     reading either finds them, or is followed by their report. A reading records nothing if
//     stored data is damaged, or if records were dropped meanwhile.
//  3. Nobody reports the samples that other processes take. So in shared mode, "unseen" is valid
//     for unseenFor only.
type Sightings struct {
	shared bool

	mu     sync.RWMutex
	last   days // the last known day
	unseen days // a reading found nothing from this day on
	// sinceMs is the time of the oldest reading in unseen.
	sinceMs int64
	// newestMs is the time of the newest sample that ingest has reported.
	newestMs int64
	// edition counts Forgets and expiries. A reading that began under an earlier edition is not
	// recorded.
	edition int
}

// unseenFor is the longest time for which a series stays hidden after another process takes samples
// of it again.
const unseenFor = time.Minute

const dayMs = int64(24 * time.Hour / time.Millisecond)

// dayOf returns the day of a time, starting at 1; 0 means unknown. Times before 1970 count as its
// first day.
func dayOf(tMs int64) int32 { return int32(min(max(tMs/dayMs, 0), 1<<30)) + 1 }

// startMs returns the start of a day.
func startMs(day int32) int64 { return int64(day-1) * dayMs }

// NewSightings makes empty Sightings. Shared means that other processes take samples, too.
func NewSightings(shared bool) *Sightings { return &Sightings{shared: shared} }

// days holds a day for each series, by id; 0 if the series has none.
type days []*[pageSize]int32

func (d days) of(id metric.ScheduleID) int32 {
	if i := int(id / pageSize); id >= 0 && i < len(d) && d[i] != nil {
		return d[i][id%pageSize]
	}
	return 0
}

func (d *days) set(id metric.ScheduleID, day int32) {
	i := int(id / pageSize)
	if i >= len(*d) {
		*d = append(*d, make(days, i+1-len(*d))...)
	}
	if (*d)[i] == nil {
		(*d)[i] = new([pageSize]int32)
	}
	(*d)[i][id%pageSize] = day
}

// Saw records samples that are, or may be, durable. It is called before they are acknowledged.
func (s *Sightings) Saw(samples []metric.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range samples {
		s.newestMs = max(s.newestMs, samples[i].TimeMs)
		if day := dayOf(samples[i].TimeMs); day > s.last.of(samples[i].Schedule) && !metric.IsTombstone(samples[i].Value) {
			s.last.set(samples[i].Schedule, day)
		}
	}
}

// newest returns the time of the newest sample that ingest has reported.
func (s *Sightings) newest() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.newestMs
}

// Forget drops what is known of series whose samples were deleted, so that they are looked up
// again.
func (s *Sightings) Forget(ids []metric.ScheduleID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edition++
	for _, id := range ids {
		if s.last.of(id) != 0 {
			s.last.set(id, 0)
		}
		if s.unseen.of(id) != 0 {
			s.unseen.set(id, 0)
		}
	}
}

// since splits ids: seen are the series seen on the day or later; unknown are the series that a
// reading must look for, in times before untilMs. Series known to be unseen are dropped. Pass the
// edition to found.
func (s *Sightings) since(ids []metric.ScheduleID, day int32, nowMs int64) (seen, unknown []metric.ScheduleID, untilMs int64, edition int) {
	s.mu.Lock()
	if old := nowMs - s.sinceMs; s.shared && s.unseen != nil && (old < 0 || old >= unseenFor.Milliseconds()) {
		s.unseen = nil
		s.edition++
	}
	s.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, id := range ids {
		if s.last.of(id) >= day {
			seen = append(seen, id)
			continue
		}
		switch from := s.unseen.of(id); {
		case from == 0:
			untilMs = maxTimeMs
		case from > day:
			untilMs = max(untilMs, startMs(from))
		default:
			continue
		}
		unknown = append(unknown, id)
	}
	return seen, unknown, untilMs, s.edition
}

// unsure marks a series whose data could not be read: it may have samples.
const unsure int32 = -1

// found records the result of a reading that covers day from and later and began at nowMs. on is
// the day on which each series was found, 0 if it was not found. Not found counts only if the
// reading was whole.
func (s *Sightings) found(ids []metric.ScheduleID, on []int32, from int32, whole bool, nowMs int64, edition int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.edition != edition {
		return
	}
	if s.unseen == nil {
		s.sinceMs = nowMs
	}
	for i, id := range ids {
		switch {
		case on[i] == 0 && whole:
			s.unseen.set(id, from)
		case on[i] > s.last.of(id):
			s.last.set(id, on[i])
		}
	}
}

// Since keeps the series of ids, which are sorted, that have samples on the day of fromMs or later.
// Where stored data is damaged, it keeps series that may have samples, and warnings name the
// damage. Since misses a series only if all of its values since then are non-finite and were ground
// before this process started.
func (q *Querier) Since(ctx context.Context, ids []metric.ScheduleID, fromMs int64, warn *Warnings) ([]metric.ScheduleID, error) {
	if fromMs <= minTimeMs {
		return ids, nil
	}
	return q.kept(ctx, ids, max(dayOf(fromMs), q.firstDay()), &warn.warnings)
}

// Forget makes Since look again for series whose samples were deleted.
func (q *Querier) Forget(ids []metric.ScheduleID) { q.opts.Sightings.Forget(ids) }

// Left keeps the series of ids, which are sorted, that have or may have any data.
func (q *Querier) Left(ctx context.Context, ids []metric.ScheduleID) ([]metric.ScheduleID, error) {
	return q.kept(ctx, ids, q.firstDay(), new(warnings))
}

// Gone counts the series of ids, which are sorted, that have no data left. Nil ids stand for all
// series.
func (q *Querier) Gone(ctx context.Context, ids []metric.ScheduleID) (int, error) {
	if ids == nil {
		all, err := q.index.matched(ctx, nil)
		if err != nil {
			return 0, err
		}
		ids = all
	}
	left, err := q.Left(ctx, ids)
	return len(ids) - len(left), err
}

// firstDay returns the first day that may have any data.
func (q *Querier) firstDay() int32 {
	first := int64(maxTimeMs)
	for _, ms := range q.keptMs(q.nowMs()) {
		first = min(first, ms)
	}
	return dayOf(first)
}

func (q *Querier) kept(ctx context.Context, ids []metric.ScheduleID, day int32, warn *warnings) ([]metric.ScheduleID, error) {
	s := q.opts.Sightings
	beganMs := q.nowMs()
	seen, unknown, untilMs, edition := s.since(ids, day, beganMs)
	if len(unknown) == 0 {
		return seen, nil
	}
	// Look at the most recent data first: nearly all series are found there.
	untilMs = q.untilMs(ctx, untilMs)
	youngMs := metric.AlignDown(q.nowMs(), dayMs)
	on := make([]int32, len(unknown))
	whole := true
	for _, fromMs := range []int64{youngMs, youngMs - 7*dayMs, startMs(day)} {
		if fromMs = max(fromMs, startMs(day)); fromMs >= untilMs {
			continue
		}
		there, err := q.look(ctx, unknown, on, fromMs, untilMs, warn)
		if err != nil {
			return nil, err
		}
		whole = whole && there
		untilMs = fromMs
	}
	s.found(unknown, on, day, whole, beganMs, edition)
	for i, id := range unknown {
		if on[i] != 0 {
			seen = append(seen, id)
		}
	}
	slices.Sort(seen)
	return seen, nil
}

// look records for each of ids, which are sorted, a day in [fromMs, toMs) on which the series has
// samples, unless a day is already known. The result is not whole if data in the range is not
// ground yet, or its state is unknown.
func (q *Querier) look(ctx context.Context, ids []metric.ScheduleID, on []int32, fromMs, toMs int64, warn *warnings) (whole bool, err error) {
	levels := q.ladder.Levels()
	slices.Reverse(levels)
	plan := new(warnings)
	p, err := q.planner(ctx, fromMs, toMs, levels, plan)
	if err != nil {
		return false, err
	}
	parts := p.forGroups(plan, func(p *planner) []part { return p.plan(fromMs, toMs, levels, nil) })
	var groups []group
	places := make(map[metric.ScheduleID]int) // by the group's first series
	at := 0
	for _, g := range q.grouped(ids, math.MaxInt) {
		if missing(on[at : at+len(g.ids)]) {
			groups = append(groups, g)
			places[g.ids[0]] = at
		}
		at += len(g.ids)
	}
	for _, err := range inOrder(ctx, groups, q.opts.Parallel, func(ctx context.Context, g group) ([]struct{}, error) {
		first := places[g.ids[0]]
		on := on[first : first+len(g.ids)]
		damage := new(warnings)
		if err := q.lookAt(ctx, g, on, parts(g), damage); err != nil {
			return nil, err
		}
		if said := damage.list(); len(said) > 0 {
			for i := range on {
				if on[i] == 0 {
					on[i] = unsure
				}
			}
			warn.merge(said)
		}
		return nil, nil
	}) {
		if err != nil {
			return false, err
		}
	}
	said := plan.list()
	warn.merge(said)
	return len(said) == 0, nil
}

// missing returns whether any series has not been found.
func missing(on []int32) bool {
	return slices.ContainsFunc(on, func(day int32) bool { return day <= 0 })
}

// lookAt reads rows before samples, since there are many more samples.
func (q *Querier) lookAt(ctx context.Context, g group, on []int32, parts []part, warn *warnings) error {
	for _, part := range slices.Backward(parts) {
		if part.bucket == metric.Raw || !missing(on) {
			continue
		}
		for row, err := range q.rows(ctx, g, part.bucket, part.fromMs, part.toMs, warn) {
			if err != nil {
				return err
			}
			on[row.i] = max(on[row.i], dayOf(row.TimeMs))
		}
	}
	for _, part := range slices.Backward(parts) {
		if part.bucket != metric.Raw || !missing(on) {
			continue
		}
		if err := q.rawSlices(ctx, g, part.fromMs, part.toMs, warn, func(i int, samples []metric.Sample) {
			on[i] = max(on[i], dayOf(samples[len(samples)-1].TimeMs))
		}); err != nil {
			return err
		}
	}
	return nil
}

// GroupsSince is Groups without the series that have no samples on the day of fromMs or later; see
// Since.
func (q *Querier) GroupsSince(ctx context.Context, fromMs int64, warn *Warnings, sels ...Selector) ([]Group, error) {
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	if ids, err = q.Since(ctx, ids, fromMs, warn); err != nil {
		return nil, err
	}
	return q.asGroups(ids), nil
}

// LabelNames returns the label names of the series that match any of the selectors and have samples
// on the day of fromMs or later, sorted. Without selectors, all series match. See Since.
func (q *Querier) LabelNames(ctx context.Context, fromMs int64, warn *Warnings, sels ...Selector) ([]string, error) {
	if fromMs <= minTimeMs {
		return q.index.LabelNames(ctx, sels...)
	}
	ids, err := q.matchedSince(ctx, sels, fromMs, warn)
	if err != nil {
		return nil, err
	}
	return q.index.namesOf(ctx, ids)
}

// LabelValues returns the values of a label among the series that LabelNames looks at, sorted.
func (q *Querier) LabelValues(ctx context.Context, fromMs int64, warn *Warnings, name string, sels ...Selector) ([]string, error) {
	if fromMs <= minTimeMs {
		return q.index.LabelValues(ctx, name, sels...)
	}
	ids, err := q.matchedSince(ctx, sels, fromMs, warn)
	if err != nil {
		return nil, err
	}
	return q.index.valuesOf(ctx, name, ids)
}

func (q *Querier) matchedSince(ctx context.Context, sels []Selector, fromMs int64, warn *Warnings) ([]metric.ScheduleID, error) {
	ids, err := q.index.matched(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.Since(ctx, ids, fromMs, warn)
}
