package migrate

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/storage"
)

const (
	dayMs  = int64(24 * time.Hour / time.Millisecond)
	hourMs = int64(time.Hour / time.Millisecond)

	// chunksAtOnce bounds the chunks that are written at a time.
	chunksAtOnce = 64
)

// group copies the series of one storage group.
type group struct {
	*Migration
	report *Report
	series []series
	ids    blocks.Range
	// marks are the schedules whose roll-ups are to be ground.
	marks map[blockKey][]metric.ScheduleID
}

// blockKey is a block of a bucket in the slice that begins at startMs.
type blockKey struct {
	bucket  metric.Bucket
	block   metric.ScheduleID
	startMs int64
}

func (m *Migration) group(ctx context.Context, members []series) (*Report, error) {
	g := &group{
		Migration: m, report: &Report{Schedules: len(members)}, series: members,
		ids:   blocks.Range{Start: members[0].id, End: members[len(members)-1].id + 1},
		marks: make(map[blockKey][]metric.ScheduleID),
	}
	hours := make([]map[int64]bool, len(members))
	for i, s := range members {
		var err error
		if hours[i], err = g.rollups(ctx, s); err != nil {
			return nil, err
		}
	}
	if err := g.samples(ctx, hours); err != nil {
		return nil, err
	}
	return g.report, g.mark(ctx)
}

// feed yields the samples of one series.
type feed struct {
	next func() (metric.Sample, error, bool)
	stop func()
	head metric.Sample // the next one, if more
	more bool
}

func (f *feed) advance() (err error) {
	f.head, err, f.more = f.next()
	return err
}

// samples copies the raw samples, day by day, each day of all series. hours are those of which the store has RHQ's rows.
func (g *group) samples(ctx context.Context, hours []map[int64]bool) error {
	var feeds []*feed
	defer func() {
		for _, f := range feeds {
			f.stop()
		}
	}()
	for i, s := range g.series {
		f := new(feed)
		f.next, f.stop = iter.Pull2(g.wanted(ctx, s, hours[i]))
		feeds = append(feeds, f)
		if err := f.advance(); err != nil {
			return err
		}
	}
	for {
		endMs := int64(math.MaxInt64)
		for _, f := range feeds {
			if f.more {
				endMs = min(endMs, metric.AlignDown(f.head.TimeMs, dayMs)+dayMs)
			}
		}
		if endMs == math.MaxInt64 {
			return nil
		}
		var day []metric.Sample // sorted, since the series are
		for _, f := range feeds {
			for f.more && f.head.TimeMs < endMs {
				day = append(day, f.head)
				if err := f.advance(); err != nil {
					return err
				}
			}
		}
		if err := g.copySamples(ctx, day); err != nil {
			return err
		}
	}
}

// wanted yields the samples of a series to copy.
func (g *group) wanted(ctx context.Context, s series, hours map[int64]bool) iter.Seq2[metric.Sample, error] {
	keptMs := g.cache.KeptFrom(metric.Raw, clock.NowMs(g.clk))
	return func(yield func(metric.Sample, error) bool) {
		for from, err := range g.from.Samples(ctx, s.legacy) {
			var smp metric.Sample
			if err == nil {
				bad := g.badTime(from.TimeMs)
				if bad == "" && from.Value == nil {
					bad = "there is no value"
				}
				switch {
				case bad != "":
					g.report.bad("%s: schedule %d at %d: %s", legacy.RawTable, s.legacy, from.TimeMs, bad)
					continue
				case from.TimeMs < g.rawMs && hours[metric.AlignDown(from.TimeMs, hourMs)]:
					g.report.Aggregated++
					continue
				case from.TimeMs < keptMs:
					g.report.Expired++
					continue
				}
				smp = metric.Sample{Schedule: s.id, TimeMs: from.TimeMs, Value: *from.Value}
			}
			if !yield(smp, err) {
				return
			}
		}
	}
}

func (g *group) badTime(tMs int64) string {
	switch {
	case tMs < 0:
		return "the time is before 1970"
	case tMs >= g.endMs:
		return "the time is ahead of this clock"
	}
	return ""
}

// copySamples writes the samples that the store lacks, and reads all of them back.
func (g *group) copySamples(ctx context.Context, samples []metric.Sample) error {
	g.report.Read[0] += int64(len(samples))
	present, err := g.present(ctx, samples)
	if err != nil {
		return err
	}
	var missing []metric.Sample
	for i, s := range samples {
		if !present[i] {
			missing = append(missing, s)
		}
	}
	if len(missing) > 0 {
		if err := g.write(ctx, missing); err != nil {
			return err
		}
		g.report.Written[0] += int64(len(missing))
		if present, err = g.present(ctx, samples); err != nil {
			return err
		}
	}
	for _, ok := range present {
		if ok {
			g.report.Found[0]++
		}
	}
	return nil
}

// present reports which of the samples the store has, with whatever value: what is deleted stays deleted, and what a report has
// said of the same time stays.
func (g *group) present(ctx context.Context, samples []metric.Sample) ([]bool, error) {
	fromMs, toMs := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range samples {
		fromMs, toMs = min(fromMs, s.TimeMs), max(toMs, s.TimeMs)
	}
	present := make([]bool, len(samples))
	for c, err := range g.store.RawChunks(ctx, g.ids, g.ladder.SliceAt(metric.Raw, fromMs).StartMs, toMs+1) {
		if err != nil {
			return nil, err
		}
		// What cannot be read of a damaged chunk is missing.
		stored, _ := blocks.DecodeSamplesIn(nil, c.Data, g.ids)
		for _, s := range stored {
			if i, ok := slices.BinarySearchFunc(samples, s, metric.CompareSamples); ok {
				present[i] = true
			}
		}
	}
	return present, nil
}

// write makes samples durable, with the marks that have them ground.
func (g *group) write(ctx context.Context, samples []metric.Sample) error {
	epochs := g.store.Settings().Epochs
	var parts []cache.BlockSamples
	at := make(map[blockKey]int)
	for _, s := range samples {
		slice := g.ladder.SliceAt(metric.Raw, s.TimeMs)
		block := epochs.BlockAt(s.Schedule, slice.StartMs)
		k := blockKey{metric.Raw, block.Start, slice.StartMs}
		i, ok := at[k]
		if !ok {
			i = len(parts)
			at[k], parts = i, append(parts, cache.BlockSamples{Slice: slice, Block: block})
		}
		parts[i].Samples = append(parts[i].Samples, s)
	}
	if err := g.pace.Wait(ctx, len(samples)); err != nil {
		return err
	}
	g.writing.Lock()
	defer g.writing.Unlock()
	for some := range slices.Chunk(parts, chunksAtOnce) {
		if err := g.writer.Flush(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// row is a roll-up as in the legacy tables.
type row struct {
	timeMs        int64
	max, min, avg float64
}

// rows reads the roll-ups of a level that can be copied.
func (g *group) rows(ctx context.Context, level legacy.Level, schedule int32) ([]row, error) {
	var out []row
	var cur row
	seen := 0 // one bit per kind
	widthMs := level.Width().Milliseconds()
	bad := func(tMs int64, msg string) {
		g.report.bad("%s: schedule %d at %d: %s", level.Table(), schedule, tMs, msg)
	}
	flush := func() {
		switch {
		case seen == 0:
		case seen != 1<<legacy.Max|1<<legacy.Min|1<<legacy.Avg:
			bad(cur.timeMs, "one of max, min and avg is missing")
		case cur.timeMs%widthMs != 0:
			bad(cur.timeMs, "no roll-up slice (UTC) begins at this time")
		case g.badTime(cur.timeMs) != "":
			bad(cur.timeMs, g.badTime(cur.timeMs))
		case !finite(cur.max) || !finite(cur.min) || !finite(cur.avg):
			g.report.NotFinite++
		default:
			out = append(out, cur)
		}
		seen = 0
	}
	for v, err := range g.from.Values(ctx, level, schedule) {
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

// noValues is an empty sketch, for roll-ups whose samples, and so percentiles, are unknown.
var noValues = new(sketch.Sketch).AppendEncoded(nil)

// plain returns a roll-up with only the three known values. It counts as one sample, as every
// roll-up did in RHQ, whose averages of 6 h and 24 h are means of means. NonFinite keeps readers from taking it for the samples.
func (r *row) plain() metric.Rollup {
	return metric.Rollup{
		Count: 1, Sum: r.avg, Min: r.min, Max: r.max, First: r.avg, Last: r.avg, FirstMs: r.timeMs, LastMs: r.timeMs,
		Sketch: noValues, NonFinite: true,
	}
}

// rollups copies the roll-ups of a series, level by level, and notes what of them is to be ground. It returns the hours of
// which the store has RHQ's row.
func (g *group) rollups(ctx context.Context, s series) (hours map[int64]bool, err error) {
	var finer []row
	for _, level := range legacy.Levels {
		found, err := g.rows(ctx, level, s.legacy)
		if err != nil {
			return nil, err
		}
		same, err := g.copyRows(ctx, level, s.id, found)
		if err != nil {
			return nil, err
		}
		if level == legacy.OneHour {
			hours = same
		} else {
			g.pending(s.id, level, finer, same)
		}
		finer = found
	}
	return hours, nil
}

// copyRows writes the roll-ups that the store lacks, and reads all of them back. It returns the times of those that are in the
// store as RHQ had them.
func (g *group) copyRows(ctx context.Context, level legacy.Level, id metric.ScheduleID, found []row) (map[int64]bool, error) {
	if len(found) == 0 {
		return nil, nil
	}
	g.report.Read[level+1] += int64(len(found))
	bucket, fromMs, toMs := g.buckets[level+1], found[0].timeMs, found[len(found)-1].timeMs+1
	stored, err := g.stored(ctx, bucket, id, fromMs, toMs)
	if err != nil {
		return nil, err
	}
	var missing []metric.RollupRow
	for _, r := range found {
		if _, ok := stored[r.timeMs]; !ok {
			missing = append(missing, metric.RollupRow{Schedule: id, TimeMs: r.timeMs, Rollup: r.plain()})
		}
	}
	if len(missing) > 0 {
		if err := g.pace.Wait(ctx, len(missing)); err != nil {
			return nil, err
		}
		var fence storage.Fence
		if g.opts.Shared {
			// The fence is as old as the data, so that whatever a run writes, before or after,
			// wins.
			fence = storage.Fence(max(1, 1000*(missing[0].TimeMs+level.Width().Milliseconds())))
		}
		if err := g.store.WriteRollups(ctx, fence, bucket, missing); err != nil {
			return nil, err
		}
		g.report.Written[level+1] += int64(len(missing))
		if stored, err = g.stored(ctx, bucket, id, fromMs, toMs); err != nil {
			return nil, err
		}
	}
	same := make(map[int64]bool)
	for _, r := range found {
		if got, ok := stored[r.timeMs]; ok {
			g.report.Found[level+1]++
			same[r.timeMs] = got.Count == 1 && got.Sum == r.avg
		}
	}
	return same, nil
}

func (g *group) stored(ctx context.Context, b metric.Bucket, id metric.ScheduleID, fromMs, toMs int64) (map[int64]metric.Rollup, error) {
	out := make(map[int64]metric.Rollup)
	for r, err := range g.store.Rollups(ctx, b, blocks.Range{Start: id, End: id + 1}, fromMs, toMs) {
		if err != nil {
			return nil, err
		}
		if r.Schedule == id && !r.Damaged {
			out[r.TimeMs] = r.Rollup
		}
	}
	return out, nil
}

// pending notes the slices of a series' roll-ups, finer than level, whose rows are to be ground: those of which RHQ has no row, and
// those whose row a run has ground, perhaps without what is copied.
func (g *group) pending(id metric.ScheduleID, level legacy.Level, finer []row, same map[int64]bool) {
	bucket := g.buckets[level]
	if bucket == metric.Raw || bucket == g.ladder.Top() {
		return
	}
	keptMs, epochs := g.cache.KeptFrom(bucket, clock.NowMs(g.clk)), g.store.Settings().Epochs
	last := int64(math.MinInt64)
	for _, r := range finer {
		slice := g.ladder.SliceAt(bucket, r.timeMs)
		if slice.StartMs == last || same[slice.StartMs] {
			continue
		}
		last = slice.StartMs
		if slice.StartMs < keptMs { // no run can grind it any more
			g.report.Expired++
			continue
		}
		k := blockKey{bucket, epochs.BlockAt(id, slice.StartMs).Start, slice.StartMs}
		g.marks[k] = append(g.marks[k], id)
	}
}

// mark puts marks for what is pending, so that the next runs grind it.
func (g *group) mark(ctx context.Context) error {
	byBucket := make(map[metric.Bucket][]storage.Mark)
	for k, ids := range g.marks {
		byBucket[k.bucket] = append(byBucket[k.bucket], storage.Mark{Start: k.block, TimeMs: k.startMs, Kind: storage.MarkLate, Schedules: ids})
	}
	for _, b := range slices.Sorted(maps.Keys(byBucket)) {
		if err := g.cache.Put(ctx, 0, b, byBucket[b]); err != nil {
			return err
		}
	}
	return nil
}
