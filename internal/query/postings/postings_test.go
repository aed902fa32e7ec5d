package postings_test

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/query/postings"
	"github.com/quern/quern/internal/treecheck/linear"
)

// model is a set of ids, the slow way.
type model map[uint32]bool

func (m model) sorted() []uint32 { return slices.Sorted(maps.Keys(m)) }

// same checks all that a list tells.
func same(t *testing.T, want []uint32, l postings.List) {
	t.Helper()
	got := slices.Collect(l.All())
	require.Len(t, got, len(want))
	require.True(t, slices.Equal(want, got), "%v, not %v", got, want)
	require.Equal(t, len(want), l.Len())
	for _, id := range want {
		_, next := slices.BinarySearch(want, id+1)
		if !l.Has(id) || l.Has(id+1) != next {
			t.Fatalf("%d is said to be in it: %t, and the next: %t", id, l.Has(id), l.Has(id+1))
		}
	}
}

// snapshot is a list at a time, and what it had.
type snapshot struct {
	list postings.List
	want []uint32
}

// histories make lists of all forms, and of all changes from one to another.
var histories = map[string]func(rnd *rand.Rand, i int) uint32{
	"in order":    func(_ *rand.Rand, i int) uint32 { return uint32(65_000 + i) },
	"down":        func(_ *rand.Rand, i int) uint32 { return uint32(70_000 - i) },
	"few":         func(rnd *rand.Rand, _ int) uint32 { return rnd.Uint32N(30) },
	"gaps":        func(_ *rand.Rand, i int) uint32 { return uint32(i * 8) },
	"dense":       func(rnd *rand.Rand, _ int) uint32 { return rnd.Uint32N(6000) },
	"sparse":      func(rnd *rand.Rand, _ int) uint32 { return rnd.Uint32N(1 << 20) },
	"far":         func(rnd *rand.Rand, _ int) uint32 { return rnd.Uint32() },
	"full chunks": func(_ *rand.Rand, i int) uint32 { return uint32(i*40_503) % (1 << 16) }, // every id of a chunk, in disorder
	"edges":       func(rnd *rand.Rand, _ int) uint32 { return 1<<16 - 20 + rnd.Uint32N(40) },
}

// TestHistories: a list has what was added and not removed, and snapshots have what it had then.
func TestHistories(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, next := range histories {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			n, every := 12_000, 1000
			if name == "full chunks" {
				n, every = 1<<16, 8000
			}
			var l postings.List
			there, bytes := model{}, 0
			var snapshots []snapshot
			for i := range n {
				id := next(rnd, i)
				if rnd.IntN(4) == 0 && name != "full chunks" {
					l.Remove(id)
					delete(there, id)
				} else {
					l.Add(id)
					there[id] = true
				}
				if rnd.IntN(every) == 0 {
					snapshots = append(snapshots, snapshot{l.Snapshot(), there.sorted()})
				}
				bytes = max(bytes, l.Bytes())
			}
			same(t, there.sorted(), l)
			for _, s := range snapshots {
				same(t, s.want, s.list)
			}
			require.Less(t, bytes, 64*n+100)
			for id := range there {
				l.Remove(id)
			}
			same(t, nil, l)
			require.Zero(t, l.Bytes())
			for _, s := range snapshots {
				same(t, s.want, s.list)
			}
		})
	}
}

// TestAlgebra: And, AndNot and Union of lists of all forms, against the model.
func TestAlgebra(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	type set struct {
		list postings.List
		ids  model
	}
	var all []set
	for _, next := range histories {
		for _, n := range []int{0, 1, 50, 9000} {
			s := set{ids: model{}}
			from := rnd.IntN(100)
			for i := range n {
				id := next(rnd, from+i)
				s.list.Add(id)
				s.ids[id] = true
			}
			all = append(all, s)
		}
	}
	whole := set{ids: model{}} // a chunk and more
	for id := range uint32(70_000) {
		whole.list.Add(id)
		whole.ids[id] = true
	}
	all = append(all, whole)
	for _, a := range all {
		for _, b := range all {
			both, left, either := model{}, model{}, maps.Clone(b.ids)
			for id := range a.ids {
				either[id] = true
				if b.ids[id] {
					both[id] = true
				} else {
					left[id] = true
				}
			}
			require.True(t, slices.Equal(both.sorted(), collect(postings.And(a.list, b.list))))
			require.True(t, slices.Equal(left.sorted(), collect(postings.AndNot(a.list, b.list))))
			var u postings.Union
			u.Add(a.list)
			u.Add(b.list)
			require.True(t, slices.Equal(either.sorted(), collect(u.List())))
		}
	}
	var u postings.Union
	either := model{}
	for _, s := range all {
		u.Add(s.list)
		maps.Copy(either, s.ids)
	}
	same(t, either.sorted(), u.List())
	for _, s := range all { // and what they were made of is as it was
		same(t, s.ids.sorted(), s.list)
	}
}

func collect(l postings.List) []uint32 { return slices.Collect(l.All()) }

// TestRunsTakeNothing: ids without a gap, in whatever order they came, take no memory beside the list.
func TestRunsTakeNothing(t *testing.T) {
	for name, order := range map[string]func(i uint32) uint32{
		"up":          func(i uint32) uint32 { return 1_000_000 + i },
		"down":        func(i uint32) uint32 { return 1_000_000 - i },
		"in disorder": func(i uint32) uint32 { return 1_000_000 + i*7%20 },
	} {
		var l postings.List
		for i := range uint32(20) {
			l.Add(order(i))
		}
		require.Equal(t, 20, l.Len(), name)
		require.Zero(t, l.Bytes(), name)
	}
}

// TestBytes: a list knows what it holds.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		lists, each int
		step        uint32
	}{"few": {2000, 20, 8}, "many": {20, 40_000, 3}, "far": {200, 100, 100_000}} {
		before := linear.Heap()
		all, charged := make([]postings.List, c.lists), 0
		for i := range all {
			for j := range c.each {
				all[i].Add(uint32(i) + uint32(j)*c.step)
			}
			charged += all[i].Bytes()
		}
		held := float64(linear.Heap()-before) - float64(c.lists*16)
		t.Logf("%s: %.1f bytes an id, charged %.2f of it", name, held/float64(c.lists*c.each), float64(charged)/held)
		require.InEpsilon(t, held, charged, 0.1, name)
		runtime.KeepAlive(all)
	}
}

// TestReadersAndAWriter: readers take snapshots under a lock that a writer takes too, and read them without it.
func TestReadersAndAWriter(t *testing.T) {
	var mu sync.RWMutex
	var l postings.List
	var wg sync.WaitGroup
	const n = 20_000
	for range 3 {
		wg.Go(func() {
			for seen := 0; seen < n; {
				mu.RLock()
				s := l.Snapshot()
				mu.RUnlock()
				count, last := 0, int64(-1)
				for id := range s.All() {
					if int64(id) <= last {
						t.Errorf("%d after %d", id, last)
						return
					}
					last = int64(id)
					count++
				}
				if count != s.Len() || count < seen {
					t.Errorf("%d ids, not %d, and %d before", count, s.Len(), seen)
					return
				}
				seen = count
			}
		})
	}
	for i := range uint32(n) {
		mu.Lock()
		l.Add(i * 40_503 % n * 5) // each once, in disorder
		mu.Unlock()
	}
	wg.Wait()
}

// FuzzList applies a history of additions, removals and snapshots: three bytes each.
func FuzzList(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 2, 0, 0, 4, 0, 1, 2, 0, 2, 0, 0})
	f.Add([]byte{3, 0, 0, 1, 9, 0, 3, 0, 1, 2, 0, 0, 0, 9, 0})
	f.Fuzz(func(t *testing.T, history []byte) {
		var l postings.List
		there := model{}
		var snapshots []snapshot
		for len(history) >= 3 && len(snapshots) < 20 {
			op, id := history[0], uint32(history[1])<<9|uint32(history[2])
			history = history[3:]
			switch op % 4 {
			case 0:
				l.Add(id)
				there[id] = true
			case 1:
				l.Remove(id)
				delete(there, id)
			case 2:
				snapshots = append(snapshots, snapshot{l.Snapshot(), there.sorted()})
			case 3: // many at once
				for i := range uint32(5000) {
					l.Add(id + i*uint32(op/4%3))
					there[id+i*uint32(op/4%3)] = true
				}
			}
		}
		for _, s := range append(snapshots, snapshot{l, there.sorted()}) {
			require.True(t, slices.Equal(s.want, collect(s.list)))
			for _, other := range snapshots {
				both := slices.DeleteFunc(slices.Clone(s.want), func(id uint32) bool { return !other.list.Has(id) })
				require.True(t, slices.Equal(both, collect(postings.And(s.list, other.list))))
			}
		}
	})
}

// BenchmarkAdd adds the ids of 50,000 sources of 20 series, each to the list of its source and to one of all.
func BenchmarkAdd(b *testing.B) {
	const n, each = 50_000, 20
	for name, id := range map[string]func(source, i int) int{
		"in order":    func(source, i int) int { return source*each + i },
		"interleaved": func(source, i int) int { return source/8*8*each + source%8 + i*8 },
		"random":      func(source, i int) int { source = source * 40_503 % n; return source/8*8*each + source%8 + i*8 },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				before, lists := linear.Heap(), make([]postings.List, n)
				var all postings.List
				b.StartTimer()
				for source := range n {
					for i := range each {
						lists[source].Add(uint32(id(source, i)))
						all.Add(uint32(id(source, i)))
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(linear.Heap()-before)/(n*each), "B/id")
				runtime.KeepAlive(lists)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n*each), "ns/id")
		})
	}
}
