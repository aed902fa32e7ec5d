package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// ledger is what the server has acknowledged.
type ledger struct {
	mu      sync.Mutex
	samples []process.Sample
}

func (l *ledger) add(s []process.Sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples = append(l.samples, s...)
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.samples)
}

// send reports for one source until the server is gone, and notes what was acknowledged.
func (l *ledger) send(p *process.Process, source string, series int) {
	for last := int64(0); ; {
		ms := max(time.Now().UnixMilli(), last+1)
		last = ms
		batch := make([]process.Sample, series)
		for i := range batch {
			batch[i] = process.Sample{Source: source, Metric: fmt.Sprintf("it_%02d", i), Ms: ms, Value: float64(ms%100_000) + float64(i)/4}
		}
		if _, err := p.Report(batch); err != nil {
			return
		}
		l.add(batch)
	}
}

// TestKill kills the server while reports come in, several times over. Invariant 1:
// what was acknowledged is there. Invariant 2: the roll-ups are those of what is there.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var acknowledged ledger
	for round := range 4 {
		p := serve(t, dir, seconds...)
		before := acknowledged.len()
		var senders sync.WaitGroup
		for i := range 4 {
			senders.Go(func() { acknowledged.send(p, fmt.Sprintf("source-%d", i), 10) })
		}
		// Rounds of different lengths meet runs at different places.
		process.Eventually(t, "acknowledgements", func() error {
			if n := acknowledged.len() - before; n < 400*(round+1) {
				return fmt.Errorf("only %d", n)
			}
			return nil
		})
		p.Kill()
		senders.Wait()
	}
	p := serve(t, dir, seconds...)
	stored, err := p.Export(process.OfTests, time.Hour)
	require.NoError(t, err)
	require.Empty(t, missing(acknowledged.samples, stored), "acknowledged and lost")
	t.Logf("%d acknowledged, %d stored", acknowledged.len(), len(stored))
	process.Eventually(t, "roll-ups", func() error { return p.Exact(stored, secondsLadder) })
	st, err := p.Status()
	require.NoError(t, err)
	assert.Empty(t, st.Errors)
	p.Stop()
}

// missing are those of want that are not among got.
func missing(want, got []process.Sample) []process.Sample {
	there := make(map[process.Sample]bool, len(got))
	for _, s := range got {
		there[s] = true
	}
	var out []process.Sample
	for _, s := range want {
		if !there[s] {
			out = append(out, s)
		}
	}
	return out
}
