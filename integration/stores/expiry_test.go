package stores

import (
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// shortTTL is for what tests wait to end: TTLs end by the server's clock, which cannot be simulated.
// What is to be seen before it ends is first written for an hour, since requests may take longer.
const shortTTL = 10 * time.Second

// TestLeaseEnds: a worker that dies does not release its lease. The lease ends, and another worker
// takes the shard with a higher fence.
func TestLeaseEnds(t *testing.T) {
	store := open(t, storagetest.TestSettings(), nil, clock.System{})()
	_, err := store.AcquireShard(t.Context(), 1, "gone", time.Hour)
	require.NoError(t, err)
	_, err = store.AcquireShard(t.Context(), 1, "other", time.Hour)
	require.ErrorIs(t, err, storage.ErrConflict)
	first, err := store.AcquireShard(t.Context(), 1, "gone", shortTTL)
	require.NoError(t, err)

	var second storage.Lease
	process.Eventually(t, "the lease's end", func() error {
		second, err = store.AcquireShard(t.Context(), 1, "other", time.Hour)
		return err
	})
	require.Greater(t, second.Fence, first.Fence)
	leases, err := store.Leases(t.Context())
	require.NoError(t, err)
	require.Equal(t, []storage.Lease{second}, leases)
	_, err = store.AcquireShard(t.Context(), 1, "gone", time.Minute)
	require.ErrorIs(t, err, storage.ErrConflict, "it has come back, and is late")
}

// TestTimeToLive: every row that becomes useless with time is written with a TTL. For samples and
// roll-ups it is the configured retention. For the rows that runs need it is long after the last
// run that can read them.
func TestTimeToLive(t *testing.T) {
	const day = 24 * time.Hour
	retention := storage.Retention{14 * day, 31 * day, 0, 2 * 365 * day}
	opts := place(t, storagetest.TestSettings().Ladder)
	store := openAt(t, opts, storagetest.TestSettings(), retention, clock.System{})()
	session := connect(t, opts, opts.Keyspace)
	defer session.Close()

	ctx, ids := t.Context(), blocks.NewIDs(1)
	nowMs := time.Now().UnixMilli()
	hour := metric.AlignDown(nowMs, time.Hour.Milliseconds())
	lease, err := store.AcquireShard(ctx, 0, "a", time.Hour)
	require.NoError(t, err)
	raw := storage.SliceKey{Bucket: metric.Raw, StartMs: hour}
	rollup := storage.SliceKey{Bucket: 1, StartMs: hour}
	b := &storage.Batch{Fence: lease.Fence}
	b.Raw = append(b.Raw, storage.RawChunk{Group: 0, SliceMs: hour, Chunk: storage.Chunk{ID: ids.Next(nowMs), Data: []byte("x")}})
	for _, k := range []storage.SliceKey{raw, rollup} {
		b.Open = append(b.Open, k)
		b.Marks = append(b.Marks, storage.PlacedMark{
			Partition: storage.IndexPartition{SliceKey: k},
			Mark:      storage.Mark{TimeMs: hour, ID: ids.Next(nowMs), Schedules: []metric.ScheduleID{1}, LastError: "x"},
		})
		b.Cache = append(b.Cache, storage.CacheChunk{
			CacheKey: storage.CacheKey{SliceKey: k}, Chunk: storage.Chunk{ID: ids.Next(nowMs), Data: []byte("x")},
		})
	}
	require.NoError(t, store.Write(ctx, b))
	for level := range retention[1:] {
		require.NoError(t, store.WriteRollups(ctx, lease.Fence, metric.Bucket(level+1), []metric.RollupRow{{
			Schedule: 1, TimeMs: metric.AlignDown(hour, day.Milliseconds()), Rollup: metric.Rollup{Count: 1, Sketch: []byte("x")},
		}}))
	}
	require.NoError(t, store.BeginSlice(ctx, raw))
	require.NoError(t, store.CompleteSlice(ctx, raw))
	require.NoError(t, storage.RecordRun(ctx, store, storage.Run{SliceKey: raw, Worker: "a", StartedMs: nowMs, Err: "x"}))
	require.NoError(t, storage.NewErrorLog(store, "c", "a").Record(ctx, storage.ComponentError{TimeMs: nowMs, SliceKey: raw, Message: "x"}))
	require.NoError(t, storage.Heartbeat(ctx, store, storage.Worker{ID: "a", Host: "h"}, time.Hour))
	require.NoError(t, store.PutItems(ctx, []storage.Item{
		{ItemKey: storage.ItemKey{Kind: "annotation.long", ID: "a"}, TTL: 20 * day}, {ItemKey: storage.ItemKey{Kind: "metric", ID: "a"}},
	}))
	require.NoError(t, store.PutDocument(ctx, storage.Document{DocumentHead: storage.DocumentHead{
		DocumentKey: storage.DocumentKey{Kind: "dashboard", ID: "hosts"}, Version: 1,
	}}))

	for _, c := range []struct {
		name, cql string
		want      time.Duration
	}{
		{"raw", "SELECT TTL(data) FROM raw_metrics", 14 * day},
		{"1h", "SELECT TTL(sketch) FROM one_hour_metrics", 31 * day},
		{"6h, kept for ever", "SELECT TTL(sketch) FROM six_hour_metrics", 0},
		{"24h", "SELECT TTL(sketch) FROM twenty_four_hour_metrics", 2 * 365 * day},
		// For the cache and the marks, more than four of the slices that work may be put off by.
		{"cache of raw", "SELECT TTL(data) FROM metrics_cache WHERE bucket = 0", 7*day + 4*time.Hour},
		{"cache of 1h", "SELECT TTL(data) FROM metrics_cache WHERE bucket = 1", 7*day + 24*time.Hour},
		// Marks and slices stay as long as there is work to do: until the samples and their rows
		// have expired.
		{"marks of raw", "SELECT TTL(last_error) FROM metrics_cache_index WHERE bucket = 0", (31+60)*day + 4*time.Hour},
		{"marks of 1h, whose rows are kept for ever", "SELECT TTL(schedule_ids) FROM metrics_cache_index WHERE bucket = 1", 0},
		{"begun slices", "SELECT TTL(begun) FROM slices WHERE bucket = 0", (31+60)*day + 4*time.Hour},
		{"complete slices", "SELECT TTL(complete) FROM slices WHERE bucket = 0", (31+60)*day + 4*time.Hour},
		{"runs", "SELECT TTL(value) FROM items WHERE kind = 'run'", 30 * day},
		{"errors", "SELECT TTL(value) FROM items WHERE kind = 'error'", 7 * day},
		{"workers", "SELECT TTL(value) FROM items WHERE kind = 'worker'", time.Hour},
		{"leases", "SELECT TTL(owner) FROM shards", time.Hour},
		{"items with a TTL", "SELECT TTL(value) FROM items WHERE kind = 'annotation.long'", 20 * day},
		{"items for ever", "SELECT TTL(value) FROM items WHERE kind = 'metric'", 0},
		{"documents", "SELECT TTL(body) FROM documents", 0},
		{"the newest fence stays", "SELECT TTL(newest_fence) FROM shards", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			left := ttlOf(t, session, c.cql)
			if c.want == 0 {
				require.Zero(t, left, "it is kept for ever")
				return
			}
			require.LessOrEqual(t, left, c.want)
			require.Greater(t, left, c.want-10*time.Minute)
		})
	}
}

// ttlOf returns the remaining lifetime of the first row of the result, 0 for ever.
func ttlOf(t *testing.T, session *gocql.Session, cql string) time.Duration {
	t.Helper()
	var seconds int
	require.NoError(t, session.Query(cql+" LIMIT 1 ALLOW FILTERING").Scan(&seconds))
	return time.Duration(seconds) * time.Second
}
