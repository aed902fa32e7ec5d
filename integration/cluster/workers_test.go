package cluster

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

// TestWorkers runs two aggregators that share the work. One is paused until others have its shards,
// and continues. Then the other is killed, and a third one joins.
func TestWorkers(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	pl.apply(t, "--rollups", "4s,8s,16s", "--block-size", "8", "--index-partitions", "8")
	worker := func(id string) *process.Process {
		return pl.aggregator(t, slices.Concat(timing, aliveFor, []string{"--worker-id", id})...)
	}
	ingest, first, second := pl.ingest(t, timing...), worker("first"), worker("second")
	ready(ingest, first, second)
	sharedBy(t, ingest, "first", "second")
	var s stream
	s.start(t, ingest)
	first.Wrote(`msg=run .*bucket=raw`)
	second.Wrote(`msg=run .*bucket=raw`)

	first.Signal(syscall.SIGSTOP)
	sharedBy(t, ingest, "second")
	s.grows(t, 500)
	runsOn(t, second)
	first.Signal(syscall.SIGCONT)
	sharedBy(t, ingest, "first", "second")

	second.Kill()
	sharedBy(t, ingest, "first")
	s.grows(t, 500)
	runsOn(t, first)
	third := worker("third")
	third.Ready()
	sharedBy(t, ingest, "first", "third")
	third.Wrote(`msg=run .*bucket=raw`)

	s.end()
	s.complete(t, ingest, first)
	// Workers that come and go are no error. A request that was under way may have had a time-out.
	for _, e := range ingest.AwaitStatus().Errors {
		assert.Contains(t, e.Message, storage.ErrTimeout.Error())
	}
	running(t, ingest, first, third)

	// A worker that is told to end says so, and nobody waits for its heartbeat to expire.
	third.Stop()
	sharedBy(t, ingest, "first")
	first.Stop()
	ingest.Stop()
}

// TestNamesakes starts two aggregators with the same name. The second takes no part until the first
// has gone.
func TestNamesakes(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	pl.apply(t, "--rollups", "4s,8s,16s")
	args := slices.Concat(timing, aliveFor, []string{"--worker-id", "same"})
	ingest, first := pl.ingest(t, timing...), pl.aggregator(t, args...)
	ready(ingest, first)
	var s stream
	s.start(t, ingest)
	first.Wrote(`msg=run .*bucket=raw`)
	second := pl.aggregator(t, args...)
	second.Ready()
	second.Wrote(`uses the worker id same too: give each process its own --worker-id`)
	process.Eventually(t, "an error in the status", func() error {
		st, err := ingest.Status()
		if err == nil && len(st.Errors) == 0 {
			err = errors.New("none")
		}
		return err
	})
	assert.NotContains(t, second.Stderr.String(), "msg=run ")
	first.Kill()
	second.Wrote(`msg=run .*bucket=raw`)
	s.end()
	s.complete(t, ingest, second)
	second.Stop()
	ingest.Stop()
}

// sharedBy waits until exactly these workers have all shards.
func sharedBy(t *testing.T, p *process.Process, ids ...string) {
	t.Helper()
	process.Eventually(t, "shards of "+fmt.Sprint(ids), func() error {
		st, err := p.Status()
		if err != nil {
			return err
		}
		var owners []string
		for _, sh := range st.Shards {
			owners = append(owners, sh.Worker)
		}
		slices.Sort(owners)
		if owners = slices.Compact(owners); !slices.Equal(owners, ids) {
			return fmt.Errorf("they are shared by %q", owners)
		}
		return nil
	})
}

// runsOn waits until slices are completed that had not ended yet.
func runsOn(t *testing.T, p *process.Process) {
	t.Helper()
	was := newestRun(p.AwaitStatus())
	process.Eventually(t, "further runs", func() error {
		st, err := p.Status()
		if is := newestRun(st); err == nil && is < was+2*ladder[0].Milliseconds() {
			err = fmt.Errorf("%d after %d", is, was)
		}
		return err
	})
}

func newestRun(st wire.Status) (sliceMs int64) {
	for _, r := range st.Runs {
		if r.Bucket == "raw" {
			sliceMs = max(sliceMs, r.Slice)
		}
	}
	return sliceMs
}
