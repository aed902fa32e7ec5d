package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a legacy keyspace in memory. Its slices are sorted.
type memory struct {
	samples map[int32][]legacy.Sample
	values  [3]map[int32][]legacy.Value
}

func newMemory() *memory {
	m := &memory{samples: map[int32][]legacy.Sample{}}
	for i := range m.values {
		m.values[i] = map[int32][]legacy.Value{}
	}
	return m
}

func (m *memory) sample(id int32, at time.Time, v float64) {
	m.samples[id] = append(m.samples[id], legacy.Sample{TimeMs: at.UnixMilli(), Value: &v})
	slices.SortFunc(m.samples[id], func(a, b legacy.Sample) int { return cmp.Compare(a.TimeMs, b.TimeMs) })
}

func (m *memory) rollup(l legacy.Level, id int32, at time.Time, values ...float64) {
	for kind, v := range values {
		m.values[l][id] = append(m.values[l][id], legacy.Value{TimeMs: at.UnixMilli(), Kind: legacy.Kind(kind), Value: &v})
	}
	slices.SortFunc(m.values[l][id], func(a, b legacy.Value) int {
		return cmp.Or(cmp.Compare(a.TimeMs, b.TimeMs), cmp.Compare(a.Kind, b.Kind))
	})
}

func each[T any](ctx context.Context, all []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if err := ctx.Err(); !yield(v, err) || err != nil {
				return
			}
		}
	}
}

func (m *memory) Schedules(ctx context.Context, table string) iter.Seq2[int32, error] {
	var ids []int32
	for id := range m.samples {
		if table == legacy.RawTable {
			ids = append(ids, id)
		}
	}
	for _, l := range legacy.Levels {
		for id := range m.values[l] {
			if table == l.Table() {
				ids = append(ids, id)
			}
		}
	}
	return each(ctx, ids)
}

func (m *memory) Samples(ctx context.Context, id int32) iter.Seq2[legacy.Sample, error] {
	return each(ctx, m.samples[id])
}

func (m *memory) Values(ctx context.Context, l legacy.Level, id int32) iter.Seq2[legacy.Value, error] {
	return each(ctx, m.values[l][id])
}

var now = time.Date(2025, time.November, 21, 13, 30, 0, 0, time.UTC)

func at(hour, minute int) time.Time {
	return time.Date(2025, time.November, 21, hour, minute, 0, 0, time.UTC)
}

// morning returns two schedules that have reported since ten; the hour of ten is aggregated.
func morning() *memory {
	m := newMemory()
	for _, id := range []int32{7, 9} {
		for h := 10; h <= 13; h++ {
			m.sample(id, at(h, 0), float64(h))
			m.sample(id, at(h, 20), float64(h)+float64(id))
		}
		m.rollup(legacy.OneHour, id, at(10, 0), 10+float64(id), 10, 10+float64(id)/2)
		m.rollup(legacy.OneHour, id, at(3, 0), 3, 1, 2.5)
		m.rollup(legacy.SixHours, id, at(0, 0), 3, 1, 2.5)
	}
	return m
}

type world struct {
	store storage.Store
	clk   *clock.Simulated
	opts  Options
}

func newWorld() *world {
	clk := clock.NewSimulated(now)
	return &world{store: storagetest.NewModel(storagetest.TestSettings(), nil, clk), clk: clk, opts: Options{Shared: true, Parallel: 1}}
}

func (w *world) migrate(t *testing.T, from legacy.Reader) (*Report, error) {
	return New(Parts{From: from, To: w.store, Cache: cache.New(w.store, w.clk, 1, cache.DefaultTiming()), Clock: w.clk}, w.opts).Run(t.Context())
}

// dump returns the contents as text, by the names of schedules.
func (w *world) dump(t *testing.T) (data, marks []string) {
	t.Helper()
	ids, err := w.store.LeasedIDs(t.Context())
	require.NoError(t, err)
	names := map[metric.ScheduleID]string{}
	for s, err := range w.store.Schedules(t.Context(), ids) {
		require.NoError(t, err)
		names[s.ID] = s.Labels.String()
	}
	for c, err := range w.store.RawChunks(t.Context(), ids, 0, math.MaxInt64/4) {
		require.NoError(t, err)
		samples, err := blocks.DecodeSamplesIn(nil, c.Data, ids)
		require.NoError(t, err)
		for _, s := range samples {
			data = append(data, fmt.Sprint(names[s.Schedule], " ", time.UnixMilli(s.TimeMs).UTC().Format("15:04"), " ", s.Value))
		}
	}
	settings := w.store.Settings()
	for _, b := range settings.Ladder.Levels() {
		for r, err := range w.store.Rollups(t.Context(), b, ids, 0, math.MaxInt64/4) {
			require.NoError(t, err)
			data = append(data, fmt.Sprintf("%s %s %s count=%d sum=%v min=%v max=%v first=%v last=%v", settings.Ladder.Name(b), names[r.Schedule],
				time.UnixMilli(r.TimeMs).UTC().Format("15:04"), r.Count, r.Sum, r.Min, r.Max, r.First, r.Last))
		}
	}
	for _, b := range settings.Ladder.Ground() {
		states, err := w.store.Slices(t.Context(), b, 0, now.UnixMilli()+dayMs)
		require.NoError(t, err)
		for _, s := range states {
			for shard := range settings.IndexPartitions {
				for m, err := range w.store.Marks(t.Context(), storage.IndexPartition{SliceKey: s.SliceKey, Shard: shard}, storage.MarkKey{}, 0) {
					require.NoError(t, err)
					for _, id := range m.Schedules {
						marks = append(marks, fmt.Sprintf("%s %s %s %s in %s", m.Kind, settings.Ladder.Name(b), names[id],
							time.UnixMilli(m.TimeMs).UTC().Format("15:04"), time.UnixMilli(s.StartMs).UTC().Format("15:04")))
					}
				}
			}
		}
	}
	slices.Sort(data)
	slices.Sort(marks)
	return data, slices.Compact(marks)
}

func TestCopy(t *testing.T) {
	from := morning()
	w := newWorld()
	report, err := w.migrate(t, from)
	require.NoError(t, err)
	assert.Equal(t, [tables]int64{16, 4, 2, 0}, report.Read)
	assert.True(t, report.Equal())
	assert.Equal(t, report.Read, report.Written)

	data, marks := w.dump(t)
	const seven, nine = `rhq_schedule{schedule_id="7",source="rhq"}`, `rhq_schedule{schedule_id="9",source="rhq"}`
	for _, want := range []string{
		seven + " 10:20 17",
		"1h " + seven + " 10:00 count=1 sum=13.5 min=10 max=17 first=13.5 last=13.5",
		"1h " + seven + " 03:00 count=1 sum=2.5 min=1 max=3 first=2.5 last=2.5",
		"6h " + nine + " 00:00 count=1 sum=2.5 min=1 max=3 first=2.5 last=2.5",
	} {
		assert.Contains(t, data, want)
	}
	assert.Equal(t, []string{
		"late 1h " + seven + " 06:00 in 12:00", "late 1h " + nine + " 06:00 in 12:00",
		"late 6h " + seven + " 00:00 in 00:00", "late 6h " + nine + " 00:00 in 00:00",
		"late raw " + seven + " 10:00 in 13:00", "late raw " + seven + " 11:00 in 13:00", "late raw " + seven + " 12:00 in 13:00",
		"late raw " + nine + " 10:00 in 13:00", "late raw " + nine + " 11:00 in 13:00", "late raw " + nine + " 12:00 in 13:00",
	}, marks)

	again, err := w.migrate(t, from)
	require.NoError(t, err)
	assert.True(t, again.Equal())
	assert.Zero(t, again.Written)
	d, m := w.dump(t)
	assert.Equal(t, data, d)
	assert.Equal(t, marks, m)
}

// TestRawDays: raw samples are copied of the days that RHQ has in whole, and of hours of which it has no row. Of the others
// RHQ's rows are left.
func TestRawDays(t *testing.T) {
	from := newMemory()
	old := func(hour, minute int) time.Time { return at(hour, minute).Add(-7 * 24 * time.Hour) }
	for _, h := range []int{20, 21, 22} {
		from.sample(7, old(h, 10), float64(h))
		if h != 21 {
			from.rollup(legacy.OneHour, 7, old(h, 0), float64(h+1), float64(h-1), float64(h))
		}
	}
	from.sample(7, old(48, 10), 24)
	from.rollup(legacy.OneHour, 7, old(48, 0), 24, 24, 24)
	w := newWorld()
	report, err := w.migrate(t, from)
	require.NoError(t, err)
	require.EqualValues(t, 2, report.Aggregated)
	const seven = `rhq_schedule{schedule_id="7",source="rhq"}`
	data, marks := w.dump(t)
	require.Equal(t, []string{seven + " 00:10 24", seven + " 21:10 21"}, data[3:])
	require.Equal(t, []string{
		"late 1h " + seven + " 00:00 in 12:00", "late 1h " + seven + " 18:00 in 12:00",
		"late raw " + seven + " 00:00 in 13:00", "late raw " + seven + " 21:00 in 13:00",
	}, marks)
}

// TestLostMeanwhile: rows that RHQ's TTL has removed since the first migration stay copied.
func TestLostMeanwhile(t *testing.T) {
	w := newWorld()
	_, err := w.migrate(t, morning())
	require.NoError(t, err)
	data, _ := w.dump(t)

	less := morning()
	less.samples[7] = less.samples[7][1:]
	report, err := w.migrate(t, less)
	require.NoError(t, err)
	require.True(t, report.Equal())
	d, _ := w.dump(t)
	slices.Sort(d)
	require.Equal(t, data, slices.Compact(d), "some samples are there twice, which counts once")
}

// TestBrokenOff fails each step of the migration in the store, and then continues.
func TestBrokenOff(t *testing.T) {
	whole := newWorld()
	_, err := whole.migrate(t, morning())
	require.NoError(t, err)
	data, marks := whole.dump(t)

	broken := errors.New("broken off")
	ended := false
	for step := 0; !ended; step++ {
		w := newWorld()
		store := w.store
		w.store = &failing{Store: store, left: step, err: broken}
		_, err := w.migrate(t, morning())
		if ended = err == nil; !ended {
			require.ErrorIs(t, err, broken)
		}
		w.store = store
		report, err := w.migrate(t, morning())
		require.NoError(t, err)
		require.True(t, report.Equal(), "after step %d", step)
		d, m := w.dump(t)
		require.Equal(t, data, d, "after step %d", step)
		require.Equal(t, marks, m, "after step %d", step)
	}
}

// TestNothingIsOwed: the answer to one write is lost, although it took effect. The migration goes on, finds the samples, and ends
// with nothing that only its memory has.
func TestNothingIsOwed(t *testing.T) {
	owed := false
	for n := 0; ; n++ {
		w := newWorld()
		store := storagetest.NewFaulty(w.store)
		writes := 0
		var m *Migration
		store.Add(storagetest.Rule{Op: "Write", Times: -1, After: func() error {
			if writes++; writes == n+1 {
				return storage.ErrTimeout
			}
			owed = owed || m.writer.Owes()
			return nil
		}})
		m = New(Parts{From: morning(), To: store, Cache: cache.New(store, w.clk, 1, cache.DefaultTiming()), Clock: patient{w.clk}}, w.opts)
		report, err := m.Run(t.Context())
		require.NoError(t, err)
		require.True(t, report.Equal(), "write %d", n)
		require.False(t, m.writer.Owes(), "write %d", n)
		if writes <= n {
			break
		}
	}
	require.True(t, owed)
}

// patient is a simulated clock that moves on when somebody sleeps.
type patient struct{ *clock.Simulated }

func (c patient) Sleep(ctx context.Context, d time.Duration) error {
	c.Set(c.Now().Add(d))
	return c.Simulated.Sleep(ctx, d)
}

// failing is a store that fails from some write on. Some of the failed writes take effect.
type failing struct {
	storage.Store
	left int
	err  error
}

func (f *failing) step(do func() error) error {
	if f.left--; f.left < 0 {
		if f.left%2 == 0 {
			_ = do() // the result is lost
		}
		return f.err
	}
	return do()
}

func (f *failing) ClaimSchedules(ctx context.Context, want []storage.Claim) (ids []metric.ScheduleID, err error) {
	err = f.step(func() error {
		ids, err = f.Store.ClaimSchedules(ctx, want)
		return err
	})
	return ids, err
}

func (f *failing) Write(ctx context.Context, b *storage.Batch) error {
	return f.step(func() error { return f.Store.Write(ctx, b) })
}

func (f *failing) WriteRollups(ctx context.Context, fence storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	return f.step(func() error { return f.Store.WriteRollups(ctx, fence, level, rows) })
}

// TestExpired: samples that expire before a run could grind them are counted and not copied.
func TestExpired(t *testing.T) {
	for _, c := range []struct {
		name            string
		retention       storage.Retention
		copied, expired int64
	}{
		{"kept for ever", nil, 2, 0},
		{"a week", storage.Retention{7 * 24 * time.Hour}, 2, 0},
		{"expired before it is run", storage.Retention{72 * time.Hour}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			from := newMemory()
			from.sample(7, now.Add(-72*time.Hour), 1)
			from.sample(7, now.Add(-time.Hour), 2)
			w := newWorld()
			require.NoError(t, w.store.SetPolicy(t.Context(), storage.Policy{Retention: c.retention}))
			report, err := w.migrate(t, from)
			require.NoError(t, err)
			assert.True(t, report.Equal())
			assert.Equal(t, c.copied, report.Found[0])
			assert.Equal(t, c.expired, report.Expired)
		})
	}
}

// TestDifference: a store that has lost acknowledged data is detected.
func TestDifference(t *testing.T) {
	w := newWorld()
	w.store = forgetful{w.store}
	report, err := w.migrate(t, morning())
	require.NoError(t, err)
	require.False(t, report.Equal())
	require.EqualValues(t, 16, report.Read[0])
	require.Zero(t, report.Found[0])
}

type forgetful struct{ storage.Store }

func (f forgetful) Write(context.Context, *storage.Batch) error { return nil }

// TestPebble copies into the embedded store, which has had leases before.
func TestPebble(t *testing.T) {
	w := newWorld()
	st, err := pebble.Open(t.TempDir(), pebble.Options{Settings: storagetest.TestSettings(), Clock: w.clk})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	_, err = st.AcquireShard(t.Context(), 0, "somebody", time.Hour)
	require.NoError(t, err)
	w.store, w.opts.Shared = st, false
	report, err := w.migrate(t, morning())
	require.NoError(t, err)
	require.True(t, report.Equal())
	model := newWorld()
	_, err = model.migrate(t, morning())
	require.NoError(t, err)
	want, _ := model.dump(t)
	got, _ := w.dump(t)
	require.Equal(t, want, got)
}

func TestNames(t *testing.T) {
	names, bad, err := ReadNames(strings.NewReader(`schedule_id,source,metric
7,db1,cpu_load,core=1,"note=a, b"
# the next are wrong

x,db1,cpu
-1,db1,cpu
8,db1
8,,cpu
8,db1,
8,db1,cpu,core
8,db1,cpu,source=db2
8,db1,cpu,core=1,core=2
8,db1,"cpu
7,db1,other
8,db1,cpu_load,core=1,"note=a, b"
99999999999,db1,cpu
8,db2,cpu
`))
	require.NoError(t, err)
	require.Len(t, names, 2)
	assert.Equal(t, `cpu_load{core="1",note="a, b"}`, names[7].Labels.String())
	assert.Equal(t, "db2", names[8].Source)
	want := []string{
		`line 5: "x" is not a schedule id`, `line 6: "-1" is not a schedule id`, `line 7: want schedule_id,source,metric`, `line 8: the source is empty`,
		`line 9: the metric is empty`, `line 10: "core" is not of the form label=value`, `line 11: label "source" has a field of its own`,
		`line 12: label "core" is given twice`, `line 13: `, `line 14: schedule 7 is named in line 2 already`,
		`line 15: the series of source "db1" has the schedule of line 2 already`, `line 16: "99999999999" is not a schedule id`,
	}
	require.Len(t, bad, len(want), "%q", bad)
	for i := range want {
		assert.Contains(t, bad[i], want[i])
	}

	w := newWorld()
	w.opts.Names = names
	_, err = w.migrate(t, morning())
	require.NoError(t, err)
	data, _ := w.dump(t)
	assert.Contains(t, data, `cpu_load{core="1",note="a, b",source="db1"} 10:20 17`)
	assert.Contains(t, data, `rhq_schedule{schedule_id="9",source="rhq"} 10:20 19`)
}
