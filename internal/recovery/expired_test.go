package recovery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/storage"
)

// Work is done as long as its input is whole, at each level, however long the work has waited.
func TestExpired(t *testing.T) {
	day := time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	hours := func(n float64) int64 { return day.Add(time.Duration(n * float64(time.Hour))).UnixMilli() }
	retention := storage.Retention{48 * time.Hour, 0, 60 * time.Hour, 0}
	for _, c := range []struct {
		name   string
		bucket metric.Bucket
		slice  float64 // hours
		due    float64
		now    int64
		want   bool
	}{
		{"raw beyond the age cap", metric.Raw, 3, 4, hours(4+25) + 1, false},
		{"raw, late data for old hours", metric.Raw, 3, 26, hours(27), false},
		{"1h kept for ever", 1, 6, 12, hours(1e6), false},
		{"6h beyond the age cap", 2, 0, 24, hours(60), false},
		{"raw input at its retention", metric.Raw, 3, 40, hours(3 + 48), false},
		{"raw input beyond", metric.Raw, 3, 40, hours(3+48) + 1, true},
		{"6h input beyond", 2, 0, 48, hours(60) + 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := clock.NewSimulated(time.UnixMilli(c.now))
			ladder := metric.DefaultLadder()
			store := newStore(retention, clk)
			r := recovery.New(store, cache.New(store, clk, 1, cache.DefaultTiming()), clk, recovery.Options{})
			w := &cache.Work{
				Partition: storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: c.bucket, StartMs: hours(c.slice)}},
				Slice:     ladder.SliceAt(c.bucket, hours(c.slice)),
				Marks:     []storage.Mark{{DueMs: hours(c.due)}},
			}
			require.Equal(t, c.want, r.Expired(w, c.now))
		})
	}
}
