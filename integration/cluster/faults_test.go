package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
)

const (
	// failing is the share of requests to the store that fail by injection.
	failing = 0.005
	// furthest is the maximum offset of a clock. A process is refused from half a second on, with
	// the timing used here, and a busy machine reads the servers' clocks late.
	furthest = 300 * time.Millisecond
)

// TestFaults runs two ingests and two aggregators over three nodes. Processes and nodes are killed
// and paused, one node or all at once. Connections to the ingests and to the nodes are slow or
// broken at times. Requests to the nodes fail, before or after they take effect. Writes land on one
// node only, processes with other settings start, and no two clocks agree. Senders give up and send
// again. Everything acknowledged must be there once, every roll-up right, and nothing left to
// grind.
func TestFaults(t *testing.T) {
	var (
		s faults.Senders
		f fleet
	)
	report := faults.Report{Senders: &s}
	t.Cleanup(func() { // runs after the processes' output is printed
		report.Injected = f.injected()
		t.Log(&report)
	})
	start, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	faulty, err := programs.Faulty()
	require.NoError(t, err)
	nodes, err := cassandratest.StartCluster(start, 3, cassandratest.Options{Durable: true, Proxied: true})
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	var toNodes, toIngests []*faults.Link
	for i := range 3 {
		toNodes = append(toNodes, faults.NewLink(t, nodes.Node(i).Announced(), nodes.Node(i).Addr()))
	}
	pl := placeIn(nodes.Hosts())
	// Blocks share storage groups, two or four a group, so that chunks of one group come from several and are packed together.
	group := 16 << (*faults.Seed % 2)
	pl.apply(t, "--rollups", "4s,8s,16s", "--block-size", "8", "--group-size", strconv.Itoa(group), "--index-partitions", "4")

	ingests, aggregators := make([]*member, 2), make([]*member, 2)
	for i := range 2 {
		ingests[i] = f.join(t, pl, faulty.Ingest)
		aggregators[i] = f.join(t, pl, faulty.Aggregator)
		toIngests = append(toIngests, faults.NewLink(t, "127.0.0.1:0", ingests[i].address()))
		ingests[i].moved = toIngests[i].LeadTo
	}
	for _, m := range slices.Concat(ingests, aggregators) {
		m.now().Ready() // the settings are the fleet's, not those of a stranger
	}
	kinds := slices.Concat(
		killedOrStopped("ingest", ingests, 4*time.Second),
		killedOrStopped("aggregator", aggregators, 8*time.Second), // longer than its leases last
		faults.LinkKinds("connections to ingest", 4*time.Second, toIngests),
		faults.LinkKinds("connections to node", 6*time.Second, toNodes),
		[]faults.Kind{
			{Name: "node killed", Slots: []string{"nodes", "nodes", "nodes"}, Longest: 4 * time.Second, Inject: func(i int) func() {
				nodes.Node(i).Kill()
				return func() {
					assert.NoError(t, nodes.Node(i).Restart(t.Context()))
					assert.NoError(t, nodes.AwaitUp(t.Context()))
				}
			}},
			{Name: "node stopped", Slots: []string{"nodes", "nodes", "nodes"}, Longest: 6 * time.Second, Inject: func(i int) func() {
				assert.NoError(t, nodes.Node(i).Pause())
				return func() { assert.NoError(t, nodes.Node(i).Resume()) }
			}},
			{Name: "all nodes stopped", Slots: []string{"nodes"}, Longest: 8 * time.Second, Inject: func(int) func() {
				for i := range 3 {
					assert.NoError(t, nodes.Node(i).Pause())
				}
				return func() {
					for i := range 3 {
						assert.NoError(t, nodes.Node(i).Resume())
					}
				}
			}},
			// A write that lands on one node while the others are paused has failed. Then the
			// others continue without that node, and in the end it comes back.
			{Name: "written on one node only", Slots: []string{"nodes", "nodes", "nodes"}, Longest: 4 * time.Second, Inject: func(i int) func() {
				others := []int{(i + 1) % 3, (i + 2) % 3}
				for _, other := range others {
					assert.NoError(t, nodes.Node(other).Pause())
				}
				before := s.Refused.Load()
				process.Eventually(t, "reports to fail", func() error {
					if s.Refused.Load() < before+3 { // from each sender
						return errors.New("they do not")
					}
					return nil
				})
				assert.NoError(t, nodes.Node(i).Pause())
				for _, other := range others {
					assert.NoError(t, nodes.Node(other).Resume())
				}
				return func() { assert.NoError(t, nodes.Node(i).Resume()) }
			}},
			{Name: "a process with other settings", Slots: []string{"stranger"}, Longest: time.Second, Inject: func(int) func() {
				p := pl.ingest(t, "--late-grace", "100ms")
				return func() {
					assert.Equal(t, 1, p.ExitCode())
					assert.Contains(t, p.Stderr.String(), " (100ms requested): leave the options out, or stop all processes")
				}
			}},
		})

	to := []*process.Process{{URL: "http://" + toIngests[0].Addr()}, {URL: "http://" + toIngests[1].Addr()}}
	s.Start(t, 3, func(rng *rand.Rand) *process.Process { return to[rng.IntN(len(to))] }, []time.Duration{7 * time.Second, 40 * time.Second})
	report.Faults = faults.Live(t, kinds)
	s.Stop(t)
	for _, m := range slices.Concat(ingests, aggregators) {
		m.now().Ready()
	}
	// After an hour the check asks for so much that one of its requests fails at any process that has requests fail.
	reader := pl.ingest(t, timing...)
	reader.Ready()
	process.Eventually(t, "everything", func() error { return s.Oracle.Check(reader) })
	reader.Stop()
	for _, m := range slices.Concat(ingests, aggregators) {
		m.now().Stop()
	}
	left := pl.left(t)
	report.Left = &left
	assert.Zero(t, left)
	chunks, packed := pl.chunks(t)
	t.Logf("groups of %d schedules: %d raw chunks, %d of them packed", group, chunks, packed)
	assert.NotEmpty(t, f.injected()) // which kinds is chance
}

// fleet holds all processes that ever ran.
type fleet struct {
	mu  sync.Mutex
	all []*process.Process
}

// member is a process of a fleet, which may be replaced.
type member struct {
	begin func() *process.Process
	at    atomic.Pointer[process.Process]
	// moved receives the process's address when it changes.
	moved func(address string)
}

// join starts a process. Each start has its own clock and its own failing requests.
func (f *fleet) join(t *testing.T, pl place, program string) *member {
	t.Helper()
	f.mu.Lock()
	rng := rand.New(rand.NewPCG(*faults.Seed, uint64(len(f.all))+100))
	f.mu.Unlock()
	m := &member{moved: func(string) {}}
	m.begin = func() *process.Process {
		// Mostly near the maximum.
		offset := furthest - time.Duration(rng.Int64N(int64(furthest))/5)
		if rng.IntN(2) == 0 {
			offset = -offset
		}
		cmd := exec.CommandContext(t.Context(), program,
			slices.Concat([]string{"--listen", "127.0.0.1:0", "--heartbeat-timeout", "3s"}, timing, pl.flags())...)
		cmd.Env = []string{
			fmt.Sprintf("QUERN_CLOCK_OFFSET=%s", offset),
			fmt.Sprintf("QUERN_FAULT_RATE=%g", failing),
			fmt.Sprintf("QUERN_FAULT_SEED=%d", rng.Uint64()),
		}
		p := process.Start(t, cmd)
		f.mu.Lock()
		f.all = append(f.all, p)
		f.mu.Unlock()
		p.URL = "http://" + p.Wrote(`msg=listening address=(\S+)`)[1] // it may take long until there are nodes
		return p
	}
	m.next()
	return m
}

func (m *member) now() *process.Process { return m.at.Load() }

func (m *member) address() string { return strings.TrimPrefix(m.now().URL, "http://") }

// next starts the process again.
func (m *member) next() {
	m.at.Store(m.begin())
	m.moved(m.address())
}

// killedOrStopped returns the kinds of faults of processes.
func killedOrStopped(name string, members []*member, stopped time.Duration) []faults.Kind {
	var slots []string
	for i := range members {
		slots = append(slots, fmt.Sprintf("%s %d", name, i))
	}
	return []faults.Kind{
		{Name: name + " killed", Slots: slots, Longest: 2 * time.Second, Inject: func(i int) func() {
			members[i].now().Kill()
			return members[i].next
		}},
		{Name: name + " stopped", Slots: slots, Longest: stopped, Inject: func(i int) func() {
			p := members[i].now()
			p.Signal(syscall.SIGSTOP)
			return func() { p.Signal(syscall.SIGCONT) }
		}},
	}
}

var saysInjected = regexp.MustCompile(`msg="a fault is injected".* kind=(\w+)`)

// injected returns how many requests failed in each way.
func (f *fleet) injected() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := map[string]int{}
	for _, p := range f.all {
		for _, m := range saysInjected.FindAllStringSubmatch(p.Stderr.String(), -1) {
			count[m[1]]++
		}
	}
	return count
}

// chunks returns how many raw chunks there are, and how many of them are packed. In a short run few are: chunks settle after half a
// minute, and a request that fails by injection interrupts packing for a minute.
func (pl place) chunks(t *testing.T) (all, packed int) {
	t.Helper()
	rows := pl.connect(t).Query(fmt.Sprintf(`SELECT chunk_id FROM %s.raw_metrics`, pl.keyspace)).Iter()
	for id := (gocql.UUID{}); rows.Scan(&id); all++ {
		if blocks.ID(id).Packed() {
			packed++
		}
	}
	require.NoError(t, rows.Close())
	return all, packed
}

// left returns what cache and index still hold, and how many slices are not complete.
func (pl place) left(t *testing.T) oracle.Left {
	t.Helper()
	session := pl.connect(t)
	count := func(cql string) (n int) {
		rows := session.Query(fmt.Sprintf(cql, pl.keyspace)).Iter()
		for row := map[string]any{}; rows.MapScan(row); row = map[string]any{} {
			if row["bucket"] == -1 {
				continue // no slice: it keeps the newest that a run has begun
			}
			if complete, known := row["complete"]; !known || complete != true {
				t.Logf("left: %v", row)
				n++
			}
		}
		require.NoError(t, rows.Close())
		return n
	}
	return oracle.Left{
		Marks:       count(`SELECT bucket, time_slice, start_schedule_id, time, mark_id, kind, attempt, last_error, WRITETIME(kind) AS written FROM %s.metrics_cache_index`),
		CacheBlocks: count(`SELECT DISTINCT bucket, time_slice, start_schedule_id FROM %s.metrics_cache`),
		OpenSlices:  count(`SELECT bucket, time_slice, complete FROM %s.slices`),
	}
}
