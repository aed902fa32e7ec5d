package cache

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// maxChunkSamples bounds a chunk, which is one row in the store. Cassandra refuses a row of 16 MiB,
// and a sample takes up to 20 bytes.
const maxChunkSamples = 64 << 10

// part is the input of one chunk: the samples of a block, or a piece of them if they are too many.
type part struct {
	*BlockSamples
	of      *unit
	samples []metric.Sample
	id      blocks.ID
}

// chunks returns the number of parts that the samples are cut into.
func (g *BlockSamples) chunks() int { return (len(g.Samples) + maxChunkSamples - 1) / maxChunkSamples }

// encode packs the samples of each block into chunks, in the writer's order or at a place in it. Packing is the costly
// part of a flush, so encode spreads the parts over the processors. The caller packs, too: so encode waits only for parts that
// others have begun, and not until busy processors have time for others.
func (w *Writer) encode(f *flush, at *blocks.Place) {
	next := func() blocks.ID { return w.cache.ids.Next(f.startedMs) }
	if at != nil {
		next = at.Next
	}
	var parts []part
	for u, g := range f.samples() {
		for samples := range slices.Chunk(g.Samples, maxChunkSamples) {
			parts = append(parts, part{&g, u, samples, next()})
		}
	}
	type packed struct {
		raw   []storage.RawChunk
		cache []storage.CacheChunk
	}
	out := make([]packed, len(parts))
	var wg sync.WaitGroup
	var taken atomic.Int64
	wg.Add(len(parts))
	work := func() {
		for i := int(taken.Add(1)) - 1; i < len(parts); i = int(taken.Add(1)) - 1 {
			out[i].raw = w.rawChunks(&parts[i])
			if !f.late[parts[i].Slice.StartMs] {
				out[i].cache = []storage.CacheChunk{parts[i].cacheChunk(out[i].raw)}
			}
			wg.Done()
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(parts)) - 1 {
		go work()
	}
	work()
	wg.Wait()
	for i, p := range out {
		u := parts[i].of
		u.raw, u.cached = append(u.raw, p.raw...), append(u.cached, p.cache...)
	}
}

// rawChunks cuts a part along the storage groups. These stay the same when the block size changes.
func (w *Writer) rawChunks(p *part) []storage.RawChunk {
	var out []storage.RawChunk
	rest := p.samples
	for len(rest) > 0 {
		group := blocks.Of(rest[0].Schedule, w.groupSize)
		n := len(rest)
		if !group.Contains(rest[n-1].Schedule) {
			n, _ = slices.BinarySearchFunc(rest, group.End, func(s metric.Sample, end metric.ScheduleID) int {
				return cmp.Compare(s.Schedule, end)
			})
		}
		out = append(out, storage.RawChunk{
			Group: group.Start, SliceMs: p.Slice.StartMs,
			Chunk: storage.Chunk{ID: p.id, Data: blocks.AppendSamples(nil, rest[:n])},
		})
		rest = rest[n:]
	}
	return out
}

func (p *part) cacheChunk(raw []storage.RawChunk) storage.CacheChunk {
	c := storage.CacheChunk{
		CacheKey: storage.CacheKey{
			SliceKey: storage.SliceKey{Bucket: metric.Raw, StartMs: p.Slice.StartMs},
			Start:    p.Block.Start,
		},
		Chunk: storage.Chunk{ID: p.id},
	}
	if len(raw) == 1 {
		c.Data = raw[0].Data
	} else {
		c.Data = blocks.AppendSamples(nil, p.samples)
	}
	return c
}
