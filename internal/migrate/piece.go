package migrate

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

const (
	dayMs  = int64(24 * time.Hour / time.Millisecond)
	hourMs = int64(time.Hour / time.Millisecond)

	// maxChunkSamples and chunksAtOnce bound what is written at a time.
	maxChunkSamples = 64 << 10
	chunksAtOnce    = 64
)

// piece copies the series of one storage group.
type piece struct {
	*Migration
	report *Report
	series []*copied
	byID   map[metric.ScheduleID]*copied
	ids    blocks.Range

	grinder rollup.Grinder
	// marks are the schedules to grind.
	marks map[markKey][]metric.ScheduleID
}

// copied is a series that is copied.
type copied struct {
	series
	// next yields the samples that are left behind head, which is the next one if more.
	next func() (legacy.Sample, error, bool)
	head legacy.Sample
	more bool
	// hours holds the roll-up of the raw samples of each hour, raw the starts of the raw slices with finite samples.
	hours map[int64]metric.Rollup
	raw   []int64
	// others are the starts of those raw slices in which somebody else has samples too.
	others map[int64]bool
	// indexed are the legacy index partitions that contain the series.
	indexed map[legacy.Waiting]bool
}

type markKey struct {
	bucket metric.Bucket
	start  metric.ScheduleID
	timeMs int64
}

func (m *Migration) piece(ctx context.Context, some []series) (*Report, error) {
	p := &piece{
		Migration: m, report: &Report{Schedules: len(some)}, byID: make(map[metric.ScheduleID]*copied),
		ids:   blocks.Range{Start: some[0].id, End: some[len(some)-1].id + 1},
		marks: make(map[markKey][]metric.ScheduleID),
	}
	for _, s := range some {
		c := &copied{series: s, hours: make(map[int64]metric.Rollup), others: make(map[int64]bool), indexed: make(map[legacy.Waiting]bool)}
		p.series, p.byID[s.id] = append(p.series, c), c
	}
	if err := p.samples(ctx); err != nil {
		return nil, err
	}
	if err := p.readIndex(ctx); err != nil {
		return nil, err
	}
	for _, s := range p.series {
		if err := p.rollups(ctx, s); err != nil {
			return nil, err
		}
	}
	return p.report, p.mark(ctx)
}

// samples copies the raw samples, day by day, each day for all series.
func (p *piece) samples(ctx context.Context) error {
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, s := range p.series {
		next, stop := iter.Pull2(p.from.Samples(ctx, s.legacy))
		stops = append(stops, stop)
		s.next = next
		if err := p.advance(s); err != nil {
			return err
		}
	}
	for {
		first := int64(math.MaxInt64)
		for _, s := range p.series {
			if s.more {
				first = min(first, s.head.TimeMs)
			}
		}
		if first == math.MaxInt64 {
			return nil
		}
		endMs := metric.AlignDown(first, dayMs) + dayMs
		bySlice := make(map[int64][]metric.Sample)
		for _, s := range p.series {
			var day []metric.Sample
			for s.more && s.head.TimeMs < endMs {
				day = append(day, metric.Sample{Schedule: s.id, TimeMs: s.head.TimeMs, Value: *s.head.Value})
				if err := p.advance(s); err != nil {
					return err
				}
			}
			p.grind(s, day)
			// Series come in the order of their ids, so that each slice's samples are sorted.
			for _, smp := range day {
				start := p.slice(metric.Raw, smp.TimeMs).StartMs
				bySlice[start] = append(bySlice[start], smp)
				if n := len(s.raw); finite(smp.Value) && (n == 0 || s.raw[n-1] != start) {
					s.raw = append(s.raw, start)
				}
			}
		}
		if err := p.write(ctx, bySlice); err != nil {
			return err
		}
	}
}

// advance moves to the next sample that can be copied.
func (p *piece) advance(s *copied) error {
	for {
		var err error
		if s.head, err, s.more = s.next(); !s.more || err != nil {
			return err
		}
		bad := p.badTime(s.head.TimeMs)
		if bad == "" && s.head.Value == nil {
			bad = "there is no value"
		}
		if bad == "" {
			return nil
		}
		p.report.bad("%s: schedule %d at %d: %s", legacy.RawTable, s.legacy, s.head.TimeMs, bad)
	}
}

func (p *piece) badTime(tMs int64) string {
	switch {
	case tMs < 0:
		return "the time is before 1970"
	case tMs >= p.endMs:
		return "the time is ahead of this clock"
	}
	return ""
}

func (p *piece) slice(b metric.Bucket, tMs int64) metric.Slice { return p.ladder.SliceAt(b, tMs) }

// grind stores the roll-up of each hour of one series' samples.
func (p *piece) grind(s *copied, samples []metric.Sample) {
	p.grinder.Reset()
	for len(samples) > 0 {
		hour := metric.AlignDown(samples[0].TimeMs, hourMs)
		n, _ := slices.BinarySearchFunc(samples, hour+hourMs, func(s metric.Sample, endMs int64) int { return cmp.Compare(s.TimeMs, endMs) })
		if r, ok := p.grinder.Samples(samples[:n]); ok {
			r.Sketch = slices.Clone(r.Sketch)
			s.hours[hour] = r
		}
		samples = samples[n:]
	}
}

// write stores a day's samples, unless they are there, and reads them back.
func (p *piece) write(ctx context.Context, bySlice map[int64][]metric.Sample) error {
	var chunks []storage.RawChunk
	counts := make(map[chunkKey]int)
	group := blocks.Of(p.ids.Start, p.store.Settings().GroupSize).Start
	for _, start := range slices.Sorted(maps.Keys(bySlice)) {
		for some := range slices.Chunk(bySlice[start], maxChunkSamples) {
			data := blocks.AppendSamples(nil, some)
			c := storage.RawChunk{Group: group, SliceMs: start, Chunk: storage.Chunk{ID: chunkID(start, data), Data: data}}
			chunks = append(chunks, c)
			counts[chunkKey{start, c.ID}] = len(some)
			p.report.Read[0] += int64(len(some))
		}
	}
	if len(chunks) == 0 {
		return nil
	}
	from, to := chunks[0].SliceMs, chunks[len(chunks)-1].SliceMs+1
	stored, err := p.chunks(ctx, from, to, counts)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(chunks, func(c storage.RawChunk) bool { return stored[chunkKey{c.SliceMs, c.ID}] })
	for some := range slices.Chunk(missing, chunksAtOnce) {
		n := 0
		for _, c := range some {
			n += counts[chunkKey{c.SliceMs, c.ID}]
		}
		if err := p.pace.Wait(ctx, n); err != nil {
			return err
		}
		if err := p.store.Write(ctx, &storage.Batch{Raw: some}); err != nil {
			return err
		}
		p.report.Written[0] += int64(n)
	}
	if len(missing) > 0 {
		if stored, err = p.chunks(ctx, from, to, counts); err != nil {
			return err
		}
	}
	for k := range stored {
		p.report.Found[0] += int64(counts[k])
	}
	return nil
}

type chunkKey struct {
	sliceMs int64
	id      blocks.ID
}

// chunkID derives the id from the content, so that a chunk which is stored intact can be recognised
// by its id. The id's time is the slice's start, so that samples of reports win over it.
func chunkID(sliceMs int64, data []byte) blocks.ID { return blocks.KeyID(sliceMs, xxhash.Sum64(data)) }

// chunks returns which of the wanted chunks the store holds intact, and notes which series have samples
// in chunks that no migration has written.
func (p *piece) chunks(ctx context.Context, fromMs, toMs int64, wanted map[chunkKey]int) (map[chunkKey]bool, error) {
	out := make(map[chunkKey]bool)
	for c, err := range p.store.RawChunks(ctx, p.ids, fromMs, toMs) {
		if err != nil {
			return nil, err
		}
		k := chunkKey{c.SliceMs, c.ID}
		if chunkID(c.SliceMs, c.Data) != c.ID {
			p.noteOthers(c)
		} else if _, ok := wanted[k]; ok {
			out[k] = true
		}
	}
	return out, nil
}

// noteOthers notes the series of a chunk. No run can grind more of a damaged chunk than what is noted.
func (p *piece) noteOthers(c storage.RawChunk) {
	samples, _ := blocks.DecodeSamplesIn(nil, c.Data, p.ids)
	for _, smp := range samples {
		if s := p.byID[smp.Schedule]; s != nil {
			s.others[c.SliceMs] = true
		}
	}
}

// row is a roll-up as in the legacy tables.
type row struct {
	timeMs        int64
	max, min, avg float64
}

// rows reads the roll-ups of a level that can be copied.
func (p *piece) rows(ctx context.Context, level legacy.Level, schedule int32) ([]row, error) {
	var out []row
	var cur row
	seen := 0 // one bit per kind
	widthMs := level.Width().Milliseconds()
	bad := func(tMs int64, msg string) {
		p.report.bad("%s: schedule %d at %d: %s", level.Table(), schedule, tMs, msg)
	}
	flush := func() {
		switch {
		case seen == 0:
		case seen != 1<<legacy.Max|1<<legacy.Min|1<<legacy.Avg:
			bad(cur.timeMs, "one of max, min and avg is missing")
		case cur.timeMs%widthMs != 0:
			bad(cur.timeMs, "no roll-up slice (UTC) begins at this time")
		case p.badTime(cur.timeMs) != "":
			bad(cur.timeMs, p.badTime(cur.timeMs))
		case !finite(cur.max) || !finite(cur.min) || !finite(cur.avg):
			p.report.NotFinite++
		default:
			out = append(out, cur)
		}
		seen = 0
	}
	for v, err := range p.from.Values(ctx, level, schedule) {
		if err != nil {
			return nil, err
		}
		if seen != 0 && v.TimeMs != cur.timeMs {
			flush()
		}
		switch {
		case v.Value == nil:
			bad(v.TimeMs, "there is no value")
			continue
		case v.Kind == legacy.Max:
			cur.max = *v.Value
		case v.Kind == legacy.Min:
			cur.min = *v.Value
		case v.Kind == legacy.Avg:
			cur.avg = *v.Value
		default:
			bad(v.TimeMs, fmt.Sprintf("unknown type %d", v.Kind))
			continue
		}
		cur.timeMs = v.TimeMs
		seen |= 1 << v.Kind
	}
	flush()
	return out, nil
}

func finite(v float64) bool { return math.Abs(v) <= math.MaxFloat64 }

// like reports whether a roll-up equals the legacy row. RHQ computed the average in another order,
// value by value, so it may differ slightly.
func (r *row) like(g *metric.Rollup, avg float64) bool {
	return g.Max == r.max && g.Min == r.min &&
		math.Abs(avg-r.avg) <= 1e-9*max(math.Abs(r.max), math.Abs(r.min))
}

// noValues is an empty sketch, for roll-ups whose samples, and so percentiles, are unknown.
var noValues = new(sketch.Sketch).AppendEncoded(nil)

// plain returns a roll-up with only the three known values. It counts as one sample, as every
// roll-up did in RHQ, whose averages of 6 h and 24 h are means of means.
func (r *row) plain() metric.Rollup {
	return metric.Rollup{Count: 1, Sum: r.avg, Min: r.min, Max: r.max, First: r.avg, Last: r.avg, Sketch: noValues}
}

// finer is a roll-up of the level below. It serves to find out what the next level is made of.
type finer struct {
	row
	exact *metric.Rollup
}

// rollups copies one series' roll-ups, level by level, and records what waits to be ground.
func (p *piece) rollups(ctx context.Context, s *copied) error {
	var below []finer
	times, others := s.raw, s.others // times of the data below: what is copied, and what others have written
	for _, level := range legacy.Levels {
		found, err := p.rows(ctx, level, s.legacy)
		if err != nil {
			return err
		}
		p.report.Read[level+1] += int64(len(found))
		var now []finer
		want := make(map[int64]metric.Rollup, len(found))
		for _, r := range found {
			f := finer{row: r}
			if level == legacy.OneHour {
				if g, ok := s.hours[r.timeMs]; ok && r.like(&g, g.Avg()) {
					f.exact = &g
				}
			} else if f.exact, err = p.merge(level, r, below); err != nil {
				return err
			}
			if want[r.timeMs] = r.plain(); f.exact != nil {
				want[r.timeMs] = *f.exact
				p.report.Exact++
			}
			now = append(now, f)
		}
		before, after, err := p.writeRollups(ctx, level, s.id, found, want, times)
		if err != nil {
			return err
		}
		p.pending(s, level, times, others, want, before)
		below, times, others = now, times[:0:0], make(map[int64]bool)
		for _, r := range found {
			times = append(times, r.timeMs)
		}
		for t, r := range after {
			if w, ok := want[t]; !ok || !same(&r, &w) {
				others[t] = true
			}
		}
	}
	return nil
}

// merge merges the roll-ups below. It returns nil unless they give the legacy row as RHQ made it,
// with an average that is the mean of theirs.
func (p *piece) merge(level legacy.Level, r row, below []finer) (*metric.Rollup, error) {
	var rows []metric.RollupRow
	sum := 0.0
	for _, f := range below {
		if metric.AlignDown(f.timeMs, level.Width().Milliseconds()) != r.timeMs {
			continue
		}
		if f.exact == nil {
			return nil, nil
		}
		rows = append(rows, metric.RollupRow{TimeMs: f.timeMs, Rollup: *f.exact})
		sum += f.avg
	}
	p.grinder.Reset()
	g, ok, err := p.grinder.Rollups(rows)
	if err != nil || !ok || !r.like(&g, sum/float64(len(rows))) {
		return nil, err
	}
	g.Sketch = slices.Clone(g.Sketch)
	return &g, nil
}

// writeRollups stores the missing rows and reads them back. It returns the rows that were there before, and those that
// are there after, of all slices of the next bucket that contain found or data below.
func (p *piece) writeRollups(
	ctx context.Context, level legacy.Level, id metric.ScheduleID, found []row, want map[int64]metric.Rollup, times []int64,
) (before, after map[int64]metric.Rollup, err error) {
	bucket, widthMs := p.buckets[level+1], level.Width().Milliseconds()
	from, to := int64(math.MaxInt64), int64(math.MinInt64)
	for _, r := range found {
		from, to = min(from, r.timeMs), max(to, r.timeMs+1)
	}
	for _, t := range times {
		from, to = min(from, metric.AlignDown(t, widthMs)), max(to, t+1)
	}
	if bucket == 0 || from >= to {
		return nil, nil, nil
	}
	if bucket < p.ladder.Top() {
		from, to = p.slice(bucket, from).StartMs, p.slice(bucket, to-1).EndMs
	}
	before, err = p.stored(ctx, bucket, id, from, to)
	if err != nil {
		return nil, nil, err
	}
	var missing []metric.RollupRow
	for _, r := range found {
		if _, ok := before[r.timeMs]; !ok {
			missing = append(missing, metric.RollupRow{Schedule: id, TimeMs: r.timeMs, Rollup: want[r.timeMs]})
		}
	}
	if len(missing) > 0 {
		if err := p.pace.Wait(ctx, len(missing)); err != nil {
			return nil, nil, err
		}
		var fence storage.Fence
		if p.opts.Shared {
			// The fence is as old as the data, so that whatever a run writes, before or after,
			// wins.
			fence = storage.Fence(max(1, 1000*(missing[0].TimeMs+widthMs)))
		}
		if err := p.store.WriteRollups(ctx, fence, bucket, missing); err != nil {
			return nil, nil, err
		}
		p.report.Written[level+1] += int64(len(missing))
	}
	after = before
	if len(missing) > 0 {
		if after, err = p.stored(ctx, bucket, id, from, to); err != nil {
			return nil, nil, err
		}
	}
	for _, r := range found {
		if _, ok := after[r.timeMs]; ok {
			p.report.Found[level+1]++
		}
	}
	return before, after, nil
}

func (p *piece) stored(ctx context.Context, b metric.Bucket, id metric.ScheduleID, fromMs, toMs int64) (map[int64]metric.Rollup, error) {
	out := make(map[int64]metric.Rollup)
	for r, err := range p.store.Rollups(ctx, b, blocks.Range{Start: id, End: id + 1}, fromMs, toMs) {
		if err != nil {
			return nil, err
		}
		if r.Schedule == id && !r.Damaged {
			out[r.TimeMs] = r.Rollup
		}
	}
	return out, nil
}

// readIndex finds out which of the series wait to be aggregated, and where.
func (p *piece) readIndex(ctx context.Context) error {
	ids := make([]int32, len(p.series))
	byLegacy := make(map[int32]*copied)
	for i, s := range p.series {
		ids[i], byLegacy[s.legacy] = s.legacy, s
	}
	for _, w := range p.waiting {
		found, err := p.from.WaitingOf(ctx, w, ids)
		if err != nil {
			return err
		}
		w.TimeMs = metric.AlignDown(w.TimeMs, w.Level.Width().Milliseconds())
		for _, id := range found {
			byLegacy[id].indexed[w] = true
		}
	}
	return nil
}

// pending records the slices of a series, of the data below level, that have yet to be ground. times are those of the
// copied data below, others those of what others have written there; before are the rows that the store had.
//
// RHQ has not ground what its index lists, and what it has no row of: what is new, and what its index has lost. Besides,
// a run of this store may have ground, or may still grind, what others have written without what is copied: it reads the
// cache, or it has read the store before the copy. Its row wins over the copied one. So a slice is ground again if others
// have data in it, if a run may still trust its cache, or if its row differs from the copied one.
func (p *piece) pending(s *copied, level legacy.Level, times []int64, others map[int64]bool, want, before map[int64]metric.Rollup) {
	bucket := metric.Raw
	if level > 0 {
		if bucket = p.buckets[level]; bucket == 0 || bucket == p.ladder.Top() {
			return
		}
	}
	widthMs, now := level.Width().Milliseconds(), clock.NowMs(p.clk)
	shared := make(map[int64]bool)
	for t := range others {
		shared[metric.AlignDown(t, widthMs)] = true
	}
	epochs := p.store.Settings().Epochs
	last := int64(math.MinInt64)
	for _, t := range times {
		slice := p.slice(bucket, t)
		if slice.StartMs == last {
			continue
		}
		start := metric.AlignDown(t, widthMs)
		stored, isStored := before[start]
		copied, isCopied := want[start]
		ground := s.hours[start]
		switch {
		case shared[start] || p.unfinished(bucket, slice):
		case isStored && level == legacy.OneHour && same(&stored, &ground):
			continue // a run has read all that is copied
		case isStored && !(isCopied && same(&stored, &copied)):
		case !isCopied || s.indexed[legacy.Waiting{Level: level, TimeMs: start}]:
		default:
			continue
		}
		last = slice.StartMs
		if slice.StartMs < p.cache.KeptFrom(bucket, now) { // no run can grind it any more
			p.report.Expired++
			continue
		}
		p.report.Marked++
		k := markKey{bucket, epochs.BlockAt(s.id, slice.StartMs).Start, slice.StartMs}
		p.marks[k] = append(p.marks[k], s.id)
	}
}

func same(a, b *metric.Rollup) bool { return a.Count == b.Count && a.Sum == b.Sum }

// mark puts marks for what is pending, so that the next runs grind it.
func (p *piece) mark(ctx context.Context) error {
	byBucket := make(map[metric.Bucket][]storage.Mark)
	for k, ids := range p.marks {
		byBucket[k.bucket] = append(byBucket[k.bucket], storage.Mark{
			Start: k.start, TimeMs: k.timeMs, Kind: storage.MarkLate, Schedules: ids,
		})
	}
	for _, b := range slices.Sorted(maps.Keys(byBucket)) {
		if err := p.cache.Put(ctx, 0, b, byBucket[b]); err != nil {
			return err
		}
	}
	return nil
}
