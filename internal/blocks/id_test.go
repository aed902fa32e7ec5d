package blocks

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIDBytes(t *testing.T) {
	assert.Equal(t, "0193531d7a007000811223344556677f", NewIDs(0x0112_2334_4556_677f).Next(0x0193531d7a00).String())
	assert.Equal(t, "01934ce07a0070008000000000000007", KeyID(1_732_161_600_000, 7).String())
}

// Version and variant are at the positions of RFC 9562, whatever the inputs.
func TestIDIsAUUIDv7(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		for _, id := range []ID{NewIDs(r.Uint64()).Next(r.Int64N(1 << 48)), KeyID(r.Int64N(1<<48), r.Uint64())} {
			require.Equal(t, byte(0x70), id[6]&0xf0)
			require.Equal(t, byte(0x80), id[8]&0xc0)
		}
	}
}

func TestIDsAscend(t *testing.T) {
	ids := NewIDs(7)
	var last ID
	next := func(nowMs int64) {
		id := ids.Next(nowMs)
		require.Positive(t, id.Compare(last))
		last = id
	}
	for range 10_000 { // more than one millisecond's sequence holds
		next(5000)
	}
	next(4000) // the clock steps back
	next(0)
	for _, nowMs := range []int64{5001, 5002, 5003, 5004, 9000, 9000} {
		next(nowMs)
	}
}

func TestIDsOfManyGoroutinesAreUnique(t *testing.T) {
	ids := NewIDs(7)
	made := make([][]ID, 4)
	var wg sync.WaitGroup
	for i := range made {
		wg.Go(func() {
			for range 1000 {
				made[i] = append(made[i], ids.Next(1))
			}
		})
	}
	wg.Wait()
	seen := map[ID]bool{}
	for _, some := range made {
		for _, id := range some {
			require.False(t, seen[id])
			seen[id] = true
		}
	}
}

func TestKeyIDsOrderByTimeFirst(t *testing.T) {
	assert.Negative(t, KeyID(1_732_161_600_000, math.MaxUint64).Compare(KeyID(1_732_161_600_001, 0)))
	assert.NotEqual(t, KeyID(1, 2), KeyID(1, 3))
}
