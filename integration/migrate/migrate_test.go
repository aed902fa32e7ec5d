// Package migrate tests the migration of an RHQ keyspace, on a real Cassandra, by the real program.
package migrate

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/migrate"
	"github.com/quern/quern/internal/migrate/legacy"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

var programs *process.Programs

func TestMain(m *testing.M) {
	os.Exit(process.Tests{M: cassandratest.Stopping(m), Use: func(p *process.Programs) { programs = p }}.Run())
}

// rhq is a keyspace as RHQ leaves it, with its contents.
type rhq struct {
	cassandra.Options // of the keyspace

	session *gocql.Session
	now     time.Time
	raw     map[key]float64
	rollups [3]map[key]values
}

type key struct {
	schedule int32
	timeMs   int64
}

type values struct{ max, min, avg float64 }

const (
	schedules   = 300
	reportEvery = 10 * time.Minute
	rawHours    = 30
	// Schedules with number % odd == 0 lack an hour that RHQ failed to aggregate.
	odd = 10
)

// timeout is long enough for a busy machine: a request fails only where a test makes it fail.
const timeout = time.Minute

// connect opens a session to the server that all tests share.
func connect(t *testing.T) (cassandra.Options, *gocql.Session) {
	t.Helper()
	server := cassandratest.Shared(t)
	config := gocql.NewCluster(server.Hosts()...)
	config.DisableInitialHostLookup = server.Way() == cassandratest.WayDocker
	config.ConnectTimeout, config.Timeout = timeout, timeout
	config.Consistency = gocql.One
	s, err := config.CreateSession()
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return cassandra.Options{Hosts: server.Hosts(), DirectHosts: config.DisableInitialHostLookup, Timeout: timeout}, s
}

// keyspace creates an empty keyspace that is dropped at the end of the test.
func keyspace(t *testing.T, s *gocql.Session, prefix string) string {
	t.Helper()
	name := fmt.Sprintf("%s_%08x", prefix, rand.Uint32())
	require.NoError(t, s.Query("CREATE KEYSPACE "+name+
		" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false").Exec())
	t.Cleanup(func() { require.NoError(t, s.Query("DROP KEYSPACE "+name).Exec()) })
	return name
}

// newRHQ creates the tables and fills them with what n schedules reported up to now: a day and some
// hours of raw samples, aggregated up to an hour and a half ago. It also has older roll-ups, whose
// raw samples have expired.
func newRHQ(t *testing.T, now time.Time, n int) *rhq {
	t.Helper()
	opts, session := connect(t)
	opts.Keyspace = keyspace(t, session, "rhq_it")
	for table, columns := range map[string]string{
		"raw_metrics":              "schedule_id int, time timestamp, value double, PRIMARY KEY (schedule_id, time)",
		"one_hour_metrics":         "schedule_id int, time timestamp, type int, value double, PRIMARY KEY (schedule_id, time, type)",
		"six_hour_metrics":         "schedule_id int, time timestamp, type int, value double, PRIMARY KEY (schedule_id, time, type)",
		"twenty_four_hour_metrics": "schedule_id int, time timestamp, type int, value double, PRIMARY KEY (schedule_id, time, type)",
		"metrics_index":            "bucket text, time timestamp, schedule_id int, PRIMARY KEY ((bucket, time), schedule_id)",
	} {
		require.NoError(t, session.Query(fmt.Sprintf("CREATE TABLE %s.%s (%s)", opts.Keyspace, table, columns)).Exec())
	}
	k := &rhq{Options: opts, session: session, now: now, raw: map[key]float64{}}
	for i := range k.rollups {
		k.rollups[i] = map[key]values{}
	}
	for i := range n {
		k.report(int32(10000 + i))
	}
	k.store(t)
	return k
}

func hours(n int) int64 { return int64(n) * time.Hour.Milliseconds() }

// report generates the data of a schedule.
func (k *rhq) report(id int32) {
	nowMs := k.now.UnixMilli()
	hour := metric.AlignDown(nowMs, hours(1))
	rnd := rand.New(rand.NewPCG(7, uint64(id)))
	for t := hour - hours(rawHours); t <= nowMs; t += reportEvery.Milliseconds() {
		k.raw[key{id, t + int64(id%1000)}] = math.Round(rnd.NormFloat64()*1e4) / 100
	}
	if id%7 == 0 {
		k.raw[key{id, hour - hours(5) + 1}] = math.NaN()
	}
	// Before the first raw samples.
	for t := hour - hours(48); t < hour-hours(rawHours); t += hours(1) {
		v := rnd.NormFloat64()
		k.rollups[0][key{id, t}] = values{v + 2, v - 1, v}
	}
	for t := hour - hours(rawHours); t < hour-hours(1); t += hours(1) {
		if id%odd == 0 && t == hour-hours(3) {
			continue // it failed
		}
		k.aggregate(0, id, t)
	}
	last := metric.AlignDown(hour-hours(1), hours(6))
	for t := last - hours(36); t < last; t += hours(6) {
		if id%odd == 0 && metric.AlignDown(hour-hours(3), hours(6)) == t {
			continue
		}
		k.aggregate(1, id, t)
	}
	k.aggregate(2, id, metric.AlignDown(hour, hours(24))-hours(24))
}

// aggregate aggregates as RHQ did: it takes the mean of averages.
func (k *rhq) aggregate(level int, id int32, t int64) {
	v := values{math.Inf(-1), math.Inf(1), 0}
	n := 0
	one := func(lo, hi, avg float64) {
		n++
		v.max, v.min = max(v.max, hi), min(v.min, lo)
		v.avg += (avg - v.avg) / float64(n)
	}
	if level == 0 {
		for s := t; s < t+hours(1); s += reportEvery.Milliseconds() {
			if x, ok := k.raw[key{id, s + int64(id%1000)}]; ok && !math.IsNaN(x) {
				one(x, x, x)
			}
		}
	} else {
		step := []int64{0, hours(1), hours(6)}[level]
		for s := t; s < t+[]int64{0, hours(6), hours(24)}[level]; s += step {
			if x, ok := k.rollups[level-1][key{id, s}]; ok {
				one(x.min, x.max, x.avg)
			}
		}
	}
	if n > 0 {
		k.rollups[level][key{id, t}] = v
	}
}

// store writes everything, in a batch per partition.
func (k *rhq) store(t *testing.T) {
	t.Helper()
	batches := map[string]*gocql.Batch{}
	add := func(partition, cql string, args ...any) {
		b := batches[partition]
		if b == nil || len(b.Entries) >= 100 {
			if b != nil {
				require.NoError(t, k.session.ExecuteBatch(b))
			}
			b = k.session.NewBatch(gocql.UnloggedBatch)
			batches[partition] = b
		}
		b.Query(strings.Replace(cql, "INTO ", "INTO "+k.Keyspace+".", 1), args...)
	}
	for at, v := range k.raw {
		add(fmt.Sprint("raw", at.schedule), "INSERT INTO raw_metrics (schedule_id, time, value) VALUES (?, ?, ?)", at.schedule, at.timeMs, v)
	}
	for i, level := range legacy.Levels {
		for at, v := range k.rollups[i] {
			for kind, value := range []float64{v.max, v.min, v.avg} {
				add(fmt.Sprint(i, at.schedule), "INSERT INTO "+level.Table()+" (schedule_id, time, type, value) VALUES (?, ?, ?, ?)",
					at.schedule, at.timeMs, kind, value)
			}
		}
	}
	for _, b := range batches {
		require.NoError(t, k.session.ExecuteBatch(b))
	}
}

// target is a keyspace of Quern, with a clock of its own.
type target struct {
	t     *testing.T
	opts  cassandra.Options
	clk   *clock.Simulated
	store *cassandra.Store
}

func newTarget(t *testing.T, k *rhq) *target {
	t.Helper()
	opts := k.Options
	opts.Keyspace = keyspace(t, k.session, "quern_it")
	clk := clock.NewSimulated(k.now)
	opts.Clock = clk
	opts.Settings = storage.Settings{IndexPartitions: 4, GroupSize: 64, Epochs: blocks.Epochs{{BlockSize: 32}}}
	require.NoError(t, cassandra.ApplySchema(t.Context(), opts, "", func(int, int, string) {}))
	store, err := cassandra.Open(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return &target{t: t, opts: opts, clk: clk, store: store}
}

func (g *target) protocol() *cache.Cache {
	return cache.New(g.store, g.clk, rand.Uint64(), cache.DefaultTiming())
}

// migrate copies as a separate process would.
func (g *target) migrate(ctx context.Context, from legacy.Reader) (*migrate.Report, error) {
	return migrate.New(migrate.Parts{From: from, To: g.store, Cache: g.protocol(), Clock: g.clk}, migrate.Options{Shared: true}).Run(ctx)
}

func open(t *testing.T, k *rhq) *legacy.Keyspace {
	t.Helper()
	from, err := legacy.Open(t.Context(), k.Options)
	require.NoError(t, err)
	t.Cleanup(from.Close)
	return from
}

// content is what a target holds, by the ids of the legacy keyspace.
type content struct {
	raw     map[key]float64
	rollups [3]map[key]metric.Rollup
	chunks  int
}

func (g *target) content() content {
	g.t.Helper()
	ctx := g.t.Context()
	ids, err := g.store.LeasedIDs(ctx)
	require.NoError(g.t, err)
	names := map[metric.ScheduleID]int32{}
	for s, err := range g.store.Schedules(ctx, ids) {
		require.NoError(g.t, err)
		require.Equal(g.t, "rhq", s.Labels.Get(metric.SourceLabel))
		var id int32
		_, err := fmt.Sscan(s.Labels.Get("schedule_id"), &id)
		require.NoError(g.t, err)
		names[s.ID] = id
	}
	c := content{raw: map[key]float64{}}
	from, to := g.clk.Now().Add(-60*24*time.Hour).UnixMilli(), g.clk.Now().Add(24*time.Hour).UnixMilli()
	for ch, err := range g.store.RawChunks(ctx, ids, from, to) {
		require.NoError(g.t, err)
		c.chunks++
		samples, err := blocks.DecodeSamplesIn(nil, ch.Data, ids)
		require.NoError(g.t, err)
		for _, s := range samples {
			c.raw[key{names[s.Schedule], s.TimeMs}] = s.Value
		}
	}
	for i := range c.rollups {
		c.rollups[i] = map[key]metric.Rollup{}
		for r, err := range g.store.Rollups(ctx, metric.Bucket(i+1), ids, from, to) {
			require.NoError(g.t, err)
			c.rollups[i][key{names[r.Schedule], r.TimeMs}] = r.Rollup
		}
	}
	return c
}

// run lets time pass, and grinds whatever is due.
func (g *target) run(until time.Time) {
	g.t.Helper()
	e := engine.New(engine.Options{
		Store: g.store, Clock: g.clk, Worker: storage.Worker{ID: "worker"}, Timeout: 24 * time.Hour, Rollup: &rollup.Options{},
	})
	g.clk.Set(until)
	_, err := e.Runner.RunDue(g.t.Context())
	require.NoError(g.t, err)
}

// copied compares a target with the legacy keyspace.
func (k *rhq) copied(t *testing.T, c content) {
	t.Helper()
	require.Len(t, c.raw, len(k.raw))
	for at, v := range k.raw {
		require.Equal(t, math.Float64bits(v), math.Float64bits(c.raw[at]), "%v", at)
	}
	for i := range k.rollups {
		require.Len(t, c.rollups[i], len(k.rollups[i]), "level %d", i)
		for at, v := range k.rollups[i] {
			r, ok := c.rollups[i][at]
			require.True(t, ok, "level %d: %v", i, at)
			require.Equal(t, v.max, r.Max)
			require.Equal(t, v.min, r.Min)
			if i == 0 || r.Count == 1 {
				require.InDelta(t, v.avg, r.Avg(), 1e-9)
			}
		}
	}
}

var now = time.Date(2025, time.November, 21, 13, 30, 0, 0, time.UTC)

// TestMigrate copies, and lets the next runs grind what RHQ had not.
func TestMigrate(t *testing.T) {
	k := newRHQ(t, now, schedules)
	g, from := newTarget(t, k), open(t, k)
	report, err := g.migrate(t.Context(), from)
	require.NoError(t, err)
	t.Logf("%+v", *report)
	require.True(t, report.Equal())
	require.Equal(t, report.Read, report.Written)
	require.EqualValues(t, len(k.raw), report.Read[0])
	first := g.content()
	k.copied(t, first)

	for i := range first.rollups {
		for at, r := range first.rollups[i] {
			require.EqualValues(t, 1, r.Count, "level %d: %v", i, at)
		}
	}

	t.Run("again", func(t *testing.T) {
		again, err := g.migrate(t.Context(), from)
		require.NoError(t, err)
		require.True(t, again.Equal())
		require.Zero(t, again.Written)
		require.Equal(t, report.Read, again.Read)
		same(t, first, g.content())
	})

	// The next runs grind the raw samples, and change nothing else.
	g.run(now.Add(33 * time.Minute))
	after := g.content()
	want := maps.Clone(first.rollups[0])
	for at := range k.raw {
		h := key{at.schedule, metric.AlignDown(at.timeMs, hours(1))}
		ground := k.ground(h)
		got, ok := after.rollups[0][h]
		require.True(t, ok, "%v is ground", h)
		require.Equal(t, ground.Count, got.Count)
		require.InDelta(t, ground.Sum, got.Sum, 1e-6)
		want[h] = got
	}
	require.Equal(t, want, after.rollups[0], "no other hour was touched")

	// The runs of six hours and of the day do the same when those are over.
	for _, at := range []int{18, 19, 24} {
		g.run(time.Date(2025, time.November, 21, at, 3, 0, 0, time.UTC))
	}
	late := g.content()
	day := time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	for id := int32(10000); id < 10000+schedules; id++ {
		for at, want := range map[key]uint64{{id, day}: 36, {id, day + hours(6)}: 36, {id, day + hours(12)}: 10} {
			require.Equal(t, want, late.rollups[1][at].Count, "%v", at)
		}
		require.EqualValues(t, 82, late.rollups[2][key{id, day}].Count, "the day of %d", id)
	}
	rawMs := metric.AlignDown(now.UnixMilli(), hours(1)) - hours(rawHours)
	for at, r := range first.rollups[1] {
		switch {
		case at.timeMs+hours(6) <= rawMs:
			require.Equal(t, r, late.rollups[1][at], "a row without raw samples stays as it was copied: %v", at)
		case at.timeMs >= rawMs:
			require.EqualValues(t, 36, late.rollups[1][at].Count, "%v", at)
		}
	}

	// A repeated migration undoes nothing of that.
	final, err := g.migrate(t.Context(), from)
	require.NoError(t, err)
	require.True(t, final.Equal())
	require.Zero(t, final.Written)
	same(t, late, g.content())
}

// ground returns the roll-up of the samples of an hour.
func (k *rhq) ground(at key) (r metric.Rollup) {
	for s := at.timeMs; s < at.timeMs+hours(1); s += reportEvery.Milliseconds() {
		if x, ok := k.raw[key{at.schedule, s + int64(at.schedule%1000)}]; ok {
			r.Count++
			r.Sum += x
		}
	}
	return r
}

func same(t *testing.T, want, got content) {
	t.Helper()
	require.Equal(t, want.chunks, got.chunks)
	require.Len(t, got.raw, len(want.raw))
	for at, v := range want.raw {
		require.Equal(t, math.Float64bits(v), math.Float64bits(got.raw[at]), "%v", at)
	}
	require.Equal(t, want.rollups, got.rollups)
}

// TestInterrupted stops the migration at many points, and continues each time.
func TestInterrupted(t *testing.T) {
	k := newRHQ(t, now, 80)
	whole := newTarget(t, k)
	_, err := whole.migrate(t.Context(), open(t, k))
	require.NoError(t, err)
	want := whole.content()

	g, from := newTarget(t, k), open(t, k)
	ends := 0
	for after := 5; ; after = after * 3 / 2 {
		ctx, stop := context.WithCancel(t.Context())
		reader := &stopping{Keyspace: from, stop: stop}
		reader.left.Store(int64(after))
		_, err := g.migrate(ctx, reader)
		stop()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		ends++
	}
	require.Greater(t, ends, 8)
	t.Logf("ended %d times", ends)
	k.copied(t, g.content())
	same(t, want, g.content())
	g.run(now.Add(33 * time.Minute))
	whole.run(now.Add(33 * time.Minute))
	same(t, whole.content(), g.content())
}

// stopping stops after some rows.
type stopping struct {
	*legacy.Keyspace
	left atomic.Int64
	stop func()
}

func (s *stopping) Samples(ctx context.Context, schedule int32) iter.Seq2[legacy.Sample, error] {
	return counted(s, s.Keyspace.Samples(ctx, schedule))
}

func (s *stopping) Values(ctx context.Context, level legacy.Level, schedule int32) iter.Seq2[legacy.Value, error] {
	return counted(s, s.Keyspace.Values(ctx, level, schedule))
}

func counted[T any](s *stopping, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v, err := range seq {
			if s.left.Add(-1) == 0 {
				s.stop()
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// quern runs the program between the two keyspaces.
func (k *rhq) quern(t *testing.T, to string, args ...string) *process.Process {
	t.Helper()
	args = append(args, "--cassandra-hosts", strings.Join(k.Hosts, ","), "--keyspace", to, "--cassandra-timeout", timeout.String())
	if k.DirectHosts {
		args = append(args, "--cassandra-direct")
	}
	return process.Start(t, exec.CommandContext(t.Context(), programs.Quern, args...))
}

// TestProgram runs the migration as an operator would: with names, stopped and restarted, and in
// the end with the legacy tables dropped.
func TestProgram(t *testing.T) {
	k := newRHQ(t, time.Now().UTC(), 60)
	to := keyspace(t, k.session, "quern_it")
	bare := k.quern(t, to, "migrate", "--from-keyspace", k.Keyspace)
	require.Equal(t, 1, bare.ExitCode())
	require.Contains(t, bare.Stderr.String(), "quern schema apply --keyspace "+to)
	applied := k.quern(t, to, "schema", "apply")
	<-applied.Ended
	require.Equal(t, 0, applied.ExitCode())
	names := filepath.Join(t.TempDir(), "names.csv")
	require.NoError(t, os.WriteFile(names, []byte("schedule_id,source,metric\n10000,db1,cpu_load,core=1\nnonsense\n10001,db1,cpu_load,core=2\n"), 0o600))
	args := []string{"migrate", "--from-keyspace", k.Keyspace, "--names", names}

	wrong := k.quern(t, to, "migrate", "--from-keyspace", to+"x")
	require.Equal(t, 1, wrong.ExitCode())
	require.Contains(t, wrong.Stderr.String(), `lacks the tables of RHQ`)

	slow := k.quern(t, to, append(args, "--rate", "100")...)
	slow.Wrote("msg=copying .*schedules=0 of=60")
	slow.Signal(syscall.SIGTERM)
	require.Equal(t, 1, slow.ExitCode())
	require.Contains(t, slow.Stderr.String(), "stopped before all rows were copied: run the command again")

	whole := k.quern(t, to, args...)
	require.Equal(t, 0, whole.ExitCode())
	require.Contains(t, whole.Stdout.String(), "line 3: ")
	require.Contains(t, whole.Stdout.String(), "All rows that were read are in the store.")
	t.Log(whole.Stdout.String())
	for _, table := range legacy.Tables() {
		require.NoError(t, k.session.Query("SELECT * FROM "+k.Keyspace+"."+table+" LIMIT 1").Exec(), "it is not touched")
	}
	var labels map[string]string
	require.NoError(t, k.session.Query("SELECT labels FROM "+to+".schedules WHERE source = 'db1' LIMIT 1").Scan(&labels))
	require.Equal(t, "cpu_load", labels[metric.NameLabel])

	dropped := k.quern(t, to, append(args, "--drop")...)
	require.Equal(t, 0, dropped.ExitCode())
	require.Contains(t, dropped.Stdout.String(), "Dropping the tables raw_metrics, one_hour_metrics")
	require.Regexp(t, `raw_metrics +\d+ read, 0 written now`, dropped.Stdout.String())
	for _, table := range legacy.Tables() {
		err := k.session.Query("SELECT * FROM " + k.Keyspace + "." + table + " LIMIT 1").Exec()
		var answer gocql.RequestError
		require.ErrorAs(t, err, &answer, table)
	}
	gone := k.quern(t, to, args...)
	require.Equal(t, 1, gone.ExitCode())
	assert.Contains(t, gone.Stderr.String(), "lacks the tables of RHQ")
}

// TestBadRows: rows that cannot be copied are named, and prevent the drop of the legacy tables.
// Everything else is copied.
func TestBadRows(t *testing.T) {
	k := newRHQ(t, now, 3)
	insert := func(cql string, args ...any) {
		require.NoError(t, k.session.Query(strings.Replace(cql, "INTO ", "INTO "+k.Keyspace+".", 1), args...).Exec())
	}
	insert("INSERT INTO raw_metrics (schedule_id, time, value) VALUES (10000, ?, 1)", now.Add(100*time.Hour))
	insert("INSERT INTO raw_metrics (schedule_id, time, value) VALUES (10000, ?, 1)", int64(-1))
	insert("INSERT INTO raw_metrics (schedule_id, time) VALUES (10001, ?)", now.Add(-time.Minute))
	insert("INSERT INTO raw_metrics (schedule_id, time, value) VALUES (-3, ?, 1)", now)
	insert("INSERT INTO one_hour_metrics (schedule_id, time, type, value) VALUES (10002, ?, 1, 5)", time.Date(2025, 11, 1, 3, 0, 0, 0, time.UTC))
	insert("INSERT INTO six_hour_metrics (schedule_id, time, type, value) VALUES (10002, ?, 7, 5)", time.Date(2025, 11, 1, 6, 0, 0, 0, time.UTC))
	for kind := range 3 {
		insert("INSERT INTO one_hour_metrics (schedule_id, time, type, value) VALUES (10001, ?, ?, 5)", time.Date(2025, 11, 1, 3, 30, 0, 0, time.UTC), kind)
		insert("INSERT INTO one_hour_metrics (schedule_id, time, type, value) VALUES (10001, ?, ?, ?)", time.Date(2025, 11, 1, 4, 0, 0, 0, time.UTC), kind, math.NaN())
	}
	g := newTarget(t, k)
	report, err := g.migrate(t.Context(), open(t, k))
	require.NoError(t, err)
	require.True(t, report.Equal())
	require.EqualValues(t, 1, report.NotFinite)
	slices.Sort(report.BadRows)
	require.EqualValues(t, 7, report.Bad, "%q", report.BadRows)
	for _, want := range []string{
		"schedule 10000 at -1: the time is before 1970", "the time is ahead of this clock", "there is no value", "schedule -3, with all of its rows",
		"one of max, min and avg is missing", "unknown type 7", "no roll-up slice (UTC) begins at this time",
	} {
		assert.True(t, slices.ContainsFunc(report.BadRows, func(s string) bool { return strings.Contains(s, want) }), "%s in %q", want, report.BadRows)
	}
	k.copied(t, g.content())
}

// TestRefused: a store that cannot hold the roll-ups is refused before anything is written.
func TestRefused(t *testing.T) {
	k := newRHQ(t, now, 2)
	opts := k.Options
	opts.Keyspace = keyspace(t, k.session, "quern_it")
	ladder, err := metric.NewLadder(time.Hour, 24*time.Hour)
	require.NoError(t, err)
	opts.Settings = storage.Settings{Ladder: ladder}
	require.NoError(t, cassandra.ApplySchema(t.Context(), opts, "", func(int, int, string) {}))
	store, err := cassandra.Open(t.Context(), opts)
	require.NoError(t, err)
	defer store.Close()
	clk := clock.NewSimulated(now)
	_, err = migrate.New(migrate.Parts{
		From: open(t, k), To: store, Cache: cache.New(store, clk, 1, cache.DefaultTiming()), Clock: clk,
	}, migrate.Options{}).Run(t.Context())
	require.ErrorContains(t, err, "six_hour_metrics has rows, but the store has no roll-ups of 6h for them, only 1h,24h")

	_, err = legacy.Open(t.Context(), opts)
	require.ErrorContains(t, err, "lacks the tables of RHQ", "Quern's own have some of the same names")
	require.NotErrorIs(t, err, storage.ErrUnavailable)
}
