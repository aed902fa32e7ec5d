package registry

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// TestKnownIsAMap: a table finds what a map does, also where many digests belong at the same place, and at the last.
func TestKnownIsAMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for name, random := range map[string]func() digest{
		"random":  func() digest { return digest{rnd.Uint64(), rnd.Uint32()} },
		"crowded": func() digest { return digest{^uint64(0) - rnd.Uint64N(4), rnd.Uint32N(1000)} },
	} {
		t.Run(name, func(t *testing.T) {
			ids := newKnown(0)
			want := make(map[digest]metric.ScheduleID)
			for len(want) < 2000 {
				some := make(map[digest]metric.ScheduleID)
				for range 1 + rnd.IntN(40) {
					d := random()
					if _, ok := want[d]; !ok {
						some[d] = metric.ScheduleID(rnd.Uint32N(metric.MaxScheduleID))
					}
				}
				ids = ids.with(len(some))
				for d, id := range some {
					_, ok := ids.find(d)
					require.False(t, ok)
					ids.add(d, id)
					want[d] = id
				}
				require.Equal(t, len(want), ids.len())
			}
			got := make(map[digest]metric.ScheduleID)
			for d, id := range ids.all() {
				got[d] = id
			}
			require.Equal(t, want, got)
			for d, id := range want {
				found, ok := ids.find(d)
				require.True(t, ok)
				require.Equal(t, id, found)
				_, ok = ids.find(digest{d.a, d.b + 1<<20})
				require.Equal(t, hasKey(want, digest{d.a, d.b + 1<<20}), ok, "all bits count")
			}
			require.Less(t, len(ids.slots), 2*len(want))
		})
	}
}

func hasKey(m map[digest]metric.ScheduleID, d digest) bool {
	_, ok := m[d]
	return ok
}

// The greatest id has a slot, and greater ones are refused.
func TestGreatestID(t *testing.T) {
	ids := newKnown(1)
	ids.add(digest{}, metric.MaxScheduleID)
	id, ok := ids.find(digest{})
	require.True(t, ok)
	require.EqualValues(t, metric.MaxScheduleID, id)
	require.NoError(t, checkID(metric.MaxScheduleID))
	require.Error(t, checkID(metric.MaxScheduleID+1))
	require.Error(t, checkID(NoID))
}

// Two seeds give two hashes: neither part of a digest says anything of the other.
func TestDigests(t *testing.T) {
	s, other := newSeeds(), newSeeds()
	key := []byte("some key")
	d := s.digest(key)
	require.Equal(t, d, s.digest([]byte("some key")))
	require.NotEqual(t, d.a, other.digest(key).a)
	require.NotEqual(t, d.b, other.digest(key).b)
	require.NotEqual(t, uint32(d.a), d.b)
	require.EqualValues(t, 16, unsafe.Sizeof(slot{}))
}
