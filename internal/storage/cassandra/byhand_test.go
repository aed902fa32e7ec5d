package cassandra

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// byHand runs a statement as cqlsh does, with the current time as timestamp.
func (p *process) byHand(t *testing.T, format string, args ...any) {
	t.Helper()
	s := stmt(fmt.Sprintf(format, args...))
	if strings.Contains(format, " IF ") {
		applied, err := p.session.cas(t.Context(), s)
		require.NoError(t, err)
		require.True(t, applied, format)
		return
	}
	require.NoError(t, p.session.exec(t.Context(), time.Now().UnixMicro(), s))
}

// complaints returns the last errors that the status shows.
func (p *process) complaints(t *testing.T) (out []string) {
	t.Helper()
	found, err := p.RecentErrors(t.Context())
	require.NoError(t, err)
	for _, e := range found {
		require.Equal(t, "aggregator", e.Component)
		out = append(out, e.Message)
	}
	return out
}

// writes requires that what is written under a lease is what is read afterwards.
func (p *process) writes(t *testing.T, l storage.Lease, count uint64) {
	t.Helper()
	require.NoError(t, p.WriteRollups(t.Context(), l.Fence, 1, []metric.RollupRow{{Schedule: 1, Rollup: metric.Rollup{Count: count}}}))
	for got, err := range p.Rollups(t.Context(), 1, blocks.Range{Start: 1, End: 2}, 0, 1) {
		require.NoError(t, err)
		require.Equal(t, count, got.Count)
	}
}

// Leases that no worker wrote, such as those left by somebody who tries to help with cqlsh, do not
// stop the shard, and are reported.
func TestLeasesByHand(t *testing.T) {
	o := place(t)
	p := start(t, o)
	const hour = time.Hour
	for shard, c := range []struct {
		name, cql string
		complaint string
	}{
		{
			"an owner whom nobody knows, without end",
			"INSERT INTO shards (ring, shard, owner, fence, expires) VALUES (0, %d, 'nobody', 7, 0)",
			"of \"nobody\", never expires, so no worker wrote it; taking it over",
		},
		{"and with nothing but that", "INSERT INTO shards (ring, shard, owner) VALUES (0, %d, 'nobody')", "never expires"},
		{"for years", "INSERT INTO shards (ring, shard, owner, fence) VALUES (0, %d, 'nobody', 7) USING TTL 100000000", "never expires"},
		{"no name at all", "INSERT INTO shards (ring, shard, owner) VALUES (0, %d, '')", "of \"\", never expires"},
		{"conditionally", "INSERT INTO shards (ring, shard, owner) VALUES (0, %d, 'nobody') IF NOT EXISTS", "never expires"},
		{"a fence and no owner", "INSERT INTO shards (ring, shard, fence, expires) VALUES (0, %d, 9223372036854775807, 1)", ""},
		{"nothing but the key", "INSERT INTO shards (ring, shard) VALUES (0, %d)", ""},
		{"its own, without end", "INSERT INTO shards (ring, shard, owner) VALUES (0, %d, 'w')", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.byHand(t, c.cql, shard)
			before := len(p.complaints(t))
			l, err := p.AcquireShard(t.Context(), shard, "w", hour)
			require.NoError(t, err)
			p.writes(t, l, uint64(shard+1))
			require.NoError(t, p.RenewShard(t.Context(), l, hour))
			if c.complaint == "" {
				require.Len(t, p.complaints(t), before)
			} else {
				all := p.complaints(t)
				require.Len(t, all, before+1)
				require.Contains(t, all[0], fmt.Sprintf("the lease of shard %d", shard))
				require.Contains(t, all[0], c.complaint)
			}
			_, err = p.AcquireShard(t.Context(), shard, "other", hour)
			require.ErrorIs(t, err, storage.ErrConflict, "it is a lease like any other now")
		})
	}
}

// The time in a lease is for people: the TTL decides whether the lease has ended.
func TestExpiresByHand(t *testing.T) {
	p := start(t, place(t))
	for shard, expires := range []string{"0", "-62135596800000", "253402300799999", "9223372036854775807", "null"} {
		p.byHand(t, "UPDATE shards USING TTL 600 SET owner = 'other', fence = 5, expires = %s WHERE ring = 0 AND shard = %d", expires, shard)
		_, err := p.AcquireShard(t.Context(), shard, "w", time.Hour)
		require.ErrorIs(t, err, storage.ErrConflict, expires)
		leases, err := p.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases, shard+1)
		require.NoError(t, p.ReleaseShard(t.Context(), shard, "other"))
		_, err = p.AcquireShard(t.Context(), shard, "w", time.Hour)
		require.NoError(t, err)
	}
	require.Empty(t, p.complaints(t))
}

// A holder whose lease is overwritten by hand stops. What it has written stays until its successor
// replaces it.
func TestHolderOverwrittenByHand(t *testing.T) {
	p := start(t, place(t))
	l, err := p.AcquireShard(t.Context(), 3, "w", time.Hour)
	require.NoError(t, err)
	p.byHand(t, "UPDATE shards SET owner = 'nobody', fence = null WHERE ring = 0 AND shard = 3 IF EXISTS")
	require.ErrorIs(t, p.RenewShard(t.Context(), l, time.Hour), storage.ErrConflict)
	next, err := p.AcquireShard(t.Context(), 3, "other", time.Hour)
	require.NoError(t, err)
	require.Greater(t, next.Fence, l.Fence)
	p.writes(t, next, 2)
	stale := []metric.RollupRow{{Schedule: 1, Rollup: metric.Rollup{Count: 1}}}
	require.NoError(t, p.WriteRollups(t.Context(), l.Fence, 1, stale), "it wakes up")
	p.writes(t, next, 2)
}

// Rows of shards that do not exist are not leases, and are reported once.
func TestShardOutOfRangeByHand(t *testing.T) {
	p := start(t, place(t))
	for _, shard := range []int{-1, p.shards, math.MaxInt32, math.MinInt32} {
		p.byHand(t, "INSERT INTO shards (ring, shard, owner, fence, expires) VALUES (0, %d, 'nobody', 7, 0)", shard)
	}
	for range 3 {
		_, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
		require.NoError(t, err)
	}
	leases, err := p.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases, 1)
	all := p.complaints(t)
	require.Len(t, all, 4)
	require.Contains(t, strings.Join(all, "\n"), "table shards has a row for shard 512, but the store's shards are 0 to 511: the row is ignored and can be deleted")
}

// A fence is the timestamp of what a run writes. The store does not continue from a fence far
// ahead: nothing could replace what is written at that time.
func TestNewestFenceByHand(t *testing.T) {
	o := place(t)
	p := start(t, o)
	first, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)
	p.writes(t, first, 1)
	for _, ahead := range []int64{math.MaxInt64, math.MaxInt64 - 1, time.Now().AddDate(100, 0, 0).UnixMicro()} {
		p.byHand(t, "UPDATE shards SET newest_fence = %d WHERE ring = 0", ahead)
		_, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
		require.ErrorContains(t, err, "newest_fence in table shards is ")
		require.ErrorContains(t, err, fmt.Sprintf("WHERE ring = 0 IF newest_fence = %d", ahead))
		require.NoError(t, p.RenewShard(t.Context(), first, time.Hour), "who holds one may go on")
		other := start(t, o)
		us, stamped := other.timestamp(t.Context(), 0)
		require.NoError(t, stamped)
		require.Less(t, us, time.Now().Add(time.Hour).UnixMicro(), "nor does ingest write at it")

		_, repair, _ := strings.Cut(err.Error(), "correct it with ")
		applied, err := p.session.cas(t.Context(), stmt(repair))
		require.NoError(t, err)
		require.True(t, applied, repair)
		l, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
		require.NoError(t, err)
		require.Greater(t, l.Fence, first.Fence)
		p.writes(t, l, 2)
		first = l
	}
	for _, behind := range []int64{0, -1, math.MinInt64, 5} {
		p.byHand(t, "UPDATE shards SET newest_fence = %d WHERE ring = 0", behind)
		l, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
		require.NoError(t, err)
		require.Greater(t, l.Fence, first.Fence)
		first = l
	}
	p.byHand(t, "DELETE newest_fence FROM shards WHERE ring = 0")
	l, err := p.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)
	require.Greater(t, l.Fence, first.Fence)
}

// A heartbeat that never expires belongs to no worker: shards assigned to it would never be ground.
func TestHeartbeatByHand(t *testing.T) {
	p := start(t, place(t))
	require.NoError(t, p.Heartbeat(t.Context(), storage.Worker{ID: "w", Aggregates: true}, time.Minute))
	p.byHand(t, "INSERT INTO workers (ring, id, host, started, seen, aggregates) VALUES (0, 'nobody', 'h', 0, 0, true)")
	p.byHand(t, "INSERT INTO workers (ring, id, aggregates) VALUES (0, 'bare', true)")
	for range 2 {
		workers, err := p.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, "w", workers[0].ID)
	}
	said := p.complaints(t)
	require.Len(t, said, 1)
	require.Contains(t, said[0], `"nobody"`)
}
