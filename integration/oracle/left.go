package oracle

import (
	"context"
	"math"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Left counts what a store still holds for future runs. When everything is ground, all counts must
// be 0.
type Left struct{ Marks, CacheBlocks, OpenSlices int }

// LeftIn looks at every slice that was ever opened, including complete ones, which no server reads
// any more.
func LeftIn(ctx context.Context, st storage.Store) (Left, error) {
	var out Left
	set := st.Settings()
	ids, err := st.LeasedIDs(ctx)
	if err != nil {
		return out, err
	}
	var series []metric.ScheduleID // far fewer than ids: each start of a process leases some
	for schedule, err := range st.Schedules(ctx, ids) {
		if err != nil {
			return out, err
		}
		series = append(series, schedule.ID)
	}
	for _, bucket := range set.Ladder.Ground() {
		states, err := st.Slices(ctx, bucket, 0, math.MaxInt64)
		if err != nil {
			return out, err
		}
		for _, state := range states {
			if !state.Complete {
				out.OpenSlices++
			}
			for shard := range set.IndexPartitions {
				for _, err := range st.Marks(ctx, storage.IndexPartition{SliceKey: state.SliceKey, Shard: shard}, storage.MarkKey{}, 0) {
					if err != nil {
						return out, err
					}
					out.Marks++
				}
			}
			seen := metric.ScheduleID(-1)
			for _, id := range series {
				start := set.Epochs.BlockAt(id, state.StartMs).Start
				if start == seen {
					continue
				}
				seen = start
				chunks, err := st.CacheBlock(ctx, storage.CacheKey{SliceKey: state.SliceKey, Start: start})
				if err != nil {
					return out, err
				}
				if len(chunks) > 0 {
					out.CacheBlocks++
				}
			}
		}
	}
	return out, nil
}
