package storagetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// History is a random sequence of operations that is applied to two stores. After every few
// operations both stores must hold the same. The seed decides everything.
type History struct {
	Seed  uint64
	Steps int
	// Settings apply to both stores. The default is TestSettings.
	Settings storage.Settings
	// Retention applies to both stores. The default is 2 days of raw, 20 of 1h rows.
	Retention storage.Retention
	// NoReopen leaves out restarts, NoExpire leaves out Expire, for stores that do not support
	// them.
	NoReopen bool
	NoExpire bool
	// NoStaleFences leaves out writes with superseded fences. A store in which the newer row wins
	// differs there from a store that refuses the older write.
	NoStaleFences bool
	// ManyWriters is for stores that order rows by the writers' clocks and end leases by the
	// database's clock. Then every fence is of a lease that was taken just before, leases last, and
	// the clock does not go back.
	ManyWriters bool
}

// checkEvery is the number of steps between comparisons of everything.
const checkEvery = 40

// Run applies the history to both stores and fails t where they differ. The first store is the
// right one.
func (h History) Run(t *testing.T, want, got OpenFunc) {
	t.Helper()
	if len(h.Settings.Epochs) == 0 {
		h.Settings = TestSettings()
	}
	if h.Retention == nil {
		h.Retention = storage.Retention{2 * 24 * time.Hour, 20 * 24 * time.Hour}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("history with seed %d", h.Seed)
		}
	})
	run := &historyRun{
		History: h,
		t:       t,
		ctx:     t.Context(),
		rng:     rand.New(rand.NewPCG(h.Seed, 0)),
		clk:     clock.NewSimulated(day0.Add(12 * time.Hour)),
		ids:     blocks.NewIDs(h.Seed),
	}
	for i, open := range [...]OpenFunc{want, got} {
		run.stores[i].Store, run.stores[i].reopen = open(t, h.Settings, h.Retention, run.clk)
	}
	for step := range h.Steps {
		run.step = step
		if now := run.clk.Now(); now.After(run.newest) {
			run.newest = now
		}
		run.next()
		if step%checkEvery == checkEvery-1 {
			run.compareAll()
		}
	}
	run.compareAll()
}

type historyRun struct {
	History
	t      *testing.T
	ctx    context.Context
	rng    *rand.Rand
	clk    *clock.Simulated
	newest time.Time // that the clock has shown
	ids    *blocks.IDs
	stores [2]historyStore
	step   int
	op     string

	// fences are the pairs of fences that both stores have handed out so far.
	fences [][2]storage.Fence
	marks  []storage.PlacedMark
	leased metric.ScheduleID
}

type historyStore struct {
	storage.Store
	reopen func() storage.Store
}

// next does one random step on both stores.
func (r *historyRun) next() {
	type choice struct {
		weight int
		name   string
		do     func()
	}
	choices := []choice{
		{30, "write", r.write},
		{12, "write roll-ups", r.writeRollups},
		{10, "delete marks", r.deleteMarks},
		{6, "pack raw", r.packRaw},
		{8, "delete cache block", r.deleteCacheBlock},
		{2, "begin slice", r.beginSlice},
		{4, "complete slice", r.completeSlice},
		{8, "lease a shard", r.acquire},
		{3, "release a shard", r.release},
		{4, "lease ids", r.leaseIDs},
		{6, "claim schedules", r.claim},
		{1, "add epoch", r.addEpoch},
		{4, "put document", r.putDocument},
		{4, "put items", r.putItems},
		{2, "delete items", r.deleteItems},
		{6, "advance the clock", r.advance},
		{10, "read raw", r.readRaw},
		{10, "read roll-ups", r.readRollups},
		{5, "read slices", r.readSlices},
	}
	if !r.NoExpire {
		choices = append(choices, choice{2, "expire", r.expire})
	}
	if !r.NoReopen {
		choices = append(choices, choice{2, "reopen", r.reopen})
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	n := r.rng.IntN(total)
	for _, c := range choices {
		if n -= c.weight; n < 0 {
			r.op = c.name
			c.do()
			return
		}
	}
}

// both runs an operation on both stores and requires the same kind of error.
func both[T any](r *historyRun, do func(i int, st storage.Store) (T, error)) (out [2]T) {
	r.t.Helper()
	var errs [2]error
	for i := range r.stores {
		out[i], errs[i] = do(i, r.stores[i].Store)
	}
	require.Equal(r.t, errorKind(errs[0]), errorKind(errs[1]), "seed %d, step %d, %s: %v, %v", r.Seed, r.step, r.op, errs[0], errs[1])
	return out
}

// same is both for results that must be equal.
func same[T any](r *historyRun, do func(st storage.Store) (T, error)) {
	r.t.Helper()
	out := both(r, func(_ int, st storage.Store) (T, error) { return do(st) })
	equal(r.t, out[0], out[1], "seed ", r.Seed, ", step ", r.step, ", ", r.op)
}

func (r *historyRun) effect(do func(i int, st storage.Store) error) {
	r.t.Helper()
	both(r, func(i int, st storage.Store) (struct{}, error) { return struct{}{}, do(i, st) })
}

// errorKind returns which of the contract's errors err is, or another error if it is none.
func errorKind(err error) error {
	if err == nil {
		return nil
	}
	for _, kind := range []error{
		storage.ErrUnavailable, storage.ErrTimeout, storage.ErrOverloaded, storage.ErrCorrupt,
		storage.ErrConflict, storage.ErrFenced, storage.ErrSettings, storage.ErrRefused, storage.ErrNoDocument,
	} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return errors.New("another error")
}

func (r *historyRun) id() blocks.ID { return r.ids.Next(clock.NowMs(r.clk)) }

func (r *historyRun) bucket() metric.Bucket {
	return metric.Bucket(r.rng.IntN(int(r.Settings.Ladder.Top())))
}

func (r *historyRun) start() metric.ScheduleID { return metric.ScheduleID(r.rng.IntN(8) * 128) }

// slice is one of the last few slices of a bucket.
func (r *historyRun) slice(b metric.Bucket) storage.SliceKey {
	s := r.Settings.Ladder.SliceAt(b, clock.NowMs(r.clk))
	s.StartMs -= int64(r.rng.IntN(5)) * (s.EndMs - s.StartMs)
	return storage.SliceKey{Bucket: b, StartMs: s.StartMs}
}

func (r *historyRun) data() []byte {
	b := make([]byte, 1+r.rng.IntN(40))
	if r.rng.IntN(20) == 0 {
		b = make([]byte, 20_000)
	}
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
	return b
}

// fence returns a pair of fences: mostly the newest, sometimes an older one, sometimes none.
func (r *historyRun) fence() [2]storage.Fence {
	if r.ManyWriters {
		r.acquireAs(0, "a")
	}
	n := len(r.fences)
	if n == 0 || r.rng.IntN(4) == 0 {
		return [2]storage.Fence{}
	}
	if !r.NoStaleFences && !r.ManyWriters && r.rng.IntN(4) == 0 {
		return r.fences[r.rng.IntN(n)]
	}
	return r.fences[n-1]
}

func (r *historyRun) partition(k storage.SliceKey, start metric.ScheduleID) storage.IndexPartition {
	return storage.IndexPartition{SliceKey: k, Shard: blocks.ShardOf(start, r.Settings.IndexPartitions)}
}

func (r *historyRun) write() {
	b := storage.Batch{}
	for range r.rng.IntN(6) {
		k := r.slice(r.bucket())
		start := r.start()
		b.Open = append(b.Open, k)
		m := storage.PlacedMark{Partition: r.partition(k, start), Mark: storage.Mark{
			Start: start, TimeMs: r.slice(k.Bucket).StartMs, ID: r.id(),
			Kind: storage.MarkKind(r.rng.IntN(5)), DueMs: k.StartMs - r.rng.Int64N(2*k.StartMs), Attempt: r.rng.IntN(3) * 150,
		}}
		if m.Kind == storage.MarkFresh {
			m.Chunks = r.rng.IntN(500)
		}
		if m.Attempt > 0 {
			m.LastError = "failed \x00 ünïcode " + strconv.Itoa(m.Attempt)
		}
		for id := range metric.ScheduleID(128) {
			if m.Kind == storage.MarkLate && r.rng.IntN(10) == 0 {
				m.Schedules = append(m.Schedules, start+id)
			}
		}
		b.Marks = append(b.Marks, m)
	}
	for range r.rng.IntN(6) {
		k := r.slice(r.bucket())
		c := storage.Chunk{ID: r.id(), Data: r.data()}
		b.Cache = append(b.Cache, storage.CacheChunk{CacheKey: storage.CacheKey{SliceKey: k, Start: r.start()}, Chunk: c})
		b.Raw = append(b.Raw, storage.RawChunk{
			Group: blocks.BlockAt(r.start(), r.Settings.GroupSize).Start, SliceMs: r.slice(metric.Raw).StartMs, Chunk: c,
		})
	}
	r.marks = append(r.marks, b.Marks...)
	f := r.fence()
	times := 1 + r.rng.IntN(8)/7 // sometimes twice: a repeated write changes nothing
	for range times {
		r.effect(func(i int, st storage.Store) error {
			b := b
			b.Fence = f[i]
			return st.Write(r.ctx, &b)
		})
	}
}

func (r *historyRun) writeRollups() {
	level := metric.Bucket(1 + r.rng.IntN(int(r.Settings.Ladder.Top())))
	width := r.Settings.Ladder.WidthMs(level)
	var rows []metric.RollupRow
	for range r.rng.IntN(20) {
		t := metric.AlignDown(clock.NowMs(r.clk), width) - r.rng.Int64N(200)*width
		rows = append(rows, row(r.start()+metric.ScheduleID(r.rng.IntN(128)), t, float64(r.rng.IntN(100))))
	}
	slices.SortFunc(rows, compareRows)
	rows = slices.CompactFunc(rows, func(a, b metric.RollupRow) bool { return compareRows(a, b) == 0 })
	f := r.fence()
	r.effect(func(i int, st storage.Store) error { return st.WriteRollups(r.ctx, f[i], level, rows) })
}

func (r *historyRun) deleteMarks() {
	if len(r.marks) == 0 {
		return
	}
	r.rng.Shuffle(len(r.marks), func(i, j int) { r.marks[i], r.marks[j] = r.marks[j], r.marks[i] })
	p := r.marks[0].Partition
	var doomed []storage.Mark
	for _, m := range r.marks {
		if m.Partition == p && r.rng.IntN(3) > 0 {
			doomed = append(doomed, m.Mark)
		}
	}
	f := r.fence()
	r.effect(func(i int, st storage.Store) error { return st.DeleteMarks(r.ctx, f[i], p, doomed) })
}

// packRaw replaces some of the chunks of a group and slice, as the first store has them.
func (r *historyRun) packRaw() {
	group, slice := blocks.BlockAt(r.start(), r.Settings.GroupSize).Start, r.slice(metric.Raw).StartMs
	var parts []blocks.ID
	for c, err := range r.stores[0].RawChunks(r.ctx, blocks.Range{Start: group, End: group + 1}, slice, slice+1) {
		require.NoError(r.t, err)
		if r.rng.IntN(3) > 0 {
			parts = append(parts, c.ID)
		}
	}
	if len(parts) == 0 {
		return
	}
	c := storage.RawChunk{Group: group, SliceMs: slice, Chunk: storage.Chunk{ID: blocks.PackedID(parts), Data: r.data()}}
	r.acquireAs(0, "a") // a fence above the writes of all of them
	f := r.fences[len(r.fences)-1]
	r.effect(func(i int, st storage.Store) error { return st.PackRaw(r.ctx, f[i], c, parts) })
}

func (r *historyRun) deleteCacheBlock() {
	k := storage.CacheKey{SliceKey: r.slice(r.bucket()), Start: r.start()}
	f := r.fence()
	r.effect(func(i int, st storage.Store) error { return st.DeleteCacheBlock(r.ctx, f[i], k) })
}

func (r *historyRun) beginSlice() {
	k := r.slice(r.bucket())
	r.effect(func(_ int, st storage.Store) error { return st.BeginSlice(r.ctx, k) })
}

func (r *historyRun) completeSlice() {
	k := r.slice(r.bucket())
	r.effect(func(_ int, st storage.Store) error { return st.CompleteSlice(r.ctx, k) })
}

func (r *historyRun) acquire() {
	shard := r.rng.IntN(r.Settings.IndexPartitions)
	owner := string(rune('a' + r.rng.IntN(2)))
	if r.ManyWriters && shard == 0 {
		owner = "a"
	}
	r.acquireAs(shard, owner)
}

// ttl is d, or with ManyWriters so long that it never ends.
func (r *historyRun) ttl(d time.Duration) time.Duration {
	if r.ManyWriters {
		return 1000 * time.Hour
	}
	return d
}

func (r *historyRun) acquireAs(shard int, owner string) {
	leases := both(r, func(_ int, st storage.Store) (storage.Lease, error) {
		return st.AcquireShard(r.ctx, shard, owner, r.ttl(time.Minute))
	})
	pair := [2]storage.Fence{leases[0].Fence, leases[1].Fence}
	if pair[0] == 0 {
		return
	}
	for _, old := range r.fences {
		require.True(r.t, pair[0] > old[0] && pair[1] > old[1], "seed %d, step %d: fence %v after %v", r.Seed, r.step, pair, old)
	}
	r.fences = append(r.fences, pair)
}

func (r *historyRun) release() {
	shard := r.rng.IntN(r.Settings.IndexPartitions)
	r.effect(func(_ int, st storage.Store) error { return st.ReleaseShard(r.ctx, shard, "a") })
}

func (r *historyRun) leaseIDs() {
	n := 1 + r.rng.IntN(50)
	same(r, func(st storage.Store) (blocks.Range, error) { return st.LeaseIDs(r.ctx, n) })
	r.leased += metric.ScheduleID(n)
}

func (r *historyRun) claim() {
	source := "source-" + strconv.Itoa(r.rng.IntN(12))
	n := 1 + r.rng.IntN(8)
	var ids blocks.Range
	same(r, func(st storage.Store) (_ blocks.Range, err error) {
		ids, err = st.LeaseIDs(r.ctx, n)
		return ids, err
	})
	r.leased += metric.ScheduleID(n)
	want := make([]storage.Schedule, n)
	for i := range want {
		want[i] = storage.Schedule{
			ID:     ids.Start + metric.ScheduleID(i),
			Labels: series(source, "m"+strconv.Itoa(r.rng.IntN(20))),
		}
	}
	same(r, func(st storage.Store) ([]metric.ScheduleID, error) {
		return st.ClaimSchedules(r.ctx, ClaimsOf(source, want))
	})
}

// addEpoch adds an epoch when the clock is past what it has shown before: by a clock that went back, a
// store may refuse.
func (r *historyRun) addEpoch() {
	if r.clk.Now().Before(r.newest) {
		r.clk.Set(r.newest.Add(time.Second))
	}
	e := blocks.Epoch{FromMs: clock.NowMs(r.clk) + r.rng.Int64N(10*hourMs), BlockSize: 64 << r.rng.IntN(3)}
	r.effect(func(_ int, st storage.Store) error { return st.AddEpoch(r.ctx, e) })
}

// putDocument puts the next version of a document, sometimes another one.
func (r *historyRun) putDocument() {
	key := r.docKey(r.rng.IntN(5))
	newest, err := r.stores[0].Document(r.ctx, key)
	if err != nil {
		require.ErrorIs(r.t, err, storage.ErrNoDocument)
	}
	d := storage.Document{
		DocumentHead: storage.DocumentHead{
			DocumentKey: key, Version: newest.Version + 1, Deleted: r.rng.IntN(6) == 0,
			UpdatedMs: clock.NowMs(r.clk), Author: "a", Title: strconv.Itoa(r.step),
		},
	}
	if !d.Deleted {
		d.Body = r.data()
	}
	switch r.rng.IntN(8) {
	case 0:
		d.Version += r.rng.Int64N(4) - 2
	case 1:
		d = newest // once more
	}
	out := both(r, func(_ int, st storage.Store) (int64, error) {
		err := st.PutDocument(r.ctx, d)
		var conflict *storage.ConflictError
		if errors.As(err, &conflict) {
			return conflict.Newest, err
		}
		return 0, err
	})
	require.Equal(r.t, out[0], out[1], "seed %d, step %d", r.Seed, r.step)
}

func (r *historyRun) docKey(n int) storage.DocumentKey {
	return storage.DocumentKey{Kind: "kind" + strconv.Itoa(n%2), ID: "id-" + strconv.Itoa(n)}
}

func (r *historyRun) itemKey() storage.ItemKey {
	return storage.ItemKey{Kind: r.docKey(r.rng.IntN(2)).Kind, ID: strconv.Itoa(r.rng.IntN(30))}
}

func (r *historyRun) putItems() {
	var es []storage.Item
	for range r.rng.IntN(6) {
		es = append(es, storage.Item{ItemKey: r.itemKey(), Value: r.data()})
	}
	r.effect(func(_ int, st storage.Store) error { return st.PutItems(r.ctx, es) })
}

func (r *historyRun) deleteItems() {
	keys := []storage.ItemKey{r.itemKey(), r.itemKey()}
	r.effect(func(_ int, st storage.Store) error { return st.DeleteItems(r.ctx, keys) })
}

// advance moves the clock by seconds, sometimes by hours, and now and then to less than a minute before the newest time that
// it has shown: a store may refuse a clock that is further behind.
func (r *historyRun) advance() {
	d := time.Duration(r.rng.IntN(60)) * time.Second
	switch r.rng.IntN(8) {
	case 0, 1:
		d *= 600
	case 2:
		if !r.ManyWriters {
			r.clk.Set(r.newest.Add(-d))
			return
		}
	}
	r.clk.Set(r.clk.Now().Add(d))
}

// expire expires rows, now or up to two days later.
func (r *historyRun) expire() {
	r.clk.Set(r.clk.Now().Add(time.Duration(r.rng.IntN(3)) * 24 * time.Hour))
	r.effect(func(_ int, st storage.Store) error { return st.Expire(r.ctx) })
}

func (r *historyRun) reopen() {
	if r.ManyWriters {
		r.clk.Set(r.clk.Now().Add(time.Second)) // a restart takes time
		// Leases outlast the process.
		for shard := range r.Settings.IndexPartitions {
			for _, owner := range []string{"a", "b"} {
				r.effect(func(_ int, st storage.Store) error { return st.ReleaseShard(r.ctx, shard, owner) })
			}
		}
	}
	for i := range r.stores {
		r.stores[i].Store = r.stores[i].reopen()
	}
}

func (r *historyRun) readRaw() {
	ids := blocks.Range{Start: metric.ScheduleID(r.rng.IntN(1200))}
	ids.End = ids.Start + metric.ScheduleID(r.rng.IntN(600))
	from := clock.NowMs(r.clk) - r.rng.Int64N(6*dayMs)
	to := from + r.rng.Int64N(4*dayMs)
	same(r, func(st storage.Store) ([]storage.RawChunk, error) {
		return gather(Kept(st.RawChunks(r.ctx, ids, from, to)))
	})
}

func (r *historyRun) readRollups() {
	level := metric.Bucket(1 + r.rng.IntN(int(r.Settings.Ladder.Top())))
	width := r.Settings.Ladder.WidthMs(level)
	ids := blocks.Range{Start: metric.ScheduleID(r.rng.IntN(1200))}
	ids.End = ids.Start + metric.ScheduleID(r.rng.IntN(600))
	from := clock.NowMs(r.clk) - r.rng.Int64N(220)*width
	to := from + r.rng.Int64N(220)*width
	r.compareRollups(level, ids, from, to)
}

func (r *historyRun) compareRollups(level metric.Bucket, ids blocks.Range, fromMs, toMs int64) {
	same(r, func(st storage.Store) ([]metric.RollupRow, error) {
		rows, err := gather(st.Rollups(r.ctx, level, ids, fromMs, toMs))
		slices.SortStableFunc(rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
		return rows, err
	})
}

func (r *historyRun) readSlices() {
	b := r.bucket()
	from, to := r.slice(b).StartMs, r.slice(b).StartMs
	same(r, func(st storage.Store) ([]storage.SliceState, error) { return st.Slices(r.ctx, b, from, to) })
}

// compareAll compares everything that both stores hold.
func (r *historyRun) compareAll() {
	r.op = "everything"
	const everMs = int64(1) << 60
	everything := blocks.Range{End: 1 << 40}
	for b := metric.Raw; b < r.Settings.Ladder.Top(); b++ {
		same(r, func(st storage.Store) ([]storage.SliceState, error) { return st.Slices(r.ctx, b, -everMs, everMs) })
		same(r, func(st storage.Store) ([]int64, error) {
			newest, ok, err := st.NewestBegun(r.ctx, b)
			if !ok {
				return nil, err
			}
			return []int64{newest}, err
		})
	}
	same(r, func(st storage.Store) ([]storage.RawChunk, error) {
		return gather(Kept(st.RawChunks(r.ctx, everything, -everMs, everMs)))
	})
	for _, level := range r.Settings.Ladder.Levels() {
		r.compareRollups(level, everything, -everMs, everMs)
	}
	same(r, func(st storage.Store) ([]storage.Schedule, error) { return gather(st.Schedules(r.ctx, everything)) })
	for i := range 12 {
		same(r, func(st storage.Store) ([]storage.Schedule, error) {
			out, err := gather(st.SourceSchedules(r.ctx, "source-"+strconv.Itoa(i)))
			slices.SortFunc(out, compareSchedules)
			return out, err
		})
	}
	r.compareIndexAndCache()
	same(r, func(st storage.Store) (blocks.Range, error) { return st.LeasedIDs(r.ctx) })
	same(r, func(st storage.Store) (storage.Settings, error) { return st.Settings(), nil })
	for n := range 2 {
		kind := r.docKey(n).Kind
		same(r, func(st storage.Store) ([]storage.DocumentHead, error) { return gather(st.Documents(r.ctx, kind)) })
		same(r, func(st storage.Store) ([]storage.Item, error) { return gather(st.Items(r.ctx, kind, "", "")) })
		same(r, func(st storage.Store) ([]storage.Item, error) { return gather(st.Items(r.ctx, kind, "1", "25")) })
	}
	for n := range 5 {
		same(r, func(st storage.Store) (storage.Document, error) {
			d, err := st.Document(r.ctx, r.docKey(n))
			if errors.Is(err, storage.ErrNoDocument) {
				err = nil
			}
			return d, err
		})
	}
	same(r, func(st storage.Store) (map[int]string, error) {
		leases, err := st.Leases(r.ctx)
		owners := map[int]string{}
		for _, l := range leases {
			owners[l.Shard] = fmt.Sprint(l.Owner, " until ", l.ExpiresMs)
		}
		return owners, err
	})
}

// compareIndexAndCache compares the index partitions into which marks were ever put, and the cache
// blocks of their slices.
func (r *historyRun) compareIndexAndCache() {
	seen := map[storage.IndexPartition]bool{}
	slicesSeen := map[storage.SliceKey]bool{}
	for _, m := range r.marks {
		slicesSeen[m.Partition.SliceKey] = true
		if seen[m.Partition] {
			continue
		}
		seen[m.Partition] = true
		same(r, func(st storage.Store) ([]storage.Mark, error) {
			return gather(st.Marks(r.ctx, m.Partition, storage.MarkKey{}, 0))
		})
	}
	for k := range slicesSeen {
		for start := metric.ScheduleID(0); start < 8*128; start += 128 {
			same(r, func(st storage.Store) ([]storage.Chunk, error) {
				return st.CacheBlock(r.ctx, storage.CacheKey{SliceKey: k, Start: start})
			})
		}
	}
}
