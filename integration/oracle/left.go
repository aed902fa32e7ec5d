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
				for _, err := range st.Marks(ctx, storage.IndexPartition{SliceKey: state.SliceKey, Shard: shard}) {
					if err != nil {
						return out, err
					}
					out.Marks++
				}
			}
			size := set.Epochs.SizeAt(state.StartMs)
			for start := ids.Start; start < ids.End; start += metric.ScheduleID(size) {
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
