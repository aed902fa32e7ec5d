package cache

import (
	"cmp"
	"runtime"
	"slices"
	"sync"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// encode packs each group into its chunks. The packing is the costly part of a
// flush, so the groups are shared out over the processors.
func (w *Writer) encode(b *storage.Batch, f *flush) {
	type packed struct {
		raw   []storage.RawChunk
		cache []storage.CacheChunk
	}
	out := make([]packed, len(f.groups))
	ids := make([]blocks.ID, len(f.groups))
	for i := range ids {
		ids[i] = w.cache.ids.Next(f.startedMs)
	}
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(f.groups))
	for n := range workers {
		wg.Go(func() {
			for i := n; i < len(f.groups); i += workers {
				g := &f.groups[i]
				out[i].raw = w.rawChunks(g, ids[i])
				if !w.late(f, g.Slice) {
					out[i].cache = []storage.CacheChunk{w.cacheChunk(g, out[i].raw, ids[i])}
				}
			}
		})
	}
	wg.Wait()
	for _, p := range out {
		b.Raw = append(b.Raw, p.raw...)
		b.Cache = append(b.Cache, p.cache...)
	}
}

// rawChunks cuts a block's samples along the storage groups, which do not move when the
// block size does.
func (w *Writer) rawChunks(g *Group, id blocks.ID) []storage.RawChunk {
	var out []storage.RawChunk
	rest := g.Samples
	for len(rest) > 0 {
		group := blocks.Of(rest[0].Schedule, w.groupSize)
		n := len(rest)
		if !group.Contains(rest[n-1].Schedule) {
			n, _ = slices.BinarySearchFunc(rest, group.End, func(s metric.Sample, end metric.ScheduleID) int {
				return cmp.Compare(s.Schedule, end)
			})
		}
		out = append(out, storage.RawChunk{
			Group: group.Start, SliceMs: g.Slice.StartMs,
			Chunk: storage.Chunk{ID: id, Data: blocks.AppendSamples(nil, rest[:n])},
		})
		rest = rest[n:]
	}
	return out
}

func (w *Writer) cacheChunk(g *Group, raw []storage.RawChunk, id blocks.ID) storage.CacheChunk {
	c := storage.CacheChunk{
		CacheKey: storage.CacheKey{
			SliceKey: storage.SliceKey{Bucket: metric.Raw, StartMs: g.Slice.StartMs},
			Start:    g.Block.Start,
		},
		Chunk: storage.Chunk{ID: id},
	}
	if len(raw) == 1 {
		c.Data = raw[0].Data
	} else {
		c.Data = blocks.AppendSamples(nil, g.Samples)
	}
	return c
}
