package pebble

import (
	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a collector for the few figures of Pebble that an operator needs.
func (s *Store) Collector() prometheus.Collector { return collector{s} }

type collector struct{ store *Store }

type figure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(m *lsm.Metrics) float64
}

func figures() []figure {
	gauge := func(name, help string, value func(m *lsm.Metrics) float64) figure {
		return figure{prometheus.NewDesc("quern_pebble_"+name, help, nil, nil), prometheus.GaugeValue, value}
	}
	counter := func(name, help string, value func(m *lsm.Metrics) float64) figure {
		return figure{prometheus.NewDesc("quern_pebble_"+name, help, nil, nil), prometheus.CounterValue, value}
	}
	return []figure{
		gauge("wal_bytes", "Bytes in the log that are not in tables yet; opening the store replays them.",
			func(m *lsm.Metrics) float64 { return float64(m.WAL.Size) }),
		gauge("memtable_bytes", "Bytes of memtables.",
			func(m *lsm.Metrics) float64 { return float64(m.MemTable.Size) }),
		gauge("cache_bytes", "Bytes of cached blocks.",
			func(m *lsm.Metrics) float64 { return float64(m.BlockCache.Size) }),
		gauge("read_amplification", "Sorted runs that a read may have to look at.",
			func(m *lsm.Metrics) float64 { return float64(m.ReadAmp()) }),
		gauge("compaction_debt_bytes", "Estimate of the bytes that wait to be compacted.",
			func(m *lsm.Metrics) float64 { return float64(m.Compact.EstimatedDebt) }),
		counter("compactions_total", "Compactions done.",
			func(m *lsm.Metrics) float64 { return float64(m.Compact.Count) }),
		counter("compaction_failures_total", "Compactions that failed; they are tried again.",
			func(m *lsm.Metrics) float64 { return float64(m.Compact.FailedCount) }),
		counter("flushes_total", "Memtables written to tables.",
			func(m *lsm.Metrics) float64 { return float64(m.Flush.Count) }),
		counter("cache_hits_total", "Blocks found in the cache.",
			func(m *lsm.Metrics) float64 { return float64(m.BlockCache.Hits) }),
		counter("cache_misses_total", "Blocks read from disk.",
			func(m *lsm.Metrics) float64 { return float64(m.BlockCache.Misses) }),
		counter("write_bytes_total", "Bytes written to the log, flushed and compacted.",
			func(m *lsm.Metrics) float64 {
				t := m.Total()
				return float64(m.WAL.BytesWritten + t.TableBytesFlushed + t.TableBytesCompacted)
			}),
	}
}

var (
	descDisk = prometheus.NewDesc("quern_pebble_disk_bytes", "Bytes of the files in the data directory: "+
		"of data (tables), log and other.", []string{"part"}, nil)
	descDoubt = prometheus.NewDesc("quern_pebble_clock_doubted", "1 while nothing is written, ground or expired because the clock is not near the newest time that the store has seen.", nil, nil)
	descFree  = prometheus.NewDesc("quern_pebble_filesystem_free_bytes", "Bytes that are free on the store's file system.", nil, nil)
	descSize  = prometheus.NewDesc("quern_pebble_filesystem_size_bytes", "Size of the store's file system.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descDisk
	ch <- descDoubt
	ch <- descFree
	ch <- descSize
	for _, f := range figures() {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector. It collects nothing from a store that is closed or has
// failed: Pebble's locks may never be released.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	type state struct {
		*lsm.Metrics
		free, size int64
		known      bool // whether free and size are known
	}
	states := make(chan state, 1)
	if c.store.failures.check() != nil || c.store.disk.closing.Err() != nil {
		return
	}
	if c.store.run("metrics", func() error {
		s := state{Metrics: c.store.db.Metrics()}
		s.free, s.size, s.known = c.store.disk.free()
		states <- s
		return nil
	}) != nil {
		return
	}
	s := <-states
	doubted := 0.0
	if c.store.ClockRefused() != nil {
		doubted = 1
	}
	ch <- prometheus.MustNewConstMetric(descDoubt, prometheus.GaugeValue, doubted)
	if s.known {
		ch <- prometheus.MustNewConstMetric(descFree, prometheus.GaugeValue, float64(s.free))
		ch <- prometheus.MustNewConstMetric(descSize, prometheus.GaugeValue, float64(s.size))
	}
	tables, blobs := s.Table.Local, s.BlobFiles.Local
	data := tables.LiveSize + tables.ObsoleteSize + tables.ZombieSize + blobs.LiveSize + blobs.ObsoleteSize + blobs.ZombieSize
	log := s.WAL.PhysicalSize + s.WAL.ObsoletePhysicalSize
	for part, n := range map[string]uint64{"data": data, "log": log, "other": s.DiskSpaceUsage() - data - log} {
		ch <- prometheus.MustNewConstMetric(descDisk, prometheus.GaugeValue, float64(n), part)
	}
	for _, f := range figures() {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(s.Metrics))
	}
}
