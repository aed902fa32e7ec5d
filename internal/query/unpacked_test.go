package query

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const testedGroup = 8

// listing yields chunks as a store does.
func listing(chunks []storage.RawChunk) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		var lent []byte
		for _, c := range chunks {
			lent = append(lent[:0], c.Data...)
			c.Data = lent
			if !yield(c, nil) {
				return
			}
		}
	}
}

// contents returns the samples of each slice and group in the chunks, and how many chunks there are and cannot be read.
func contents(t *testing.T, chunks iter.Seq2[storage.RawChunk, error]) (out map[string][]metric.Sample, n, damaged int) {
	t.Helper()
	out = make(map[string][]metric.Sample)
	var set blocks.SampleSet
	var at sliceKey
	flush := func() {
		for id, samples := range set.Series() {
			key := fmt.Sprint(at, id)
			require.NotContains(t, out, key, "a slice comes twice")
			out[key] = slices.Clone(samples)
		}
	}
	for c, err := range chunks {
		require.NoError(t, err)
		if next := (sliceKey{c.Group, c.SliceMs}); next != at || n == 0 {
			flush()
			at = next
			set.Reset(blocks.Range{Start: at.group, End: at.group + testedGroup})
		}
		if n++; set.Add(c.Data) != nil {
			damaged++
		}
	}
	flush()
	return out, n, damaged
}

// flushed is a chunk of one flush.
func flushed(rng *rand.Rand, ids *blocks.IDs, group metric.ScheduleID, sliceMs int64) storage.RawChunk {
	var all []metric.Sample
	for id := group; id < group+testedGroup; id++ {
		for range rng.IntN(3) {
			s := metric.Sample{Schedule: id, TimeMs: sliceMs + rng.Int64N(200), Value: float64(rng.IntN(1000)) / 10}
			if rng.IntN(20) == 0 {
				s.Value = math.NaN()
			}
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, metric.CompareSamples)
	all = slices.CompactFunc(all, func(a, b metric.Sample) bool { return metric.CompareSamples(a, b) == 0 })
	if len(all) == 0 {
		all = []metric.Sample{{Schedule: group, TimeMs: sliceMs}}
	}
	return storage.RawChunk{Group: group, SliceMs: sliceMs, Chunk: storage.Chunk{ID: ids.Next(sliceMs), Data: blocks.AppendSamples(nil, all)}}
}

// TestUnpackedSlices compares what readers are given with the chunks that are listed, while chunks come at the end or in
// between, go, are damaged or are packed by a run.
func TestUnpackedSlices(t *testing.T) {
	hits := 0.0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		ids := blocks.NewIDs(1)
		u := newUnpacked(testedGroup, []int{1 << 20, 4000, 300}[rng.IntN(3)], prometheus.NewRegistry())
		var chunks []storage.RawChunk
		for range 60 {
			switch n := rng.IntN(20); {
			case n == 0 && len(chunks) > 0: // a deletion, or retention
				i := rng.IntN(len(chunks))
				chunks = slices.Delete(chunks, i, min(i+1+rng.IntN(3), len(chunks)))
			case n == 1 && len(chunks) > 0: // a run
				i := rng.IntN(len(chunks))
				group := blocks.Range{Start: chunks[i].Group, End: chunks[i].Group + testedGroup}
				same := func(c storage.RawChunk) bool { return c.Group == chunks[i].Group && c.SliceMs == chunks[i].SliceMs }
				var set blocks.SampleSet
				set.Reset(group)
				var replaced []blocks.ID
				for _, c := range chunks {
					if same(c) && set.Add(c.Data) == nil {
						replaced = append(replaced, c.ID)
					}
				}
				var packer blocks.Packer
				data, err := packer.Pack(&set, group, 1<<20)
				require.NoError(t, err)
				packed := chunks[i]
				packed.Chunk = storage.Chunk{ID: blocks.PackedID(replaced), Data: slices.Clone(data)}
				chunks = append(slices.DeleteFunc(slices.Clone(chunks), same), packed)
			case n == 2 && len(chunks) > 0 && seed%4 == 0:
				i := rng.IntN(len(chunks))
				chunks[i].Data = chunks[i].Data[:len(chunks[i].Data)/2]
				chunks[i].ID = ids.Next(chunks[i].SliceMs) // the data of an id never changes
			default:
				more := rng.IntN(40)
				for range more {
					chunks = append(chunks, flushed(rng, ids, metric.ScheduleID(rng.IntN(2)*testedGroup), int64(rng.IntN(2))*1000))
				}
				if more > 1 && rng.IntN(3) == 0 { // one that surfaces late
					chunks[len(chunks)-1].ID, chunks[len(chunks)-2].ID = chunks[len(chunks)-2].ID, chunks[len(chunks)-1].ID
				}
			}
			slices.SortFunc(chunks, func(a, b storage.RawChunk) int {
				if a.Group != b.Group {
					return int(a.Group - b.Group)
				}
				if a.SliceMs != b.SliceMs {
					return int(a.SliceMs - b.SliceMs)
				}
				return a.ID.Compare(b.ID)
			})
			for range rng.IntN(3) {
				want, n, bad := contents(t, listing(chunks))
				got, fewer, badToo := contents(t, u.chunks(listing(chunks)))
				require.Len(t, got, len(want))
				for key := range want {
					requireSameBits(t, want[key], got[key])
				}
				require.LessOrEqual(t, fewer, n)
				require.Equal(t, bad, badToo, "seed %d", seed)
				require.LessOrEqual(t, u.bytes, u.maxBytes)
				require.Equal(t, len(u.slices), u.used.Len())
			}
			for _, err := range u.chunks(listing(chunks)) { // a reader that wants no more
				require.NoError(t, err)
				break
			}
		}
		hits += testutil.ToFloat64(u.gets.WithLabelValues("hit"))
	}
	require.Greater(t, hits, 30.0)
}

func requireSameBits(t *testing.T, want, got []metric.Sample) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].TimeMs, got[i].TimeMs)
		require.Equal(t, math.Float64bits(want[i].Value), math.Float64bits(got[i].Value))
	}
}

// TestRefreshesDecodeLittle: a reader that comes back is given few chunks, one that comes once all of them, and a chunk more at
// a time does not have the slice packed each time.
func TestRefreshesDecodeLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	ids := blocks.NewIDs(1)
	u := newUnpacked(testedGroup, 1<<20, nil)
	var chunks []storage.RawChunk
	packed, kept := 0, (*firstChunks)(nil)
	for i := range 360 {
		chunks = append(chunks, flushed(rng, ids, 0, 0))
		_, n, _ := contents(t, u.chunks(listing(chunks)))
		if i > 100 {
			require.LessOrEqual(t, n, 2+max(minUnpacked, i/16))
		}
		if f, _ := u.get(sliceKey{}); f != nil && f != kept {
			packed, kept = packed+1, f
		}
	}
	require.Less(t, packed, 30)
}
