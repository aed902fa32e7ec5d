package cassandra

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// The tests of this file run on a real server and make requests to it fail. What a store must still
// hold then depends on what Cassandra does with the requests that have reached it.

// fault is the fate of one request.
type fault int

const (
	// lost: the request does not reach the servers.
	lost fault = iota
	// unanswered: the request is executed, and its answer does not come.
	unanswered
	// stuck: the request does not reach the servers, and blocks until the caller gives up.
	stuck
	// stuckAnswer: the request is executed, and blocks until the caller gives up.
	stuckAnswer
	// delayed: the request is not answered, and reaches the servers only when deliver is called,
	// after the caller or another process has tried again.
	delayed
)

var faults = map[string]fault{"lost": lost, "unanswered": unanswered, "stuck": stuck, "answer stuck": stuckAnswer, "delayed": delayed}

// flaky makes a request fail: the one sent when at has been counted down to 0.
type flaky struct {
	mu    sync.Mutex
	at    int // below 0 for none
	kind  fault
	sent  int
	stuck chan struct{} // closed once a request is stuck
	late  func(context.Context) error
}

// fail makes the k-th request from now on fail, counted from 0.
func (f *flaky) fail(k int, kind fault) (stuck <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.kind, f.sent, f.stuck, f.late = k, kind, 0, make(chan struct{}), nil
	return f.stuck
}

// heal stops the faults, and returns how many requests were sent since the last call of fail or
// heal.
func (f *flaky) heal() (sent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent = f.sent
	f.at, f.sent = -1, 0
	return sent
}

// deliver sends the delayed request to the servers.
func (f *flaky) deliver(t *testing.T) {
	t.Helper()
	if f.late != nil {
		require.NoError(t, f.late(t.Context()))
	}
	f.late = nil
}

func (f *flaky) do(ctx context.Context, _ string, request func(context.Context) error) error {
	f.mu.Lock()
	hit, kind, waits := f.at == f.sent, f.kind, f.stuck
	f.sent++
	if hit && kind == delayed {
		f.late = request
	}
	f.mu.Unlock()
	if !hit {
		return request(ctx)
	}
	if kind == unanswered || kind == stuckAnswer {
		if err := request(ctx); err != nil {
			return err
		}
	}
	if kind == stuck || kind == stuckAnswer {
		close(waits)
		<-ctx.Done()
	}
	return convert(ctx, gocql.ErrTimeoutNoResponse)
}

// place returns an empty keyspace with the tables, for one test.
func place(t *testing.T) Options {
	t.Helper()
	server := cassandratest.Shared(t)
	o := Options{
		Hosts: server.Hosts(), DirectHosts: server.Way() == cassandratest.WayDocker,
		Keyspace: cassandratest.SharedKeyspace(t, metric.DefaultLadder().String()),
		Timeout:  ddlTimeout, // long: only the chosen request is to fail
		Settings: storage.Settings{GroupSize: 4, IndexPartitions: 512, Epochs: blocks.Epochs{{BlockSize: 4}}},
	}
	o.ensureDefaults()
	require.NoError(t, ApplySchema(t.Context(), o, "", func(int, int, string) {}))
	return o
}

// process is a store over a session that may fail, as one of several processes has it.
type process struct {
	*Store
	flaky *flaky
}

func start(t *testing.T, o Options) *process {
	t.Helper()
	s, c, err := connect(t.Context(), &o, o.Keyspace)
	require.NoError(t, err)
	f := &flaky{at: -1}
	st, err := open(t.Context(), limited(around{s, f.do}, newLimiter(o.MaxInFlight)), &o, c.localDC)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return &process{st, f}
}

// interrupted calls do, and makes the k-th request of it fail. It says whether do sent so many.
func (p *process) interrupted(t *testing.T, k int, kind fault, do func(context.Context) error) (reached bool) {
	t.Helper()
	waits := p.flaky.fail(k, kind)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- do(ctx) }()
	var err error
	select {
	case <-waits:
		cancel()
		err = <-result
		require.ErrorIs(t, err, context.Canceled)
		p.flaky.heal()
		return true
	case err = <-result:
	}
	if p.flaky.heal() <= k {
		require.NoError(t, err)
		return false
	}
	require.ErrorIs(t, err, storage.ErrTimeout)
	return true
}

// sweep makes each request of an operation fail, one at a time, in every way. Each round has its
// own data, which round makes from its number n. round says whether the request to fail was
// reached.
func sweep(t *testing.T, round func(t *testing.T, n, k int, kind fault) (reached bool)) {
	n := 0
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		k := 0
		for {
			n++
			if !round(t, n, k, faults[name]) {
				break
			}
			k++
		}
		require.Positive(t, k, "%s: no request was sent", name)
		t.Logf("%s: %d requests", name, k)
	}
}

func gather[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var out []T
	for v, err := range seq {
		require.NoError(t, err)
		out = append(out, v)
	}
	return out
}

// However a claim fails, and whoever claims next: each series has one id and keeps it, no two
// series have the same id, and the lists by source and by id agree.
func TestFaultsOfClaimSchedules(t *testing.T) {
	const series = 24 // more than one conditional batch
	o := place(t)
	p, other := start(t, o), start(t, o)
	labels := func(source string, i int) metric.Labels {
		ls, err := metric.NewLabels(
			metric.Label{Name: metric.NameLabel, Value: fmt.Sprintf("metric_%d", i)},
			metric.Label{Name: metric.SourceLabel, Value: source},
			metric.Label{Name: "long", Value: strings.Repeat("x", 300)})
		require.NoError(t, err)
		return ls
	}
	want := func(p *process, source string, from, to int) []storage.Schedule {
		ids, err := p.LeaseIDs(t.Context(), to-from)
		require.NoError(t, err)
		var out []storage.Schedule
		for i := from; i < to; i++ {
			out = append(out, storage.Schedule{ID: ids.Start + metric.ScheduleID(i-from), Labels: labels(source, i)})
		}
		return out
	}
	sources := map[string]bool{}
	sweep(t, func(t *testing.T, n, k int, kind fault) bool {
		source := fmt.Sprintf("source-%d", n)
		sources[source] = true
		// The other has registered some of them.
		known, err := other.ClaimSchedules(t.Context(), storagetest.ClaimsOf(source, want(other, source, 10, 14)))
		require.NoError(t, err)

		mine := want(p, source, 0, series)
		reached := p.interrupted(t, k, kind, func(ctx context.Context) error {
			_, err := p.ClaimSchedules(ctx, storagetest.ClaimsOf(source, mine))
			return err
		})
		// A crash may come at any moment, so a listed series must always be in both tables.
		requireListedAlike(t, other, source)

		theirs, err := other.ClaimSchedules(t.Context(), storagetest.ClaimsOf(source, want(other, source, 5, series)))
		require.NoError(t, err)
		ids, err := p.ClaimSchedules(t.Context(), storagetest.ClaimsOf(source, mine))
		require.NoError(t, err)
		p.flaky.deliver(t)
		require.Equal(t, theirs, ids[5:], "one id per series, whoever asks")
		require.Equal(t, known, ids[10:14], "what has an id keeps it")
		again, err := p.ClaimSchedules(t.Context(), storagetest.ClaimsOf(source, want(p, source, 0, series)))
		require.NoError(t, err)
		require.Equal(t, ids, again)

		listed := requireListedAlike(t, other, source)
		require.Len(t, listed, series)
		for i, id := range ids {
			require.Equal(t, labels(source, i), listed[id], "schedule %d", id)
		}
		return reached
	})
	// The list by id, over all sources, has each series once, and no others.
	leased, err := p.LeasedIDs(t.Context())
	require.NoError(t, err)
	byID := map[metric.ScheduleID]metric.Labels{}
	for _, s := range gather(t, p.Schedules(t.Context(), leased)) {
		require.NotContains(t, byID, s.ID)
		byID[s.ID] = s.Labels
		require.True(t, sources[s.Labels.Get(metric.SourceLabel)])
	}
	require.Len(t, byID, series*len(sources))
}

// requireListedAlike requires that each schedule of a source is also found by id, and returns the
// schedules.
func requireListedAlike(t *testing.T, p *process, source string) map[metric.ScheduleID]metric.Labels {
	t.Helper()
	out := map[metric.ScheduleID]metric.Labels{}
	for _, s := range gather(t, p.SourceSchedules(t.Context(), source)) {
		require.NotContains(t, out, s.ID, "two series have one id")
		out[s.ID] = s.Labels
		found := gather(t, p.Schedules(t.Context(), blocks.Range{Start: s.ID, End: s.ID + 1}))
		require.Len(t, found, 1, "schedule %d", s.ID)
		require.Equal(t, s.Labels, found[0].Labels)
	}
	return out
}

// If a lease was taken but not answered, its owner holds it: the owner goes on under a higher
// fence, and others are refused. If it was not taken, anybody may take it.
func TestFaultsOfAcquireShard(t *testing.T) {
	o := place(t)
	// Two processes, since one would know its own fences.
	p, other := start(t, o), start(t, o)
	var newest storage.Fence
	acquire := func(p *process, shard int, owner string) error {
		l, err := p.AcquireShard(t.Context(), shard, owner, time.Hour)
		if err == nil {
			require.Greater(t, l.Fence, newest)
			newest = l.Fence
		}
		return err
	}
	sweep(t, func(t *testing.T, n, k int, kind fault) bool {
		shard := n
		for _, renewed := range []bool{false, true} {
			reached := p.interrupted(t, k, kind, func(ctx context.Context) error {
				l, err := p.AcquireShard(ctx, shard, "mine", time.Hour)
				newest = max(newest, l.Fence)
				return err
			})
			leases, err := other.Leases(t.Context())
			require.NoError(t, err)
			i := slices.IndexFunc(leases, func(l storage.Lease) bool { return l.Shard == shard })
			if i >= 0 {
				require.Equal(t, "mine", leases[i].Owner)
				require.ErrorIs(t, acquire(other, shard, "other"), storage.ErrConflict)
			} else {
				require.False(t, renewed, "the lease was there before")
			}
			require.NoError(t, acquire(other, 0, "other"), "another shard, and a higher fence than all before")
			require.NoError(t, acquire(p, shard, "mine"))
			p.flaky.deliver(t)
			require.ErrorIs(t, acquire(other, shard, "other"), storage.ErrConflict)
			require.NoError(t, acquire(p, shard, "mine"), "above what came late, too")
			if !reached {
				return false
			}
		}
		// A release fails in the same ways, and takes effect when it is repeated.
		p.interrupted(t, k, kind, func(ctx context.Context) error { return p.ReleaseShard(ctx, shard, "mine") })
		require.NoError(t, p.ReleaseShard(t.Context(), shard, "mine"))
		require.NoError(t, acquire(other, shard, "other"))
		p.flaky.deliver(t)
		require.ErrorIs(t, acquire(p, shard, "mine"), storage.ErrConflict)
		return true
	})
}

func TestFaultsOfAddEpoch(t *testing.T) {
	o := place(t)
	p, other := start(t, o), start(t, o)
	sweep(t, func(t *testing.T, n, k int, kind fault) bool {
		e := blocks.Epoch{FromMs: int64(n) * 1000 * dayMs, BlockSize: 4 << (n % 3)}
		before := p.Settings().Epochs
		reached := p.interrupted(t, k, kind, func(ctx context.Context) error { return p.AddEpoch(ctx, e) })
		for range 2 {
			require.NoError(t, p.AddEpoch(t.Context(), e))
			p.flaky.deliver(t)
		}
		want := append(slices.Clone(before), e)
		require.Equal(t, want, p.Settings().Epochs, "once")
		// A process that does not know the change gets ErrConflict, and can then go on.
		later := blocks.Epoch{FromMs: e.FromMs + dayMs, BlockSize: 8}
		require.ErrorIs(t, other.AddEpoch(t.Context(), later), storage.ErrConflict)
		require.Equal(t, want, other.Settings().Epochs)
		return reached
	})
}

// content is all that a round has written, as a reader finds it.
type content struct {
	Raw     []storage.RawChunk
	Rollups []metric.RollupRow
	Marks   []storage.Mark
	Cache   []storage.Chunk
	Slices  []storage.SliceState
}

// round is the data of one round of a sweep over writes: a day, and a few partitions of it.
type round struct {
	dayMs int64
	part  storage.IndexPartition
	ids   []blocks.ID
}

func newRound(n int) *round {
	r := &round{dayMs: int64(n) * dayMs}
	r.part = storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: metric.Raw, StartMs: r.dayMs}, Shard: 3}
	ids := blocks.NewIDs(1)
	for range 64 {
		r.ids = append(r.ids, ids.Next(r.dayMs))
	}
	return r
}

func (r *round) batch(f storage.Fence) *storage.Batch {
	b := &storage.Batch{Fence: f, Open: []storage.SliceKey{r.part.SliceKey}}
	for i := range 48 { // more than one batch of one partition
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: r.part, Mark: storage.Mark{
			Start: metric.ScheduleID(i) * 4, TimeMs: r.dayMs, ID: r.ids[i], Kind: storage.MarkLate,
			Schedules: []metric.ScheduleID{metric.ScheduleID(i) * 4}, DueMs: r.dayMs + 1,
		}})
	}
	for i := range 3 {
		b.Raw = append(b.Raw, storage.RawChunk{
			Group: metric.ScheduleID(i) * 4, SliceMs: r.dayMs, Chunk: storage.Chunk{ID: r.ids[i], Data: []byte{byte(i)}},
		})
		b.Cache = append(b.Cache, storage.CacheChunk{
			CacheKey: storage.CacheKey{SliceKey: r.part.SliceKey}, Chunk: storage.Chunk{ID: r.ids[i], Data: []byte{byte(i)}},
		})
	}
	return b
}

func (r *round) rollups() []metric.RollupRow {
	var rows []metric.RollupRow
	for id := range metric.ScheduleID(12) {
		for h := range int64(10) {
			rows = append(rows, metric.RollupRow{Schedule: id, TimeMs: r.dayMs + h*dayMs/24, Rollup: metric.Rollup{
				Count: 1, Sum: float64(h), FirstMs: r.dayMs + h, LastMs: r.dayMs + h, Sketch: []byte{byte(id), byte(h)},
			}})
		}
	}
	return rows
}

func (r *round) read(t *testing.T, p *process) content {
	t.Helper()
	ctx, ids, endMs := t.Context(), blocks.Range{End: 12}, r.dayMs+dayMs
	c := content{
		Raw:     gather(t, p.RawChunks(ctx, ids, r.dayMs, endMs)),
		Rollups: gather(t, p.Rollups(ctx, 1, ids, r.dayMs, endMs)),
		Marks:   gather(t, p.Marks(ctx, r.part, storage.MarkKey{}, 0)),
	}
	slices.SortFunc(c.Rollups, func(a, b metric.RollupRow) int {
		return int((a.Schedule-b.Schedule)*100) + int((a.TimeMs-b.TimeMs)/(dayMs/24))
	})
	var err error
	c.Cache, err = p.CacheBlock(ctx, storage.CacheKey{SliceKey: r.part.SliceKey})
	require.NoError(t, err)
	c.Slices, err = p.Slices(ctx, metric.Raw, r.dayMs, endMs)
	require.NoError(t, err)
	return c
}

// full is what a round holds when all of it is written.
func (r *round) full() content {
	b := r.batch(0)
	c := content{Raw: b.Raw, Rollups: r.rollups(), Slices: []storage.SliceState{{SliceKey: r.part.SliceKey}}}
	for _, m := range b.Marks {
		c.Marks = append(c.Marks, m.Mark)
	}
	for _, ch := range b.Cache {
		c.Cache = append(c.Cache, ch.Chunk)
	}
	return c
}

// Writes that failed at any request lead to the same state when they are repeated, with and without
// a fence. Until then a part may be there, in the order that the contract promises: nothing is
// there without its marks.
func TestFaultsOfWrites(t *testing.T) {
	o := place(t)
	p := start(t, o)
	lease, err := p.AcquireShard(t.Context(), 0, "a", time.Hour)
	require.NoError(t, err)
	for name, fence := range map[string]storage.Fence{"ingest": 0, "a run": lease.Fence} {
		t.Run(name, func(t *testing.T) {
			base := 1000
			if fence == 0 {
				base = 2000
			}
			sweep(t, func(t *testing.T, n, k int, kind fault) bool {
				r := newRound(base + n)
				write := func(ctx context.Context) error { return p.Write(ctx, r.batch(fence)) }
				reached := p.interrupted(t, k, kind, write)
				part, full := r.read(t, p), r.full()
				if len(part.Marks) > 0 {
					require.Equal(t, full.Slices, part.Slices, "slices before marks")
				}
				if len(part.Raw)+len(part.Cache) > 0 {
					require.Equal(t, full.Marks, part.Marks, "marks before chunks")
				}
				require.NoError(t, write(t.Context()))
				p.flaky.deliver(t)
				require.NoError(t, p.WriteRollups(t.Context(), lease.Fence, 1, r.rollups()))
				require.Equal(t, full, r.read(t, p))
				return reached
			})
		})
	}
	t.Run("roll-ups", func(t *testing.T) {
		sweep(t, func(t *testing.T, n, k int, kind fault) bool {
			r := newRound(3000 + n)
			require.NoError(t, p.Write(t.Context(), r.batch(0)))
			write := func(ctx context.Context) error { return p.WriteRollups(ctx, lease.Fence, 1, r.rollups()) }
			reached := p.interrupted(t, k, kind, write)
			require.NoError(t, write(t.Context()))
			p.flaky.deliver(t)
			require.Equal(t, r.full(), r.read(t, p))
			return reached
		})
	})
}

// Deletes that failed at any request delete what was named, and nothing else, when they are
// repeated.
func TestFaultsOfDeletes(t *testing.T) {
	o := place(t)
	// The data has a simulated time before the fence: a delete covers only what was written before
	// the fence.
	past := o
	past.Clock = clock.NewSimulated(time.Now().Add(-time.Hour))
	ingest, p := start(t, past), start(t, o)
	lease, err := p.AcquireShard(t.Context(), 0, "a", time.Hour)
	require.NoError(t, err)
	for i, c := range []struct {
		name string
		do   func(ctx context.Context, r *round) error
		want func(*content)
	}{
		{
			"marks",
			func(ctx context.Context, r *round) error {
				return p.DeleteMarks(ctx, lease.Fence, r.part, r.full().Marks[2:46])
			},
			func(c *content) { c.Marks = append(c.Marks[:2:2], c.Marks[46:]...) },
		},
		{
			"cache",
			func(ctx context.Context, r *round) error {
				return p.DeleteCacheBlock(ctx, lease.Fence, storage.CacheKey{SliceKey: r.part.SliceKey})
			},
			func(c *content) { c.Cache = nil },
		},
		{
			"begun slice",
			func(ctx context.Context, r *round) error { return p.BeginSlice(ctx, r.part.SliceKey) },
			func(c *content) { c.Slices[0].Begun = true },
		},
		{
			"slice",
			func(ctx context.Context, r *round) error { return p.CompleteSlice(ctx, r.part.SliceKey) },
			func(c *content) { c.Slices[0].Complete = true },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sweep(t, func(t *testing.T, n, k int, kind fault) bool {
				r := newRound(4000 + 1000*i + n)
				require.NoError(t, ingest.Write(t.Context(), r.batch(0)))
				require.NoError(t, p.WriteRollups(t.Context(), lease.Fence, 1, r.rollups()))
				reached := p.interrupted(t, k, kind, func(ctx context.Context) error { return c.do(ctx, r) })
				require.NoError(t, c.do(t.Context(), r))
				p.flaky.deliver(t)
				want := r.full()
				c.want(&want)
				require.Equal(t, want, r.read(t, p))
				return reached
			})
		})
	}
}
