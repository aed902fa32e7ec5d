package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	accepted    prometheus.Counter
	rejected    *prometheus.CounterVec
	refused     prometheus.Counter
	overwritten prometheus.Counter
	busy        prometheus.Counter
	pending     prometheus.Gauge
	flushes     *prometheus.CounterVec
	seconds     prometheus.Histogram
	size        prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "quern_ingest_" + name + "_total", Help: help})
	}
	m := &metrics{
		accepted: counter("samples_accepted", "Samples that were made durable and acknowledged."),
		rejected: f.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_ingest_samples_rejected_total",
			Help: "Measurements rejected, by reason.",
		}, []string{"reason"}),
		refused:     counter("samples_refused", "Samples that the store permanently refused. Their senders got its error."),
		overwritten: counter("samples_overwritten", "Accepted samples replaced by another one of the same series, millisecond and commit, with another value."),
		busy:        counter("busy", "Calls turned away because too many samples were waiting."),
		pending: f.NewGauge(prometheus.GaugeOpts{
			Name: "quern_ingest_samples_pending",
			Help: "Samples waiting to be made durable.",
		}),
		flushes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "quern_ingest_commits_total",
			Help: "Group commits, by outcome.",
		}, []string{"outcome"}),
		seconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "quern_ingest_commit_seconds",
			Help:    "Duration of a group commit, from the end of gathering until it was durable.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		size: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "quern_ingest_commit_samples",
			Help:    "Samples in a group commit.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 11),
		}),
	}
	// Created at the start, so that an alert sees the first event as an increase.
	for _, r := range reasons {
		m.rejected.WithLabelValues(string(r))
	}
	m.flushes.WithLabelValues("ok")
	m.flushes.WithLabelValues("failed")
	return m
}

func (m *metrics) flush(took time.Duration, samples int, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.flushes.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
	m.size.Observe(float64(samples))
}
