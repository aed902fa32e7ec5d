package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlan: a schedule follows from its seed, contains every kind, and has only one fault at a time
// in a slot.
func TestPlan(t *testing.T) {
	kinds := []Kind{
		{Name: "a", Slots: []string{"one", "two"}, Longest: 4 * time.Second},
		{Name: "b", Slots: []string{"one", "two"}, Longest: 8 * time.Second},
		{Name: "c", Slots: []string{"three", "three"}, Longest: 10 * time.Second},
		{Name: "d", Slots: []string{"three"}, Longest: time.Second},
	}
	for seed := range uint64(100) {
		plan := Plan(seed, time.Minute, kinds)
		require.Equal(t, plan, Plan(seed, time.Minute, kinds))
		require.NotEqual(t, plan, Plan(seed+1, time.Minute, kinds))
		count := map[string]int{}
		until := map[string]time.Duration{}
		for _, f := range plan {
			k := kinds[f.Kind]
			slot := k.Slots[f.Slot]
			count[k.Name]++
			assert.GreaterOrEqual(t, f.At, until[slot], "seed %d: %s", seed, slot)
			assert.Positive(t, f.Lasts)
			until[slot] = f.At + f.Lasts
			assert.LessOrEqual(t, until[slot], time.Minute)
		}
		require.Len(t, count, len(kinds), "seed %d", seed)
	}
}
