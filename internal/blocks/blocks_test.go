package blocks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

func TestBlockAt(t *testing.T) {
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
		got := BlockAt(c.id, c.size)
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
			require.Equal(t, BlockAt(start, 7), cover[0])
			require.Equal(t, BlockAt(end-1, 7), cover[len(cover)-1])
			for i := 1; i < len(cover); i++ {
				require.Equal(t, cover[i-1].End, cover[i].Start)
			}
		}
	}
}

func TestStarting(t *testing.T) {
	for _, c := range []struct{ in, starting Range }{
		{Range{0, 4}, Range{0, 4}},
		{Range{8, 16}, Range{8, 16}},
		{Range{0, 2}, Range{0, 4}},
		{Range{2, 4}, Range{4, 4}},
		{Range{5, 10}, Range{8, 12}},
		{Range{3, 13}, Range{4, 16}},
	} {
		assert.Equal(t, c.starting, c.in.Starting(4), "%v", c.in)
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
