package rollup

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// The tables whose damage is counted.
const (
	tableRaw   = "raw_metrics"
	tableCache = "metrics_cache"
	// tableRollups stands for the roll-up tables of all levels.
	tableRollups = "rollups"
	tableIndex   = "metrics_cache_index"
)

type metrics struct {
	runs        *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	blocks      *prometheus.CounterVec
	rows        *prometheus.CounterVec
	queries     *prometheus.CounterVec
	late        *prometheus.CounterVec
	rescheduled *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	damaged     *prometheus.CounterVec
	packed      prometheus.Counter
	unpacked    prometheus.Gauge
	completed   *prometheus.GaugeVec
	newestEndMs map[string]int64
}

func newMetrics(reg prometheus.Registerer, ladder metric.Ladder) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		runs: counters("quern_aggregation_runs_total", "Runs of slices, by bucket and outcome.", "bucket", "outcome"),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "quern_aggregation_run_seconds",
			Help:    "Duration of a run of a slice.",
			Buckets: prometheus.ExponentialBuckets(0.01, 3, 11),
		}, []string{"bucket"}),
		blocks:      counters("quern_aggregation_blocks_total", "Blocks ground.", "bucket"),
		rows:        counters("quern_aggregation_rows_total", "Roll-up rows written, by the bucket they were ground from.", "bucket"),
		queries:     counters("quern_aggregation_queries_total", "Reads of blocks and index partitions.", "bucket"),
		late:        counters("quern_aggregation_late_rows_total", "Roll-up rows recomputed for late data.", "bucket"),
		rescheduled: counters("quern_aggregation_blocks_rescheduled_total", "Blocks that failed and were put off to a later slice.", "bucket"),
		dropped:     counters("quern_aggregation_marks_dropped_total", "Marks dropped because their input has expired.", "bucket"),
		damaged: counters("quern_aggregation_damaged_chunks_total", "Damaged chunks found by reads of blocks, counted at each read, by table. "+
			"A block of metrics_cache, a series with damaged sketches and a mark of metrics_cache_index each count as one.", "table"),
		packed: counter("quern_packing_chunks_total", "Raw chunks that were replaced by chunks of columns."),
		unpacked: f.NewGauge(prometheus.GaugeOpts{
			Name: "quern_packing_left_slices", Help: "Slices of raw that are over and that this worker has not packed yet.",
		}),
		completed: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "quern_aggregation_completed_slice_end_seconds",
			Help: "End of the newest completed slice, in Unix seconds.",
		}, []string{"bucket"}),
		newestEndMs: make(map[string]int64),
	}
	// Created at the start, so that an alert sees the first event as an increase.
	for _, table := range []string{tableRaw, tableCache, tableRollups, tableIndex} {
		m.damaged.WithLabelValues(table)
	}
	for _, b := range ladder.Ground() {
		name := ladder.Name(b)
		for _, outcome := range []string{"completed", "shared", "aborted"} {
			m.runs.WithLabelValues(name, outcome)
		}
		for _, c := range []*prometheus.CounterVec{m.blocks, m.rows, m.queries, m.late, m.rescheduled, m.dropped} {
			c.WithLabelValues(name)
		}
	}
	return m
}

// run counts a run that ended with err.
func (m *metrics) run(bucket string, s metric.Slice, r storage.Run, err error) {
	outcome := "aborted"
	switch {
	case errors.Is(err, ErrShared):
		outcome = "shared"
	case err == nil:
		outcome = "completed"
		m.newestEndMs[bucket] = max(m.newestEndMs[bucket], s.EndMs)
		m.completed.WithLabelValues(bucket).Set(float64(m.newestEndMs[bucket]) / 1000)
	}
	m.runs.WithLabelValues(bucket, outcome).Inc()
	m.seconds.WithLabelValues(bucket).Observe(r.Duration.Seconds())
	m.blocks.WithLabelValues(bucket).Add(float64(r.Blocks))
	m.rows.WithLabelValues(bucket).Add(float64(r.Schedules))
	m.queries.WithLabelValues(bucket).Add(float64(r.BlockQueries + r.IndexQueries))
	m.late.WithLabelValues(bucket).Add(float64(r.Late))
	m.rescheduled.WithLabelValues(bucket).Add(float64(r.Rescheduled))
	m.dropped.WithLabelValues(bucket).Add(float64(r.Dropped))
}
