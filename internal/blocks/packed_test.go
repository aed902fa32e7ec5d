package blocks_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/columns"
	"github.com/quern/quern/internal/metric"
)

// TestPackedID: the id comes after those that it replaces, and before each that any writer makes later.
func TestPackedID(t *testing.T) {
	ids := blocks.NewIDs(math.MaxUint64)
	replaced := []blocks.ID{ids.Next(1000), ids.Next(1000), ids.Next(999)}
	packed := blocks.PackedID(replaced)
	require.True(t, packed.Packed())
	require.Positive(t, packed.Compare(replaced[2]))
	require.Equal(t, packed, blocks.PackedID(replaced))
	require.NotEqual(t, packed, blocks.PackedID(replaced[1:]))
	later := ids.Next(1)
	require.Negative(t, packed.Compare(later))
	require.Negative(t, packed.Compare(blocks.NewIDs(0).Next(1001)))
	again := blocks.PackedID([]blocks.ID{packed, later})
	require.Positive(t, again.Compare(later))
	for n := range 1000 { // with chunks that came too late to be packed before
		next := blocks.PackedID([]blocks.ID{replaced[0], again, blocks.KeyID(int64(n), 1)})
		require.Positive(t, next.Compare(again))
		require.True(t, next.Packed())
		require.Negative(t, next.Compare(blocks.NewIDs(0).Next(1001)))
		again = next
	}
	for _, id := range append(replaced, later) {
		require.False(t, id.Packed())
	}
}

// TestReplacedRanges: the ranges hold what is replaced and nothing else of a group, nor any chunk that another packer makes of the
// rest. Several writers make ids at the same time.
func TestReplacedRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	merged := 0
	for range 2000 {
		var ids []blocks.ID
		for ms := range int64(1 + r.IntN(6)) {
			for writer := range uint64(1 + r.IntN(3)) {
				ids = append(ids, blocks.NewIDs(writer).Next(ms))
			}
			if r.IntN(3) == 0 {
				ids = append(ids, blocks.PackedID([]blocks.ID{blocks.NewIDs(9).Next(ms)}))
			}
		}
		var kept []blocks.ID
		replaced := make(map[blocks.ID]bool)
		for _, id := range ids {
			if replaced[id] = r.IntN(3) > 0; !replaced[id] {
				kept = append(kept, id)
			}
		}
		ranges := blocks.ReplacedRanges(ids, func(id blocks.ID) bool { return replaced[id] })
		deleted := func(id blocks.ID) bool {
			return slices.ContainsFunc(ranges, func(r [2]blocks.ID) bool { return r[0].Compare(id) <= 0 && id.Compare(r[1]) <= 0 })
		}
		for _, id := range ids {
			require.Equal(t, replaced[id], deleted(id), "%v of %v", id, ids)
		}
		for i := range kept {
			others := kept[r.IntN(i+1) : i+1]
			packed := blocks.PackedID(others)
			require.False(t, deleted(packed), "%v, of %v", packed, others)
			require.False(t, deleted(blocks.PackedID([]blocks.ID{packed})))
		}
		merged += len(ids) - len(kept) - len(ranges)
	}
	require.Greater(t, merged, 1000, "chunks that follow each other are one range")
}

// samplesAt returns a sample of each schedule at each time.
func samplesAt(ids blocks.Range, times int, value func(id metric.ScheduleID, i int) float64) []metric.Sample {
	var out []metric.Sample
	for id := ids.Start; id < ids.End; id++ {
		for i := range times {
			out = append(out, metric.Sample{Schedule: id, TimeMs: int64(i) * 10_000, Value: value(id, i)})
		}
	}
	return out
}

func contents(s *blocks.SampleSet) []metric.Sample {
	var out []metric.Sample
	for _, samples := range s.Series() {
		out = append(out, samples...)
	}
	return out
}

// sameBits compares samples with the bits of their values: NaN equals itself.
func sameBits(t *testing.T, want, got []metric.Sample) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].Schedule, got[i].Schedule, i)
		require.Equal(t, want[i].TimeMs, got[i].TimeMs, i)
		require.Equal(t, math.Float64bits(want[i].Value), math.Float64bits(got[i].Value), i)
	}
}

// TestPackIsWhatWasAdded: a packed chunk gives back what its chunks gave, of whatever they consist, also together with chunks
// that came later, and in part.
func TestPackIsWhatWasAdded(t *testing.T) {
	odd := []float64{
		math.NaN(), math.Float64frombits(0x7ff0000000000002), metric.Tombstone(), math.Inf(1), math.Inf(-1),
		math.Copysign(0, -1), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1, 1e300,
	}
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			group := blocks.Range{Start: 128, End: 256}
			var want, packed, p blocks.SampleSet
			var packer blocks.Packer
			want.Reset(group)
			p.Reset(group)
			chunk := func() []byte {
				ids := blocks.Range{Start: group.Start + metric.ScheduleID(rng.IntN(100)), End: group.End}
				var some []metric.Sample
				for _, s := range samplesAt(ids, 1+rng.IntN(40), func(metric.ScheduleID, int) float64 { return math.Round(rng.NormFloat64()*1e4) / 100 }) {
					if rng.IntN(3) == 0 {
						continue
					}
					if rng.IntN(20) == 0 {
						s.Value = odd[rng.IntN(len(odd))]
					}
					some = append(some, s)
				}
				return blocks.AppendSamples(nil, some)
			}
			for range 1 + rng.IntN(8) {
				c := chunk()
				require.NoError(t, want.Add(c))
				require.NoError(t, p.Add(c))
			}
			made, err := packer.Pack(&p, group, math.MaxInt)
			require.NoError(t, err)
			packed.Reset(group)
			require.NoError(t, packed.Add(made))
			sameBits(t, contents(&want), contents(&packed))
			require.Equal(t, len(contents(&want)), blocks.Count(made))

			late := chunk()
			require.NoError(t, want.Add(late))
			require.NoError(t, packed.Add(late))
			sameBits(t, contents(&want), contents(&packed))

			// Some schedules at some times, by all the ways there are.
			only := []metric.ScheduleID{group.Start + metric.ScheduleID(rng.IntN(100)), group.End - 2, group.End + 5}
			fromMs := int64(rng.IntN(200_000))
			toMs := fromMs + int64(rng.IntN(300_000))
			var part, all blocks.SampleSet
			all.Reset(group)
			require.NoError(t, all.Add(made))
			part.Reset(group)
			part.Only(only, fromMs, toMs)
			needs := part.Open(made).Needs()
			require.NoError(t, part.Add(made))
			wanted := slices.DeleteFunc(contents(&all), func(s metric.Sample) bool {
				return !slices.Contains(only, s.Schedule) || s.TimeMs < fromMs || s.TimeMs >= toMs
			})
			sameBits(t, wanted, contents(&part))
			require.GreaterOrEqual(t, needs, part.Bytes())
		})
	}
}

// TestPackFormats: many samples become columns, few do not.
func TestPackFormats(t *testing.T) {
	var packer blocks.Packer
	var set blocks.SampleSet
	for times, format := range map[int]byte{1: 1, 360: columns.Format} {
		group := blocks.Range{Start: 0, End: 128}
		set.Reset(group)
		require.NoError(t, set.Add(blocks.AppendSamples(nil, samplesAt(group, times, func(id metric.ScheduleID, i int) float64 { return float64(int(id)*1000 + i*i%97) }))))
		chunk, err := packer.Pack(&set, group, 1<<20)
		require.NoError(t, err)
		require.Equal(t, format, chunk[0], times)
		none, err := packer.Pack(&set, blocks.Range{Start: 128, End: 256}, 1<<20)
		require.NoError(t, err)
		require.Nil(t, none)
		none, err = packer.Pack(&set, group, 100)
		require.NoError(t, err)
		require.Nil(t, none)
	}
}

// TestDamagedColumns: a damaged column costs its series, by name. Damaged times cost the series that share them, and a damaged
// head all.
func TestDamagedColumns(t *testing.T) {
	group := blocks.Range{Start: 0, End: 128}
	var packer blocks.Packer
	var set blocks.SampleSet
	set.Reset(group)
	require.NoError(t, set.Add(blocks.AppendSamples(nil, samplesAt(group, 60, func(id metric.ScheduleID, i int) float64 { return float64(i * int(id)) }))))
	chunk, err := packer.Pack(&set, group, 1<<20)
	require.NoError(t, err)
	damaged := slices.Clone(chunk)
	damaged[len(chunk)-1] ^= 1 // the last series
	set.Reset(group)
	var columns *blocks.DamagedColumns
	err = set.Add(damaged)
	require.ErrorAs(t, err, &columns)
	require.ErrorIs(t, err, blocks.ErrCorrupt)
	require.Equal(t, []metric.ScheduleID{127}, columns.Schedules)
	require.ErrorContains(t, err, "schedule 127")
	require.Equal(t, 127*60, set.Len())
	set.Reset(group)
	set.Only([]metric.ScheduleID{5}, 0, math.MaxInt64)
	require.NoError(t, set.Add(damaged))
	require.Equal(t, 60, set.Len())

	lost := map[int]bool{}
	for i := range chunk {
		damaged := slices.Clone(chunk)
		damaged[i] ^= 0x10
		set.Reset(group)
		err := set.Add(damaged)
		require.ErrorIs(t, err, blocks.ErrCorrupt, "byte %d", i)
		n := 128
		if errors.As(err, &columns) {
			n = len(columns.Schedules)
		}
		require.Equal(t, (128-n)*60, set.Len())
		lost[n] = true
	}
	require.Equal(t, map[int]bool{1: true, 128: true}, lost)
}

// TestColumnsThatDoNotAscend: what a set knows of one chunk of columns it does not take for granted of times that do not ascend, nor
// once another chunk is added.
func TestColumnsThatDoNotAscend(t *testing.T) {
	columnsOf := func(times ...int64) []byte {
		s := columns.Series{Schedule: 3, Times: times}
		for i := range times {
			s.Values = append(s.Values, float64(i))
		}
		return new(columns.Encoder).Append(nil, []columns.Series{{Schedule: 1, Times: []int64{5}, Values: []float64{7}}, s})
	}
	sample := func(schedule metric.ScheduleID, timeMs int64, v float64) metric.Sample {
		return metric.Sample{Schedule: schedule, TimeMs: timeMs, Value: v}
	}
	var set blocks.SampleSet
	for name, c := range map[string]struct {
		chunks [][]byte
		want   []metric.Sample
	}{
		"ascending":    {[][]byte{columnsOf(10, 20, 30)}, []metric.Sample{sample(1, 5, 7), sample(3, 10, 0), sample(3, 20, 1), sample(3, 30, 2)}},
		"unsorted":     {[][]byte{columnsOf(30, 10, 20)}, []metric.Sample{sample(1, 5, 7), sample(3, 10, 1), sample(3, 20, 2), sample(3, 30, 0)}},
		"a time twice": {[][]byte{columnsOf(10, 20, 20)}, []metric.Sample{sample(1, 5, 7), sample(3, 10, 0), sample(3, 20, 2)}},
		"two chunks": {
			[][]byte{columnsOf(10, 20, 30), columnsOf(15, 20)},
			[]metric.Sample{sample(1, 5, 7), sample(3, 10, 0), sample(3, 15, 0), sample(3, 20, 1), sample(3, 30, 2)},
		},
		"none of the second": {
			[][]byte{columnsOf(10, 20, 30), blocks.AppendSamples(nil, []metric.Sample{sample(9, 1, 1)})},
			[]metric.Sample{sample(1, 5, 7), sample(3, 10, 0), sample(3, 20, 1), sample(3, 30, 2)},
		},
	} {
		set.Reset(blocks.Range{Start: 0, End: 9})
		for _, chunk := range c.chunks {
			require.NoError(t, set.Add(chunk), name)
		}
		require.Equal(t, c.want, contents(&set), name)
	}
}
