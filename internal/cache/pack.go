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

// chunks returns the number of chunks that the samples are cut into.
func (g *BlockSamples) chunks() int { return (len(g.Samples) + maxChunkSamples - 1) / maxChunkSamples }

// encode packs the samples of each unit into chunks, in the writer's order or at a place in it. Packing is the costly
// part of a flush, so encode spreads the units over the processors. The caller packs, too: so encode waits only for units that
// others have begun, and not until busy processors have time for others.
func (w *Writer) encode(f *flush) {
	next := func() blocks.ID { return w.cache.ids.Next(f.startedMs) }
	if f.at != nil {
		next = f.at.Next
	}
	var units []*unit
	var ids [][]blocks.ID
	for _, u := range f.units {
		if u.err == nil && u.again == nil {
			units, ids = append(units, u), append(ids, make([]blocks.ID, u.chunks()))
			for i := range u.chunks() {
				ids[len(ids)-1][i] = next()
			}
		}
	}
	var wg sync.WaitGroup
	var taken atomic.Int64
	wg.Add(len(units))
	work := func() {
		for i := int(taken.Add(1)) - 1; i < len(units); i = int(taken.Add(1)) - 1 {
			w.pack(units[i], ids[i])
			wg.Done()
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(units)) - 1 {
		go work()
	}
	work()
	wg.Wait()
}

// pack packs the samples of a unit into chunks with the given ids. The cache chunks are those of the block, the raw chunks are
// cut along the storage groups, which stay the same when the block size changes.
func (w *Writer) pack(u *unit, ids []blocks.ID) {
	for samples := range slices.Chunk(u.Samples, maxChunkSamples) {
		id := ids[0]
		ids = ids[1:]
		first := len(u.raw)
		for rest := samples; len(rest) > 0; {
			group := blocks.BlockAt(rest[0].Schedule, w.groupSize)
			n := len(rest)
			if !group.Contains(rest[n-1].Schedule) {
				n, _ = slices.BinarySearchFunc(rest, group.End, func(s metric.Sample, end metric.ScheduleID) int {
					return cmp.Compare(s.Schedule, end)
				})
			}
			u.raw = append(u.raw, storage.RawChunk{
				Group: group.Start, SliceMs: u.Slice.StartMs,
				Chunk: storage.Chunk{ID: id, Data: blocks.AppendSamples(nil, rest[:n])},
			})
			rest = rest[n:]
		}
		if u.late {
			continue
		}
		data := u.raw[first].Data
		if len(u.raw) > first+1 {
			data = blocks.AppendSamples(nil, samples)
		}
		u.cached = append(u.cached, storage.CacheChunk{
			CacheKey: storage.CacheKey{
				SliceKey: storage.SliceKey{Bucket: metric.Raw, StartMs: u.Slice.StartMs},
				Start:    u.Block.Start,
			},
			Chunk: storage.Chunk{ID: id, Data: data},
		})
	}
}
