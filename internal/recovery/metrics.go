package recovery

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

// Collector exports how far the runs are behind. It goes by what was outstanding at the last look,
// so the lag keeps growing while the store does not answer.
func (r *Recovery) Collector() prometheus.Collector { return collector{r} }

type collector struct{ recovery *Recovery }

var (
	descOutstanding = prometheus.NewDesc("quern_aggregation_outstanding_slices",
		"Slices that have ended and are not complete.", []string{"bucket"}, nil)
	descLag = prometheus.NewDesc("quern_aggregation_lag_seconds",
		"Time since the end of the oldest incomplete slice.", []string{"bucket"}, nil)
	descUnread = prometheus.NewDesc("quern_aggregation_slices_unread",
		"1 while the slices of the bucket are out of reach: nobody knows what is outstanding.", []string{"bucket"}, nil)
)

func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descOutstanding
	ch <- descLag
	ch <- descUnread
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	var seen []storage.SliceKey
	if p := c.recovery.seen.Load(); p != nil {
		seen = *p
	}
	unread := make([]int, c.recovery.ladder.Top())
	c.recovery.mu.Lock()
	for _, u := range c.recovery.search.unread {
		unread[u.Bucket] = 1
	}
	c.recovery.mu.Unlock()
	now := clock.NowMs(c.recovery.clk)
	for _, b := range c.recovery.ladder.Ground() {
		n, lagMs := 0, int64(0)
		for _, k := range seen {
			if late := now - c.recovery.slice(k).EndMs; k.Bucket == b && late >= 0 {
				n++
				lagMs = max(lagMs, late)
			}
		}
		name := c.recovery.ladder.Name(b)
		ch <- prometheus.MustNewConstMetric(descOutstanding, prometheus.GaugeValue, float64(n), name)
		ch <- prometheus.MustNewConstMetric(descLag, prometheus.GaugeValue, float64(lagMs)/1000, name)
		ch <- prometheus.MustNewConstMetric(descUnread, prometheus.GaugeValue, float64(unread[b]), name)
	}
}
