package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/process"
)

// TestFaults has two ingests and two aggregators over three nodes killed and stopped, and the nodes too, one of them
// or all at once, under senders that give up and send again. Everything acknowledged is there once, every roll-up is right, and
// no slice is left open.
func TestFaults(t *testing.T) {
	start, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	nodes, err := cassandratest.StartCluster(start, 3, cassandratest.Options{CommitlogSync: cassandratest.CommitlogBatch})
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	pl := placeIn(nodes.Hosts())
	pl.apply(t, "--rollups", "4s,8s,16s", "--block-size", "8", "--group-size", "64", "--index-partitions", "4")
	args := append(slices.Clone(timing), "--heartbeat-timeout", "3s")

	var kinds []faults.Kind
	// running is a process that may be killed and stopped; a killed one is replaced.
	running := func(name string, begin func() *process.Process, stopped time.Duration) *atomic.Pointer[process.Process] {
		var at atomic.Pointer[process.Process]
		next := func() {
			p := begin()
			at.Store(p)
		}
		next()
		kinds = append(kinds, faults.Kind{Name: name + " killed", Slot: name, Longest: 2 * time.Second, Inject: func() func() {
			at.Load().Kill()
			return next
		}}, faults.Kind{Name: name + " stopped", Slot: name, Longest: stopped, Inject: func() func() {
			p := at.Load()
			p.Signal(syscall.SIGSTOP)
			return func() { p.Signal(syscall.SIGCONT) }
		}})
		return &at
	}
	var ingests, aggregators []*atomic.Pointer[process.Process]
	for i := range 2 {
		ingests = append(ingests, running(fmt.Sprintf("ingest %d", i), func() *process.Process {
			p := pl.ingest(t, args...)
			p.URL = "http://" + p.Wrote(`msg=listening address=(\S+)`)[1] // it may be long until there are nodes
			return p
		}, 4*time.Second))
		// Longer than its leases last.
		aggregators = append(aggregators, running(fmt.Sprintf("aggregator %d", i), func() *process.Process { return pl.aggregator(t, args...) }, 8*time.Second))
	}
	for i := range 3 {
		kinds = append(kinds, faults.Kind{Name: fmt.Sprintf("node %d killed", i), Slot: "nodes", Longest: 4 * time.Second, Inject: func() func() {
			nodes.Node(i).Kill()
			return func() {
				assert.NoError(t, nodes.Node(i).Restart(t.Context()))
				assert.NoError(t, nodes.AwaitUp(t.Context()))
			}
		}})
	}
	kinds = append(kinds, faults.Kind{Name: "all nodes stopped", Slot: "nodes", Longest: 8 * time.Second, Inject: func() func() {
		for i := range 3 {
			assert.NoError(t, nodes.Node(i).Pause())
		}
		return func() {
			for i := range 3 {
				assert.NoError(t, nodes.Node(i).Resume())
			}
		}
	}})

	var s faults.Senders
	s.Start(t, 3, func(rng *rand.Rand) *process.Process { return ingests[rng.IntN(len(ingests))].Load() }, []time.Duration{7 * time.Second, 40 * time.Second})
	n := faults.Live(t, kinds)
	s.Stop()
	for _, p := range slices.Concat(ingests, aggregators) {
		p.Load().Ready()
	}
	for _, p := range ingests {
		process.Eventually(t, "everything", func() error { return s.Oracle.Check(p.Load()) })
	}
	t.Logf("%d faults; %d samples of %d series in %d reports, %d attempts again, %d of them without an answer",
		n, s.Oracle.Len(), s.Oracle.Series(), s.Reports.Load(), s.Again.Load(), s.Impatient.Load())
	for _, p := range slices.Concat(ingests, aggregators) {
		p.Load().Stop()
	}
}
