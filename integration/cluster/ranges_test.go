package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// shared lists the partitions that every process needs: the table, its key columns, and the keys.
var shared = []struct {
	table, columns, names string
	keys                  []string
}{
	{"settings", "name text", "name", []string{"'schema_version'", "'store'", "'next_schedule_id'", "'home_data_center'"}},
	{"ring", "ring int", "ring", []string{"0"}}, // shards, workers
	{"items", "kind text", "kind", []string{"'metric'"}},
	{"slices", "bucket int", "bucket", []string{"-1", "0", "1"}},
}

// tokensOfShared returns the tokens of the shared partitions, ascending.
func tokensOfShared(t *testing.T, pl place) (tokens []int64) {
	t.Helper()
	session := pl.connect(t)
	run := func(cql string) { require.NoError(t, session.Query(cql).Exec(), cql) }
	run(`CREATE KEYSPACE keys WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}`)
	for _, e := range shared {
		run(fmt.Sprintf("CREATE TABLE keys.%s (%s, PRIMARY KEY ((%s)))", e.table, e.columns, e.names))
		for _, key := range e.keys {
			run(fmt.Sprintf("INSERT INTO keys.%s (%s) VALUES (%s)", e.table, e.names, key))
		}
		rows := session.Query(fmt.Sprintf("SELECT token(%s) FROM keys.%s", e.names, e.table)).Iter()
		for token := int64(0); rows.Scan(&token); {
			tokens = append(tokens, token)
		}
		require.NoError(t, rows.Close())
	}
	slices.Sort(tokens)
	return tokens
}

// giveTheGap moves the nodes' tokens so that node 1 owns the largest gap between the given tokens, at
// most an eighth of the ring. The other nodes share the rest.
func giveTheGap(t *testing.T, nodes *cassandratest.Cluster, tokens []int64) {
	t.Helper()
	first, gap := 0, uint64(0)
	for i := range len(tokens) - 1 { // skips the gap across the ring's seam
		if d := uint64(tokens[i+1]) - uint64(tokens[i]); d > gap {
			first, gap = i, d
		}
	}
	begin, end := tokens[first], tokens[first+1]
	if eighth := uint64(1) << 61; gap > eighth {
		gap, begin = eighth, end-1-int64(eighth)
	}
	move := func(node int, token int64) {
		require.NoError(t, nodes.AwaitUp(t.Context()), "so that it moves")
		_, err := nodes.Node(node).Nodetool(t.Context(), "move", "--", fmt.Sprint(token))
		require.NoError(t, err)
	}
	// A node's range ends at its token. Node 2 gets half of the rest.
	third := begin - int64((math.MaxUint64-gap)/2)
	move(1, end-1)
	move(2, third)
	move(0, begin)
	t.Logf("node 1 has %.0f %% of the ring", float64(gap)/math.MaxUint64*100)
}

// TestOneTokenRangeAway kills one node of three that holds the only copy of its token range. Reports
// to blocks on the other nodes are acknowledged, and these blocks are ground. Reports to blocks on the
// killed node are answered 503. An ingest process and an aggregator that start meanwhile do the same. When
// the node is back, all work is made up for, and every roll-up is exact.
func TestOneTokenRangeAway(t *testing.T) {
	start, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	nodes, err := cassandratest.StartCluster(start, 3, cassandratest.Options{Durable: true})
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	pl := placeIn(nodes.Hosts())
	// Only one node is asked: another may not know a new table yet.
	giveTheGap(t, nodes, tokensOfShared(t, place{hosts: nodes.Hosts()[:1], direct: true}))
	require.NoError(t, nodes.AwaitUp(start))
	// A write that times out while nobody knows yet that the node is dead would come to light as a hint
	// after the runs, with marks that nobody reads any more. TestLandedOnOneCopy has that case.
	for _, node := range []int{0, 2} {
		_, err := nodes.Node(node).Nodetool(start, "disablehandoff")
		require.NoError(t, err)
	}
	pl.apply(t, "--replication", "datacenter1=1", "--rollups", "16s,32s", "--block-size", "8", "--group-size", "8", "--index-partitions", "8")
	ingest, aggregator := pl.ingest(t, timing...), pl.aggregator(t, timing...)
	ready(ingest, aggregator)

	const sources = 24 // of each ingest process
	var s scattered
	stop := make(chan struct{})
	var senders sync.WaitGroup
	send := func(to *process.Process, prefix string) {
		for i := range sources {
			senders.Go(func() { s.send(t, to, fmt.Sprintf("%s-%02d", prefix, i), stop) })
		}
	}
	end := sync.OnceFunc(func() { close(stop); senders.Wait() })
	t.Cleanup(end)
	send(ingest, "before")
	process.Eventually(t, "all sources to be acknowledged", func() error { return s.acked(sources) })

	logged := len(nodes.Node(0).Log())
	nodes.Node(1).Kill()
	process.Eventually(t, "the others to notice", func() error {
		if log := nodes.Node(0).Log()[logged:]; !strings.Contains(log, "is now DOWN") {
			return errors.New(log)
		}
		return nil
	})
	s.forget()
	logged = len(aggregator.Stderr.String())
	process.Eventually(t, "some reports to be acknowledged, and others refused", func() error { return s.parted(t, "before") })
	ran := regexp.MustCompile(`msg=run .* bucket=raw .* blocks=[1-9]`)
	runs := func(worker *process.Process, logged int) error {
		if n := len(ran.FindAllString(worker.Stderr.String()[logged:], -1)); n < 3 {
			return fmt.Errorf("%d runs", n)
		}
		return nil
	}
	process.Eventually(t, "runs of the blocks elsewhere", func() error { return runs(aggregator, logged) })

	aggregator.Kill()
	joined, successor := pl.ingest(t, timing...), pl.aggregator(t, timing...)
	ready(joined, successor)
	send(joined, "meanwhile")
	process.Eventually(t, "some reports to the new process to be acknowledged, and others refused", func() error { return s.parted(t, "meanwhile") })
	process.Eventually(t, "runs of the new aggregator", func() error { return runs(successor, 0) })

	require.NoError(t, nodes.Node(1).Restart(t.Context()))
	require.NoError(t, nodes.AwaitUp(t.Context()))
	s.forget()
	process.Eventually(t, "all sources to be acknowledged again", func() error { return s.acked(2 * sources) })
	require.NoError(t, process.Await(end), "reports are not acknowledged")
	process.Eventually(t, "everything", func() error { return s.Check(ingest) })
	running(t, ingest, joined, successor)
	for _, p := range []*process.Process{ingest, joined, successor} {
		p.Stop()
	}
	assert.Zero(t, pl.left(t))
}

// scattered sends reports of many sources and counts the outcomes by source.
type scattered struct {
	oracle.Oracle

	mu sync.Mutex
	by map[string]outcomes
}

type outcomes struct{ acked, refused int }

func (s *scattered) note(source string, acked, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]outcomes{}
	}
	o := s.by[source]
	s.by[source] = outcomes{o.acked + acked, o.refused + refused}
}

func (s *scattered) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.by)
}

// parted returns nil once some sources of a name have had reports acknowledged, and others refused.
func (s *scattered) parted(t *testing.T, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok, refused := 0, 0
	for source, o := range s.by {
		switch {
		case !strings.HasPrefix(source, name):
		case o.acked >= 3:
			ok++
		case o.refused >= 3:
			refused++
		}
	}
	if ok < 3 || refused == 0 {
		return fmt.Errorf("%d sources go on, %d do not", ok, refused)
	}
	t.Logf("without node 1, %d sources called %q go on and %d do not", ok, name, refused)
	return nil
}

// acked returns nil once each source has had a report acknowledged.
func (s *scattered) acked(sources int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, o := range s.by {
		if o.acked > 0 {
			n++
		}
	}
	if n < sources {
		return fmt.Errorf("%d of %d", n, sources)
	}
	return nil
}

func (s *scattered) send(t *testing.T, to *process.Process, source string, stop <-chan struct{}) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for lastMs := int64(0); ; {
		lastMs = max(time.Now().UnixMilli(), lastMs+1)
		var batch []process.Sample
		for i := range 8 {
			batch = append(batch, process.Sample{Source: source, Metric: fmt.Sprintf("it_%d", i), Ms: lastMs, Value: float64(lastMs % 1024)})
		}
		for {
			r, err := s.Report(t.Context(), to, batch)
			if err == nil {
				break
			}
			if t.Context().Err() != nil {
				return
			}
			if !slices.Contains([]int{http.StatusServiceUnavailable, http.StatusTooManyRequests}, r.Code) {
				t.Error(errors.Join(errors.New("a report was answered"), err))
				return
			}
			s.note(source, 0, 1)
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
		}
		s.note(source, 1, 0)
		select {
		case <-tick.C:
		case <-stop:
			return
		case <-t.Context().Done():
			return
		}
	}
}
