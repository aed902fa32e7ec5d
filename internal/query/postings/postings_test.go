package postings_test

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
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
			present, bytes := model{}, 0
			var snapshots []snapshot
			for i := range n {
				id := next(rnd, i)
				if rnd.IntN(4) == 0 && name != "full chunks" {
					l.Remove(id)
					delete(present, id)
				} else {
					l.Add(id)
					present[id] = true
				}
				if rnd.IntN(every) == 0 {
					snapshots = append(snapshots, snapshot{l.Snapshot(), present.sorted()})
				}
				bytes = max(bytes, l.Bytes())
			}
			same(t, present.sorted(), l)
			for _, s := range snapshots {
				same(t, s.want, s.list)
			}
			require.Less(t, bytes, 64*n+100)
			for id := range present {
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
