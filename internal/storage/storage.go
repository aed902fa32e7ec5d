// Package storage is the contract between Quern and its stores, in the domain's own words and in
// terms of blocks. The contract asks only for what Cassandra can do: rows addressed by partition
// and clustering key, no transaction across partitions, last-write-wins by the client's timestamp,
// compare-and-set within one partition. The embedded store keeps the same tables as key prefixes.
//
// # What every implementation must hold
//
//  1. Durable: when Write returns nil for a batch without a fence, the batch is durable at the
//     configured consistency.
//  2. Prefix: operations that carry a fence may become durable later, but in the order in which
//     they returned. After a crash a prefix of them is there.
//  3. Order within a batch: slices, then marks, then chunks. After an error any part of the batch
//     may be stored, and a reader may see part of a batch that is still being written. So the rows
//     that lead to a chunk are stored before the chunk. A *PartsError names the parts to which this
//     applies; the other parts are stored as if Write had returned nil.
//  4. One winner: of two writes of the same row with fences, readers see the one with the higher
//     fence, whatever the order of arrival. An implementation may refuse the lower fence with
//     ErrFenced instead.
//  5. Exact delete: DeleteMarks deletes the named marks and no others, PackRaw the named chunks. With a
//     fence, these and DeleteCacheBlock may leave rows that were written after the lease was taken.
//  6. Idempotent: every operation may be repeated with the same outcome.
//  7. An iterator yields a non-nil error at most once, as its last pair, and holds nothing after
//     the loop ends. The receiver owns the byte slices that it yields.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
)

// Callers tell these errors apart. Each implementation converts its driver's errors to these in one
// place. Any other error is a failure of that one operation.
var (
	// ErrUnavailable means that the store cannot be reached or cannot take writes now (down, disk
	// full). The operation may or may not have taken effect; try again later.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrTimeout means that no answer came in time. The operation may have taken effect.
	ErrTimeout = errors.New("the store did not answer in time")
	// ErrOverloaded means that the store asks for less work.
	ErrOverloaded = errors.New("the store is overloaded")
	// ErrRefused means that the store has answered and will never accept this write, also when it
	// is repeated. Nothing of the write is stored, not even in part.
	ErrRefused = errors.New("the store refused the request")
	// ErrCorrupt marks stored bytes that cannot be read back. It is the chunk codecs' own error, so
	// that callers check for only one.
	ErrCorrupt = blocks.ErrCorrupt
	// ErrTooLarge: there is more than is read in one piece.
	ErrTooLarge = errors.New("too large to be read in one piece")
	// ErrConflict: somebody else holds what was asked for.
	ErrConflict = errors.New("held by another")
	// ErrFenced means that a newer fence has been issued. The holder of this fence must stop.
	ErrFenced = errors.New("fenced off by a newer lease")
	// ErrSettings means that the store was made with other settings or another schema. The message
	// names both values and says what to do.
	ErrSettings = errors.New("the store's settings differ")
)

// IsAway reports whether err means that the whole store is out of reach, rather than that one
// operation failed.
func IsAway(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrOverloaded)
}

// DerivedSource is the prefix of the names of derived sources. The series of all other sources
// carry their source as a label.
const DerivedSource = "\x00"

// Fence is the strictly increasing number of a lease, in µs since 1970 where clocks allow. Every
// write of a run carries the fence. 0 means no fence; ingest writes with 0.
type Fence int64

// SliceKey names a slice of a bucket.
type SliceKey struct {
	Bucket  metric.Bucket `json:"bucket"`
	StartMs int64         `json:"slice_ms"`
}

// IndexPartition names one shard's partition of the index of a slice: the key (bucket, time_slice,
// partition) of metrics_cache_index.
type IndexPartition struct {
	SliceKey
	Shard int
}

// MarkKind says why a mark was written, and so where a run reads its data.
type MarkKind uint8

const (
	// MarkOpen marks a block of the same slice as the index partition. Its writer has not sealed
	// the block. A run reads the bucket's own table.
	MarkOpen MarkKind = iota
	// MarkFresh marks a block of the same slice as the index partition. Its writer has sealed the
	// block and put Chunks chunks into the cache. If all marks of a block are fresh, and the cache
	// holds as many chunks as they say together, the run grinds the block from the cache.
	MarkFresh
	// MarkLate marks schedules, or the whole block, of a slice that had closed already. A run reads
	// the table.
	MarkLate
	// MarkRetry marks a block that an earlier run failed to grind. A run reads the table.
	MarkRetry
	// MarkTakeBack is like MarkLate. In addition the run takes back the rows of its schedules that
	// have no input.
	MarkTakeBack
)

// String returns the kind's name, as status and logs show it.
func (k MarkKind) String() string {
	switch k {
	case MarkOpen:
		return "open"
	case MarkFresh:
		return "fresh"
	case MarkLate:
		return "late"
	case MarkRetry:
		return "retry"
	case MarkTakeBack:
		return "take back"
	}
	return "unknown"
}

// Mark is one row of metrics_cache_index. It says that the run of the partition's slice must grind
// the block at Start, or only the named schedules of it, for the slice at TimeMs. Its key within
// the partition is (Start, TimeMs, ID).
type Mark struct {
	Start  metric.ScheduleID
	TimeMs int64
	ID     blocks.ID

	Kind MarkKind
	// Chunks is the number of chunks that the mark's writer put into the block's cache. Only fresh
	// marks have one; for all others it is 0.
	Chunks int
	// Schedules are sorted. Empty means the whole block.
	Schedules []metric.ScheduleID
	// DueMs is the end of the first slice in whose index this work was put. It does not change when
	// the work is put off. It is only for people to read.
	DueMs int64
	// Attempt counts the runs that failed on this work. LastError is the error of the last one.
	Attempt   int
	LastError string
	// Damaged says that only the key can be decoded. Such a mark counts as late and stands for the
	// whole block, since its list of schedules is lost. Stores set Damaged when they read.
	Damaged bool
}

// MarkKey is a mark's key within its partition. Marks are ordered by it.
type MarkKey struct {
	Start  metric.ScheduleID
	TimeMs int64
	ID     blocks.ID
}

// DamagedMark returns a mark for a row when only its key can be decoded.
func DamagedMark(k MarkKey) Mark {
	return Mark{Start: k.Start, TimeMs: k.TimeMs, ID: k.ID, Kind: MarkLate, Damaged: true}
}

// Key returns the mark's key.
func (m *Mark) Key() MarkKey { return MarkKey{m.Start, m.TimeMs, m.ID} }

// Compare orders keys in the order in which Runs.Marks yields the marks.
func (k MarkKey) Compare(o MarkKey) int {
	return cmp.Or(cmp.Compare(k.Start, o.Start), cmp.Compare(k.TimeMs, o.TimeMs), k.ID.Compare(o.ID))
}

// PlacedMark is a mark and the partition that it is written to.
type PlacedMark struct {
	Partition IndexPartition
	Mark
}

// Chunk is an immutable packed run of samples or roll-up values of one block. The codecs are in
// internal/blocks; the store does not look inside.
type Chunk struct {
	ID   blocks.ID
	Data []byte
}

// RawChunk is one row of raw_metrics. All its samples belong to the storage group that starts at
// Group (Settings.GroupSize schedules) and to the raw slice at SliceMs.
type RawChunk struct {
	Group   metric.ScheduleID
	SliceMs int64
	Chunk
}

// MaxCacheBytes is up to how many bytes a cache partition is read.
const MaxCacheBytes = 64 << 20

// CacheKey names a partition of metrics_cache: one block in one slice.
type CacheKey struct {
	SliceKey
	Start metric.ScheduleID
}

// CacheChunk is one row of metrics_cache.
type CacheChunk struct {
	CacheKey
	Chunk
}

// Batch is what one flush of ingest, or one step of a run, writes.
type Batch struct {
	// Fence is the run's fence, 0 for ingest.
	Fence Fence
	// Open lists the slices that the batch writes marks into. Write opens them; a slice that was
	// completed stays completed.
	Open  []SliceKey
	Marks []PlacedMark
	Raw   []RawChunk
	Cache []CacheChunk
	// Parts divide the batch into units that a store may fail to store separately. Without parts
	// the batch is stored as one unit.
	Parts []Part
}

// Part counts the marks, raw chunks and cache chunks that make up one part of a batch. They follow
// those of the part before.
type Part struct{ Marks, Raw, Cache int }

// PartsError is the error of Write when some parts of a batch are stored and others are not,
// because they are stored in different places or because of what they contain.
type PartsError struct {
	// Failed lists the parts that may not be stored, or only in part, in ascending order.
	Failed []int
	// Errs holds the reason for each failed part. ErrRefused means that each raw chunk of the part
	// is either stored or refused. No chunk is in an unknown state on some copy.
	Errs []error
}

// Error implements error.
func (e *PartsError) Error() string {
	return fmt.Sprintf("%d parts of the batch are not stored: %s", len(e.Failed), e.Errs[0])
}

// Unwrap returns the reasons.
func (e *PartsError) Unwrap() []error { return e.Errs }

// SliceState is one row of the slices table.
type SliceState struct {
	SliceKey
	// Begun says that a run of the slice has begun, by whatever clock; see Runs.BeginSlice.
	Begun    bool
	Complete bool
}

// Over reports whether the slice takes no more marks: a run may have passed them already.
func (s SliceState) Over() bool { return s.Begun || s.Complete }

// UnreadSlices says that the slices of a bucket could not be read: of those that start at FromMs or later, nobody knows
// which are outstanding. Of the earlier ones none is.
type UnreadSlices struct {
	Bucket metric.Bucket
	FromMs int64
	// Err is the reason, and names the bucket.
	Err error
}

// UnreadError is the error of a look at the slices of all buckets that could not read those of some. It is not empty.
type UnreadError []UnreadSlices

// Error returns the first reason.
func (e UnreadError) Error() string { return e[0].Err.Error() }

// Unwrap returns the reasons.
func (e UnreadError) Unwrap() []error {
	out := make([]error, len(e))
	for i, u := range e {
		out[i] = u.Err
	}
	return out
}

// Schedule is a series and its id. The labels include the source.
type Schedule struct {
	ID     metric.ScheduleID
	Labels metric.Labels
}

// Claim asks for an id of a series of a source.
type Claim struct {
	// Source is the name of the source's partition. It must not be empty.
	Source string
	Schedule
}

// Lease is one row of the shards table.
type Lease struct {
	Shard     int
	Owner     string
	Fence     Fence
	ExpiresMs int64
}

// Settings are recorded when a store is created. Only the epochs and the policy may change later.
type Settings struct {
	Ladder metric.Ladder
	// GroupSize is the number of schedules in one partition of raw_metrics and the roll-up tables.
	GroupSize int
	// IndexPartitions is the number of shards of the index.
	IndexPartitions int
	// Epochs is the history of the block size. The first, from time 0, is set at creation.
	Epochs blocks.Epochs
	// Policy is the policy in force.
	Policy Policy
}

// OrNew returns s with each zero field set to the default of a new store: the ladder 1h,6h,24h,
// groups of 128 schedules, 16 shards and blocks of 128.
func (s Settings) OrNew() Settings {
	if s.Ladder.Top() == 0 {
		s.Ladder = metric.DefaultLadder()
	}
	if s.GroupSize == 0 {
		s.GroupSize = 128
	}
	if s.IndexPartitions == 0 {
		s.IndexPartitions = 16
	}
	if len(s.Epochs) == 0 {
		s.Epochs = blocks.Epochs{{BlockSize: 128}}
	}
	return s
}

// Retention holds, by bucket, how long the bucket's rows are kept. 0 means for ever. Index 0 is
// raw.
type Retention []time.Duration

// Duration returns how long the rows of a bucket are kept. 0 means for ever.
func (r Retention) Duration(b metric.Bucket) time.Duration {
	if int(b) >= len(r) {
		return 0
	}
	return r[b]
}

// From returns the time from which a bucket keeps its rows at nowMs: what is older expires. It is
// math.MinInt64 for ever. This is what the retention in force promises; Store.WholeFrom says what
// is there.
func (r Retention) From(b metric.Bucket, nowMs int64) int64 {
	keep := r.Duration(b).Milliseconds()
	if keep <= 0 {
		return math.MinInt64
	}
	return nowMs - keep
}

// Until returns the time from which a row of a bucket expires, 0 for never.
func (r Retention) Until(b metric.Bucket, rowMs int64) int64 {
	keep := r.Duration(b).Milliseconds()
	if keep <= 0 {
		return 0
	}
	return rowMs + keep
}

// NewestUsed returns the start of the newest slice of any bucket, from fromMs on, that may have data: it was opened, or
// its run has begun. ok is false if there is none. An error means that some slices cannot be read.
func NewestUsed(ctx context.Context, st Runs, l metric.Ladder, fromMs int64) (startMs int64, ok bool, err error) {
	for _, b := range l.Ground() {
		states, err := st.Slices(ctx, b, fromMs, math.MaxInt64)
		if err != nil {
			return 0, false, err
		}
		begun, has, err := st.NewestBegun(ctx, b)
		if err != nil {
			return 0, false, err
		}
		if has && begun >= fromMs {
			states = append(states, SliceState{SliceKey: SliceKey{Bucket: b, StartMs: begun}})
		}
		for _, s := range states {
			if !ok || startMs < s.StartMs {
				startMs, ok = s.StartMs, true
			}
		}
	}
	return startMs, ok, nil
}

// CheckUnused returns ErrRefused if an epoch would change the blocks of slices that may have data.
func CheckUnused(ctx context.Context, st Runs, l metric.Ladder, e blocks.Epoch) error {
	used, ok, err := NewestUsed(ctx, st, l, e.FromMs)
	if err == nil && ok {
		at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
		err = fmt.Errorf("%w: blocks of another size cannot begin at %s, since slices up to %s are in use", ErrRefused, at(e.FromMs), at(used))
	}
	return err
}

// Whole returns whether a slice of a bucket is whole at nowMs: nothing of it can have expired. This is what decides
// whether it can be ground.
func Whole(st Store, b metric.Bucket, s metric.Slice, nowMs int64) bool {
	return s.StartMs >= st.WholeFrom(b, nowMs)
}

// Store is what a backend implements.
type Store interface {
	Registry
	Runs
	Reader
	Documents
	Items

	// Write stores a batch; see the package's rules 1 to 3.
	Write(ctx context.Context, b *Batch) error
	// Settings returns the settings that the store was created with. The epochs are as last read.
	// The policy is as read when the store was opened, or as this process has set it since.
	Settings() Settings
	// SetPolicy changes the policy. It returns ErrConflict when another process has changed the
	// policy since the store was opened.
	SetPolicy(ctx context.Context, p Policy) error
	// WholeFrom returns the time from which on all rows of a bucket (raw chunks for metric.Raw) are
	// still there at nowMs. Of the slices and rows that start earlier, some may have expired. The
	// result is never before what the retention in force leaves. It does not go back when the
	// retention is raised: expired rows stay gone. It is math.MinInt64 where nothing has expired
	// and nothing will. Nothing else decides what has expired: Whole asks it for a slice, and
	// cache.KeptFrom for the time of the run that marks put now will wait for.
	WholeFrom(b metric.Bucket, nowMs int64) int64
	// NewestID returns an id not below those of the raw chunks that were written before the store
	// was opened. This process continues from there, so that its ids ascend even if its clock went
	// back. The result is zero where several processes write and only their clocks order the
	// chunks.
	NewestID() blocks.ID
	// AddEpoch appends an epoch by compare-and-set. It returns ErrConflict when another process has
	// added an epoch since Settings was read, and ErrRefused when the epoch begins at or before
	// NewestUsed: it would cut blocks that have data.
	AddEpoch(ctx context.Context, e blocks.Epoch) error
	// Expire removes rows older than their retention, by whole partitions: a row may stay up to one
	// partition longer. The store reads its clock itself, so that it acts on the same time that it
	// checks. It records the removal for WholeFrom in the same write. Stores with TTLs do nothing.
	Expire(ctx context.Context) error
	// CheckFit returns nil when this process may act on its clock and policy: accept reports, and
	// delete what has expired according to WholeFrom. It returns ErrSettings when the clock is too
	// far from the store's own clock, where the store has one, or when another process has changed
	// the policy. A store without a clock compares this process's clock with the newest time that it has seen
	// (clock.Gate). While it refuses the clock, it expires nothing and WholeFrom does not go by the clock.
	CheckFit(ctx context.Context) error
	// Confirms returns nil if ids and times may go by now, a reading of this process's clock. On one machine its gate lets it
	// pass. On a cluster the clock was compared with the servers', and was not set since; if it was, Confirms compares it anew. The error wraps
	// ErrUnavailable.
	Confirms(ctx context.Context, now clock.Reading) error
	// Close makes what was written durable and closes the store. It is called once, after every
	// other call has returned.
	Close() error
}

// Registry accesses the tables schedules and schedules_by_block.
type Registry interface {
	// LeaseIDs hands out n ids that nobody else ever gets, and that no series has.
	LeaseIDs(ctx context.Context, n int) (blocks.Range, error)
	// ClaimSchedules registers series under ids that the caller has leased, and returns the id that
	// each series has now. A series that has an id already keeps it. A call may name one series
	// twice. Ids are decided by conditional writes within the partition of each source. After an
	// error some series may be registered, all of their rows or as good as none.
	ClaimSchedules(ctx context.Context, want []Claim) ([]metric.ScheduleID, error)
	// SourceSchedules yields the schedules of one source.
	SourceSchedules(ctx context.Context, source string) iter.Seq2[Schedule, error]
	// Schedules yields the schedules with ids in the range, by id.
	Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[Schedule, error]
	// LeasedIDs returns the range of all ids ever leased: [0, next).
	LeasedIDs(ctx context.Context) (blocks.Range, error)
}

// Runs holds the operations of a run, except Write. Each operation is one step. A run performs them
// in the order in which they stand here.
type Runs interface {
	// AcquireShard takes the lease of a shard for owner, or takes it anew, and issues a higher
	// fence. It returns ErrConflict when another owner's lease has not expired.
	AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (Lease, error)
	// RenewShard extends a lease to ttl from now. The fence stays the same. It returns ErrConflict
	// when the lease has ended or has been taken anew.
	RenewShard(ctx context.Context, l Lease, ttl time.Duration) error
	// ReleaseShard ends owner's lease. It returns no error when owner does not hold the lease.
	ReleaseShard(ctx context.Context, shard int, owner string) error
	// Leases returns the leases that have not ended.
	Leases(ctx context.Context) ([]Lease, error)
	// Slices returns the slices of a bucket that start in [fromMs, toMs), ordered by start. A store that keeps its data in
	// several places has those of each bucket in one of them.
	Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]SliceState, error)
	// BeginSlice records that a run of the slice has begun. Whoever has written a mark before, and
	// then finds no such record, knows that the run will read the mark. The slice stays outstanding
	// until it is complete. BeginSlice may be repeated, and carries no fence. It may become durable
	// as late as writes with a fence.
	BeginSlice(ctx context.Context, k SliceKey) error
	// NewestBegun returns the start of the newest slice of a bucket whose run has begun, in Unix ms; ok
	// is false if none has. It counts what BeginSlice has ever recorded: it never goes back, and it
	// stays when the records of slices are removed or expire. It is never older than what Slices says.
	NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error)
	// Marks yields the marks of an index partition that are not before from, by (Start, TimeMs, ID), page by page. The zero
	// from lies before all marks. It yields a mark whose values cannot be decoded as damaged, and continues with the next.
	// most is how many marks the caller takes before it breaks off, 0 for all. The marks before from add nothing to the cost,
	// and those after the first most add no more than a page of a local disk.
	Marks(ctx context.Context, p IndexPartition, from MarkKey, most int) iter.Seq2[Mark, error]
	// CacheBlock is the chunks of a cache partition by ID; none is no error. ErrTooLarge when they
	// have more than about MaxCacheBytes, as nothing bounds how often the same samples are sent: the
	// table, which has them too, is read chunk by chunk.
	CacheBlock(ctx context.Context, k CacheKey) ([]Chunk, error)
	// WriteRollups upserts rows of a roll-up table. The rows are sorted by schedule, then time.
	WriteRollups(ctx context.Context, f Fence, level metric.Bucket, rows []metric.RollupRow) error
	// PackRaw stores a packed chunk and deletes the raw chunks whose samples it has, and no others. They are of its group and slice,
	// and their ids make its id (blocks.PackedID). Others may pack the rest of the group at the same time. The packed chunk is
	// durable before the others are gone; meanwhile a reader sees the one, the others, or some of both. The caller may reuse
	// the memory of its arguments.
	//
	// A store with copies deletes ranges of ids (blocks.ReplacedRanges). If the copies that answer lack an acknowledged chunk of a
	// range, no run sees that chunk, and a repair does not bring it back.
	PackRaw(ctx context.Context, f Fence, packed RawChunk, replaced []blocks.ID) error
	// DeleteCacheBlock deletes a cache partition as a whole, whatever it holds.
	DeleteCacheBlock(ctx context.Context, f Fence, k CacheKey) error
	// DeleteMarks deletes exactly the given marks, by their keys.
	DeleteMarks(ctx context.Context, f Fence, p IndexPartition, marks []Mark) error
	// CompleteSlice records that every mark of the slice has been dealt with. It carries no fence,
	// since the record stays true whoever writes it. It may become durable as late as writes with a
	// fence.
	CompleteSlice(ctx context.Context, k SliceKey) error
}

// Reader reads raw chunks and roll-up rows.
type Reader interface {
	// RawChunks yields the chunks of the groups that ids touches, for the raw slices that start in
	// [fromMs, toMs), ordered by group, slice and ID. The chunks may hold samples of other
	// schedules of the same groups.
	//
	// A chunk's Data is the store's, and valid until the loop's body ends. The body MUST NOT change it, nor wait: not for
	// a client, for a lock that is held during writes, or for time to pass. Meanwhile the store may keep what was deleted.
	//
	// Where some chunks cannot be read but others around them can, RawChunks yields one chunk
	// without Data for each group and slice that may have lost chunks. Such a chunk does not
	// decode.
	RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[RawChunk, error]
	// Rollups yields the rows of a level with schedules in ids and times in [fromMs, toMs). The
	// rows of each schedule come in time order; schedules come in any order. Rollups yields a row
	// whose values cannot be decoded as damaged, and continues with the next. Where some rows cannot
	// be read but others around them can, Rollups yields each row that may be lost as damaged.
	Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error]
}
