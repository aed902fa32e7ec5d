package integration

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/faults"
	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/storage/pebble"
)

// TestFaults runs one process over the embedded store. The process is killed, stopped and ended
// repeatedly, its disk is full at times, and its clock and retention change with restarts. Its
// connections are slow or broken. Senders give up and send again. Everything acknowledged must be
// there once, every roll-up right, and nothing left to grind.
func TestFaults(t *testing.T) {
	t.Parallel()
	const ageCap = 8 * time.Second
	const farOff = 9 * 24 * time.Hour
	s := faults.Senders{TooOld: true}
	report := faults.Report{Senders: &s}
	t.Cleanup(func() { t.Log(&report) }) // runs after the processes' output is printed
	d := smallDisk(t, 64+int(faults.Length.Minutes())*16)
	full := d != nil
	if !full {
		dir := t.TempDir()
		d = &disk{dir: dir, inside: dir}
	}
	programs, err := faulty()
	require.NoError(t, err)
	d.program = programs.Quern
	link := faults.NewLink(t, "127.0.0.1:0", "127.0.0.1:1")
	var at atomic.Pointer[process.Process]
	args := []string{"--rollups", "4s,8s,16s", "--aggregation-delay", "2s", "--late-grace", "1s", "--block-size", "8", "--age-cap", ageCap.String()}
	ready := func(p *process.Process) {
		at.Store(p)
		p.Ready()
		link.LeadTo(strings.TrimPrefix(p.URL, "http://"))
	}
	serve := func() { ready(d.serve(t, args...)) }
	serve()
	// restart ends the process and starts another in its place.
	restart := func(p func() *process.Process) {
		at.Load().Stop()
		ready(p())
	}
	// off restarts the process with a wrong clock. heal restarts it with the right one.
	off := func(by time.Duration) (heal func()) {
		restart(func() *process.Process { return d.serveAt(t, by, args...) })
		return func() { restart(func() *process.Process { return d.serve(t, args...) }) }
	}
	keeping := func(raw string) {
		restart(func() *process.Process { return d.serve(t, append(slices.Clone(args), "--retention", "raw="+raw)...) })
	}
	// Alternately ahead within the age cap, and behind.
	some, other := 6*time.Second, -20*time.Second
	goOn := func() { ready(d.goOn(t, at.Load(), args...)) }

	server := []string{"server"}
	kinds := append(faults.LinkKinds("connections", 4*time.Second, []*faults.Link{link}),
		faults.Kind{Name: "killed", Slots: server, Longest: time.Second, Inject: func(int) func() {
			at.Load().Kill()
			return serve
		}},
		faults.Kind{Name: "stopped", Slots: server, Longest: 6 * time.Second, Inject: func(int) func() {
			p := at.Load()
			p.Signal(syscall.SIGSTOP)
			return func() { p.Signal(syscall.SIGCONT) }
		}},
		faults.Kind{Name: "ended", Slots: server, Longest: time.Second, Inject: func(int) func() {
			at.Load().Stop()
			return serve
		}},
		faults.Kind{Name: "restarted with a clock off by seconds", Slots: server, Longest: 3 * time.Second, Inject: func(int) func() {
			some, other = other, some
			return off(some)
		}},
		// A minute is longer than work can stay undone here, so no work may be lost.
		faults.Kind{Name: "restarted with raw kept for a minute", Slots: server, Longest: 3 * time.Second, Inject: func(int) func() {
			keeping("1m")
			return func() { keeping("7d") }
		}},
	)
	if full {
		kinds = append(kinds,
			faults.Kind{Name: "disk full", Slots: server, Longest: 4 * time.Second, Inject: func(int) func() {
				fill(t, d.filler())
				return goOn
			}},
			faults.Kind{Name: "disk full, and killed", Slots: server, Longest: 4 * time.Second, Inject: func(int) func() {
				fill(t, d.filler())
				at.Load().Kill()
				at.Store(d.serve(t, args...))
				return goOn
			}},
		)
	}
	by := &process.Process{URL: "http://" + link.Addr()}
	s.Start(t, 3, func(*rand.Rand) *process.Process { return by }, []time.Duration{6 * time.Second, 40 * time.Second})
	report.Faults = faults.Live(t, kinds)
	// Slices of 4 s and of 8 s stay open for longer than the age cap plus their width.
	dark := faults.Kind{Name: "killed, and off beyond the age cap", Inject: func(int) func() {
		at.Load().Kill()
		return serve
	}}
	faults.For(t, ageCap+9*time.Second, dark)
	report.Faults[dark.Name]++
	s.Stop(t)
	everything := func() {
		t.Helper()
		process.Eventually(t, "everything", func() error { return s.Oracle.Check(at.Load()) })
	}
	everything()
	// A clock that is far ahead is refused, so the process is not ready, and removes nothing.
	at.Load().Stop()
	far := d.serveAt(t, farOff, args...)
	far.Wrote(`start once with --accept-clock`)
	far.Stop()
	serve()
	report.Faults["restarted with a clock nine days ahead"]++
	everything()
	at.Load().Stop()

	store, err := pebble.Open(filepath.Join(d.dir, "data"), pebble.Options{})
	require.NoError(t, err)
	left, err := oracle.LeftIn(t.Context(), store)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	report.Left = &left
	assert.Zero(t, left)
}
