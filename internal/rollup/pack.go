package rollup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup/packing"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

const (
	// maxPacked is the maximum number of samples of a packed chunk: one row of the store, which Cassandra limits to 16 MiB.
	maxPacked = 1 << 20
	// lookBytes is what reading a group counts as at least, however little it has: a request to the store.
	lookBytes = 4 << 10
	// keepEvery is how often progress is kept. A process that dies looks again at what it has done since. Each time adds
	// a version of a document, which Cassandra remembers for days.
	keepEvery = time.Minute
)

// packer is what Pack remembers from one call to the next.
type packer struct {
	pace *limits.Pace
	// done holds, by shard of this worker, the slices that are packed. The stored progress may lag behind.
	done map[int]packing.Done
	// oldestMs is the result of the last packing.Oldest. A store that keeps raw for ever is asked once: it has many slices.
	oldestMs int64
	// stuck is where the last call ended because a part of the store was away.
	stuck groupSlice
	// announced says that the log has the beginning and not the end.
	announced bool

	mu   sync.Mutex // a run notes late data of several blocks at once
	late map[lateSlice]struct{}

	samples blocks.SampleSet
	columns blocks.Packer
	first   []byte
}

// groupSlice is a storage group in a slice.
type groupSlice struct {
	group metric.ScheduleID
	slice metric.Slice
}

// lateSlice is a slice that has got late data since it was packed, in groups that a shard packs.
type lateSlice struct {
	shard int
	slice metric.Slice
	// ranMs is the end of the slice whose run has ground the data. The data came before that and the grace.
	ranMs int64
}

func newPacker(clk clock.Clock, rate int) *packer {
	return &packer{pace: limits.NewPace(clk, rate), done: map[int]packing.Done{}, late: map[lateSlice]struct{}{}}
}

// cameLate notes that the run has ground late data of a block: its groups are packed again once that has settled. What a process
// that dies has noted stays unpacked, and so does what another worker is to pack.
func (u *run) cameLate(w *cache.Work) {
	settings, k := u.store.Settings(), u.packer
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, group := range w.Block.Cover(settings.GroupSize) {
		first := settings.Epochs.BlockAt(group.Start, w.Slice.StartMs)
		k.late[lateSlice{blocks.ShardOf(first.Start, settings.IndexPartitions), w.Slice, u.slice.EndMs}] = struct{}{}
	}
}

// packPass is one call of Pack.
type packPass struct {
	*Runner
	ids blocks.Range
	// keptAt is when progress was kept last, by the clock's Elapsed, so long ago at first that the status has it soon;
	// looked is how many slices were looked through since.
	keptAt time.Duration
	looked int
}

// Pack replaces the raw chunks of each storage group and slice, one for each flush, by one chunk in which each series is a
// column: that takes less room, and a reader of one series reads only its column (ADRs 46, 47). It packs what has settled of all
// groups of this worker's shards, at the rate of Options.PackRate, and returns once nothing is left, or if a run is due.
//
// A group is packed as a whole, in one step, by the worker that holds the shard of the block in which the group starts. So of two
// that pack the same group, as when one has lost the shard and does not know it, one has read all that the other has.
// Like a run, Pack may be interrupted at each step, by ctx or by an error, and the next call goes on. It must not be called
// during a run.
func (r *Runner) Pack(ctx context.Context) error {
	if r.opts.PackRate <= 0 {
		return nil
	}
	if _, due, err := r.recovery.NextDue(ctx, nil); due || err != nil {
		return err
	}
	p, err := r.packPass(ctx)
	if err != nil {
		return err
	}
	for {
		shard, slice, left := p.next()
		r.metrics.unpacked.Set(float64(left))
		if left == 0 {
			break
		}
		switch err := p.slice(ctx, shard, slice); {
		case lost(err) && ctx.Err() == nil: // another worker holds it, and packs what is left of it
			delete(r.packer.done, shard)
		case err != nil:
			if ctx.Err() == nil {
				_ = p.keep(ctx) // err says more
			}
			return fmt.Errorf("pack raw slice %s: %w", slice, err)
		}
	}
	if err := p.keep(ctx); err != nil {
		return err
	}
	if r.packer.announced {
		r.packer.announced = false
		r.opts.Logger.Info("the raw samples of earlier slices are packed")
	}
	return nil
}

func (r *Runner) packPass(ctx context.Context) (*packPass, error) {
	mine, err := r.member.Mine(ctx)
	if err != nil && !errors.Is(err, shards.ErrUnfit) { // heartbeats tell of that
		return nil, err
	}
	ids, err := r.store.LeasedIDs(ctx)
	if err != nil {
		return nil, err
	}
	k, now := r.packer, clock.NowMs(r.clk)
	if k.oldestMs == 0 || k.oldestMs == math.MaxInt64 || k.oldestMs < r.store.WholeFrom(metric.Raw, now) {
		if k.oldestMs, err = packing.Oldest(ctx, r.store, now); err != nil {
			return nil, err
		}
	}
	kept, _, err := packing.Read(ctx, r.store)
	if err != nil {
		return nil, err
	}
	p := &packPass{Runner: r, ids: ids, keptAt: r.clk.Elapsed() - keepEvery}
	settings := r.store.Settings()
	used := usedShards(ids, settings.Epochs, settings.IndexPartitions)
	before := k.done
	k.done = make(map[int]packing.Done, len(mine))
	for _, shard := range mine {
		done, known := before[shard]
		switch {
		case !used[shard]:
			done = packing.Done{p.within().Span} // a fine ladder has a million slices
		case !known:
			done = kept.Shard(shard)
		}
		k.done[shard] = done
	}
	for l := range k.late {
		if l.ranMs > p.settledMs() {
			continue
		}
		delete(k.late, l)
		if done, ok := k.done[l.shard]; ok {
			k.done[l.shard] = done.Without(packing.Span{FromMs: l.slice.StartMs, ToMs: l.slice.EndMs})
			k.oldestMs = min(k.oldestMs, l.slice.StartMs)
			p.looked++ // so that this is kept, too
		}
	}
	return p, nil
}

// settledMs is the time until which slices have settled: all that came on time has.
func (p *packPass) settledMs() int64 {
	t := p.cache.Timing()
	return clock.NowMs(p.clk) - max(t.Delay, t.Grace+t.Settled()).Milliseconds()
}

// within returns the slices that are to be packed. More settle meanwhile.
func (p *packPass) within() packing.Range {
	return packing.RangeOf(p.ladder, p.packer.oldestMs, p.settledMs())
}

// usedShards returns which of n shards have blocks, with the block sizes of any time.
func usedShards(ids blocks.Range, epochs blocks.Epochs, n int) []bool {
	used := make([]bool, n)
	for _, e := range epochs {
		for id := ids.Start; id < ids.End; {
			block := blocks.BlockAt(id, e.BlockSize)
			used[blocks.ShardOf(block.Start, n)] = true
			id = block.End
		}
	}
	return used
}

// next returns the slice that comes next, with its shard, and how many slices are left in the shard that has the most. The
// newest slice of all shards comes first, then the oldest.
func (p *packPass) next() (shard int, slice metric.Slice, left int) {
	within := p.within()
	newest := p.ladder.SliceAt(metric.Raw, within.ToMs-1)
	for sh := range p.store.Settings().IndexPartitions {
		done, mine := p.packer.done[sh]
		if !mine {
			continue
		}
		left = max(left, within.Left(done))
		s, ok := within.Next(done)
		if !ok || slice == newest {
			continue
		}
		if slice == (metric.Slice{}) || s == newest || s.StartMs < slice.StartMs {
			shard, slice = sh, s
		}
	}
	return shard, slice, left
}

// slice packs a slice's groups of a shard, under the shard's lease.
func (p *packPass) slice(ctx context.Context, shard int, slice metric.Slice) error {
	if ctx.Err() != nil { // where the shard has no block of this time, nothing else ends by it
		return context.Cause(ctx)
	}
	p.looked++
	if groups := p.groups(shard, slice); len(groups) > 0 {
		u := &run{Runner: p.Runner, key: storage.SliceKey{StartMs: slice.StartMs}, slice: slice, began: clock.Read(p.clk)}
		if err := u.due(ctx); err != nil {
			return err
		}
		err := p.member.Hold(ctx, shard, func(ctx context.Context, l *shards.Lease) error {
			for _, group := range groups {
				if err := u.steady(); err != nil {
					return err
				}
				if err := p.orSkip(ctx, u, group, p.group(ctx, slice, group, l)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	p.packer.done[shard] = p.packer.done[shard].With(packing.Span{FromMs: slice.StartMs, ToMs: slice.EndMs})
	if p.clk.Elapsed()-p.keptAt < keepEvery {
		return nil
	}
	return p.keep(ctx)
}

// groups returns the storage groups that start in the blocks that a shard has in a slice.
func (p *packPass) groups(shard int, slice metric.Slice) (out []blocks.Range) {
	settings := p.store.Settings()
	for id := p.ids.Start; id < p.ids.End; {
		block := settings.Epochs.BlockAt(id, slice.StartMs)
		id = block.End
		if within := block.Starting(settings.GroupSize); within.Len() > 0 && blocks.ShardOf(block.Start, settings.IndexPartitions) == shard {
			out = append(out, within.Cover(settings.GroupSize)...)
		}
	}
	return out
}

// group packs what has settled of a storage group in a slice, and waits as the rate asks. It leaves the chunks as they are if
// there is nothing to gain; if one is damaged, since that may be repaired and must keep its place among the others; and if they
// have too many samples.
func (p *packPass) group(ctx context.Context, slice metric.Slice, group blocks.Range, l *shards.Lease) error {
	ids, bytes, err := p.gather(ctx, slice, group)
	if err != nil {
		return fmt.Errorf("read the raw samples of group %d: %w", group.Start, err)
	}
	packed := []byte(nil)
	if len(ids) > 1 || len(ids) == 1 && !ids[0].Packed() {
		if packed, err = p.packer.columns.Pack(&p.packer.samples, group, maxPacked); err != nil {
			return err
		}
	}
	if packed != nil && (len(ids) > 1 || len(packed) <= bytes/8*7) {
		if err := l.Check(); err != nil {
			return err
		}
		err := p.store.PackRaw(ctx, l.Fence, storage.RawChunk{
			Group: group.Start, SliceMs: slice.StartMs, Chunk: storage.Chunk{ID: blocks.PackedID(ids), Data: packed},
		}, ids)
		if err != nil {
			return err
		}
		p.metrics.packed.Add(float64(len(ids)))
		p.tell()
	}
	return p.packer.pace.Wait(ctx, max(bytes+len(packed), lookBytes))
}

// gather reads the settled raw chunks of a storage group, and returns their ids and bytes. It returns no ids if they are not to
// be packed. One packed chunk alone is not decoded.
func (p *packPass) gather(ctx context.Context, slice metric.Slice, group blocks.Range) (ids []blocks.ID, bytes int, err error) {
	k := p.packer
	k.samples.Reset(group)
	k.first = k.first[:0]
	whole := true
	// Nothing that has an id before this time is on its way. It is one time for all chunks: if it moved on, one that is read later
	// could be packed without one before it.
	settledMs := clock.NowMs(p.clk) - p.cache.Timing().Settled().Milliseconds()
	add := func(data []byte) {
		before := k.samples.Added()
		err := k.samples.Add(data)
		whole = err == nil && k.samples.Added()-before == blocks.Count(data) && k.samples.Len() <= p.opts.Samples
	}
	for ch, err := range p.store.RawChunks(ctx, group, slice.StartMs, slice.EndMs) {
		if err != nil {
			return nil, 0, err
		}
		if ch.ID.TimeMs() >= settledMs {
			continue
		}
		bytes += len(ch.Data)
		if ids = append(ids, ch.ID); len(ids) == 1 && ch.ID.Packed() {
			k.first = append(k.first, ch.Data...)
			continue
		}
		if len(k.first) > 0 {
			add(k.first)
			k.first = k.first[:0]
		}
		if whole {
			add(ch.Data)
		}
		if !whole {
			return nil, bytes, nil
		}
	}
	return ids, bytes, nil
}

// orSkip returns err, unless it concerns only this group: that stays as it is, and readers read it as before. If the part of
// the store that the group needs is away, the pass ends; if it ends there twice in a row, the group is skipped, too.
func (p *packPass) orSkip(ctx context.Context, u *run, group blocks.Range, err error) error {
	if err == nil || stops(ctx, err) {
		return err
	}
	p.report(ctx, u.key, group.Start, fmt.Errorf("raw samples of slice %s stay unpacked: %w", u.slice, err))
	if at := (groupSlice{group.Start, u.slice}); storage.IsAway(err) && p.packer.stuck != at {
		p.packer.stuck = at
		return err
	}
	return nil
}

// tell logs the beginning of a backlog, once there is something to do.
func (p *packPass) tell() {
	if p.packer.announced {
		return
	}
	if _, _, left := p.next(); left > 1 {
		p.packer.announced = true
		p.opts.Logger.Info("packing the raw samples of earlier slices", "slices_left", left, "bytes_per_second", p.opts.PackRate)
	}
}

// keep keeps what is done.
func (p *packPass) keep(ctx context.Context) error {
	if p.looked == 0 {
		return nil
	}
	p.looked, p.keptAt = 0, p.clk.Elapsed()
	return packing.Keep(ctx, p.store, p.packer.done, p.packer.oldestMs, clock.NowMs(p.clk))
}
