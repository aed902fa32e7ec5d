package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// The ancestor's tables in Cassandra: a row for each sample, and a row for each schedule to be
// ground. ancestorMeasurement says what a run does with them.
const (
	cqlMakeSamples = `CREATE TABLE IF NOT EXISTS ancestor_raw (schedule_id int, time timestamp, value double, PRIMARY KEY (schedule_id, time))
		WITH compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': 1}`
	cqlMakeIndex = `CREATE TABLE IF NOT EXISTS ancestor_index (bucket text, time timestamp, schedule_id int, PRIMARY KEY ((bucket, time), schedule_id))
		WITH compaction = {'class': 'UnifiedCompactionStrategy'}`

	cqlInsertSample = `INSERT INTO ancestor_raw (schedule_id, time, value) VALUES (?, ?, ?) USING TTL 604800`
	cqlReadSamples  = `SELECT time, value FROM ancestor_raw WHERE schedule_id = ? AND time >= ? AND time < ?`
	cqlInsertIndex  = `INSERT INTO ancestor_index (bucket, time, schedule_id) VALUES ('1h', ?, ?)`
	cqlReadIndex    = `SELECT schedule_id FROM ancestor_index WHERE bucket = '1h' AND time = ?`
	cqlDeleteIndex  = `DELETE FROM ancestor_index WHERE bucket = '1h' AND time = ? AND schedule_id = ?`
)

// manyInFlight is the number of concurrent requests where the ancestor's way is not serial.
const manyInFlight = 64

// makeAncestor creates the ancestor's tables in the step's keyspace.
func makeAncestor(ctx context.Context, s *gocql.Session) error {
	for _, cql := range []string{cqlMakeSamples, cqlMakeIndex} {
		if err := s.Query(cql).WithContext(ctx).Exec(); err != nil {
			return err
		}
	}
	return s.AwaitSchemaAgreement(ctx)
}

// inFlight runs n goroutines over the schedules that work yields. Each goroutine makes its own
// worker.
func inFlight(ctx context.Context, n int, work iter.Seq2[int, error], worker func() func(ctx context.Context, schedule int) error) error {
	queue := make(chan int)
	workers, working := errgroup.WithContext(ctx)
	for range n {
		workers.Go(func() error {
			do := worker()
			for i := range queue {
				if err := do(working, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	var failed error
	for i, err := range work {
		if err != nil {
			failed = err
			break
		}
		select {
		case queue <- i:
			continue
		case <-working.Done():
		}
		break
	}
	close(queue)
	return errors.Join(failed, workers.Wait(), context.Cause(ctx))
}

// upTo yields all schedules below n.
func upTo(n int) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// insertSamples writes samples of the schedules in turn for the given time, each by a prepared
// INSERT of its own, and returns how many.
func insertSamples(ctx context.Context, s *gocql.Session, schedules int, length time.Duration) (int, error) {
	var n atomic.Int64
	start := time.Now()
	turns := func(yield func(int, error) bool) {
		for i := 0; time.Since(start) < length && yield(i, nil); i++ {
		}
	}
	err := inFlight(ctx, manyInFlight, turns, func() func(context.Context, int) error {
		rng := rand.New(rand.NewPCG(1, rand.Uint64()))
		return func(ctx context.Context, i int) error {
			at := start.Add(time.Duration(i/schedules) * ingestStep).UnixMilli()
			value := float64(minCents+rng.Int32N(maxCents-minCents+1)) / 100
			if err := s.Query(cqlInsertSample, i%schedules, at, value).WithContext(ctx).Idempotent(true).Exec(); err != nil {
				return err
			}
			n.Add(1)
			return nil
		}
	})
	return int(n.Load()), err
}

// loadAncestorRows writes the samples that loadHour generates. It uses batches, since it is not
// measured.
func loadAncestorRows(ctx context.Context, b *bench, schedules int, interval time.Duration) error {
	s, err := connect(b.cluster, b.cluster.keyspace)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := makeAncestor(ctx, s); err != nil {
		return err
	}
	schedules = b.scaled(schedules/perSource, 1) * perSource
	p := b.bar(schedules, "schedules loaded as rows")
	defer p.end()
	const perBatch = 30 // servers warn of large batches
	return inFlight(ctx, manyInFlight, upTo(schedules), func() func(context.Context, int) error {
		return func(ctx context.Context, schedule int) error {
			f := newFleet(schedule, 1) // any gauge will do
			for at := time.Duration(0); at < time.Hour; {
				batch := s.NewBatch(gocql.UnloggedBatch).WithContext(ctx)
				for ; at < time.Hour && len(batch.Entries) < perBatch; at += interval {
					batch.Query(cqlInsertSample, schedule, historyStart.Add(at).UnixMilli(), float64(f.next(0, 0))/100)
				}
				if err := s.ExecuteBatch(batch); err != nil {
					return err
				}
			}
			p.add(1)
			return nil
		}
	})
}

// serialLimit ends a run that would take too long. The rest is estimated.
const serialLimit = 2 * time.Minute

// measureAncestorRun runs the hour in the ancestor's way. Its figures are the time for all
// schedules, which may be estimated, and how many were ground in the available time.
func measureAncestorRun(ctx context.Context, b *bench, schedules, requests int) (err error) {
	st, err := openCassandra(ctx, b, clock.NewSimulated(historyStart.Add(time.Hour+2*time.Minute)), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	s, err := connect(b.cluster, b.cluster.keyspace)
	if err != nil {
		return err
	}
	defer s.Close()
	schedules = b.scaled(schedules/perSource, 1) * perSource
	if err := inFlight(ctx, manyInFlight, upTo(schedules), func() func(context.Context, int) error {
		return func(ctx context.Context, schedule int) error {
			return s.Query(cqlInsertIndex, historyStart, schedule).WithContext(ctx).Exec()
		}
	}); err != nil {
		return err
	}
	lease, err := st.AcquireShard(ctx, 0, worker, serialLimit)
	if err != nil {
		return err
	}

	run := &ancestorRun{store: st, session: s, fence: lease.Fence, bar: b.bar(schedules, "schedules ground")}
	defer run.bar.end()
	took, err := b.timed(func() error {
		return inFlight(ctx, requests, run.index(ctx, serialLimit), run.worker)
	})
	if err != nil {
		return err
	}
	done := float64(run.done.Load())
	if want := float64(schedules); took < serialLimit && done != want {
		return fmt.Errorf("%v schedules ground of %v", done, want)
	}
	b.figures["done"] = done
	b.figures["seconds"] = took.Seconds() * float64(schedules) / done
	b.progress("%v schedules in %v", done, took.Round(time.Millisecond))
	return nil
}

type ancestorRun struct {
	store   storage.Store
	session *gocql.Session
	fence   storage.Fence
	bar     *bar
	done    atomic.Int64
}

// index yields the schedules of the index, page by page, until the limit.
func (r *ancestorRun) index(ctx context.Context, limit time.Duration) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		start := time.Now()
		it := r.session.Query(cqlReadIndex, historyStart).WithContext(ctx).PageSize(5000).Iter()
		schedule := 0
		for it.Scan(&schedule) && time.Since(start) < limit {
			if !yield(schedule, nil) {
				break
			}
		}
		if err := it.Close(); err != nil {
			yield(0, err)
		}
	}
}

// worker returns a function that grinds a schedule: one read, one write, one delete.
func (r *ancestorRun) worker() func(context.Context, int) error {
	var g rollup.Grinder
	var samples []metric.Sample
	return func(ctx context.Context, schedule int) error {
		samples = samples[:0]
		id := metric.ScheduleID(schedule)
		it := r.session.Query(cqlReadSamples, schedule, historyStart, historyStart.Add(time.Hour)).WithContext(ctx).Iter()
		for x := (metric.Sample{Schedule: id}); it.Scan(&x.TimeMs, &x.Value); {
			samples = append(samples, x)
		}
		if err := it.Close(); err != nil {
			return err
		}
		g.Reset()
		if rolled, ok := g.Samples(samples); ok {
			row := metric.RollupRow{Schedule: id, TimeMs: historyStart.UnixMilli(), Rollup: rolled}
			if err := r.store.WriteRollups(ctx, r.fence, metric.Raw+1, []metric.RollupRow{row}); err != nil {
				return err
			}
			r.done.Add(1)
		}
		r.bar.add(1)
		return r.session.Query(cqlDeleteIndex, historyStart, schedule).WithContext(ctx).Exec()
	}
}
