package blocks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		id   metric.ScheduleID
		size int
		want Range
	}{
		{0, 128, Range{0, 128}},
		{127, 128, Range{0, 128}},
		{128, 128, Range{128, 256}},
		{1000, 1, Range{1000, 1001}},
		{1000, 300, Range{900, 1200}},
	} {
		got := Of(c.id, c.size)
		assert.Equal(t, c.want, got)
		assert.True(t, got.Contains(c.id))
		assert.False(t, got.Contains(got.End))
		assert.False(t, got.Contains(got.Start-1))
		assert.Equal(t, c.size, got.Len())
	}
}

// The blocks of a range are aligned and adjacent. The first contains the range's first schedule,
// the last block its last schedule.
func TestCover(t *testing.T) {
	assert.Empty(t, Range{5, 5}.Cover(4))
	assert.Equal(t, []Range{{4, 8}}, Range{5, 8}.Cover(4))
	assert.Equal(t, []Range{{4, 8}, {8, 12}}, Range{5, 9}.Cover(4))
	for start := range metric.ScheduleID(20) {
		for end := start + 1; end < 30; end++ {
			r := Range{start, end}
			cover := r.Cover(7)
			require.Equal(t, Of(start, 7), cover[0])
			require.Equal(t, Of(end-1, 7), cover[len(cover)-1])
			for i := 1; i < len(cover); i++ {
				require.Equal(t, cover[i-1].End, cover[i].Start)
			}
		}
	}
}

// The shard of a block is part of the stored data: these numbers must not change.
func TestShardOfIsFixed(t *testing.T) {
	var got []int
	for start := range metric.ScheduleID(8) {
		got = append(got, ShardOf(start*128, 16))
	}
	assert.Equal(t, []int{11, 12, 0, 1, 10, 12, 1, 12}, got)
}

func TestShardOfSpreads(t *testing.T) {
	const n, perShard = 16, 1000
	var counts [n]int
	for i := range n * perShard {
		counts[ShardOf(metric.ScheduleID(i*128), n)]++
	}
	for shard, count := range counts {
		assert.InDelta(t, perShard, count, perShard*0.15, "shard %d", shard)
	}
}

func TestValidBlockSize(t *testing.T) {
	for n, valid := range map[int]bool{-1: false, 0: false, 1: true, 128: true, maxBlockSize: true, maxBlockSize + 1: false} {
		assert.Equal(t, valid, ValidBlockSize(n) == nil, "%d", n)
	}
}

func TestEpochs(t *testing.T) {
	e, err := Epochs(nil).Add(Epoch{FromMs: 0, BlockSize: 128})
	require.NoError(t, err)
	e2, err := e.Add(Epoch{FromMs: 1000, BlockSize: 256})
	require.NoError(t, err)
	require.Len(t, e, 1, "Add changed the epochs it was called on")

	for startMs, size := range map[int64]int{-5: 128, 0: 128, 999: 128, 1000: 256, 5000: 256} {
		assert.Equal(t, size, e2.SizeAt(startMs), "at %d", startMs)
	}
	assert.Equal(t, Range{256, 384}, e2.BlockAt(300, 999))
	assert.Equal(t, Range{256, 512}, e2.BlockAt(300, 1000))

	_, err = e2.Add(Epoch{FromMs: 1000, BlockSize: 512})
	require.ErrorIs(t, err, ErrEpochTooSoon)
	_, err = e2.Add(Epoch{FromMs: 2000, BlockSize: 0})
	require.Error(t, err)
}

// If Add shared an array between two results, the second would overwrite the first.
func TestEpochsAddDoesNotShare(t *testing.T) {
	base := make(Epochs, 1, 8)
	base[0] = Epoch{BlockSize: 128}
	a, err := base.Add(Epoch{FromMs: 1, BlockSize: 1})
	require.NoError(t, err)
	_, err = base.Add(Epoch{FromMs: 2, BlockSize: 2})
	require.NoError(t, err)
	assert.Equal(t, Epoch{FromMs: 1, BlockSize: 1}, a[1])
}
