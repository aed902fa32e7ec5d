package registry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func series(t testing.TB, name string, cores ...int) []metric.Labels {
	t.Helper()
	var out []metric.Labels
	for _, core := range cores {
		ls, err := metric.NewLabels(
			metric.Label{Name: metric.NameLabel, Value: name},
			metric.Label{Name: "core", Value: strconv.Itoa(core)},
		)
		require.NoError(t, err)
		out = append(out, ls)
	}
	return out
}

func seq(from, to int) []int {
	var out []int
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func idRange(from, n int) []metric.ScheduleID {
	out := make([]metric.ScheduleID, n)
	for i := range out {
		out[i] = metric.ScheduleID(from + i)
	}
	return out
}

func source(t testing.TB, r *registry.Registry, name string) *registry.Source {
	t.Helper()
	s, err := r.Source(t.Context(), name, false)
	require.NoError(t, err)
	return s
}

func register(t testing.TB, s *registry.Source, ls []metric.Labels) []metric.ScheduleID {
	t.Helper()
	ids, err := s.Register(t.Context(), ls)
	require.NoError(t, err)
	return ids
}

func TestRegisterOnceAndLookUp(t *testing.T) {
	store := newFakeStore()
	var noted []storage.Schedule
	r := registry.New(store, registry.Options{OnNew: func(s []storage.Schedule) { noted = append(noted, s...) }})
	s := source(t, r, "web-1")
	ls := series(t, "cpu", 0, 1, 2, 1, 0)

	_, ok := s.Lookup(ls[0].AppendKey(nil))
	require.False(t, ok)
	ids := register(t, s, ls)
	require.Equal(t, []metric.ScheduleID{0, 1, 2, 1, 0}, ids, "a series given twice has one id")
	require.Equal(t, ids, register(t, s, ls), "registering again changes nothing")
	for i, l := range ls {
		id, ok := s.Lookup(l.AppendKey(nil))
		require.True(t, ok)
		require.Equal(t, ids[i], id)
	}
	require.Equal(t, 1, store.claims)

	require.Len(t, noted, 3)
	require.Equal(t, "web-1", noted[1].Labels.Get(metric.SourceLabel))
	require.Equal(t, "1", noted[1].Labels.Get("core"))
	require.Equal(t, metric.ScheduleID(1), noted[1].ID)

	other := register(t, source(t, r, "web-2"), ls[:1])
	require.Equal(t, []metric.ScheduleID{3}, other, "the same labels of another source are another series")
}

func TestSeriesMustNotHoldTheSource(t *testing.T) {
	r := registry.New(newFakeStore(), registry.Options{})
	_, err := source(t, r, "web-1").Register(t.Context(), []metric.Labels{{{Name: metric.SourceLabel, Value: "web-1"}}})
	require.ErrorContains(t, err, "given twice")
}

// A protocol's decoder passes views into a buffer that the next request overwrites.
func TestNothingGivenIsKept(t *testing.T) {
	store := newFakeStore()
	var noted []storage.Schedule
	r := registry.New(store, registry.Options{OnNew: func(s []storage.Schedule) { noted = append(noted, s...) }})
	buf := []byte("web-1cpu")
	view := func(from, to int) string { return unsafe.String(&buf[from], to-from) }
	s := source(t, r, view(0, 5))
	register(t, s, []metric.Labels{{{Name: metric.NameLabel, Value: view(5, 8)}}})
	copy(buf, "########")

	require.Same(t, s, source(t, r, "web-1"))
	_, ok := s.Lookup(metric.Labels{{Name: metric.NameLabel, Value: "cpu"}}.AppendKey(nil))
	require.True(t, ok)
	require.Equal(t, `cpu{source="web-1"}`, noted[0].Labels.String())
}

func TestIDsLostInARaceAreUsedNext(t *testing.T) {
	store := newFakeStore()
	a := registry.New(store, registry.Options{LeaseSize: 8})
	var noted []storage.Schedule
	b := registry.New(store, registry.Options{LeaseSize: 8, OnNew: func(s []storage.Schedule) { noted = append(noted, s...) }})
	sa, sb := source(t, a, "web-1"), source(t, b, "web-1")
	require.Equal(t, idRange(0, 3), register(t, sa, series(t, "cpu", 0, 1, 2)))
	// b has not seen what a did. Its lease is 8 to 15.
	require.Equal(t, []metric.ScheduleID{8, 0, 1, 2}, register(t, sb, series(t, "cpu", 7, 0, 1, 2)))
	require.Len(t, noted, 4, "the index learns of what others have registered too")
	require.Equal(t, metric.ScheduleID(2), noted[3].ID)
	require.Equal(t, idRange(9, 7), register(t, source(t, b, "web-2"), series(t, "cpu", seq(0, 7)...)))
	require.Equal(t, 2, store.leases)
}

func TestOneSourcesIDsAreAdjacent(t *testing.T) {
	store := newFakeStore()
	// Another process takes a lease of 100 after every one of ours.
	store.onLease = func(int) error {
		if store.leases == 0 {
			return nil
		}
		_, err := store.Store.LeaseIDs(t.Context(), 100)
		return err
	}
	r := registry.New(store, registry.Options{LeaseSize: 100})
	require.Equal(t, idRange(0, 60), register(t, source(t, r, "a"), series(t, "cpu", seq(0, 60)...)))
	require.Equal(t, idRange(200, 70), register(t, source(t, r, "b"), series(t, "cpu", seq(0, 70)...)),
		"40 are left of the lease: too few, so a new one is taken rather than split")
	require.Equal(t, idRange(400, 250), register(t, source(t, r, "c"), series(t, "cpu", seq(0, 250)...)),
		"more than a lease is leased as one")
	require.Equal(t, idRange(270, 20), register(t, source(t, r, "d"), series(t, "cpu", seq(0, 20)...)),
		"what was left over serves small registrations, the smallest first")
	require.Equal(t, idRange(60, 5), register(t, source(t, r, "a"), series(t, "mem", seq(0, 5)...)),
		"a source goes on where it ended when that is free")
	require.Equal(t, idRange(290, 10), register(t, source(t, r, "e"), series(t, "cpu", seq(0, 10)...)))
	require.Equal(t, 3, store.leases)
}

// A process alone on a store gets leases that follow each other, and leaves no hole.
func TestNeighbouringLeasesAreOne(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{LeaseSize: 100})
	for i := range 10 {
		require.Equal(t, idRange(i*70, 70), register(t, source(t, r, fmt.Sprint("web-", i)), series(t, "cpu", seq(0, 70)...)))
	}
}

func TestManySourcesLieInFewBlocks(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{})
	const sources, pbs = 1000, 128
	used := make(map[metric.ScheduleID]bool)
	total := 0
	for i := range sources {
		n := 20 + i*37%200
		total += n
		ids := register(t, source(t, r, fmt.Sprint("web-", i)), series(t, "cpu", seq(0, n)...))
		touched := make(map[metric.ScheduleID]bool)
		for _, id := range ids {
			touched[id/pbs] = true
			used[id/pbs] = true
		}
		require.LessOrEqual(t, len(touched), (n+pbs-2)/pbs+1)
	}
	require.LessOrEqual(t, len(used), total/pbs*102/100, "no more than 2 % of the blocks are for nothing")
}

// TestReadsOutlastRequests: a source that takes longer to read than its senders wait is loaded in the
// time of one read.
func TestReadsOutlastRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, patience = 50 * time.Second, 15 * time.Second
		store := newFakeStore()
		register(t, source(t, registry.New(store, registry.Options{}), "web-1"), series(t, "cpu", 0, 1))
		store.loads = 0
		store.onLoad = func(ctx context.Context) error {
			select {
			case <-time.After(takes):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		r := registry.New(store, registry.Options{})
		ask := func() (*registry.Source, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return r.Source(ctx, "web-1", false)
		}
		began := time.Now()
		for range 3 {
			_, err := ask()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		s, err := ask()
		require.NoError(t, err)
		require.Equal(t, takes, time.Since(began))
		require.Equal(t, 1, store.loads)
		require.Equal(t, 2, s.Len())
	})
}

func TestClaimFailsHalfWay(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{MaxSeries: 10_010, LeaseSize: 10_000})
	s := source(t, r, "web-1")
	ls := series(t, "cpu", seq(0, 10_000)...)
	calls := 0
	store.onClaim = func([]storage.Claim) error {
		if calls++; calls == 2 {
			return storage.ErrUnavailable
		}
		return nil
	}
	_, err := s.Register(t.Context(), ls)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Positive(t, s.Len())
	require.Equal(t, idRange(0, 10_000), register(t, s, ls))
	_, err = s.Register(t.Context(), series(t, "mem", seq(0, 11)...))
	var limit *registry.LimitError
	require.ErrorAs(t, err, &limit, "what failed was counted once")
	require.Equal(t, 1, limit.Refused)
}

func TestLimits(t *testing.T) {
	store := newFakeStore()
	register(t, source(t, registry.New(store, registry.Options{}), "old"), series(t, "cpu", 0, 1))
	r := registry.New(store, registry.Options{MaxSeries: 8, MaxSeriesPerSource: 4})

	s := source(t, r, "web-1")
	ids, err := s.Register(t.Context(), series(t, "cpu", seq(0, 6)...))
	var limit *registry.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, registry.LimitError{Source: "web-1", Max: 4, Refused: 2}, *limit)
	require.ErrorContains(t, err, `source "web-1" may have no more than 4`)
	require.Equal(t, append(idRange(4096, 4), registry.NoID, registry.NoID), ids)

	ids, err = s.Register(t.Context(), series(t, "cpu", 5, 1))
	require.ErrorAs(t, err, &limit)
	require.Equal(t, []metric.ScheduleID{registry.NoID, 4097}, ids, "what is known stays known")

	ids, err = source(t, r, "web-2").Register(t.Context(), series(t, "cpu", 0, 1, 2))
	require.ErrorAs(t, err, &limit)
	require.Equal(t, registry.LimitError{Max: 8, Refused: 1}, *limit)
	require.Equal(t, []metric.ScheduleID{4100, 4101, registry.NoID}, ids)
}

// texts is a Memory in which a series takes the bytes of its values.
type texts struct {
	mu    sync.Mutex
	bytes int64
}

func (m *texts) add(schedules []storage.Schedule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range schedules {
		m.bytes += m.Weight(s.Labels)
	}
}

func (m *texts) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

func (*texts) Weight(ls metric.Labels) (n int64) {
	for _, l := range ls {
		n += int64(len(l.Value))
	}
	return n
}

// ownBytes returns what sources take beside their series.
func ownBytes(t *testing.T, names ...string) int64 {
	t.Helper()
	r := registry.New(newFakeStore(), registry.Options{Memory: new(texts)})
	for _, name := range names {
		source(t, r, name)
	}
	return r.Bytes()
}

// TestBytesOfDroppedSources: a source counts as long as it is in memory.
func TestBytesOfDroppedSources(t *testing.T) {
	held := &texts{}
	r := registry.New(newFakeStore(), registry.Options{MaxSources: 3, Memory: held, OnNew: held.add})
	most := int64(0)
	for i := range 100 {
		register(t, source(t, r, fmt.Sprintf("web-%02d", i)), series(t, "cpu", 0))
		rest := r.Bytes() - held.Bytes()
		if i < 10 {
			most = max(most, rest)
		}
		require.Positive(t, rest)
		require.LessOrEqual(t, rest, most)
	}
}

// TestLimitOfBytes: what does not fit is refused by itself, what is registered is loaded whatever
// it takes, and of what failed nothing stays counted.
func TestLimitOfBytes(t *testing.T) {
	const long = 1000
	named := func(sizes ...int) []metric.Labels {
		var out []metric.Labels
		for i, n := range sizes {
			out = append(out, series(t, fmt.Sprintf("%0*d", n, i), 0)...)
		}
		return out
	}
	store := newFakeStore()
	old := source(t, registry.New(store, registry.Options{}), "old")
	register(t, old, named(long, long))
	held := &texts{bytes: 2 * long}
	limit := 3*long + ownBytes(t, "new")
	r := registry.New(store, registry.Options{MaxBytes: limit, Memory: held, OnNew: held.add})

	failed := errors.New("failed")
	store.onClaim = func([]storage.Claim) error { return failed }
	s := source(t, r, "new")
	for range 3 {
		_, err := s.Register(t.Context(), named(long/2))
		require.ErrorIs(t, err, failed)
	}
	store.onClaim = nil

	ids, err := s.Register(t.Context(), named(long/2, long, 10))
	var full *registry.LimitError
	require.ErrorAs(t, err, &full)
	require.Equal(t, registry.LimitError{MaxBytes: limit, Refused: 1}, *full)
	require.ErrorContains(t, err, fmt.Sprintf("1 new series refused: all series may take no more than %d bytes of memory", limit))
	require.NotEqual(t, registry.NoID, ids[0])
	require.Equal(t, registry.NoID, ids[1])
	require.NotEqual(t, registry.NoID, ids[2])
	again, err := s.Register(t.Context(), named(long/2, long, 10))
	require.ErrorAs(t, err, &full)
	require.Equal(t, ids, again, "what is known stays known")

	tight := registry.New(store, registry.Options{MaxBytes: 1, Memory: held, OnNew: held.add})
	require.Equal(t, 2, source(t, tight, "old").Len())
	_, err = source(t, tight, "old").Register(t.Context(), named(long, long, 1))
	require.ErrorAs(t, err, &full)
	require.Equal(t, 1, full.Refused)

	// A series counts while the store is asked for it.
	held = &texts{}
	r = registry.New(store, registry.Options{MaxBytes: 3*long/2 + ownBytes(t, "first", "second"), Memory: held, OnNew: held.add})
	first, second := source(t, r, "first"), source(t, r, "second")
	store.onClaim = func([]storage.Claim) error {
		_, err := second.Register(t.Context(), named(long))
		require.ErrorAs(t, err, &full)
		return nil
	}
	register(t, first, named(long))
}

// TestBytesOfSeriesWithoutData: series without data left give back room in number, but not in bytes,
// since they stay in memory.
func TestBytesOfSeriesWithoutData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1000
		held, counts := &texts{}, 0
		r := registry.New(newFakeStore(), registry.Options{
			MaxSeries: 4, MaxBytes: limit, Memory: held, OnNew: held.add, Clock: clock.System{},
			Gone: func(context.Context, []metric.ScheduleID) (int, error) {
				counts++
				return 1 << 20, nil // no series has data
			},
		})
		s := source(t, r, "made up")
		var full *registry.LimitError
		for i := range 100 {
			if _, err := s.Register(t.Context(), series(t, "cpu", seq(10*i, 10*i+10)...)); err != nil {
				require.ErrorAs(t, err, &full)
			}
			require.LessOrEqual(t, held.Bytes(), int64(limit))
			time.Sleep(time.Minute + time.Second)
		}
		require.NotNil(t, full)
		require.EqualValues(t, limit, full.MaxBytes)
		require.Greater(t, s.Len(), 4, "the limit in number has room")
		require.Equal(t, 1, counts, "a count frees no memory")
	})
}

func TestIdleSourcesAreDropped(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{MaxSources: 3})
	held := source(t, r, "web-0")
	register(t, held, series(t, "cpu", 0))
	register(t, source(t, r, "busy"), series(t, "cpu", 0))
	for i := 1; i < 10; i++ {
		source(t, r, "busy")
		register(t, source(t, r, fmt.Sprint("web-", i)), series(t, "cpu", 0))
	}
	loads := store.loads
	source(t, r, "busy")
	require.Equal(t, loads, store.loads, "one in use stays")

	id, ok := held.Lookup(series(t, "cpu", 0)[0].AppendKey(nil))
	require.True(t, ok, "a dropped source goes on working for whoever holds it")
	require.Zero(t, id)
	again := source(t, r, "web-0")
	require.NotSame(t, held, again)
	require.Equal(t, idRange(0, 1), register(t, again, series(t, "cpu", 0)))
	require.Equal(t, register(t, again, series(t, "mem", 0)), register(t, held, series(t, "mem", 0)))
}

// TestMadeUpSourcesAreNotKept: names of sources that never get a series take no memory, however many they are.
func TestMadeUpSourcesAreNotKept(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{})
	held := source(t, r, "first")
	const n, size = 20_000, 4 << 10
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		source(t, r, fmt.Sprintf("%0*d", size, i))
		if i == 500 {
			register(t, held, series(t, "cpu", 0))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d sources of %d bytes hold %d bytes", n, size, grown)
	require.Less(t, grown, int64(n*size/4))

	require.Same(t, held, source(t, r, "first"), "one that has got a series stays")
	loads := store.loads
	last := source(t, r, fmt.Sprintf("%0*d", size, n-1))
	require.Equal(t, loads, store.loads, "the latest are there")
	require.NotNil(t, last)
	runtime.KeepAlive(r)
}

func TestWaitingToRegisterCanBeCalledOff(t *testing.T) {
	store := newFakeStore()
	r := registry.New(store, registry.Options{})
	s := source(t, r, "web-1")
	entered, proceed := make(chan struct{}), make(chan struct{})
	store.onClaim = func([]storage.Claim) error {
		close(entered)
		<-proceed
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Register(t.Context(), series(t, "cpu", 0)); err != nil {
			t.Error(err)
		}
	})
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Register(ctx, series(t, "cpu", 1))
	require.ErrorIs(t, err, context.Canceled)
	close(proceed)
	wg.Wait()
}

// Lookups run while the source grows.
func TestLookupWhileRegistering(t *testing.T) {
	r := registry.New(newFakeStore(), registry.Options{LeaseSize: 16})
	s := source(t, r, "web-1")
	ls := series(t, "cpu", seq(0, 500)...)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, l := range ls {
				ids, err := s.Register(t.Context(), []metric.Labels{l})
				if err != nil {
					t.Error(err)
					return
				}
				if id, ok := s.Lookup(l.AppendKey(nil)); !ok || id != ids[0] {
					t.Errorf("%s: registered as %d, found as %d, %v", l, ids[0], id, ok)
				}
			}
		})
	}
	wg.Wait()
	ids := register(t, s, ls)
	slices.Sort(ids)
	require.Equal(t, idRange(0, 500), ids)
}

func TestLookupDoesNotAllocate(t *testing.T) {
	r := registry.New(newFakeStore(), registry.Options{})
	s := source(t, r, "web-1")
	ls := series(t, "cpu", seq(0, 100)...)
	register(t, s, ls)
	var key []byte
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := r.Source(t.Context(), "web-1", false); err != nil {
			panic(err)
		}
		key = ls[17].AppendKey(key[:0])
		if _, ok := s.Lookup(key); !ok {
			panic("not found")
		}
	}))
}

func BenchmarkLookup(b *testing.B) {
	r := registry.New(newFakeStore(), registry.Options{})
	s := source(b, r, "web-1")
	ls := series(b, "cpu_usage_user_percent", seq(0, 1000)...)
	register(b, s, ls)
	keys := make([][]byte, len(ls))
	for i, l := range ls {
		keys[i] = l.AppendKey(nil)
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if _, ok := s.Lookup(keys[i]); !ok {
				b.Fatal("not found")
			}
			if i++; i == len(keys) {
				i = 0
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if _, ok := s.Lookup(keys[i%len(keys)]); !ok {
					b.Error("not found")
				}
			}
		})
	})
}

// A lease is used for a day. Afterwards none of its ids is claimed, not even an id whose claim
// failed before, or lost a race.
func TestLeasesAge(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC))
	store := newFakeStore()
	r := registry.New(store, registry.Options{Clock: clk, LeaseAge: registry.LeaseAge, LeaseSize: 10})
	s := source(t, r, "web-1")
	pass := func(d time.Duration) { clk.Set(clk.Now().Add(d)) }
	require.Equal(t, idRange(0, 2), register(t, s, series(t, "cpu", 0, 1)))
	pass(registry.LeaseAge - time.Second)
	require.Equal(t, idRange(2, 1), register(t, s, series(t, "cpu", 2)))
	store.onClaim = func([]storage.Claim) error { return storage.ErrTimeout }
	_, err := s.Register(t.Context(), series(t, "cpu", 3))
	require.ErrorIs(t, err, storage.ErrTimeout)
	store.onClaim = nil
	pass(time.Second)
	require.Equal(t, idRange(10, 1), register(t, s, series(t, "cpu", 3)))
	require.Equal(t, idRange(11, 1), register(t, s, series(t, "cpu", 4)))

	// The age of what is left counts from the oldest lease.
	pass(registry.LeaseAge / 2)
	require.Equal(t, idRange(12, 9), register(t, s, series(t, "cpu", seq(5, 14)...)))
	pass(registry.LeaseAge / 2)
	require.Equal(t, idRange(30, 1), register(t, s, series(t, "cpu", 14)))

	// Neither a clock that is set back nor a machine that sleeps makes a lease last longer.
	pass(registry.LeaseAge / 2)
	clk.Jump(-registry.LeaseAge)
	pass(registry.LeaseAge / 2)
	require.Equal(t, idRange(40, 1), register(t, s, series(t, "cpu", 15)))
	clk.Jump(registry.LeaseAge)
	require.Equal(t, idRange(50, 1), register(t, s, series(t, "cpu", 16)))
}

// A full lease takes more groups than are in reach, so that it fails. New series get ids of a small
// one.
func TestLeaseWhileGroupsAreAway(t *testing.T) {
	f := newFakeStore()
	r := registry.New(f, registry.Options{})
	var asked []int
	f.onLease = func(n int) error {
		if asked = append(asked, n); n > 200 {
			return storage.ErrUnavailable
		}
		return nil
	}
	require.Equal(t, idRange(0, 3), register(t, source(t, r, "a"), series(t, "m", 0, 1, 2)))
	require.Equal(t, []int{4096, 128}, asked)
	register(t, source(t, r, "b"), series(t, "m", seq(0, 150)...))
	require.Equal(t, []int{4096, 128, 4096, 150}, asked)
	require.Equal(t, 3+150, f.ids(t))

	// Any other failure is final.
	f.onLease = func(int) error { return storage.ErrCorrupt }
	_, err := source(t, r, "c").Register(t.Context(), series(t, "m", seq(0, 150)...))
	require.ErrorIs(t, err, storage.ErrCorrupt)
}
