package integration

import (
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/process"
)

// TestFaults has one process over the embedded store killed, stopped and ended again and again under senders that
// give up and send again. Everything acknowledged is there once, and every roll-up is right.
func TestFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var at atomic.Pointer[process.Process]
	serve := func() {
		p := start(t, "serve", "--listen", "127.0.0.1:0", "--data-dir", dir,
			"--host-metrics=false", "--rollups", "4s,8s,16s", "--aggregation-delay", "2s", "--late-grace", "1s", "--block-size", "8")
		p.Ready()
		at.Store(p)
	}
	serve()
	kinds := []faults.Kind{
		{Name: "killed", Slot: "server", Longest: time.Second, Inject: func() func() {
			at.Load().Kill()
			return serve
		}},
		{Name: "stopped", Slot: "server", Longest: 6 * time.Second, Inject: func() func() {
			p := at.Load()
			p.Signal(syscall.SIGSTOP)
			return func() { p.Signal(syscall.SIGCONT) }
		}},
		{Name: "ended", Slot: "server", Longest: time.Second, Inject: func() func() {
			at.Load().Stop()
			return serve
		}},
	}
	var s faults.Senders
	s.Start(t, 3, func(*rand.Rand) *process.Process { return at.Load() }, []time.Duration{7 * time.Second, 40 * time.Second})
	n := faults.Live(t, kinds)
	s.Stop()
	process.Eventually(t, "everything", func() error { return s.Oracle.Check(at.Load()) })
	t.Logf("%d faults; %d samples of %d series in %d reports, %d attempts again, %d of them without an answer",
		n, s.Oracle.Len(), s.Oracle.Series(), s.Reports.Load(), s.Again.Load(), s.Impatient.Load())
	at.Load().Stop()
}
