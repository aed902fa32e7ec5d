package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// send reports for one source until the server is gone.
func send(o *oracle.Oracle, p *process.Process, source string, series int) {
	for last := int64(0); ; {
		ms := max(time.Now().UnixMilli(), last+1)
		last = ms
		batch := make([]process.Sample, series)
		for i := range batch {
			batch[i] = process.Sample{Source: source, Metric: fmt.Sprintf("it_%02d", i), Ms: ms, Value: float64(ms%100_000) + float64(i)/4}
		}
		if _, err := o.Report(p.Context(), p, batch); err != nil {
			return
		}
	}
}

// TestKill kills the server repeatedly while reports come in. Invariant 1: acknowledged samples are
// there. Invariant 2: the roll-ups match the samples that are there.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var sent oracle.Oracle
	for round := range 4 {
		p := serve(t, dir, seconds...)
		before := sent.Len()
		var senders sync.WaitGroup
		for i := range 4 {
			senders.Go(func() { send(&sent, p, fmt.Sprintf("source-%d", i), 10) })
		}
		// Rounds of different lengths interrupt runs at different points.
		process.Eventually(t, "acknowledgements", func() error {
			if n := sent.Len() - before; n < 400*(round+1) {
				return fmt.Errorf("only %d", n)
			}
			return nil
		})
		p.Kill()
		senders.Wait()
	}
	p := serve(t, dir, seconds...)
	require.NoError(t, sent.Raw(p))
	t.Logf("%d acknowledged", sent.Len())
	process.Eventually(t, "roll-ups", func() error { return sent.Check(p) })
	st, err := p.Status()
	require.NoError(t, err)
	assert.Empty(t, st.Errors)
	p.Stop()
}
