// Package integration tests the program itself: its real binary, real sockets, signals, files and
// time. What can be tested within one process is tested in its package; here is only what shows
// from outside.
package integration

import (
	"os"
	"os/exec"
	"testing"

	"github.com/quern/quern/integration/process"
)

// The programs under test. Most tests use the first.
var binary, ingestBinary, aggregatorBinary string

// faulty returns the programs whose clocks can be wrong.
var faulty func() (*process.Programs, error)

func TestMain(m *testing.M) {
	os.Exit(process.Tests{M: m, Use: func(p *process.Programs) {
		binary, ingestBinary, aggregatorBinary, faulty = p.Quern, p.Ingest, p.Aggregator, p.Faulty
	}}.Run())
}

// start starts the program. The program ends with the test at the latest.
func start(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, exec.CommandContext(t.Context(), binary, args...))
}

// seconds is a ladder on which a day takes four seconds.
var seconds = []string{"--rollups", "1s,2s,4s", "--aggregation-delay", "300ms", "--late-grace", "100ms"}

// serve starts a server on a port of its own and waits until it is ready.
func serve(t *testing.T, dir string, args ...string) *process.Process {
	t.Helper()
	p := start(t, serveArgs(dir, args...)...)
	p.Ready()
	return p
}

func serveArgs(dir string, args ...string) []string {
	return append([]string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dir, "--host-metrics=false"}, args...)
}

func lookPath(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("no %s on this machine", program)
	}
	return path
}
