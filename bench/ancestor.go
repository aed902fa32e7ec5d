package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
)

// The ancestor is the schema that Quern's descends from. It needs N+1 queries for N schedules. Here
// it runs in an embedded store with the same options as Quern's:
//
//	raw    'r' schedule, time   the value      one row a sample
//	index  'i' schedule                        one row a schedule
//	1h     'u' schedule, time   a roll-up      one row a schedule, as Quern's
//
// A run reads the index. For each of its rows it reads the schedule's raw rows, computes, writes
// the roll-up, and deletes the index row. The ancestor's other work (to mark the schedule in the
// next bucket's index, to fetch its name) is left out in its favour.
func ancestorMeasurement() measurement {
	const what = "the same by a query for each schedule"
	return measurement{
		name: "ancestor-100k",
		steps: []step{
			{name: "load", run: loadAncestor},
			{name: "serial", run: func(ctx context.Context, b *bench) error { return measureAncestor(ctx, b, 1) }},
			{name: "parallel", run: func(ctx context.Context, b *bench) error { return measureAncestor(ctx, b, 64) }},
		},
		rows: func(r results) []row {
			f, aggregate := r["ancestor-100k"], r["aggregate-100k"]["run.seconds"]
			line := func(how, step string) row {
				out := info(what+", "+how, seconds(f[step+".seconds"]))
				if aggregate > 0 {
					out.Verdict = fmt.Sprintf("%.1f times as long", f[step+".seconds"]/aggregate)
				}
				return out
			}
			return []row{line("serial", "serial"), line("64 in flight", "parallel")}
		},
	}
}

// pebbleOptions returns the options with which internal/storage/pebble opens its database.
func pebbleOptions() *lsm.Options {
	o := &lsm.Options{
		FormatMajorVersion:          lsm.FormatNewest,
		CacheSize:                   128 << 20,
		MemTableSize:                32 << 20,
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       24,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		WALBytesPerSync:             512 << 10,
		BytesPerSync:                1 << 20,
		MaxOpenFiles:                512,
		Logger:                      quiet{},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 32 << 10
		o.Levels[i].IndexBlockSize = 256 << 10
	}
	o.TargetFileSizes[0] = 4 << 20
	o.ApplyCompressionSettings(func() lsm.DBCompressionSettings { return lsm.DBCompressionGood })
	return o
}

// quiet is a Pebble logger that reports only fatal errors.
type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func openAncestor(b *bench) (*lsm.DB, error) {
	return lsm.Open(filepath.Join(b.dir, "ancestor"), pebbleOptions())
}

func ancestorKey(table byte, schedule, tMs int64) []byte {
	k := append(make([]byte, 0, 17), table)
	k = binary.BigEndian.AppendUint64(k, uint64(schedule))
	return binary.BigEndian.AppendUint64(k, uint64(tMs))
}

func loadAncestor(ctx context.Context, b *bench) (err error) {
	db, err := openAncestor(b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	sources := b.scaled(hourSchedules/perSource, 1)
	f := newFleet(0, sources)
	for minute := range 60 {
		at := historyStart.Add(time.Duration(minute) * time.Minute).UnixMilli()
		batch := db.NewBatch()
		for schedule := range sources * perSource {
			v := float64(f.next(schedule/perSource, schedule%perSource)) / 100
			value := binary.BigEndian.AppendUint64(nil, math.Float64bits(v))
			if err := batch.Set(ancestorKey('r', int64(schedule), at), value, nil); err != nil {
				return errors.Join(err, batch.Close())
			}
		}
		if err := errors.Join(batch.Commit(lsm.Sync), batch.Close()); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func measureAncestor(ctx context.Context, b *bench, inFlight int) (err error) {
	db, err := openAncestor(b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	schedules := b.scaled(hourSchedules/perSource, 1) * perSource
	index := db.NewBatch()
	for schedule := range schedules {
		if err := index.Set(ancestorKey('i', int64(schedule), 0)[:9], nil, nil); err != nil {
			return errors.Join(err, index.Close())
		}
	}
	if err := errors.Join(index.Commit(lsm.Sync), index.Close()); err != nil {
		return err
	}

	took, err := b.timed(func() error { return runAncestor(ctx, db, inFlight) })
	b.figures["seconds"] = took.Seconds()
	b.progress("%d schedules in %v", schedules, took.Round(time.Millisecond))
	return err
}

func runAncestor(ctx context.Context, db *lsm.DB, inFlight int) (err error) {
	index, err := db.NewIter(&lsm.IterOptions{LowerBound: []byte{'i'}, UpperBound: []byte{'i' + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, index.Close()) }()

	schedules := make(chan int64)
	workers, ctx := errgroup.WithContext(ctx)
	for range inFlight {
		workers.Go(func() error {
			var g rollup.Grinder
			var samples []metric.Sample
			for schedule := range schedules {
				samples, err := ancestorSamples(db, samples[:0], schedule)
				if err != nil {
					return err
				}
				g.Reset()
				if r, ok := g.Samples(samples); ok {
					if err := ancestorWrite(db, schedule, &r); err != nil {
						return err
					}
				}
				if err := db.Delete(ancestorKey('i', schedule, 0)[:9], lsm.NoSync); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for ok := index.First(); ok && ctx.Err() == nil; ok = index.Next() {
		select {
		case schedules <- int64(binary.BigEndian.Uint64(index.Key()[1:])):
		case <-ctx.Done():
		}
	}
	close(schedules)
	return workers.Wait()
}

// ancestorSamples is the one read per schedule: a range of its partition.
func ancestorSamples(db *lsm.DB, dst []metric.Sample, schedule int64) (_ []metric.Sample, err error) {
	start := historyStart.UnixMilli()
	it, err := db.NewIter(&lsm.IterOptions{
		LowerBound: ancestorKey('r', schedule, start),
		UpperBound: ancestorKey('r', schedule, start+time.Hour.Milliseconds()),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		dst = append(dst, metric.Sample{
			Schedule: metric.ScheduleID(schedule),
			TimeMs:   int64(binary.BigEndian.Uint64(it.Key()[9:])),
			Value:    math.Float64frombits(binary.BigEndian.Uint64(v)),
		})
	}
	return dst, it.Error()
}

// ancestorWrite writes a roll-up in the format of Quern's rows.
func ancestorWrite(db *lsm.DB, schedule int64, r *metric.Rollup) error {
	v := append(make([]byte, 0, 64+len(r.Sketch)), 1)
	v = binary.BigEndian.AppendUint64(v, r.Count)
	for _, f := range [...]float64{r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase} {
		v = binary.BigEndian.AppendUint64(v, math.Float64bits(f))
	}
	v = append(v, r.Sketch...)
	return db.Set(ancestorKey('u', schedule, historyStart.UnixMilli()), v, lsm.NoSync)
}
