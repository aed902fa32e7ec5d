package query

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Sightings record, for each series, the UTC days on which it was first and last seen. So finding the series that lived at
// some time mostly reads nothing: ingest reports the samples that it takes, and the store is read once for the rest. They are
// safe for concurrent use.
//
//  1. A series had samples on its first and last day, or they have been deleted since. It may have had earlier and later ones.
//  2. A series is unseen from a day on if a reading found nothing from that day on, and ingest has reported nothing since.
//     Samples are durable before they are reported. So a reading finds a sample, or the report comes after it.
//  3. A reading of damaged data makes no series unseen. One that began before a Forget records nothing.
//  4. Other processes do not report their samples. If there are any, a series stays unseen for unseenFor after the reading
//     began, and is then read again.
//  5. A reading records what it found group by group. It goes on when its request has ended, and requests with the same
//     question wait for it.
//
// The same holds in mirrored days, in which an earlier day is a later one: there a series is last seen on its first day, and
// is unseen before a day.
type Sightings struct {
	shared bool

	mu   sync.RWMutex
	ends [2]end // by side
	// newestMs is the time of the newest sample that ingest has reported.
	newestMs int64
	// edition counts Forgets and expiries. A reading that began under an earlier edition is not
	// recorded.
	edition int
}

// side says which days are meant.
type side int

const (
	after  side = iota // days
	before             // mirrored days
)

// mirror is the sum of a day and its mirrored day.
const mirror = 1<<30 + 2

// day returns the day as this side counts days. A mirrored day is mirrored back.
func (s side) day(day int32) int32 {
	if s == before {
		return mirror - day
	}
	return day
}

// end is what is known of one end of each series.
type end struct {
	last   days // 0 if unknown
	unseen days // from which day on
	// sinceMs is when the oldest reading in unseen began.
	sinceMs int64
}

const (
	// unseenFor is how long a series that another process reports again may stay unseen, or as long as a reading takes if
	// that is more.
	unseenFor = time.Minute
	// maxLooks bounds the readings at a time. Each reads up to Options.Parallel groups at a time.
	maxLooks = 4
)

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

func (d days) day(id metric.ScheduleID) int32 {
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
		if day := dayOf(samples[i].TimeMs); day != s.ends[after].last.day(samples[i].Schedule) && !metric.IsTombstone(samples[i].Value) {
			s.saw(samples[i].Schedule, day)
		}
	}
}

// saw records a day with samples. The caller holds mu.
func (s *Sightings) saw(id metric.ScheduleID, day int32) {
	for at := range s.ends {
		if e, day := &s.ends[at], side(at).day(day); day > e.last.day(id) {
			e.last.set(id, day)
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
	for at := range s.ends {
		for _, d := range []*days{&s.ends[at].last, &s.ends[at].unseen} {
			for _, id := range ids {
				if d.day(id) != 0 {
					d.set(id, 0)
				}
			}
		}
	}
}

// unknown are series of which a reading is to say whether they were seen.
type unknown struct {
	ids     []metric.ScheduleID
	until   int32 // they are unseen from this day on, as the side counts
	beganMs int64 // when the oldest reading began that says so, or this one
	edition int
}

// since returns which of ids were seen on the day or later, as the side counts, and which are unknown. The others are unseen.
func (s *Sightings) since(at side, ids []metric.ScheduleID, day int32, nowMs int64) (seen []metric.ScheduleID, left unknown) {
	s.mu.Lock()
	e := &s.ends[at]
	if old := nowMs - e.sinceMs; s.shared && e.unseen != nil && (old < 0 || old >= unseenFor.Milliseconds()) {
		e.unseen = nil
	}
	s.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	left.beganMs, left.edition = nowMs, s.edition
	for _, id := range ids {
		if e.last.day(id) >= day {
			seen = append(seen, id)
			continue
		}
		switch from := e.unseen.day(id); {
		case from == 0:
			left.until = mirror
		case from > day:
			left.until, left.beganMs = max(left.until, from), min(left.beganMs, e.sinceMs)
		default:
			continue
		}
		left.ids = append(left.ids, id)
	}
	return seen, left
}

// unsure marks a series whose data could not be read: it may have samples.
const unsure int32 = -1

// found records what a reading of the unknown found that read from a day on, as the side counts: for each of ids a day with
// samples, or 0 for none. If the reading was not whole, a series without samples is still unknown.
func (s *Sightings) found(at side, asked unknown, ids []metric.ScheduleID, on []int32, from int32, whole bool, nowMs int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.edition != asked.edition {
		return
	}
	beganMs := asked.beganMs
	if old := nowMs - beganMs; s.shared && (old < 0 || old >= unseenFor.Milliseconds()) {
		whole = false
	}
	e := &s.ends[at]
	if whole && (e.unseen == nil || beganMs < e.sinceMs) {
		e.sinceMs = beganMs
	}
	for i, id := range ids {
		switch {
		case on[i] > 0:
			s.saw(id, on[i])
		case on[i] == 0 && whole:
			e.unseen.set(id, from)
		}
	}
}

// Lived keeps the series of ids, which are sorted, that have samples on the day of fromMs or later, and on that of toMs or
// earlier. Where stored data is damaged, it keeps series that may have samples, and warnings name the damage. Lived misses a
// series only if all of its values in that time are non-finite and were ground before this process started.
func (q *Querier) Lived(ctx context.Context, ids []metric.ScheduleID, fromMs, toMs int64, warn *Warnings) (_ []metric.ScheduleID, err error) {
	if fromMs > minTimeMs {
		if ids, err = q.seen(ctx, after, ids, max(dayOf(fromMs), q.firstDay()), warn); err != nil {
			return nil, err
		}
	}
	if dayOf(toMs) < q.firstDay() {
		return nil, nil
	}
	if !q.whole(toMs) {
		return q.seen(ctx, before, ids, before.day(dayOf(toMs)), warn)
	}
	return ids, nil
}

// whole returns whether all series have begun by the time, except for those whose samples are all ahead of the clock.
func (q *Querier) whole(toMs int64) bool { return dayOf(toMs) >= dayOf(q.nowMs()) }

// Forget makes Lived look again for series whose samples were deleted.
func (q *Querier) Forget(ids []metric.ScheduleID) { q.opts.Sightings.Forget(ids) }

// Left keeps the series of ids, which are sorted, that have or may have any data.
func (q *Querier) Left(ctx context.Context, ids []metric.ScheduleID) ([]metric.ScheduleID, error) {
	return q.seen(ctx, after, ids, q.firstDay(), new(Warnings))
}

// Gone counts the series of ids, which are sorted, that have no data left. Nil ids stand for all
// series.
func (q *Querier) Gone(ctx context.Context, ids []metric.ScheduleID) (n int, err error) {
	if ids == nil {
		if ids, err = q.index.matched(ctx, nil); err != nil {
			return 0, err
		}
	}
	left, err := q.Left(ctx, ids)
	if err != nil {
		return 0, err
	}
	gone, err := without(ctx, slices.Clone(ids), left)
	return len(gone), err
}

// firstDay returns the first day that may have any data.
func (q *Querier) firstDay() int32 {
	first := int64(maxTimeMs)
	for _, ms := range q.keptMs(q.nowMs()) {
		first = min(first, ms)
	}
	return dayOf(first)
}

// question says what a reading looks for: samples of some series from a day on, as the side counts.
type question struct {
	at      side
	ids     uint64 // a hash
	n       int
	day     int32
	edition int
}

// sighted is the result of a reading: the series that have samples.
type sighted struct {
	ids      []metric.ScheduleID
	warnings []string
}

// seen returns the series of ids that have samples on the day or later, as the side counts.
func (q *Querier) seen(ctx context.Context, at side, ids []metric.ScheduleID, day int32, warn *Warnings) ([]metric.ScheduleID, error) {
	s := q.opts.Sightings
	seen, left := s.since(at, ids, day, q.nowMs())
	if len(left.ids) == 0 {
		return seen, nil
	}
	fromMs, untilMs := startMs(day), min(startMs(left.until), maxTimeMs)
	if at == before {
		fromMs, untilMs = startMs(max(q.firstDay(), at.day(left.until)+1)), startMs(at.day(day)+1)
	}
	asked := question{at: at, ids: q.hash(ids), n: len(ids), day: day, edition: left.edition}
	found, err := q.looks.Do(ctx, asked, func(ctx context.Context) (sighted, error) {
		return q.look(ctx, left.ids, fromMs, untilMs, func(ids []metric.ScheduleID, on []int32, whole bool) {
			s.found(at, left, ids, on, day, whole, q.nowMs())
		})
	})
	if err != nil {
		return nil, err
	}
	warn.merge(found.warnings)
	// The reading may have begun before this request, and ingest has reported more since.
	seen, _ = s.since(at, ids, day, q.nowMs())
	seen = append(seen, found.ids...)
	slices.Sort(seen)
	return slices.Compact(seen), nil
}

func (q *Querier) hash(ids []metric.ScheduleID) uint64 {
	var h maphash.Hash
	h.SetSeed(q.seed)
	var b [8]byte
	for _, id := range ids {
		binary.NativeEndian.PutUint64(b[:], uint64(id))
		_, _ = h.Write(b[:])
	}
	return h.Sum64()
}

// stretch is a part of the time that is read.
type stretch struct {
	planner *Planner
	plan    *Warnings
}

// look reads samples of series, which are sorted, from fromMs on and before untilMs. It calls record for each group, with a
// day on which each series has samples, or 0 for none. A result is whole unless something has not been ground or is damaged.
func (q *Querier) look(
	ctx context.Context, ids []metric.ScheduleID, fromMs, untilMs int64, record func(ids []metric.ScheduleID, on []int32, whole bool),
) (sighted, error) {
	// Most series are found in the youngest stretch.
	untilMs = q.untilMs(ctx, untilMs)
	youngMs := metric.AlignDown(min(q.nowMs(), untilMs-1), dayMs)
	levels := q.ladder.Levels()
	slices.Reverse(levels)
	var all []stretch
	for _, beginMs := range []int64{youngMs, youngMs - 7*dayMs, fromMs} {
		if beginMs = max(beginMs, fromMs); beginMs >= untilMs {
			continue
		}
		plan := new(Warnings)
		p, err := q.planner(ctx, beginMs, untilMs, levels, nil, plan)
		if err != nil {
			return sighted{}, err
		}
		all = append(all, stretch{p, plan})
		untilMs = beginMs
	}
	var found sighted
	warn := new(Warnings)
	for id, err := range inOrder(ctx, q, q.grouped(ids, math.MaxInt), func(ctx context.Context, g Group) ([]metric.ScheduleID, error) {
		on, whole, err := q.lookIn(ctx, g, all, warn)
		if err != nil {
			return nil, err
		}
		record(g.ids, on, whole)
		var seen []metric.ScheduleID
		for i, id := range g.ids {
			if on[i] != 0 {
				seen = append(seen, id)
			}
		}
		return seen, nil
	}) {
		if err != nil {
			return sighted{}, err
		}
		found.ids = append(found.ids, id)
	}
	for _, s := range all {
		warn.merge(s.plan.List())
	}
	found.warnings = warn.List()
	return found, nil
}

// lookIn reads the stretches for a group, until all of its series are found.
func (q *Querier) lookIn(ctx context.Context, g Group, all []stretch, warn *Warnings) (on []int32, whole bool, err error) {
	on, whole = make([]int32, len(g.ids)), true
	for _, s := range all {
		var left []int
		for i, day := range on {
			if day <= 0 {
				left = append(left, i)
			}
		}
		if len(left) > 0 {
			some, damage := g.Only(left), new(Warnings)
			found := make([]int32, len(left))
			if err := q.lookAt(ctx, some, found, s.planner.For(some).parts, damage); err != nil {
				return nil, false, err
			}
			damages := damage.List()
			warn.merge(damages)
			for k, i := range left {
				if found[k] > 0 {
					on[i] = found[k]
				} else if len(damages) > 0 {
					on[i] = unsure
				}
			}
		}
		whole = whole && len(s.plan.List()) == 0
	}
	return on, whole, nil
}

// missing returns whether any series has not been found.
func missing(on []int32) bool {
	return slices.ContainsFunc(on, func(day int32) bool { return day <= 0 })
}

// lookAt reads the parts for a group, the youngest first. It reads rows before samples, since there are many more samples.
func (q *Querier) lookAt(ctx context.Context, g Group, on []int32, parts []part, warn *Warnings) error {
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
		if err := q.samples(ctx, g, part.fromMs, part.toMs, warn, nil, func(i int, samples []metric.Sample) error {
			on[i] = max(on[i], dayOf(samples[len(samples)-1].TimeMs))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// GroupsLived is Groups without the series that did not live from fromMs to toMs; see Lived.
func (q *Querier) GroupsLived(ctx context.Context, fromMs, toMs int64, warn *Warnings, sels ...Selector) ([]Group, error) {
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	if ids, err = q.Lived(ctx, ids, fromMs, toMs, warn); err != nil {
		return nil, err
	}
	return q.grouped(ids, math.MaxInt), nil
}

// LabelNames returns the label names of the series that match any of the selectors and lived from fromMs to toMs, sorted.
// Without selectors, all series match. See Lived.
func (q *Querier) LabelNames(ctx context.Context, fromMs, toMs int64, warn *Warnings, sels ...Selector) ([]string, error) {
	q.WarnUnread(warn)
	if fromMs <= minTimeMs && q.whole(toMs) {
		return q.index.LabelNames(ctx, sels...)
	}
	ids, err := q.matchedLived(ctx, sels, fromMs, toMs, warn)
	if err != nil {
		return nil, err
	}
	return q.index.namesOf(ctx, ids)
}

// LabelValues returns the values of a label among the series that LabelNames looks at, sorted.
func (q *Querier) LabelValues(ctx context.Context, fromMs, toMs int64, warn *Warnings, name string, sels ...Selector) ([]string, error) {
	q.WarnUnread(warn)
	if fromMs <= minTimeMs && q.whole(toMs) {
		return q.index.LabelValues(ctx, name, sels...)
	}
	ids, err := q.matchedLived(ctx, sels, fromMs, toMs, warn)
	if err != nil {
		return nil, err
	}
	return q.index.valuesOf(ctx, name, ids)
}

func (q *Querier) matchedLived(ctx context.Context, sels []Selector, fromMs, toMs int64, warn *Warnings) ([]metric.ScheduleID, error) {
	ids, err := q.index.matched(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.Lived(ctx, ids, fromMs, toMs, warn)
}
