package gate

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

const (
	series    = 37
	blockSize = 8
	width     = 10 * time.Second // of the finest level
	// ahead is how far samples lie in the future. A report is stored long before the slice of its samples has ended, however
	// busy the machine is, so that nothing is late.
	ahead = 15 * time.Second
)

// TestPrograms takes reports from ingest to rows by way of the aggregator, each of them a real process over a real node, and
// kills both in between. A run without late data reads each block once and the index once.
func TestPrograms(t *testing.T) {
	pl := newPlace(t)
	schema := pl.start(programs.Quern, "schema", "apply",
		"--block-size", strconv.Itoa(blockSize), "--index-partitions", "1", "--rollups", "10s,20s")
	require.Zero(t, schema.ExitCode(), "%s", &schema.Stderr)

	// What is acknowledged outlives the process that took it.
	ingest := pl.ingest()
	pl.report(ingest, time.Now()) // the series get their ids
	first := pl.report(ingest, time.Now().Add(ahead))
	ingest.Kill()
	aggregator := pl.aggregator()
	run(t, aggregator, first)

	// What the aggregator has left is ground by the next one.
	aggregator.Kill()
	ingest = pl.ingest()
	second := pl.report(ingest, time.Now().Add(ahead))
	aggregator = pl.aggregator()
	run(t, aggregator, second)

	for _, slice := range []int64{first, second} {
		byCQL, byHTTP := pl.rows(slice), rows(t, ingest, slice)
		require.Len(t, byCQL, series)
		require.Equal(t, byCQL, byHTTP)
		for metric, r := range byCQL {
			v := values[metric]
			require.Equal(t, row{Count: 1, Sum: v, Min: v, Max: v, First: v, Last: v}, r, metric)
		}
	}
	aggregator.Stop()
	ingest.Stop()
}

// values are what each report has, by metric.
var values = func() map[string]float64 {
	out := map[string]float64{}
	for i := range series {
		out[fmt.Sprintf("it_%02d", i)] = float64(i) - 5.25
	}
	return out
}()

// place is a keyspace of the node, which ends with the test.
type place struct {
	t        *testing.T
	session  *gocql.Session
	keyspace string
	flags    []string
}

func newPlace(t *testing.T) place {
	t.Helper()
	server := cassandratest.Shared(t)
	config := gocql.NewCluster(server.Hosts()...)
	config.DisableInitialHostLookup = server.Way() == cassandratest.WayDocker
	config.ConnectTimeout, config.Timeout = process.Limit, process.Limit
	session, err := config.CreateSession()
	require.NoError(t, err)
	pl := place{t: t, session: session, keyspace: "quern_it_programs"}
	pl.flags = []string{
		// A request takes as long as the machine is busy.
		"--cassandra-timeout", "60s", "--keyspace", pl.keyspace, "--cassandra-hosts", server.Hosts()[0],
	}
	if config.DisableInitialHostLookup {
		pl.flags = append(pl.flags, "--cassandra-direct")
	}
	drop := func() { require.NoError(t, session.Query("DROP KEYSPACE IF EXISTS "+pl.keyspace).Exec()) }
	drop() // a server that was running already may have one
	t.Cleanup(func() {
		drop()
		session.Close()
	})
	return pl
}

func (pl place) start(program string, args ...string) *process.Process {
	pl.t.Helper()
	return process.Start(pl.t, exec.CommandContext(context.WithoutCancel(pl.t.Context()), program, slices.Concat(args, pl.flags)...))
}

// serve starts a program that runs until it is stopped.
func (pl place) serve(program string, args ...string) *process.Process {
	pl.t.Helper()
	p := pl.start(program, append([]string{
		"--listen", "127.0.0.1:0", "--aggregation-delay", "2s", "--late-grace", "1s", "--heartbeat-timeout", "15s",
	}, args...)...)
	p.Ready()
	return p
}

func (pl place) ingest() *process.Process {
	pl.t.Helper()
	return pl.serve(programs.Ingest)
}

func (pl place) aggregator() *process.Process {
	pl.t.Helper()
	return pl.serve(programs.Aggregator)
}

// report sends a sample of each series and returns the slice that they belong to.
func (pl place) report(p *process.Process, at time.Time) (slice int64) {
	pl.t.Helper()
	var samples []process.Sample
	for metric, v := range values {
		samples = append(samples, process.Sample{Source: "host", Metric: metric, Ms: at.UnixMilli(), Value: v})
	}
	_, err := p.Report(pl.t.Context(), samples)
	require.NoError(pl.t, err)
	return at.Truncate(width).UnixMilli()
}

// run waits for the run of a slice of raw, and looks what it cost.
func run(t *testing.T, p *process.Process, slice int64) {
	t.Helper()
	var found wire.Run
	process.Eventually(t, "the run", func() error {
		st, err := p.Status()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(st.Runs, func(r wire.Run) bool { return r.Bucket == "raw" && r.Slice == slice })
		if i < 0 {
			return errors.New("there is none yet")
		}
		found = st.Runs[i]
		return nil
	})
	require.Empty(t, found.Error)
	require.Zero(t, found.Late+found.Rescheduled+found.Dropped, "%+v", found)
	require.Equal(t, series, found.Schedules, "%+v", found)
	const blocks = (series + blockSize - 1) / blockSize
	require.Equal(t, [2]int{blocks, 1}, [2]int{found.BlockQueries, found.IndexQueries}, "N/PBS + 1: %+v", found)
}

// row is what both ways to read a row have in common.
type row struct {
	Count                      int64
	Sum, Min, Max, First, Last float64
}

// rows reads the rows of a slice by HTTP, by metric.
func rows(t *testing.T, p *process.Process, slice int64) map[string]row {
	t.Helper()
	lines, err := process.Lines[wire.Row](p, wire.RollupsPath, url.Values{
		"match[]": {process.OfTests}, "level": {process.LevelName(width)},
		"start": {strconv.FormatInt(slice, 10)}, "end": {strconv.FormatInt(slice+1, 10)},
	})
	require.NoError(t, err)
	out := map[string]row{}
	for _, r := range lines {
		require.Equal(t, slice, r.Time)
		out[r.Metric["__name__"]] = row{int64(r.Count), float64(r.Sum), float64(r.Min), float64(r.Max), float64(r.First), float64(r.Last)}
	}
	return out
}

// rows reads the rows of a slice as any CQL client can.
func (pl place) rows(slice int64) map[string]row {
	pl.t.Helper()
	names := map[int64]string{}
	var id int64
	var labels map[string]string
	it := pl.session.Query("SELECT schedule_id, labels FROM " + pl.keyspace + ".schedules").Iter()
	for it.Scan(&id, &labels) {
		names[id] = labels["__name__"]
	}
	require.NoError(pl.t, it.Close())
	out := map[string]row{}
	it = pl.session.Query("SELECT schedule_id, time, count, sum, min, max, first, last FROM " + pl.keyspace + ".rollup_10s_metrics").Iter()
	var at time.Time
	for r := (row{}); it.Scan(&id, &at, &r.Count, &r.Sum, &r.Min, &r.Max, &r.First, &r.Last); {
		if at.UnixMilli() == slice {
			out[names[id]] = r
		}
	}
	require.NoError(pl.t, it.Close())
	return out
}
