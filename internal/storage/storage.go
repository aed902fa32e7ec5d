// Package storage is the contract between Quern and what it stores in, in the
// domain's own words and in terms of blocks. It is cut to what Cassandra can do:
// rows addressed by partition and clustering key, no transaction across
// partitions, last-write-wins by a client's timestamp, compare-and-set within one
// partition. The embedded store keeps the same tables as key prefixes.
//
// # What every implementation must hold
//
//  1. Durable: when Write returns nil for a batch without a fence, the batch is
//     durable at the configured consistency.
//  2. Prefix: operations that carry a fence may become durable later, but in the
//     order in which they returned: after a crash a prefix of them is there.
//  3. Order within a batch: slices, then marks, then chunks. After an error any part of the
//     batch may be there, and a reader may see a part of one under way, so what a chunk
//     needs to be found is there before it. A *PartsError says of which parts that is so; what it
//     does not name is stored as when Write returns nil.
//  4. One winner: of two writes of the same row with fences, the one with the
//     higher fence is read, whatever the order of arrival. An implementation may
//     refuse the lower with ErrFenced instead.
//  5. Exact delete: DeleteMarks deletes the named marks and no other. With a fence, it and
//     DeleteCacheBlock may leave what was written after the lease was taken.
//  6. Idempotent: every operation may be repeated with the same outcome.
//  7. An iterator yields a non-nil error at most once, as its last pair, and holds
//     nothing after the loop ends. Byte slices that it yields are the receiver's.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// The errors that callers tell apart. Implementations convert their driver's
// errors to these in one place; everything else is a failure of that one operation.
var (
	// ErrUnavailable: the store cannot be reached or cannot take writes now (down,
	// disk full). The operation may or may not have taken effect; try again later.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrTimeout: no answer in time. The operation may have taken effect.
	ErrTimeout = errors.New("the store did not answer in time")
	// ErrOverloaded: the store asks for less work.
	ErrOverloaded = errors.New("the store is overloaded")
	// ErrRefused: the store has answered that it does not take this, and will not when it is asked again. What was to be
	// written has not been, not even in part.
	ErrRefused = errors.New("the store refuses this")
	// ErrCorrupt marks stored bytes that cannot be read back. It is the chunk codecs'
	// own, so that there is one to ask for.
	ErrCorrupt = blocks.ErrCorrupt
	// ErrTooLarge: there is more than is read in one piece.
	ErrTooLarge = errors.New("too large to be read in one piece")
	// ErrConflict: somebody else holds what was asked for.
	ErrConflict = errors.New("held by another")
	// ErrFenced: a newer fence has been given out; the holder of this one must stop.
	ErrFenced = errors.New("fenced off by a newer lease")
	// ErrSettings: the store was made with other settings or another schema; the
	// message names both values and says what to do.
	ErrSettings = errors.New("the store's settings differ")
)

// IsAway says whether err means that the whole store is out of reach, rather than
// that one operation failed.
func IsAway(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrOverloaded)
}

// DerivedSource is what the names of derived sources begin with. The series of all others have their source as a label.
const DerivedSource = "\x00"

// Fence is a lease's strictly increasing number, in µs since 1970 where clocks
// allow. The writes of a run carry it. 0 means no fence: what ingest writes.
type Fence int64

// SliceKey names a slice of a bucket.
type SliceKey struct {
	Bucket  metric.Bucket
	StartMs int64
}

// IndexPartition is one shard's partition of the index of a slice: the key
// (bucket, time_slice, partition) of metrics_cache_index.
type IndexPartition struct {
	SliceKey
	Shard int
}

// MarkKind says why a mark was written, and with it where its data is read from.
type MarkKind uint8

const (
	// MarkOpen stands for a block of the very slice in whose index it lies, whose
	// writer has not said that it is done with it. The table of the bucket itself is read.
	MarkOpen MarkKind = iota
	// MarkFresh stands for such a block whose writer is done: Chunks of its chunks are
	// in the cache. Where all marks of a block are fresh and the cache has as many
	// chunks as they say together, it is ground from the cache.
	MarkFresh
	// MarkLate stands for schedules, or the whole block, of a slice that was closed
	// already. The table is read.
	MarkLate
	// MarkRetry stands for a block whose grinding failed in an earlier run. The table
	// is read.
	MarkRetry
	// MarkTakeBack is as MarkLate, and the rows of those of its schedules that have no input are taken back.
	MarkTakeBack
)

// String is the kind's name in status and logs.
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

// Mark is one row of metrics_cache_index: the block that starts at Start, or only
// the named schedules of it, must be ground for the slice at TimeMs when the slice
// of the partition is. Its key within the partition is (Start, TimeMs, ID).
type Mark struct {
	Start  metric.ScheduleID
	TimeMs int64
	ID     blocks.ID

	Kind MarkKind
	// Chunks is how many chunks the mark's writer put into the block's cache; 0 for all
	// but fresh marks.
	Chunks int
	// Schedules are sorted; empty means the whole block.
	Schedules []metric.ScheduleID
	// DueMs is the end of the first slice in whose index this work was put, however often it was put off since. It is
	// for people.
	DueMs int64
	// Attempt counts the runs that failed on it, LastError is what the last one said.
	Attempt   int
	LastError string
	// Damaged: only the key can be decoded. The mark is late then and stands for the whole block, of which it may have
	// named some schedules. Stores set it when they read.
	Damaged bool
}

// MarkKey is a mark's key within its partition. Marks are ordered by it.
type MarkKey struct {
	Start  metric.ScheduleID
	TimeMs int64
	ID     blocks.ID
}

// DamagedMark is a mark of which a store has only the key.
func DamagedMark(k MarkKey) Mark {
	return Mark{Start: k.Start, TimeMs: k.TimeMs, ID: k.ID, Kind: MarkLate, Damaged: true}
}

// Key is the mark's.
func (m *Mark) Key() MarkKey { return MarkKey{m.Start, m.TimeMs, m.ID} }

// Compare orders keys as Runs.Marks yields the marks.
func (k MarkKey) Compare(o MarkKey) int {
	return cmp.Or(cmp.Compare(k.Start, o.Start), cmp.Compare(k.TimeMs, o.TimeMs), k.ID.Compare(o.ID))
}

// PlacedMark is a mark and the partition that it goes into.
type PlacedMark struct {
	Partition IndexPartition
	Mark
}

// Chunk is an immutable packed run of samples or roll-up values of one block; the
// codecs are in internal/blocks. The store does not look inside.
type Chunk struct {
	ID   blocks.ID
	Data []byte
}

// RawChunk is one row of raw_metrics. All its samples are of the storage group
// that starts at Group (Settings.GroupSize schedules) and of the raw slice at SliceMs.
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
	// Fence is the run's, 0 for ingest.
	Fence Fence
	// Open are the slices that the batch writes marks into. A slice that was
	// completed stays completed.
	Open  []SliceKey
	Marks []PlacedMark
	Raw   []RawChunk
	Cache []CacheChunk
	// Parts cut the batch into what a store may fail to store by itself. Without any it is stored as one.
	Parts []Part
}

// Part is how many of a batch's marks, raw and cache chunks make a part of it: those after the ones of the part before.
type Part struct{ Marks, Raw, Cache int }

// PartsError is what Write may return of a batch with parts, when some are stored and others are not, because they
// lie elsewhere or because of what they hold.
type PartsError struct {
	// Failed are the parts that may not be stored, or not as a whole, ascending.
	Failed []int
	// Errs say of each why. One that is ErrRefused means that each raw chunk of the part is either stored or refused: none
	// is in between, on a copy that nobody has asked.
	Errs []error
}

// Error implements error.
func (e *PartsError) Error() string {
	return fmt.Sprintf("%d parts of the batch are not stored: %s", len(e.Failed), e.Errs[0])
}

// Unwrap is why they failed.
func (e *PartsError) Unwrap() []error { return e.Errs }

// SliceState is one row of the slices table.
type SliceState struct {
	SliceKey
	Complete bool
}

// Schedule is a series and its id. The labels include the source.
type Schedule struct {
	ID     metric.ScheduleID
	Labels metric.Labels
}

// Lease is one row of the shards table.
type Lease struct {
	Shard     int
	Owner     string
	Fence     Fence
	ExpiresMs int64
}

// Worker is one row of the workers table.
type Worker struct {
	ID        string
	Host      string
	StartedMs int64
	SeenMs    int64
	// Aggregates says that it takes a share of the shards.
	Aggregates bool
}

// Run is what one run of one slice did.
type Run struct {
	SliceKey
	Worker    string
	StartedMs int64
	Duration  time.Duration
	// Blocks are those ground, Schedules the roll-up rows written.
	Blocks    int
	Schedules int
	// BlockQueries are the reads of cache blocks, and of raw or roll-up blocks where
	// the cache could not serve; IndexQueries the paged reads of index partitions.
	BlockQueries int
	IndexQueries int
	// Late are the schedules recomputed for late data, Rescheduled the blocks put
	// off to a later slice, Dropped the marks given up because their input has expired.
	Late        int
	Rescheduled int
	Dropped     int
	// Err is why the run was aborted, empty when the slice was completed.
	Err string
}

// ComponentError is one row of the errors table.
type ComponentError struct {
	Component string
	Worker    string
	TimeMs    int64
	// Bucket, SliceMs and Start say where it happened; Start is -1 when no block is concerned.
	SliceKey
	Start   metric.ScheduleID
	Message string
}

// Settings are recorded when a store is created. All but the epochs and the policy are fixed then.
type Settings struct {
	Ladder metric.Ladder
	// GroupSize is the number of schedules in one partition of raw_metrics and the roll-up tables.
	GroupSize int
	// IndexPartitions is the number of shards of the index.
	IndexPartitions int
	// Epochs is the history of the block size. The first, from time 0, is set at creation.
	Epochs blocks.Epochs
	// Policy is the one in force.
	Policy Policy
}

// OrNew is s with what is zero as new stores have it: the ladder 1h,6h,24h, groups of 128 schedules, 16 shards and
// blocks of 128.
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

// Retention is how long each bucket's rows are kept, by bucket; 0 is for ever.
// Index 0 is raw.
type Retention []time.Duration

// Of is how long the rows of a bucket are kept; 0 is for ever.
func (r Retention) Of(b metric.Bucket) time.Duration {
	if int(b) >= len(r) {
		return 0
	}
	return r[b]
}

// Store is what a backend implements.
type Store interface {
	Registry
	Runs
	Reader
	Metadata
	Operations

	// Write stores a batch; see the package's rules 1 to 3.
	Write(ctx context.Context, b *Batch) error
	// Settings are those the store was created with. The epochs are as last read, the policy as it was when the
	// store was opened, or as this process has set it since.
	Settings() Settings
	// SetPolicy changes the policy. ErrConflict when another process has changed it since the store was opened.
	SetPolicy(ctx context.Context, p Policy) error
	// WholeFrom is the time from which on the rows of a bucket, raw chunks for metric.Raw, are all there at nowMs:
	// of slices and rows that start before, some may have expired. It is never before what the retention in force leaves,
	// and does not go back when the retention is raised: what has expired stays gone. It is math.MinInt64 where
	// nothing has expired nor will.
	WholeFrom(b metric.Bucket, nowMs int64) int64
	// NewestID is an id not below those of the raw chunks that were written before the
	// store was opened, so that this process's own go on from there when its clock
	// does not. It is zero where writers are several and only their clocks order them.
	NewestID() blocks.ID
	// AddEpoch appends an epoch by compare-and-set; ErrConflict when another process
	// has added one since Settings was read.
	AddEpoch(ctx context.Context, e blocks.Epoch) error
	// Expire removes rows older than their retention, by whole partitions: a row may stay
	// up to one partition longer. What it removes it records for WholeFrom, in one with the removal. Stores with TTLs do
	// nothing.
	Expire(ctx context.Context, nowMs int64) error
	// CheckFit is nil when this process's clock and policy may be acted on: reports taken, and what WholeFrom makes of
	// them deleted. ErrSettings when the clock is too far from the store's own, where that has one, and when another process has
	// changed the policy. A store without a clock doubts this process's by itself, and then neither expires anything nor has
	// WholeFrom say so.
	CheckFit(ctx context.Context) error
	// Close flushes and closes the store. It is called once, after every other call has returned.
	Close() error
}

// Registry is the tables schedules and schedules_by_block.
type Registry interface {
	// LeaseIDs hands out n ids that nobody else gets, ever: none that a series has, or that another process that uses the
	// store holds, whatever the store has forgotten.
	LeaseIDs(ctx context.Context, n int) (blocks.Range, error)
	// KeepIDs says that ids which this process has leased are its own still, and has the store know it again if it has
	// forgotten it. ErrConflict when others have got some of them since.
	KeepIDs(ctx context.Context, r blocks.Range) error
	// Doubts counts how often the store may have forgotten what it has acknowledged: leases of ids, series, samples. It
	// does not wait. A store that forgets nothing says 0 for ever.
	Doubts() int64
	// ClaimSchedules registers series of one source, whose name is not empty, under ids that the caller has
	// leased, each unless the series has an id already, and returns the id that each
	// has now. It is one conditional batch within the source's partition.
	ClaimSchedules(ctx context.Context, source string, want []Schedule) ([]metric.ScheduleID, error)
	// SourceSchedules yields the schedules of one source.
	SourceSchedules(ctx context.Context, source string) iter.Seq2[Schedule, error]
	// Schedules yields the schedules with ids in the range, by id.
	Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[Schedule, error]
	// LeasedIDs is the range of all ids ever leased: [0, next).
	LeasedIDs(ctx context.Context) (blocks.Range, error)
}

// Runs is what a run does besides Write. Each operation is one step; a run does them in
// the order in which they stand here.
type Runs interface {
	// AcquireShard takes the lease of a shard for owner, or takes it anew, and advances its
	// fence. ErrConflict when another owner's lease has not expired.
	AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (Lease, error)
	// RenewShard has a lease last for ttl from now; its fence stays. ErrConflict when it has ended
	// or been taken anew.
	RenewShard(ctx context.Context, l Lease, ttl time.Duration) error
	// ReleaseShard ends owner's lease; no error when it is not held.
	ReleaseShard(ctx context.Context, shard int, owner string) error
	// Slices are the slices of a bucket that start in [fromMs, toMs), by start.
	Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]SliceState, error)
	// Marks yields the marks of an index partition by (Start, TimeMs, ID), page by page. One whose values cannot be decoded is
	// yielded as damaged, and the others after it.
	Marks(ctx context.Context, p IndexPartition) iter.Seq2[Mark, error]
	// FirstMark is the key of an index partition's first mark that is not before from; ok is false if there is none. What
	// lies before from, and after the mark, costs nothing. The zero from is before all.
	FirstMark(ctx context.Context, p IndexPartition, from MarkKey) (k MarkKey, ok bool, err error)
	// CacheBlock is the chunks of a cache partition by ID; none is no error. ErrTooLarge when they have more than about
	// MaxCacheBytes, as nothing bounds how often the same samples are sent: the table, which has them too, is read chunk by chunk.
	CacheBlock(ctx context.Context, k CacheKey) ([]Chunk, error)
	// WriteRollups upserts rows of a roll-up table. Rows are sorted by schedule, then time.
	WriteRollups(ctx context.Context, f Fence, level metric.Bucket, rows []metric.RollupRow) error
	// DeleteCacheBlock deletes a cache partition: one delete, whatever it holds.
	DeleteCacheBlock(ctx context.Context, f Fence, k CacheKey) error
	// DeleteMarks deletes exactly the given marks, by their keys.
	DeleteMarks(ctx context.Context, f Fence, p IndexPartition, marks []Mark) error
	// CompleteSlice records that every mark of the slice has been dealt with. It needs no fence, since
	// what it says stays true; it may become durable as late as what carries one.
	CompleteSlice(ctx context.Context, k SliceKey) error
}

// Reader reads what rests.
type Reader interface {
	// RawChunks yields the chunks of the groups that ids touches, of the raw slices
	// that start in [fromMs, toMs), ordered by group, slice and ID. They may hold samples of other
	// schedules of the same groups.
	//
	// Chunks that cannot be read, though others around them can, are stood for by one without
	// Data for each group and slice that they may have been of: it does not decode.
	RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[RawChunk, error]
	// Rollups yields the rows of a level with schedules in ids and times in
	// [fromMs, toMs), each schedule's by time, schedules in no promised order. One whose stored values cannot be
	// decoded is yielded as damaged, and the others after it.
	Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error]
}

// Metadata is the table metric_metadata: one row for each name.
type Metadata interface {
	// PutMetadata stores each under its name; of two with one name the last is kept. Texts are valid UTF-8, names not
	// empty. It may become durable as late as what carries a fence.
	PutMetadata(ctx context.Context, ms []metric.Metadata) error
	// Metadata yields all, by name.
	Metadata(ctx context.Context) iter.Seq2[metric.Metadata, error]
}

// Operations is what operators see.
type Operations interface {
	RecordRun(ctx context.Context, r Run) error
	// RecentRuns are the last runs, newest first.
	RecentRuns(ctx context.Context, limit int) ([]Run, error)
	RecordError(ctx context.Context, e ComponentError) error
	// RecentErrors are the last 10 of each component, newest first.
	RecentErrors(ctx context.Context) ([]ComponentError, error)
	// Heartbeat records that a worker lives; the row goes after ttl, or when a store that
	// belongs to one process is closed. ErrSettings, and nothing is recorded, when CheckFit says so.
	Heartbeat(ctx context.Context, w Worker, ttl time.Duration) error
	Workers(ctx context.Context) ([]Worker, error)
	// RowFence is the fence that a roll-up row was written with: what is written with a lower one is not read. 0 where there
	// is no row, or where the store does not keep it, since it refuses lower fences.
	RowFence(ctx context.Context, level metric.Bucket, id metric.ScheduleID, timeMs int64) (Fence, error)
	Leases(ctx context.Context) ([]Lease, error)
}
