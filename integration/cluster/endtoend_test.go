package cluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

// A ladder on which a day takes 16 seconds.
var (
	ladder = []time.Duration{4 * time.Second, 8 * time.Second, 16 * time.Second}
	top    = ladder[len(ladder)-1]
	timing = []string{"--aggregation-delay", "2s", "--late-grace", "1s"}
)

// TestNodesDie runs a few days on three nodes. One node is killed while reports come in, and
// another during a run. Everything acknowledged must be there once, and every roll-up exact.
func TestNodesDie(t *testing.T) {
	start, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	// Two nodes are killed, one soon after the other. Each must have what it acknowledged on its
	// disk: otherwise both could lose a row that only these two have.
	nodes, err := cassandratest.StartCluster(start, 3, cassandratest.Options{CommitlogSync: cassandratest.CommitlogBatch})
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)

	pl := placeIn(nodes.Hosts())
	// Small blocks, so that there are many.
	pl.apply(t, "--rollups", "4s,8s,16s", "--block-size", "32", "--group-size", "64", "--index-partitions", "4")
	begin := time.Now()
	ingests := []*process.Process{pl.ingest(t, timing...), pl.ingest(t, timing...)}
	aggregator := pl.aggregator(t, timing...)
	all := append(slices.Clone(ingests), aggregator)
	ready(all...)
	t.Logf("all are ready after %s", time.Since(begin).Round(time.Second))

	var sent ledger
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i := range 3 {
		senders.Go(func() { sent.send(t, ingests, i, stop) })
	}
	end := sync.OnceFunc(func() { close(stop); senders.Wait() })
	t.Cleanup(end) // runs after what the senders wait for is over
	sent.grows(t, 1000)

	nodes.Node(0).Kill()
	sent.grows(t, 1000)
	require.NoError(t, nodes.Node(0).Restart(t.Context()))
	require.NoError(t, nodes.AwaitUp(t.Context()))
	t.Logf("the first node is back after %s", time.Since(begin).Round(time.Second))

	// The last raw slice of a day has just been ground, and the coarser slices follow.
	was := runsOfLastSlices(t, aggregator)
	process.Eventually(t, "the end of a day", func() error {
		if is := runsOfLastSlices(t, aggregator); is == was {
			return fmt.Errorf("%d", is)
		}
		return nil
	})
	nodes.Node(1).Kill()
	sent.grows(t, 1000)
	require.NoError(t, nodes.Node(1).Restart(t.Context()))
	require.NoError(t, nodes.AwaitUp(t.Context()))
	t.Logf("the second node is back after %s", time.Since(begin).Round(time.Second))

	process.Eventually(t, "two days", func() error {
		days, err := rowTimes(ingests[0], top)
		if err == nil && len(days) < 2 {
			err = fmt.Errorf("%d", len(days))
		}
		return err
	})
	require.NoError(t, process.Await(end), "reports are not acknowledged")
	late := 0
	for i, p := range ingests {
		process.Eventually(t, fmt.Sprintf("process %d to have all", i), func() error { return sent.Check(p) })
	}
	st := aggregator.AwaitStatus()
	for _, r := range st.Runs {
		late += r.Late
	}
	series := sent.Series()
	sameIDs(t, pl, series)
	days, err := rowTimes(ingests[0], top)
	require.NoError(t, err)
	t.Logf("%d samples of %d series in %d reports, of which %d were sent again; %d days; %d late blocks in the last %d runs; %d errors recorded",
		sent.Len(), series, sent.reports.Load(), sent.again.Load(), len(days), late, len(st.Runs), len(st.Errors))

	running(t, all...)
	for _, p := range all {
		p.Stop()
		assert.Contains(t, p.Stderr.String(), "draining")
	}
	t.Logf("all took %s on a cluster that was up", time.Since(begin).Round(time.Second))
}

// ledger holds what was sent. Each report is sent until it is acknowledged.
type ledger struct {
	oracle.Oracle

	reports, again atomic.Int64
}

// grows waits until n more samples have been acknowledged.
func (l *ledger) grows(t *testing.T, n int) {
	t.Helper()
	want := l.Len() + n
	process.Eventually(t, "acknowledgements", func() error {
		if is := l.Len(); is < want {
			return fmt.Errorf("%d of %d", is, want)
		}
		return nil
	})
}

// send reports to all processes at once until stop. Now and then it continues with another source,
// so that the processes meet its series at the same time.
func (l *ledger) send(t *testing.T, to []*process.Process, sender int, stop <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	lastMs := int64(0)
	for round := 0; ; round++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		source := fmt.Sprintf("sender-%d-%03d", sender, round/8)
		ms := max(time.Now().UnixMilli(), lastMs+int64(len(to)))
		lastMs = ms
		var reports sync.WaitGroup
		for i, p := range to {
			reports.Go(func() { l.report(t, p, batchAt(source, ms+int64(i), round)) })
		}
		reports.Wait()
	}
}

// batchAt returns a batch that sometimes has a late sample, whose slice has been or is being
// ground.
func batchAt(source string, ms int64, round int) []process.Sample {
	return faults.Batch(source, ms, round, 7*time.Second)
}

func (l *ledger) report(t *testing.T, p *process.Process, batch []process.Sample) {
	l.reports.Add(1)
	retry := time.NewTicker(200 * time.Millisecond)
	defer retry.Stop()
	for {
		r, err := l.Report(t.Context(), p, batch)
		if err == nil {
			return
		}
		if r.Code != 0 && r.Code != http.StatusServiceUnavailable && r.Code != http.StatusTooManyRequests {
			t.Errorf("a report was answered: %s", err)
			return
		}
		l.again.Add(1)
		select {
		case <-p.Ended:
			return
		case <-t.Context().Done():
			return
		case <-retry.C:
		}
	}
}

// runsOfLastSlices returns the time of the newest run of a raw slice that is the last of a day.
func runsOfLastSlices(t *testing.T, p *process.Process) int64 {
	t.Helper()
	st, err := p.Status()
	if err != nil {
		return 0
	}
	newest := int64(0)
	for _, r := range st.Runs {
		if r.Bucket == "raw" && (r.Slice+ladder[0].Milliseconds())%top.Milliseconds() == 0 {
			newest = max(newest, r.Slice)
		}
	}
	return newest
}

// rowTimes returns the slices that have rows of one level.
func rowTimes(p *process.Process, width time.Duration) (map[int64]bool, error) {
	query := process.Within(process.OfTests, time.Hour)
	query.Set("level", process.LevelName(width))
	rows, err := process.Lines[wire.Row](p, "/api/v1/rollups", query)
	out := map[int64]bool{}
	for _, r := range rows {
		out[r.Time] = true
	}
	return out, err
}

// sameIDs checks that the tables have one id for each series, and as many series as were sent. The
// export shows that both processes write under that id, since it reads by id.
func sameIDs(t *testing.T, pl place, sent int) {
	t.Helper()
	type series struct{ source, metric string }
	session := pl.connect(t)
	read := func(table string) (out map[series]int64) {
		process.Eventually(t, "a read at all nodes, which may have just restarted", func() error {
			owner := map[int64]series{}
			out = map[series]int64{}
			it := session.Query("SELECT schedule_id, labels FROM " + pl.keyspace + "." + table).Consistency(gocql.All).Iter()
			var id int64
			var labels map[string]string
			for it.Scan(&id, &labels) {
				k := series{labels["source"], labels["__name__"]}
				assert.NotContains(t, out, k, "%s: two ids", table)
				assert.NotContains(t, owner, id, "%s: two series", table)
				out[k], owner[id] = id, k
			}
			return it.Close()
		})
		return out
	}
	bySource, byBlock := read("schedules"), read("schedules_by_block")
	assert.Equal(t, bySource, byBlock)
	assert.Len(t, bySource, sent)
}
