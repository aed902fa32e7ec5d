package rollup_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestAggregator: a pass runs at start, whenever a slice is due, and soon after a failed pass.
// Housekeeping follows each pass, even a failed one.
func TestAggregator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storagetest.NewModel(storagetest.TestSettings(), nil, clock.System{})
		faulty := storagetest.NewFaulty(store)
		clk := clock.System{}
		r := worker(faulty, clk, 1, storage.Worker{ID: "w"}, rollup.Options{}).Runner
		var mu sync.Mutex
		var passes []time.Duration
		passed := func() []time.Duration {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(passes)
		}
		start := time.Now()
		a := rollup.NewAggregator(r, cache.DefaultTiming(), func(context.Context) error {
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
		require.Equal(t, []time.Duration{0, 2 * time.Minute, at, at + rollup.FirstRetry, at + 3*rollup.FirstRetry}, passed(),
			"soon after one that failed, and less soon after the next")
		cancel(errors.New("stop"))
		<-done
	})
}

// setClock is the machine's clock plus an offset.
type setClock struct {
	clock.System

	off atomic.Int64
}

func (c *setClock) Now() time.Time { return c.System.Now().Add(time.Duration(c.off.Load())) }

// TestAggregatorWhenTheClockIsSet: after the clock is set ahead, the aggregator looks at once. When it is put right, the next pass
// is at the next time by it. cron would wait for a time computed by the old clock, which may be days away.
func TestAggregatorWhenTheClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := &setClock{}
		store := storagetest.NewModel(storagetest.TestSettings(), nil, clk)
		r := worker(store, clk, 1, storage.Worker{ID: "w"}, rollup.Options{}).Runner
		var passes atomic.Int64
		a := rollup.NewAggregator(r, cache.DefaultTiming(), func(context.Context) error { passes.Add(1); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		before := passes.Load()
		for _, off := range []time.Duration{9 * 24 * time.Hour, 0, 30 * time.Second} {
			clk.off.Store(int64(off))
			time.Sleep(rollup.LookEvery)
			synctest.Wait()
		}
		require.Equal(t, before+1, passes.Load(), "not when it is put right")
		time.Sleep(time.Hour + rollup.LookEvery)
		synctest.Wait()
		require.Greater(t, passes.Load(), before+1)
		cancel()
		<-done
	})
}

// TestHousekeepingWhileShared: failing housekeeping is logged even while a slice waits for other
// workers, but not every second.
func TestHousekeepingWhileShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		store := storagetest.NewModel(storagetest.TestSettings(), nil, clk)
		other := shards.New(store, clk, storage.Worker{ID: "b", Aggregates: true}, 24*time.Hour)
		require.NoError(t, other.Beat(t.Context()))
		var said bytes.Buffer
		e := worker(store, clk, 1, storage.Worker{ID: "a"}, rollup.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
		slice := store.Settings().Ladder.SliceAt(metric.Raw, time.Now().UnixMilli())
		w := cache.NewWriter(e.Cache)
		for block := range 64 { // some in every shard
			id := metric.ScheduleID(block * store.Settings().Epochs[0].BlockSize)
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{{
				Slice: slice, Block: store.Settings().Epochs.BlockAt(id, slice.StartMs),
				Samples: []metric.Sample{{Schedule: id, TimeMs: slice.StartMs, Value: 1}},
			}}))
		}
		time.Sleep(time.Until(time.UnixMilli(slice.EndMs)) + 3*time.Minute)

		passes := 0
		a := rollup.NewAggregator(e.Runner, cache.DefaultTiming(), func(context.Context) error { passes++; return errors.New("no space left") })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		time.Sleep(90*time.Second + time.Millisecond)
		cancel()
		<-done
		require.Greater(t, passes, 40, said.String())
		require.Equal(t, 2, strings.Count(said.String(), "no space left"), said.String())
		require.Contains(t, said.String(), "more_since_last=29")
	})
}
