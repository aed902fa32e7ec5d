package adaptor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// collectorFunc makes a function a collector.
type collectorFunc func() ([]ingest.Measurement, error)

func (f collectorFunc) Collect(context.Context) ([]ingest.Measurement, error) { return f() }

// counting returns a collector of a metric that counts up from 0.
func counting() collector {
	n := -1.0
	return collectorFunc(func() ([]ingest.Measurement, error) {
		n++
		return []ingest.Measurement{{Metric: "m", Labels: []metric.Label{{Name: "a", Value: "b"}}, Value: n}}, nil
	})
}

// setBack is a clock that has been set back.
type setBack struct {
	clock.System
	mu sync.Mutex
	by time.Duration
}

func (c *setBack) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.System.Now().Add(-c.by)
}

func (c *setBack) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = by
}

// TestHost: it measures at once, and then at multiples of the interval. If the clock is set back a little, no tick is measured twice.
// If it is set back a lot, measuring goes on at once instead of when the old time is reached again.
func TestHost(t *testing.T) {
	for _, c := range []struct {
		by   time.Duration
		want []int64
	}{
		{0, []int64{3, 10, 20, 30}},
		{4 * time.Second, []int64{3, 10, 20, 30}},
		{time.Hour, []int64{3, 10, -3580, -3570}},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			time.Sleep(3 * time.Second)
			r, clk := newRig(t), &setBack{}
			r.Clock = clk
			back := time.AfterFunc(12*time.Second, func() { clk.set(c.by) })
			defer back.Stop()
			ended(t, &Host{Source: "db-1", Interval: span(10 * time.Second), collector: counting()}, r.Output, 32*time.Second)
			samples, chunks := spooled(t, r.Spool)
			var at []int64
			for n, s := range samples {
				at = append(at, (s.Time-begin.UnixMilli())/1000)
				require.Equal(t, sample{"db-1", "m", map[string]string{"a": "b"}, s.Time, float64(n)}, s)
				require.Equal(t, "host", chunks[n].Stream)
				require.EqualValues(t, n+1, chunks[n].Seq)
			}
			require.Equal(t, c.want, at)
		})
	}
}

// TestPartOfTheHostCannotBeRead: what can be read is kept, and the log has the rest once.
func TestPartOfTheHostCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.Clock = clock.System{}
		ended(t, &Host{Interval: span(10 * time.Second), collector: collectorFunc(func() ([]ingest.Measurement, error) {
			return []ingest.Measurement{{Metric: "good", Value: 1}}, errors.New("diskstats: permission denied")
		})}, r.Output, 25*time.Second)
		samples, _ := spooled(t, r.Spool)
		require.Len(t, samples, 3)
		for _, s := range samples {
			require.Equal(t, sample{"web-1", "good", nil, s.Time, 1}, s)
		}
		require.Equal(t, 1, strings.Count(r.log.String(), "permission denied"))
	})
}
