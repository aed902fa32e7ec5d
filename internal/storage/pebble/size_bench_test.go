package pebble

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// BenchmarkDiskSize writes an hour of 128,000 schedules, with a sample a minute, as ingest does,
// and compacts the store. It reports the size of a sample in chunks and on disk.
func BenchmarkDiskSize(b *testing.B) {
	const nBlocks, flushes = 1000, 60
	for b.Loop() {
		st := benchStore(b)
		ids := blocks.NewIDs(1)
		rng := rand.New(rand.NewPCG(1, 2))
		values := make([]float64, nBlocks*benchPBS)
		var packed int
		for f := range flushes {
			batch := &storage.Batch{}
			for block := range nBlocks {
				k := benchKey(0, block)
				samples := make([]metric.Sample, benchPBS)
				for i := range samples {
					v := &values[block*benchPBS+i]
					switch i % 4 { // a gauge of two decimals, a counter, a constant, noise
					case 0:
						*v = math.Round((*v+rng.NormFloat64())*100) / 100
					case 1:
						*v += float64(rng.IntN(1000))
					case 3:
						*v = rng.Float64()
					}
					samples[i] = metric.Sample{Schedule: k.Start + metric.ScheduleID(i), TimeMs: benchStart + int64(f)*60_000 + rng.Int64N(100), Value: *v}
				}
				c := storage.Chunk{ID: ids.Next(benchStart), Data: blocks.AppendSamples(nil, samples)}
				packed += len(c.Data)
				batch.Raw = append(batch.Raw, storage.RawChunk{Group: blocks.Of(k.Start, 1024).Start, SliceMs: benchStart, Chunk: c})
			}
			require.NoError(b, st.Write(b.Context(), batch))
		}
		n := float64(nBlocks * benchPBS * flushes)
		b.ReportMetric(float64(packed)/n, "packed-B/sample")
		require.NoError(b, st.db.Compact(b.Context(), []byte{0}, []byte{255}, true))
		m := st.db.Metrics()
		tables := m.Total()
		b.ReportMetric(float64(tables.TablesSize)/n, "disk-B/sample")
	}
}

// BenchmarkPacked writes a day of packed chunks of 2,048 schedules with other layouts of tables than that of tune, and
// compacts the database. It reports the size of a sample on disk, and the least times of compacting and of reading 12 hours of one
// block, with its tables' blocks in the cache and with none, and the kB of these blocks.
func BenchmarkPacked(b *testing.B) {
	blockSize := func(bytes int) func(*lsm.Options) {
		return func(o *lsm.Options) {
			for i := range o.Levels {
				o.Levels[i].BlockSize = bytes
			}
		}
	}
	compression := func(s lsm.DBCompressionSettings) func(*lsm.Options) {
		return func(o *lsm.Options) { o.ApplyCompressionSettings(func() lsm.DBCompressionSettings { return s }) }
	}
	layouts := []struct {
		name   string
		change func(*lsm.Options)
	}{
		{"as it is", func(*lsm.Options) {}},
		{"blocks of 4 KiB", blockSize(4 << 10)},
		{"blocks of 16 KiB", blockSize(16 << 10)},
		{"blocks of 64 KiB", blockSize(64 << 10)},
		{"blocks of 256 KiB", blockSize(256 << 10)},
		{"no compression", compression(lsm.DBCompressionNone)},
		{"MinLZ on all levels", compression(lsm.DBCompressionFastest)},
		{"zstd 1 on the last level", compression(lsm.DBCompressionBalanced)},
		{"values in files of their own", func(o *lsm.Options) {
			o.Experimental.ValueSeparationPolicy = func() lsm.ValueSeparationPolicy {
				return lsm.ValueSeparationPolicy{
					Enabled: true, MinimumSize: 4 << 10, MaxBlobReferenceDepth: 10,
					RewriteMinimumAge: time.Hour, TargetGarbageRatio: 0.2,
				}
			}
		}},
	}
	for _, data := range []struct {
		name    string
		samples int
		step    func(rng *rand.Rand) float64
	}{
		{"walk of 2 decimals, 10 s", 360, func(rng *rand.Rand) float64 { return float64(rng.IntN(201)-100) / 100 }},
		{"walk of 2 decimals, 1 min", 60, func(rng *rand.Rand) float64 { return float64(rng.IntN(201)-100) / 100 }},
		{"small integers, 10 s", 360, func(rng *rand.Rand) float64 { return math.Trunc(rng.NormFloat64()) }},
	} {
		rows, samples := packedDay(b, data.samples, data.step)
		for _, layout := range layouts {
			b.Run(data.name+"/"+layout.name, func(b *testing.B) {
				compact := time.Duration(math.MaxInt64)
				for b.Loop() {
					compact = min(compact, measureLayout(b, rows, samples, layout.change))
				}
				b.ReportMetric(float64(compact)/1e6, "compact-ms")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

const (
	packedBlocks = 16
	packedHours  = 24
)

// packedDay returns packed chunks of a day, and the number of samples in all of them.
func packedDay(b *testing.B, perHour int, step func(rng *rand.Rand) float64) (rows []storage.RawChunk, samples int) {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	ids := blocks.NewIDs(1)
	var set blocks.SampleSet
	var packer blocks.Packer
	for block := range packedBlocks {
		of := blocks.Of(metric.ScheduleID(block*benchPBS), benchPBS)
		for hour := range packedHours {
			startMs := benchStart + int64(hour)*benchHourMs
			var hourOf []metric.Sample
			for id := of.Start; id < of.End; id++ {
				v := math.Round(1e4*rng.Float64()) / 100
				for i := range perHour {
					v = math.Round(100*(v+step(rng))) / 100
					hourOf = append(hourOf, metric.Sample{Schedule: id, TimeMs: startMs + int64(i)*benchHourMs/int64(perHour), Value: v})
				}
			}
			set.Reset(of)
			require.NoError(b, set.Add(blocks.AppendSamples(nil, hourOf)))
			chunk, err := packer.Pack(&set, of, math.MaxInt)
			require.NoError(b, err)
			samples += len(hourOf)
			rows = append(rows, storage.RawChunk{
				Group: of.Start, SliceMs: startMs,
				Chunk: storage.Chunk{ID: blocks.PackedID([]blocks.ID{ids.Next(startMs)}), Data: append([]byte(nil), chunk...)},
			})
		}
	}
	return rows, samples
}

// measureLayout makes a database of rows, whose layout is that of tune but for a change. It returns how long compacting took.
func measureLayout(b *testing.B, rows []storage.RawChunk, samples int, change func(*lsm.Options)) (compact time.Duration) {
	b.Helper()
	open := func(dir string, readOnly bool, cache int64) *lsm.DB {
		o := &lsm.Options{FormatMajorVersion: formatVersion, CacheSize: cache, ReadOnly: readOnly, Logger: nothingLogged{}, DisableAutomaticCompactions: true}
		tune(o)
		change(o)
		db, err := lsm.Open(dir, o)
		require.NoError(b, err)
		return db
	}
	dir := b.TempDir()
	db := open(dir, false, 8<<20)
	const flushes = 4 // tables that overlap, or else compacting would move them as they are
	for f := range flushes {
		for i := f; i < len(rows); i += flushes {
			require.NoError(b, db.Set(rawKey(&rows[i]), rows[i].Data, lsm.NoSync))
		}
		require.NoError(b, db.Flush())
	}
	began := time.Now()
	require.NoError(b, db.Compact(b.Context(), []byte{0}, []byte{255}, false))
	compact = time.Since(began)
	total := db.Metrics().Total()
	b.ReportMetric(float64(total.AggregateSize())/float64(samples), "B/sample")
	require.NoError(b, db.Close())

	for _, cache := range []struct {
		name  string
		bytes int64
	}{{"cached", 64 << 20}, {"uncached", 1}} {
		db := open(dir, true, cache.bytes)
		least, kb := time.Duration(math.MaxInt64), 0.0
		for range 20 {
			began := time.Now()
			kb = readHalfDay(b, db, packedBlocks/2)
			least = min(least, time.Since(began))
		}
		require.NoError(b, db.Close())
		b.ReportMetric(float64(least)/1e3, cache.name+"-µs")
		b.ReportMetric(kb, "read-kB")
	}
	return compact
}

// readHalfDay reads 12 hours of a block, and returns the kB of the tables' blocks that it took.
func readHalfDay(b *testing.B, db *lsm.DB, block int) float64 {
	b.Helper()
	const half = packedHours / 2
	key := func(hour int) []byte {
		slice := benchStart + int64(hour)*benchHourMs
		return rawSliceKey(metric.AlignDown(slice, dayMs), metric.ScheduleID(block*benchPBS), slice)
	}
	it, err := db.NewIter(&lsm.IterOptions{LowerBound: key(half / 2), UpperBound: key(half/2 + half)})
	require.NoError(b, err)
	n := 0
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		require.NoError(b, err)
		require.NotEmpty(b, v)
		n++
	}
	require.Equal(b, half, n)
	stats := it.Stats()
	require.NoError(b, it.Close())
	return float64(stats.InternalStats.BlockBytes) / 1e3
}

// nothingLogged is a logger for databases that have nothing to say.
type nothingLogged struct{}

func (nothingLogged) Infof(string, ...any)  {}
func (nothingLogged) Errorf(string, ...any) {}
func (nothingLogged) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
