package cassandra

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlReadSlices = `SELECT time_slice, begun, complete FROM slices WHERE bucket = ? AND time_slice >= ? AND time_slice < ?`
	cqlBeginSlice = `INSERT INTO slices (bucket, time_slice, begun) VALUES (?, ?, true) USING TTL ?`
	// The newest slice of each bucket whose run has begun is a row of the reserved partition -1, with the
	// bucket as its time_slice. Its write timestamp is the start of the slice: so the newest slice wins, in any
	// order of writes and of clocks.
	cqlNewestBegun   = `SELECT WRITETIME(begun) AS newest FROM slices WHERE bucket = -1 AND time_slice = ?`
	cqlKeepBegun     = `INSERT INTO slices (bucket, time_slice, begun) VALUES (-1, ?, true) USING TTL 0 AND TIMESTAMP ?`
	cqlCompleteSlice = `INSERT INTO slices (bucket, time_slice, complete) VALUES (?, ?, true) USING TTL ?`

	cqlRawIDs    = `SELECT chunk_id FROM raw_metrics WHERE start_schedule_id = ? AND day = ? AND time_slice = ?`
	cqlDeleteRaw = `DELETE FROM raw_metrics WHERE start_schedule_id = ? AND day = ? AND time_slice = ? AND chunk_id >= ? AND chunk_id <= ?`

	cqlReadCache   = `SELECT chunk_id, data FROM metrics_cache WHERE bucket = ? AND time_slice = ? AND start_schedule_id = ?`
	cqlDeleteCache = `DELETE FROM metrics_cache WHERE bucket = ? AND time_slice = ? AND start_schedule_id = ?`
)

type sliceRow struct {
	StartMs  int64 `db:"time_slice"`
	Begun    bool  `db:"begun"`
	Complete bool  `db:"complete"`
}

// Slices implements storage.Runs. Each bucket is a partition.
func (s *Store) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	const op = "slices"
	if ctx.Err() != nil || fromMs >= toMs {
		return nil, convert(ctx, ctx.Err())
	}
	var out []storage.SliceState
	for r, err := range rows[sliceRow](ctx, s.session, manyRows, stmt(cqlReadSlices, int(b), fromMs, toMs)) {
		if err != nil {
			return nil, named(op, err)
		}
		out = append(out, storage.SliceState{SliceKey: storage.SliceKey{Bucket: b, StartMs: r.StartMs}, Begun: r.Begun, Complete: r.Complete})
	}
	return out, nil
}

// BeginSlice implements storage.Runs. The newest begun slice comes first: once the slice has its record, it is not
// begun again.
func (s *Store) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	const op = "begin slice"
	us := begunUs(k.StartMs)
	if err := s.session.exec(ctx, us, stmt(cqlKeepBegun, int64(k.Bucket), us)); err != nil {
		return named(op, err)
	}
	return named(op, s.setState(ctx, cqlBeginSlice, k))
}

// begunUs returns the write timestamp for a slice, in µs since 1970 as all others. The statement names it, since the
// driver takes 0 for the present.
func begunUs(startMs int64) int64 {
	const most = math.MaxInt64 / 1000
	return 1000 * max(-most, min(startMs, most))
}

// NewestBegun implements storage.Runs.
func (s *Store) NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error) {
	found, err := all[begunRow](ctx, s.session, stmt(cqlNewestBegun, int64(b)))
	if err != nil || len(found) == 0 || found[0].NewestUs == nil {
		return 0, false, named("newest begun slice", err)
	}
	return *found[0].NewestUs / 1000, true, nil
}

type begunRow struct {
	NewestUs *int64 `db:"newest"`
}

// CompleteSlice implements storage.Runs.
func (s *Store) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	return named("complete slice", s.setState(ctx, cqlCompleteSlice, k))
}

// setState writes a state of a slice, which stays until the slice cannot be opened again.
func (s *Store) setState(ctx context.Context, cql string, k storage.SliceKey) error {
	return s.writeOne(ctx, 0, stmt(cql, int(k.Bucket), k.StartMs, s.workTTL(k.Bucket, 2*keepBeyond)))
}

type cacheRow struct {
	ID   gocql.UUID `db:"chunk_id"`
	Data []byte     `db:"data"`
}

// CacheBlock implements storage.Runs.
func (s *Store) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	var out []storage.Chunk
	size := 0
	for r, err := range rows[cacheRow](ctx, s.session, fewRows, stmt(cqlReadCache, int(k.Bucket), k.StartMs, int64(k.Start))) {
		if err != nil {
			return nil, named("cache block", err)
		}
		if size += len(r.Data); size > storage.MaxCacheBytes {
			return nil, named("cache block", storage.ErrTooLarge)
		}
		out = append(out, storage.Chunk{ID: blocks.ID(r.ID), Data: r.Data})
	}
	slices.SortFunc(out, func(a, b storage.Chunk) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// PackRaw implements storage.Runs, as one batch. Its rows are in one partition, so that each copy takes the new chunk and
// lets go of the others at once. Chunks that follow each other are deleted as a range: a tombstone for each of them would
// soon be more than a read of the partition may pass. What is written into a range meanwhile has a timestamp above the fence,
// or is packed, and blocks.ReplacedRanges keeps clear of that.
func (s *Store) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, replaced []blocks.ID) error {
	const op = "pack raw chunks"
	group, period := int64(packed.Group), metric.AlignDown(packed.SliceMs, dayMs)
	// The new chunk expires with the last of those that it replaces, however much later it is written.
	keep := s.policy().Retention.Duration(metric.Raw)
	if keep > 0 {
		writtenMs := max(packed.ID.TimeMs(), s.ladder.SliceAt(metric.Raw, packed.SliceMs).EndMs)
		keep = max(keep-time.Duration(max(0, clock.NowMs(s.clk)-writtenMs))*time.Millisecond, time.Second)
	}
	var ids []blocks.ID
	for r, err := range rows[rawIDRow](ctx, s.session, manyRows, stmt(cqlRawIDs, group, period, packed.SliceMs)) {
		if err != nil {
			return named(op, err)
		}
		ids = append(ids, blocks.ID(r.ID))
	}
	gone := make(map[blocks.ID]bool, len(replaced))
	for _, id := range replaced {
		gone[id] = true
	}
	// The caller's buffer is its own again after the return, and an attempt of the driver that nobody waits for may send the
	// chunk later.
	data := bytes.Clone(packed.Data)
	stmts := []statement{stmt(cqlWriteRaw, group, period, packed.SliceMs, gocql.UUID(packed.ID), data, ttl(keep))}
	for _, r := range blocks.ReplacedRanges(ids, func(id blocks.ID) bool { return gone[id] }) {
		stmts = append(stmts, stmt(cqlDeleteRaw, group, period, packed.SliceMs, gocql.UUID(r[0]), gocql.UUID(r[1])))
	}
	tsUs, err := s.timestamp(ctx, f)
	if err != nil {
		return named(op, err)
	}
	return named(op, s.session.exec(ctx, tsUs, stmts...))
}

type rawIDRow struct {
	ID gocql.UUID `db:"chunk_id"`
}

// DeleteCacheBlock implements storage.Runs.
func (s *Store) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	return named("delete cache block", s.writeOne(ctx, f, stmt(cqlDeleteCache, int(k.Bucket), k.StartMs, int64(k.Start))))
}

const (
	cqlReadLeases = `SELECT shard, newest_fence, WRITETIME(newest_fence) AS moved, owner, fence, expires FROM shards WHERE ring = 0`
	cqlFirstFence = `UPDATE shards SET newest_fence = ? WHERE ring = 0 IF newest_fence = null`
	cqlNextFence  = `UPDATE shards SET newest_fence = ? WHERE ring = 0 IF newest_fence = ?`
	cqlTakeShard  = `UPDATE shards USING TTL ? SET owner = ?, fence = ?, expires = ? WHERE ring = 0 AND shard = ? IF owner = null`
	cqlTakeAgain  = `UPDATE shards USING TTL ? SET owner = ?, fence = ?, expires = ? WHERE ring = 0 AND shard = ? IF owner = ?`
	cqlRenewShard = `UPDATE shards USING TTL ? SET owner = ?, fence = ?, expires = ? WHERE ring = 0 AND shard = ? IF owner = ? AND fence = ?`
	cqlFreeShard  = `DELETE owner, fence, expires FROM shards WHERE ring = 0 AND shard = ? IF owner = ?`
)

type leaseRow struct {
	Shard       *int    `db:"shard"`
	NewestFence *int64  `db:"newest_fence"`
	MovedUs     *int64  `db:"moved"` // when the newest fence was handed out, by the servers' clocks
	Owner       *string `db:"owner"`
	Fence       int64   `db:"fence"`
	ExpiresMs   int64   `db:"expires"`
}

func (r *leaseRow) newest() storage.Fence {
	if r.NewestFence == nil {
		return 0
	}
	return storage.Fence(*r.NewestFence)
}

// least is a lower bound for the next fence. While fences are ahead of the clock, because a clock
// was wrong, they advance at half the clock's pace, so the clock catches up. A process that writes
// above a fence it has seen takes one timestamp per batch, and advances far more slowly. So the next
// fence lies above those writes too.
func (r *leaseRow) least(nowUs int64) storage.Fence {
	if r.MovedUs == nil {
		return r.newest()
	}
	return r.newest() + storage.Fence(max(0, nowUs-*r.MovedUs)/2)
}

func (s *Store) readLeases(ctx context.Context) ([]leaseRow, error) {
	return all[leaseRow](ctx, s.session, stmt(cqlReadLeases))
}

// AcquireShard implements storage.Runs. The lease ends by a TTL on the servers, so no two
// processes' clocks are compared.
func (s *Store) AcquireShard(ctx context.Context, shard int, owner string, d time.Duration) (storage.Lease, error) {
	op := fmt.Sprintf("shard %d", shard)
	if shard < 0 || shard >= s.shards {
		return storage.Lease{}, fmt.Errorf("%s: there are %d", op, s.shards)
	}
	if _, err := s.refreshEpochs(ctx); err != nil {
		return storage.Lease{}, named(op, err)
	}
	for {
		found, err := s.readLeases(ctx)
		if err != nil {
			return storage.Lease{}, named(op, err)
		}
		var first, held leaseRow
		for _, r := range found {
			first = r // newest_fence is the same in all
			if r.Shard != nil && *r.Shard == shard {
				held = r
			}
		}
		if held.Owner != nil && *held.Owner != owner {
			return storage.Lease{}, fmt.Errorf("%s: %w: %s", op, storage.ErrConflict, *held.Owner)
		}
		newest := first.newest()
		s.stamps.observe(first.least(s.clk.Now().UnixMicro()))
		fence, err := s.timestamp(ctx, 0)
		if err != nil {
			return storage.Lease{}, named(op, err)
		}
		l := storage.Lease{
			Shard: shard, Owner: owner, Fence: storage.Fence(fence),
			ExpiresMs: s.clk.Now().Add(d).UnixMilli(),
		}
		advance := stmt(cqlNextFence, int64(l.Fence), int64(newest))
		if first.NewestFence == nil {
			advance = stmt(cqlFirstFence, int64(l.Fence))
		}
		take := stmt(cqlTakeShard, ttl(d), owner, int64(l.Fence), l.ExpiresMs, shard)
		if held.Owner != nil {
			take = stmt(cqlTakeAgain, ttl(d), owner, int64(l.Fence), l.ExpiresMs, shard, *held.Owner)
		}
		// If the update is refused because of its own effect, the next round sees that this owner
		// holds the shard, and takes it anew.
		ok, err := s.session.cas(ctx, advance.again(), take.again())
		if err != nil {
			return storage.Lease{}, named(op, err)
		}
		if ok {
			s.stamps.observe(l.Fence)
			return l, nil
		}
		// Another worker took a lease meanwhile, of this shard or another.
	}
}

// RenewShard implements storage.Runs.
func (s *Store) RenewShard(ctx context.Context, l storage.Lease, d time.Duration) error {
	op := fmt.Sprintf("renew shard %d", l.Shard)
	// It may be repeated: its condition still holds after its own effect.
	ok, err := s.session.cas(ctx, stmt(cqlRenewShard, ttl(d), l.Owner, int64(l.Fence), s.clk.Now().Add(d).UnixMilli(), l.Shard, l.Owner, int64(l.Fence)).again())
	if err == nil && !ok {
		err = storage.ErrConflict
	}
	return named(op, err)
}

// ReleaseShard implements storage.Runs.
func (s *Store) ReleaseShard(ctx context.Context, shard int, owner string) error {
	// It must not be repeated: a late attempt would end a lease that the owner has taken since.
	_, err := s.session.cas(ctx, stmt(cqlFreeShard, shard, owner))
	return named(fmt.Sprintf("release shard %d", shard), err)
}

// Leases implements storage.Runs.
func (s *Store) Leases(ctx context.Context) ([]storage.Lease, error) {
	found, err := s.readLeases(ctx)
	if err != nil {
		return nil, named("leases", err)
	}
	var out []storage.Lease
	for _, r := range found {
		if r.Shard != nil && r.Owner != nil {
			out = append(out, storage.Lease{Shard: *r.Shard, Owner: *r.Owner, Fence: storage.Fence(r.Fence), ExpiresMs: r.ExpiresMs})
		}
	}
	slices.SortFunc(out, func(a, b storage.Lease) int { return cmp.Compare(a.Shard, b.Shard) })
	return out, nil
}
