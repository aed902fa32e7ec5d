package storagetest

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Days is a store that keeps the slices of each bucket and day in a place of their own, as Cassandra
// does. Some of these are out of reach at times. While any is, a range without a beginning cannot be
// listed either: Days then reads only what starts at fromMs or later.
type Days struct {
	storage.Store

	fromMs int64

	mu     sync.Mutex
	away   map[Day]error
	asked  []storage.Gap
	during func()
}

// Day is the place of the slices of a bucket that start on the UTC day that begins at StartMs.
type Day struct {
	Bucket  metric.Bucket
	StartMs int64
}

// DayAt returns the day of a slice.
func DayAt(k storage.SliceKey) Day { return Day{k.Bucket, metric.AlignDown(k.StartMs, modelDayMs)} }

// NewDays wraps a store with everything in reach.
func NewDays(s storage.Store, fromMs int64) *Days {
	return &Days{Store: s, fromMs: metric.AlignDown(fromMs, modelDayMs), away: map[Day]error{}}
}

// Away puts a day out of reach: reading it fails with err. With nil it is in reach again.
func (d *Days) Away(day Day, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if delete(d.away, day); err != nil {
		d.away[day] = err
	}
}

// Heal puts all days into reach.
func (d *Days) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.away)
}

// During has f called after each reading of slices, before its result is returned. With nil nothing
// is called.
func (d *Days) During(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.during = f
}

// Asked returns the ranges that were asked for since the last call.
func (d *Days) Asked() []storage.Gap {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	return asked
}

// Slices implements storage.Runs.
func (d *Days) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	states, err := d.Store.Slices(ctx, b, fromMs, toMs)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	during := d.during
	d.mu.Unlock()
	if during != nil {
		during()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, storage.Gap{Bucket: b, FromMs: fromMs, ToMs: toMs})
	var gaps []storage.Gap
	gap := func(from, to int64, err error) {
		if from, to = max(from, fromMs), min(to, toMs); from < to {
			gaps = append(gaps, storage.Gap{Bucket: b, FromMs: from, ToMs: to, Err: err})
		}
	}
	for day, err := range d.away {
		if fromMs == math.MinInt64 && len(gaps) == 0 {
			gap(fromMs, d.fromMs, err)
		}
		if day.Bucket == b && (fromMs != math.MinInt64 || day.StartMs >= d.fromMs) {
			gap(day.StartMs, day.StartMs+modelDayMs, err)
		}
	}
	if len(gaps) == 0 {
		return states, nil
	}
	states = slices.DeleteFunc(states, func(s storage.SliceState) bool {
		return slices.ContainsFunc(gaps, func(g storage.Gap) bool { return g.FromMs <= s.StartMs && s.StartMs < g.ToMs })
	})
	return states, &storage.GapsError{Gaps: gaps}
}
