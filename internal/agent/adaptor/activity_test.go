package adaptor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// TestRates: the rates are right from the beginning, and follow what comes, the shorter ones sooner.
func TestRates(t *testing.T) {
	c := clock.NewSimulated(begin)
	a := newActivity(c)
	pass := func(d time.Duration, each int) (rates [3]float64) {
		for range d / time.Second {
			c.Set(c.Now().Add(time.Second))
			a.add(each)
		}
		_, rates = a.Samples()
		return rates
	}
	_, rates := a.Samples()
	require.Equal(t, [3]float64{}, rates)
	for _, rate := range pass(10*time.Second, 8) {
		require.InDelta(t, 8, rate, 0.4)
	}
	for _, rate := range pass(20*time.Minute, 8) {
		require.InDelta(t, 8, rate, 0.1)
	}
	rates = pass(time.Minute, 0)
	require.InDelta(t, 8/2.718, rates[0], 0.1)
	require.InDelta(t, 8*0.8187, rates[1], 0.1)
	require.InDelta(t, 8*0.9048, rates[2], 0.1)
	n, _ := a.Samples()
	require.EqualValues(t, 8*(10+20*60), n)
}
