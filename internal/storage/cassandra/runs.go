package cassandra

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlListDays      = `SELECT DISTINCT bucket, day FROM slices`
	cqlReadSlices    = `SELECT time_slice, complete FROM slices WHERE bucket = ? AND day = ? AND time_slice >= ? AND time_slice < ?`
	cqlCompleteSlice = `INSERT INTO slices (bucket, day, time_slice, complete) VALUES (?, ?, ?, true) USING TTL ?`

	cqlReadCache   = `SELECT chunk_id, data FROM metrics_cache WHERE bucket = ? AND time_slice = ? AND start_schedule_id = ?`
	cqlDeleteCache = `DELETE FROM metrics_cache WHERE bucket = ? AND time_slice = ? AND start_schedule_id = ?`
)

type sliceRow struct {
	StartMs  int64 `db:"time_slice"`
	Complete bool  `db:"complete"`
}

// Slices implements storage.Runs.
func (s *Store) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	const op = "slices"
	if ctx.Err() != nil {
		return nil, convert(ctx, ctx.Err())
	}
	days, err := s.sliceDays(ctx, b, fromMs, toMs)
	if err != nil {
		return nil, named(op, err)
	}
	var out []storage.SliceState
	for r, err := range spread(ctx, days, func(ctx context.Context, dayMs int64) iter.Seq2[sliceRow, error] {
		return rows[sliceRow](ctx, s.session, manyRows, stmt(cqlReadSlices, int(b), dayMs, fromMs, toMs))
	}) {
		if err != nil {
			return nil, named(op, err)
		}
		out = append(out, storage.SliceState{SliceKey: storage.SliceKey{Bucket: b, StartMs: r.StartMs}, Complete: r.Complete})
	}
	return out, nil
}

// sliceDays returns the days under which slices that start in [fromMs, toMs) may be recorded.
func (s *Store) sliceDays(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]int64, error) {
	if fromMs >= toMs {
		return nil, nil
	}
	first := metric.AlignDown(clampMs(fromMs), dayMs)
	toMs = clampMs(toMs)
	var out []int64
	if (toMs-first)/dayMs < maxNamed {
		for d := first; d < toMs; d += dayMs {
			out = append(out, d)
		}
		return out, nil
	}
	type key struct {
		Bucket int   `db:"bucket"`
		DayMs  int64 `db:"day"`
	}
	for k, err := range rows[key](ctx, s.session, manyRows, stmt(cqlListDays)) {
		if err != nil {
			return nil, err
		}
		if k.Bucket == int(b) && first <= k.DayMs && k.DayMs < toMs {
			out = append(out, k.DayMs)
		}
	}
	slices.Sort(out)
	return out, nil
}

// CompleteSlice implements storage.Runs.
func (s *Store) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	return named("complete slice", s.session.exec(ctx, s.stamps.next(), stmt(cqlCompleteSlice,
		int(k.Bucket), metric.AlignDown(k.StartMs, dayMs), k.StartMs, s.workTTL(k.Bucket, 2*keepBeyond))))
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

// DeleteCacheBlock implements storage.Runs.
func (s *Store) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	return named("delete cache block", s.session.exec(ctx, s.stamps.of(f),
		stmt(cqlDeleteCache, int(k.Bucket), k.StartMs, int64(k.Start))))
}

const (
	cqlReadLeases = `SELECT shard, newest_fence, WRITETIME(newest_fence) AS moved, owner, fence, expires, TTL(owner) AS seconds_left FROM shards WHERE ring = 0`
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
	SecondsLeft *int    `db:"seconds_left"` // null for a row that never expires
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

// endless says whether the row has an owner and will not expire within a useful time, compared with
// a lease for d; all workers ask for about as long. No worker writes such a lease, so nobody may be
// there to renew or release it.
func (r *leaseRow) endless(d time.Duration) bool {
	return r.Owner != nil && (r.SecondsLeft == nil || *r.SecondsLeft > 1000*ttl(d))
}

func (s *Store) readLeases(ctx context.Context) ([]leaseRow, error) {
	return all[leaseRow](ctx, s.session, stmt(cqlReadLeases))
}

// AcquireShard implements storage.Runs. The lease ends by a TTL on the servers, so no two
// processes' clocks are compared. A lease that never expires was not written by a worker, and is
// taken over. If a worker does hold it, that worker's fence is the lower one from then on.
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
			switch {
			case r.Shard == nil:
			case *r.Shard == shard:
				held = r
			case *r.Shard < 0 || *r.Shard >= s.shards:
				s.odd(ctx, owner, fmt.Sprintf("table shards has a row for shard %d, and the store's shards are 0 to %d: it is passed over and can be deleted",
					*r.Shard, s.shards-1))
			}
		}
		if held.Owner != nil && *held.Owner != owner {
			if !held.endless(d) {
				return storage.Lease{}, fmt.Errorf("%s: %w: %s", op, storage.ErrConflict, *held.Owner)
			}
			s.odd(ctx, owner, fmt.Sprintf("the lease of shard %d, of %q, has no end: no worker wrote it; it is taken over", shard, *held.Owner))
		}
		newest := first.newest()
		if err := s.plausible(newest); err != nil {
			return storage.Lease{}, named(op, err)
		}
		s.sawFence(newest) // on its own, since what least adds may make it implausible
		s.sawFence(first.least(s.clk.Now().UnixMicro()))
		l := storage.Lease{
			Shard: shard, Owner: owner, Fence: storage.Fence(s.stamps.next()),
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
			s.sawFence(l.Fence)
			return l, nil
		}
		// Another worker took a lease meanwhile, of this shard or another.
	}
}

// sawFence makes this process write above f from now on. It ignores an implausible fence: nothing
// could replace writes at such a time.
func (s *Store) sawFence(f storage.Fence) {
	if s.plausible(f) == nil {
		s.stamps.observe(f)
	}
}

// longestLead is how far a fence may be ahead of the clock. A worker's clock is right within
// seconds (Policy.MaxClockSkew). Fences would also run ahead if more than a million a second were
// handed out.
const longestLead = day

// plausible refuses a newest fence that is too far ahead of the clock. Until that time no worker
// could replace what is written with later fences.
func (s *Store) plausible(f storage.Fence) error {
	now := s.clk.Now()
	if at := time.UnixMicro(int64(f)); at.Sub(now) > longestLead {
		return fmt.Errorf("newest_fence in table shards is %s, more than %s ahead of the clock: no shard is taken, since what is "+
			"written from there on could not be replaced before that time; if no clock was that wrong, put it right by "+
			"UPDATE shards SET newest_fence = %d WHERE ring = 0 IF newest_fence = %d",
			at.UTC().Format(time.RFC3339), longestLead, now.UnixMicro(), int64(f))
	}
	return nil
}

// odd reports a row that no worker writes: it logs and records the message, once in the life of the
// process.
func (s *Store) odd(ctx context.Context, worker, message string) {
	if _, told := s.told.LoadOrStore(message, true); told {
		return
	}
	s.log.Warn(message)
	if err := s.RecordError(ctx, storage.ComponentError{
		Component: "aggregator", Worker: worker, TimeMs: clock.NowMs(s.clk), Start: -1, Message: message,
	}); err != nil {
		s.log.Warn("error not recorded", "err", err)
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

// Leases implements storage.Operations. It skips rows of shards that do not exist.
func (s *Store) Leases(ctx context.Context) ([]storage.Lease, error) {
	found, err := s.readLeases(ctx)
	if err != nil {
		return nil, named("leases", err)
	}
	var out []storage.Lease
	for _, r := range found {
		if r.Shard != nil && *r.Shard >= 0 && *r.Shard < s.shards && r.Owner != nil {
			out = append(out, storage.Lease{Shard: *r.Shard, Owner: *r.Owner, Fence: storage.Fence(r.Fence), ExpiresMs: r.ExpiresMs})
		}
	}
	slices.SortFunc(out, func(a, b storage.Lease) int { return cmp.Compare(a.Shard, b.Shard) })
	return out, nil
}
