package rollup

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestDueTimes(t *testing.T) {
	d := dueTimes{ladder: metric.DefaultLadder(), delay: 2 * time.Minute}
	day := time.Date(2025, 3, 30, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ at, next time.Duration }{
		{0, 2 * time.Minute},
		{2*time.Minute - 1, 2 * time.Minute},
		{2 * time.Minute, time.Hour + 2*time.Minute},
		{23*time.Hour + 30*time.Minute, 24*time.Hour + 2*time.Minute},
	} {
		require.Equal(t, day.Add(c.next), d.Next(day.Add(c.at)), "%s", c.at)
	}
}

// TestAggregator: a pass at start, one whenever a slice is due, soon after one that
// failed, and housekeeping after each, also after the failed.
func TestAggregator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewModel(storagetest.TestSettings(), nil, clock.System{})
		faulty := storagetest.NewFaulty(store)
		clk := clock.System{}
		c := cache.New(faulty, clk, 1, cache.DefaultTiming())
		r := NewRunner(faulty, shards.New(faulty, clk, storage.Worker{ID: "w"}, 0), c, recovery.New(faulty, c, clk, recovery.Options{}), clk, Options{})
		var mu sync.Mutex
		var passes []time.Duration
		passed := func() []time.Duration {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(passes)
		}
		start := time.Now()
		a := NewAggregator(r, cache.DefaultTiming(), func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			passes = append(passes, time.Since(start))
			return nil
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		require.Equal(t, []time.Duration{0}, passed(), "at start")

		// Bubbles begin at midnight; the slices of the test's ladder are hours.
		time.Sleep(2*time.Minute + 1)
		require.Equal(t, []time.Duration{0, 2 * time.Minute}, passed(), "when a slice is due")

		faulty.Fail("Slices", blocks.Range{}, 2, storage.ErrUnavailable)
		time.Sleep(time.Hour + 5*time.Second)
		synctest.Wait()
		at := time.Hour + 2*time.Minute
		require.Equal(t, []time.Duration{0, 2 * time.Minute, at, at + firstRetry, at + 3*firstRetry}, passed(),
			"soon after one that failed, and less soon after the next")
		cancel(errors.New("stop"))
		<-done
	})
}
