package cluster

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// TestOneNodeOfThree pauses one node of three, delays its answers, and makes it lose packets.
// Reports are acknowledged all the while by the other nodes. All samples must be there, and every
// roll-up right.
func TestOneNodeOfThree(t *testing.T) {
	start, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	nodes, err := cassandratest.StartCluster(start, 3, cassandratest.Options{Proxied: true})
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	var links []*faults.Link
	for i := range 3 {
		links = append(links, faults.NewLink(t, nodes.Node(i).Announced(), nodes.Node(i).Addr()))
	}
	pl := placeIn(nodes.Hosts())
	pl.apply(t, "--rollups", "4s,8s,16s", "--block-size", "8", "--group-size", "64", "--index-partitions", "4")
	ingest, aggregator := pl.ingest(t, timing...), pl.aggregator(t, timing...)
	ready(ingest, aggregator)

	var s answers
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for i := range 4 {
		senders.Go(func() { s.send(t, ingest, i, stop) })
	}
	end := sync.OnceFunc(func() { close(stop); senders.Wait() })
	t.Cleanup(end)

	const enough = 200 // reports, at some 40 a second
	s.grows(t, enough)
	s.says(t, "all nodes well")
	for _, p := range []*process.Process{ingest, aggregator} {
		process.Eventually(t, "the clock of each node to be read", func() error {
			r, err := p.Get("/metrics", nil)
			for i := range 3 {
				want := fmt.Sprintf(`quern_cassandra_node_clock_offset_seconds{node=%q} `, nodes.Node(i).Announced())
				if err == nil && !strings.Contains(string(r.Body), want) {
					err = fmt.Errorf("no %s in %s", want, r.Body)
				}
			}
			return err
		})
	}

	frozen := nodes.Node(1)
	for round := range 2 {
		require.NoError(t, frozen.Pause())
		s.grows(t, enough)
		require.NoError(t, frozen.Resume())
		s.says(t, fmt.Sprintf("node frozen (%d)", round))
		process.Eventually(t, "the node to be asked again", func() error {
			r, err := ingest.Get("/metrics", nil)
			if want := fmt.Sprintf(`quern_cassandra_node_asked_last{node=%q} 0`, frozen.Announced()); err == nil && !strings.Contains(string(r.Body), want) {
				err = fmt.Errorf("no %s in %s", want, r.Body)
			}
			return err
		})
		s.says(t, "node back")
	}
	assert.Contains(t, ingest.Stderr.String(), `it is asked last until it recovers" component=cassandra node=`+frozen.Announced())
	assert.Contains(t, ingest.Stderr.String(), `msg="a Cassandra node answers again" component=cassandra node=`+frozen.Announced())

	for _, kind := range []string{"late", "lossy"} {
		heal := links[2].Suffer(kind)
		s.grows(t, enough)
		heal()
		s.says(t, "connections to a node "+kind)
	}
	require.NoError(t, process.Await(end), "reports are not acknowledged")
	process.Eventually(t, "everything", func() error { return s.Check(ingest) })
	t.Logf("%d reports were refused", s.refused)
	for _, p := range []*process.Process{ingest, aggregator} {
		p.Stop()
	}
	assert.Zero(t, pl.left(t))
}

// answers holds reports and the time at which each was acknowledged.
type answers struct {
	oracle.Oracle

	mu      sync.Mutex
	all     []answer
	said    int // the number of reports in earlier figures
	refused int
}

type answer struct {
	at   time.Time
	took time.Duration
}

func (s *answers) send(t *testing.T, to *process.Process, sender int, stop <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for round, lastMs := 0, int64(0); ; round++ {
		select {
		case <-stop:
			return
		case <-t.Context().Done():
			return
		case <-tick.C:
		}
		lastMs = max(time.Now().UnixMilli(), lastMs+1)
		// Now and then its series are new.
		batch := batchAt(fmt.Sprintf("sender-%d-%02d", sender, round/50), lastMs, round)
		begin := time.Now()
		for {
			r, err := s.Report(t.Context(), to, batch)
			if err == nil {
				break
			}
			if t.Context().Err() != nil {
				return
			}
			assert.Equal(t, http.StatusServiceUnavailable, r.Code, "%s", err)
			s.mu.Lock()
			s.refused++
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.all = append(s.all, answer{time.Now(), time.Since(begin)})
		s.mu.Unlock()
	}
}

// grows waits until n more reports have been acknowledged.
func (s *answers) grows(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.all)
	}
	want := count() + n
	process.Eventually(t, "acknowledgements", func() error {
		if is := count(); is < want {
			return fmt.Errorf("%d of %d", is, want)
		}
		return nil
	})
}

// says logs the figures since the last call.
func (s *answers) says(t *testing.T, of string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := s.all[s.said:]
	s.said = len(s.all)
	var took []time.Duration
	gap := time.Duration(0)
	for i, a := range some {
		took = append(took, a.took)
		if i > 0 {
			gap = max(gap, a.at.Sub(some[i-1].at))
		}
	}
	slices.Sort(took)
	if len(took) == 0 {
		return
	}
	p := func(q float64) time.Duration {
		return took[int(math.Ceil(q*float64(len(took))))-1].Round(time.Millisecond)
	}
	t.Logf("%-32s %4d reports acknowledged, p50 %s, p99 %s, longest %s; longest gap %s", of, len(took), p(0.5), p(0.99), p(1), gap.Round(time.Millisecond))
}
