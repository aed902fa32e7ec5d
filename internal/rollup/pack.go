package rollup

import (
	"context"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// maxPacked is the maximum number of samples of a packed chunk: one row of the store, which Cassandra limits to 16 MiB.
const maxPacked = 1 << 20

// sources are the raw chunks that a block was ground from.
type sources struct {
	// known says that g.samples has all samples of these chunks, and of no others.
	known  bool
	chunks []source
}

// source is a raw chunk of a storage group. A chunk of the cache has been stored as a raw chunk with the same id in each group
// of its block: its group is anyGroup.
type source struct {
	group metric.ScheduleID
	id    blocks.ID
	bytes int
}

// packed counts what was packed: how many chunks, of how many bytes, into how many.
type packed struct{ chunks, before, after int }

func (p *packed) add(chunks, before, after int) {
	p.chunks, p.before, p.after = p.chunks+chunks, p.before+before, p.after+after
}

const anyGroup = metric.ScheduleID(-1)

// pack replaces the raw chunks of storage groups of a slice, one for each flush, by one chunk a group in which each series is a
// column: that takes less room, and a reader of one series reads only its column (ADR 46).
//
// A group is packed as a whole, in one step, by the worker that holds the shard of the block in which the group starts. So of two
// that pack the same group, as when one has lost the shard and does not know it, one has packed what the other has, and more. A run
// packs the groups that lie in a block which it has ground, from what it has in memory. Several blocks may share a group; then
// Repack packs it.
//
// What cannot be packed, or pays too little, stays as it is. Only an error that ends the run is returned.
func (g *grind) pack(ctx context.Context, w *cache.Work, groups blocks.Range) error {
	if !g.run.opts.Pack || w.Bucket() != metric.Raw || groups.Len() <= 0 {
		return nil
	}
	if !g.from.known {
		if err := g.gather(ctx, w.Slice, groups); err != nil {
			return fmt.Errorf("read the raw samples of block %d: %w", w.Block.Start, err)
		}
	}
	if !g.from.known || slices.ContainsFunc(g.from.chunks, func(c source) bool { return !g.isSettled(c.id) }) {
		return nil
	}
	for _, group := range groups.Cover(g.run.store.Settings().GroupSize) {
		err := g.packGroup(ctx, w.Slice, group)
		if err != nil && (stops(ctx, err) || storage.IsAway(err)) {
			return fmt.Errorf("pack the raw samples of block %d: %w", w.Block.Start, err)
		}
		if err != nil {
			g.run.report(ctx, w.Partition.SliceKey, w.Block.Start, fmt.Errorf("raw samples of slice %s stay unpacked: %w", w.Slice, err))
		}
	}
	return nil
}

// isSettled reports whether nothing that has an id before this one is on its way.
func (g *grind) isSettled(id blocks.ID) bool {
	return id.TimeMs() < clock.NowMs(g.run.clk)-g.run.cache.Timing().Settled().Milliseconds()
}

// gather reads all settled raw chunks of storage groups. It gathers nothing if a chunk is damaged, since that may be repaired and
// must keep its place among the others; nor if they are too many.
func (g *grind) gather(ctx context.Context, s metric.Slice, groups blocks.Range) error {
	g.samples.Reset(groups)
	g.from = sources{chunks: g.from.chunks[:0]}
	g.run.blockQueries.Add(1)
	for ch, err := range g.run.store.RawChunks(ctx, groups, s.StartMs, s.EndMs) {
		if err != nil {
			return err
		}
		if !g.isSettled(ch.ID) {
			continue
		}
		if ok, err := g.addSource(ch); err != nil || !ok || g.samples.Len() > g.run.opts.Samples {
			return nil
		}
	}
	g.from.known = true
	return nil
}

// addSource adds a raw chunk. It returns false if the chunk has other samples, too.
func (g *grind) addSource(ch storage.RawChunk) (pure bool, err error) {
	before := g.samples.Added()
	if err := g.samples.Add(ch.Data); err != nil {
		return false, err
	}
	added := g.samples.Added() - before
	if added > 0 {
		g.from.chunks = append(g.from.chunks, source{ch.Group, ch.ID, len(ch.Data)})
	}
	return added == 0 || added == blocks.Count(ch.Data), nil
}

// packGroup packs what g.samples has of a storage group, unless there is nothing to gain.
func (g *grind) packGroup(ctx context.Context, s metric.Slice, group blocks.Range) error {
	var of []blocks.ID
	bytes := 0
	for _, c := range g.from.chunks {
		if c.group == group.Start || c.group == anyGroup {
			of, bytes = append(of, c.id), bytes+c.bytes
		}
	}
	if len(of) == 0 || len(of) == 1 && of[0].Packed() {
		return nil
	}
	packed, err := g.packer.Pack(&g.samples, group, maxPacked)
	if err != nil || packed == nil || len(of) == 1 && len(packed) > bytes/8*7 {
		return err
	}
	if err := g.lease.Check(); err != nil {
		return err
	}
	err = g.run.store.PackRaw(ctx, g.lease.Fence, storage.RawChunk{
		Group: group.Start, SliceMs: s.StartMs, Chunk: storage.Chunk{ID: blocks.PackedID(of), Data: packed},
	}, of)
	if err == nil {
		g.run.metrics.packed.Add(float64(len(of)))
		g.packed.add(len(of), bytes, len(packed))
	}
	return err
}
