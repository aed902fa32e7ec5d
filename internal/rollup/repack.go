package rollup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup/repack"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

const (
	// lookBytes is what looking at a block counts as at least, however little the block has: a request to the store.
	lookBytes = 4 << 10
	// keepEvery is how often progress is kept. A process that dies looks again at what it has done since. Each time adds
	// a version of a document, which Cassandra remembers for days.
	keepEvery = time.Minute
)

// repacking is what Repack remembers from one call to the next.
type repacking struct {
	pace *limits.Pace
	// done holds, by shard, the slices that this process has looked through since it started. The stored progress may lag behind.
	done map[int]repack.Span
	// oldestMs is the result of the last repack.Oldest. A store that keeps raw for ever is asked once: it has many slices.
	oldestMs int64
	// stuck is the block at which the last call ended because its part of the store was away.
	stuck storage.CacheKey
	// told says that the log has the beginning and not the end.
	told bool
}

// repackPass is one call of Repack.
type repackPass struct {
	*Runner

	within repack.Range
	ids    blocks.Range
	// done is, by shard of this worker, the slices that are done. A shard that another worker holds is taken out.
	done map[int]repack.Span
	// keptAt is when progress was kept last, by the clock's Elapsed, so long ago at first that the status has it soon;
	// looked is how many slices were looked through since.
	keptAt time.Duration
	looked int
	grind  *grind
}

// Repack packs the raw chunks of slices that were ground earlier, by versions before packing or with chunks that a run
// had to leave (ADR 47): all blocks of this worker's shards, newest slices first. It does so at the rate of
// Options.RepackRate, and returns once nothing is left, or if a run is due. Like a run it may be interrupted at each step, by ctx or
// by an error, and the next call goes on. It must not be called during a run.
func (r *Runner) Repack(ctx context.Context) error {
	if !r.opts.Pack || r.opts.RepackRate <= 0 {
		return nil
	}
	if _, due, err := r.recovery.NextDue(ctx, nil); due || err != nil {
		return err
	}
	p, err := r.repackPass(ctx)
	if err != nil {
		return err
	}
	for {
		shard, slice, left := p.next()
		r.metrics.repackLeft.Set(float64(left))
		if left == 0 {
			break
		}
		switch err := p.slice(ctx, shard, slice); {
		case lost(err) && ctx.Err() == nil: // another worker holds it, and packs what is left of it
			delete(p.done, shard)
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
	if r.repacking.told {
		r.repacking.told = false
		r.opts.Logger.Info("the raw samples of earlier slices are packed")
	}
	return nil
}

func (r *Runner) repackPass(ctx context.Context) (*repackPass, error) {
	mine, err := r.member.Mine(ctx)
	if err != nil && !errors.Is(err, shards.ErrUnfit) { // heartbeats tell of that
		return nil, err
	}
	ids, err := r.store.LeasedIDs(ctx)
	if err != nil {
		return nil, err
	}
	now := clock.NowMs(r.clk)
	oldest := &r.repacking.oldestMs
	if *oldest == 0 || *oldest == math.MaxInt64 || *oldest < r.store.WholeFrom(metric.Raw, now) {
		if *oldest, err = repack.Oldest(ctx, r.store, now); err != nil {
			return nil, err
		}
	}
	kept, _, err := repack.Read(ctx, r.store)
	if err != nil {
		return nil, err
	}
	timing := r.cache.Timing()
	rest := max(timing.Delay, timing.Grace+timing.Settled()) // then all that came on time has settled
	p := &repackPass{
		Runner: r, ids: ids, done: make(map[int]repack.Span, len(mine)), keptAt: r.clk.Elapsed() - keepEvery, grind: &grind{},
		within: repack.RangeOf(r.ladder, *oldest, now-rest.Milliseconds()),
	}
	settings := r.store.Settings()
	used := usedShards(ids, settings.Epochs, settings.IndexPartitions)
	for _, shard := range mine {
		p.done[shard] = kept.Span(shard).With(r.repacking.done[shard])
		if !used[shard] {
			p.done[shard] = p.within.Span // a fine ladder has a million slices
		}
	}
	return p, nil
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

// next returns the newest slice that is left, with its shard, and how many slices are left in the shard that has the most.
func (p *repackPass) next() (shard int, slice metric.Slice, left int) {
	for sh := range p.store.Settings().IndexPartitions {
		done, mine := p.done[sh]
		if !mine {
			continue
		}
		left = max(left, p.within.Left(done))
		if s, ok := p.within.Next(done); ok && (slice == metric.Slice{} || s.StartMs > slice.StartMs) {
			shard, slice = sh, s
		}
	}
	return shard, slice, left
}

// slice packs a slice's blocks of a shard. It takes the shard's lease if there is something to pack.
func (p *repackPass) slice(ctx context.Context, shard int, slice metric.Slice) error {
	if ctx.Err() != nil { // where the shard has no block of this time, nothing else ends by it
		return context.Cause(ctx)
	}
	p.looked++
	u := &run{Runner: p.Runner, key: storage.SliceKey{StartMs: slice.StartMs}, slice: slice, began: clock.Read(p.clk)}
	p.grind.run = u
	var loose []*cache.Work
	settings := p.store.Settings()
	for id := p.ids.Start; id < p.ids.End; {
		block := settings.Epochs.BlockAt(id, slice.StartMs)
		id = block.End
		if blocks.ShardOf(block.Start, settings.IndexPartitions) != shard {
			continue
		}
		w := &cache.Work{Partition: storage.IndexPartition{SliceKey: u.key, Shard: shard}, Block: block, Slice: slice}
		is, err := p.isLoose(ctx, w)
		if err := p.orSkip(ctx, w, err); err != nil {
			return err
		}
		if is {
			loose = append(loose, w)
		}
	}
	if len(loose) > 0 {
		if err := p.pack(ctx, shard, loose); err != nil {
			return err
		}
	}
	p.done[shard] = p.done[shard].With(repack.Span{FromMs: slice.StartMs, ToMs: slice.EndMs})
	p.repacking.done[shard] = p.done[shard]
	if p.clk.Elapsed()-p.keptAt < keepEvery {
		return nil
	}
	return p.keep(ctx)
}

// groups returns the storage groups that are packed with a block.
func (p *repackPass) groups(block blocks.Range) blocks.Range {
	return block.Starting(p.store.Settings().GroupSize)
}

// isLoose reports whether a storage group that is packed with the block has several chunks in the slice.
func (p *repackPass) isLoose(ctx context.Context, w *cache.Work) (bool, error) {
	within := p.groups(w.Block)
	if within.Len() == 0 {
		return false, nil
	}
	bytes, loose := 0, false
	var groups []metric.ScheduleID
	for ch, err := range p.store.RawChunks(ctx, within, w.Slice.StartMs, w.Slice.EndMs) {
		if err != nil {
			return false, fmt.Errorf("read the raw samples of block %d: %w", w.Block.Start, err)
		}
		bytes += len(ch.Data)
		if loose = slices.Contains(groups, ch.Group); loose {
			break // and wait when the store is no longer being read
		}
		groups = append(groups, ch.Group)
	}
	return loose, p.repacking.pace.Wait(ctx, max(bytes, lookBytes))
}

// pack packs blocks of a slice and shard, under the shard's lease.
func (p *repackPass) pack(ctx context.Context, shard int, loose []*cache.Work) error {
	u, g := p.grind.run, p.grind
	if err := u.due(ctx); err != nil {
		return err
	}
	return p.member.Hold(ctx, shard, func(ctx context.Context, l *shards.Lease) error {
		g.lease = l
		for _, w := range loose {
			if err := u.steady(); err != nil {
				return err
			}
			g.from, g.packed = sources{chunks: g.from.chunks[:0]}, packed{}
			if err := p.orSkip(ctx, w, g.pack(ctx, w, p.groups(w.Block))); err != nil {
				return err
			}
			read := 0
			for _, c := range g.from.chunks {
				read += c.bytes
			}
			if g.packed.chunks > 0 {
				p.metrics.repackedBlocks.Inc()
				p.metrics.repackedBytes.Add(float64(g.packed.before))
				p.tell()
			}
			if err := p.repacking.pace.Wait(ctx, read+g.packed.after); err != nil {
				return err
			}
		}
		return nil
	})
}

// orSkip returns err, unless it concerns only this block: that stays as it is, and readers read it as before. If the part of
// the store that the block needs is away, the pass ends; if it ends there twice in a row, the block is skipped, too.
func (p *repackPass) orSkip(ctx context.Context, w *cache.Work, err error) error {
	at := w.CacheKey()
	if err == nil || stops(ctx, err) {
		return err
	}
	if storage.IsAway(err) && p.repacking.stuck != at {
		p.repacking.stuck = at
		return err
	}
	p.report(ctx, w.Partition.SliceKey, w.Block.Start, fmt.Errorf("raw samples of slice %s stay unpacked: %w", w.Slice, err))
	return nil
}

// tell logs the beginning, once there is something to do.
func (p *repackPass) tell() {
	if !p.repacking.told {
		p.repacking.told = true
		_, _, left := p.next()
		p.opts.Logger.Info("packing the raw samples of earlier slices", "slices_left", left, "bytes_per_second", p.opts.RepackRate)
	}
}

// keep keeps what is done.
func (p *repackPass) keep(ctx context.Context) error {
	if p.looked == 0 {
		return nil
	}
	p.looked, p.keptAt = 0, p.clk.Elapsed()
	return repack.Keep(ctx, p.store, p.done, p.repacking.oldestMs, clock.NowMs(p.clk))
}
