package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
)

// TestWeather takes the only server away and brings it back: before the programs start, while
// reports come in, and while slices close. The same processes survive it. Then one process that
// does everything replaces them, and is itself stopped and restarted.
func TestWeather(t *testing.T) {
	t.Parallel()
	// The only copy is killed repeatedly, so what it acknowledged must be on its disk.
	server := ownServer(t, cassandratest.Options{CommitlogSync: cassandratest.CommitlogBatch})
	pl := placeIn(server.Hosts())
	pl.apply(t, "--rollups", "4s,8s,16s", "--group-size", "64", "--index-partitions", "4")
	begin := time.Now()
	at := func(what string) { t.Logf("%3.0fs %s", time.Since(begin).Seconds(), what) }

	require.NoError(t, server.Kill())
	ingest, aggregator := pl.ingest(t, timing...), pl.aggregator(t, timing...)
	both := []*process.Process{ingest, aggregator}
	for _, p := range both {
		p.URL = "http://" + p.Wrote(`msg=listening address=(\S+)`)[1]
		p.Wrote(`level=WARN msg="no Cassandra node of ` + pl.hosts[0] + ` answers; trying again in `)
		require.NoError(t, readiness(p, http.StatusServiceUnavailable))
	}
	require.NoError(t, server.Restart(t.Context()))
	ready(both...)
	at("ready, by themselves")

	var s stream
	s.start(t, ingest)
	s.grows(t, 500)
	require.NoError(t, server.Kill())
	process.Eventually(t, "reports are refused", func() error {
		if s.refused.Load() == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	become(t, http.StatusServiceUnavailable, both...)
	require.NoError(t, server.Restart(t.Context()))
	s.grows(t, 500)
	become(t, http.StatusOK, both...)
	at("reports are taken again")

	failures := attemptsThatFailed(aggregator)
	require.NoError(t, server.Kill())
	closing := time.Now().Truncate(top).Add(top)
	process.Eventually(t, "the end of a day, and a run that fails", func() error {
		if is := attemptsThatFailed(aggregator); time.Now().Before(closing) || is == failures {
			return fmt.Errorf("%s to go, %d attempts failed", time.Until(closing), is)
		}
		return nil
	})
	require.NoError(t, server.Restart(t.Context()))
	s.grows(t, 500)
	s.end()
	s.complete(t, ingest, aggregator)
	at("the runs are made good")
	running(t, both...)
	for _, p := range both {
		p.Stop()
		assert.Contains(t, p.Stderr.String(), "draining")
		assert.NotContains(t, p.Stderr.String(), "there is only one copy of each row")
	}

	one := pl.serve(t, timing...)
	one.Ready()
	s.start(t, one)
	s.grows(t, 500)
	one.Stop() // with reports under way, which are sent again if they are not answered
	assert.Contains(t, one.Stderr.String(), "draining")
	one = pl.serve(t, timing...)
	one.Ready()
	s.to.Store(one)
	s.grows(t, 500)
	s.end()
	s.complete(t, one, one)
	one.Stop()
	at(fmt.Sprintf("%d samples are there; %d reports were refused", s.Len(), s.refused.Load()))
}

// serve starts one process that does everything.
func (pl place) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return pl.quern(t, append([]string{"serve", "--store", "cassandra", "--host-metrics=false", "--listen", "127.0.0.1:0"}, args...)...)
}

// readiness returns nil if the process is alive and its readiness is as wanted.
func readiness(p *process.Process, want int) error {
	for path, want := range map[string]int{"/-/healthy": http.StatusOK, "/-/ready": want} {
		r, err := p.Get(path, nil)
		if err != nil {
			return err
		}
		if r.Code != want {
			return fmt.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
	return nil
}

// become waits until the readiness of the processes is as wanted.
func become(t *testing.T, want int, ps ...*process.Process) {
	t.Helper()
	for _, p := range ps {
		process.Eventually(t, fmt.Sprintf("%s says %d", p.Cmd, want), func() error { return readiness(p, want) })
	}
}

// attemptsThatFailed returns how often the aggregator has postponed its work.
func attemptsThatFailed(p *process.Process) int {
	return strings.Count(p.Stderr.String(), "run aborted; retrying later")
}

// stream sends reports to the current process, each until it is acknowledged.
type stream struct {
	ledger

	to      atomic.Pointer[process.Process]
	refused atomic.Int64
	started int
	// end stops new reports, and waits until all are acknowledged.
	end func()
}

func (s *stream) start(t *testing.T, to *process.Process) {
	s.to.Store(to)
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for range 3 {
		s.started++
		source := fmt.Sprintf("sender-%d", s.started)
		senders.Go(func() { s.run(t, source, stop) })
	}
	end := sync.OnceFunc(func() { close(stop); senders.Wait() })
	s.end = func() { require.NoError(t, process.Await(end), "reports are not acknowledged") }
	t.Cleanup(end) // runs after what the senders wait for is over
}

func (s *stream) run(t *testing.T, source string, stop <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for round, lastMs := 0, int64(0); ; round++ {
		lastMs = max(time.Now().UnixMilli(), lastMs+1)
		batch := batchAt(source, lastMs, round)
		for !s.report(t, batch) {
			select {
			case <-tick.C:
			case <-t.Context().Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-stop:
			return
		case <-t.Context().Done():
			return
		}
	}
}

// report returns whether a report was acknowledged.
func (s *stream) report(t *testing.T, batch []process.Sample) bool {
	r, err := s.Report(t.Context(), s.to.Load(), batch)
	switch {
	case err == nil:
		return true
	case r.Code == http.StatusServiceUnavailable, r.Code == http.StatusTooManyRequests:
		s.refused.Add(1)
		assert.NotEmpty(t, r.Header.Get("Retry-After"), "%s", r.Body)
	default:
		// A draining process closes connections.
		assert.Zero(t, r.Code, "%s", r.Body)
	}
	return false
}

// complete waits until every roll-up is there and right. It also checks that everything
// acknowledged is stored, once.
func (s *stream) complete(t *testing.T, reader, aggregator *process.Process) {
	t.Helper()
	// After an outage there is a wait of up to half a minute, and then much to catch up with.
	process.Eventually(t, "roll-ups", func() error { return s.Check(reader) })
	for _, b := range aggregator.AwaitStatus().Buckets {
		assert.Empty(t, b.Outstanding, b.Bucket)
	}
}
