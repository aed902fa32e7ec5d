package adaptor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/agent/format"
)

const tickMs = 1763683210000

// runExec runs a command once, and returns the samples and the log.
func runExec(t *testing.T, e *Exec) (samples []sample, log string, offset uint64) {
	t.Helper()
	r := newRig(t)
	e.Interval = span(time.Minute)
	require.NoError(t, e.check())
	e.run(t.Context(), r.Output, tickMs)
	samples, _ = spooled(t, r.Spool)
	return samples, r.log.String(), r.Spool.Stream(e.String()).Seq
}

func graphite() Lines { return Lines{Source: "db-1", Options: format.Options{Format: "graphite"}} }

func TestExec(t *testing.T) {
	one := []sample{{"db-1", "a", nil, tickMs, 1}}
	for name, c := range map[string]struct {
		exec Exec
		want []sample
		log  string // what the log says, "" for nothing
	}{
		"a command": {Exec{Command: []string{"printf", `a 1\na 2 3`}}, []sample{one[0], {"db-1", "a", nil, 3000, 2}}, ""},
		"a shell":   {Exec{Shell: "echo a 0 | tr 0 1"}, one, ""},
		"no shell":  {Exec{Command: []string{"echo", "a", "$(id -u)"}}, nil, "lines=1 offset=0"},
		"it fails":  {Exec{Shell: "echo a 1; echo no disk >&2; exit 3"}, one, `err="exit status 3: no disk"`},
		"a bad line": {
			Exec{Shell: "echo a 1; echo bad"}, one, "lines=1 offset=4",
		},
		"there is none":     {Exec{Command: []string{"/no/such/command"}}, nil, "no such file or directory"},
		"it never ends":     {Exec{Shell: "echo a 1; printf 'a 2'; while :; do :; done", Timeout: span(200 * time.Millisecond)}, one, `err="killed after 200ms"`},
		"it writes no end":  {Exec{Command: []string{"yes", strings.Repeat("a 1 1\n", 20_000)}}, nil, `err="it wrote more than 4194304 bytes"`},
		"it complains long": {Exec{Shell: "echo a 1; head -c 1000000 /dev/zero >&2"}, one, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.exec.Lines = graphite()
			samples, log, _ := runExec(t, &c.exec)
			if c.want != nil || name != "it writes no end" {
				require.Equal(t, c.want, samples)
			}
			if c.log == "" {
				require.Empty(t, log)
			}
			require.Contains(t, log, c.log)
		})
	}
}

// TestExecLeavesNothing: what a command has started ends with it, and does not keep it.
func TestExecLeavesNothing(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	samples, log, _ := runExec(t, &Exec{Shell: "sleep 1000000 & echo $! >" + pid + "; echo a 1", Lines: graphite()})
	require.Equal(t, []sample{{"db-1", "a", nil, tickMs, 1}}, samples)
	require.Empty(t, log)
	text, err := os.ReadFile(pid)
	require.NoError(t, err)
	// It is dead: gone, or a zombie until init takes it.
	for {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat")
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		runtime.Gosched()
	}
}

// TestNagios: state and performance data become samples.
func TestNagios(t *testing.T) {
	perf := func(name, unit string, value float64) sample {
		return sample{"db-1", "nagios_value", map[string]string{"check": "sh", "perfdata": name, "unit": unit, "disk": "sda"}, tickMs, value}
	}
	lines := Lines{Source: "db-1", Options: format.Options{Format: "nagios", Labels: map[string]string{"disk": "sda"}}}
	samples, log, offset := runExec(t, &Exec{Shell: `echo "DISK WARNING - free | /=2643MB;5948;5958;0;5968 'C: it''s'=1.5e1%;@10:20 load=U bad"
echo "more text"; echo "more | time=0.5s"; exit 1`, Lines: lines})
	require.Equal(t, []sample{
		{"db-1", "nagios_state", map[string]string{"check": "sh", "disk": "sda"}, tickMs, 1},
		perf("/", "MB", 2643), perf("C: it's", "%", 15), perf("time", "s", 0.5),
	}, samples)
	require.Contains(t, log, `lines=1 offset=0 err="\"bad\" is not performance data"`)
	require.EqualValues(t, 111, offset)

	samples, log, _ = runExec(t, &Exec{Shell: `echo "OK | v=1.2.3 w=1s"`, Lines: lines})
	require.Equal(t, perf("w", "s", 1), samples[1])
	require.Contains(t, log, `lines=1 offset=0 err="\"1.2.3\" is not a number`)
}

// TestExecGoesOn: the stream of a command goes on after a restart.
func TestExecGoesOn(t *testing.T) {
	r := newRig(t)
	e := &Exec{Shell: "echo a 1", Interval: span(time.Minute), Lines: graphite()}
	require.NoError(t, e.check())
	e.run(t.Context(), r.Output, tickMs)
	r.reopen(t)
	e.run(t.Context(), r.Output, tickMs+60_000)
	samples, chunks := spooled(t, r.Spool)
	require.Len(t, samples, 2)
	require.EqualValues(t, 8, chunks[1].Seq)
	require.Equal(t, "exec echo a 1", chunks[1].Stream)
}
